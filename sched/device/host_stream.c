/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a queue and a worker thread each. The queue is a ring that grows when it is full and
 * never shrinks, so that putting work on a stream allocates nothing in the steady state. */
#include "sched/device/host_comm.h"
#include "sched/device/host_internal.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

struct host_stream {
    pthread_mutex_t lock;
    pthread_cond_t work; /* the worker sleeps here */
    pthread_cond_t done; /* synchronize sleeps here */
    host_op *ring;
    uint64_t capacity; /* a power of two */
    uint64_t enqueued; /* both count operations since the stream was made */
    uint64_t completed;
    unsigned waiters;
    bool sleeping, stopping;
    int device;
    uint32_t generation;
    pthread_t thread;
    host_stream *previous, *next;
};

static host_stream *streams; /* under host_engine_lock */

void host_op_run(host_op *op)
{
    switch (op->kind) {
    case HOST_OP_COPY:
        memmove(op->copy.dst, op->copy.src, op->copy.bytes);
        break;
    case HOST_OP_SET:
        memset(op->copy.dst, op->copy.value, op->copy.bytes);
        break;
    case HOST_OP_FUNC:
        op->func.fn(op->func.arg);
        break;
    case HOST_OP_RECORD:
        host_marker_finish(op->marker);
        host_marker_unref(op->marker);
        break;
    case HOST_OP_WAIT:
        host_marker_wait(op->marker);
        host_marker_unref(op->marker);
        break;
    case HOST_OP_COLLECTIVE:
    case HOST_OP_BATCH:
        host_comm_run(op);
        break;
    }
}

static void *worker(void *argument)
{
    host_stream *s = argument;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->completed == s->enqueued && !s->stopping) {
            s->sleeping = true;
            pthread_cond_wait(&s->work, &s->lock);
            s->sleeping = false;
        }
        if (s->completed == s->enqueued)
            break;
        host_op op = s->ring[s->completed & (s->capacity - 1)];
        pthread_mutex_unlock(&s->lock);
        host_op_run(&op);
        pthread_mutex_lock(&s->lock);
        s->completed++;
        if (s->waiters)
            pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The user's signals are the user's threads' business. */
static int start_worker(host_stream *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&s->thread, NULL, worker, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(s->thread, "brg-stream");
    return error;
}

int host_stream_create(void **stream, unsigned flags, int priority)
{
    if (!stream || (flags & ~(unsigned)BRG_STREAM_NON_BLOCKING))
        return BRG_RT_INVALID_VALUE;
    host_fork_prepare();
    host_stream *s = calloc(1, sizeof *s);
    if (!s)
        return BRG_RT_NO_MEMORY;
    s->capacity = FIRST_CAPACITY;
    s->ring = malloc(s->capacity * sizeof *s->ring);
    if (!s->ring) {
        free(s);
        return BRG_RT_NO_MEMORY;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    s->generation = atomic_load(&host_generation);
    host_get_device(&s->device);
    if (start_worker(s)) {
        free(s->ring);
        free(s);
        return BRG_RT_NO_MEMORY;
    }
    pthread_mutex_lock(&host_engine_lock);
    s->next = streams;
    if (streams)
        streams->previous = s;
    streams = s;
    pthread_mutex_unlock(&host_engine_lock);
    *stream = s;
    return BRG_RT_OK;
}

int host_stream_destroy(void *stream)
{
    host_stream *s = stream;
    if (!s)
        return BRG_RT_INVALID_VALUE;
    if (!host_stream_valid(s)) /* a parent's: its thread and locks are not here */
        return BRG_RT_OK;
    pthread_mutex_lock(&host_engine_lock);
    if (s->previous)
        s->previous->next = s->next;
    else
        streams = s->next;
    if (s->next)
        s->next->previous = s->previous;
    pthread_mutex_unlock(&host_engine_lock);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    free(s);
    return BRG_RT_OK;
}

bool host_stream_valid(const host_stream *stream)
{
    return !stream || stream->generation == atomic_load(&host_generation);
}

int host_stream_device(const host_stream *stream)
{
    return stream->device;
}

void host_stream_fork_child(void)
{
    streams = NULL;
}

static int grow_locked(host_stream *s)
{
    host_op *bigger = malloc(2 * s->capacity * sizeof *bigger);
    if (!bigger)
        return BRG_RT_NO_MEMORY;
    for (uint64_t i = s->completed; i != s->enqueued; i++)
        bigger[i & (2 * s->capacity - 1)] = s->ring[i & (s->capacity - 1)];
    free(s->ring);
    s->ring = bigger;
    s->capacity *= 2;
    return BRG_RT_OK;
}

int host_stream_push(host_stream *s, const host_op *op, bool skip_idle, bool *skipped)
{
    if (skipped)
        *skipped = false;
    if (!s) {
        host_op copy = *op;
        host_op_run(&copy);
        return BRG_RT_OK;
    }
    if (!host_stream_valid(s))
        return BRG_RT_INVALID_VALUE;
    int error = BRG_RT_OK;
    pthread_mutex_lock(&s->lock);
    if (skip_idle && s->completed == s->enqueued) {
        *skipped = true;
    } else {
        if (s->enqueued - s->completed == s->capacity)
            error = grow_locked(s);
        if (!error) {
            s->ring[s->enqueued++ & (s->capacity - 1)] = *op;
            if (s->sleeping)
                pthread_cond_signal(&s->work);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return error;
}

int host_stream_query(void *stream)
{
    host_stream *s = stream;
    if (!s)
        return BRG_RT_OK;
    if (!host_stream_valid(s))
        return BRG_RT_INVALID_VALUE;
    pthread_mutex_lock(&s->lock);
    bool idle = s->completed == s->enqueued;
    pthread_mutex_unlock(&s->lock);
    return idle ? BRG_RT_OK : BRG_RT_NOT_READY;
}

int host_stream_synchronize(void *stream)
{
    host_stream *s = stream;
    if (!s)
        return BRG_RT_OK;
    if (!host_stream_valid(s))
        return BRG_RT_INVALID_VALUE;
    pthread_mutex_lock(&s->lock);
    uint64_t target = s->enqueued;
    s->waiters++;
    while (s->completed < target)
        pthread_cond_wait(&s->done, &s->lock);
    s->waiters--;
    pthread_mutex_unlock(&s->lock);
    return BRG_RT_OK;
}

/* Streams come and go while this waits, so it puts a marker on each instead of keeping pointers. */
int host_device_synchronize(void)
{
    int device;
    host_get_device(&device);
    size_t count = 0, room = 0;
    host_marker **markers = NULL;
    int error = BRG_RT_OK;
    pthread_mutex_lock(&host_engine_lock);
    for (host_stream *s = streams; s; s = s->next)
        room++;
    pthread_mutex_unlock(&host_engine_lock);
    if (!room)
        return BRG_RT_OK;
    room += 8;
    markers = malloc(room * sizeof *markers);
    if (!markers)
        return BRG_RT_NO_MEMORY;
    pthread_mutex_lock(&host_engine_lock);
    for (host_stream *s = streams; s && count < room && !error; s = s->next) {
        if (s->device != device)
            continue;
        host_marker *marker = host_marker_new(s);
        if (!marker) {
            error = BRG_RT_NO_MEMORY;
            break;
        }
        bool skipped = false;
        host_op op = {.kind = HOST_OP_RECORD, .marker = marker};
        host_marker_ref(marker);
        error = host_stream_push(s, &op, true, &skipped);
        if (error || skipped) {
            host_marker_unref(marker);
            host_marker_unref(marker);
            continue;
        }
        markers[count++] = marker;
    }
    pthread_mutex_unlock(&host_engine_lock);
    for (size_t i = 0; i < count; i++) {
        host_marker_wait(markers[i]);
        host_marker_unref(markers[i]);
    }
    free(markers);
    return error;
}

int host_launch_host_func(void *stream, void (*fn)(void *arg), void *arg)
{
    if (!fn)
        return BRG_RT_INVALID_VALUE;
    host_op op = {.kind = HOST_OP_FUNC, .func = {.fn = fn, .arg = arg}};
    return host_stream_push(stream, &op, false, NULL);
}

int host_memcpy_async(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    if (kind < BRG_COPY_HOST_TO_HOST || kind > BRG_COPY_DEFAULT || (bytes && (!dst || !src)))
        return BRG_RT_INVALID_VALUE;
    if (!bytes)
        return host_stream_valid(stream) ? BRG_RT_OK : BRG_RT_INVALID_VALUE;
    host_op op = {.kind = HOST_OP_COPY, .copy = {.dst = dst, .src = src, .bytes = bytes}};
    return host_stream_push(stream, &op, false, NULL);
}

int host_memset_async(void *dst, int value, size_t bytes, void *stream)
{
    if (bytes && !dst)
        return BRG_RT_INVALID_VALUE;
    if (!bytes)
        return host_stream_valid(stream) ? BRG_RT_OK : BRG_RT_INVALID_VALUE;
    host_op op = {.kind = HOST_OP_SET, .copy = {.dst = dst, .bytes = bytes, .value = value}};
    return host_stream_push(stream, &op, false, NULL);
}
