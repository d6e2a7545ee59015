/* SPDX-License-Identifier: Apache-2.0 */
/* A libcupti that has what a program tells it: fake_cupti_kernel() is a kernel that ran. Buffers go
 * back when they are full and when it is flushed. Its clock is ahead of CLOCK_MONOTONIC. In the
 * environment:
 *   FAKE_CUPTI_VERSION     130001, which also decides how long records are
 *   FAKE_CUPTI_FAILS       NAME=STATUS: this function fails so
 *   FAKE_CUPTI_DROPS       number of records that it says it has dropped, once
 *   FAKE_CUPTI_TAKEN       after so many kernels another has registered: ours get no more
 *   FAKE_CUPTI_FOREIGN     a buffer of somebody else's, and an unfinished record, come first
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim/interpose/cupti_api.h"
#include "tests/shim/fake/fake.h"

#define EXPORT __attribute__((visibility("default")))

enum { FAILED = 999, END = 12, MEMORY_COPY = 1, DEVICE = 0, RECORD_MAX = 216 };
#define AHEAD_NS UINT64_C(1700000000000000000)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cupti_requested request;
static cupti_completed complete;
static int enabled, kernels, drops_said;
static uint8_t *buffer;
static size_t size, used;

static long number(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static int fails(const char *name)
{
    const char *text = getenv("FAKE_CUPTI_FAILS");
    size_t length = strlen(name);
    return text && !strncmp(text, name, length) && text[length] == '=' ? atoi(text + length + 1)
                                                                       : 0;
}

static size_t record_bytes(void)
{
    return number("FAKE_CUPTI_VERSION", 130001) >= 130000 ? RECORD_MAX : 160;
}

EXPORT int cuptiGetVersion(uint32_t *version)
{
    *version = (uint32_t)number("FAKE_CUPTI_VERSION", 130001);
    return fails(__func__);
}

EXPORT int cuptiGetTimestamp(uint64_t *timestamp)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *timestamp = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + AHEAD_NS;
    return fails(__func__);
}

EXPORT int cuptiGetResultString(int result, const char **text)
{
    *text = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_OF_SOME_KIND";
    return fails(__func__);
}

EXPORT int cuptiActivityRegisterCallbacks(cupti_requested requested, cupti_completed completed)
{
    static uint64_t foreign[32];
    int error = fails(__func__);
    request = requested;
    complete = completed;
    if (!error && getenv("FAKE_CUPTI_FOREIGN"))
        complete(NULL, 0, (uint8_t *)foreign, sizeof foreign, sizeof foreign);
    return error;
}

EXPORT int cuptiActivityEnable(int kind)
{
    int error = fails(__func__);
    if (!error)
        enabled |= kind == CUPTI_KIND_CONCURRENT_KERNEL;
    return error;
}

static void give_back_locked(void)
{
    if (buffer)
        complete(NULL, 0, buffer, size, used);
    buffer = NULL;
    used = 0;
}

EXPORT int cuptiActivityFlushAll(uint32_t flag)
{
    pthread_mutex_lock(&lock);
    give_back_locked();
    pthread_mutex_unlock(&lock);
    return fails(__func__);
}

EXPORT int cuptiActivityGetNextRecord(uint8_t *from, size_t valid, void **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + record_bytes() : from;
    if (next + record_bytes() > from + valid)
        return END;
    *record = next;
    return fails(__func__);
}

EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    *dropped = drops_said++ ? 0 : (size_t)number("FAKE_CUPTI_DROPS", 0);
    return fails(__func__);
}

static void put_locked(uint32_t kind, uint32_t stream, const char *name, uint64_t t0, uint64_t t1)
{
    cupti_kernel kernel = {.kind = kind, .start = t0, .end = t1, .stream = stream, .name = name};
    size_t room = 0;
    if (buffer && used + record_bytes() > size)
        give_back_locked();
    if (!buffer)
        request(&buffer, &size, &room);
    if (!buffer || size < record_bytes())
        return;
    memset(buffer + used, 0xa5, record_bytes());
    memcpy(buffer + used, &kernel, sizeof kernel);
    used += record_bytes();
}

EXPORT void fake_cupti_kernel(const char *name, unsigned stream, uint64_t t0_ns, uint64_t t1_ns)
{
    long taken = number("FAKE_CUPTI_TAKEN", -1);
    pthread_mutex_lock(&lock);
    if (enabled && (taken < 0 || kernels < taken)) {
        if (!kernels && getenv("FAKE_CUPTI_FOREIGN")) {
            put_locked(MEMORY_COPY, stream, "no kernel", t0_ns, t1_ns);
            put_locked(CUPTI_KIND_CONCURRENT_KERNEL, stream, "unfinished", 0, 0);
        }
        put_locked(CUPTI_KIND_CONCURRENT_KERNEL, stream, name, t0_ns + AHEAD_NS, t1_ns + AHEAD_NS);
    }
    kernels++;
    pthread_mutex_unlock(&lock);
}
