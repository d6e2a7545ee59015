/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter synchronisation: each bucket group's gather, once a step, in forward order. */
#include <stdlib.h>

#include "sched/bucket/scheduler.h"

/* Groups gathered by one launch, so that all of them are there when the last one is, are together
 * at most so large: in the time of another launch a fast link moves more. */
#define JOINT_GATHER_BYTES ((int64_t)1 << 20)

static int gather_bucket(brg_scheduler *sched, const brg_bucket *bucket, void *comm)
{
    const brg_buffer *buffer = &sched->buffers[bucket->buffer];
    brg_context *ctx = buffer->ctx;
    size_t elem = brg_dtype_bytes(bucket->view.param_dtype);
    char *base = (char *)buffer->param + (size_t)bucket->start * elem;
    const char *mine = base + (size_t)bucket->shard_elems * (size_t)ctx->rank * elem;
    return ctx->device.nccl->all_gather(mine, base, (size_t)bucket->shard_elems,
                                        brg_nccl_dtype(bucket->view.param_dtype), comm,
                                        ctx->comm_stream);
}

/* The group's comm_stream waits for its update, unless it does so for another group of it. */
static brg_status follow_update_locked(brg_scheduler *sched, const brg_group *group)
{
    brg_context *ctx = group->ctx;
    brg_group *update = group->update;
    unsigned stream = ctx == sched->ctx ? 1 : 2;
    if (update->followed_by & stream)
        return BRG_OK;
    brg_status status =
        brg_context_rt(ctx, ctx->device.rt->stream_wait_event(ctx->comm_stream, update->updated),
                       "stream_wait_event");
    if (status == BRG_OK)
        update->followed_by |= stream;
    return status;
}

static int64_t gather_bytes(const brg_scheduler *sched, const brg_group *group)
{
    int64_t bytes = 0;
    for (int b = 0; b < group->num_buckets; b++) {
        const brg_bucket *bucket = &sched->buckets[group->first_bucket + b];
        bytes += (bucket->end - bucket->start) * (int64_t)brg_dtype_bytes(bucket->view.param_dtype);
    }
    return bytes;
}

/* How many groups from the front of the queue, before `until`, go out in one launch. */
static int launch_length(const brg_scheduler *sched, int until)
{
    const int *queue = sched->queue + sched->queue_issued;
    const brg_group *first = &sched->groups[queue[0]];
    int64_t bytes = gather_bytes(sched, first);
    int count = 1;
    for (; sched->queue_issued + count < until; count++) {
        const brg_group *group = &sched->groups[queue[count]];
        bytes += gather_bytes(sched, group);
        if (group->ctx != first->ctx || group->update != first->update ||
            group->gathered_step != first->gathered_step || bytes > JOINT_GATHER_BYTES)
            break;
    }
    return count;
}

/* The gathers of the first `count` groups of the queue. */
static brg_status issue_gathers_locked(brg_scheduler *sched, int count)
{
    const int *ids = sched->queue + sched->queue_issued;
    brg_group *first = &sched->groups[ids[0]];
    brg_status status;
    BRG_TRY(follow_update_locked(sched, first), out);
    BRG_TRY(
        brg_sched_launch_locked(sched, &(brg_launch){.ctx = first->ctx,
                                                     .groups = ids,
                                                     .num_groups = count,
                                                     .func = BRG_FUNC_ALL_GATHER,
                                                     .call = gather_bucket,
                                                     .step = (uint32_t)(first->gathered_step - 1)}),
        out);
    for (int i = 0; i < count; i++) {
        brg_group *group = &sched->groups[ids[i]];
        group->gather_done = group->own_gather_done;
        atomic_store_explicit(&group->gather_state, BRG_GATHER_ISSUED, memory_order_release);
    }
    sched->queue_issued += count;
out:
    return status;
}

brg_status brg_sched_issue_gathers_locked(brg_scheduler *sched, int until)
{
    brg_status status = BRG_OK;
    if (until > sched->queue_length)
        until = sched->queue_length;
    while (sched->queue_issued < until && status == BRG_OK)
        status = issue_gathers_locked(sched, launch_length(sched, until));
    return status;
}

/* `stream` waits for the group's gather; the wait is traced. Not under the lock: it may block. */
static brg_status wait_for_gather(brg_scheduler *sched, brg_group *group, brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    brg_timeline *timeline = ctx->timeline;
    if (brg_streams_has(group->waited, stream))
        return BRG_OK;
    brg_status status = brg_sched_check_stream(sched, stream, "brg_param_wait");
    if (status != BRG_OK)
        return status;
    int before = brg_timeline_stamp(timeline, stream);
    status = brg_context_rt(ctx, ctx->device.rt->stream_wait_event(stream, group->gather_done),
                            "stream_wait_event");
    int after = brg_timeline_stamp(timeline, stream);
    brg_rec record = {.kind = BRG_REC_WAIT,
                      .func = BRG_FUNC_ALL_GATHER,
                      .step = (uint32_t)(group->gathered_step - 1)};
    if (sched->sharded) /* else there is no gather that the trace could speak of */
        brg_sched_record(sched, group, &record, before, after);
    brg_timeline_unref(timeline, before);
    brg_timeline_unref(timeline, after);
    /* When the set is full the stream waits again next time, which is only slower. */
    brg_streams_add(group->waited, stream);
    return status;
}

static int by_position(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Sorts queue[from..length) by forward position; positions are unique, so no ties. */
static void sort_queue_locked(brg_scheduler *sched, int from)
{
    int count = sched->queue_length - from, *queue = sched->queue + from;
    for (int i = 0; i < count; i++)
        queue[i] = sched->forward_position[queue[i]];
    qsort(queue, (size_t)count, sizeof *queue, by_position);
    for (int i = 0; i < count; i++)
        queue[i] = sched->forward_order[queue[i]];
}

/* Puts at least one group at the end of the queue as pending. issue_lock held. */
static brg_status enqueue_locked(brg_scheduler *sched, const int *groups, int count,
                                 brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    for (int i = 0; i < count; i++) {
        if (groups[i] < 0 || groups[i] >= sched->num_groups)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "bucket group %d of %d", groups[i],
                            sched->num_groups);
        const brg_group *group = &sched->groups[groups[i]];
        if (group->gathered_step == sched->step + 1)
            return brg_fail(BRG_ERR_STATE, "bucket group %d has already been gathered in step %llu",
                            groups[i], (unsigned long long)sched->step);
    }
    /* What an earlier step has left goes first; then the queue can start anew. */
    brg_status status = BRG_OK;
    if (sched->queue_length + count > sched->num_groups) {
        BRG_TRY(brg_sched_issue_gathers_locked(sched, sched->queue_length), out);
        sched->queue_length = sched->queue_issued = 0;
    }
    brg_group *update = &sched->groups[groups[0]];
    BRG_TRY(
        brg_context_rt(ctx, ctx->device.rt->event_record(update->updated, stream), "event_record"),
        out);
    update->followed_by = 0;
    int stamp = brg_timeline_stamp(ctx->timeline, stream);
    /* the update is done: the parameters may be gathered */
    brg_rec ready = {
        .kind = BRG_REC_READY, .func = BRG_FUNC_ALL_GATHER, .step = (uint32_t)sched->step};
    for (int i = 0; i < count; i++) {
        brg_group *group = &sched->groups[groups[i]];
        group->update = update;
        group->gathered_step = sched->step + 1;
        brg_streams_clear(group->waited);
        atomic_store_explicit(&group->gather_state, BRG_GATHER_PENDING, memory_order_release);
        sched->queue[sched->queue_length++] = groups[i];
        brg_sched_record(sched, group, &ready, stamp, stamp);
    }
    brg_timeline_unref(ctx->timeline, stamp);
out:
    return status;
}

static void mark_step_end(brg_scheduler *sched, brg_stream stream)
{
    brg_timeline *timeline = sched->ctx->timeline;
    if (!timeline)
        return;
    brg_timeline_unref(timeline, sched->end_stamp);
    sched->end_stamp = brg_timeline_stamp(timeline, stream);
}

/* All-reduce mode: every rank has updated everything; consumers wait for the update on `stream`. */
static brg_status hand_out_update(brg_scheduler *sched, const int *groups, int num_groups,
                                  brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    brg_status status = BRG_OK;
    brg_sched_lock_issue(sched);
    for (int i = 0; i < num_groups; i++) {
        brg_group *group = &sched->groups[groups[i]];
        BRG_TRY(brg_context_rt(ctx, ctx->device.rt->event_record(group->own_gather_done, stream),
                               "event_record"),
                out);
        group->gather_done = group->own_gather_done;
        brg_streams_clear(group->waited);
        brg_streams_add(group->waited, stream);
        atomic_store_explicit(&group->gather_state, BRG_GATHER_ISSUED, memory_order_release);
    }
out:
    brg_sched_unlock_issue(sched);
    return status;
}

brg_status brg_sched_start_param_sync(brg_scheduler *sched, const int *groups, int num_groups,
                                      brg_stream stream)
{
    const brg_scheduler_options *o = &sched->options;
    BRG_ON_DEVICE(sched->ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    if (!sched->sharded || num_groups == 0) {
        status = hand_out_update(sched, groups, num_groups, stream);
        mark_step_end(sched, stream);
        return status;
    }
    brg_sched_lock_issue(sched);
    status = enqueue_locked(sched, groups, num_groups, stream);
    if (status == BRG_OK) {
        int fresh = sched->queue_length - num_groups;
        /* This optimizer's groups in forward order; with a limit, merged with what is still
         * pending. */
        sort_queue_locked(sched, fresh);
        bool limited = o->overlap_param_gather && o->param_gather_prefetch;
        int until = limited ? sched->queue_issued + o->param_gather_prefetch : sched->queue_length;
        if (limited && fresh > sched->queue_issued) {
            sort_queue_locked(sched, sched->queue_issued);
            until = sched->queue_issued; /* the window is already open */
        }
        status = brg_sched_issue_gathers_locked(sched, until);
    }
    brg_sched_unlock_issue(sched);
    for (int i = 0; status == BRG_OK && !o->overlap_param_gather && i < num_groups; i++)
        status = wait_for_gather(sched, &sched->groups[groups[i]], stream);
    mark_step_end(sched, stream);
    return status;
}

static void learn_forward(brg_scheduler *sched, brg_group *group)
{
    if (atomic_load_explicit(&group->seen, memory_order_relaxed) ||
        atomic_exchange(&group->seen, true))
        return;
    sched->forward_seen[atomic_fetch_add(&sched->num_seen, 1)] = group->id;
}

/* Issues up to the group and as many after it as may run ahead. */
static brg_status reach(brg_scheduler *sched, const brg_group *group)
{
    brg_status status = BRG_OK;
    brg_sched_lock_issue(sched);
    /* From the end: a group may stand in the queue twice, first with its gather of an earlier step.
     */
    for (int i = sched->queue_length - 1; i >= 0; i--)
        if (sched->queue[i] == group->id) {
            status =
                brg_sched_issue_gathers_locked(sched, i + 1 + sched->options.param_gather_prefetch);
            break;
        }
    brg_sched_unlock_issue(sched);
    return status;
}

brg_status brg_param_wait(brg_scheduler *sched, int param, brg_stream stream)
{
    if (!brg_param_in_range(sched, param))
        return brg_bad_param(sched, param, "brg_param_wait");
    brg_group *group = &sched->groups[sched->params[param].group];
    if (atomic_load_explicit(&sched->learning_forward, memory_order_relaxed))
        learn_forward(sched, group);
    int state = atomic_load_explicit(&group->gather_state, memory_order_acquire);
    if (state == BRG_GATHER_CURRENT || brg_streams_has(group->waited, stream))
        return brg_sched_check(sched);
    BRG_ON_DEVICE(sched->ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    if (state == BRG_GATHER_PENDING || sched->options.param_gather_prefetch)
        BRG_TRY(reach(sched, group), out);
    BRG_TRY(wait_for_gather(sched, group, stream), out);
out:
    return status;
}

brg_status brg_finish_param_sync(brg_scheduler *sched, brg_stream stream)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_finish_param_sync");
    BRG_ON_DEVICE(sched->ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    brg_sched_lock_issue(sched);
    status = brg_sched_issue_gathers_locked(sched, sched->queue_length);
    brg_sched_unlock_issue(sched);
    for (int g = 0; status == BRG_OK && g < sched->num_groups; g++)
        if (atomic_load(&sched->groups[g].gather_state) != BRG_GATHER_CURRENT)
            status = wait_for_gather(sched, &sched->groups[g], stream);
    return status;
}

brg_status brg_broadcast_params(brg_scheduler *sched, int root, brg_stream stream)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_broadcast_params");
    if (root < 0 || root >= sched->ctx->world)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_broadcast_params: rank %d of %d", root,
                        sched->ctx->world);
    brg_status status = brg_finish_param_sync(sched, stream);
    for (int i = 0; status == BRG_OK && i < sched->num_buffers; i++) {
        const brg_buffer *buffer = &sched->buffers[i];
        BRG_TRY(brg_broadcast(buffer->ctx, buffer->param, buffer->param_bytes, BRG_UINT8,
                              root % buffer->ctx->world, stream),
                out);
        if (sched->instance_ctx)
            BRG_TRY(brg_broadcast(sched->instance_ctx, buffer->param, buffer->param_bytes,
                                  BRG_UINT8, 0, stream),
                    out);
    }
out:
    return status;
}
