/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA-runtime-shaped table over the CUDA runtime. Where the two differ, device.h is right.
 *
 * A stream that some other library captures in global mode is spoilt by "unsafe" calls of any
 * thread, such as a watchdog's query of an event; those are made in relaxed mode here. */
#include "sched/device/cuda_internal.h"

#include <stdio.h>
#include <string.h>

/* The runtime remembers a failure for the next one who asks; ours is not for others to find. */
static int done(int error)
{
    if (error && cuda_rt.cudaPeekAtLastError() == error)
        cuda_rt.cudaGetLastError();
    return error;
}

/* Returns the thread's mode for restore_mode(); -1: it could not be changed. */
static int relax_mode(void)
{
    int mode = BRG_CUDA_CAPTURE_RELAXED;
    return done(cuda_rt.cudaThreadExchangeStreamCaptureMode(&mode)) ? -1 : mode;
}

static void restore_mode(int mode)
{
    if (mode >= 0)
        done(cuda_rt.cudaThreadExchangeStreamCaptureMode(&mode));
}

/* Devices */

static int get_device_count(int *count)
{
    return done(cuda_rt.cudaGetDeviceCount(count));
}

static int set_device(int device)
{
    return done(cuda_rt.cudaSetDevice(device));
}

static int get_device(int *device)
{
    return done(cuda_rt.cudaGetDevice(device));
}

static int device_synchronize(void)
{
    return done(cuda_rt.cudaDeviceSynchronize());
}

static int device_pci_bus_id(char *text, int bytes, int device)
{
    return done(cuda_rt.cudaDeviceGetPCIBusId(text, bytes, device));
}

static int device_name(char *text, int bytes, int device)
{
    char properties[BRG_CUDA_PROPERTIES_BYTES] __attribute__((aligned(16))) = {0};
    if (!text || bytes < 1)
        return BRG_RT_INVALID_VALUE;
    int error = done(cuda_rt.cudaGetDeviceProperties(properties, device));
    if (!error)
        snprintf(text, (size_t)bytes, "%.*s", BRG_CUDA_NAME_BYTES, properties);
    return error;
}

/* Memory */

static int allocate(int (*function)(void **, size_t), void **memory, size_t bytes)
{
    if (!memory)
        return BRG_RT_INVALID_VALUE;
    *memory = NULL;
    int mode = relax_mode();
    int error = done(function(memory, bytes));
    restore_mode(mode);
    return error;
}

static int release(int (*function)(void *), void *memory)
{
    if (!memory)
        return BRG_RT_OK;
    int mode = relax_mode();
    int error = done(function(memory));
    restore_mode(mode);
    return error;
}

static int malloc_device(void **memory, size_t bytes)
{
    return allocate(cuda_rt.cudaMalloc, memory, bytes);
}

static int free_device(void *memory)
{
    return release(cuda_rt.cudaFree, memory);
}

static int malloc_host(void **memory, size_t bytes)
{
    return allocate(cuda_rt.cudaMallocHost, memory, bytes);
}

static int free_host(void *memory)
{
    return release(cuda_rt.cudaFreeHost, memory);
}

static int mem_get_info(size_t *free_bytes, size_t *total_bytes)
{
    return done(cuda_rt.cudaMemGetInfo(free_bytes, total_bytes));
}

static int memcpy_async(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    return bytes ? done(cuda_rt.cudaMemcpyAsync(dst, src, bytes, kind, stream)) : BRG_RT_OK;
}

static int memset_async(void *dst, int value, size_t bytes, void *stream)
{
    return bytes ? done(cuda_rt.cudaMemsetAsync(dst, value, bytes, stream)) : BRG_RT_OK;
}

/* Streams */

static int stream_priority_range(int *least, int *greatest)
{
    return done(cuda_rt.cudaDeviceGetStreamPriorityRange(least, greatest));
}

static int stream_create(void **stream, unsigned flags, int priority)
{
    return done(cuda_rt.cudaStreamCreateWithPriority(stream, flags, priority));
}

static int stream_destroy(void *stream)
{
    if (!stream)
        return BRG_RT_INVALID_VALUE;
    /* CUDA would let the work go on without the stream */
    int waited = done(cuda_rt.cudaStreamSynchronize(stream));
    int error = done(cuda_rt.cudaStreamDestroy(stream));
    return waited ? waited : error;
}

static int stream_synchronize(void *stream)
{
    return done(cuda_rt.cudaStreamSynchronize(stream));
}

static int stream_query(void *stream)
{
    int mode = relax_mode();
    int error = done(cuda_rt.cudaStreamQuery(stream));
    restore_mode(mode);
    return error;
}

static int stream_wait_event(void *stream, void *event)
{
    return event ? done(cuda_rt.cudaStreamWaitEvent(stream, event, 0)) : BRG_RT_INVALID_VALUE;
}

static int launch_host_func(void *stream, void (*fn)(void *arg), void *arg)
{
    return fn ? done(cuda_rt.cudaLaunchHostFunc(stream, fn, arg)) : BRG_RT_INVALID_VALUE;
}

/* Events */

static int event_create(void **event, unsigned flags)
{
    return done(cuda_rt.cudaEventCreateWithFlags(event, flags));
}

static int event_destroy(void *event)
{
    return event ? done(cuda_rt.cudaEventDestroy(event)) : BRG_RT_INVALID_VALUE;
}

static int event_record(void *event, void *stream)
{
    return event ? done(cuda_rt.cudaEventRecord(event, stream)) : BRG_RT_INVALID_VALUE;
}

static int event_query(void *event)
{
    if (!event)
        return BRG_RT_INVALID_VALUE;
    int mode = relax_mode();
    int error = done(cuda_rt.cudaEventQuery(event));
    restore_mode(mode);
    return error;
}

static int event_synchronize(void *event)
{
    if (!event)
        return BRG_RT_INVALID_VALUE;
    int mode = relax_mode();
    int error = done(cuda_rt.cudaEventSynchronize(event));
    restore_mode(mode);
    return error;
}

static int event_elapsed(float *milliseconds, void *start, void *end)
{
    int error = done(cuda_rt.cudaEventElapsedTime(milliseconds, start, end));
    return error == BRG_CUDA_INVALID_HANDLE ? BRG_RT_INVALID_VALUE : error; /* has no time */
}

/* Graphs */

static int stream_is_capturing(void *stream, int *capturing)
{
    if (!capturing)
        return BRG_RT_INVALID_VALUE;
    int state = 0;
    int error = done(cuda_rt.cudaStreamIsCapturing(stream, &state));
    if (error == BRG_CUDA_CAPTURE_IMPLICIT) { /* the legacy stream beside one that captures */
        *capturing = 1;
        return BRG_RT_OK;
    }
    *capturing = state != 0;
    return error;
}

static int graph_begin(void *stream)
{
    return done(cuda_rt.cudaStreamBeginCapture(stream, BRG_CUDA_CAPTURE_RELAXED));
}

static int graph_end(void *stream, void **graph)
{
    if (!graph)
        return BRG_RT_INVALID_VALUE;
    *graph = NULL;
    void *captured = NULL;
    int error = done(cuda_rt.cudaStreamEndCapture(stream, &captured));
    if (error)
        return error;
    error = done(cuda_rt.cudaGraphInstantiateWithFlags(graph, captured, 0));
    if (captured)
        done(cuda_rt.cudaGraphDestroy(captured));
    return error;
}

static int graph_launch(void *graph, void *stream)
{
    return done(cuda_rt.cudaGraphLaunch(graph, stream));
}

static int graph_destroy(void *graph)
{
    return graph ? done(cuda_rt.cudaGraphExecDestroy(graph)) : BRG_RT_OK;
}

static const char *error_string(int error)
{
    return cuda_rt.cudaGetErrorString(error);
}

const brg_runtime *brg_cuda_runtime(void)
{
    static const brg_runtime table = {
        .name = "cuda",
        .get_device_count = get_device_count,
        .set_device = set_device,
        .get_device = get_device,
        .device_synchronize = device_synchronize,
        .malloc_device = malloc_device,
        .free_device = free_device,
        .malloc_host = malloc_host,
        .free_host = free_host,
        .mem_get_info = mem_get_info,
        .memcpy_async = memcpy_async,
        .memset_async = memset_async,
        .stream_priority_range = stream_priority_range,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_synchronize = stream_synchronize,
        .stream_query = stream_query,
        .stream_wait_event = stream_wait_event,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_query = event_query,
        .event_synchronize = event_synchronize,
        .event_elapsed = event_elapsed,
        .launch_host_func = launch_host_func,
        .stream_is_capturing = stream_is_capturing,
        .graph_begin = graph_begin,
        .graph_end = graph_end,
        .graph_launch = graph_launch,
        .graph_destroy = graph_destroy,
        .device_pci_bus_id = device_pci_bus_id,
        .device_name = device_name,
        .error_string = error_string,
    };
    return &table;
}
