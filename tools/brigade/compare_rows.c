/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/compare.h"

const char *const compare_metric_names[BRG_SERIES_METRICS] = {
    [BRG_SERIES_STEP] = "step_ns",          [BRG_SERIES_COMPUTE] = "compute_ns",
    [BRG_SERIES_COMMUNICATION] = "comm_ns", [BRG_SERIES_EXPOSED] = "exposed_ns",
    [BRG_SERIES_IDLE] = "idle_ns",          [BRG_SERIES_OPTIMIZER] = "optimizer_ns",
};

size_t compare_judged(const comparison *c)
{
    return c->by_bucket ? c->nrows : 1;
}

/* `sorted` by shift_estimate(). */
static void cell_stat(compare_cell *cell, const double *sorted, size_t n)
{
    cell->n = n;
    cell->median = sorted[(n - 1) / 2];
    cell->min = sorted[0];
    cell->max = sorted[n - 1];
}

static void cell_judge(compare_cell *cell, const compare_cell *base, double threshold_percent)
{
    double unit = base->median > 0 ? 100 / base->median : NAN;
    const shift_result *shift = &cell->shift;
    cell->percent = shift->estimate * unit;
    cell->low_percent = shift->low * unit;
    cell->high_percent = shift->high * unit;
    if (!shift->bounded)
        cell->verdict = COMPARE_TOO_FEW;
    else if (shift->low > 0)
        cell->verdict = COMPARE_SLOWER;
    else
        cell->verdict = shift->high < 0 ? COMPARE_FASTER : COMPARE_NONE;
    cell->regression =
        cell->verdict == COMPARE_SLOWER && shift->estimate > threshold_percent / 100 * base->median;
}

/* Fills the row's cells from values[run] of steps[run] values each; NULL values are not known. */
static bool row_fill(const comparison *c, compare_row *row, const double *const *values,
                     double alpha)
{
    bool ok = true;
    row->cells = calloc(c->nruns, sizeof *row->cells);
    if (!row->cells)
        return false;
    size_t nbase = c->runs[0].series.nsteps;
    for (size_t i = 0; ok && i < c->nruns; i++) {
        compare_cell *cell = &row->cells[i], *base = &row->cells[0];
        size_t n = c->runs[i].series.nsteps;
        cell->verdict = COMPARE_UNKNOWN;
        if (!values[0] || !values[i])
            continue;
        double *sorted = malloc((nbase + n) * sizeof *sorted);
        ok = sorted != NULL;
        if (ok) {
            memcpy(sorted, values[0], nbase * sizeof *sorted);
            memcpy(sorted + nbase, values[i], n * sizeof *sorted);
            ok = shift_estimate(sorted, nbase, sorted + nbase, n, alpha, &cell->shift);
            cell_stat(cell, sorted + nbase, n);
            if (i)
                cell_judge(cell, base, c->threshold_percent);
            else
                cell->verdict = COMPARE_BASELINE;
        }
        free(sorted);
    }
    return ok;
}

static void judge(comparison *c)
{
    for (size_t i = 0; i < compare_judged(c); i++)
        for (size_t k = 1; k < c->nruns; k++) {
            const compare_cell *cell = &c->rows[i].cells[k];
            c->regression |= cell->regression;
            c->undecided |= cell->verdict == COMPARE_TOO_FEW;
            c->measured |= cell->verdict != COMPARE_UNKNOWN;
        }
}

bool compare_metrics(comparison *c, brg_series_metric judged)
{
    const double **values = calloc(c->nruns, sizeof *values);
    c->rows = calloc(BRG_SERIES_METRICS, sizeof *c->rows);
    bool ok = values && c->rows;
    for (int m = 0; ok && m < BRG_SERIES_METRICS; m++) {
        /* the judged one comes first, and those before it one later */
        int metric = m == 0 ? (int)judged : m <= (int)judged ? m - 1 : m;
        for (size_t i = 0; i < c->nruns; i++)
            values[i] = c->runs[i].series.values[metric];
        compare_row *row = &c->rows[c->nrows++];
        row->name = compare_metric_names[metric];
        ok = row_fill(c, row, values, 1 - c->confidence);
    }
    free(values);
    if (ok)
        judge(c);
    return ok;
}

static bool same_bucket(const brg_series_bucket *a, const brg_series_bucket *b)
{
    if (a->described != b->described)
        return false;
    return a->described
               ? a->meta.grad_bytes == b->meta.grad_bytes && !strcmp(a->meta.name, b->meta.name)
               : a->id == b->id;
}

static const brg_series_bucket *bucket_like(const brg_series *series,
                                            const brg_series_bucket *bucket)
{
    for (size_t i = 0; i < series->nbuckets; i++)
        if (same_bucket(&series->buckets[i], bucket))
            return &series->buckets[i];
    return NULL;
}

/* Sets values[] when all runs have the bucket. */
static bool bucket_values(const comparison *c, const brg_series_bucket *bucket,
                          brg_bucket_metric metric, const double **values)
{
    for (size_t i = 0; i < c->nruns; i++) {
        const brg_series_bucket *like = bucket_like(&c->runs[i].series, bucket);
        if (!like)
            return false;
        values[i] = like->values[metric];
    }
    return true;
}

bool compare_buckets(comparison *c, brg_bucket_metric metric)
{
    const brg_series *base = &c->runs[0].series;
    const double **values = calloc(c->nruns, sizeof *values);
    c->rows = calloc(base->nbuckets + 1, sizeof *c->rows);
    bool ok = values && c->rows;
    size_t matched = 0;
    for (size_t i = 0; ok && i < base->nbuckets; i++)
        matched += bucket_values(c, &base->buckets[i], metric, values);
    for (size_t i = 0; i < c->nruns; i++)
        c->unmatched += c->runs[i].series.nbuckets - matched;
    for (size_t i = 0; ok && i < base->nbuckets; i++) {
        const brg_series_bucket *bucket = &base->buckets[i];
        if (!bucket_values(c, bucket, metric, values))
            continue;
        compare_row *row = &c->rows[c->nrows++];
        row->name = bucket->described ? bucket->meta.name : "?";
        row->bytes = bucket->meta.grad_bytes;
        /* Bonferroni: of many buckets, some would differ by chance. */
        ok = row_fill(c, row, values, (1 - c->confidence) / (double)matched);
    }
    free(values);
    if (ok)
        judge(c);
    return ok;
}

void compare_free(comparison *c)
{
    for (size_t i = 0; i < c->nrows; i++)
        free(c->rows[i].cells);
    free(c->rows);
}
