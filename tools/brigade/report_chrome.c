/* SPDX-License-Identifier: Apache-2.0 */
/* The trace as Chrome JSON: chrome://tracing, and HolisticTraceAnalysis, which reads one file per
 * rank (--rank N). It takes events of category "kernel" with a stream for GPU work, names that
 * begin with "nccl" for communication, and "ProfilerStep#N" for steps; these are called so here. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "brigade/status.h"
#include "sched/status.h"
#include "tools/brigade/report_export.h"

typedef struct writer {
    FILE *out;
    const timeline *t;
    uint64_t origin;
    uint32_t rank;
    bool first; /* no event yet */
    bool no_memory;
} writer;

/* Takes over the event. */
static void event_put(writer *w, json_t *event)
{
    char *text = event ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(event);
    if (!text) {
        w->no_memory = true;
        return;
    }
    fprintf(w->out, "%s\n%s", w->first ? "" : ",", text);
    w->first = false;
    free(text);
}

/* Microseconds: of a day, doubles hold them to 0.02 ns. */
static double us(const writer *w, uint64_t t_ns)
{
    return (double)(t_ns - w->origin) / 1000;
}

static void metadata_put(writer *w, const char *what, json_int_t tid, json_t *args)
{
    event_put(w, json_pack("{s:s,s:s,s:I,s:I,s:o}", "ph", "M", "name", what, "pid",
                           (json_int_t)w->rank, "tid", tid, "args", args));
}

static void lanes_put(writer *w)
{
    char name[TIMELINE_TEXT];
    snprintf(name, sizeof name, "rank %" PRIu32, w->rank);
    metadata_put(w, "process_name", 0, json_pack("{s:s}", "name", name));
    metadata_put(w, "process_sort_index", 0, json_pack("{s:I}", "sort_index", (json_int_t)w->rank));
    for (size_t i = 0; i < w->t->nlanes; i++) {
        json_int_t tid = (json_int_t)i;
        timeline_lane_name(w->t, &w->t->lanes[i], name);
        metadata_put(w, "thread_name", tid, json_pack("{s:s}", "name", name));
        metadata_put(w, "thread_sort_index", tid, json_pack("{s:I}", "sort_index", tid));
    }
}

/* What runs on a stream. Nothing else may name one, or it would be taken for GPU work: the lanes of
 * buckets show collectives a second time. */
static bool is_kernel(lane_kind kind)
{
    return kind == LANE_COMPUTE || kind == LANE_OPTIMIZER || kind == LANE_COMM;
}

static const char *category(lane_kind kind)
{
    if (is_kernel(kind))
        return "kernel";
    return kind == LANE_STEP ? "user_annotation" : kind == LANE_WAIT ? "wait" : "bucket";
}

static const char *slice_name(const writer *w, const timeline_slice *slice,
                              char buffer[TIMELINE_TEXT])
{
    const brg_rec *rec = slice->records[0];
    if (slice->kind == LANE_STEP)
        snprintf(buffer, TIMELINE_TEXT, "ProfilerStep#%" PRIu32, rec->step);
    else if (slice->kind == LANE_COMM)
        snprintf(buffer, TIMELINE_TEXT, "ncclDevKernel_%s", timeline_func_name(rec->func));
    else
        timeline_slice_name(w->t, slice, buffer);
    return buffer;
}

static json_t *args_of(const writer *w, const timeline_slice *slice)
{
    const brg_rec *rec = slice->records[0];
    json_t *args = json_pack("{s:I}", "step", (json_int_t)rec->step);
    if (is_kernel(slice->kind)) {
        json_object_set_new(args, "stream", json_integer(rec->stream));
        json_object_set_new(args, "device", json_integer(w->t->trace->gpu));
    }
    if (rec->kind == BRG_REC_COMPUTE && rec->bytes)
        json_object_set_new(args, "kernels", json_integer((json_int_t)rec->bytes));
    if (rec->kind != BRG_REC_COLLECTIVE || !args)
        return args;
    json_t *buckets = json_array();
    for (size_t i = 0; i < slice->nrecords; i++)
        if (slice->records[i]->bucket != BRG_NO_BUCKET)
            json_array_append_new(buckets, json_integer(slice->records[i]->bucket));
    json_object_set_new(args, "buckets", buckets);
    json_object_set_new(args, "bytes", json_integer((json_int_t)timeline_slice_bytes(slice)));
    json_object_set_new(args, "collectives", json_integer((json_int_t)slice->nrecords));
    if (rec->aux >= w->origin)
        json_object_set_new(args, "issued_us", json_real(us(w, rec->aux)));
    return args;
}

static void slice_put(writer *w, const timeline_slice *slice)
{
    char name[TIMELINE_TEXT];
    event_put(w, json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:o}", "ph", "X", "name",
                           slice_name(w, slice, name), "cat", category(slice->kind), "pid",
                           (json_int_t)w->rank, "tid", (json_int_t)slice->lane, "ts",
                           us(w, slice->t0_ns), "dur", (double)(slice->t1_ns - slice->t0_ns) / 1000,
                           "args", args_of(w, slice)));
}

static int by_flow(const void *a, const void *b)
{
    const timeline_point *x = a, *y = b;
    if (x->flow != y->flow)
        return x->flow < y->flow ? -1 : 1;
    return x->stage - y->stage;
}

/* "s", "t", "f": begin, step and end of an arrow. They bind to the slice that is open at the time
 * on the same lane. */
static bool flows_put(writer *w)
{
    const timeline *t = w->t;
    timeline_point *points = calloc(t->npoints + 1, sizeof *points);
    if (!points)
        return false;
    for (size_t i = 0; i < t->npoints; i++)
        points[i] = t->points[i];
    qsort(points, t->npoints, sizeof *points, by_flow);
    for (size_t i = 0; i < t->npoints; i++) {
        const timeline_slice *slice = &t->slices[points[i].slice];
        bool first = !i || points[i - 1].flow != points[i].flow;
        event_put(w, json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:f}", "ph",
                               first            ? "s"
                               : points[i].last ? "f"
                                                : "t",
                               "name", "bucket", "cat", "flow", "bp", "e", "id",
                               (json_int_t)(((uint64_t)w->rank << 32) + points[i].flow), "pid",
                               (json_int_t)w->rank, "tid", (json_int_t)slice->lane, "ts",
                               us(w, slice->t0_ns)));
    }
    free(points);
    return true;
}

static brg_status rank_put(writer *w)
{
    const timeline *t = w->t;
    lanes_put(w);
    for (size_t i = 0; i < t->nslices; i++)
        slice_put(w, &t->slices[i]);
    for (size_t i = 0; i < t->nin_flight; i++)
        event_put(w, json_pack("{s:s,s:s,s:I,s:I,s:f,s:{s:I}}", "ph", "C", "name",
                               "bytes in flight", "pid", (json_int_t)w->rank, "tid", (json_int_t)0,
                               "ts", us(w, t->in_flight[i].t_ns), "args", "bytes",
                               (json_int_t)t->in_flight[i].bytes));
    if (!flows_put(w) || w->no_memory)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its export", t->trace->path);
    return BRG_OK;
}

brg_status report_chrome(const report *r, FILE *out)
{
    brg_status status = BRG_OK;
    writer w = {.out = out, .origin = report_origin(r), .first = true};
    fprintf(out, "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",");
    /* HolisticTraceAnalysis looks for the space before the number. */
    fprintf(out, "\"distributedInfo\": {\"rank\": %" PRIu32 ", \"world_size\": %" PRIu32 "},",
            r->shown->trace->rank, r->world);
    fprintf(out, "\"traceEvents\":[");
    for (size_t i = 0; status == BRG_OK && i < r->nranks; i++) {
        timeline t;
        if (!report_exports(r, &r->ranks[i]))
            continue;
        status = timeline_build(report_trace(&r->ranks[i]), 0, UINT64_MAX, &t);
        if (status != BRG_OK)
            break;
        w.t = &t;
        w.rank = r->ranks[i].trace->rank;
        status = rank_put(&w);
        timeline_free(&t);
    }
    fprintf(out, "\n]}\n");
    return status;
}
