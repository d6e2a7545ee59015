/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "sched/trace/analysis_internal.h"

/* A span or what interrupts it, with its stream. */
typedef struct streamed {
    uint32_t stream;
    bool wait;
    uint64_t t0, t1;
} streamed;

static int streamed_compare(const void *a, const void *b)
{
    const streamed *x = a, *y = b;
    return (x->stream > y->stream) - (x->stream < y->stream);
}

static bool is_compute(const brg_rec *rec)
{
    return rec->kind == BRG_REC_COMPUTE || rec->kind == BRG_REC_OPTIMIZER ||
           rec->kind == BRG_REC_NORM;
}

/* Adds those from *at on whose stream this is, and moves *at past them. */
static brg_status stream_add(const brg_analysis *a, brg_interval_set *set, const streamed *list,
                             size_t count, size_t *at, uint32_t stream)
{
    brg_status status = BRG_OK;
    while (*at < count && list[*at].stream < stream)
        (*at)++;
    for (; status == BRG_OK && *at < count && list[*at].stream == stream; (*at)++)
        status = brg_interval_set_add(set, brg_signed_time(a, list[*at].t0),
                                      brg_signed_time(a, list[*at].t1));
    brg_interval_set_normalize(set);
    return status;
}

/* The compute of one stream, less its interruptions, joins `all`. */
static brg_status stream_compute(const brg_analysis *a, const brg_interval_set *spans,
                                 const brg_interval_set *stops, brg_interval_set *all)
{
    brg_interval_set busy = {0};
    brg_status status = brg_interval_set_subtract(spans, stops, &busy);
    for (size_t i = 0; status == BRG_OK && i < busy.count; i++)
        status = brg_interval_set_add(all, busy.at[i].t0, busy.at[i].t1);
    brg_interval_set_free(&busy);
    return status;
}

/* Compute of all streams. Stops on a known stream interrupt its spans; those on an unknown one
 * interrupt all; spans on an unknown stream are interrupted by all waits. */
static brg_status compute_of_streams(brg_analysis *a, streamed *spans, size_t nspans,
                                     streamed *stops, size_t nstops)
{
    brg_status status = BRG_OK;
    brg_interval_set all = {0}, unknown = {0}, every = {0}, mine = {0}, stop = {0};
    qsort(spans, nspans, sizeof *spans, streamed_compare);
    qsort(stops, nstops, sizeof *stops, streamed_compare);
    for (size_t i = 0; i < nstops; i++)
        if (stops[i].wait)
            BRG_TRY(brg_interval_set_add(&every, brg_signed_time(a, stops[i].t0),
                                         brg_signed_time(a, stops[i].t1)),
                    out);
    brg_interval_set_normalize(&every);
    size_t span = 0, at = 0;
    BRG_TRY(stream_add(a, &unknown, stops, nstops, &at, 0), out);
    while (span < nspans) {
        uint32_t stream = spans[span].stream;
        mine.count = stop.count = 0;
        BRG_TRY(stream_add(a, &mine, spans, nspans, &span, stream), out);
        if (stream)
            BRG_TRY(stream_add(a, &stop, stops, nstops, &at, stream), out);
        BRG_TRY(stream_compute(a, &mine, stream ? &stop : &every, &all), out);
    }
    brg_interval_set_normalize(&all);
    BRG_TRY(brg_interval_set_subtract(&all, &unknown, &a->compute), out);
out:
    brg_interval_set_free(&all);
    brg_interval_set_free(&unknown);
    brg_interval_set_free(&every);
    brg_interval_set_free(&mine);
    brg_interval_set_free(&stop);
    return status;
}

static brg_status compute_collect(brg_analysis *a)
{
    const brg_trace *trace = a->trace;
    streamed *spans = calloc(trace->nrecs + a->nwindows + 1, sizeof *spans);
    streamed *stops = calloc(trace->nrecs + 1, sizeof *stops);
    size_t nspans = 0, nstops = 0;
    brg_status status = BRG_OK;
    if (!spans || !stops) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its spans", trace->path);
        goto out;
    }
    for (size_t i = 0; i < trace->nrecs; i++) {
        const brg_rec *rec = &trace->recs[i];
        const streamed item = {.stream = rec->stream,
                               .wait = rec->kind == BRG_REC_WAIT,
                               .t0 = rec->t0_ns,
                               .t1 = rec->t1_ns};
        a->report->compute_recorded |= rec->kind == BRG_REC_COMPUTE;
        if (is_compute(rec))
            spans[nspans++] = item;
        else if (rec->kind == BRG_REC_WAIT || (rec->kind == BRG_REC_COLLECTIVE && rec->stream))
            stops[nstops++] = item;
    }
    a->report->compute_known = a->report->compute_recorded || !a->report->recognition;
    if (!a->report->compute_known) {
        nspans = 0;
    } else if (!a->report->compute_recorded) {
        nspans = a->nwindows;
        for (size_t i = 0; i < nspans; i++)
            spans[i] = (streamed){
                .stream = a->windows[i].stream, .t0 = a->windows[i].t0, .t1 = a->windows[i].t1};
    }
    status = compute_of_streams(a, spans, nspans, stops, nstops);
out:
    free(spans);
    free(stops);
    return status;
}

static brg_status communication_collect(brg_analysis *a)
{
    brg_status status = BRG_OK;
    for (size_t i = 0; status == BRG_OK && i < a->trace->nrecs; i++) {
        const brg_rec *rec = &a->trace->recs[i];
        if (rec->kind == BRG_REC_COLLECTIVE && !(rec->flags & BRG_REC_UNTIMED))
            status = brg_interval_set_add(&a->communication, brg_signed_time(a, rec->t0_ns),
                                          brg_signed_time(a, rec->t1_ns));
    }
    brg_interval_set_normalize(&a->communication);
    return status;
}

static brg_partition partition_of(const brg_analysis *a, const brg_window *w)
{
    int64_t t0 = brg_signed_time(a, w->t0), t1 = brg_signed_time(a, w->t1);
    brg_partition p = {
        .step_ns = t1 - t0,
        .compute_ns = brg_interval_set_within(&a->compute, t0, t1),
        .communication_ns = brg_interval_set_within(&a->communication, t0, t1),
        .overlapped_ns = brg_interval_set_within(&a->overlapped, t0, t1),
    };
    p.exposed_ns = p.communication_ns - p.overlapped_ns;
    p.idle_ns = p.step_ns - p.compute_ns - p.exposed_ns;
    return p;
}

bool brg_analysis_computes(const brg_analysis *a, const brg_window *w)
{
    return a->report->compute_known &&
           (!a->report->recognition ||
            brg_interval_set_within(&a->compute, brg_signed_time(a, w->t0),
                                    brg_signed_time(a, w->t1)) > 0);
}

static brg_status partition_sample(brg_analysis *a, const brg_window *w, const brg_partition *p)
{
    bool timed = a->communication.count > 0 || !a->report->recognition;
    bool computes = brg_analysis_computes(a, w), known = computes && timed;
    const struct {
        brg_metric metric;
        int64_t value;
        bool known;
    } values[] = {
        {M_STEP, p->step_ns, true},
        {M_COMPUTE, p->compute_ns, computes},
        {M_COMMUNICATION, p->communication_ns, timed},
        {M_OVERLAPPED, p->overlapped_ns, known},
        {M_EXPOSED_TOTAL, p->exposed_ns, known},
        {M_IDLE, p->idle_ns, known},
    };
    brg_status status = BRG_OK;
    for (size_t i = 0; status == BRG_OK && i < sizeof values / sizeof *values; i++)
        if (values[i].known)
            status = brg_samples_add(&a->samples, brg_key(KEY_RANK, 0), values[i].metric, w->index,
                                     (double)values[i].value);
    return status;
}

static int partition_compare(const void *a, const void *b)
{
    const brg_partition *x = a, *y = b;
    return (x->step_ns > y->step_ns) - (x->step_ns < y->step_ns);
}

/* The mean of the middle half: one step alone, the median one, can be far from typical in its
 * parts. */
static brg_partition typical_of(brg_partition *partitions, size_t n)
{
    double step = 0, overlapped = 0, exposed = 0, idle = 0;
    size_t from = n / 4, to = n - n / 4;
    qsort(partitions, n, sizeof *partitions, partition_compare);
    for (size_t i = from; i < to; i++) {
        step += (double)partitions[i].step_ns;
        overlapped += (double)partitions[i].overlapped_ns;
        exposed += (double)partitions[i].exposed_ns;
        idle += (double)partitions[i].idle_ns;
    }
    double count = (double)(to - from);
    brg_partition p = {
        .step_ns = (int64_t)(step / count),
        .overlapped_ns = (int64_t)(overlapped / count),
        .exposed_ns = (int64_t)(exposed / count),
        .idle_ns = (int64_t)(idle / count),
    };
    p.compute_ns = p.step_ns - p.exposed_ns - p.idle_ns; /* whole numbers that add up */
    p.communication_ns = p.overlapped_ns + p.exposed_ns;
    return p;
}

brg_status brg_analysis_timeline(brg_analysis *a)
{
    brg_status status;
    size_t n = a->end - a->first, known = 0;
    brg_partition *partitions = calloc(n, sizeof *partitions);
    if (!partitions)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", a->trace->path, n);
    BRG_TRY(compute_collect(a), out);
    BRG_TRY(communication_collect(a), out);
    BRG_TRY(brg_interval_set_intersect(&a->compute, &a->communication, &a->overlapped), out);
    for (size_t i = 0; i < n; i++) {
        const brg_window *w = &a->windows[a->first + i];
        const brg_partition p = partition_of(a, w);
        BRG_TRY(partition_sample(a, w, &p), out);
        if (brg_analysis_computes(a, w) || !a->report->compute_known)
            partitions[known++] = p;
    }
    a->report->steps_without_compute = (uint32_t)(n - known);
    a->report->compute_known = known > 0 && a->report->compute_known;
    brg_partition *typical = &a->report->typical;
    if (known)
        *typical = typical_of(partitions, known);
    if (!a->report->compute_known)
        *typical = (brg_partition){.step_ns = typical->step_ns,
                                   .communication_ns = typical->communication_ns};
out:
    free(partitions);
    return status;
}
