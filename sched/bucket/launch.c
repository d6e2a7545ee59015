/* SPDX-License-Identifier: Apache-2.0 */
/* What reductions and gathers have in common: a group's collectives go out in one launch on
 * comm_stream, are counted, watched and traced. */
#include "sched/bucket/scheduler.h"

static brg_dtype moved_dtype(const brg_bucket *bucket, brg_func func)
{
    return func == BRG_FUNC_ALL_GATHER ? bucket->view.param_dtype : bucket->view.grad_dtype;
}

/* The group's collectives inside one group call. */
static brg_status call_locked(brg_scheduler *sched, brg_group *group, const brg_launch *launch)
{
    brg_context *ctx = launch->ctx;
    const brg_nccl *nccl = ctx->device.nccl;
    int result = BRG_NCCL_OK, ended = BRG_NCCL_OK;
    bool several = group->num_buckets > 1;
    void *comm = brg_context_hold_comm(ctx);
    if (!comm) {
        brg_context_release_comm(ctx);
        return brg_context_check(ctx);
    }
    if (several)
        result = nccl->group_start();
    for (int b = 0; b < group->num_buckets && result == BRG_NCCL_OK; b++) {
        brg_bucket *bucket = &sched->buckets[group->first_bucket + b];
        result = brg_context_count_op_locked(ctx, launch->call(sched, bucket, comm));
        if (result == BRG_NCCL_OK && ctx == group->ctx) /* not when instances are combined */
            atomic_fetch_add(
                launch->func == BRG_FUNC_ALL_GATHER ? &bucket->gathers : &bucket->reductions, 1);
    }
    if (several)
        ended = nccl->group_end();
    brg_context_release_comm(ctx);
    return brg_context_nccl(ctx, result != BRG_NCCL_OK ? result : ended, launch->watch->label);
}

static void record_launch(brg_scheduler *sched, const brg_group *group, const brg_launch *launch,
                          uint64_t issued_ns, int begin, int end)
{
    for (int b = 0; b < group->num_buckets; b++) {
        const brg_bucket *bucket = &sched->buckets[group->first_bucket + b];
        brg_dtype dtype = moved_dtype(bucket, launch->func);
        bool combines = launch->ctx != group->ctx; /* no reduction of the whole bucket */
        int64_t elems = combines ? bucket->shard_elems : bucket->end - bucket->start;
        brg_rec record = {.kind = BRG_REC_COLLECTIVE,
                          .func = (uint8_t)launch->func,
                          .flags = group->num_buckets > 1 ? BRG_REC_GROUPED : 0,
                          .step = launch->step,
                          .comm = launch->ctx->comm_id,
                          .bucket = combines ? BRG_NO_BUCKET : bucket->trace_id,
                          .dtype = (uint8_t)dtype,
                          .bytes = (uint64_t)elems * brg_dtype_bytes(dtype),
                          .stream = launch->ctx->comm_id + 1,
                          .aux = issued_ns};
        brg_timeline_emit(sched->ctx->timeline, &record,
                          brg_timeline_ref(sched->ctx->timeline, begin),
                          brg_timeline_ref(sched->ctx->timeline, end));
    }
}

brg_status brg_sched_launch_locked(brg_scheduler *sched, brg_group *group, const brg_launch *launch)
{
    brg_context *ctx = launch->ctx;
    brg_timeline *timeline = sched->ctx->timeline;
    uint64_t issued_ns = timeline ? brg_now_ns() : 0, first_op = ctx->num_ops + 1;
    int begin = brg_timeline_stamp(timeline, ctx->comm_stream);
    brg_status status = call_locked(sched, group, launch);
    int end = brg_timeline_stamp(timeline, ctx->comm_stream);
    if (timeline)
        record_launch(sched, group, launch, issued_ns, begin, end);
    brg_timeline_unref(timeline, begin);
    brg_timeline_unref(timeline, end);
    if (status != BRG_OK)
        return status;
    status = brg_context_rt(
        ctx, ctx->device.rt->event_record(launch->watch->event, ctx->comm_stream), "event_record");
    if (status == BRG_OK &&
        !atomic_load(&ctx->capturing)) /* else its event must not be asked for */
        brg_watch_issued(launch->watch, first_op, ctx->num_ops);
    return status;
}

void brg_sched_record(brg_scheduler *sched, const brg_group *group, const brg_rec *like, int stamp0,
                      int stamp1)
{
    brg_timeline *timeline = sched->ctx->timeline;
    for (int b = 0; timeline && b < group->num_buckets; b++) {
        brg_rec record = *like;
        record.bucket = sched->buckets[group->first_bucket + b].trace_id;
        brg_timeline_emit(timeline, &record, brg_timeline_ref(timeline, stamp0),
                          brg_timeline_ref(timeline, stamp1));
    }
}
