/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/series.h"

#include <stdlib.h>

#include "sched/trace/analysis_internal.h"

/* Adds the samples of (key, metric) to the values of their steps; *known tells whether there were
 * any. */
static void values_add(const brg_analysis *a, uint64_t key, brg_metric metric, double *values,
                       bool *known)
{
    const brg_samples *samples = &a->samples;
    size_t low = 0, high = samples->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const brg_sample *s = &samples->at[middle];
        if (s->key < key || (s->key == key && s->metric < (uint32_t)metric))
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < samples->count; low++) {
        const brg_sample *s = &samples->at[low];
        if (s->key != key || s->metric != (uint32_t)metric)
            break;
        values[s->step - a->first] += s->value;
        *known = true;
    }
}

static double *values_new(brg_status *status, const brg_analysis *a)
{
    double *values = calloc(a->end - a->first, sizeof *values);
    if (!values)
        *status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu steps", a->trace->path,
                           a->end - a->first);
    return values;
}

/* Every optimizer has a key of its own. */
static void optimizers_add(const brg_analysis *a, double *values)
{
    bool known;
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < a->samples.count; i++) {
        uint64_t key = a->samples.at[i].key, what = key >> 32;
        if (key != last && (what == KEY_OPTIMIZER || what == KEY_NORM))
            values_add(a, key, M_TIME, values, &known);
        last = key;
    }
}

/* False: of some steps nothing is known of compute, and so nothing of what follows from it. */
static bool computes(const brg_analysis *a)
{
    return a->report->compute_known && !a->report->steps_without_compute;
}

static brg_status rank_fill(const brg_analysis *a, brg_series *series)
{
    static const brg_metric metrics[BRG_SERIES_METRICS] = {
        [BRG_SERIES_STEP] = M_STEP,
        [BRG_SERIES_COMPUTE] = M_COMPUTE,
        [BRG_SERIES_COMMUNICATION] = M_COMMUNICATION,
        [BRG_SERIES_EXPOSED] = M_EXPOSED_TOTAL,
        [BRG_SERIES_IDLE] = M_IDLE,
    };
    bool known;
    brg_status status = BRG_OK;
    series->nsteps = a->end - a->first;
    for (int m = 0; m < BRG_SERIES_METRICS; m++) {
        if (!computes(a) &&
            (m == BRG_SERIES_COMPUTE || m == BRG_SERIES_EXPOSED || m == BRG_SERIES_IDLE))
            continue;
        double *values = series->values[m] = values_new(&status, a);
        if (!values)
            return status;
        if (m == BRG_SERIES_OPTIMIZER)
            optimizers_add(a, values);
        else
            values_add(a, brg_key(KEY_RANK, 0), metrics[m], values, &known);
    }
    return BRG_OK;
}

static brg_status bucket_fill(const brg_analysis *a, const brg_bucket_report *from,
                              brg_series_bucket *bucket)
{
    uint64_t key = brg_key(KEY_BUCKET, from->id);
    brg_status status = BRG_OK;
    bucket->id = from->id;
    bucket->described = from->described;
    bucket->meta = from->meta;
    for (int m = 0; m < BRG_BUCKET_METRICS; m++) {
        bool known = m != BRG_BUCKET_EXPOSED;
        double *values = bucket->values[m] = values_new(&status, a);
        if (!values)
            return status;
        if (m == BRG_BUCKET_COMMUNICATION) {
            values_add(a, key, M_REDUCE_TIME, values, &known);
            values_add(a, key, M_GATHER_TIME, values, &known);
        } else {
            values_add(a, key, m == BRG_BUCKET_WAIT ? M_WAIT : M_EXPOSED, values, &known);
        }
        known &= m != BRG_BUCKET_EXPOSED || computes(a);
        if (!known) {
            free(values);
            bucket->values[m] = NULL;
        }
    }
    return BRG_OK;
}

static brg_status buckets_fill(const brg_analysis *a, brg_series *series)
{
    size_t n = a->report->nbuckets;
    brg_status status = BRG_OK;
    series->buckets = calloc(n + 1, sizeof *series->buckets);
    if (!series->buckets)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu buckets", a->trace->path, n);
    series->nbuckets = n;
    for (size_t i = 0; status == BRG_OK && i < n; i++)
        status = bucket_fill(a, &a->report->buckets[i], &series->buckets[i]);
    return status;
}

brg_status brg_trace_series(const brg_trace *trace, const brg_analysis_options *options,
                            brg_series *series)
{
    *series = (brg_series){0};
    brg_rank_report report = {0};
    brg_analysis a = {.trace = trace, .report = &report};
    brg_status status;
    BRG_TRY(brg_analysis_recognise(&a, &options->recognise), out);
    BRG_TRY(brg_analysis_run(&a, options), out);
    BRG_TRY(rank_fill(&a, series), out);
    BRG_TRY(buckets_fill(&a, series), out);
out:
    brg_analysis_free(&a);
    brg_rank_report_free(&report);
    if (status != BRG_OK)
        brg_series_free(series);
    return status;
}

void brg_series_free(brg_series *series)
{
    for (int m = 0; m < BRG_SERIES_METRICS; m++)
        free(series->values[m]);
    for (size_t i = 0; i < series->nbuckets; i++)
        for (int m = 0; m < BRG_BUCKET_METRICS; m++)
            free(series->buckets[i].values[m]);
    free(series->buckets);
    *series = (brg_series){0};
}
