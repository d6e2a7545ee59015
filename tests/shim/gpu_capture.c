/* SPDX-License-Identifier: Apache-2.0 */
/* One rank on a GPU: an all-reduce outside, one in a captured graph that is replayed, one outside
 * again, while the shim's reader looks at its events. Prints the sum of what came out. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int error_ = (int)(call);                                                                  \
        if (error_) {                                                                              \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, error_);                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

enum { ELEMS = 1 << 20, REPLAYS = 3 };

int main(void)
{
    static float host[ELEMS];
    double sum = 0;
    float *memory;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    for (int i = 0; i < ELEMS; i++)
        host[i] = (float)(i % 7);
    CHECK(cudaSetDevice(0));
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&comm, 1, id, 0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&memory, sizeof host));
    CHECK(cudaMemcpy(memory, host, sizeof host, cudaMemcpyHostToDevice));
    CHECK(ncclAllReduce(memory, memory, ELEMS, ncclFloat, ncclSum, comm, stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(ncclAllReduce(memory, memory, ELEMS / 2, ncclFloat, ncclSum, comm, stream));
    usleep(100000);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < REPLAYS; i++)
        CHECK(cudaGraphLaunch(executable, stream));
    CHECK(ncclAllReduce(memory, memory, ELEMS / 4, ncclFloat, ncclSum, comm, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ELEMS; i++)
        sum += host[i];
    printf("sum %.1f\n", sum);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(ncclCommDestroy(comm));
    CHECK(cudaGetLastError());
    return 0;
}
