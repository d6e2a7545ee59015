/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a scheduler.
 *
 * A bucket group in one step:
 *
 *     counting --last gradient ready--> complete --its turn--> issued --brg_finish_grad_sync-->
 * waited
 *
 * and its parameters:
 *
 *     current --start_param_sync--> pending --issued--> in flight --consumer waits--> current
 *
 * In all-reduce mode there is no gather; what is "in flight" then is the update itself.
 *
 * Counts and the set of streams are atomics: brg_grad_ready() takes a lock only when it completes a
 * group. Everything that issues collectives holds the issue_locks of all contexts:
 * brg_sched_lock_issue().
 *
 * Which communicator does what: a buffer is reduced and gathered over its `ctx`, the scheduler's
 * or, for expert-parallel buffers, the expert context. With several optimizer instances the shards
 * are then combined over the instance context, on that context's stream. All contexts' collectives
 * come in the one order of the bucket groups.
 */
#ifndef BRIGADE_SCHED_BUCKET_SCHEDULER_H
#define BRIGADE_SCHED_BUCKET_SCHEDULER_H

#include "brigade/graph.h"
#include "sched/bucket/context.h"

#define MAX_STREAMS                                                                                \
    4 /* distinct compute streams per group and step that are tracked without a lock */

/* How the groups of expert-parallel parameters lie to the ranks of the scheduler's context. */
typedef enum brg_expert_place {
    BRG_EXPERT_SAME = 0, /* the same ranks */
    BRG_EXPERT_INSIDE,   /* several groups, each with experts of its own, make up the context */
    BRG_EXPERT_AROUND,   /* the group contains all of the context's ranks, and more */
} brg_expert_place;

typedef enum brg_gather_state {
    BRG_GATHER_CURRENT = 0, /* nothing outstanding */
    BRG_GATHER_PENDING,     /* updated, not issued */
    BRG_GATHER_ISSUED,      /* consumers must wait for gather_done */
} brg_gather_state;

typedef struct brg_bucket {
    brg_bucket_view view;
    int buffer, index; /* buffer of the layout, bucket within it */
    int64_t start, end;
    int num_params;
    int64_t shard_elems; /* of the whole bucket in all-reduce mode */
    uint32_t trace_id;
    _Atomic uint64_t reductions, gathers;
} brg_bucket;

typedef struct brg_group {
    brg_scheduler *sched;
    brg_context *ctx; /* of its buffer */
    int id, buffer;
    int first_bucket, num_buckets;
    bool layerwise;
    const int *params; /* registration indices */
    int num_params;
    const void *owner;           /* optimizer */
    const brg_grad_hooks *hooks; /* of the owner, may be NULL; issue_lock */
    void *hooks_arg;

    /* gradients */
    int expected;                         /* contributions per step, learned */
    _Atomic int remaining;                /* until complete */
    _Atomic int last_ready;               /* ticket of the last contribution, while learning */
    _Atomic(void *) streams[MAX_STREAMS]; /* streams that contributed; NO_STREAM: free */
    void *ready_events[MAX_STREAMS];
    _Atomic bool held;     /* relearning: not before brg_finish_grad_sync() */
    bool complete, issued; /* issue_lock */
    void *reduce_done;
    brg_watch_slot reduce_watch;
    void *combine_done; /* several instances only */
    brg_watch_slot combine_watch;
    _Atomic uint64_t first_ready_ns; /* trace only */

    /* parameters */
    _Atomic int gather_state;
    uint64_t gathered_step;   /* step counter + 1 of the last start; 0: never */
    struct brg_group *update; /* the group whose `updated` is behind this one's last update */
    void *updated;            /* event behind an optimizer's update of several groups */
    unsigned followed_by;     /* communication streams that wait for `updated` since it was
                                 recorded: 1 of the scheduler's context, 2 of the expert context */
    void *gather_done; /* what consumers wait for: own_gather_done, or that of a whole replay */
    void *own_gather_done;
    brg_watch_slot gather_watch;
    _Atomic(void *) waited[MAX_STREAMS]; /* streams that already wait for this gather */
    _Atomic bool seen;                   /* forward order: waited for in the learning step */
} brg_group;

typedef struct brg_buffer {
    brg_context *ctx; /* reduces and gathers it */
    void *grad, *param;
    size_t grad_bytes, param_bytes;
    int nccl_grad_dtype;
    int reduce_op;
    bool own_op;
} brg_buffer;

/* What the look at one parameter's gradient has found; written in the order of the stream. */
typedef struct brg_grad_check {
    int64_t first;      /* index of the first NaN or Inf; -1: none */
    double sum_squares; /* NaN if there is a NaN, Inf if there is an Inf */
} brg_grad_check;

typedef struct brg_param_state {
    brg_scheduler *sched;
    int id; /* registration index */
    int group, bucket;
    int expected;
    _Atomic int count;
    _Atomic bool touched; /* contributed to in this step, counted or not */
    void *data, *grad;
    const void *main_grad;
    brg_dtype main_dtype;
} brg_param_state;

struct brg_scheduler {
    brg_context *ctx;
    brg_context *expert_ctx;   /* == ctx: no group of their own */
    brg_context *instance_ctx; /* NULL: one instance */
    brg_expert_place expert_place;
    const brg_layout *layout;
    brg_scheduler_options options;
    bool sharded; /* not all-reduce mode */

    brg_buffer *buffers;
    int num_buffers;
    brg_bucket *buckets;
    int num_buckets;
    brg_group *groups;
    int num_groups;
    int *group_params; /* storage of brg_group::params */
    brg_param_state *params;
    int num_params;
    brg_segment *segments;  /* storage of the views */
    brg_grad_check *checks; /* page-locked, one a parameter; check_grads only */
    double *check_partials; /* device memory: 2 * BRG_NORM_PARTIALS for each group */

    /* gradients */
    _Atomic bool learning; /* counts and completion order */
    _Atomic bool no_sync;
    _Atomic bool in_step;   /* after brg_zero_grad(), before brg_finish_grad_sync() */
    _Atomic bool any_ready; /* something was counted since brg_zero_grad() */
    _Atomic int ready_ticket;
    /* behind the last use of the gradients: a finished synchronisation, then an optimizer step */
    void *grads_event;
    brg_stream grads_stream;
    bool grads_recorded;
    bool synced;               /* brg_finish_grad_sync() done, brg_step() not yet */
    uint64_t step;             /* number of brg_zero_grad() calls */
    int *order, order_next;    /* group ids in issue order; issue_lock */
    _Atomic int misread_param; /* first parameter that came too often; -1: none */

    /* parameters */
    _Atomic bool learning_forward;
    int *forward_order, *forward_position; /* group ids in forward order, and the inverse */
    int *forward_seen;                     /* being learned */
    _Atomic int num_seen;
    int *queue; /* group ids to gather, in order; issue_lock */
    int queue_length, queue_issued;

    int step_stamp; /* trace: begin of the current step */
    int end_stamp;  /* trace: end of the last optimizer step */
    uint32_t trace_step;
    bool trace_replay; /* the current step is a replay */

    /* graphs */
    brg_graph *capture; /* being captured; NULL: none */
    int num_graphs;     /* captured and not destroyed */
    brg_graph_hook *graph_hooks;
    void *joined_event; /* behind the last capture or replay; NULL: there has been none */
    brg_watch_slot replay_watch;
};

#define NO_STREAM ((void *)-1)

/* Adds `stream` to a group's set. Returns false when the set is full. Lock-free. */
static inline bool brg_streams_add(_Atomic(void *) *set, void *stream)
{
    for (int i = 0; i < MAX_STREAMS; i++) {
        void *have = atomic_load_explicit(&set[i], memory_order_acquire);
        if (have == stream)
            return true;
        if (have == NO_STREAM) {
            void *empty = NO_STREAM;
            if (atomic_compare_exchange_strong(&set[i], &empty, stream) || empty == stream)
                return true;
        }
    }
    return false;
}

static inline bool brg_streams_has(_Atomic(void *) *set, void *stream)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (atomic_load_explicit(&set[i], memory_order_acquire) == stream)
            return true;
    return false;
}

static inline void brg_streams_clear(_Atomic(void *) *set)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        atomic_store_explicit(&set[i], NO_STREAM, memory_order_release);
}

/* The event behind all that happens to the group's gradients. */
static inline void *brg_group_reduced(const brg_group *group)
{
    return group->combine_done ? group->combine_done : group->reduce_done;
}

/* BRG_OK, or the first asynchronous error of the scheduler's contexts. Never blocks. */
static inline brg_status brg_sched_check(const brg_scheduler *sched)
{
    brg_status status = brg_context_check(sched->ctx);
    if (status == BRG_OK && sched->expert_ctx != sched->ctx)
        status = brg_context_check(sched->expert_ctx);
    if (status == BRG_OK && sched->instance_ctx)
        status = brg_context_check(sched->instance_ctx);
    return status;
}

static inline void brg_sched_lock_issue(const brg_scheduler *sched)
{
    pthread_mutex_lock(&sched->ctx->issue_lock);
    if (sched->expert_ctx != sched->ctx)
        pthread_mutex_lock(&sched->expert_ctx->issue_lock);
    if (sched->instance_ctx)
        pthread_mutex_lock(&sched->instance_ctx->issue_lock);
}

static inline void brg_sched_unlock_issue(const brg_scheduler *sched)
{
    if (sched->instance_ctx)
        pthread_mutex_unlock(&sched->instance_ctx->issue_lock);
    if (sched->expert_ctx != sched->ctx)
        pthread_mutex_unlock(&sched->expert_ctx->issue_lock);
    pthread_mutex_unlock(&sched->ctx->issue_lock);
}

static inline brg_func brg_reduce_func(const brg_scheduler *sched)
{
    return sched->sharded ? BRG_FUNC_REDUCE_SCATTER : BRG_FUNC_ALL_REDUCE;
}

static inline bool brg_param_in_range(const brg_scheduler *sched, int param)
{
    return sched && param >= 0 && param < sched->num_params;
}

/* BRG_ERR_INVALID_ARGUMENT for a NULL scheduler or a parameter out of range. */
brg_status brg_bad_param(const brg_scheduler *sched, int param, const char *function);
const char *brg_sched_param_name(const brg_scheduler *sched, int param);

/* Gradients on streams: `stream` waits for their last use; and: their last use is now on `stream`.
 */
brg_status brg_sched_follow_grads(brg_scheduler *sched, brg_stream stream);
brg_status brg_sched_mark_grads(brg_scheduler *sched, brg_stream stream);

/* Blocks until the communication streams of all contexts are idle. */
brg_status brg_sched_synchronize(brg_scheduler *sched);

/* groups.c: the contexts that the options give; what their ranks must have in common, and where the
 * ranks of one are in the others. The latter is collective over all of them, and when it fails, it
 * fails on all ranks. */
brg_status brg_sched_take_groups(brg_scheduler *sched);
brg_status brg_sched_check_ranks(brg_scheduler *sched);

/* BRG_ERR_STATE if `stream` is in a capture that the trainer began without Brigade. */
brg_status brg_sched_check_stream(const brg_scheduler *sched, brg_stream stream,
                                  const char *function);

/* ready.c: the trace's step ends and another one, a replay or not, begins at the stamp. */
void brg_sched_begin_step_record(brg_scheduler *sched, int stamp, bool replay);

/* create.c: buffers, buckets, groups; agree.c: what all ranks must have in common. */
brg_status brg_sched_build(brg_scheduler *sched);
void brg_sched_free_parts(brg_scheduler *sched);
brg_status brg_sched_compare_ranks(brg_scheduler *sched, brg_context *ctx);
brg_status brg_sched_agree_orders(brg_scheduler *sched);
void brg_sched_default_orders(brg_scheduler *sched);

/* launch.c: the collectives of some groups on ctx->comm_stream, and behind them each group's event
 * of its reduction, combination or gather. `call` issues the collective of one bucket. Locks held.
 */
typedef struct brg_launch {
    brg_context *ctx;
    const int *groups; /* ids, at least one */
    int num_groups;
    brg_func func;
    int (*call)(brg_scheduler *sched, const brg_bucket *bucket, void *comm);
    uint32_t step; /* for the trace */
} brg_launch;
brg_status brg_sched_launch_locked(brg_scheduler *sched, const brg_launch *launch);

/* Emits `like` once for each bucket of the group; takes no reference of the stamps away. */
void brg_sched_record(brg_scheduler *sched, const brg_group *group, const brg_rec *like, int stamp0,
                      int stamp1);

/* reduce.c */
brg_status brg_sched_issue_complete_locked(brg_scheduler *sched);

/* gather.c: issues pending gathers up to queue position `until` (exclusive). */
brg_status brg_sched_issue_gathers_locked(brg_scheduler *sched, int until);

/* check.c: what comes in front of a reduction. zero_unused: a parameter that was never declared
 * ready contributes zeros, whatever was written into its gradient. */
brg_status brg_sched_zero_unused_locked(brg_scheduler *sched, brg_group *group);
brg_status brg_sched_copy_in_locked(brg_scheduler *sched, brg_group *group);
brg_status brg_sched_check_grads_locked(brg_scheduler *sched, brg_group *group);
brg_status brg_sched_check_result(brg_scheduler *sched);

#endif
