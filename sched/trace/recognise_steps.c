/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "brigade/dtype.h"
#include "sched/trace/recognise_internal.h"

uint64_t brg_event_elements(const brg_event *event)
{
    size_t size = brg_dtype_bytes((brg_dtype)event->rec->dtype);
    return size ? event->rec->bytes / size : event->rec->bytes;
}

/* ---- Reductions and their cycles ---- */

/* Tiny ones take part only when there is nothing else. */
static brg_status reductions_list(brg_pattern *p, const char *path)
{
    size_t large = 0;
    for (size_t i = 0; i < p->nevents; i++)
        large += p->events[i].reduction && p->events[i].rec->bytes >= BRG_TINY_BYTES;
    p->reductions = calloc(p->nevents + 1, sizeof *p->reductions);
    p->symbols = calloc(p->nevents + 1, sizeof *p->symbols);
    if (!p->reductions || !p->symbols)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu collectives", path, p->nevents);
    for (size_t i = 0; i < p->nevents; i++)
        if (p->events[i].reduction && (!large || p->events[i].rec->bytes >= BRG_TINY_BYTES))
            p->reductions[p->nreductions++] = i;
    return BRG_OK;
}

int64_t brg_pattern_gap(const brg_pattern *p, size_t from, size_t to)
{
    const brg_rec *before = p->events[from].rec, *after = p->events[to].rec;
    if (p->timed && ((before->flags | after->flags) & BRG_REC_UNTIMED))
        return BRG_GAP_UNKNOWN;
    return (int64_t)(after->t0_ns - before->t1_ns);
}

static brg_status cycles_of(brg_pattern *p, bool by_address, const int64_t *gaps,
                            const uint64_t *lost)
{
    for (size_t i = 0; i < p->nreductions; i++) {
        const brg_event *event = &p->events[p->reductions[i]];
        p->symbols[i] = by_address ? event->symbol : event->loose;
    }
    p->by_address = by_address;
    brg_cycles_free(&p->cycles);
    return brg_cycles_find(p->symbols, gaps, lost, p->nreductions, &p->cycles);
}

/* Gaps are from reduction to reduction: gathers in between come after the optimizer. */
static void reductions_measure(const brg_pattern *p, int64_t *gaps, uint64_t *lost)
{
    uint64_t missing = 0;
    for (size_t i = 0, event = 0; i < p->nreductions; i++) {
        for (; event <= p->reductions[i]; event++)
            missing += p->events[event].lost;
        lost[i] = missing;
        if (i)
            gaps[i] = brg_pattern_gap(p, p->reductions[i - 1], p->reductions[i]);
    }
}

/* Whether the same addresses come again and again within the cycle: buffers that gradients are
 * copied to, of which an odd number of reductions makes a cycle of two steps. */
static bool addresses_reused(const brg_pattern *p)
{
    const size_t *cycle = p->reductions + p->cycles.first[0];
    size_t distinct = 0;
    for (size_t i = 0; i < p->cycles.period; i++) {
        size_t k = 0;
        while (k < i && p->events[cycle[k]].rec->aux != p->events[cycle[i]].rec->aux)
            k++;
        distinct += k == i;
    }
    return 4 * distinct <= 3 * p->cycles.period;
}

static brg_status cycles_find(brg_pattern *p, const char *path)
{
    brg_status status;
    int64_t *gaps = calloc(p->nreductions + 1, sizeof *gaps);
    uint64_t *lost = calloc(p->nreductions + 1, sizeof *lost);
    if (!gaps || !lost) {
        status =
            brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu reductions", path, p->nreductions);
        goto out;
    }
    reductions_measure(p, gaps, lost);
    BRG_TRY(cycles_of(p, true, gaps, lost), out);
    double score = p->cycles.count < 2 ? 0 : p->cycles.score;
    size_t period = p->cycles.period;
    bool reused = score > 0 && addresses_reused(p);
    if (!(score > 0) || reused) {
        BRG_TRY(cycles_of(p, false, gaps, lost), out);
        bool shorter =
            p->cycles.period > 1 && p->cycles.period < period && period % p->cycles.period == 0;
        if (p->cycles.count < 2 || (reused && !shorter))
            BRG_TRY(cycles_of(p, true, gaps, lost), out);
    }
out:
    free(gaps);
    free(lost);
    return status;
}

/* ---- Steps ---- */

static bool cycles_adjoin(const brg_pattern *p, size_t cycle)
{
    return cycle + 1 < p->cycles.count && p->cycles.first[cycle + 1] == brg_cycle_end(p, cycle);
}

/* Whether something is missing up to the end of a cycle. */
static bool lossy_until(const brg_pattern *p, size_t cycle)
{
    bool lossy = false;
    for (size_t e = 1; e <= p->reductions[brg_cycle_end(p, cycle) - 1]; e++)
        lossy |= p->events[e].lost > 0;
    return lossy;
}

static brg_status steps_list(brg_pattern *p, uint32_t repeats, const char *path)
{
    brg_status status;
    size_t n = p->cycles.count, period = p->cycles.period, from = 0;
    bool *ends = calloc(n + 1, sizeof *ends);
    p->steps = calloc(n + 1, sizeof *p->steps);
    if (!ends || !p->steps) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", path, n);
        goto out;
    }
    BRG_TRY(brg_pattern_rounds(p, repeats, ends, path), out);
    p->nearly = p->cycles.first[0];
    bool broken = false; /* a step has begun whose end is not found so far */
    for (size_t c = 0; c < n; c++) {
        bool last = p->micro_steps == 1 || ends[c];
        bool whole = c + 1 - from == p->micro_steps;
        if (last && whole) {
            p->steps[p->nsteps++] = (brg_step_span){
                .r_first = p->cycles.first[from],
                .r_end = brg_cycle_end(p, c),
            };
            p->nlost += broken;
        } else if (last && !from && !lossy_until(p, c)) {
            p->nearly = brg_cycle_end(p, c); /* rounds of a step that began otherwise */
        } else if (last) {
            p->nlost++;
        }
        broken = !last && (broken || !cycles_adjoin(p, c));
        if (last || !cycles_adjoin(p, c))
            from = c + 1;
    }
    /* Stretches that are no cycles, between cycles: steps of which something is missing. */
    for (size_t i = 0; i + 1 < p->nsteps && p->micro_steps == 1; i++)
        p->nlost += (p->steps[i + 1].r_first - p->steps[i].r_end + period - 1) / period;
out:
    free(ends);
    return status;
}

/* Where gathers stand: between the reductions, and how many of them in a step. */
static void gathers_place(brg_pattern *p)
{
    size_t mixed = 0, many = 0, behind = 0, gaps = 0;
    for (size_t i = 0; i < p->nsteps; i++) {
        const brg_step_span *s = &p->steps[i];
        size_t r0 = p->reductions[s->r_first], r1 = p->reductions[s->r_end - 1];
        mixed += brg_pattern_gathers(p, r0, r1) > 0;
        if (s->r_end == p->nreductions)
            continue;
        size_t next = p->reductions[s->r_end];
        size_t all = brg_pattern_gathers(p, r0, next);
        many += all > p->cycles.period;
        if (brg_pattern_gathers(p, r1, next)) {
            size_t gather = r1;
            while (!p->events[gather].gather)
                gather++;
            int64_t to_gather = brg_pattern_gap(p, gather - 1, gather);
            int64_t to_next = brg_pattern_gap(p, next - 1, next);
            if (to_gather == BRG_GAP_UNKNOWN || to_next == BRG_GAP_UNKNOWN)
                continue;
            behind += to_gather < to_next;
            gaps++;
        }
    }
    p->interleaved = 2 * mixed > p->nsteps;
    /* Freed after forward and gathered again in backward; or gathered once, a pause after the last
     * reduction: that was the optimizer, and forward begins. */
    p->gathers_first = p->interleaved ? 2 * many > p->nsteps : gaps && 2 * behind <= gaps;
}

/* Where the step begins whose first reduction is number `r` of the sequence. */
static size_t step_begin(const brg_pattern *p, size_t r)
{
    size_t end = r < p->nreductions ? p->reductions[r] : p->nevents;
    if (p->gathers_first)
        for (size_t i = r ? p->reductions[r - 1] + 1 : 0; i < end; i++)
            if (p->events[i].gather)
                return i;
    return end;
}

/* By which clocks the times of a step are, that of its end included. */
static void step_clocks(const brg_pattern *p, brg_step_span *s)
{
    bool timed = false, untimed = false;
    for (size_t k = s->e_first; k <= s->e_end && k < p->nevents; k++) {
        timed |= !(p->events[k].rec->flags & BRG_REC_UNTIMED);
        untimed |= brg_event_untimed(&p->events[k]);
    }
    s->host = !timed;
    s->mixed = timed && untimed;
}

static void steps_bound(brg_pattern *p)
{
    bool by_device = false; /* some step can be used that has the device's times throughout */
    for (size_t i = 0; i < p->nsteps; i++) {
        brg_step_span *s = &p->steps[i];
        s->e_first = step_begin(p, s->r_first);
        s->e_end = step_begin(p, s->r_end);
        step_clocks(p, s);
        /* What follows must be the first of the next step, not what is left of it. */
        s->closed = s->e_end < p->nevents &&
                    (s->r_end == p->nreductions || p->gathers_first ||
                     p->symbols[s->r_end] == p->cycles.pattern[0]) &&
                    (s->mixed || p->events[s->e_end].rec->t0_ns > p->events[s->e_first].rec->t0_ns);
        s->lossy = false;
        for (size_t k = s->e_first + 1; k <= s->e_end && k < p->nevents; k++)
            s->lossy |= p->events[k].lost > 0;
        by_device |= s->closed && !s->lossy && !s->host && !s->mixed;
    }
    /* The host runs ahead of the device: its steps are no measure beside the device's. */
    for (size_t i = 0; by_device && i < p->nsteps; i++)
        p->steps[i].mixed |= p->steps[i].host;
}

/* ---- Which steps are like most ---- */

static int signature_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Fewer gathers make a smaller number. */
static uint64_t signature_of(const brg_pattern *p, brg_step_span *s, bool by_address)
{
    uint64_t hash = 0xcbf29ce484222325u;
    s->gathers = 0;
    for (size_t i = s->e_first; i < s->e_end; i++)
        if (p->events[i].gather) {
            hash =
                (hash ^ (by_address ? p->events[i].symbol : p->events[i].loose)) * 0x100000001b3u;
            s->gathers++;
        }
    return s->gathers << 32 | (uint32_t)(hash ^ hash >> 32);
}

/* Marks steps with other gathers than most; returns how many are left. Of two kinds that are as
 * many, the one with fewer gathers is taken: the other ones evaluate. */
static size_t unlike_mark(brg_pattern *p, bool by_address, uint64_t *sorted)
{
    size_t n = 0, most = 0, like = 0;
    uint64_t common = 0;
    p->model = NULL;
    for (size_t i = 0; i < p->nsteps; i++) {
        brg_step_span *s = &p->steps[i];
        s->signature = signature_of(p, s, by_address);
        if (s->closed && !s->lossy)
            sorted[n++] = s->signature;
    }
    qsort(sorted, n, sizeof *sorted, signature_compare);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end] == sorted[i]; end++)
            ;
        if (end - i > most || (end - i == most && sorted[i] < common)) {
            most = end - i;
            common = sorted[i];
        }
    }
    for (size_t i = 0; i < p->nsteps; i++) {
        brg_step_span *s = &p->steps[i];
        s->unlike = s->signature != common;
        if (brg_step_counts(s)) {
            like++;
            p->model = p->model ? p->model : s;
        }
    }
    return like;
}

static brg_status steps_compare(brg_pattern *p, const char *path)
{
    uint64_t *sorted = calloc(p->nsteps + 1, sizeof *sorted);
    if (!sorted)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", path, p->nsteps);
    /* Addresses count when they tell hardly fewer steps to be alike than sizes do. */
    size_t by_size = unlike_mark(p, false, sorted);
    p->gathers_by_address = 10 * unlike_mark(p, true, sorted) >= 9 * by_size;
    if (!p->gathers_by_address)
        unlike_mark(p, false, sorted);
    free(sorted);
    return BRG_OK;
}

brg_status brg_pattern_find(brg_pattern *p, uint32_t repeats, const char *path)
{
    brg_status status;
    BRG_TRY(reductions_list(p, path), out);
    BRG_TRY(cycles_find(p, path), out);
    if (p->cycles.count < 2)
        goto out;
    BRG_TRY(steps_list(p, repeats, path), out);
    gathers_place(p);
    steps_bound(p);
    BRG_TRY(steps_compare(p, path), out);
out:
    return status;
}

void brg_pattern_free(brg_pattern *p)
{
    free(p->events);
    free(p->reductions);
    free(p->symbols);
    free(p->steps);
    brg_cycles_free(&p->cycles);
    *p = (brg_pattern){0};
}
