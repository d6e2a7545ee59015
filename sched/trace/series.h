/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's numbers step by step, for those who compare runs; analysis.h says what they mean. */
#ifndef BRIGADE_SCHED_TRACE_SERIES_H
#define BRIGADE_SCHED_TRACE_SERIES_H

#include "sched/trace/analysis.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the rank. All in ns per step. */
typedef enum brg_series_metric {
    BRG_SERIES_STEP,
    BRG_SERIES_COMPUTE,
    BRG_SERIES_COMMUNICATION,
    BRG_SERIES_EXPOSED,
    BRG_SERIES_IDLE,
    BRG_SERIES_OPTIMIZER, /* all optimizers and the norm */
    BRG_SERIES_METRICS,
} brg_series_metric;

/* Of a bucket. All in ns per step. */
typedef enum brg_bucket_metric {
    BRG_BUCKET_COMMUNICATION, /* reductions and gathers, from start to end */
    BRG_BUCKET_EXPOSED,       /* how much shorter the step would be without; see replay.h */
    BRG_BUCKET_WAIT,          /* consumers stood still */
    BRG_BUCKET_METRICS,
} brg_bucket_metric;

/* One value per step in use, in the order of the steps; a step without is 0. NULL: not known (the
 * replay needs waits). */
typedef struct brg_series_bucket {
    uint32_t id;
    bool described;
    brg_meta_bucket meta;
    double *values[BRG_BUCKET_METRICS];
} brg_series_bucket;

typedef struct brg_series {
    size_t nsteps;
    double *values[BRG_SERIES_METRICS]; /* NULL: not known of all steps */
    brg_series_bucket *buckets;         /* by id */
    size_t nbuckets;
} brg_series;

/* Fails as brg_trace_analyze() does. */
brg_status brg_trace_series(const brg_trace *trace, const brg_analysis_options *options,
                            brg_series *series);
void brg_series_free(brg_series *series);

#ifdef __cplusplus
}
#endif
#endif
