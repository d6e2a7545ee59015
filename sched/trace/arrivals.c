/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/arrivals.h"

#include <math.h>
#include <stdlib.h>

#include "sched/trace/samples.h"

/* Fewer shared collectives than this say nothing about drift. */
enum { DRIFT_MIN = 12 };
/* This part of a collective spent waiting makes its last rank the reason. */
#define LATE_SHARE 0.5

/* Keys and metrics of the samples. */
enum { KEY_RANK = 0, KEY_BUCKET = 1 };
enum { M_LATE, M_SPREAD, M_TRANSFER, M_WAIT };

/* A collective of one of the lists, in the order of collectives. */
typedef struct entry {
    const brg_arrival *op;
    uint32_t list;
} entry;

/* All ranks of one collective: entries [first, end). */
typedef struct meeting {
    size_t first, end;
} meeting;

typedef struct comparison {
    brg_arrival_list *lists;
    size_t nlists;
    brg_arrivals *out;
    entry *entries;
    meeting *meetings;
    size_t nmeetings;
    bool *fitted;
    uint64_t origin;
    double *values, *places; /* as many as meetings */
    brg_samples samples;
} comparison;

/* ---- Lists ---- */

static bool is_meeting(const brg_rec *rec)
{
    return rec->kind == BRG_REC_COLLECTIVE && !(rec->flags & BRG_REC_UNTIMED) &&
           (rec->func == BRG_FUNC_ALL_REDUCE || rec->func == BRG_FUNC_REDUCE_SCATTER ||
            rec->func == BRG_FUNC_ALL_GATHER || rec->func == BRG_FUNC_ALL_TO_ALL);
}

brg_status brg_arrival_list_make(const brg_trace *source, const brg_rank_report *report,
                                 brg_arrival_list *list)
{
    const brg_recognition *r = report->recognition;
    brg_comm_info info = {.comm = UINT32_MAX};
    *list = (brg_arrival_list){.rank = source->rank};
    if (!r)
        return BRG_OK;
    list->at = calloc(source->nrecs + 1, sizeof *list->at);
    if (!list->at)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its collectives", source->path);
    for (size_t i = 0; i < source->nrecs; i++) {
        const brg_rec *rec = &source->recs[i], *known = &r->trace.recs[i];
        if (!is_meeting(rec))
            continue;
        if (rec->comm != info.comm)
            info = brg_comm_info_get(source, rec->comm);
        if (!info.hash)
            continue;
        list->at[list->count++] = (brg_arrival){
            .hash = info.hash,
            .number = rec->step,
            .bucket = known->bucket,
            .bytes = rec->bytes,
            .t0_ns = rec->t0_ns,
            .t1_ns = rec->t1_ns,
            .func = rec->func,
            .used = known->step != UINT32_MAX,
        };
    }
    return BRG_OK;
}

void brg_arrival_list_free(brg_arrival_list *list)
{
    free(list->at);
    *list = (brg_arrival_list){0};
}

/* ---- Meetings ---- */

static int entry_compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->op->hash != y->op->hash)
        return x->op->hash < y->op->hash ? -1 : 1;
    if (x->op->number != y->op->number)
        return x->op->number < y->op->number ? -1 : 1;
    return (x->list > y->list) - (x->list < y->list);
}

/* How many lists know the communicator of the entries [first, ...). */
static size_t members_count(const comparison *c, size_t first, size_t end, bool *member)
{
    size_t n = 0;
    for (size_t i = 0; i < c->nlists; i++)
        member[i] = false;
    for (size_t i = first; i < end; i++) {
        n += !member[c->entries[i].list];
        member[c->entries[i].list] = true;
    }
    return n;
}

static void meetings_of_comm(comparison *c, size_t first, size_t end, size_t members)
{
    for (size_t i = first, next; i < end; i = next) {
        const brg_arrival *op = c->entries[i].op;
        bool same = true;
        for (next = i; next < end && c->entries[next].op->number == op->number; next++)
            same = same && c->entries[next].op->func == op->func &&
                   c->entries[next].op->bytes == op->bytes;
        if (next - i != members)
            continue; /* of one rank it was lost */
        if (same)
            c->meetings[c->nmeetings++] = (meeting){i, next};
        else
            c->out->unlike++;
    }
}

static brg_status meetings_find(comparison *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->nlists; i++)
        n += c->lists[i].count;
    bool *member = calloc(c->nlists + 1, sizeof *member);
    c->entries = calloc(n + 1, sizeof *c->entries);
    c->meetings = calloc(n + 1, sizeof *c->meetings);
    c->values = calloc(n + 1, sizeof *c->values);
    c->places = calloc(n + 1, sizeof *c->places);
    if (!member || !c->entries || !c->meetings || !c->values || !c->places) {
        free(member);
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to compare %zu collectives", n);
    }
    n = 0;
    for (uint32_t list = 0; list < c->nlists; list++)
        for (size_t i = 0; i < c->lists[list].count; i++)
            c->entries[n++] = (entry){&c->lists[list].at[i], list};
    qsort(c->entries, n, sizeof *c->entries, entry_compare);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && c->entries[end].op->hash == c->entries[i].op->hash; end++)
            ;
        size_t members = members_count(c, i, end, member);
        if (members > 1)
            meetings_of_comm(c, i, end, members);
    }
    free(member);
    c->origin = c->nmeetings ? c->entries[c->meetings[0].first].op->t1_ns : 0;
    c->out->matched = c->nmeetings;
    return BRG_OK;
}

/* ---- Clocks ---- */

static double since_origin(const comparison *c, uint64_t t)
{
    return (double)(int64_t)(t - c->origin);
}

/* On the clock of the first rank. */
static double aligned(const comparison *c, uint32_t list, uint64_t t)
{
    const brg_rank_arrivals *rank = &c->out->ranks[list];
    double at = since_origin(c, t);
    return at - rank->offset_ns - rank->drift * at;
}

static int value_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, value_compare);
    return n ? values[(n - 1) / 2] : 0;
}

/* This rank's end and that of one whose clock is known; false: they do not meet here. */
static bool ends_get(const comparison *c, const meeting *m, uint32_t list, double *mine,
                     double *known)
{
    bool here = false, there = false;
    for (size_t i = m->first; i < m->end; i++) {
        const entry *e = &c->entries[i];
        if (e->list == list) {
            *mine = since_origin(c, e->op->t1_ns);
            here = true;
        } else if (!there && c->fitted[e->list]) {
            *known = aligned(c, e->list, e->op->t1_ns);
            there = true;
        }
    }
    return here && there;
}

static bool meets_known(const comparison *c, uint32_t list)
{
    double mine, known;
    for (size_t i = 0; i < c->nmeetings; i++)
        if (ends_get(c, &c->meetings[i], list, &mine, &known))
            return true;
    return false;
}

typedef struct point {
    double x, y;
} point;

static int point_compare(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return (x->x > y->x) - (x->x < y->x);
}

/* The median slope between points half the run apart, and the median offset: a few odd ends do not
 * bend the line. */
static brg_status clock_fit(comparison *c, uint32_t list)
{
    brg_rank_arrivals *rank = &c->out->ranks[list];
    point *points = calloc(c->nmeetings + 1, sizeof *points);
    size_t n = 0;
    double mine, known;
    if (!points)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to fit a clock");
    for (size_t i = 0; i < c->nmeetings; i++)
        if (ends_get(c, &c->meetings[i], list, &mine, &known))
            points[n++] = (point){mine, mine - known};
    qsort(points, n, sizeof *points, point_compare);
    if (n >= DRIFT_MIN) {
        size_t half = n / 2, slopes = 0;
        for (size_t i = 0; i + half < n; i++)
            if (points[i + half].x > points[i].x)
                c->values[slopes++] =
                    (points[i + half].y - points[i].y) / (points[i + half].x - points[i].x);
        rank->drift = median_of(c->values, slopes);
    }
    for (size_t i = 0; i < n; i++)
        c->values[i] = points[i].y - rank->drift * points[i].x;
    rank->offset_ns = median_of(c->values, n);
    for (size_t i = 0; i < n; i++)
        c->values[i] = fabs(points[i].y - rank->drift * points[i].x - rank->offset_ns);
    qsort(c->values, n, sizeof *c->values, value_compare);
    rank->error_ns = n ? c->values[n - 1 - n / 20] : 0;
    rank->shared = n;
    c->out->error_ns = fmax(c->out->error_ns, rank->error_ns);
    c->fitted[list] = true;
    free(points);
    return BRG_OK;
}

/* First those that meet the first rank, then those that meet them, and so on. */
static brg_status clocks_fit(comparison *c)
{
    brg_status status = BRG_OK;
    c->fitted = calloc(c->nlists + 1, sizeof *c->fitted);
    if (!c->fitted)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu clocks", c->nlists);
    c->fitted[0] = true;
    c->out->ranks[0].shared = c->nmeetings;
    for (bool more = true; status == BRG_OK && more;) {
        more = false;
        for (uint32_t i = 1; status == BRG_OK && i < c->nlists; i++)
            if (!c->fitted[i] && meets_known(c, i)) {
                status = clock_fit(c, i);
                more = true;
            }
    }
    return status;
}

/* ---- Who came last ---- */

static brg_status meeting_sample(comparison *c, const meeting *m)
{
    size_t n = m->end - m->first;
    double first = INFINITY, last = -INFINITY;
    uint32_t last_list = 0, bucket = c->entries[m->first].op->bucket;
    brg_status status = BRG_OK;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &c->entries[m->first + i];
        if (!c->fitted[e->list] || !e->op->used)
            return BRG_OK;
        bucket = e->op->bucket == bucket ? bucket : BRG_NO_BUCKET;
        double start = aligned(c, e->list, e->op->t0_ns);
        c->values[i] = start;
        c->places[i] = aligned(c, e->list, e->op->t1_ns);
        first = fmin(first, start);
        if (start > last) {
            last = start;
            last_list = e->list;
        }
    }
    double middle = median_of(c->values, n), end = median_of(c->places, n);
    uint64_t of_rank = (uint64_t)KEY_RANK << 32 | last_list;
    if (last - middle > c->out->error_ns)
        BRG_TRY(brg_samples_add(&c->samples, of_rank, M_LATE, 0, last - middle), out);
    if (bucket == BRG_NO_BUCKET)
        goto out;
    uint64_t key = (uint64_t)KEY_BUCKET << 32 | bucket;
    BRG_TRY(brg_samples_add(&c->samples, key, M_SPREAD, last_list, last - first), out);
    BRG_TRY(brg_samples_add(&c->samples, key, M_TRANSFER, 0, fmax(end - last, 0)), out);
    BRG_TRY(brg_samples_add(&c->samples, key, M_WAIT, 0, last - middle), out);
out:
    return status;
}

/* The rank that came last most often: SPREAD samples carry it, and are sorted by it. */
static void bucket_last(const comparison *c, uint64_t key, brg_bucket_arrivals *bucket)
{
    size_t all = 0, most = 0, run = 0;
    for (size_t i = 0; i < c->samples.count; i++) {
        const brg_sample *s = &c->samples.at[i];
        if (s->key != key || s->metric != M_SPREAD)
            continue;
        bool same = run && c->samples.at[i - 1].step == s->step;
        run = same ? run + 1 : 1;
        all++;
        if (run > most) {
            most = run;
            bucket->last_rank = c->lists[s->step].rank;
        }
    }
    bucket->last_share = all ? (double)most / (double)all : 0;
}

static brg_reason reason_of(const brg_bucket_arrivals *bucket, double error_ns)
{
    double most = LATE_SHARE * (bucket->spread.median + bucket->transfer.median);
    if (error_ns >= most)
        return BRG_REASON_UNCLEAR;
    return bucket->spread.median >= most ? BRG_REASON_LATE_PEER : BRG_REASON_TRANSFER;
}

static brg_status buckets_fill(comparison *c)
{
    brg_arrivals *out = c->out;
    out->buckets = calloc(c->samples.count + 1, sizeof *out->buckets);
    if (!out->buckets)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the arrivals of buckets");
    for (size_t i = 0; i < c->samples.count; i++) {
        uint64_t key = c->samples.at[i].key;
        if (key >> 32 != KEY_BUCKET || (i && c->samples.at[i - 1].key == key))
            continue;
        brg_bucket_arrivals *bucket = &out->buckets[out->nbuckets++];
        bucket->bucket = (uint32_t)key;
        bucket_last(c, key, bucket);
        bucket->spread = brg_samples_stat(&c->samples, key, M_SPREAD);
        bucket->transfer = brg_samples_stat(&c->samples, key, M_TRANSFER);
        bucket->wait = brg_samples_stat(&c->samples, key, M_WAIT);
        bucket->reason = reason_of(bucket, out->error_ns);
    }
    return BRG_OK;
}

brg_status brg_arrivals_compare(brg_arrival_list *lists, size_t nlists, brg_arrivals *out)
{
    brg_status status = BRG_OK;
    comparison c = {.lists = lists, .nlists = nlists, .out = out};
    *out = (brg_arrivals){.nranks = nlists};
    out->ranks = calloc(nlists + 1, sizeof *out->ranks);
    if (!out->ranks) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu ranks", nlists);
        goto out;
    }
    for (size_t i = 0; i < nlists; i++)
        out->ranks[i].rank = lists[i].rank;
    BRG_TRY(meetings_find(&c), out);
    BRG_TRY(clocks_fit(&c), out);
    for (size_t i = 0; i < c.nmeetings; i++)
        BRG_TRY(meeting_sample(&c, &c.meetings[i]), out);
    brg_samples_sort(&c.samples);
    for (uint32_t i = 0; i < nlists; i++) {
        out->ranks[i].late = brg_samples_stat(&c.samples, (uint64_t)KEY_RANK << 32 | i, M_LATE);
        out->ranks[i].last = out->ranks[i].late.n;
    }
    BRG_TRY(buckets_fill(&c), out);
out:
    free(c.entries);
    free(c.meetings);
    free(c.values);
    free(c.places);
    free(c.fitted);
    brg_samples_free(&c.samples);
    if (status != BRG_OK)
        brg_arrivals_free(out);
    return status;
}

void brg_arrivals_free(brg_arrivals *arrivals)
{
    free(arrivals->ranks);
    free(arrivals->buckets);
    *arrivals = (brg_arrivals){0};
}
