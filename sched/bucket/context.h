/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a context. Lock order: children_lock, issue_lock (the scheduler's context, its expert
 * context, its instance context), watchdog, timeline, fail_lock. issue_lock orders the collectives
 * of this rank; it is never held across a call that waits for the device, but calls of the
 * communication library may block in it, so aborting takes none of the locks but children_lock. */
#ifndef BRIGADE_SCHED_BUCKET_CONTEXT_H
#define BRIGADE_SCHED_BUCKET_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "sched/bucket/lifeline.h"
#include "sched/bucket/timeline.h"
#include "sched/bucket/view.h"
#include "sched/bucket/watch.h"

struct brg_context {
    brg_device device;
    int device_index;        /* current device of every call */
    bool has_current_device; /* not on the host device: nothing there depends on it */
    _Atomic(void *) comm;    /* NULL once aborted; use brg_context_hold_comm() */
    _Atomic int comm_users;
    bool borrows_comm, borrows_stream; /* of the caller: not freed */
    int rank, world, local_rank;
    brg_stream comm_stream; /* every collective of this context runs here, in one order */
    double timeout_s;       /* of the watchdog */

    /* What brg_context_split() has made; a child uses the ring and the time line of its root. */
    brg_context *root;   /* itself, unless it is a child */
    brg_context *parent; /* NULL: opened */
    pthread_mutex_t children_lock;
    brg_context *first_child, *next_sibling;
    uint32_t comm_id;           /* in the trace; 0: the root's */
    _Atomic uint32_t num_comms; /* root: ids given to children */

    pthread_mutex_t issue_lock;
    _Atomic uint64_t num_ops; /* collectives issued on comm so far; written under issue_lock */
    void *relay_event; /* hands work between a caller's stream and comm_stream; under issue_lock */
    void *relay_done;
    brg_watch_slot relay_watch;

    brg_ring *ring; /* NULL: no trace */
    brg_timeline *timeline;
    _Atomic uint32_t next_bucket_id; /* root */
    _Atomic bool capturing; /* between brg_graph_capture_begin() and brg_graph_capture_end() */

    brg_watchdog *watchdog;
    brg_lifeline *lifeline; /* the watchdog's, once it runs; NULL: the library knows of its ranks */
    pthread_mutex_t fail_lock;
    _Atomic int failure; /* brg_status of the first asynchronous error */
    char failure_text[768];
};

/* The communicator for one call, NULL once it has been aborted: whoever aborts it waits for a while
 * for those who hold it. Pair with brg_context_release_comm(). Any thread. */
static inline void *brg_context_hold_comm(brg_context *ctx)
{
    atomic_fetch_add(&ctx->comm_users, 1);
    return atomic_load(&ctx->comm);
}

static inline void brg_context_release_comm(brg_context *ctx)
{
    atomic_fetch_sub(&ctx->comm_users, 1);
}

/* What every context has, once its communicator, stream, ring and time line are there. */
brg_status brg_context_start(brg_context *ctx);
/* Creates the communication stream, unless it is borrowed, and events. */
brg_status brg_context_make_streams(brg_context *ctx);
brg_context *brg_context_new(void); /* NULL: no memory */

/* BRG_OK, or the context's first asynchronous error with its message. Never blocks. */
static inline brg_status brg_context_check(brg_context *ctx)
{
    if (atomic_load_explicit(&ctx->failure, memory_order_relaxed) == BRG_OK)
        return BRG_OK;
    return brg_context_status(ctx);
}

/* Makes comm_stream wait for the work now on `stream`. issue_lock held. */
brg_status brg_context_follow_locked(brg_context *ctx, brg_stream stream, void *event);

/* Call after each collective that the communication library has accepted. issue_lock held. */
static inline int brg_context_count_op_locked(brg_context *ctx, int result)
{
    uint64_t issued = atomic_load_explicit(&ctx->num_ops, memory_order_relaxed);
    atomic_store_explicit(&ctx->num_ops, issued + (result == BRG_NCCL_OK), memory_order_relaxed);
    return result;
}

/* Gathers `count` words of every rank, rank by rank, into `all`. Collective; blocks. */
brg_status brg_context_exchange(brg_context *ctx, const uint64_t *mine, size_t count,
                                uint64_t *all);

/* Copies rank 0's `count` ints to everybody. Collective; blocks. */
brg_status brg_context_agree(brg_context *ctx, int *values, size_t count);

/* What the trace says of the machine: the device's name and place, the library's version (place.c).
 * Nothing without a trace. */
void brg_context_describe(const brg_context *ctx);
/* Binds a helper thread of this context near its device and tells the trace. A thread that cannot
 * be bound runs where it may. */
void brg_context_place_thread(const brg_context *ctx, pthread_t thread);

/* Shorthands: a table's result as a status. */
brg_status brg_context_rt(const brg_context *ctx, int error, const char *what);
brg_status brg_context_nccl(brg_context *ctx, int result, const char *what);

#endif
