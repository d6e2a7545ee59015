/* SPDX-License-Identifier: Apache-2.0 */
/* What optimizers see of a scheduler: which pieces of which parameters this rank updates, where
 * their gradients and values are, and how to start the gathers. */
#ifndef BRIGADE_SCHED_BUCKET_VIEW_H
#define BRIGADE_SCHED_BUCKET_VIEW_H

#include "brigade/scheduler.h"
#include "sched/device/device.h"
#include "sched/trace/ring.h"

/* A piece of one parameter inside this rank's shard of a bucket (in all-reduce mode: of the whole
 * bucket). Layer-wise parameters come as one piece each. */
typedef struct brg_segment {
    int param;           /* registration index */
    int64_t param_start; /* first element of the piece, within the parameter */
    int64_t offset;      /* first element of the piece, within the buffer */
    int64_t numel;       /* > 0 */
} brg_segment;

typedef struct brg_bucket_view {
    int bucket, group; /* ids over all buffers */
    int layerwise, expert_parallel;
    brg_dtype param_dtype, grad_dtype;
    void *param_base; /* element 0 of the buffer's parameters / gradients */
    void *grad_base;
    const brg_segment *segments; /* ordered by offset */
    int num_segments;
} brg_bucket_view;

brg_context *brg_sched_context(const brg_scheduler *sched);
const brg_layout *brg_sched_layout(const brg_scheduler *sched);
const brg_bucket_view *brg_sched_view(const brg_scheduler *sched,
                                      int bucket); /* NULL: out of range */

/* Group ownership. owner is any non-NULL pointer. claim fails with BRG_ERR_INVALID_ARGUMENT, naming
 * the group, if it does not exist or has another owner. */
brg_status brg_sched_claim_group(brg_scheduler *sched, int group, const void *owner);
void brg_sched_release_group(brg_scheduler *sched, int group, const void *owner);
const void *brg_sched_group_owner(const brg_scheduler *sched, int group);
bool brg_sched_group_layerwise(const brg_scheduler *sched, int group);

/* A group's reduction that has just been put on a stream, with `done` recorded behind it. */
typedef struct brg_reduced {
    void *done;             /* event */
    brg_stream comm_stream; /* of the scheduler's context */
    bool last;              /* of this step, and on comm_stream: what is put there next does not
                               hold up another reduction */
} brg_reduced;

/* What the owner of a group wants to be called for. May only put work on streams.
 * reduced: in every step right after the group's reduction has been launched, under the lock that
 * orders collectives, on the thread that launched it. overwrite: when brg_zero_grad() is about to
 * zero the group's gradients on `stream`. */
typedef struct brg_grad_hooks {
    brg_status (*reduced)(void *arg, int group, const brg_reduced *reduced);
    brg_status (*overwrite)(void *arg, brg_stream stream);
} brg_grad_hooks;
/* hooks NULL: none (any more; no call is running). */
void brg_sched_set_grad_hooks(brg_scheduler *sched, int group, const brg_grad_hooks *hooks,
                              void *arg);

/* For work on comm_stream itself: between lock and unlock the collectives of this rank stand
 * still. Blocks no longer than other threads need to put collectives on the stream. */
brg_stream brg_sched_lock(brg_scheduler *sched); /* returns comm_stream */
void brg_sched_unlock(brg_scheduler *sched);

/* Gathers the given groups after the work now on `stream`; see
 * start_param_sync_for_bucket_group_subset(). */
brg_status brg_sched_start_param_sync(brg_scheduler *sched, const int *groups, int num_groups,
                                      brg_stream stream);

/* Sums `count` doubles over the ranks, in place, asynchronously on `stream` (that of the
 * collectives itself: without a detour); does nothing where
 * every rank already holds all gradients (all-reduce mode, one rank). */
brg_status brg_sched_sum_over_ranks(brg_scheduler *sched, double *values, int count,
                                    brg_stream stream);

/* Each element of the model counts once in a norm, on whatever ranks it is. Where this returns
 * true, brg_sched_sum_over_ranks() is right only for sums over buckets that are not
 * expert-parallel; those over expert-parallel ones must be kept apart from them, summed by
 * brg_sched_sum_experts_over_ranks(), and added afterwards. */
bool brg_sched_sums_experts_apart(const brg_scheduler *sched);
brg_status brg_sched_sum_experts_over_ranks(brg_scheduler *sched, double *values, int count,
                                            brg_stream stream);

/* Bracket what brg_step() puts on `stream`. begin: BRG_ERR_STATE unless gradients have been
 * synchronised and not yet been stepped; `stream` waits for them. end: the next brg_zero_grad(),
 * whatever its stream, waits for the work now on `stream`. */
brg_status brg_sched_begin_step(brg_scheduler *sched, brg_stream stream);
brg_status brg_sched_end_step(brg_scheduler *sched, brg_stream stream);

/* What an owner of groups does around captures and replays of its scheduler's steps, which must not
 * wait for events that were recorded outside of them. The functions are called on the caller's
 * thread and do not wait for the device. */
typedef struct brg_graph_hook {
    /* Before a capture, at its end (in it) and before each launch: `stream` waits for the owner's
     * work on other streams, which the owner then forgets. */
    brg_status (*join)(void *owner, brg_stream stream);
    /* After a capture and after each launch: the owner's last work is now on `stream`. */
    brg_status (*leave)(void *owner, brg_stream stream);
    void *owner;
    struct brg_graph_hook *next;
} brg_graph_hook;
void brg_sched_add_graph_hook(brg_scheduler *sched, brg_graph_hook *hook);
void brg_sched_remove_graph_hook(brg_scheduler *sched, brg_graph_hook *hook);
/* BRG_ERR_STATE, naming the function, during a capture: for what waits for the device. */
brg_status brg_sched_refuse_in_capture(const brg_scheduler *sched, const char *function);
/* BRG_ERR_STATE, naming the function, while the scheduler has graphs: for what frees memory that
 * their kernels use. */
brg_status brg_sched_refuse_with_graphs(const brg_scheduler *sched, const char *function);

/* The parts of a context that optimizers use. */

/* CUDA's current device belongs to the thread, and what a thread launches, records and creates goes
 * to it. BRG_ON_DEVICE(ctx) at the beginning of a block makes it the context's until the block is
 * left; then it is the caller's again. Every public function that calls the runtime begins with it.
 * Nests; costs one get_device, on the device `host` one branch. */
typedef struct brg_device_scope {
    const brg_runtime *rt; /* NULL: nothing to restore */
    int device;            /* the caller's */
} brg_device_scope;
brg_device_scope brg_context_enter(const brg_context *ctx);
void brg_context_leave(brg_device_scope *scope);
#define BRG_ON_DEVICE(ctx)                                                                         \
    __attribute__((cleanup(brg_context_leave))) brg_device_scope on_device_ = brg_context_enter(ctx)

/* brg_context_open() on the tables given, instead of those that options->device asks for, so that
 * tests can put their own in between. The tables must outlive the context; NULL: as asked for. */
brg_status brg_context_open_on(const brg_device *tables, const brg_context_options *options,
                               brg_context **ctx);

const brg_device *brg_context_device_tables(const brg_context *ctx);
/* Records an asynchronous error, first one wins; every later call on the context returns it. Any
 * thread, also inside host functions. Returns `status`. */
brg_status brg_context_fail(brg_context *ctx, brg_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Brackets work on `stream` for the trace (BRG_REC_OPTIMIZER, BRG_REC_NORM); no-ops without a
 * trace. */
brg_status brg_context_mark_begin(brg_context *ctx, brg_rec_kind kind, int flags, const char *name,
                                  brg_stream stream);
brg_status brg_context_mark_end(brg_context *ctx, brg_stream stream);

#endif
