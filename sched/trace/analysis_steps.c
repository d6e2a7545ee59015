/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "sched/trace/analysis_internal.h"

/* Steps that may have lost records when the ring has wrapped: the one whose end is the oldest that
 * is left, and the next, whose first records may have been put before that end was. */
enum { WRAPPED_STEPS = 2 };

static int window_time_compare(const void *a, const void *b)
{
    const brg_window *x = a, *y = b;
    if (x->t0 != y->t0)
        return x->t0 < y->t0 ? -1 : 1;
    return (x->t1 > y->t1) - (x->t1 < y->t1);
}

static int window_number_compare(const void *a, const void *b)
{
    const brg_window *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Decides which steps count. */
static brg_status windows_choose(brg_analysis *a, const brg_analysis_options *options)
{
    brg_rank_report *report = a->report;
    size_t n = a->nwindows, warmup = options->warmup_steps;
    report->steps_recorded = (uint32_t)n;
    if (!n)
        return brg_fail(BRG_ERR_NO_DATA, "%s: no complete step in the trace (%zu records)",
                        a->trace->path, a->trace->nrecs);
    a->first = 0;
    a->end = n;
    if (a->trace->overwritten) {
        if (n <= WRAPPED_STEPS)
            return brg_fail(
                BRG_ERR_NO_DATA,
                "%s: the ring is too short to hold a complete step: %llu of %llu records "
                "were overwritten",
                a->trace->path, (unsigned long long)a->trace->overwritten,
                (unsigned long long)a->trace->written);
        a->first = report->steps_incomplete = WRAPPED_STEPS;
        warmup = 0;
    }
    /* Of a run that was killed (or still goes on), the last gathers may be missing. */
    if (!a->trace->closed && a->end - a->first > 1) {
        a->end--;
        report->steps_incomplete++;
    }
    size_t complete = a->end - a->first;
    if (options->warmup_exact && warmup >= complete)
        return brg_fail(BRG_ERR_NO_DATA, "%s: --skip %zu leaves none of its %zu steps",
                        a->trace->path, warmup, complete);
    if (warmup > complete - 1)
        warmup = complete - 1;
    a->first += warmup;
    report->steps_warmup = (uint32_t)warmup;
    report->steps_used = (uint32_t)(a->end - a->first);
    for (size_t i = a->first; i < a->end; i++)
        report->steps_replayed += a->windows[i].replay;
    return BRG_OK;
}

static brg_status windows_collect(brg_analysis *a)
{
    const brg_trace *trace = a->trace;
    for (size_t i = 0; i < trace->nrecs; i++)
        a->nwindows += trace->recs[i].kind == BRG_REC_STEP;
    a->windows = calloc(a->nwindows + 1, sizeof *a->windows);
    a->by_number = calloc(a->nwindows + 1, sizeof *a->by_number);
    if (!a->windows || !a->by_number)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", trace->path, a->nwindows);
    size_t n = 0;
    for (size_t i = 0; i < trace->nrecs; i++) {
        const brg_rec *rec = &trace->recs[i];
        if (rec->kind == BRG_REC_STEP)
            a->windows[n++] = (brg_window){.t0 = rec->t0_ns,
                                           .t1 = rec->t1_ns,
                                           .number = rec->step,
                                           .stream = rec->stream,
                                           .replay = rec->flags & BRG_REC_GRAPH};
    }
    qsort(a->windows, n, sizeof *a->windows, window_time_compare);
    for (size_t i = 0; i < n; i++)
        a->windows[i].index = (uint32_t)i;
    memcpy(a->by_number, a->windows, n * sizeof *a->windows);
    qsort(a->by_number, n, sizeof *a->by_number, window_number_compare);
    a->origin = n ? a->windows[0].t0 : trace->t0_mono_ns;
    return BRG_OK;
}

static bool window_used(const brg_analysis *a, const brg_window *w)
{
    return w && w->index >= a->first && w->index < a->end;
}

const brg_window *brg_analysis_step_numbered(const brg_analysis *a, uint32_t number, uint64_t t)
{
    size_t low = 0, high = a->nwindows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const brg_window *w = &a->by_number[middle];
        if (w->number < number || (w->number == number && w->t0 <= t))
            low = middle + 1;
        else
            high = middle;
    }
    const brg_window *w = low ? &a->by_number[low - 1] : NULL;
    return w && w->number == number && window_used(a, w) ? w : NULL;
}

const brg_window *brg_analysis_step_at(const brg_analysis *a, uint64_t t)
{
    size_t low = a->first, high = a->end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (a->windows[middle].t0 <= t)
            low = middle + 1;
        else
            high = middle;
    }
    const brg_window *w = low > a->first ? &a->windows[low - 1] : NULL;
    return w && t < w->t1 ? w : NULL;
}

brg_status brg_analysis_steps(brg_analysis *a, const brg_analysis_options *options)
{
    brg_status status = windows_collect(a);
    return status == BRG_OK ? windows_choose(a, options) : status;
}
