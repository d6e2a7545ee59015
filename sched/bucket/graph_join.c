/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/graph.h"

int brg_graph_contexts(const brg_scheduler *sched, brg_context *all[BRG_MAX_CONTEXTS])
{
    int count = 0;
    all[count++] = sched->ctx;
    if (sched->expert_ctx != sched->ctx)
        all[count++] = sched->expert_ctx;
    if (sched->instance_ctx)
        all[count++] = sched->instance_ctx;
    return count;
}

brg_status brg_sched_check_stream(const brg_scheduler *sched, brg_stream stream,
                                  const char *function)
{
    const brg_runtime *rt = sched->ctx->device.rt;
    int capturing = 0;
    if (!rt->stream_is_capturing || atomic_load(&sched->ctx->capturing))
        return BRG_OK;
    brg_status status = brg_context_rt(sched->ctx, rt->stream_is_capturing(stream, &capturing),
                                       "stream_is_capturing");
    if (status != BRG_OK || !capturing)
        return status;
    return brg_fail(BRG_ERR_STATE,
                    "%s: the stream is being captured; a capture of Brigade's calls begins with "
                    "brg_graph_capture_begin()",
                    function);
}

brg_status brg_sched_refuse_in_capture(const brg_scheduler *sched, const char *function)
{
    if (!atomic_load(&sched->ctx->capturing))
        return BRG_OK;
    return brg_fail(BRG_ERR_STATE, "%s: in a capture, where nothing may wait for the device",
                    function);
}

brg_status brg_sched_refuse_with_graphs(const brg_scheduler *sched, const char *function)
{
    if (!sched->capture && !sched->num_graphs)
        return BRG_OK;
    return brg_fail(BRG_ERR_STATE, "%s: %d graphs of the scheduler use what it would free",
                    function, sched->num_graphs + (sched->capture != NULL));
}

void brg_sched_add_graph_hook(brg_scheduler *sched, brg_graph_hook *hook)
{
    hook->next = sched->graph_hooks;
    sched->graph_hooks = hook;
}

void brg_sched_remove_graph_hook(brg_scheduler *sched, brg_graph_hook *hook)
{
    for (brg_graph_hook **at = &sched->graph_hooks; *at; at = &(*at)->next)
        if (*at == hook) {
            *at = hook->next;
            break;
        }
}

brg_status brg_graph_join_streams_locked(const brg_scheduler *sched, brg_stream stream)
{
    brg_context *all[BRG_MAX_CONTEXTS];
    brg_status first = BRG_OK;
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++) {
        const brg_runtime *rt = all[i]->device.rt;
        int error = rt->event_record(all[i]->relay_event, all[i]->comm_stream);
        if (!error)
            error = rt->stream_wait_event(stream, all[i]->relay_event);
        brg_status status = brg_context_rt(all[i], error, "joining a communication stream");
        if (first == BRG_OK)
            first = status;
    }
    return first;
}

brg_status brg_graph_join_owners(const brg_scheduler *sched, brg_stream stream)
{
    brg_status status = BRG_OK;
    for (brg_graph_hook *hook = sched->graph_hooks; status == BRG_OK && hook; hook = hook->next)
        status = hook->join(hook->owner, stream);
    return status;
}

brg_status brg_graph_join(brg_scheduler *sched, brg_stream stream)
{
    brg_status status;
    BRG_TRY(brg_finish_param_sync(sched, stream), out);
    brg_sched_lock_issue(sched);
    status = brg_graph_join_streams_locked(sched, stream);
    brg_sched_unlock_issue(sched);
    if (status != BRG_OK)
        goto out;
    BRG_TRY(brg_sched_follow_grads(sched, stream), out);
    status = brg_graph_join_owners(sched, stream);
out:
    return status;
}

void brg_graph_forget(brg_scheduler *sched)
{
    sched->grads_recorded = false;
    brg_sched_lock_issue(sched);
    sched->queue_length = sched->queue_issued = 0;
    for (int g = 0; g < sched->num_groups; g++) {
        brg_streams_clear(sched->groups[g].waited);
        atomic_store(&sched->groups[g].gather_state, BRG_GATHER_CURRENT);
    }
    brg_sched_unlock_issue(sched);
}

brg_status brg_graph_leave(brg_scheduler *sched, brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    const brg_runtime *rt = ctx->device.rt;
    brg_status status;
    BRG_TRY(brg_sched_mark_grads(sched, stream), out);
    BRG_TRY(brg_context_rt(ctx, rt->event_record(sched->joined_event, stream), "event_record"),
            out);
    brg_context *all[BRG_MAX_CONTEXTS];
    brg_sched_lock_issue(sched);
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count && status == BRG_OK; i++)
        status =
            brg_context_rt(ctx, rt->stream_wait_event(all[i]->comm_stream, sched->joined_event),
                           "stream_wait_event");
    for (int g = 0; g < sched->num_groups; g++) {
        brg_group *group = &sched->groups[g];
        group->gather_done = sched->joined_event;
        brg_streams_clear(group->waited);
        brg_streams_add(group->waited, stream);
        atomic_store_explicit(&group->gather_state, BRG_GATHER_ISSUED, memory_order_release);
    }
    brg_watch_issued(&sched->replay_watch, ctx->num_ops, ctx->num_ops);
    brg_sched_unlock_issue(sched);
    for (brg_graph_hook *hook = sched->graph_hooks; status == BRG_OK && hook; hook = hook->next)
        status = hook->leave(hook->owner, stream);
out:
    return status;
}
