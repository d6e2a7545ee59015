/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel with kernels of known length: in each step, BUCKETS times a kernel of SPIN_NS on
 * the compute stream and an all-reduce, which waits for it, on another. Usage: gpu_kernels STEPS.
 * Prints per step when it began and ended on the host, and a sum at the end. */
#include <time.h>

#include "gpu_spin.h"
#include "trainer.h"

enum { BUCKETS = 4, ELEMS = 1 << 20, SPIN_NS = 500 * 1000 };

static unsigned long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

int main(int argc, char **argv)
{
    job j;
    float *memory;
    static float host[BUCKETS * ELEMS];
    double sum = 0;
    job_open(&j, argc, argv);
    for (int i = 0; i < BUCKETS * ELEMS; i++)
        host[i] = (float)(i % 7 + j.rank);
    CHECK_CUDA(cudaMalloc((void **)&memory, sizeof host));
    CHECK_CUDA(cudaMemcpy(memory, host, sizeof host, cudaMemcpyHostToDevice));
    for (int step = 0; step < j.steps; step++) {
        unsigned long long t0 = now_ns();
        for (int b = 0; b < BUCKETS; b++) {
            float *bucket = memory + b * ELEMS;
            CHECK_CUDA((cudaError_t)gpu_spin(SPIN_NS, j.compute));
            CHECK_CUDA(cudaEventRecord(j.ready, j.compute));
            CHECK_CUDA(cudaStreamWaitEvent(j.comms, j.ready, 0));
            CHECK_NCCL(ncclAllReduce(bucket, bucket, (size_t)ELEMS - 1024 * (size_t)b, ncclFloat,
                                     ncclAvg, j.comm, j.comms));
        }
        CHECK_CUDA(cudaDeviceSynchronize());
        printf("step %d %d %llu %llu\n", j.rank, step, t0, now_ns());
        fflush(stdout);
    }
    CHECK_CUDA(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BUCKETS * ELEMS; i++)
        sum += host[i];
    if (j.rank == 0)
        printf("sum %.3f\n", sum);
    CHECK_CUDA(cudaFree(memory));
    job_close(&j);
    CHECK_CUDA(cudaGetLastError());
    return 0;
}
