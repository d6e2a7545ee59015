/* SPDX-License-Identifier: Apache-2.0 */
/* Capturing a step, and replaying it. What the captured calls have changed in the scheduler is
 * undone at the end, kept as a difference, and added at each launch. */
#include <stdio.h>
#include <stdlib.h>

#include "sched/bucket/graph.h"

typedef struct bucket_count {
    uint64_t reductions, gathers; /* before the capture, then by it */
} bucket_count;

struct brg_graph {
    brg_scheduler *sched;
    brg_stream stream; /* of the capture */
    void *exec;        /* the table's graph; NULL until captured */
    brg_timeline_graph *trace;
    bool launched;

    /* Before the capture. */
    uint64_t step;
    bool synced;
    int step_stamp, end_stamp; /* then: nodes of the capture */
    uint32_t trace_step;
    /* Before the capture, then what it has added. */
    uint64_t num_ops[BRG_MAX_CONTEXTS];
    bucket_count *buckets;
    uint64_t *gathered; /* per group: gathered_step, then that less `step`; 0: not gathered */

    bool synced_after;
};

/* Capturing */

static brg_status check_begin(brg_scheduler *sched, brg_stream stream)
{
    const char *why = NULL;
    const brg_runtime *rt = sched->ctx->device.rt;
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    if (!rt->graph_begin)
        return brg_fail(BRG_ERR_UNSUPPORTED, "brg_graph_capture_begin: device %s has no graphs",
                        rt->name);
    if (!stream)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_graph_capture_begin: the NULL stream cannot be captured");
    if (atomic_load(&sched->ctx->capturing))
        why = "the context is capturing already";
    else if (atomic_load(&sched->learning))
        why = "the next step learns, which needs the host; run it first";
    else if (sched->options.check_grads)
        why = "check_grads is on, which needs the host in each step";
    else if (atomic_load(&sched->in_step) || atomic_load(&sched->any_ready))
        why = "a step has begun; call brg_finish_grad_sync() first";
    else if (atomic_load(&sched->no_sync))
        why = "between brg_no_sync_begin and _end";
    if (why)
        return brg_fail(BRG_ERR_STATE, "brg_graph_capture_begin: %s", why);
    return brg_sched_check_stream(sched, stream, "brg_graph_capture_begin");
}

static brg_status make_joined_event(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx;
    if (sched->joined_event)
        return BRG_OK;
    brg_status status = brg_context_rt(
        ctx, ctx->device.rt->event_create(&sched->joined_event, BRG_EVENT_DISABLE_TIMING),
        "event_create");
    if (status == BRG_OK) {
        sched->replay_watch.event = sched->joined_event;
        snprintf(sched->replay_watch.label, sizeof sched->replay_watch.label, "a replayed step");
        brg_watchdog_add(ctx->watchdog, &sched->replay_watch);
    }
    return status;
}

static void free_graph(brg_graph *graph)
{
    brg_timeline_graph_destroy(graph->trace);
    free(graph->buckets);
    free(graph->gathered);
    free(graph);
}

/* Remembers what the capture will change. */
static brg_status save(brg_scheduler *sched, brg_stream stream, brg_graph **out)
{
    brg_graph *graph = calloc(1, sizeof *graph);
    *out = graph;
    if (!graph)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a graph");
    graph->sched = sched;
    graph->stream = stream;
    graph->buckets = calloc((size_t)sched->num_buckets + 1, sizeof *graph->buckets);
    graph->gathered = calloc((size_t)sched->num_groups + 1, sizeof *graph->gathered);
    if (!graph->buckets || !graph->gathered)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a graph of %d buckets",
                        sched->num_buckets);
    graph->step = sched->step;
    graph->synced = sched->synced;
    brg_context *all[BRG_MAX_CONTEXTS];
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++)
        graph->num_ops[i] = all[i]->num_ops;
    graph->step_stamp = sched->step_stamp;
    graph->end_stamp = sched->end_stamp;
    graph->trace_step = sched->trace_step;
    for (int b = 0; b < sched->num_buckets; b++)
        graph->buckets[b] = (bucket_count){atomic_load(&sched->buckets[b].reductions),
                                           atomic_load(&sched->buckets[b].gathers)};
    for (int g = 0; g < sched->num_groups; g++)
        graph->gathered[g] = sched->groups[g].gathered_step;
    return BRG_OK;
}

/* The scheduler as it was; the graph keeps what has been added. */
static void restore(brg_graph *graph)
{
    brg_scheduler *sched = graph->sched;
    int step_stamp = sched->step_stamp, end_stamp = sched->end_stamp;
    graph->synced_after = sched->synced;
    sched->step = graph->step;
    sched->synced = graph->synced;
    sched->step_stamp = graph->step_stamp;
    sched->end_stamp = graph->end_stamp;
    sched->trace_step = graph->trace_step;
    brg_timeline_set_step(sched->ctx->timeline, graph->trace_step);
    graph->step_stamp = step_stamp;
    graph->end_stamp = end_stamp;
    brg_context *all[BRG_MAX_CONTEXTS];
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++) {
        uint64_t num_ops = all[i]->num_ops - graph->num_ops[i];
        all[i]->num_ops = graph->num_ops[i];
        graph->num_ops[i] = num_ops;
    }
    for (int b = 0; b < sched->num_buckets; b++) {
        bucket_count *count = &graph->buckets[b];
        uint64_t reductions = atomic_exchange(&sched->buckets[b].reductions, count->reductions);
        uint64_t gathers = atomic_exchange(&sched->buckets[b].gathers, count->gathers);
        *count = (bucket_count){reductions - count->reductions, gathers - count->gathers};
    }
    for (int g = 0; g < sched->num_groups; g++) {
        uint64_t before = graph->gathered[g], now = sched->groups[g].gathered_step;
        graph->gathered[g] = now == before ? 0 : now - graph->step;
        sched->groups[g].gathered_step = before;
    }
    atomic_store(&sched->in_step, false);
    atomic_store(&sched->any_ready, false);
    atomic_store(&sched->misread_param, -1);
}

static void set_capture(brg_scheduler *sched, brg_graph *graph)
{
    brg_context *all[BRG_MAX_CONTEXTS];
    sched->capture = graph;
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++)
        atomic_store(&all[i]->capturing, graph != NULL);
}

/* The communication streams join the capture. */
static brg_status fork_comm_streams(const brg_scheduler *sched, brg_stream stream)
{
    brg_context *all[BRG_MAX_CONTEXTS];
    brg_status status = BRG_OK;
    brg_sched_lock_issue(sched);
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count && status == BRG_OK; i++)
        status = brg_context_follow_locked(all[i], stream, all[i]->relay_event);
    brg_sched_unlock_issue(sched);
    return status;
}

/* Whoever asks for an event of a capture breaks it. */
static void stop_watching(const brg_scheduler *sched)
{
    brg_context *all[BRG_MAX_CONTEXTS];
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++)
        brg_watchdog_forget(all[i]->watchdog);
}

brg_status brg_graph_capture_begin(brg_scheduler *sched, brg_stream stream)
{
    if (!sched)
        return brg_bad_param(sched, 0, "brg_graph_capture_begin");
    brg_context *ctx = sched->ctx;
    BRG_ON_DEVICE(ctx);
    brg_graph *graph = NULL;
    brg_status status;
    BRG_TRY(check_begin(sched, stream), fail);
    BRG_TRY(make_joined_event(sched), fail);
    BRG_TRY(brg_graph_join(sched, stream), fail);
    BRG_TRY(save(sched, stream, &graph), fail);
    BRG_TRY(brg_timeline_graph_create(ctx->timeline, stream, &graph->trace), fail);
    stop_watching(sched);
    BRG_TRY(brg_context_rt(ctx, ctx->device.rt->graph_begin(stream), "graph_begin"), fail);
    brg_graph_forget(sched);
    set_capture(sched, graph);
    sched->step_stamp = sched->end_stamp = BRG_NO_STAMP;
    brg_timeline_capture_begin(ctx->timeline, graph->trace);
    status = fork_comm_streams(sched, stream);
    if (status == BRG_OK)
        return BRG_OK;
    char text[512];
    snprintf(text, sizeof text, "%s", brg_last_error());
    brg_graph_capture_end(sched, stream, &graph); /* fails too: there is no step in it */
    return brg_fail(status, "%s", text);
fail:
    if (graph)
        free_graph(graph);
    return status;
}

/* Gathers that nobody has waited for, comm_stream, and what owners have on streams of their own
 * join the stream of the capture. */
static brg_status close_capture(brg_graph *graph)
{
    brg_scheduler *sched = graph->sched;
    brg_sched_lock_issue(sched);
    brg_status status = brg_sched_issue_gathers_locked(sched, sched->queue_length);
    brg_status joined = brg_graph_join_streams_locked(sched, graph->stream);
    brg_sched_unlock_issue(sched);
    if (status == BRG_OK)
        status = joined;
    joined = brg_graph_join_owners(sched, graph->stream);
    if (status == BRG_OK)
        status = joined;
    brg_status ended = brg_timeline_capture_end(sched->ctx->timeline, graph->stream);
    return status != BRG_OK ? status : ended;
}

static brg_status check_captured(const brg_graph *graph)
{
    const brg_scheduler *sched = graph->sched;
    unsigned long long steps = sched->step - graph->step;
    if (steps != 1 || atomic_load(&sched->in_step))
        return brg_fail(BRG_ERR_STATE,
                        "brg_graph_capture_end: %llu steps were begun in the capture%s, expected "
                        "one, from brg_zero_grad() to brg_finish_grad_sync()",
                        steps,
                        atomic_load(&sched->in_step) ? " and the last one not finished" : "");
    return brg_sched_check(sched);
}

brg_status brg_graph_capture_end(brg_scheduler *sched, brg_stream stream, brg_graph **out)
{
    if (!sched || !out)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_graph_capture_end: the scheduler or the output is NULL");
    *out = NULL;
    brg_context *ctx = sched->ctx;
    BRG_ON_DEVICE(ctx);
    brg_graph *graph = sched->capture;
    if (!graph)
        return brg_fail(BRG_ERR_STATE, "brg_graph_capture_end: no capture has begun");
    if (stream != graph->stream)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_graph_capture_end: the capture was begun on another stream");
    brg_status status = close_capture(graph), ended, left;
    if (status == BRG_OK)
        status = check_captured(graph);
    char text[512] = "";
    if (status != BRG_OK)
        snprintf(text, sizeof text, "%s", brg_last_error());
    ended = brg_context_rt(ctx, ctx->device.rt->graph_end(stream, &graph->exec), "graph_end");
    restore(graph);
    brg_graph_forget(sched);
    set_capture(sched, NULL);
    left = brg_graph_leave(sched, stream);
    if (status != BRG_OK)
        brg_fail(status, "%s", text);
    else
        status = ended != BRG_OK ? ended : left;
    if (status == BRG_OK) {
        sched->num_graphs++;
        *out = graph;
        return BRG_OK;
    }
    ctx->device.rt->graph_destroy(graph->exec);
    free_graph(graph);
    return status;
}

/* Replaying */

static brg_status check_launch(const brg_graph *graph, brg_stream stream)
{
    const brg_scheduler *sched = graph->sched;
    brg_status status = brg_sched_check(sched);
    if (status == BRG_OK)
        status = brg_sched_refuse_in_capture(sched, "brg_graph_launch");
    if (status == BRG_OK)
        status = brg_sched_check_stream(sched, stream, "brg_graph_launch");
    if (status != BRG_OK)
        return status;
    if (atomic_load(&sched->in_step) || atomic_load(&sched->any_ready))
        return brg_fail(BRG_ERR_STATE,
                        "brg_graph_launch: a step has begun; call brg_finish_grad_sync() first");
    if (sched->synced != graph->synced)
        return brg_fail(BRG_ERR_STATE,
                        "brg_graph_launch: brg_step() is %s, but was %s when the "
                        "capture began",
                        sched->synced ? "due" : "not due", graph->synced ? "due" : "not due");
    return BRG_OK;
}

/* The scheduler as if the captured calls had been made. Returns the step that they began from. */
static uint64_t advance(const brg_graph *graph)
{
    brg_scheduler *sched = graph->sched;
    uint64_t before = sched->step;
    sched->step++;
    sched->synced = graph->synced_after;
    brg_context *all[BRG_MAX_CONTEXTS];
    brg_sched_lock_issue(sched);
    for (int i = 0, count = brg_graph_contexts(sched, all); i < count; i++)
        all[i]->num_ops += graph->num_ops[i];
    brg_sched_unlock_issue(sched);
    for (int b = 0; b < sched->num_buckets; b++) {
        atomic_fetch_add(&sched->buckets[b].reductions, graph->buckets[b].reductions);
        atomic_fetch_add(&sched->buckets[b].gathers, graph->buckets[b].gathers);
    }
    for (int g = 0; g < sched->num_groups; g++)
        if (graph->gathered[g])
            sched->groups[g].gathered_step = before + graph->gathered[g];
    return before;
}

brg_status brg_graph_launch(brg_graph *graph, brg_stream stream)
{
    if (!graph)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_graph_launch: the graph is NULL");
    brg_scheduler *sched = graph->sched;
    brg_context *ctx = sched->ctx;
    BRG_ON_DEVICE(ctx);
    brg_status status;
    BRG_TRY(check_launch(graph, stream), out);
    BRG_TRY(brg_graph_join(sched, stream), out);
    BRG_TRY(brg_timeline_graph_prepare(graph->trace, stream), out);
    BRG_TRY(brg_context_rt(ctx, ctx->device.rt->graph_launch(graph->exec, stream), "graph_launch"),
            out);
    graph->launched = true;
    uint64_t later = advance(graph) - graph->step;
    brg_graph_forget(sched);
    int step_stamp = graph->step_stamp, end_stamp = graph->end_stamp;
    BRG_TRY(
        brg_timeline_graph_launched(graph->trace, stream, (uint32_t)later, &step_stamp, &end_stamp),
        out);
    if (ctx->timeline) {
        brg_sched_begin_step_record(sched, step_stamp, true);
        sched->end_stamp = end_stamp;
    }
    BRG_TRY(brg_graph_leave(sched, stream), out);
out:
    return status;
}

void brg_graph_destroy(brg_graph *graph)
{
    if (!graph)
        return;
    brg_scheduler *sched = graph->sched;
    const brg_runtime *rt = sched->ctx->device.rt;
    BRG_ON_DEVICE(sched->ctx);
    if (graph->launched)
        rt->event_synchronize(sched->joined_event);
    brg_timeline_harvest(sched->ctx->timeline, BRG_NO_STAMP);
    rt->graph_destroy(graph->exec);
    sched->num_graphs--;
    free_graph(graph);
}
