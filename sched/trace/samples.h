/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with labels, sorted once and then looked up: memory grows with what was recorded, not
 * with the product of all buckets and all steps that occur in a trace. */
#ifndef BRIGADE_SCHED_TRACE_SAMPLES_H
#define BRIGADE_SCHED_TRACE_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#include "sched/trace/analysis.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_sample {
    uint64_t key;    /* of what: a bucket, a name */
    uint32_t metric; /* what of it */
    uint32_t step;
    double value;
} brg_sample;

typedef struct brg_samples {
    brg_sample *at;
    size_t count, capacity;
} brg_samples;

typedef enum brg_fold { BRG_FOLD_SUM, BRG_FOLD_MIN, BRG_FOLD_MAX } brg_fold;

void brg_samples_free(brg_samples *samples);
brg_status brg_samples_add(brg_samples *samples, uint64_t key, uint32_t metric, uint32_t step,
                           double value);
/* After the last add and before the first look. */
void brg_samples_sort(brg_samples *samples);

/* Every sample counts. Reorders values within (key, metric): after this, ask nothing else about it.
 */
brg_stat brg_samples_stat(brg_samples *samples, uint64_t key, uint32_t metric);
/* One value per step: its samples folded into one. `nsteps` > 0: steps without a sample are zeros,
 * of that many steps in all. The same warning. */
brg_stat brg_samples_stat_by_step(brg_samples *samples, uint64_t key, uint32_t metric,
                                  brg_fold fold, uint64_t nsteps);
/* Samples per step, over `nsteps` steps. */
brg_step_count brg_samples_count(const brg_samples *samples, uint64_t key, uint32_t metric,
                                 uint64_t nsteps);

#ifdef __cplusplus
}
#endif
#endif
