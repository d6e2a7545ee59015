/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel with kernels that a fake CUPTI is told of: "kernels" are the host's waiting, in
 * bursts with short and long gaps, while all-reduces run on a stream of their own. Usage:
 * kernel_trainer STEPS. Every kernel is printed: rank, stream, begin and end in ns of
 * CLOCK_MONOTONIC, name. */
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "trainer.h"

enum { BUCKETS = 3, ELEMS = 1 << 18, BURST = 4, STREAM = 7, COMM_STREAM = 13 };

typedef void (*kernel_ran)(const char *name, unsigned stream, unsigned long long t0_ns,
                           unsigned long long t1_ns);

static kernel_ran ran;
static int rank;

static unsigned long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

static void kernel(const char *name, unsigned stream, unsigned long long t0, unsigned long long t1)
{
    printf("kernel %d %u %llu %llu %s\n", rank, stream, t0, t1, name);
    if (ran)
        ran(name, stream, t0, t1);
}

/* A stretch of time as a long kernel and several short ones with a microsecond between, then a
 * hundred of rest. */
static void compute(int microseconds)
{
    unsigned long long t0 = now_ns();
    usleep((unsigned)microseconds);
    unsigned long long t1 = now_ns(), at = t1 - 40000;
    kernel("_ZN3net4gemmILi128ELb1EEEvPf", STREAM, t0, at - 5000);
    for (int i = 0; i < BURST; i++, at += 8000)
        kernel(i == 2 ? "_ZN3net12_GLOBAL__N_15scaleEPfi" : "copy", STREAM, at,
               at + 7000 + (i == 2 ? 500 : 0));
    usleep(100);
}

int main(int argc, char **argv)
{
    job j;
    float *memory;
    setvbuf(stdout, NULL, _IOLBF, 0); /* whole lines, also of two ranks on one pipe */
    job_open(&j, argc, argv);
    rank = j.rank;
    const char *cupti = getenv("BRIGADE_CUPTI");
    void *library = cupti ? dlopen(cupti, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (library)
        *(void **)(void *)&ran = dlsym(library, "fake_cupti_kernel");
    CHECK_CUDA(cudaMalloc((void **)&memory, BUCKETS * ELEMS * sizeof *memory));
    for (int step = 0; step < j.steps; step++) {
        compute(300);
        for (int b = 0; b < BUCKETS; b++) {
            float *bucket = memory + b * ELEMS;
            compute(200);
            CHECK_NCCL(
                ncclAllReduce(bucket, bucket, ELEMS >> b, ncclFloat, ncclSum, j.comm, j.comms));
        }
        CHECK_CUDA(cudaStreamSynchronize(j.comms));
        unsigned long long t0 = now_ns(); /* after all collectives: it is none of theirs */
        kernel("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
               COMM_STREAM, t0 + 20000, t0 + 150000);
        usleep(200);
    }
    CHECK_CUDA(cudaFree(memory));
    job_close(&j);
    return 0;
}
