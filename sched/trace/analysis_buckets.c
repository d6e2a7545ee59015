/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "brigade/context.h"
#include "sched/trace/analysis_internal.h"
#include "sched/trace/replay.h"

/* Replays that would have to look at more events than this (about a minute) are not made. */
#define REPLAY_WORK_MAX 4e9

static brg_status sample(brg_analysis *a, uint64_t key, brg_metric what, const brg_window *w,
                         double value)
{
    return brg_samples_add(&a->samples, key, what, w->index, value);
}

static double offset(const brg_window *w, uint64_t t)
{
    return t >= w->t0 ? (double)(t - w->t0) : -(double)(w->t0 - t);
}

static bool is_reduction(uint8_t func)
{
    return func == BRG_FUNC_REDUCE_SCATTER || func == BRG_FUNC_ALL_REDUCE;
}

static double ranks_of(const brg_analysis *a, const brg_rec *rec)
{
    const brg_meta_bucket *meta = brg_trace_bucket_get(a->trace, rec->bucket);
    const brg_recognition *r = a->report->recognition;
    if (meta && meta->num_shards)
        return meta->num_shards;
    return r && r->comm.comm == rec->comm && r->comm.size != UINT32_MAX ? r->comm.size
                                                                        : a->trace->world;
}

/* nccl-tests: bytes on the busiest link. */
static double bus_bytes(const brg_analysis *a, const brg_rec *rec)
{
    double n = ranks_of(a, rec), share = (n - 1) / n, bytes = (double)rec->bytes;
    switch (rec->func) {
    case BRG_FUNC_ALL_REDUCE:
        return 2 * share * bytes;
    case BRG_FUNC_BROADCAST:
    case BRG_FUNC_REDUCE:
    case BRG_FUNC_SEND:
    case BRG_FUNC_RECV:
        return bytes;
    default:
        return share * bytes;
    }
}

/* What was issued as one, and so has one beginning and one end. */
typedef struct issue {
    size_t count;
    double bytes, bus_bytes;
} issue;

/* By bytes: so much of their time, and of what it exposes, is one's own. */
static double share_of(const brg_rec *rec, const issue *all)
{
    return all->bytes > 0 ? (double)rec->bytes / all->bytes : 1 / (double)all->count;
}

static brg_status collective_sample(brg_analysis *a, const brg_rec *rec, const issue *all)
{
    bool reduction = is_reduction(rec->func);
    const brg_window *w = brg_analysis_step_numbered(a, rec->step, rec->t0_ns);
    if (!w || rec->bucket == BRG_NO_BUCKET || (!reduction && rec->func != BRG_FUNC_ALL_GATHER))
        return BRG_OK;
    uint64_t key = brg_key(KEY_BUCKET, rec->bucket);
    double time = (double)(rec->t1_ns - rec->t0_ns);
    brg_metric count = rec->func == BRG_FUNC_REDUCE_SCATTER ? M_REDUCE_SCATTERS
                       : rec->func == BRG_FUNC_ALL_REDUCE   ? M_ALL_REDUCES
                                                            : M_ALL_GATHERS;
    brg_status status;
    BRG_TRY(sample(a, key, count, w, 1), out);
    if (rec->aux)
        BRG_TRY(
            sample(a, key, reduction ? M_REDUCE_ISSUED : M_GATHER_ISSUED, w, offset(w, rec->aux)),
            out);
    if (rec->flags & BRG_REC_UNTIMED)
        goto out;
    BRG_TRY(sample(a, key, reduction ? M_REDUCE_START : M_GATHER_START, w, offset(w, rec->t0_ns)),
            out);
    BRG_TRY(sample(a, key, reduction ? M_REDUCE_END : M_GATHER_END, w, offset(w, rec->t1_ns)), out);
    BRG_TRY(sample(a, key, reduction ? M_REDUCE_TIME : M_GATHER_TIME, w, time), out);
    BRG_TRY(sample(a, key, reduction ? M_REDUCE_GROUP : M_GATHER_GROUP, w, (double)all->count),
            out);
    if (time > 0 && all->bus_bytes > 0)
        BRG_TRY(
            sample(a, key, reduction ? M_REDUCE_BUSBW : M_GATHER_BUSBW, w, all->bus_bytes / time),
            out);
    if (a->report->recognition && brg_analysis_computes(a, w)) {
        int64_t t0 = brg_signed_time(a, rec->t0_ns), t1 = brg_signed_time(a, rec->t1_ns);
        double hidden = (double)brg_interval_set_within(&a->compute, t0, t1);
        BRG_TRY(sample(a, key, M_EXPOSED, w, share_of(rec, all) * (time - hidden)), out);
    }
out:
    return status;
}

/* By communicator and by kind. `share`: of its time, which all that was issued as one have. */
static brg_status group_sample(brg_analysis *a, const brg_rec *rec, double share)
{
    const uint64_t keys[] = {brg_key(KEY_COMM, rec->comm), brg_key(KEY_FUNC, rec->func)};
    const brg_window *w = brg_analysis_step_numbered(a, rec->step, rec->t0_ns);
    brg_status status = BRG_OK;
    for (size_t i = 0; w && i < 2; i++) {
        BRG_TRY(sample(a, keys[i], M_COUNT, w, 1), out);
        BRG_TRY(sample(a, keys[i], M_BYTES, w, (double)rec->bytes), out);
        if (!(rec->flags & BRG_REC_UNTIMED))
            BRG_TRY(sample(a, keys[i], M_TIME, w, share * (double)(rec->t1_ns - rec->t0_ns)), out);
    }
out:
    return status;
}

/* Puts those next to each other that were issued as one. */
static int coll_compare(const void *a, const void *b)
{
    const brg_rec *x = *(const brg_rec *const *)a, *y = *(const brg_rec *const *)b;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    if (x->comm != y->comm)
        return x->comm < y->comm ? -1 : 1;
    if (x->t0_ns != y->t0_ns)
        return x->t0_ns < y->t0_ns ? -1 : 1;
    if (x->t1_ns != y->t1_ns)
        return x->t1_ns < y->t1_ns ? -1 : 1;
    return (x->flags & BRG_REC_GROUPED) - (y->flags & BRG_REC_GROUPED);
}

static bool issued_as_one(const brg_rec *x, const brg_rec *y)
{
    return (x->flags & y->flags & BRG_REC_GROUPED) && !coll_compare(&x, &y);
}

static brg_status collectives_sample(brg_analysis *a)
{
    const brg_trace *trace = a->trace;
    brg_status status = BRG_OK;
    const brg_rec **colls = calloc(trace->nrecs + 1, sizeof *colls);
    size_t ncolls = 0;
    if (!colls)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its collectives", trace->path);
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind == BRG_REC_COLLECTIVE)
            colls[ncolls++] = &trace->recs[i];
    if (!ncolls) {
        status =
            brg_fail(BRG_ERR_NO_DATA, "%s: no collectives in the trace (%zu records, %zu steps)",
                     trace->path, trace->nrecs, a->nwindows);
        goto out;
    }
    qsort(colls, ncolls, sizeof *colls, coll_compare);
    for (size_t i = 0, end; i < ncolls; i = end) {
        issue all = {0};
        for (end = i; end == i || (end < ncolls && issued_as_one(colls[i], colls[end])); end++) {
            all.count++;
            all.bytes += (double)colls[end]->bytes;
            all.bus_bytes += bus_bytes(a, colls[end]);
        }
        for (size_t k = i; k < end; k++) {
            BRG_TRY(collective_sample(a, colls[k], &all), out);
            BRG_TRY(group_sample(a, colls[k], share_of(colls[k], &all)), out);
        }
    }
out:
    free(colls);
    return status;
}

static brg_status wait_sample(brg_analysis *a, const brg_rec *rec)
{
    const brg_window *w = brg_analysis_step_at(a, rec->t0_ns);
    if (!w || rec->bucket == BRG_NO_BUCKET)
        return BRG_OK;
    uint64_t key = brg_key(KEY_BUCKET, rec->bucket);
    uint64_t t1 = rec->t1_ns < w->t1 ? rec->t1_ns : w->t1;
    double time = (double)(t1 - rec->t0_ns);
    brg_status status = sample(a, key, M_WAIT, w, time);
    if (status == BRG_OK && is_reduction(rec->func))
        status = sample(a, key, M_REDUCE_WAIT, w, time);
    if (status == BRG_OK && rec->func == BRG_FUNC_ALL_GATHER)
        status = sample(a, key, M_GATHER_WAIT, w, time);
    return status;
}

/* A collective without a bucket. */
static brg_status other_sample(brg_analysis *a, const brg_rec *rec)
{
    const brg_window *w = brg_analysis_step_at(a, rec->t0_ns);
    if (!w || rec->bucket != BRG_NO_BUCKET || (rec->flags & BRG_REC_UNTIMED))
        return BRG_OK;
    uint64_t t1 = rec->t1_ns < w->t1 ? rec->t1_ns : w->t1;
    return sample(a, brg_key(KEY_OTHER, 0), M_TIME, w, (double)(t1 - rec->t0_ns));
}

static brg_status named_sample(brg_analysis *a, const brg_rec *rec)
{
    const brg_window *w = brg_analysis_step_at(a, rec->t0_ns);
    if (!w)
        return BRG_OK;
    uint32_t name = rec->aux < a->trace->nnames ? (uint32_t)rec->aux : 0;
    uint32_t span = rec->flags & (uint32_t)~BRG_REC_GRAPH;
    uint32_t kind =
        span == BRG_COMPUTE_FORWARD || span == BRG_COMPUTE_BACKWARD ? span : BRG_COMPUTE_OTHER;
    uint64_t key = rec->kind == BRG_REC_OPTIMIZER ? brg_key(KEY_OPTIMIZER, name)
                   : rec->kind == BRG_REC_NORM    ? brg_key(KEY_NORM, 0)
                                                  : brg_key(KEY_COMPUTE, kind);
    uint64_t t1 = rec->t1_ns < w->t1 ? rec->t1_ns : w->t1;
    return sample(a, key, M_TIME, w, (double)(t1 - rec->t0_ns));
}

static brg_status spans_sample(brg_analysis *a)
{
    brg_status status = BRG_OK;
    for (size_t i = 0; status == BRG_OK && i < a->trace->nrecs; i++) {
        const brg_rec *rec = &a->trace->recs[i];
        switch (rec->kind) {
        case BRG_REC_READY: {
            const brg_window *w = brg_analysis_step_numbered(a, rec->step, rec->t1_ns);
            if (w && rec->bucket != BRG_NO_BUCKET && rec->func != BRG_FUNC_ALL_GATHER)
                status =
                    sample(a, brg_key(KEY_BUCKET, rec->bucket), M_READY, w, offset(w, rec->t1_ns));
            break;
        }
        case BRG_REC_WAIT:
            status = wait_sample(a, rec);
            break;
        case BRG_REC_COLLECTIVE:
            status = other_sample(a, rec);
            break;
        case BRG_REC_COMPUTE:
        case BRG_REC_OPTIMIZER:
        case BRG_REC_NORM:
            status = named_sample(a, rec);
            break;
        default:
            break;
        }
    }
    return status;
}

/* What stands between reductions and updates (norm, clip factor), as the step sees it. */
static brg_status update_delays_sample(brg_analysis *a)
{
    size_t n = a->end - a->first;
    uint64_t *reduced = calloc(2 * n, sizeof *reduced), *updated = reduced + n;
    brg_status status = BRG_OK;
    if (!reduced)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", a->trace->path, n);
    for (size_t i = 0; i < a->trace->nrecs; i++) {
        const brg_rec *rec = &a->trace->recs[i];
        bool reduction = rec->kind == BRG_REC_COLLECTIVE && is_reduction(rec->func) &&
                         rec->bucket != BRG_NO_BUCKET && !(rec->flags & BRG_REC_UNTIMED);
        if (!reduction && rec->kind != BRG_REC_OPTIMIZER)
            continue;
        const brg_window *w = reduction ? brg_analysis_step_numbered(a, rec->step, rec->t0_ns)
                                        : brg_analysis_step_at(a, rec->t0_ns);
        if (!w)
            continue;
        size_t at = w->index - a->first;
        if (reduction && rec->t1_ns > reduced[at])
            reduced[at] = rec->t1_ns;
        else if (!reduction && (!updated[at] || rec->t0_ns < updated[at]))
            updated[at] = rec->t0_ns;
    }
    for (size_t i = 0; status == BRG_OK && i < n; i++)
        if (reduced[i] && updated[i])
            status = sample(a, brg_key(KEY_RANK, 0), M_UPDATE_DELAY, &a->windows[a->first + i],
                            (double)(int64_t)(updated[i] - reduced[i]));
    free(reduced);
    return status;
}

/* ---- Which buckets there are ---- */

static int id_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Described or communicated; in report->buckets, by id. */
static brg_status buckets_list(brg_analysis *a)
{
    const brg_trace *trace = a->trace;
    brg_rank_report *report = a->report;
    size_t n = 0;
    uint32_t *ids = calloc(trace->nbuckets + trace->nrecs + 1, sizeof *ids);
    if (!ids)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its buckets", trace->path);
    for (size_t i = 0; i < trace->nbuckets; i++)
        ids[n++] = trace->buckets[i].id;
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind == BRG_REC_COLLECTIVE && trace->recs[i].bucket != BRG_NO_BUCKET)
            ids[n++] = trace->recs[i].bucket;
    qsort(ids, n, sizeof *ids, id_compare);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!kept || ids[i] != ids[kept - 1])
            ids[kept++] = ids[i];
    report->buckets = calloc(kept + 1, sizeof *report->buckets);
    for (size_t i = 0; report->buckets && i < kept; i++) {
        brg_bucket_report *bucket = &report->buckets[i];
        const brg_meta_bucket *meta = brg_trace_bucket_get(trace, ids[i]);
        bucket->id = ids[i];
        bucket->described = meta != NULL;
        if (meta)
            bucket->meta = *meta;
    }
    free(ids);
    if (!report->buckets)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu buckets", trace->path, kept);
    report->nbuckets = kept;
    return BRG_OK;
}

/* ---- What the step loses to each ---- */

static brg_status lost_sample(brg_analysis *a, uint64_t key, const double *recorded,
                              const double *without)
{
    brg_status status = BRG_OK;
    for (size_t i = 0; status == BRG_OK && i < a->end - a->first; i++)
        status =
            sample(a, key, M_EXPOSED, &a->windows[a->first + i], fmax(recorded[i] - without[i], 0));
    return status;
}

static brg_status replay_all(brg_analysis *a, brg_replay *replay, double *recorded, double *without)
{
    brg_status status = BRG_OK;
    brg_replay_run(replay, BRG_REPLAY_NOTHING, 0, recorded);
    for (size_t i = 0; i < a->end - a->first; i++) {
        const brg_window *w = &a->windows[a->first + i];
        double length = (double)(w->t1 - w->t0);
        if (length > 0)
            BRG_TRY(sample(a, brg_key(KEY_RANK, 0), M_REPLAY_ERROR, w,
                           fabs(recorded[i] - length) / length),
                    out);
    }
    brg_replay_run(replay, BRG_REPLAY_ALL, 0, without);
    BRG_TRY(lost_sample(a, brg_key(KEY_RANK, 0), recorded, without), out);
    if ((double)a->report->nbuckets * (double)brg_replay_events(replay) > REPLAY_WORK_MAX)
        goto out;
    for (size_t i = 0; i < a->report->nbuckets; i++) {
        uint32_t id = a->report->buckets[i].id;
        brg_replay_run(replay, BRG_REPLAY_BUCKET, id, without);
        BRG_TRY(lost_sample(a, brg_key(KEY_BUCKET, id), recorded, without), out);
    }
out:
    return status;
}

static brg_status replays_sample(brg_analysis *a)
{
    size_t n = a->end - a->first;
    brg_replay *replay = NULL;
    brg_replay_window *windows = calloc(n, sizeof *windows);
    double *lengths = calloc(2 * n, sizeof *lengths);
    brg_status status = BRG_OK;
    if (!windows || !lengths) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", a->trace->path, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        windows[i] = (brg_replay_window){.t0_ns = a->windows[a->first + i].t0,
                                         .t1_ns = a->windows[a->first + i].t1};
    BRG_TRY(brg_replay_create(a->trace->recs, a->trace->nrecs, a->windows[a->first].stream, windows,
                              n, &replay),
            out);
    a->report->waits_recorded = brg_replay_waits(replay) > 0;
    if (a->report->waits_recorded)
        BRG_TRY(replay_all(a, replay, lengths, lengths + n), out);
out:
    brg_replay_destroy(replay);
    free(windows);
    free(lengths);
    return status;
}

brg_status brg_analysis_buckets(brg_analysis *a)
{
    brg_status status;
    BRG_TRY(collectives_sample(a), out);
    BRG_TRY(spans_sample(a), out);
    BRG_TRY(update_delays_sample(a), out);
    BRG_TRY(buckets_list(a), out);
    BRG_TRY(replays_sample(a), out);
    if (a->report->waits_recorded)
        a->report->exposed_from = BRG_EXPOSED_WAITS;
    else if (a->report->recognition && a->report->compute_known)
        a->report->exposed_from = BRG_EXPOSED_KERNELS;
out:
    return status;
}
