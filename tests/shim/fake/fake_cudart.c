/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime whose events happen when they are recorded, and are known to have a moment later.
 * It keeps a
 * last error per thread as the real one does, can be told to capture and to fail, and notes what
 * must not happen: a query outside relaxed mode while something captures, a record into a stream
 * that is captured. */
#include "tests/shim/fake/fake.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* The driver: other names, and no last error. */
#ifdef FAKE_DRIVER
#define cudaGetDevice cuCtxGetDevice
#define cudaEventCreateWithFlags cuEventCreate
#define cudaEventRecord cuEventRecord
#define cudaEventQuery cuEventQuery
#define cudaEventElapsedTime cuEventElapsedTime
#define cudaStreamCreateWithFlags cuStreamCreate
#define cudaStreamIsCapturing cuStreamIsCapturing
#define cudaThreadExchangeStreamCaptureMode cuThreadExchangeStreamCaptureMode

EXPORT int cuDeviceGet(int *out, int ordinal)
{
    *out = ordinal;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int handle)
{
    *context = (void *)(intptr_t)(handle + 1);
    return 0;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    return context ? 0 : 201;
}
#endif

enum { NOT_READY = 600, CAPTURE_IMPLICIT = 906, EVENTS = 100000, KNOWN_NS = 20000 };

struct event {
    int64_t ns;
    int late;
};
static struct event events[EVENTS];
static int num_events;
static void *capturing;
static int implicit, sins, records, fail_records;
static int64_t behind;
static void *own_stream; /* of whoever times: it is never behind */
static _Thread_local int last_error, device, mode;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int note(int error)
{
    if (error)
        last_error = error;
    return error;
}

EXPORT void fake_cuda_capture(void *stream)
{
    capturing = stream;
}

EXPORT void fake_cuda_implicit(int on)
{
    implicit = on;
}

EXPORT void fake_cuda_fail_records(int on)
{
    fail_records = on;
}

EXPORT void fake_cuda_behind(int64_t ns)
{
    __atomic_store_n(&behind, ns, __ATOMIC_RELAXED);
}

EXPORT int fake_cuda_records(void)
{
    return __atomic_load_n(&records, __ATOMIC_RELAXED);
}

EXPORT int fake_cuda_sins(void)
{
    return __atomic_load_n(&sins, __ATOMIC_RELAXED);
}

EXPORT int cudaGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT int cudaGetDevice(int *out)
{
    *out = device;
    return 0;
}

EXPORT int cudaSetDevice(int wanted)
{
    if (wanted < 0 || wanted > 7)
        return note(101);
    device = wanted;
    return 0;
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    *stream = own_stream = malloc(16);
    return 0;
}

EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    int at = __atomic_fetch_add(&num_events, 1, __ATOMIC_RELAXED);
    *event = &events[at % EVENTS];
    return 0;
}

EXPORT int cudaEventRecord(void *event, void *stream)
{
    if (fail_records)
        return note(719);
    if (capturing && capturing == stream)
        __atomic_fetch_add(&sins, 1, __ATOMIC_RELAXED);
    int64_t later = stream == own_stream ? 0 : __atomic_load_n(&behind, __ATOMIC_RELAXED);
    __atomic_store_n(&((struct event *)event)->ns, now_ns() + later, __ATOMIC_RELAXED);
    __atomic_store_n(&((struct event *)event)->late, later > 0, __ATOMIC_RELAXED);
    __atomic_fetch_add(&records, 1, __ATOMIC_RELAXED);
    return 0;
}

EXPORT int cudaEventQuery(void *event)
{
    if (capturing && mode != 2)
        __atomic_fetch_add(&sins, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&((struct event *)event)->late, __ATOMIC_RELAXED) &&
        __atomic_load_n(&behind, __ATOMIC_RELAXED))
        return note(NOT_READY);
    if (now_ns() - __atomic_load_n(&((struct event *)event)->ns, __ATOMIC_RELAXED) < KNOWN_NS &&
        !__atomic_load_n(&((struct event *)event)->late, __ATOMIC_RELAXED))
        return note(NOT_READY); /* the real one leaves it behind, too */
    return 0;
}

EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    int64_t a = __atomic_load_n(&((struct event *)start)->ns, __ATOMIC_RELAXED);
    int64_t b = __atomic_load_n(&((struct event *)end)->ns, __ATOMIC_RELAXED);
    *milliseconds = (float)((double)(b - a) / 1e6);
    return 0;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *state)
{
    if (implicit && !stream)
        return note(CAPTURE_IMPLICIT);
    *state = capturing && capturing == stream;
    return 0;
}

EXPORT int cudaThreadExchangeStreamCaptureMode(int *wanted)
{
    int before = mode;
    mode = *wanted;
    *wanted = before;
    return 0;
}
