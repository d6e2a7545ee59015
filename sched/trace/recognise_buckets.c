/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "sched/trace/recognise_internal.h"

/* A place in the step: what is done there, and for which bucket. */
typedef struct place {
    const brg_event *event;
    uint32_t bucket;
} place;

typedef struct join {
    const brg_pattern *pattern;
    place *reductions; /* of the cycle */
    size_t nreductions;
    place *gathers; /* of the step */
    size_t ngathers;
    bool *taken; /* by reduction: a gather of this pass belongs to it */
    uint32_t nbuckets;
} join;

static bool is_again(const join *j, const place *x, const place *y)
{
    return j->pattern->by_address && x->event->symbol == y->event->symbol &&
           x->event->rec->func == BRG_FUNC_ALL_REDUCE;
}

/* An all-reduce of the same buffer is the same bucket again; a reduce-scatter of the same address
 * need not be: the buffer that gradients are copied to is used for one layer after another. */
static void reductions_number(join *j)
{
    for (size_t i = 0; i < j->nreductions; i++) {
        place *r = &j->reductions[i];
        r->bucket = BRG_NO_BUCKET;
        for (size_t k = 0; k < i && r->bucket == BRG_NO_BUCKET; k++)
            if (is_again(j, r, &j->reductions[k]))
                r->bucket = j->reductions[k].bucket;
        if (r->bucket == BRG_NO_BUCKET)
            r->bucket = j->nbuckets++;
    }
}

static bool same_elements(const place *x, const place *y)
{
    return brg_event_elements(x->event) == brg_event_elements(y->event);
}

static bool same_buffer(const place *x, const place *y)
{
    return x->event->rec->aux == y->event->rec->aux && x->event->rec->bytes == y->event->rec->bytes;
}

static int address_compare(const void *a, const void *b)
{
    const place *x = *(const place *const *)a, *y = *(const place *const *)b;
    if (x->event->rec->aux != y->event->rec->aux)
        return x->event->rec->aux < y->event->rec->aux ? -1 : 1;
    return (x > y) - (x < y);
}

/* Gathers of parameters that stay where they are: in place of the gradients, or in a buffer of
 * their own with the same layout, so that those of equal size are in the same order by address. */
static brg_status gathers_join_static(join *j)
{
    const place **reductions = calloc(j->nreductions + 1, sizeof(place *));
    place **gathers = calloc(j->ngathers + 1, sizeof(place *));
    brg_status status = BRG_OK;
    if (!reductions || !gathers) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu gathers", j->ngathers);
        goto out;
    }
    for (size_t i = 0; i < j->nreductions; i++)
        reductions[i] = &j->reductions[i];
    for (size_t i = 0; i < j->ngathers; i++)
        gathers[i] = &j->gathers[i];
    qsort(reductions, j->nreductions, sizeof(place *), address_compare);
    qsort(gathers, j->ngathers, sizeof(place *), address_compare);
    for (size_t i = 0; i < j->ngathers; i++)
        for (size_t k = 0; k < j->nreductions && gathers[i]->bucket == BRG_NO_BUCKET; k++)
            if (same_buffer(gathers[i], reductions[k])) {
                gathers[i]->bucket = reductions[k]->bucket;
                j->taken[reductions[k] - j->reductions] = true;
            }
    for (size_t i = 0; i < j->ngathers; i++) {
        if (gathers[i]->bucket != BRG_NO_BUCKET)
            continue;
        if (i && same_buffer(gathers[i], gathers[i - 1])) {
            gathers[i]->bucket = gathers[i - 1]->bucket;
            continue;
        }
        for (size_t k = 0; k < j->nreductions && gathers[i]->bucket == BRG_NO_BUCKET; k++) {
            bool *taken = &j->taken[reductions[k] - j->reductions];
            if (!*taken && same_elements(gathers[i], reductions[k])) {
                gathers[i]->bucket = reductions[k]->bucket;
                *taken = true;
            }
        }
    }
out:
    free(reductions);
    free(gathers);
    return status;
}

/* The gathers [from, to) in the order of the reductions, or in the opposite one. Each takes the
 * first of its size that is left. */
static void gathers_join_ordered(join *j, size_t from, size_t to, bool backwards)
{
    for (size_t i = 0; i < j->nreductions; i++)
        j->taken[i] = false;
    for (size_t i = from; i < to; i++)
        for (size_t k = 0; k < j->nreductions && j->gathers[i].bucket == BRG_NO_BUCKET; k++) {
            size_t r = backwards ? j->nreductions - 1 - k : k;
            if (!j->taken[r] && same_elements(&j->gathers[i], &j->reductions[r])) {
                j->gathers[i].bucket = j->reductions[r].bucket;
                j->taken[r] = true;
            }
        }
}

static void gathers_join_layers(join *j)
{
    size_t from = 0;
    /* Once for every forward, against the order of the reductions, and once for every backward. */
    for (bool backwards = true; from < j->ngathers; backwards = !backwards) {
        size_t left = j->ngathers - from;
        size_t to = from + (left < j->nreductions ? left : j->nreductions);
        gathers_join_ordered(j, from, to, backwards);
        from = to;
    }
}

/* Gathers of what is not reduced are buckets of their own. */
static void gathers_number(join *j)
{
    for (size_t i = 0; i < j->ngathers; i++) {
        place *g = &j->gathers[i];
        for (size_t k = 0; k < i && g->bucket == BRG_NO_BUCKET; k++)
            if (j->pattern->gathers_by_address && g->event->symbol == j->gathers[k].event->symbol)
                g->bucket = j->gathers[k].bucket;
        if (g->bucket == BRG_NO_BUCKET)
            g->bucket = j->nbuckets++;
    }
}

static brg_status join_start(join *j)
{
    const brg_pattern *p = j->pattern;
    j->nreductions = p->cycles.period;
    j->ngathers = p->model->gathers;
    j->reductions = calloc(j->nreductions + 1, sizeof *j->reductions);
    j->gathers = calloc(j->ngathers + 1, sizeof *j->gathers);
    j->taken = calloc(j->nreductions + 1, sizeof *j->taken);
    if (!j->reductions || !j->gathers || !j->taken)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu buckets", j->nreductions);
    for (size_t i = 0; i < j->nreductions; i++)
        j->reductions[i].event = &p->events[p->reductions[p->model->r_first + i]];
    for (size_t i = p->model->e_first, n = 0; i < p->model->e_end; i++)
        if (p->events[i].gather)
            j->gathers[n++] = (place){.event = &p->events[i], .bucket = BRG_NO_BUCKET};
    return BRG_OK;
}

static void describe(const join *j, brg_trace_bucket *buckets)
{
    for (uint32_t id = 0; id < j->nbuckets; id++) {
        buckets[id].id = buckets[id].order = id;
        snprintf(buckets[id].meta.name, sizeof buckets[id].meta.name, "r%u", id);
    }
    for (size_t i = 0; i < j->nreductions; i++) {
        brg_meta_bucket *meta = &buckets[j->reductions[i].bucket].meta;
        meta->grad_bytes = j->reductions[i].event->rec->bytes;
        meta->grad_dtype = j->reductions[i].event->rec->dtype;
        meta->numel = brg_event_elements(j->reductions[i].event);
    }
    for (size_t i = 0; i < j->ngathers; i++) {
        brg_meta_bucket *meta = &buckets[j->gathers[i].bucket].meta;
        meta->param_bytes = j->gathers[i].event->rec->bytes;
        meta->param_dtype = j->gathers[i].event->rec->dtype;
        meta->numel = brg_event_elements(j->gathers[i].event);
    }
}

/* All steps in use are like the model: the same places. */
static void events_number(brg_pattern *p, const join *j)
{
    for (size_t i = 0; i < p->nsteps; i++) {
        const brg_step_span *s = &p->steps[i];
        if (!brg_step_counts(s))
            continue;
        for (size_t r = s->r_first; r < s->r_end; r++)
            p->events[p->reductions[r]].bucket =
                j->reductions[(r - s->r_first) % j->nreductions].bucket;
        for (size_t e = s->e_first, n = 0; e < s->e_end; e++)
            if (p->events[e].gather)
                p->events[e].bucket = j->gathers[n++].bucket;
    }
}

brg_status brg_pattern_buckets(brg_pattern *p, brg_trace_bucket **buckets, size_t *nbuckets)
{
    brg_status status;
    join j = {.pattern = p};
    BRG_TRY(join_start(&j), out);
    reductions_number(&j);
    if (p->interleaved && p->gathers_first)
        gathers_join_layers(&j);
    else if (p->gathers_by_address)
        BRG_TRY(gathers_join_static(&j), out);
    else
        gathers_join_ordered(&j, 0, j.ngathers, p->gathers_first);
    gathers_number(&j);
    *buckets = calloc(j.nbuckets + 1u, sizeof **buckets);
    if (!*buckets) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for %u buckets", j.nbuckets);
        goto out;
    }
    *nbuckets = j.nbuckets;
    describe(&j, *buckets);
    events_number(p, &j);
out:
    free(j.reductions);
    free(j.gathers);
    free(j.taken);
    return status;
}
