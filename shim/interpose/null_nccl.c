/* SPDX-License-Identifier: Apache-2.0 */
/* An NCCL and a CUDA runtime that do nothing, for `brigade bench shim`: what is left of a call is
 * what the shim costs. The real runtime's own calls (two cudaEventRecord, about 1 us each) come on
 * top of its figures for timed calls. */
#include <stdint.h>

#include "shim/interpose/nccl_api.h"

#define EXPORT __attribute__((visibility("default")))

static char object[16];

EXPORT ncclResult_t pncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    *comm = (ncclComm_t)(void *)object;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = 0;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return ncclSuccess;
}

EXPORT ncclResult_t pncclGroupStart(void)
{
    return ncclSuccess;
}

EXPORT ncclResult_t pncclGroupEnd(void)
{
    return ncclSuccess;
}

EXPORT int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

EXPORT int cudaSetDevice(int device)
{
    return 0;
}

EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    *event = object;
    return 0;
}

EXPORT int cudaEventRecord(void *event, void *stream)
{
    return 0;
}

EXPORT int cudaEventQuery(void *event)
{
    return 0;
}

EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    *milliseconds = 0;
    return 0;
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    *stream = object;
    return 0;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *state)
{
    *state = 0;
    return 0;
}

EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    return 0;
}

EXPORT int cudaGetLastError(void)
{
    return 0;
}

EXPORT int cudaPeekAtLastError(void)
{
    return 0;
}
