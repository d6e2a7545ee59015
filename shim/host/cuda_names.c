/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA runtime's names over the host engine. Errors stay with the calling thread until
 * cudaGetLastError(), as there; 600 (not ready) is no error.
 *
 * What has no meaning on the host engine succeeds and does nothing where a program could not tell
 * (peer access, capture modes), and is cudaErrorNotSupported where it could (graph capture). */
#include <cuda_runtime_api.h>

#include "sched/device/device.h"
#include "shim/host/host_names.h"

static _Thread_local cudaError_t last_error;

static cudaError_t note(int error)
{
    if (error != BRG_RT_OK && error != BRG_RT_NOT_READY)
        last_error = (cudaError_t)error;
    return (cudaError_t)error;
}

static const brg_runtime *rt(void)
{
    return brg_host_runtime();
}

/* Devices */

BRG_HOST_NAME cudaError_t cudaGetDeviceCount(int *count)
{
    return note(rt()->get_device_count(count));
}

BRG_HOST_NAME cudaError_t cudaSetDevice(int device)
{
    return note(rt()->set_device(device));
}

BRG_HOST_NAME cudaError_t cudaGetDevice(int *device)
{
    return note(rt()->get_device(device));
}

BRG_HOST_NAME cudaError_t cudaDeviceSynchronize(void)
{
    return note(rt()->device_synchronize());
}

/* There is no state of a device that could be reset; outstanding work ends, as there. */
BRG_HOST_NAME cudaError_t cudaDeviceReset(void)
{
    return note(rt()->device_synchronize());
}

BRG_HOST_NAME cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    int low = 0, high = 0;
    int error = rt()->stream_priority_range(&low, &high);
    if (least)
        *least = low;
    if (greatest)
        *greatest = high;
    return note(error);
}

BRG_HOST_NAME cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!can)
        return note(cudaErrorInvalidValue);
    *can = device != peer;
    return cudaSuccess;
}

static cudaError_t version(int *value)
{
    if (!value)
        return note(cudaErrorInvalidValue);
    *value = CUDART_VERSION;
    return cudaSuccess;
}

BRG_HOST_NAME cudaError_t cudaDriverGetVersion(int *value)
{
    return version(value);
}

BRG_HOST_NAME cudaError_t cudaRuntimeGetVersion(int *value)
{
    return version(value);
}

/* Memory */

BRG_HOST_NAME cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return note(rt()->malloc_device(memory, bytes));
}

BRG_HOST_NAME cudaError_t cudaFree(void *memory)
{
    return note(rt()->free_device(memory));
}

BRG_HOST_NAME cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    return note(rt()->malloc_device(memory, bytes));
}

/* Stream order: nothing in the stream may still use it. */
BRG_HOST_NAME cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    int error = rt()->stream_synchronize(stream);
    return note(error != BRG_RT_OK ? error : rt()->free_device(memory));
}

BRG_HOST_NAME cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return note(rt()->malloc_host(memory, bytes));
}

BRG_HOST_NAME cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    return note(rt()->malloc_host(memory, bytes));
}

BRG_HOST_NAME cudaError_t cudaFreeHost(void *memory)
{
    return note(rt()->free_host(memory));
}

BRG_HOST_NAME cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return note(rt()->mem_get_info(free_bytes, total_bytes));
}

BRG_HOST_NAME cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes,
                                     enum cudaMemcpyKind kind)
{
    return note(rt()->memcpy_async(dst, src, bytes, (int)kind, NULL));
}

BRG_HOST_NAME cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                                          enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return note(rt()->memcpy_async(dst, src, bytes, (int)kind, stream));
}

BRG_HOST_NAME cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    return note(rt()->memset_async(memory, value, bytes, NULL));
}

BRG_HOST_NAME cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes,
                                          cudaStream_t stream)
{
    return note(rt()->memset_async(memory, value, bytes, stream));
}

/* Streams */

BRG_HOST_NAME cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

BRG_HOST_NAME cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

BRG_HOST_NAME cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags,
                                                       int priority)
{
    void *made = NULL;
    if (!stream)
        return note(cudaErrorInvalidValue);
    int error = rt()->stream_create(&made, flags, priority);
    *stream = made;
    return note(error);
}

BRG_HOST_NAME cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return note(rt()->stream_destroy(stream));
}

BRG_HOST_NAME cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return note(rt()->stream_synchronize(stream));
}

BRG_HOST_NAME cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return note(rt()->stream_query(stream));
}

BRG_HOST_NAME cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                              unsigned int flags)
{
    return note(rt()->stream_wait_event(stream, event));
}

BRG_HOST_NAME cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                                enum cudaStreamCaptureStatus *capturing)
{
    if (!capturing)
        return note(cudaErrorInvalidValue);
    *capturing = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

BRG_HOST_NAME cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                 enum cudaStreamCaptureMode mode)
{
    return note(cudaErrorNotSupported);
}

BRG_HOST_NAME cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return note(cudaErrorNotSupported);
}

BRG_HOST_NAME cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    if (!mode)
        return note(cudaErrorInvalidValue);
    enum cudaStreamCaptureMode old = current;
    current = *mode;
    *mode = old;
    return cudaSuccess;
}

BRG_HOST_NAME cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    return note(rt()->launch_host_func(stream, fn, arg));
}

/* Events */

BRG_HOST_NAME cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

BRG_HOST_NAME cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    void *made = NULL;
    if (!event)
        return note(cudaErrorInvalidValue);
    /* Whoever waits sleeps anyway. */
    int error = rt()->event_create(&made, flags & cudaEventDisableTiming);
    *event = made;
    return note(error);
}

BRG_HOST_NAME cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return note(rt()->event_destroy(event));
}

BRG_HOST_NAME cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return note(rt()->event_record(event, stream));
}

BRG_HOST_NAME cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return note(rt()->event_query(event));
}

BRG_HOST_NAME cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return note(rt()->event_synchronize(event));
}

BRG_HOST_NAME cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return note(rt()->event_elapsed(ms, start, end));
}

/* Errors */

BRG_HOST_NAME cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

BRG_HOST_NAME cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

BRG_HOST_NAME const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "unrecognized error code";
}

BRG_HOST_NAME const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "unrecognized error code";
}
