/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient accumulation: how many rounds of the reductions make a step. */
#include <stdlib.h>

#include "sched/trace/recognise_internal.h"

size_t brg_pattern_gathers(const brg_pattern *p, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += p->events[i].gather;
    return n;
}

/* Whether what was reduced is gathered after this cycle, and not within it. More gathers may follow
 * (evaluation). */
static bool cycle_ends_step(const brg_pattern *p, size_t cycle)
{
    size_t first = p->cycles.first[cycle], end = brg_cycle_end(p, cycle);
    uint64_t reduced = 0, gathered = 0;
    for (size_t i = first; i < end; i++)
        reduced += brg_event_elements(&p->events[p->reductions[i]]);
    if (brg_pattern_gathers(p, p->reductions[first], p->reductions[end - 1]))
        return false;
    size_t to = end < p->nreductions ? p->reductions[end] : p->nevents;
    for (size_t i = p->reductions[end - 1]; i < to && gathered < reduced - reduced / 20; i++)
        gathered += p->events[i].gather ? brg_event_elements(&p->events[i]) : 0;
    return gathered >= reduced - reduced / 20 && gathered <= reduced + reduced / 20;
}

/* How many cycles make a step: the distance between those that end one, when most distances are
 * the same and they span the run. In reductions, so that a cycle of which some are missing counts
 * too. */
static brg_status rounds_find(brg_pattern *p, bool *ends, const char *path)
{
    size_t period = p->cycles.period, best = 0, all = 0, last = SIZE_MAX, mixed = 0;
    size_t *votes = calloc(p->nreductions / period + 2, sizeof *votes);
    p->micro_steps = 1;
    if (!votes)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu cycles", path, p->cycles.count);
    for (size_t c = 0; c < p->cycles.count; c++) {
        mixed += brg_pattern_gathers(p, p->reductions[p->cycles.first[c]],
                                     p->reductions[brg_cycle_end(p, c) - 1]) > 0;
        ends[c] = cycle_ends_step(p, c);
        if (!ends[c])
            continue;
        if (last != SIZE_MAX) {
            size_t distance = (p->cycles.first[c] - p->cycles.first[last] + period / 2) / period;
            votes[distance]++;
            all++;
            best = votes[distance] > votes[best] ? distance : best;
        }
        last = c;
    }
    if (best && 2 * mixed < p->cycles.count && 2 * votes[best] >= all &&
        2 * votes[best] * best >= p->cycles.count / 2) {
        p->micro_steps = best;
        p->micro_steps_known = true;
    }
    free(votes);
    return BRG_OK;
}

/* ---- As many as the user says ---- */

/* A cycle, and the pause before it. */
typedef struct round_start {
    uint64_t phase; /* its number modulo the cycles of a step; missing cycles have numbers, too */
    int64_t pause_ns;
} round_start;

static int pause_compare(const void *a, const void *b)
{
    const round_start *x = a, *y = b;
    if (x->phase != y->phase)
        return x->phase < y->phase ? -1 : 1;
    return (x->pause_ns > y->pause_ns) - (x->pause_ns < y->pause_ns);
}

/* Cycles that fit between this one and the next, by what is between them or was lost there. */
static uint64_t cycles_missing(const brg_pattern *p, size_t cycle)
{
    size_t from = brg_cycle_end(p, cycle), to = p->cycles.first[cycle + 1];
    uint64_t missing = to - from;
    for (size_t e = p->reductions[from - 1] + 1; e <= p->reductions[to]; e++)
        missing += p->events[e].lost;
    return (missing + p->cycles.period / 2) / p->cycles.period;
}

/* The phase with the longest median pause: there the optimizer is. Sorts `starts`. */
static uint64_t first_phase(round_start *starts, size_t n)
{
    uint64_t phase = 0;
    int64_t longest = INT64_MIN;
    qsort(starts, n, sizeof *starts, pause_compare);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && starts[end].phase == starts[i].phase; end++)
            ;
        int64_t median = starts[i + (end - i) / 2].pause_ns;
        if (median > longest) {
            longest = median;
            phase = starts[i].phase;
        }
    }
    return phase;
}

static brg_status rounds_count(brg_pattern *p, uint32_t repeats, bool *ends, const char *path)
{
    size_t n = 0;
    uint64_t number = 0;
    round_start *starts = calloc(p->cycles.count + 1, sizeof *starts);
    if (!starts)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu cycles", path, p->cycles.count);
    for (size_t c = 1; c < p->cycles.count; c++) {
        uint64_t missing = cycles_missing(p, c - 1);
        size_t first = p->cycles.first[c];
        number += 1 + missing;
        int64_t pause = brg_pattern_gap(p, p->reductions[first - 1], p->reductions[first]);
        if (!missing && pause != BRG_GAP_UNKNOWN)
            starts[n++] = (round_start){.phase = number % repeats, .pause_ns = pause};
    }
    uint64_t phase = first_phase(starts, n);
    free(starts);
    number = 0;
    for (size_t c = 0; c < p->cycles.count; c++) {
        number += 1 + (c ? cycles_missing(p, c - 1) : 0);
        ends[c] = number % repeats == phase;
    }
    p->micro_steps = repeats;
    p->micro_steps_known = true;
    return BRG_OK;
}

brg_status brg_pattern_rounds(brg_pattern *p, uint32_t repeats, bool *ends, const char *path)
{
    brg_status status = rounds_find(p, ends, path);
    if (status != BRG_OK || !repeats || (p->micro_steps_known && p->micro_steps == repeats))
        return status;
    return rounds_count(p, repeats, ends, path);
}
