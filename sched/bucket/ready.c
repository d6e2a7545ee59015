/* SPDX-License-Identifier: Apache-2.0 */
/* Readiness: from "this gradient is written" to "this bucket group is complete". */
#include "sched/bucket/scheduler.h"

static void reset_group(brg_scheduler *sched, brg_group *group, brg_stream stream)
{
    brg_streams_clear(group->streams);
    atomic_store(&group->remaining, group->expected);
    atomic_store(&group->last_ready, -1);
    atomic_store(&group->held, false);
    atomic_store(&group->first_ready_ns, 0);
    group->issued = false;
    group->complete = false;
    if (!atomic_load(&sched->learning) && group->expected == 0) {
        /* Nothing will arrive: zeros, ready when the zeroing is done. */
        brg_streams_add(group->streams, stream);
        group->complete = true;
    }
}

void brg_sched_begin_step_record(brg_scheduler *sched, int stamp, bool replay)
{
    brg_timeline *timeline = sched->ctx->timeline;
    int last = sched->step_stamp;
    if (last >= 0) {
        brg_rec record = {.kind = BRG_REC_STEP,
                          .flags = sched->trace_replay ? BRG_REC_GRAPH : 0,
                          .step = sched->trace_step,
                          .bucket = BRG_NO_BUCKET};
        brg_timeline_emit(timeline, &record, brg_timeline_ref(timeline, last),
                          brg_timeline_ref(timeline, stamp));
    }
    brg_timeline_unref(timeline, sched->end_stamp);
    sched->end_stamp = BRG_NO_STAMP;
    /* The new origin must have happened, which `stamp` on an asynchronous stream has not. */
    brg_timeline_harvest(timeline, last);
    brg_timeline_unref(timeline, last);
    sched->step_stamp = stamp;
    sched->trace_step = (uint32_t)sched->step;
    sched->trace_replay = replay;
    brg_timeline_set_step(timeline, sched->trace_step);
}

brg_status brg_zero_grad(brg_scheduler *sched, brg_stream stream)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_zero_grad");
    brg_context *ctx = sched->ctx;
    BRG_ON_DEVICE(ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    BRG_TRY(brg_sched_check_stream(sched, stream, "brg_zero_grad"), out);
    if (atomic_load(&sched->any_ready))
        return brg_fail(BRG_ERR_STATE,
                        "brg_zero_grad: gradients of step %llu have been counted but not "
                        "synchronised; call brg_finish_grad_sync() first",
                        (unsigned long long)sched->step);
    sched->step++;
    sched->synced = false;
    if (ctx->timeline)
        brg_sched_begin_step_record(sched, brg_timeline_stamp(ctx->timeline, stream), false);
    BRG_TRY(brg_sched_follow_grads(sched, stream), out);
    for (int g = 0; g < sched->num_groups; g++)
        if (sched->groups[g].hooks)
            BRG_TRY(sched->groups[g].hooks->overwrite(sched->groups[g].hooks_arg, stream), out);
    for (int i = 0; i < sched->num_buffers; i++)
        BRG_TRY(brg_context_rt(ctx,
                               ctx->device.rt->memset_async(sched->buffers[i].grad, 0,
                                                            sched->buffers[i].grad_bytes, stream),
                               "memset_async"),
                out);
    brg_sched_lock_issue(sched);
    for (int g = 0; g < sched->num_groups; g++)
        reset_group(sched, &sched->groups[g], stream);
    for (int p = 0; p < sched->num_params; p++) {
        atomic_store_explicit(&sched->params[p].count, 0, memory_order_relaxed);
        atomic_store_explicit(&sched->params[p].touched, false, memory_order_relaxed);
    }
    atomic_store(&sched->misread_param, -1);
    atomic_store(&sched->ready_ticket, 0);
    sched->order_next = 0;
    brg_sched_unlock_issue(sched);
    atomic_store(&sched->in_step, true);
out:
    return status;
}

/* A stream beyond those that are tracked: comm_stream waits for it right away. */
static brg_status follow_now(brg_scheduler *sched, const brg_group *group, brg_stream stream)
{
    brg_context *ctx = group->ctx;
    BRG_ON_DEVICE(ctx);
    brg_sched_lock_issue(sched);
    brg_status status = brg_context_follow_locked(ctx, stream, ctx->relay_event);
    brg_sched_unlock_issue(sched);
    return status;
}

static brg_status complete_group(brg_scheduler *sched, brg_group *group, brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    BRG_ON_DEVICE(ctx);
    brg_status status = brg_sched_check_stream(sched, stream, "brg_grad_ready");
    if (status != BRG_OK)
        return status;
    if (ctx->timeline) { /* READY: from the first call to this point of the compute stream */
        int now = brg_timeline_stamp(ctx->timeline, stream);
        brg_rec record = {.kind = BRG_REC_READY,
                          .step = sched->trace_step,
                          .t0_ns = atomic_load(&group->first_ready_ns)};
        brg_sched_record(sched, group, &record, BRG_NO_STAMP, now);
        brg_timeline_unref(ctx->timeline, now);
    }
    brg_sched_lock_issue(sched);
    group->complete = true;
    if (sched->options.overlap_grad_reduce)
        status = brg_sched_issue_complete_locked(sched);
    brg_sched_unlock_issue(sched);
    return status;
}

/* One contribution more than learned. Harmless as long as the reduction has not been issued and the
 * pattern may change; else this step's sum is wrong, and every later call says so. */
static brg_status too_often(brg_scheduler *sched, brg_group *group, int param, int count)
{
    brg_sched_lock_issue(sched);
    bool late = group->issued;
    if (!late && sched->options.allow_relearn) {
        atomic_store(&group->held, true);
        group->complete = false;
    }
    brg_sched_unlock_issue(sched);
    if (!late && sched->options.allow_relearn)
        return BRG_OK;
    int none = -1;
    atomic_compare_exchange_strong(&sched->misread_param, &none, param);
    return brg_fail(
        BRG_ERR_READINESS,
        "parameter \"%s\" became ready %d times in step %llu, but %d times in the step that was "
        "learned%s",
        brg_sched_param_name(sched, param), count, (unsigned long long)sched->step,
        sched->params[param].expected,
        late ? "; its bucket is already being reduced without it" : "");
}

static brg_status no_step(const brg_scheduler *sched, int param)
{
    return brg_fail(
        BRG_ERR_STATE,
        "brg_grad_ready: parameter \"%s\": no step has begun; call brg_zero_grad() first",
        brg_sched_param_name(sched, param));
}

brg_status brg_grad_ready(brg_scheduler *sched, int param, brg_stream stream)
{
    if (!brg_param_in_range(sched, param))
        return brg_bad_param(sched, param, "brg_grad_ready");
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    if (!atomic_load_explicit(&sched->in_step, memory_order_relaxed))
        return no_step(sched, param);
    brg_param_state *state = &sched->params[param];
    brg_group *group = &sched->groups[state->group];
    if (!brg_streams_add(group->streams, stream)) {
        status = follow_now(sched, group, stream);
        if (status != BRG_OK)
            return status;
    }
    atomic_store_explicit(&state->touched, true, memory_order_relaxed);
    if (atomic_load_explicit(&sched->no_sync, memory_order_relaxed))
        return BRG_OK; /* not counted, but the reduction must wait for it */
    if (!atomic_load_explicit(&sched->any_ready, memory_order_relaxed))
        atomic_store(&sched->any_ready, true);
    if (sched->ctx->timeline &&
        !atomic_load_explicit(&group->first_ready_ns, memory_order_relaxed)) {
        uint64_t unset = 0;
        atomic_compare_exchange_strong(&group->first_ready_ns, &unset, brg_now_ns());
    }
    int count = atomic_fetch_add_explicit(&state->count, 1, memory_order_relaxed) + 1;
    if (atomic_load_explicit(&sched->learning, memory_order_relaxed)) {
        int ticket = atomic_fetch_add(&sched->ready_ticket, 1),
            have = atomic_load(&group->last_ready);
        while (have < ticket && !atomic_compare_exchange_weak(&group->last_ready, &have, ticket))
            ;
        return BRG_OK;
    }
    if (count > state->expected)
        return too_often(sched, group, param, count);
    /* Releases this thread's gradient writes to the thread that issues the reduction. */
    if (atomic_fetch_sub_explicit(&group->remaining, 1, memory_order_acq_rel) == 1 &&
        !atomic_load(&group->held))
        return complete_group(sched, group, stream);
    return BRG_OK;
}

brg_status brg_no_sync_begin(brg_scheduler *sched)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_no_sync_begin");
    if (atomic_exchange(&sched->no_sync, true))
        return brg_fail(BRG_ERR_STATE, "brg_no_sync_begin: already begun");
    return BRG_OK;
}

brg_status brg_no_sync_end(brg_scheduler *sched)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_no_sync_end");
    if (!atomic_exchange(&sched->no_sync, false))
        return brg_fail(BRG_ERR_STATE, "brg_no_sync_end: not begun");
    return BRG_OK;
}

brg_status brg_scheduler_relearn(brg_scheduler *sched)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_scheduler_relearn");
    if (sched->capture)
        return brg_fail(BRG_ERR_STATE, "brg_scheduler_relearn: in a capture");
    if (atomic_load(&sched->any_ready))
        return brg_fail(BRG_ERR_STATE,
                        "brg_scheduler_relearn: gradients of step %llu have been counted but not "
                        "synchronised",
                        (unsigned long long)sched->step);
    atomic_store(&sched->learning, true);
    for (int g = 0; g < sched->num_groups; g++)
        atomic_store(&sched->groups[g].seen, false);
    atomic_store(&sched->num_seen, 0);
    atomic_store(&sched->learning_forward, true);
    /* Groups that were complete from the start must be counted like the others now. */
    brg_sched_lock_issue(sched);
    for (int g = 0; g < sched->num_groups; g++)
        sched->groups[g].complete = false;
    brg_sched_unlock_issue(sched);
    return BRG_OK;
}
