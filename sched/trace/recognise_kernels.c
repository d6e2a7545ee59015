/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives' times from NCCL's kernels. The shim's events stand around a launch and add the
 * launch's own time; the kernels that a collective launched are those whose middle lies between its
 * events, on the stream that fits them best: CUPTI's numbers of streams are not the shim's. */
#include <stdlib.h>

#include "sched/trace/recognise_internal.h"

typedef struct record_list {
    brg_rec **at; /* by stream, begin and end */
    size_t count;
} record_list;

static int record_compare(const void *a, const void *b)
{
    const brg_rec *x = *(brg_rec *const *)a, *y = *(brg_rec *const *)b;
    if (x->stream != y->stream)
        return x->stream < y->stream ? -1 : 1;
    if (x->t0_ns != y->t0_ns)
        return x->t0_ns < y->t0_ns ? -1 : 1;
    return (x->t1_ns > y->t1_ns) - (x->t1_ns < y->t1_ns);
}

static bool list_make(record_list *list, brg_rec *recs, size_t nrecs, brg_rec_kind kind)
{
    list->at = calloc(nrecs + 1, sizeof(brg_rec *));
    for (size_t i = 0; list->at && i < nrecs; i++)
        if (recs[i].kind == kind && !(recs[i].flags & BRG_REC_UNTIMED))
            list->at[list->count++] = &recs[i];
    if (list->at)
        qsort(list->at, list->count, sizeof(brg_rec *), record_compare);
    return list->at != NULL;
}

/* The records of one stream from `first` on. */
static record_list stream_of(const record_list *list, size_t first)
{
    size_t end = first;
    while (end < list->count && list->at[end]->stream == list->at[first]->stream)
        end++;
    return (record_list){.at = list->at + first, .count = end - first};
}

static uint64_t middle(const brg_rec *rec)
{
    return rec->t0_ns + (rec->t1_ns - rec->t0_ns) / 2;
}

/* Kernels of a stream, one after the other, with their middle in the collective's time. `shift`:
 * what the events' clock is ahead of the kernels'. */
static record_list kernels_in(const record_list *kernels, const brg_rec *collective, int64_t shift)
{
    uint64_t t0 = collective->t0_ns - (uint64_t)shift, t1 = collective->t1_ns - (uint64_t)shift;
    size_t low = 0, high = kernels->count;
    while (low < high) {
        size_t half = low + (high - low) / 2;
        if (middle(kernels->at[half]) < t0)
            low = half + 1;
        else
            high = half;
    }
    record_list found = {.at = kernels->at + low};
    while (low + found.count < kernels->count && middle(found.at[found.count]) < t1)
        found.count++;
    return found;
}

static uint64_t end_of(const record_list *kernels)
{
    uint64_t end = 0;
    for (size_t i = 0; i < kernels->count; i++)
        if (kernels->at[i]->t1_ns > end)
            end = kernels->at[i]->t1_ns;
    return end;
}

/* How well the kernels of a stream fill the time of the collectives of another: their number at
 * most. */
static double fit(const record_list *collectives, const record_list *kernels)
{
    double sum = 0;
    for (size_t i = 0; i < collectives->count; i++) {
        const brg_rec *c = collectives->at[i];
        const record_list in = kernels_in(kernels, c, 0);
        double length = (double)(c->t1_ns - c->t0_ns), filled = 0;
        for (size_t k = 0; k < in.count; k++)
            filled += (double)(in.at[k]->t1_ns - in.at[k]->t0_ns);
        if (filled > 0 && length > 0)
            sum += filled < length ? filled / length : length / filled;
    }
    return sum;
}

static int shift_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median from the end of a kernel to the event behind it. */
static brg_status shift_find(const record_list *collectives, const record_list *kernels,
                             const char *path, int64_t *shift)
{
    int64_t *found = calloc(collectives->count + 1, sizeof *found);
    size_t n = 0;
    *shift = 0;
    if (!found)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its kernels", path);
    for (size_t i = 0; i < collectives->count; i++) {
        const record_list in = kernels_in(kernels, collectives->at[i], 0);
        if (in.count)
            found[n++] = (int64_t)(collectives->at[i]->t1_ns - end_of(&in));
    }
    qsort(found, n, sizeof *found, shift_compare);
    if (n)
        *shift = found[n / 2];
    free(found);
    return BRG_OK;
}

static brg_status stream_time(const record_list *collectives, const record_list *kernels,
                              const char *path, uint64_t *timed)
{
    record_list best = {0};
    double best_fit = 0;
    int64_t shift;
    for (size_t first = 0; first < kernels->count;) {
        const record_list stream = stream_of(kernels, first);
        double f = fit(collectives, &stream);
        if (f > best_fit) {
            best_fit = f;
            best = stream;
        }
        first += stream.count;
    }
    if (!best.count)
        return BRG_OK;
    brg_status status = shift_find(collectives, &best, path, &shift);
    for (size_t i = 0; status == BRG_OK && i < collectives->count; i++) {
        brg_rec *c = collectives->at[i];
        const record_list in = kernels_in(&best, c, shift);
        if (!in.count)
            continue;
        c->t0_ns = in.at[0]->t0_ns;
        c->t1_ns = end_of(&in);
        (*timed)++;
    }
    return status;
}

brg_status brg_recognise_kernels(brg_recognition *r)
{
    record_list collectives = {0}, kernels = {0};
    const char *path = r->trace.path;
    brg_status status = BRG_OK;
    if (!list_make(&collectives, r->trace.recs, r->trace.nrecs, BRG_REC_COLLECTIVE) ||
        !list_make(&kernels, r->trace.recs, r->trace.nrecs, BRG_REC_NCCL_KERNEL)) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its kernels", path);
        goto out;
    }
    for (size_t first = 0; kernels.count && first < collectives.count;) {
        const record_list stream = stream_of(&collectives, first);
        BRG_TRY(stream_time(&stream, &kernels, path, &r->timed_by_kernels), out);
        first += stream.count;
    }
out:
    free(collectives.at);
    free(kernels.at);
    return status;
}
