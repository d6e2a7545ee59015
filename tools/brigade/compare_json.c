/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison as one JSON document, schema 1. Times in ns; null is what is not known. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/brigade/compare.h"

static const char *const verdicts[] = {
    [COMPARE_BASELINE] = "baseline", [COMPARE_UNKNOWN] = "unknown",
    [COMPARE_TOO_FEW] = "too few",   [COMPARE_NONE] = "no difference detectable",
    [COMPARE_SLOWER] = "more",       [COMPARE_FASTER] = "less",
};

static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *text(const char *bytes)
{
    char buffer[4096];
    json_t *string = json_string(bytes);
    return string ? string : json_string(cli_label(buffer, sizeof buffer, bytes));
}

static json_t *cell_json(const compare_cell *cell)
{
    json_t *object =
        json_pack("{s:s,s:I}", "verdict", verdicts[cell->verdict], "n", (json_int_t)cell->n);
    if (!cell->n)
        return object;
    json_object_set_new(object, "median_ns", real(cell->median));
    json_object_set_new(object, "min_ns", real(cell->min));
    json_object_set_new(object, "max_ns", real(cell->max));
    if (cell->verdict == COMPARE_BASELINE)
        return object;
    bool bounded = cell->shift.bounded;
    json_object_set_new(object, "difference_ns", real(cell->shift.estimate));
    json_object_set_new(object, "low_ns", bounded ? real(cell->shift.low) : json_null());
    json_object_set_new(object, "high_ns", bounded ? real(cell->shift.high) : json_null());
    json_object_set_new(object, "difference_percent", real(cell->percent));
    json_object_set_new(object, "low_percent", bounded ? real(cell->low_percent) : json_null());
    json_object_set_new(object, "high_percent", bounded ? real(cell->high_percent) : json_null());
    json_object_set_new(object, "regression", json_boolean(cell->regression));
    return object;
}

static json_t *row_json(const comparison *c, const compare_row *row, bool judged)
{
    json_t *object = json_pack("{s:o,s:b}", "name", text(row->name), "judged", judged);
    json_t *cells = json_array();
    if (c->by_bucket)
        json_object_set_new(object, "bytes", json_integer((json_int_t)row->bytes));
    for (size_t i = 0; i < c->nruns; i++)
        json_array_append_new(cells, cell_json(&row->cells[i]));
    json_object_set_new(object, "runs", cells);
    return object;
}

bool compare_json(const comparison *c)
{
    json_t *root =
        json_pack("{s:i,s:s,s:s,s:f,s:f,s:b,s:b,s:I}", "schema", 1, "by",
                  c->by_bucket ? "bucket" : "run", "metric", c->metric, "threshold_percent",
                  c->threshold_percent, "confidence", c->confidence, "regression", c->regression,
                  "undecided", c->undecided, "unmatched_buckets", (json_int_t)c->unmatched);
    json_t *runs = json_array(), *rows = json_array();
    for (size_t i = 0; i < c->nruns; i++) {
        const compare_run *run = &c->runs[i];
        json_array_append_new(
            runs, json_pack("{s:o,s:I,s:I,s:I,s:I,s:I}", "path", text(run->path), "world",
                            (json_int_t)run->world, "ranks", (json_int_t)run->nranks, "rank",
                            (json_int_t)run->rank, "steps", (json_int_t)run->series.nsteps, "lost",
                            (json_int_t)run->lost));
    }
    for (size_t i = 0; i < c->nrows; i++)
        json_array_append_new(rows, row_json(c, &c->rows[i], i < compare_judged(c)));
    json_object_set_new(root, "runs", runs);
    json_object_set_new(root, "rows", rows);
    char *document = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (!document)
        return false;
    puts(document);
    free(document);
    return true;
}
