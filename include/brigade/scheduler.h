/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The scheduler: buffers, buckets and bucket groups of one layout, gradient synchronisation under
 * the backward pass and parameter synchronisation under the next forward.
 *
 * One step is everything between two brg_zero_grad() calls:
 *
 *     brg_zero_grad -> forward with brg_param_wait -> backward with brg_grad_ready
 *                   -> brg_finish_grad_sync -> brg_step (optimizer.h)
 *
 * The first step learns how often each parameter becomes ready, in which order bucket groups
 * complete (rank 0's order, agreed by all ranks) and in which order parameters are first waited
 * for. It issues all collectives in brg_finish_grad_sync(). From the second step on each bucket
 * group's collective is issued as soon as the group and all groups before it in the agreed order
 * are complete.
 *
 * Groups. The scheduler's context has as many ranks as dense buffers have shards.
 *
 * - Expert-parallel buffers have a context of their own with as many ranks as they have shards
 *   (expert_data_parallel_size of the layout). Several such groups make up the scheduler's context,
 *   each with experts of its own, or one group contains it. An expert's gradients already hold the
 *   work of several ranks, so averages are over the ranks of the scheduler's context here, too.
 * - With several optimizer instances the scheduler's context is one instance. Reductions go over
 * its ranks, then each shard's over the instance context, in which all ranks have the same rank in
 *   their instances; parameters are gathered inside of the instance. Averages are over all of them.
 *
 * A norm counts each element of the model once. The contexts must be on one device; they are made
 * with brg_context_split(), or adopt communicators of the caller's.
 *
 * Thread rules: brg_grad_ready() and brg_param_wait() may be called from any thread at any time
 * between brg_zero_grad() and brg_finish_grad_sync(); everything else from one thread at a time. No
 * call blocks on the device unless its documentation says so. A stream that was given to a call of
 * a step must live until that step's brg_finish_grad_sync() has returned.
 */
#ifndef BRIGADE_SCHEDULER_H
#define BRIGADE_SCHEDULER_H

#include "brigade/context.h"
#include "brigade/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_scheduler brg_scheduler;

/** What gradients are multiplied with while they are reduced. */
typedef enum brg_grad_scaling {
    BRG_SCALE_AVERAGE = 0,    /**< average taken by the collective */
    BRG_SCALE_PRE_DIVIDE = 1, /**< each rank's gradient times 1/ranks before the sum */
    BRG_SCALE_FACTOR = 2,     /**< each rank's gradient times grad_scale_factor before the sum */
    BRG_SCALE_NONE = 3,       /**< plain sum */
} brg_grad_scaling;

/** Zero means default everywhere. */
typedef struct brg_scheduler_options {
    size_t size;             /**< sizeof(brg_scheduler_options); 0 means its size in version 1.0 */
    int overlap_grad_reduce; /**< issue each group's reduction during backward, from step 2 on; else
                                all of them in brg_finish_grad_sync() */
    int overlap_param_gather; /**< gathers run under later work until brg_param_wait(); else the
                                 stream given to the optimizer step waits for them. Either way
                                 neighbours of together at most 1 MiB are one launch */
    int all_reduce;           /**< no sharding: all-reduce instead of reduce-scatter, no gathers */
    brg_grad_scaling grad_scaling;
    double grad_scale_factor; /**< for BRG_SCALE_FACTOR */
    int check_grads;          /**< before each reduction look for NaN and Inf (and large norms);
                                   brg_finish_grad_sync() then blocks and names bucket and parameter */
    double large_grad_norm; /**< with check_grads: a bucket's local norm above this is an error; 0:
                               off */
    int allow_unused;  /**< a parameter that never becomes ready contributes zeros; else an error */
    int allow_relearn; /**< a changed readiness pattern is learned anew; else an error */
    int buckets_per_group;       /**< consecutive buckets of a buffer issued together; 0 means 1 */
    int param_gather_prefetch;   /**< with overlap_param_gather: how many gathers run ahead of the
                                    parameter waited for; 0: no limit, all start in the optimizer step
                                  */
    brg_context *expert_context; /**< ranks that share expert-parallel parameters: those buffers are
                                    reduced and gathered over it. Borrowed. NULL: the scheduler's
                                    own context. See "Groups" */
    brg_context *instance_context; /**< ranks that hold the same shard in other optimizer instances.
                                      Borrowed. NULL: one instance. See "Groups" */
} brg_scheduler_options;

/** Creates buffers (zeroed) and bucket groups. Collective: blocks until all ranks have called it; a
 * layout or option that differs between ranks is BRG_ERR_MISMATCH, and the message says what
 * differs.
 * Several schedulers may share a context as long as only one of them is between brg_zero_grad() and
 * the last wait for its gathers at any time.
 * @param layout borrowed; must outlive the scheduler.
 * @param options NULL means all defaults.
 * @param[out] sched freed with brg_scheduler_destroy(); NULL on failure.
 * @return also BRG_ERR_INVALID_ARGUMENT (among others, a buffer whose number of shards is not the
 *         number of ranks that share it), BRG_ERR_NO_MEMORY, BRG_ERR_UNSUPPORTED. */
BRG_API brg_status brg_scheduler_create(brg_context *ctx, const brg_layout *layout,
                                        const brg_scheduler_options *options,
                                        brg_scheduler **sched);

/** Waits for outstanding collectives and frees everything. NULL is allowed. Optimizers of this
 * scheduler must have been destroyed. */
BRG_API void brg_scheduler_destroy(brg_scheduler *sched);

/** @return the parameter's values or gradient in its buffer (device memory, row-major, elements as
 * keyed); NULL if @p param is out of range. Stable for the scheduler's life. */
BRG_API void *brg_param_data(const brg_scheduler *sched, int param);
BRG_API void *brg_grad_data(const brg_scheduler *sched, int param);

/** Gives @p param a gradient outside the buffer: before its bucket is reduced, @p grad is copied
 * (converted if @p dtype is another type) into the buffer. NULL ends it. Between steps only; blocks
 * until the last step's reduction of @p param is done.
 * @param grad device memory of the parameter's element count; must stay valid. */
BRG_API brg_status brg_set_main_grad(brg_scheduler *sched, int param, const void *grad,
                                     brg_dtype dtype);

/** Begins a step: zeroes all gradients on @p stream. */
BRG_API brg_status brg_zero_grad(brg_scheduler *sched, brg_stream stream);

/** Says that all work that writes this contribution to @p param's gradient has been put on @p
 * stream. May be called several times a step for a shared parameter. Does not block on the device.
 * @return BRG_ERR_READINESS (names the parameter) if it comes more often than learned,
 *         BRG_ERR_STATE outside of a step. */
BRG_API brg_status brg_grad_ready(brg_scheduler *sched, int param, brg_stream stream);

/** Between these two, brg_grad_ready() counts nothing: gradients accumulate locally. */
BRG_API brg_status brg_no_sync_begin(brg_scheduler *sched);
BRG_API brg_status brg_no_sync_end(brg_scheduler *sched);

/** Issues what has not been issued and makes @p stream wait for all reductions. Everything is
 * issued even when an error is returned, so that no other rank is left waiting. Blocks on the
 * device in the first step, after brg_scheduler_relearn(), and with check_grads.
 * @return BRG_ERR_READINESS (a parameter that did not become ready, or not as often as learned),
 *         BRG_ERR_NON_FINITE, or an asynchronous error of the context. */
BRG_API brg_status brg_finish_grad_sync(brg_scheduler *sched, brg_stream stream);

/** Makes @p stream wait until @p param's values are current; issues its gather if that has not
 * happened, and those after it that param_gather_prefetch allows. */
BRG_API brg_status brg_param_wait(brg_scheduler *sched, int param, brg_stream stream);

/** brg_param_wait() for every parameter, e.g. before evaluation or a checkpoint. */
BRG_API brg_status brg_finish_param_sync(brg_scheduler *sched, brg_stream stream);

/** Copies rank @p root's parameters to all ranks; with several instances, those of the first; those
 * of an expert context from its rank @p root modulo its size. Collective. */
BRG_API brg_status brg_broadcast_params(brg_scheduler *sched, int root, brg_stream stream);

/** Forgets learned counts and orders; the next step learns them anew. Collective, between steps. */
BRG_API brg_status brg_scheduler_relearn(brg_scheduler *sched);

/** One bucket as the scheduler sees it. */
typedef struct brg_bucket_info {
    int buffer;        /**< buffer of the layout */
    int bucket;        /**< bucket within that buffer */
    int group;         /**< bucket group */
    size_t grad_bytes; /**< whole bucket, all shards */
    size_t param_bytes;
    uint64_t reductions; /**< reduce-scatters (all-reduces) issued since creation */
    uint64_t gathers;    /**< all-gathers issued since creation */
} brg_bucket_info;

/** @return the number of buckets over all buffers; ids run over the buffers in order. */
BRG_API int brg_scheduler_num_buckets(const brg_scheduler *sched);
BRG_API int brg_scheduler_num_groups(const brg_scheduler *sched);
/** @return BRG_ERR_INVALID_ARGUMENT if @p bucket is out of range. */
BRG_API brg_status brg_scheduler_bucket(const brg_scheduler *sched, int bucket,
                                        brg_bucket_info *info);
/** @return the bucket (over all buffers) that @p param is in; -1 if out of range. */
BRG_API int brg_scheduler_bucket_of(const brg_scheduler *sched, int param);

#ifdef __cplusplus
}
#endif
#endif
