/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient synchronisation: issuing reductions in the agreed order, and finishing a step. */
#include <stdio.h>

#include "sched/bucket/scheduler.h"

/* comm_stream waits for every stream that contributed to the group. */
static brg_status follow_contributors_locked(brg_scheduler *sched, brg_group *group)
{
    for (int i = 0; i < MAX_STREAMS; i++) {
        void *stream = atomic_load_explicit(&group->streams[i], memory_order_acquire);
        if (stream == NO_STREAM)
            break;
        brg_status status = brg_context_follow_locked(group->ctx, stream, group->ready_events[i]);
        if (status != BRG_OK)
            return status;
    }
    return BRG_OK;
}

static char *bucket_grads(const brg_scheduler *sched, const brg_bucket *bucket)
{
    return (char *)sched->buffers[bucket->buffer].grad +
           (size_t)bucket->start * brg_dtype_bytes(bucket->view.grad_dtype);
}

/* What this rank has of the bucket after its reduction: its shard or, in all-reduce mode, all. */
static char *shard_grads(const brg_scheduler *sched, const brg_bucket *bucket)
{
    size_t shard = sched->sharded ? (size_t)sched->buffers[bucket->buffer].ctx->rank : 0;
    return bucket_grads(sched, bucket) +
           (size_t)bucket->shard_elems * shard * brg_dtype_bytes(bucket->view.grad_dtype);
}

static int reduce_bucket(brg_scheduler *sched, const brg_bucket *bucket, void *comm)
{
    const brg_buffer *buffer = &sched->buffers[bucket->buffer];
    brg_context *ctx = buffer->ctx;
    char *base = bucket_grads(sched, bucket);
    if (!sched->sharded)
        return ctx->device.nccl->all_reduce(base, base, (size_t)(bucket->end - bucket->start),
                                            buffer->nccl_grad_dtype, buffer->reduce_op, comm,
                                            ctx->comm_stream);
    return ctx->device.nccl->reduce_scatter(base, shard_grads(sched, bucket),
                                            (size_t)bucket->shard_elems, buffer->nccl_grad_dtype,
                                            buffer->reduce_op, comm, ctx->comm_stream);
}

static int combine_bucket(brg_scheduler *sched, const brg_bucket *bucket, void *comm)
{
    brg_context *ctx = sched->instance_ctx;
    char *shard = shard_grads(sched, bucket);
    return ctx->device.nccl->all_reduce(
        shard, shard, (size_t)bucket->shard_elems, sched->buffers[bucket->buffer].nccl_grad_dtype,
        sched->options.grad_scaling == BRG_SCALE_AVERAGE ? BRG_NCCL_AVG : BRG_NCCL_SUM, comm,
        ctx->comm_stream);
}

/* The group's shards, once reduced inside of each instance, over the instances. */
static brg_status combine_instances_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = sched->instance_ctx;
    brg_status status;
    BRG_TRY(brg_context_rt(ctx,
                           ctx->device.rt->stream_wait_event(ctx->comm_stream, group->reduce_done),
                           "stream_wait_event"),
            out);
    BRG_TRY(brg_sched_launch_locked(sched, &(brg_launch){.ctx = ctx,
                                                         .groups = &group->id,
                                                         .num_groups = 1,
                                                         .func = BRG_FUNC_ALL_REDUCE,
                                                         .call = combine_bucket,
                                                         .step = sched->trace_step}),
            out);
out:
    return status;
}

/* order_next is already behind the group. */
static brg_status issue_reduction_locked(brg_scheduler *sched, brg_group *group)
{
    brg_status status;
    group->issued = true;
    /* Gathers that nobody has waited for come first, on every rank: so the order stays the same. */
    BRG_TRY(brg_sched_issue_gathers_locked(sched, sched->queue_length), out);
    BRG_TRY(follow_contributors_locked(sched, group), out);
    if (sched->options.allow_unused)
        BRG_TRY(brg_sched_zero_unused_locked(sched, group), out);
    BRG_TRY(brg_sched_copy_in_locked(sched, group), out);
    if (sched->options.check_grads)
        BRG_TRY(brg_sched_check_grads_locked(sched, group), out);
    BRG_TRY(brg_sched_launch_locked(sched, &(brg_launch){.ctx = group->ctx,
                                                         .groups = &group->id,
                                                         .num_groups = 1,
                                                         .func = brg_reduce_func(sched),
                                                         .call = reduce_bucket,
                                                         .step = sched->trace_step}),
            out);
    if (sched->instance_ctx)
        BRG_TRY(combine_instances_locked(sched, group), out);
    if (group->hooks)
        BRG_TRY(group->hooks->reduced(
                    group->hooks_arg, group->id,
                    &(brg_reduced){.done = brg_group_reduced(group),
                                   .last = sched->order_next == sched->num_groups &&
                                           group->ctx == sched->ctx && !sched->instance_ctx,
                                   .comm_stream = sched->ctx->comm_stream}),
                out);
out:
    return status;
}

brg_status brg_sched_issue_complete_locked(brg_scheduler *sched)
{
    while (sched->order_next < sched->num_groups) {
        brg_group *group = &sched->groups[sched->order[sched->order_next]];
        if (!group->complete)
            break;
        sched->order_next++; /* also if it fails: nothing is issued twice */
        brg_status status = issue_reduction_locked(sched, group);
        if (status != BRG_OK)
            return status;
    }
    return BRG_OK;
}

/* Finishing */

/* Takes this step's counts as the pattern to expect. Where a gradient was missing by mistake, one.
 */
static void learn_counts(brg_scheduler *sched)
{
    int least = sched->options.allow_unused ? 0 : 1;
    for (int g = 0; g < sched->num_groups; g++)
        sched->groups[g].expected = 0;
    for (int p = 0; p < sched->num_params; p++) {
        brg_param_state *state = &sched->params[p];
        int count = atomic_load(&state->count);
        state->expected = count > least ? count : least;
        sched->groups[state->group].expected += state->expected;
    }
}

/* Compares this step with what was learned. *changed is set when the pattern must be learned anew.
 */
static brg_status check_counts(brg_scheduler *sched, bool *changed)
{
    bool learning = atomic_load(&sched->learning);
    const brg_scheduler_options *o = &sched->options;
    *changed = learning;
    for (int p = 0; p < sched->num_params; p++) {
        const brg_param_state *state = &sched->params[p];
        int count = atomic_load(&state->count);
        if (count == 0 && !o->allow_unused)
            return brg_fail(BRG_ERR_READINESS,
                            "parameter \"%s\" (bucket %d) did not become ready in step %llu; set "
                            "allow_unused if that may happen",
                            brg_sched_param_name(sched, p), state->bucket,
                            (unsigned long long)sched->step);
        if (learning || count == state->expected)
            continue;
        if (o->allow_relearn) {
            *changed = true;
            continue;
        }
        if (count != 0) /* unused is allowed here, and no change of pattern */
            return brg_fail(
                BRG_ERR_READINESS,
                "parameter \"%s\" became ready %d times in step %llu, but %d times in the step "
                "that was learned",
                brg_sched_param_name(sched, p), count, (unsigned long long)sched->step,
                state->expected);
    }
    return BRG_OK;
}

/* Issues every group that is left. The finishing stream stands in for gradients that never came:
 * their zeros were written on a stream that it follows. Goes on after errors, so that no rank is
 * left alone. */
static brg_status issue_rest_locked(brg_scheduler *sched, brg_stream stream)
{
    brg_status first = BRG_OK;
    while (sched->order_next < sched->num_groups) {
        brg_group *group = &sched->groups[sched->order[sched->order_next++]];
        if (!group->complete && !brg_streams_add(group->streams, stream))
            brg_context_follow_locked(group->ctx, stream, group->ctx->relay_event);
        brg_status status = issue_reduction_locked(sched, group);
        if (status != BRG_OK && first == BRG_OK)
            first = status;
    }
    return first;
}

/* READY for groups that completed only by being finished: their last contribution is not separable.
 */
static void record_late_ready(brg_scheduler *sched, brg_stream stream)
{
    brg_timeline *timeline = sched->ctx->timeline;
    if (!timeline)
        return;
    int now = brg_timeline_stamp(timeline, stream);
    for (int g = 0; g < sched->num_groups; g++) {
        const brg_group *group = &sched->groups[g];
        if (group->complete)
            continue;
        uint64_t first_ns = atomic_load(&group->first_ready_ns);
        brg_rec record = {.kind = BRG_REC_READY, .step = sched->trace_step, .t0_ns = first_ns};
        brg_sched_record(sched, group, &record, first_ns ? BRG_NO_STAMP : now, now);
    }
    brg_timeline_unref(timeline, now);
}

/* Whether no later reduction ends on the same stream as the one at position `i` of the order. */
static bool is_last_on_stream(const brg_scheduler *sched, int i)
{
    const brg_context *ctx = sched->groups[sched->order[i]].ctx;
    while (++i < sched->num_groups)
        if (sched->instance_ctx || sched->groups[sched->order[i]].ctx == ctx)
            return false;
    return true;
}

/* One wait for each communication stream; for each group where the trace shows the waits. */
static brg_status wait_for_all(brg_scheduler *sched, brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    brg_timeline *timeline = ctx->timeline;
    brg_status status = BRG_OK;
    brg_rec record = {
        .kind = BRG_REC_WAIT, .func = (uint8_t)brg_reduce_func(sched), .step = sched->trace_step};
    int before = brg_timeline_stamp(timeline, stream);
    for (int i = 0; i < sched->num_groups; i++) {
        brg_group *group = &sched->groups[sched->order[i]];
        if (!timeline && !is_last_on_stream(sched, i))
            continue;
        BRG_TRY(brg_context_rt(ctx,
                               ctx->device.rt->stream_wait_event(stream, brg_group_reduced(group)),
                               "stream_wait_event"),
                out);
        if (timeline) {
            int after = brg_timeline_stamp(timeline, stream);
            brg_sched_record(sched, group, &record, before, after);
            brg_timeline_unref(timeline, before);
            before = after;
        }
    }
out:
    brg_timeline_unref(timeline, before);
    return status;
}

/* What needs the device to be done: the results of checks, and rank 0's orders. */
static brg_status settle(brg_scheduler *sched, bool learn)
{
    brg_status status = BRG_OK;
    if (learn) {
        BRG_TRY(brg_sched_agree_orders(sched), out);
        atomic_store(&sched->learning, false);
        atomic_store(&sched->learning_forward, false);
    }
    if (sched->options.check_grads) {
        BRG_TRY(brg_sched_synchronize(sched), out);
        BRG_TRY(brg_sched_check_result(sched), out);
    }
out:
    return status;
}

brg_status brg_finish_grad_sync(brg_scheduler *sched, brg_stream stream)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_finish_grad_sync");
    BRG_ON_DEVICE(sched->ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    BRG_TRY(brg_sched_check_stream(sched, stream, "brg_finish_grad_sync"), out);
    if (sched->step == 0 || sched->synced)
        return brg_fail(BRG_ERR_STATE,
                        "brg_finish_grad_sync: no step has begun; call brg_zero_grad() first");
    if (atomic_load(&sched->no_sync))
        return brg_fail(BRG_ERR_STATE, "brg_finish_grad_sync: between brg_no_sync_begin and _end");
    bool learn = atomic_load(&sched->learning), changed = false;
    brg_status counts = check_counts(sched, &changed);
    char text[512] = "";
    if (counts != BRG_OK)
        snprintf(text, sizeof text, "%s", brg_last_error());
    record_late_ready(sched, stream);
    brg_sched_lock_issue(sched);
    status = issue_rest_locked(sched, stream);
    brg_sched_unlock_issue(sched);
    atomic_store(&sched->any_ready, false);
    atomic_store(&sched->in_step, false);
    if (status != BRG_OK)
        return status;
    BRG_TRY(wait_for_all(sched, stream), out);
    BRG_TRY(brg_sched_mark_grads(sched, stream), out);
    if (changed) /* before the checks: a bad gradient has become ready like any other */
        learn_counts(sched);
    BRG_TRY(settle(sched, learn), out);
    int misread = atomic_load(&sched->misread_param);
    if (counts != BRG_OK)
        return brg_fail(counts, "%s", text);
    if (misread >= 0)
        return brg_fail(BRG_ERR_READINESS,
                        "parameter \"%s\" became ready more often than learned in step %llu",
                        brg_sched_param_name(sched, misread), (unsigned long long)sched->step);
    sched->synced = true;
out:
    return status;
}
