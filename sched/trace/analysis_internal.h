/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the analysis share. */
#ifndef BRIGADE_SCHED_TRACE_ANALYSIS_INTERNAL_H
#define BRIGADE_SCHED_TRACE_ANALYSIS_INTERNAL_H

#include "sched/trace/analysis.h"
#include "sched/trace/intervals.h"
#include "sched/trace/samples.h"

typedef enum brg_metric {
    M_READY,
    M_REDUCE_ISSUED,
    M_REDUCE_START,
    M_REDUCE_END,
    M_REDUCE_TIME,
    M_REDUCE_BUSBW,
    M_REDUCE_GROUP,
    M_REDUCE_WAIT,
    M_GATHER_ISSUED,
    M_GATHER_START,
    M_GATHER_END,
    M_GATHER_TIME,
    M_GATHER_BUSBW,
    M_GATHER_GROUP,
    M_GATHER_WAIT,
    M_WAIT,
    M_EXPOSED,
    M_REDUCE_SCATTERS,
    M_ALL_GATHERS,
    M_ALL_REDUCES,
    M_TIME, /* of what has a name */
    M_STEP,
    M_COMPUTE,
    M_COMMUNICATION,
    M_OVERLAPPED,
    M_EXPOSED_TOTAL,
    M_IDLE,
    M_REPLAY_ERROR,
    M_UPDATE_DELAY,
    M_COUNT,
    M_BYTES,
} brg_metric;

/* Keys of samples: what in the upper half, which in the lower. */
enum {
    KEY_RANK = 0,
    KEY_BUCKET = 1,
    KEY_COMPUTE = 2,
    KEY_OPTIMIZER = 3,
    KEY_NORM = 4,
    KEY_OTHER = 5,
    KEY_COMM = 6,
    KEY_FUNC = 7,
};

static inline uint64_t brg_key(uint64_t what, uint32_t which)
{
    return what << 32 | which;
}

/* A step. */
typedef struct brg_window {
    uint64_t t0, t1;
    uint32_t number, stream;
    uint32_t index; /* by time */
    bool replay;    /* of a graph */
} brg_window;

typedef struct brg_analysis {
    const brg_trace *trace;
    brg_rank_report *report;
    brg_window *windows; /* by time */
    brg_window *by_number;
    size_t nwindows;
    size_t first, end; /* those in use */
    uint64_t origin;   /* of the signed times */
    brg_interval_set compute, communication, overlapped;
    brg_samples samples;
} brg_analysis;

static inline int64_t brg_signed_time(const brg_analysis *a, uint64_t t)
{
    return (int64_t)(t - a->origin);
}

/* Puts the trace with its steps and buckets in place of one that has none. Before the run. */
brg_status brg_analysis_recognise(brg_analysis *a, const brg_recognise_options *options);

/* analysis.c: all of the below; leaves sorted samples. What a->report holds is its owner's to free,
 * also after a failure. */
brg_status brg_analysis_run(brg_analysis *a, const brg_analysis_options *options);
void brg_analysis_free(brg_analysis *a);

/* analysis_steps.c: which steps count, and which of them something belongs to. */
brg_status brg_analysis_steps(brg_analysis *a, const brg_analysis_options *options);
/* The step in use that a record belongs to by its number; NULL: none. Numbers begin anew with every
 * scheduler: of several windows with one number, the last that had begun at `t`. */
const brg_window *brg_analysis_step_numbered(const brg_analysis *a, uint32_t number, uint64_t t);
/* The step in use in whose window `t` lies; NULL: none. */
const brg_window *brg_analysis_step_at(const brg_analysis *a, uint64_t t);

/* analysis_timeline.c: compute, communication and both, as sets; samples of their lengths. */
brg_status brg_analysis_timeline(brg_analysis *a);
/* Whether the step's compute was recorded. Of a step that was recognised and has no kernel at all
 * it was not: another profiler had taken the shim's place. */
bool brg_analysis_computes(const brg_analysis *a, const brg_window *w);

/* analysis_buckets.c: samples of what belongs to buckets and names; the replays. */
brg_status brg_analysis_buckets(brg_analysis *a);

#endif
