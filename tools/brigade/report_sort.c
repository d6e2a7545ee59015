/* SPDX-License-Identifier: Apache-2.0 */
/* brigade report --sort: the order of the list of --by. */
#include <stdlib.h>

#include "tools/brigade/report.h"

bool report_sorts_by(report_by by, report_sort_key key)
{
    static const bool has[][REPORT_SORT_COUNT] = {
        [REPORT_BY_BUCKET] = {true, true, true, true, true, true, true},
        [REPORT_BY_COMM] =
            {[REPORT_SORT_ID] = true, [REPORT_SORT_SIZE] = true, [REPORT_SORT_TIME] = true},
        [REPORT_BY_RANK] =
            {[REPORT_SORT_ID] = true, [REPORT_SORT_EXPOSED] = true, [REPORT_SORT_TIME] = true},
        [REPORT_BY_FUNC] =
            {[REPORT_SORT_ID] = true, [REPORT_SORT_SIZE] = true, [REPORT_SORT_TIME] = true},
    };
    return has[by][key];
}

static struct {
    const report *r;
    report_sort_key key;
} sorting; /* qsort() has no argument for it */

static int value_compare(double x, double y)
{
    return (x > y) - (x < y);
}

/* What rows are sorted by, largest first; ids and ready times: smallest first. */
static double bucket_value(const brg_bucket_report *bucket)
{
    switch (sorting.key) {
    case REPORT_SORT_EXPOSED:
        return -bucket->exposed.median;
    case REPORT_SORT_WAIT:
        return -bucket->wait.median;
    case REPORT_SORT_SIZE:
        return -(double)bucket->meta.grad_bytes;
    case REPORT_SORT_READY:
        return bucket->ready.median;
    case REPORT_SORT_BUSBW:
        return -bucket->reduce_busbw.median;
    case REPORT_SORT_TIME:
        return -bucket->reduce_time.median - bucket->gather_time.median;
    default:
        return bucket->id;
    }
}

static int bucket_compare(const void *a, const void *b)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const brg_bucket_report *buckets = sorting.r->shown->data.buckets;
    int order = value_compare(bucket_value(&buckets[i]), bucket_value(&buckets[k]));
    return order ? order : (i > k) - (i < k);
}

/* r->ranks is by rank. */
static int rank_compare(const void *a, const void *b)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    const brg_rank_report *x = &sorting.r->ranks[i].data, *y = &sorting.r->ranks[k].data;
    int order = sorting.key == REPORT_SORT_EXPOSED
                    ? value_compare(y->exposed.median, x->exposed.median)
                : sorting.key == REPORT_SORT_TIME ? value_compare(y->step.median, x->step.median)
                                                  : 0;
    return order ? order : (i > k) - (i < k);
}

/* Where the one is equal (no times), by the other. */
static int group_compare(const void *a, const void *b)
{
    const brg_group_report *x = a, *y = b;
    int by_time = value_compare(y->time.median, x->time.median);
    int by_size = value_compare(y->bytes.median, x->bytes.median);
    int order = sorting.key == REPORT_SORT_TIME   ? (by_time ? by_time : by_size)
                : sorting.key == REPORT_SORT_SIZE ? (by_size ? by_size : by_time)
                                                  : 0;
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static size_t *rows_make(size_t n)
{
    size_t *rows = calloc(n + 1, sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        rows[i] = i;
    return rows;
}

bool report_sort(report *r, report_by by, report_sort_key key, size_t top)
{
    brg_rank_report *data = &r->ranks[r->shown - r->ranks].data;
    r->order = rows_make(data->nbuckets);
    r->rank_order = rows_make(r->nranks);
    if (!r->order || !r->rank_order)
        return false;
    r->top = top && top < data->nbuckets ? top : data->nbuckets;
    sorting.r = r;
    sorting.key = key;
    switch (by) {
    case REPORT_BY_BUCKET:
        qsort(r->order, data->nbuckets, sizeof *r->order, bucket_compare);
        break;
    case REPORT_BY_COMM:
        if (data->ncomms)
            qsort(data->comms, data->ncomms, sizeof *data->comms, group_compare);
        break;
    case REPORT_BY_RANK:
        qsort(r->rank_order, r->nranks, sizeof *r->rank_order, rank_compare);
        break;
    case REPORT_BY_FUNC:
        if (data->nfuncs)
            qsort(data->funcs, data->nfuncs, sizeof *data->funcs, group_compare);
        break;
    }
    return true;
}
