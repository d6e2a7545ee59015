/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/recognise.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/trace/recognise_internal.h"

/* Step number of what belongs to no step in use. */
#define NO_STEP UINT32_MAX

bool brg_recognise_needed(const brg_trace *trace)
{
    const char *source = brg_trace_info_get(trace, "source");
    if (!source || strcmp(source, "shim") != 0)
        return false;
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind == BRG_REC_STEP)
            return false;
    return true;
}

brg_comm_info brg_comm_info_get(const brg_trace *trace, uint32_t comm)
{
    brg_comm_info info = {.comm = comm, .size = UINT32_MAX, .rank = UINT32_MAX};
    char key[32];
    snprintf(key, sizeof key, "comm %" PRIu32, comm);
    const char *text = brg_trace_info_get(trace, key);
    const char *hash = text ? strstr(text, "hash=") : NULL;
    const char *size = text ? strstr(text, "size=") : NULL;
    const char *rank = text ? strstr(text, "rank=") : NULL;
    long number;
    if (hash)
        info.hash = strtoull(hash + strlen("hash="), NULL, 16);
    if (size && (number = strtol(size + strlen("size="), NULL, 10)) > 0)
        info.size = (uint32_t)number;
    if (rank && (number = strtol(rank + strlen("rank="), NULL, 10)) >= 0)
        info.rank = (uint32_t)number;
    return info;
}

static bool is_reduction(const brg_rec *rec)
{
    return rec->func == BRG_FUNC_ALL_REDUCE || rec->func == BRG_FUNC_REDUCE_SCATTER;
}

static bool is_collective(const brg_rec *rec)
{
    return rec->kind == BRG_REC_COLLECTIVE && rec->func != BRG_FUNC_SEND &&
           rec->func != BRG_FUNC_RECV && rec->func != BRG_FUNC_PUT;
}

/* ---- Which communicator ---- */

/* By communicator, then by what makes collectives the same. */
static int same_compare(const brg_rec *x, const brg_rec *y, bool by_address)
{
    if (x->func != y->func)
        return x->func < y->func ? -1 : 1;
    if (x->dtype != y->dtype)
        return x->dtype < y->dtype ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (by_address && x->aux != y->aux)
        return x->aux < y->aux ? -1 : 1;
    return 0;
}

static int comm_compare(const void *a, const void *b)
{
    const brg_rec *x = *(const brg_rec *const *)a, *y = *(const brg_rec *const *)b;
    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    int same = same_compare(x, y, true);
    return same ? same : (x->seq > y->seq) - (x->seq < y->seq);
}

/* The communicator with most bytes in reductions that recur, each counted once; where none recur,
 * with most bytes. False: there are no reductions. */
static brg_status comm_choose(const brg_trace *trace, uint32_t *comm, bool *found)
{
    const brg_rec **list = calloc(trace->nrecs + 1, sizeof *list);
    size_t n = 0;
    double best = 0, best_all = 0;
    bool recurs = false;
    if (!list)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its collectives", trace->path);
    for (size_t i = 0; i < trace->nrecs; i++)
        if (is_collective(&trace->recs[i]) && is_reduction(&trace->recs[i]))
            list[n++] = &trace->recs[i];
    qsort(list, n, sizeof *list, comm_compare);
    *found = n > 0;
    for (size_t i = 0, end; i < n; i = end) {
        double once = 0, all = 0;
        size_t same = i;
        for (end = i; end < n && list[end]->comm == list[i]->comm; end++) {
            same = same_compare(list[end], list[same], true) ? end : same;
            all += (double)list[end]->bytes;
            once += end == same + 1 ? (double)list[end]->bytes : 0;
        }
        if (once > best || (!recurs && !(once > 0) && all > best_all)) {
            *comm = list[i]->comm;
            best = once;
            best_all = all;
            recurs = once > 0;
        }
    }
    free(list);
    return BRG_OK;
}

/* ---- Its events ---- */

static int number_compare(const void *a, const void *b)
{
    const brg_rec *x = ((const brg_event *)a)->rec, *y = ((const brg_event *)b)->rec;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

static int event_compare(const void *a, const void *b)
{
    const brg_event *x = *(brg_event *const *)a, *y = *(brg_event *const *)b;
    int same = same_compare(x->rec, y->rec, true);
    return same ? same : (x > y) - (x < y);
}

static brg_status symbols_give(brg_event *events, size_t n, const char *path)
{
    brg_event **sorted = calloc(n + 1, sizeof *sorted);
    if (!sorted)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu collectives", path, n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &events[i];
    qsort(sorted, n, sizeof *sorted, event_compare);
    for (size_t i = 0; i < n; i++) {
        const brg_event *before = i ? sorted[i - 1] : NULL;
        sorted[i]->symbol =
            before ? before->symbol + !!same_compare(before->rec, sorted[i]->rec, true) : 1;
        sorted[i]->loose =
            before ? before->loose + !!same_compare(before->rec, sorted[i]->rec, false) : 1;
    }
    free(sorted);
    return BRG_OK;
}

static bool issued_as_one(const brg_rec *x, const brg_rec *y)
{
    return (x->flags & y->flags & BRG_REC_GROUPED) && x->stream == y->stream &&
           x->t0_ns == y->t0_ns && x->t1_ns == y->t1_ns;
}

/* Collectives of a group call have numbers in a row. */
static void events_time(brg_event *events, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        const brg_rec *first = events[i].rec;
        double time = first->flags & BRG_REC_UNTIMED ? 0 : (double)(first->t1_ns - first->t0_ns);
        double bytes = 0;
        for (end = i; end == i || (end < n && issued_as_one(first, events[end].rec)); end++)
            bytes += (double)events[end].rec->bytes;
        for (size_t k = i; k < end; k++)
            events[k].time_ns = bytes > 0 ? time * (double)events[k].rec->bytes / bytes : time;
    }
}

static brg_status events_collect(const brg_trace *trace, uint32_t comm, brg_pattern *p)
{
    p->events = calloc(trace->nrecs + 1, sizeof *p->events);
    if (!p->events)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its collectives", trace->path);
    for (size_t i = 0; i < trace->nrecs; i++) {
        const brg_rec *rec = &trace->recs[i];
        if (!is_collective(rec) || rec->comm != comm)
            continue;
        p->events[p->nevents++] = (brg_event){
            .rec = rec,
            .index = i,
            .bucket = BRG_NO_BUCKET,
            .reduction = is_reduction(rec) && !(rec->flags & BRG_REC_CAPTURED),
            .gather = rec->func == BRG_FUNC_ALL_GATHER && !(rec->flags & BRG_REC_CAPTURED),
        };
        p->timed |= !(rec->flags & BRG_REC_UNTIMED);
    }
    qsort(p->events, p->nevents, sizeof *p->events, number_compare);
    for (size_t i = 1; i < p->nevents; i++)
        p->events[i].lost = p->events[i].rec->step > p->events[i - 1].rec->step
                                ? p->events[i].rec->step - p->events[i - 1].rec->step - 1
                                : 0;
    events_time(p->events, p->nevents);
    return symbols_give(p->events, p->nevents, trace->path);
}

/* ---- The trace with steps and buckets ---- */

/* By the times that the collectives have in the trace, which may be those of kernels: by another
 * clock, and not of all streams alike. `host`: those of calls, else of the device. */
static uint64_t first_time(const brg_recognition *r, const brg_pattern *p, size_t e_first,
                           size_t e_end, bool host)
{
    uint64_t begin = UINT64_MAX;
    for (size_t e = e_first; e < e_end; e++) {
        const brg_rec *rec = &r->trace.recs[p->events[e].index];
        if (!(rec->flags & BRG_REC_UNTIMED) == !host && rec->t0_ns < begin)
            begin = rec->t0_ns;
    }
    return begin;
}

/* A step that is left out. */
static void step_skip(brg_recognition *r, const brg_step_span *s)
{
    bool whole = s->closed && !s->lossy;
    r->steps_lossy += !whole;
    r->steps_unlike += whole && s->unlike;
    r->steps_untimed += whole && !s->unlike;
}

static void steps_write(brg_recognition *r, const brg_pattern *p)
{
    brg_trace *trace = &r->trace;
    for (size_t i = 0; i < p->nsteps; i++) {
        const brg_step_span *s = &p->steps[i];
        if (!s->closed && !s->lossy && i + 1 == p->nsteps && s->r_end == p->nreductions) {
            r->unfinished = p->nevents - s->e_first;
            continue;
        }
        if (!brg_step_counts(s)) {
            step_skip(r, s);
            continue;
        }
        uint32_t number = r->steps_whole++;
        for (size_t e = s->e_first; e < s->e_end; e++) {
            brg_rec *rec = &trace->recs[p->events[e].index];
            rec->step = number;
            rec->bucket = p->events[e].bucket;
            r->recognised++;
        }
        size_t next_end = i + 1 < p->nsteps ? p->steps[i + 1].e_end : 0;
        if (next_end <= s->e_end)
            next_end = s->e_end + 1;
        trace->recs[trace->nrecs++] = (brg_rec){
            .kind = BRG_REC_STEP,
            .t0_ns = first_time(r, p, s->e_first, s->e_end, s->host),
            .t1_ns = first_time(r, p, s->e_end, next_end, s->host),
            .step = number,
            .bucket = BRG_NO_BUCKET,
        };
    }
    r->steps_lossy += (uint32_t)p->nlost;
}

static int step_compare(const void *a, const void *b)
{
    const brg_rec *x = a, *y = b;
    return (x->t0_ns > y->t0_ns) - (x->t0_ns < y->t0_ns);
}

/* Everything else belongs to the step in which it began. */
static void others_number(brg_recognition *r, size_t nrecs)
{
    brg_rec *steps = r->trace.recs + nrecs;
    qsort(steps, r->steps_whole, sizeof *steps, step_compare);
    for (size_t i = 0; i < nrecs; i++) {
        brg_rec *rec = &r->trace.recs[i];
        if (rec->step != NO_STEP)
            continue;
        size_t low = 0, high = r->steps_whole;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (steps[middle].t0_ns <= rec->t0_ns)
                low = middle + 1;
            else
                high = middle;
        }
        if (low && rec->t0_ns < steps[low - 1].t1_ns && rec->comm != r->comm.comm)
            rec->step = steps[low - 1].step;
    }
}

static int call_compare(const void *a, const void *b)
{
    const brg_rec *x = *(brg_rec *const *)a, *y = *(brg_rec *const *)b;
    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->func != y->func)
        return x->func < y->func ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* A copy of the records with the time of the host call in aux instead of the address, as in other
 * traces, and without step numbers. */
static brg_status records_copy(const brg_trace *source, brg_recognition *r)
{
    brg_status status = BRG_OK;
    size_t n = 0;
    brg_rec *recs = malloc((2 * source->nrecs + 1) * sizeof *recs);
    brg_rec **sorted = calloc(source->nrecs + 1, sizeof *sorted);
    if (!recs || !sorted) {
        free(recs);
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its records", source->path);
        goto out;
    }
    if (source->nrecs)
        memcpy(recs, source->recs, source->nrecs * sizeof *recs);
    r->trace.recs = recs;
    for (size_t i = 0; i < source->nrecs; i++)
        if (recs[i].kind == BRG_REC_COLLECTIVE || recs[i].kind == BRG_REC_CALL)
            sorted[n++] = &recs[i];
    qsort(sorted, n, sizeof *sorted, call_compare);
    for (size_t i = 0; i < n; i++) {
        brg_rec *rec = sorted[i];
        const brg_rec *call = i + 1 < n ? sorted[i + 1] : NULL;
        if (rec->kind != BRG_REC_COLLECTIVE)
            continue;
        rec->aux = 0;
        if (rec->flags & BRG_REC_UNTIMED)
            rec->aux = rec->t0_ns;
        else if (call && call->kind == BRG_REC_CALL && call->comm == rec->comm &&
                 call->step == rec->step && call->func == rec->func)
            rec->aux = call->t0_ns;
        r->untimed += (rec->flags & BRG_REC_UNTIMED) && !(rec->flags & BRG_REC_CAPTURED);
        r->captured += !!(rec->flags & BRG_REC_CAPTURED);
    }
    for (size_t i = 0; i < source->nrecs; i++)
        recs[i].step = NO_STEP;
out:
    free(sorted);
    return status;
}

static brg_status recognise_comm(const brg_trace *source, uint32_t repeats, brg_recognition *r,
                                 brg_pattern *p)
{
    brg_status status;
    BRG_TRY(events_collect(source, r->comm.comm, p), out);
    r->collectives = p->nevents;
    BRG_TRY(brg_pattern_find(p, repeats, source->path), out);
    if (!p->model) {
        for (size_t i = 0; i < p->nsteps; i++)
            step_skip(r, &p->steps[i]);
        goto out;
    }
    BRG_TRY(brg_pattern_buckets(p, &r->trace.buckets, &r->trace.nbuckets), out);
    for (size_t i = 0; i < r->trace.nbuckets; i++)
        r->trace.buckets[i].meta.num_shards =
            r->comm.size != UINT32_MAX ? r->comm.size : source->world;
    r->found = true;
    r->by_address = p->by_address;
    r->gathers_first = p->gathers_first;
    r->micro_steps = (uint32_t)p->micro_steps;
    r->micro_steps_known = p->micro_steps_known;
    r->early = p->nearly;
    steps_write(r, p);
    others_number(r, source->nrecs);
    BRG_TRY(brg_waste_find(r, p, source), out);
out:
    return status;
}

brg_status brg_recognise(const brg_trace *source, const brg_recognise_options *options,
                         brg_recognition *r)
{
    brg_status status;
    bool found = options->comm_given;
    uint32_t comm = options->comm;
    brg_pattern pattern = {0};
    *r = (brg_recognition){.trace = *source};
    r->trace.recs = NULL;
    r->trace.buckets = NULL;
    r->trace.nbuckets = 0;
    BRG_TRY(records_copy(source, r), out);
    BRG_TRY(brg_recognise_kernels(r), out);
    if (!found)
        BRG_TRY(comm_choose(source, &comm, &found), out);
    if (found) {
        r->comm = brg_comm_info_get(source, comm);
        BRG_TRY(recognise_comm(source, options->repeats, r, &pattern), out);
    }
out:
    brg_pattern_free(&pattern);
    if (status != BRG_OK)
        brg_recognition_free(r);
    return status;
}

void brg_recognition_free(brg_recognition *r)
{
    free(r->trace.recs);
    free(r->trace.buckets);
    free(r->waste);
    *r = (brg_recognition){0};
}
