/* SPDX-License-Identifier: Apache-2.0 */
/* What brigade compare has found, for those who print it. */
#ifndef BRIGADE_TOOLS_COMPARE_H
#define BRIGADE_TOOLS_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/trace/series.h"
#include "tools/brigade/cli.h"
#include "tools/brigade/shift.h"

/* A trace, reduced to one rank. */
typedef struct compare_run {
    const char *path;
    uint32_t world, rank;
    size_t nranks;     /* recorded */
    uint64_t lost;     /* records of all ranks */
    brg_series series; /* of that rank */
} compare_run;

typedef enum compare_verdict {
    COMPARE_BASELINE,
    COMPARE_UNKNOWN, /* not measured in one of the two */
    COMPARE_TOO_FEW, /* steps, for a judgement */
    COMPARE_NONE,    /* no difference detectable */
    COMPARE_SLOWER,
    COMPARE_FASTER,
} compare_verdict;

/* One metric of one run, against the same of the baseline. */
typedef struct compare_cell {
    size_t n; /* 0: not known */
    double median, min, max;
    shift_result shift;
    double percent, low_percent, high_percent; /* of the baseline's median; NAN when that is 0 */
    compare_verdict verdict;
    bool regression; /* slower, and by more than the threshold */
} compare_cell;

typedef struct compare_row {
    const char *name;    /* of the metric or the bucket */
    uint64_t bytes;      /* of the bucket */
    compare_cell *cells; /* one per run; the first is the baseline */
} compare_row;

typedef struct comparison {
    const compare_run *runs; /* the first is the baseline */
    size_t nruns;
    bool by_bucket;
    const char *metric;
    double threshold_percent, confidence;
    compare_row *rows; /* metrics, the judged one first; or buckets, all judged */
    size_t nrows;
    size_t unmatched; /* buckets that not all runs have */
    bool regression;
    bool undecided; /* of something judged, too few steps */
    bool measured;  /* something was judged */
} comparison;

/* compare_load.c: opens a trace and takes the rank wanted, or, below 0, the one that computes most.
 * Returns an exit code. */
int compare_load(const cli_command *command, const char *path, const brg_analysis_options *how,
                 int64_t rank, compare_run *run);

/* compare_rows.c. False: no memory. */
bool compare_metrics(comparison *c, brg_series_metric judged);
bool compare_buckets(comparison *c, brg_bucket_metric metric);
void compare_free(comparison *c);

extern const char *const compare_metric_names[BRG_SERIES_METRICS];

/* How many rows decide: the others are for information. */
size_t compare_judged(const comparison *c);

void compare_text(const comparison *c);
/* False: no memory. */
bool compare_json(const comparison *c);

#endif
