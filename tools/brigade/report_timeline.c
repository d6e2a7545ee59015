/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/report_timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "brigade/context.h"
#include "tools/brigade/cli.h"

/* ---- From records to slices ---- */

static void slice_add(timeline *t, lane_kind kind, uint32_t id, const brg_rec *const *records,
                      size_t nrecords)
{
    t->slices[t->nslices++] = (timeline_slice){.t0_ns = records[0]->t0_ns,
                                               .t1_ns = records[0]->t1_ns,
                                               .records = records,
                                               .nrecords = nrecords,
                                               .kind = kind,
                                               .id = id};
}

/* Collectives last, those next to each other that were issued as one. */
static int record_compare(const void *a, const void *b)
{
    const brg_rec *x = *(const brg_rec *const *)a, *y = *(const brg_rec *const *)b;
    bool cx = x->kind == BRG_REC_COLLECTIVE, cy = y->kind == BRG_REC_COLLECTIVE;
    const uint64_t keys[][2] = {{cx, cy},
                                {x->stream, y->stream},
                                {x->comm, y->comm},
                                {x->t0_ns, y->t0_ns},
                                {x->t1_ns, y->t1_ns},
                                {x->flags & BRG_REC_GROUPED, y->flags & BRG_REC_GROUPED}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

static bool issued_as_one(const brg_rec *x, const brg_rec *y)
{
    return x->kind == BRG_REC_COLLECTIVE && y->kind == BRG_REC_COLLECTIVE &&
           (x->flags & y->flags & BRG_REC_GROUPED) && x->stream == y->stream &&
           x->comm == y->comm && x->t0_ns == y->t0_ns && x->t1_ns == y->t1_ns;
}

static void record_place(timeline *t, const brg_rec *const *at)
{
    const brg_rec *rec = *at;
    switch (rec->kind) {
    case BRG_REC_STEP:
        slice_add(t, LANE_STEP, 0, at, 1);
        break;
    case BRG_REC_COMPUTE:
        slice_add(t, LANE_COMPUTE, rec->stream, at, 1);
        break;
    case BRG_REC_WAIT:
        slice_add(t, LANE_WAIT, rec->stream, at, 1);
        break;
    case BRG_REC_OPTIMIZER:
    case BRG_REC_NORM:
        slice_add(t, LANE_OPTIMIZER, 0, at, 1);
        break;
    case BRG_REC_READY:
        if (rec->func != BRG_FUNC_ALL_GATHER)
            slice_add(t, LANE_BUCKET, rec->bucket, at, 1);
        break;
    case BRG_REC_COLLECTIVE:
        slice_add(t, LANE_BUCKET, rec->bucket, at, 1);
        break;
    default:
        break;
    }
}

static brg_status slices_make(timeline *t, uint64_t from_ns, uint64_t to_ns)
{
    const brg_trace *trace = t->trace;
    size_t n = 0;
    t->records = calloc(trace->nrecs + 1, sizeof *t->records);
    t->slices = calloc(2 * trace->nrecs + 1, sizeof *t->slices);
    if (!t->records || !t->slices)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its timeline", trace->path);
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].t0_ns >= from_ns && trace->recs[i].t0_ns < to_ns &&
            trace->recs[i].kind != BRG_REC_CLOCK)
            t->records[n++] = &trace->recs[i];
    qsort(t->records, n, sizeof *t->records, record_compare);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && issued_as_one(t->records[i], t->records[end]); end++)
            ;
        if (t->records[i]->kind == BRG_REC_COLLECTIVE)
            slice_add(t, LANE_COMM, t->records[i]->stream, &t->records[i], end - i);
        for (size_t k = i; k < end; k++)
            record_place(t, &t->records[k]);
    }
    return BRG_OK;
}

/* ---- Lanes ---- */

static int slice_compare(const void *a, const void *b)
{
    const timeline_slice *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    if (x->t0_ns != y->t0_ns)
        return x->t0_ns < y->t0_ns ? -1 : 1;
    if (x->t1_ns != y->t1_ns)
        return x->t1_ns > y->t1_ns ? -1 : 1;
    return (x->records > y->records) - (x->records < y->records);
}

/* The slices that are open on one lane, by their ends, the innermost last. */
typedef struct open_slices {
    uint64_t *ends;
    size_t count, capacity;
} open_slices;

enum { COPIES_MAX = 64 }; /* more than overlap in any sane trace; the rest goes into the last */

static bool fits(open_slices *open, const timeline_slice *slice)
{
    while (open->count && open->ends[open->count - 1] <= slice->t0_ns)
        open->count--;
    return !open->count || slice->t1_ns <= open->ends[open->count - 1];
}

static bool push(open_slices *open, uint64_t end)
{
    if (open->count == open->capacity) {
        size_t capacity = open->capacity ? 2 * open->capacity : 16;
        uint64_t *ends = reallocarray(open->ends, capacity, sizeof *ends);
        if (!ends)
            return false;
        open->ends = ends;
        open->capacity = capacity;
    }
    open->ends[open->count++] = end;
    return true;
}

/* Sets slice->lane to the copy of its kind and id that it nests in. What nests nowhere is cut off
 * at the end of what it would stick out of. */
static bool copies_assign(timeline *t)
{
    open_slices open[COPIES_MAX] = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < t->nslices; i++) {
        timeline_slice *slice = &t->slices[i];
        if (i && (slice[-1].kind != slice->kind || slice[-1].id != slice->id))
            for (int c = 0; c < COPIES_MAX; c++)
                open[c].count = 0;
        uint32_t copy = 0;
        while (copy < COPIES_MAX && !fits(&open[copy], slice))
            copy++;
        if (copy == COPIES_MAX) {
            open_slices *last = &open[--copy];
            slice->t1_ns = last->ends[last->count - 1];
        }
        slice->lane = copy;
        ok = push(&open[copy], slice->t1_ns);
    }
    for (int c = 0; c < COPIES_MAX; c++)
        free(open[c].ends);
    return ok;
}

static brg_status lanes_make(timeline *t)
{
    qsort(t->slices, t->nslices, sizeof *t->slices, slice_compare);
    t->lanes = calloc(t->nslices + 1, sizeof *t->lanes);
    if (!t->lanes || !copies_assign(t))
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its timeline", t->trace->path);
    qsort(t->slices, t->nslices, sizeof *t->slices, slice_compare);
    for (size_t i = 0; i < t->nslices; i++) {
        timeline_slice *slice = &t->slices[i];
        timeline_lane *lane = t->nlanes ? &t->lanes[t->nlanes - 1] : NULL;
        if (!lane || lane->kind != slice->kind || lane->id != slice->id ||
            lane->copy != slice->lane) {
            lane = &t->lanes[t->nlanes++];
            *lane = (timeline_lane){
                .kind = slice->kind, .id = slice->id, .copy = slice->lane, .first = i};
        }
        lane->count++;
        slice->lane = (uint32_t)(t->nlanes - 1);
    }
    return BRG_OK;
}

/* ---- Flows ---- */

static bool is_reduction(const brg_rec *rec)
{
    return rec->kind == BRG_REC_COLLECTIVE && rec->bucket != BRG_NO_BUCKET &&
           (rec->func == BRG_FUNC_REDUCE_SCATTER || rec->func == BRG_FUNC_ALL_REDUCE);
}

static int point_compare(const void *a, const void *b)
{
    const timeline_point *x = a, *y = b;
    if (x->slice != y->slice)
        return x->slice < y->slice ? -1 : 1;
    return (x->flow > y->flow) - (x->flow < y->flow);
}

/* Slices of one kind by (begin, index): found by bisection. */
static size_t first_from(const timeline *t, size_t first, size_t end, uint64_t t_ns)
{
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (t->slices[middle].t0_ns < t_ns)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static const timeline_lane *lane_find(const timeline *t, lane_kind kind, uint32_t id)
{
    size_t low = 0, high = t->nlanes;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const timeline_lane *lane = &t->lanes[middle];
        if (lane->kind < kind || (lane->kind == kind && lane->id < id))
            low = middle + 1;
        else
            high = middle;
    }
    return low < t->nlanes && t->lanes[low].kind == kind && t->lanes[low].id == id ? &t->lanes[low]
                                                                                   : NULL;
}

/* The slice with the gradients of a reduction: the last of its bucket and step that began before
 * it. SIZE_MAX: none. */
static size_t gradients_of(const timeline *t, const brg_rec *reduction)
{
    size_t found = SIZE_MAX;
    const timeline_lane *lane = lane_find(t, LANE_BUCKET, reduction->bucket);
    for (; lane && lane < t->lanes + t->nlanes && lane->kind == LANE_BUCKET &&
           lane->id == reduction->bucket;
         lane++) {
        size_t i = first_from(t, lane->first, lane->first + lane->count, reduction->t0_ns + 1);
        while (i > lane->first && t->slices[i - 1].records[0]->kind != BRG_REC_READY)
            i--;
        if (i > lane->first && t->slices[i - 1].records[0]->step == reduction->step)
            found = i - 1;
    }
    return found;
}

/* The optimizer that takes what was reduced: the first of the step that begins after it. */
static size_t optimizer_of(const timeline *t, const brg_rec *reduction)
{
    const timeline_lane *lane = lane_find(t, LANE_OPTIMIZER, 0);
    if (!lane)
        return SIZE_MAX;
    size_t end = lane->first + lane->count;
    for (size_t i = first_from(t, lane->first, end, reduction->t1_ns); i < end; i++) {
        const brg_rec *rec = t->slices[i].records[0];
        if (rec->step != reduction->step)
            break;
        if (rec->kind == BRG_REC_OPTIMIZER)
            return i;
    }
    return SIZE_MAX;
}

static void flow_add(timeline *t, const brg_rec *reduction, size_t launch, uint64_t flow)
{
    const size_t way[] = {gradients_of(t, reduction), launch, optimizer_of(t, reduction)};
    size_t first = t->npoints;
    for (size_t i = 0; i < sizeof way / sizeof *way; i++)
        if (way[i] != SIZE_MAX)
            t->points[t->npoints++] =
                (timeline_point){.slice = way[i], .flow = flow, .stage = (int)i};
    if (t->npoints == first + 1)
        t->npoints = first; /* leads nowhere */
    else
        t->points[t->npoints - 1].last = true;
}

static brg_status flows_make(timeline *t)
{
    t->points = calloc(3 * t->nslices + 1, sizeof *t->points);
    if (!t->points)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its timeline", t->trace->path);
    uint64_t flow = 1;
    for (size_t i = 0; i < t->nslices; i++)
        for (size_t k = 0; t->slices[i].kind == LANE_COMM && k < t->slices[i].nrecords; k++)
            if (is_reduction(t->slices[i].records[k]))
                flow_add(t, t->slices[i].records[k], i, flow++);
    qsort(t->points, t->npoints, sizeof *t->points, point_compare);
    return BRG_OK;
}

/* ---- Bytes in flight ---- */

static int counter_compare(const void *a, const void *b)
{
    const timeline_counter *x = a, *y = b;
    return (x->t_ns > y->t_ns) - (x->t_ns < y->t_ns);
}

static brg_status in_flight_make(timeline *t)
{
    timeline_counter *edges = calloc(2 * t->nslices + 1, sizeof *edges);
    if (!edges)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its timeline", t->trace->path);
    size_t n = 0, kept = 0;
    for (size_t i = 0; i < t->nslices; i++) {
        const timeline_slice *slice = &t->slices[i];
        if (slice->kind != LANE_COMM || slice->t1_ns == slice->t0_ns)
            continue;
        uint64_t bytes = timeline_slice_bytes(slice);
        edges[n++] = (timeline_counter){.t_ns = slice->t0_ns, .bytes = bytes};
        edges[n++] = (timeline_counter){.t_ns = slice->t1_ns, .bytes = -bytes};
    }
    qsort(edges, n, sizeof *edges, counter_compare);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += edges[i].bytes;
        if (i + 1 == n || edges[i + 1].t_ns != edges[i].t_ns)
            edges[kept++] = (timeline_counter){.t_ns = edges[i].t_ns, .bytes = bytes};
    }
    t->in_flight = edges;
    t->nin_flight = kept;
    return BRG_OK;
}

/* ---- All of it ---- */

brg_status timeline_build(const brg_trace *trace, uint64_t from_ns, uint64_t to_ns, timeline *t)
{
    brg_status status;
    *t = (timeline){.trace = trace};
    BRG_TRY(slices_make(t, from_ns, to_ns), out);
    BRG_TRY(lanes_make(t), out);
    BRG_TRY(flows_make(t), out);
    BRG_TRY(in_flight_make(t), out);
out:
    if (status != BRG_OK)
        timeline_free(t);
    return status;
}

void timeline_free(timeline *t)
{
    free(t->records);
    free(t->slices);
    free(t->lanes);
    free(t->points);
    free(t->in_flight);
    *t = (timeline){0};
}

uint64_t timeline_begin(const brg_trace *trace)
{
    uint64_t begin = UINT64_MAX;
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind != BRG_REC_CLOCK && trace->recs[i].t0_ns < begin)
            begin = trace->recs[i].t0_ns;
    return begin;
}
