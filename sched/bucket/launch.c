/* SPDX-License-Identifier: Apache-2.0 */
/* What reductions and gathers have in common: the collectives of a group, or of several, go out in
 * one launch on comm_stream, are counted, watched and traced. */
#include "sched/bucket/scheduler.h"

static brg_dtype moved_dtype(const brg_bucket *bucket, brg_func func)
{
    return func == BRG_FUNC_ALL_GATHER ? bucket->view.param_dtype : bucket->view.grad_dtype;
}

static brg_watch_slot *watch_of(const brg_scheduler *sched, brg_group *group,
                                const brg_launch *launch)
{
    return launch->func == BRG_FUNC_ALL_GATHER  ? &group->gather_watch
           : launch->ctx == sched->instance_ctx ? &group->combine_watch
                                                : &group->reduce_watch;
}

static int num_buckets(const brg_scheduler *sched, const brg_launch *launch)
{
    int count = 0;
    for (int i = 0; i < launch->num_groups; i++)
        count += sched->groups[launch->groups[i]].num_buckets;
    return count;
}

static int call_group_locked(brg_scheduler *sched, const brg_group *group, const brg_launch *launch,
                             void *comm)
{
    int result = BRG_NCCL_OK;
    for (int b = 0; b < group->num_buckets && result == BRG_NCCL_OK; b++) {
        brg_bucket *bucket = &sched->buckets[group->first_bucket + b];
        result = brg_context_count_op_locked(launch->ctx, launch->call(sched, bucket, comm));
        if (result == BRG_NCCL_OK && launch->ctx == group->ctx) /* not to combine instances */
            atomic_fetch_add(
                launch->func == BRG_FUNC_ALL_GATHER ? &bucket->gathers : &bucket->reductions, 1);
    }
    return result;
}

/* All collectives, inside one group call if there are several. */
static brg_status call_locked(brg_scheduler *sched, const brg_launch *launch, bool several)
{
    brg_context *ctx = launch->ctx;
    const brg_nccl *nccl = ctx->device.nccl;
    int result = BRG_NCCL_OK, ended = BRG_NCCL_OK;
    void *comm = brg_context_hold_comm(ctx);
    if (!comm) {
        brg_context_release_comm(ctx);
        return brg_context_check(ctx);
    }
    if (several)
        result = nccl->group_start();
    for (int i = 0; i < launch->num_groups && result == BRG_NCCL_OK; i++)
        result = call_group_locked(sched, &sched->groups[launch->groups[i]], launch, comm);
    if (several)
        ended = nccl->group_end();
    brg_context_release_comm(ctx);
    return brg_context_nccl(ctx, result != BRG_NCCL_OK ? result : ended,
                            watch_of(sched, &sched->groups[launch->groups[0]], launch)->label);
}

static void record_launch(brg_scheduler *sched, const brg_launch *launch, bool several,
                          uint64_t issued_ns, int begin, int end)
{
    const brg_group *groups = sched->groups;
    for (int i = 0; i < launch->num_groups; i++) {
        const brg_group *group = &groups[launch->groups[i]];
        bool combines = launch->ctx != group->ctx; /* no reduction of the whole bucket */
        for (int b = 0; b < group->num_buckets; b++) {
            const brg_bucket *bucket = &sched->buckets[group->first_bucket + b];
            brg_dtype dtype = moved_dtype(bucket, launch->func);
            int64_t elems = combines ? bucket->shard_elems : bucket->end - bucket->start;
            brg_rec record = {.kind = BRG_REC_COLLECTIVE,
                              .func = (uint8_t)launch->func,
                              .flags = several ? BRG_REC_GROUPED : 0,
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
}

/* Records each group's event; `first_op`: number of the launch's first collective. */
static brg_status mark_issued_locked(brg_scheduler *sched, const brg_launch *launch,
                                     uint64_t first_op)
{
    brg_context *ctx = launch->ctx;
    brg_status status = BRG_OK;
    for (int i = 0; i < launch->num_groups; i++) {
        brg_group *group = &sched->groups[launch->groups[i]];
        brg_watch_slot *watch = watch_of(sched, group, launch);
        uint64_t end_op = first_op + (uint64_t)group->num_buckets;
        BRG_TRY(brg_context_rt(ctx, ctx->device.rt->event_record(watch->event, ctx->comm_stream),
                               "event_record"),
                out);
        if (!atomic_load(&ctx->capturing)) /* else its event must not be asked for */
            brg_watch_issued(watch, first_op, end_op - 1);
        first_op = end_op;
    }
out:
    return status;
}

brg_status brg_sched_launch_locked(brg_scheduler *sched, const brg_launch *launch)
{
    brg_context *ctx = launch->ctx;
    brg_timeline *timeline = sched->ctx->timeline;
    uint64_t issued_ns = timeline ? brg_now_ns() : 0, first_op = ctx->num_ops + 1;
    bool several = num_buckets(sched, launch) > 1;
    int begin = brg_timeline_stamp(timeline, ctx->comm_stream);
    brg_status status = call_locked(sched, launch, several);
    int end = brg_timeline_stamp(timeline, ctx->comm_stream);
    if (timeline)
        record_launch(sched, launch, several, issued_ns, begin, end);
    brg_timeline_unref(timeline, begin);
    brg_timeline_unref(timeline, end);
    return status == BRG_OK ? mark_issued_locked(sched, launch, first_op) : status;
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
