/* SPDX-License-Identifier: Apache-2.0 */
/* From one rank's records to the numbers of a report. Pure: no files, no clocks.
 *
 * Times are taken in the window of a step, brg_zero_grad to brg_zero_grad, as recorded on the
 * compute stream: compute        at least one COMPUTE, OPTIMIZER or NORM span runs, and its stream
 * neither stands in a wait nor runs a collective itself. Without any COMPUTE span in the trace: all
 * of the step but its waits. communication  at least one collective runs overlapped     both
 *   exposed        communication without compute
 *   idle           neither; compute + exposed + idle = step, communication = overlapped + exposed
 * Traces of the shim have no steps and no buckets: they are recognised first (recognise.h). Without
 * kernels in them nothing is known of compute, and so nothing of what is exposed; nor of steps that
 * have none, where others have. Collectives take the times of NCCL's kernels where those are known.
 * A gather may run past the step that started it: it is counted for that step, but its time belongs
 * to the window that it runs in.
 *
 * Medians and 95th percentiles are by nearest rank: they are values that occurred.
 */
#ifndef BRIGADE_SCHED_TRACE_ANALYSIS_H
#define BRIGADE_SCHED_TRACE_ANALYSIS_H

#include "sched/trace/recognise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_stat {
    double median, p95, min, max;
    uint64_t n; /* 0: nothing was measured, the rest is 0 */
} brg_stat;

/* How often something happened in a step. */
typedef struct brg_step_count {
    uint64_t min, max, total; /* min != max: not the same in all steps */
} brg_step_count;

typedef struct brg_partition {
    int64_t step_ns, compute_ns, communication_ns, overlapped_ns, exposed_ns, idle_ns;
} brg_partition;

typedef struct brg_bucket_report {
    uint32_t id;
    bool described; /* meta is known */
    brg_meta_bucket meta;
    /* Offsets from the beginning of the step that issued it, ns. The host runs ahead of the device:
     * what is issued before the step begins there has a negative one. */
    brg_stat ready, reduce_issued, reduce_start, reduce_end;
    brg_stat gather_issued, gather_start, gather_end;
    /* Lengths, ns. Waits: per step, 0 in a step without one. */
    brg_stat reduce_time, gather_time, reduce_wait, gather_wait, wait;
    /* What the step loses to this bucket's communication, ns per step; see replay.h. n = 0:
     * unknown. */
    brg_stat exposed;
    /* nccl-tests' bus bandwidth, bytes per ns (GB/s); of all that was issued with it as one. */
    brg_stat reduce_busbw, gather_busbw;
    /* How many were issued with it as one, itself included: those have its times, too. */
    brg_stat reduce_group, gather_group;
    brg_step_count reduce_scatters, all_gathers, all_reduces;
} brg_bucket_report;

typedef struct brg_named_report {
    const char *name; /* points into the trace, or is constant */
    brg_stat time;    /* ns per step, 0 in a step without */
} brg_named_report;

/* All collectives of one communicator, or of one kind: per step. */
typedef struct brg_group_report {
    uint32_t id; /* the communicator, or its brg_func */
    brg_stat count, bytes;
    brg_stat time; /* ns, of those with device times; n = 0: none has */
} brg_group_report;

/* What the cost of a bucket was taken from. */
typedef enum brg_exposed_from {
    BRG_EXPOSED_UNKNOWN,
    BRG_EXPOSED_WAITS,   /* replays of the recorded waits, see replay.h */
    BRG_EXPOSED_KERNELS, /* the time in which it was communicated and no kernel ran */
} brg_exposed_from;

typedef struct brg_rank_report {
    brg_recognition *recognition; /* NULL: steps and buckets were recorded */
    bool compute_known;           /* false: compute, overlapped, exposed, idle mean nothing */
    brg_exposed_from exposed_from;
    uint32_t steps_recorded;   /* complete steps in the trace */
    uint32_t steps_warmup;     /* left out because they came first */
    uint32_t steps_incomplete; /* left out because records of theirs may be missing */
    uint32_t steps_used;
    uint32_t steps_replayed;        /* of those used: replays of a graph */
    uint32_t steps_without_compute; /* of those used: recognised, while no kernels were recorded */
    brg_partition typical; /* mean over the half of the steps whose lengths are in the middle */
    brg_stat step, compute, communication, overlapped, exposed, idle;
    bool compute_recorded; /* there are COMPUTE spans */
    bool waits_recorded;   /* there are waits with known collectives: the replay means something */
    brg_stat replay_error; /* |replayed - recorded| / recorded, of the unchanged recording */
    brg_stat
        exposed_all; /* what the step loses to all buckets together, by replay; n = 0: unknown */

    brg_bucket_report *buckets; /* by id */
    size_t nbuckets;
    brg_named_report *computes; /* forward, backward, other: those that occurred */
    size_t ncomputes;
    brg_named_report *optimizers; /* in order of first appearance */
    size_t noptimizers;
    brg_stat norm;
    /* From the end of a step's last reduction (of a bucket, timed) to the beginning of its first
     * optimizer update, ns; n = 0: no step has both. */
    brg_stat update_delay;
    brg_stat other_collectives; /* ns per step in collectives that belong to no bucket */
    brg_group_report *comms;    /* by id */
    size_t ncomms;
    brg_group_report *funcs; /* by id */
    size_t nfuncs;
} brg_rank_report;

typedef struct brg_analysis_options {
    /* The first steps are left out: the very first one learns and issues everything at its end. As
     * many as this, unless no step would be left; none where the ring has overwritten them. */
    uint32_t warmup_steps;
    bool warmup_exact; /* the user's own number: where it leaves no step, BRG_ERR_NO_DATA */
    brg_recognise_options recognise;
} brg_analysis_options;

/* BRG_ERR_NO_DATA: no complete step or no collective; the message names the file. The report's
 * names live as long as the trace, which may forget its records. */
brg_status brg_trace_analyze(const brg_trace *trace, const brg_analysis_options *options,
                             brg_rank_report *report);
void brg_rank_report_free(brg_rank_report *report);

#ifdef __cplusplus
}
#endif
#endif
