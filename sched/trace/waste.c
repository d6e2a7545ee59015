/* SPDX-License-Identifier: Apache-2.0 */
/* What recognised steps do that they may not need. */
#include <stdlib.h>
#include <string.h>

#include "sched/trace/recognise_internal.h"

/* Collectives that begin this soon after the one before has ended had nothing to wait for in
 * between. */
#define ADJACENT_NS 100000u

typedef struct finder {
    brg_recognition *r;
    const brg_pattern *p;
    const brg_trace *source;
} finder;

static double time_of(const brg_rec *rec)
{
    return rec->flags & BRG_REC_UNTIMED ? 0 : (double)(rec->t1_ns - rec->t0_ns);
}

static brg_status waste_add(brg_recognition *r, const brg_waste *waste)
{
    brg_waste *grown = reallocarray(r->waste, r->nwaste + 1, sizeof *grown);
    if (!grown)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for findings", r->trace.path);
    r->waste = grown;
    grown[r->nwaste++] = *waste;
    return BRG_OK;
}

/* ---- The same again ---- */

/* Adds a collective, as superfluous when its bucket was seen before. */
static void again_add(const brg_event *e, brg_waste *per_bucket, bool *seen)
{
    brg_waste *w = &per_bucket[e->bucket];
    w->count++;
    w->func = e->rec->func;
    w->dtype = e->rec->dtype;
    w->first_bytes = e->rec->bytes;
    if (seen[e->bucket]) {
        w->bytes += (double)e->rec->bytes;
        w->time_ns += e->time_ns;
    }
    seen[e->bucket] = true;
}

static void again_gathered(const finder *f, const brg_step_span *s, brg_waste *per_bucket,
                           bool *seen)
{
    for (size_t i = s->e_first; i < s->e_end; i++)
        if (f->p->events[i].gather)
            again_add(&f->p->events[i], per_bucket, seen);
    memset(seen, 0, f->r->trace.nbuckets * sizeof *seen);
}

/* Another micro-step reduces anew: that is no waste. */
static void again_reduced(const finder *f, const brg_step_span *s, brg_waste *per_bucket,
                          bool *seen)
{
    for (size_t i = s->r_first; i < s->r_end; i++) {
        again_add(&f->p->events[f->p->reductions[i]], per_bucket, seen);
        if ((i + 1 - s->r_first) % f->p->cycles.period == 0)
            memset(seen, 0, f->r->trace.nbuckets * sizeof *seen);
    }
}

static brg_status again_find(const finder *f, brg_waste_kind kind)
{
    brg_recognition *r = f->r;
    brg_status status = BRG_OK;
    double steps = r->steps_whole;
    brg_waste *per_bucket = calloc(r->trace.nbuckets + 1, sizeof *per_bucket);
    bool *seen = calloc(r->trace.nbuckets + 1, sizeof *seen);
    if (!per_bucket || !seen) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for findings", r->trace.path);
        goto out;
    }
    for (size_t i = 0; i < f->p->nsteps; i++) {
        if (!brg_step_counts(&f->p->steps[i]))
            continue;
        if (kind == BRG_WASTE_GATHERED)
            again_gathered(f, &f->p->steps[i], per_bucket, seen);
        else
            again_reduced(f, &f->p->steps[i], per_bucket, seen);
    }
    for (uint32_t id = 0; status == BRG_OK && id < r->trace.nbuckets; id++) {
        brg_waste *w = &per_bucket[id];
        if (!(w->bytes > 0))
            continue;
        w->kind = kind;
        w->by_design = kind == BRG_WASTE_GATHERED && f->p->interleaved && f->p->gathers_first;
        w->comm = r->comm.comm;
        w->bucket = id;
        w->steps = r->steps_whole;
        w->runs = 1;
        w->count /= steps;
        w->bytes /= steps;
        w->time_ns /= steps;
        status = waste_add(r, w);
    }
out:
    free(per_bucket);
    free(seen);
    return status;
}

/* ---- Many small ones ---- */

typedef struct small {
    const brg_rec *source, *rec;
} small;

static int small_compare(const void *a, const void *b)
{
    const small *x = a, *y = b;
    if (x->source->comm != y->source->comm)
        return x->source->comm < y->source->comm ? -1 : 1;
    return (x->source->step > y->source->step) - (x->source->step < y->source->step);
}

static bool is_tiny(const brg_rec *rec)
{
    return rec->kind == BRG_REC_COLLECTIVE && rec->bytes < BRG_TINY_BYTES &&
           rec->func >= BRG_FUNC_ALL_REDUCE && rec->func <= BRG_FUNC_BROADCAST &&
           !(rec->flags & BRG_REC_CAPTURED);
}

static bool could_join(const small *x, const small *y)
{
    const brg_rec *a = x->source, *b = y->source;
    bool one_group = (a->flags & BRG_REC_GROUPED) && (b->flags & BRG_REC_GROUPED) &&
                     a->channel_first == b->channel_first && a->channel_count == b->channel_count;
    return a->comm == b->comm && a->step + 1 == b->step && a->func == b->func &&
           a->dtype == b->dtype && a->stream == b->stream && x->rec->step == y->rec->step &&
           !one_group && b->t0_ns >= a->t0_ns && b->t0_ns <= a->t1_ns + ADJACENT_NS;
}

/* Several in a row that could be one. */
typedef struct small_run {
    const small *first;
    size_t count;
} small_run;

static int run_kind_compare(const brg_rec *x, const brg_rec *y)
{
    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    if (x->func != y->func)
        return x->func < y->func ? -1 : 1;
    return (x->dtype > y->dtype) - (x->dtype < y->dtype);
}

static int run_compare(const void *a, const void *b)
{
    const brg_rec *x = ((const small_run *)a)->first->rec, *y = ((const small_run *)b)->first->rec;
    int kind = run_kind_compare(x, y);
    return kind ? kind : (x->step > y->step) - (x->step < y->step);
}

/* The sum of runs of one kind, by step. */
static brg_waste runs_sum(const small_run *runs, size_t nruns)
{
    const brg_rec *first = runs->first->rec;
    brg_waste w = {.kind = BRG_WASTE_TINY,
                   .comm = first->comm,
                   .bucket = BRG_NO_BUCKET,
                   .func = first->func,
                   .dtype = first->dtype,
                   .first_bytes = first->bytes};
    double bytes = 0, time_ns = 0;
    size_t count = 0;
    for (size_t i = 0; i < nruns; i++) {
        w.steps += !i || runs[i].first->rec->step != runs[i - 1].first->rec->step;
        count += runs[i].count;
        for (size_t k = 0; k < runs[i].count; k++) {
            bytes += (double)runs[i].first[k].rec->bytes;
            time_ns += time_of(runs[i].first[k].rec);
        }
    }
    w.count = (double)count / w.steps;
    w.runs = (double)nruns / w.steps;
    w.bytes = bytes / w.steps;
    w.time_ns = time_ns / w.steps;
    return w;
}

static brg_status tiny_find(const finder *f)
{
    const brg_trace *source = f->source;
    brg_status status = BRG_OK;
    size_t n = 0, nruns = 0;
    small *list = calloc(source->nrecs + 1, sizeof *list);
    small_run *runs = calloc(source->nrecs / 2 + 1, sizeof *runs);
    if (!list || !runs) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its collectives", source->path);
        goto out;
    }
    for (size_t i = 0; i < source->nrecs; i++)
        if (is_tiny(&source->recs[i]) && f->r->trace.recs[i].step != UINT32_MAX)
            list[n++] = (small){&source->recs[i], &f->r->trace.recs[i]};
    qsort(list, n, sizeof *list, small_compare);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && could_join(&list[end - 1], &list[end]); end++)
            ;
        if (end - i > 1)
            runs[nruns++] = (small_run){&list[i], end - i};
    }
    qsort(runs, nruns, sizeof *runs, run_compare);
    for (size_t i = 0, end; status == BRG_OK && i < nruns; i = end) {
        for (end = i + 1;
             end < nruns && !run_kind_compare(runs[i].first->rec, runs[end].first->rec); end++)
            ;
        const brg_waste w = runs_sum(runs + i, end - i);
        status = waste_add(f->r, &w);
    }
out:
    free(list);
    free(runs);
    return status;
}

brg_status brg_waste_find(brg_recognition *recognition, const brg_pattern *pattern,
                          const brg_trace *source)
{
    brg_status status = BRG_OK;
    const finder f = {recognition, pattern, source};
    if (!recognition->steps_whole)
        return BRG_OK;
    BRG_TRY(again_find(&f, BRG_WASTE_GATHERED), out);
    BRG_TRY(again_find(&f, BRG_WASTE_REDUCED), out);
    BRG_TRY(tiny_find(&f), out);
out:
    return status;
}
