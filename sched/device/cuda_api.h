/* SPDX-License-Identifier: Apache-2.0 */
/* What Brigade uses of the CUDA runtime (11.8 or later) and of NCCL (2.19 or later), in
 * declarations of our own, so that building needs no header of theirs. Handles are void *,
 * enumerations int. tests/device/cuda_api_test.cc checks all of it against the real headers.
 */
#ifndef BRIGADE_SCHED_DEVICE_CUDA_API_H
#define BRIGADE_SCHED_DEVICE_CUDA_API_H

#include <limits.h>
#include <stddef.h>

#include "brigade/context.h"

enum { BRG_CUDART_OLDEST = 11080, BRG_NCCL_OLDEST = 21900 }; /* as the libraries count versions */

/* cudaError_t values that need care; the others are passed on. */
enum { BRG_CUDA_INVALID_HANDLE = 400, BRG_CUDA_CAPTURE_IMPLICIT = 906 };

enum { BRG_CUDA_CAPTURE_RELAXED = 2 };     /* cudaStreamCaptureModeRelaxed */
enum { BRG_CUDA_NAME_BYTES = 256 };        /* of cudaDeviceProp.name, its first member */
enum { BRG_CUDA_PROPERTIES_BYTES = 8192 }; /* more than cudaDeviceProp has in any version */

/* F(result, name, arguments) for each function that must be there. */
#define BRG_CUDART_FUNCTIONS(F)                                                                    \
    F(int, cudaRuntimeGetVersion, (int *version))                                                  \
    F(int, cudaGetDeviceCount, (int *count))                                                       \
    F(int, cudaSetDevice, (int device))                                                            \
    F(int, cudaGetDevice, (int *device))                                                           \
    F(int, cudaDeviceSynchronize, (void))                                                          \
    F(int, cudaDeviceGetPCIBusId, (char *text, int bytes, int device))                             \
    F(int, cudaMalloc, (void **memory, size_t bytes))                                              \
    F(int, cudaFree, (void *memory))                                                               \
    F(int, cudaMallocHost, (void **memory, size_t bytes))                                          \
    F(int, cudaFreeHost, (void *memory))                                                           \
    F(int, cudaMemGetInfo, (size_t * free_bytes, size_t * total_bytes))                            \
    F(int, cudaMemcpyAsync, (void *dst, const void *src, size_t bytes, int kind, void *stream))    \
    F(int, cudaMemsetAsync, (void *dst, int value, size_t bytes, void *stream))                    \
    F(int, cudaDeviceGetStreamPriorityRange, (int *least, int *greatest))                          \
    F(int, cudaStreamCreateWithPriority, (void **stream, unsigned flags, int priority))            \
    F(int, cudaStreamDestroy, (void *stream))                                                      \
    F(int, cudaStreamSynchronize, (void *stream))                                                  \
    F(int, cudaStreamQuery, (void *stream))                                                        \
    F(int, cudaStreamWaitEvent, (void *stream, void *event, unsigned flags))                       \
    F(int, cudaEventCreateWithFlags, (void **event, unsigned flags))                               \
    F(int, cudaEventDestroy, (void *event))                                                        \
    F(int, cudaEventRecord, (void *event, void *stream))                                           \
    F(int, cudaEventQuery, (void *event))                                                          \
    F(int, cudaEventSynchronize, (void *event))                                                    \
    F(int, cudaEventElapsedTime, (float *milliseconds, void *start, void *end))                    \
    F(int, cudaLaunchHostFunc, (void *stream, void (*fn)(void *arg), void *arg))                   \
    F(int, cudaStreamIsCapturing, (void *stream, int *state))                                      \
    F(int, cudaStreamBeginCapture, (void *stream, int mode))                                       \
    F(int, cudaStreamEndCapture, (void *stream, void **graph))                                     \
    F(int, cudaThreadExchangeStreamCaptureMode, (int *mode))                                       \
    F(int, cudaGraphInstantiateWithFlags,                                                          \
      (void **executable, void *graph, unsigned long long flags))                                  \
    F(int, cudaGraphLaunch, (void *executable, void *stream))                                      \
    F(int, cudaGraphExecDestroy, (void *executable))                                               \
    F(int, cudaGraphDestroy, (void *graph))                                                        \
    F(int, cudaGetLastError, (void))                                                               \
    F(int, cudaPeekAtLastError, (void))                                                            \
    F(const char *, cudaGetErrorString, (int error))                                               \
    F(int, cudaGetDeviceProperties, (void *properties, int device))

/* CUDA 12 exports cudaGetDeviceProperties for programs of CUDA 11 and has its own under this name.
 */
#define BRG_CUDART_PROPERTIES_V2 "cudaGetDeviceProperties_v2"

/* The first members of ncclConfig_t, as NCCL 2.19 knows it; later ones read the size and leave the
 * rest at its default. */
typedef struct brg_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas, max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class; /* padding before NCCL 2.26 */
} brg_nccl_config;

#define BRG_NCCL_CONFIG                                                                            \
    {                                                                                              \
        .size = sizeof(brg_nccl_config), .magic = 0xcafebeef, .version = BRG_NCCL_OLDEST,          \
        .blocking = 1, .cga_cluster_size = INT_MIN, .min_ctas = INT_MIN, .max_ctas = INT_MIN,      \
        .net_name = NULL, .split_share = INT_MIN, .traffic_class = INT_MIN,                        \
    }

/* The same; O(...) for what need not be there: NULL in the table. */
#define BRG_NCCL_FUNCTIONS(F, O)                                                                   \
    F(int, ncclGetVersion, (int *version))                                                         \
    F(int, ncclGetUniqueId, (brg_unique_id * id))                                                  \
    F(int, ncclCommInitRank, (void **comm, int num_ranks, brg_unique_id id, int rank))             \
    F(int, ncclCommInitAll, (void **comms, int num_devices, const int *devices))                   \
    F(int, ncclCommDestroy, (void *comm))                                                          \
    F(int, ncclCommAbort, (void *comm))                                                            \
    F(int, ncclCommGetAsyncError, (void *comm, int *result))                                       \
    F(int, ncclCommCount, (void *comm, int *count))                                                \
    F(int, ncclCommUserRank, (void *comm, int *rank))                                              \
    F(int, ncclCommCuDevice, (void *comm, int *device))                                            \
    F(int, ncclAllReduce,                                                                          \
      (const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream))   \
    F(int, ncclReduceScatter,                                                                      \
      (const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream))   \
    F(int, ncclAllGather,                                                                          \
      (const void *send, void *recv, size_t count, int dtype, void *comm, void *stream))           \
    F(int, ncclBroadcast,                                                                          \
      (const void *send, void *recv, size_t count, int dtype, int root, void *comm, void *stream)) \
    F(int, ncclReduce,                                                                             \
      (const void *send, void *recv, size_t count, int dtype, int op, int root, void *comm,        \
       void *stream))                                                                              \
    F(int, ncclSend,                                                                               \
      (const void *send, size_t count, int dtype, int peer, void *comm, void *stream))             \
    F(int, ncclRecv, (void *recv, size_t count, int dtype, int peer, void *comm, void *stream))    \
    F(int, ncclGroupStart, (void))                                                                 \
    F(int, ncclGroupEnd, (void))                                                                   \
    F(int, ncclRedOpCreatePreMulSum,                                                               \
      (int *op, void *scalar, int dtype, int residence, void *comm))                               \
    F(int, ncclRedOpDestroy, (int op, void *comm))                                                 \
    F(const char *, ncclGetErrorString, (int result))                                              \
    O(int, ncclCommInitRankConfig,                                                                 \
      (void **comm, int num_ranks, brg_unique_id id, int rank, brg_nccl_config *config))           \
    O(int, ncclCommSplit, (void *comm, int color, int key, void **child, brg_nccl_config *config)) \
    O(int, ncclCommFinalize, (void *comm))                                                         \
    O(int, ncclMemAlloc, (void **memory, size_t bytes))                                            \
    O(int, ncclMemFree, (void *memory))                                                            \
    O(const char *, ncclGetLastError, (void *comm))                                                \
    O(int, ncclAlltoAll,                                                                           \
      (const void *send, void *recv, size_t count, int dtype, void *comm, void *stream))

#define BRG_POINTER(result, name, arguments) result(*name) arguments;
typedef struct brg_cudart {
    BRG_CUDART_FUNCTIONS(BRG_POINTER)
} brg_cudart;
typedef struct brg_nccl_lib {
    BRG_NCCL_FUNCTIONS(BRG_POINTER, BRG_POINTER)
} brg_nccl_lib;
#undef BRG_POINTER

#endif
