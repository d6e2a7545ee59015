/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in front of libcudart and counts calls by kind. Preloaded, and named by BRIGADE_CUDART, so
 * that the calls of every library in the process that is linked with libcudart or opens it come
 * here; what is not defined here is found in libcudart, which this library needs. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "tests/gpu/counting_cudart.h"

static _Atomic long counts[BRG_COUNT_KINDS];

/* A use of libcudart, without which the linker would not note that it is needed. */
__attribute__((used)) static cudaError_t (*const needed)(int *) = cudaRuntimeGetVersion;

__attribute__((visibility("default"))) long brg_counted_calls(brg_count_kind kind)
{
    return atomic_load(&counts[kind]);
}

/* Defines `name` as a function that counts and goes on to the next one of that name. */
#define COUNTED(kind, name, parameters, arguments)                                                 \
    __attribute__((visibility("default"))) cudaError_t name parameters                             \
    {                                                                                              \
        static _Atomic(void *) found;                                                              \
        void *real = atomic_load(&found);                                                          \
        cudaError_t(*call) parameters;                                                             \
        if (!real) {                                                                               \
            real = dlsym(RTLD_NEXT, #name);                                                        \
            atomic_store(&found, real);                                                            \
        }                                                                                          \
        if (!real)                                                                                 \
            return cudaErrorSharedObjectSymbolNotFound;                                            \
        memcpy(&call, &real, sizeof call);                                                         \
        atomic_fetch_add(&counts[kind], 1);                                                        \
        return call arguments;                                                                     \
    }

COUNTED(BRG_COUNT_MEMORY, cudaMalloc, (void **p, size_t n), (p, n))
COUNTED(BRG_COUNT_MEMORY, cudaMallocAsync, (void **p, size_t n, cudaStream_t s), (p, n, s))
COUNTED(BRG_COUNT_MEMORY, cudaMallocManaged, (void **p, size_t n, unsigned flags), (p, n, flags))
COUNTED(BRG_COUNT_MEMORY, cudaMallocHost, (void **p, size_t n), (p, n))
COUNTED(BRG_COUNT_MEMORY, cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))
COUNTED(BRG_COUNT_MEMORY, cudaHostRegister, (void *p, size_t n, unsigned flags), (p, n, flags))
COUNTED(BRG_COUNT_MEMORY, cudaFree, (void *p), (p))
COUNTED(BRG_COUNT_MEMORY, cudaFreeAsync, (void *p, cudaStream_t s), (p, s))
COUNTED(BRG_COUNT_MEMORY, cudaFreeHost, (void *p), (p))

COUNTED(BRG_COUNT_SYNC, cudaDeviceSynchronize, (void), ())
COUNTED(BRG_COUNT_SYNC, cudaStreamSynchronize, (cudaStream_t s), (s))
COUNTED(BRG_COUNT_SYNC, cudaEventSynchronize, (cudaEvent_t e), (e))

COUNTED(BRG_COUNT_SYNC_COPY, cudaMemcpy,
        (void *to, const void *from, size_t n, enum cudaMemcpyKind kind), (to, from, n, kind))
COUNTED(BRG_COUNT_SYNC_COPY, cudaMemset, (void *p, int value, size_t n), (p, value, n))

COUNTED(BRG_COUNT_ASYNC, cudaMemcpyAsync,
        (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s),
        (to, from, n, kind, s))
COUNTED(BRG_COUNT_ASYNC, cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s),
        (p, value, n, s))
COUNTED(BRG_COUNT_ASYNC, cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s))
COUNTED(BRG_COUNT_KERNEL, cudaLaunchKernel,
        (const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s),
        (f, grid, block, args, shared, s))
COUNTED(BRG_COUNT_KERNEL, cudaLaunchKernelExC,
        (const cudaLaunchConfig_t *config, const void *f, void **args), (config, f, args))
