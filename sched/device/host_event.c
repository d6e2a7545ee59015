/* SPDX-License-Identifier: Apache-2.0 */
/* Events. Every record makes a marker and hangs it into the event in place of the one before; a
 * wait takes the marker that hangs there now. So a wait keeps its meaning when the event is
 * recorded again, on whatever stream, or destroyed. Markers come from a pool. */
#include "sched/device/host_internal.h"

#include <stdlib.h>

typedef struct host_event {
    pthread_mutex_t lock;
    host_marker *marker; /* last record; NULL: never recorded */
    bool timing;
    uint32_t generation;
} host_event;

/* An event from before a fork may hang on work of a thread that is not here. */
static bool valid(const host_event *e)
{
    return e && e->generation == atomic_load(&host_generation);
}

static host_marker *pool;

host_marker *host_marker_new(const host_stream *stream)
{
    pthread_mutex_lock(&host_pool_lock);
    host_marker *marker = pool;
    if (marker)
        pool = marker->next;
    pthread_mutex_unlock(&host_pool_lock);
    if (!marker) {
        marker = malloc(sizeof *marker);
        if (!marker)
            return NULL;
    }
    atomic_init(&marker->state, HOST_MARK_PENDING);
    atomic_init(&marker->refs, 1);
    marker->time_ns = 0;
    marker->stream = stream;
    marker->next = NULL;
    return marker;
}

void host_marker_ref(host_marker *marker)
{
    atomic_fetch_add_explicit(&marker->refs, 1, memory_order_relaxed);
}

void host_marker_unref(host_marker *marker)
{
    if (!marker || atomic_fetch_sub_explicit(&marker->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&host_pool_lock);
    marker->next = pool;
    pool = marker;
    pthread_mutex_unlock(&host_pool_lock);
}

void host_marker_finish(host_marker *marker)
{
    marker->time_ns = host_now_ns();
    if (atomic_exchange_explicit(&marker->state, HOST_MARK_DONE, memory_order_acq_rel) ==
        HOST_MARK_AWAITED)
        host_futex_wake(&marker->state, false);
}

static bool marker_done(host_marker *marker)
{
    return atomic_load_explicit(&marker->state, memory_order_acquire) == HOST_MARK_DONE;
}

void host_marker_wait(host_marker *marker)
{
    uint32_t state = HOST_MARK_PENDING;
    atomic_compare_exchange_strong_explicit(&marker->state, &state, HOST_MARK_AWAITED,
                                            memory_order_acq_rel, memory_order_acquire);
    while (!marker_done(marker))
        host_futex_wait(&marker->state, HOST_MARK_AWAITED, 0, false);
}

int host_event_create(void **event, unsigned flags)
{
    if (!event || (flags & ~(unsigned)(BRG_EVENT_DISABLE_TIMING | 1 | 4)))
        return BRG_RT_INVALID_VALUE; /* 1: blocking synchronisation, 4: between processes */
    host_event *made = calloc(1, sizeof *made);
    if (!made)
        return BRG_RT_NO_MEMORY;
    pthread_mutex_init(&made->lock, NULL);
    made->generation = atomic_load(&host_generation);
    made->timing = !(flags & BRG_EVENT_DISABLE_TIMING);
    *event = made;
    return BRG_RT_OK;
}

int host_event_destroy(void *event)
{
    host_event *e = event;
    if (!e)
        return BRG_RT_INVALID_VALUE;
    host_marker_unref(e->marker);
    pthread_mutex_destroy(&e->lock);
    free(e);
    return BRG_RT_OK;
}

/* A reference to the last record, NULL if there is none. */
static host_marker *event_marker(host_event *e)
{
    pthread_mutex_lock(&e->lock);
    host_marker *marker = e->marker;
    if (marker)
        host_marker_ref(marker);
    pthread_mutex_unlock(&e->lock);
    return marker;
}

int host_event_record(void *event, void *stream)
{
    host_event *e = event;
    if (!valid(e) || !host_stream_valid(stream))
        return BRG_RT_INVALID_VALUE;
    host_marker *marker = host_marker_new(stream);
    if (!marker)
        return BRG_RT_NO_MEMORY;
    if (!stream) {
        host_marker_finish(marker);
    } else {
        host_op op = {.kind = HOST_OP_RECORD, .marker = marker};
        bool skipped;
        host_marker_ref(marker); /* the queue's */
        int error = host_stream_push(stream, &op, true, &skipped);
        if (error) {
            host_marker_unref(marker);
            host_marker_unref(marker);
            return error;
        }
        if (skipped) {
            host_marker_finish(marker);
            host_marker_unref(marker);
        }
    }
    pthread_mutex_lock(&e->lock);
    host_marker *old = e->marker;
    e->marker = marker;
    pthread_mutex_unlock(&e->lock);
    host_marker_unref(old);
    return BRG_RT_OK;
}

int host_event_query(void *event)
{
    host_event *e = event;
    if (!valid(e))
        return BRG_RT_INVALID_VALUE;
    pthread_mutex_lock(&e->lock);
    bool done = !e->marker || marker_done(e->marker);
    pthread_mutex_unlock(&e->lock);
    return done ? BRG_RT_OK : BRG_RT_NOT_READY;
}

int host_event_synchronize(void *event)
{
    host_event *e = event;
    if (!valid(e))
        return BRG_RT_INVALID_VALUE;
    host_marker *marker = event_marker(e);
    if (marker) {
        host_marker_wait(marker);
        host_marker_unref(marker);
    }
    return BRG_RT_OK;
}

int host_event_elapsed(float *milliseconds, void *start, void *end)
{
    host_event *from = start, *to = end;
    if (!milliseconds || !valid(from) || !valid(to) || !from->timing || !to->timing)
        return BRG_RT_INVALID_VALUE;
    host_marker *first = event_marker(from), *last = event_marker(to);
    int error = BRG_RT_OK;
    if (!first || !last)
        error = BRG_RT_INVALID_VALUE;
    else if (!marker_done(first) || !marker_done(last))
        error = BRG_RT_NOT_READY;
    else
        *milliseconds = (float)((double)(int64_t)(last->time_ns - first->time_ns) * 1e-6);
    host_marker_unref(first);
    host_marker_unref(last);
    return error;
}

int host_stream_wait_event(void *stream, void *event)
{
    host_event *e = event;
    if (!valid(e) || !host_stream_valid(stream))
        return BRG_RT_INVALID_VALUE;
    host_marker *marker = event_marker(e);
    if (!marker)
        return BRG_RT_OK;
    int error = BRG_RT_OK;
    if (stream && (marker_done(marker) || marker->stream == stream)) {
        host_marker_unref(marker); /* the order of the stream already says so */
    } else if (!stream) {
        host_marker_wait(marker);
        host_marker_unref(marker);
    } else {
        host_op op = {.kind = HOST_OP_WAIT, .marker = marker};
        error = host_stream_push(stream, &op, false, NULL);
        if (error)
            host_marker_unref(marker);
    }
    return error;
}
