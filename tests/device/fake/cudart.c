/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without a GPU: streams run their work at once. What it answers is set by
 *   FAKE_CUDART_VERSION  (12080)    FAKE_GPUS  (2)
 *   FAKE_QUERY           what stream and event queries return (0)
 */
#include <stdlib.h>
#include <string.h>

static _Thread_local int last_error, current;
static int tokens[4];

static int number(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text ? atoi(text) : fallback;
}

static int fail(int error)
{
    if (error)
        last_error = error;
    return error;
}

int cudaRuntimeGetVersion(int *version)
{
    *version = number("FAKE_CUDART_VERSION", 12080);
    return 0;
}

int cudaGetDeviceCount(int *count)
{
    *count = number("FAKE_GPUS", 2);
    return fail(*count ? 0 : 100);
}

int cudaSetDevice(int device)
{
    if (device < 0 || device >= number("FAKE_GPUS", 2))
        return fail(101);
    current = device;
    return 0;
}

int cudaGetDevice(int *device)
{
    *device = current;
    return 0;
}

int cudaDeviceSynchronize(void)
{
    return 0;
}

int cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    strncpy(text, device ? "0000:C1:00.0" : "0000:1B:00.0", (size_t)bytes);
    return 0;
}

int cudaMalloc(void **memory, size_t bytes)
{
    *memory = bytes > (size_t)1 << 40 ? NULL : malloc(bytes);
    return fail(*memory ? 0 : 2);
}

int cudaFree(void *memory)
{
    free(memory);
    return 0;
}

int cudaMallocHost(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}

int cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 1 << 30;
    return 0;
}

int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    memcpy(dst, src, bytes);
    return 0;
}

int cudaMemsetAsync(void *dst, int value, size_t bytes, void *stream)
{
    memset(dst, value, bytes);
    return 0;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return 0;
}

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    *stream = &tokens[0];
    return 0;
}

int cudaStreamDestroy(void *stream)
{
    return 0;
}

int cudaStreamSynchronize(void *stream)
{
    return 0;
}

int cudaStreamQuery(void *stream)
{
    return fail(number("FAKE_QUERY", 0));
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return 0;
}

int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    *event = &tokens[1];
    return 0;
}

int cudaEventDestroy(void *event)
{
    return 0;
}

int cudaEventRecord(void *event, void *stream)
{
    return 0;
}

int cudaEventQuery(void *event)
{
    return fail(number("FAKE_QUERY", 0));
}

int cudaEventSynchronize(void *event)
{
    return 0;
}

int cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return fail(400); /* as for events without timing */
}

int cudaLaunchHostFunc(void *stream, void (*fn)(void *arg), void *arg)
{
    fn(arg);
    return 0;
}

int cudaStreamIsCapturing(void *stream, int *state)
{
    return stream ? (*state = 0) : fail(906);
}

int cudaStreamBeginCapture(void *stream, int mode)
{
    return fail(mode == 2 ? 0 : 1);
}

int cudaStreamEndCapture(void *stream, void **graph)
{
    *graph = &tokens[2];
    return 0;
}

int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int now;
    int old = now;
    now = *mode;
    *mode = old;
    return 0;
}

int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    *executable = &tokens[3];
    return fail(graph == &tokens[2] && !flags ? 0 : 1);
}

int cudaGraphLaunch(void *executable, void *stream)
{
    return fail(executable == &tokens[3] ? 0 : 1);
}

int cudaGraphExecDestroy(void *executable)
{
    return 0;
}

int cudaGraphDestroy(void *graph)
{
    return 0;
}

int cudaGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

int cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(int error)
{
    return error == 100 ? "no CUDA-capable device is detected" : "fake CUDA error";
}

int cudaGetDeviceProperties(void *properties, int device)
{
    strcpy(properties, "NVIDIA Fake");
    return 0;
}
