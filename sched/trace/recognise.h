/* SPDX-License-Identifier: Apache-2.0 */
/* Steps and buckets of a trainer that knows nothing of Brigade, from its collectives alone. Pure.
 *
 * The shim records every collective with its communicator, number, size and address
 * (shim/interpose/shim.h), and nothing else. A training step issues the same ones again in the same
 * order:
 *
 * 1. The data-parallel communicator is the one whose recurring reductions have most bytes, each
 *    buffer counted once, so that a small one that is reduced in every layer does not win.
 * 2. Its reductions without the tiny ones are a sequence of (kind, bytes, type, address); the
 *    smallest period that explains it is a cycle. Where addresses do not recur they are left out.
 *    Whole cycles are searched for in the sequence: what comes before, between and after them
 *    (first step before DDP makes its buckets anew, lost records) is left out.
 * 3. Cycles without gathers before one with gathers of as many elements as are reduced are
 *    micro-steps of one step. Accumulation without such a mark cannot be told from steps: the user
 *    has to say how many cycles make one. Steps then begin where the pause before is longest.
 * 4. A step begins with its first reduction, or, when parameters are gathered for the forward
 *    pass, with the first gather after the last reduction before it.
 * 5. The gathers of most steps are the pattern. Steps with others (evaluation) are left out.
 *
 * A bucket is a reduction of the cycle with the gathers that belong to it: those of the same
 * address and size, else of as many elements. They are named r0, r1, ... in order.
 */
#ifndef BRIGADE_SCHED_TRACE_RECOGNISE_H
#define BRIGADE_SCHED_TRACE_RECOGNISE_H

#include "sched/trace/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most cycles that can be said to make a step. */
#define BRG_REPEATS_MAX 65536

typedef struct brg_recognise_options {
    bool comm_given; /* `comm` is the data-parallel communicator */
    uint32_t comm;
    uint32_t repeats; /* as many cycles make a step; 0: as many as gathers tell, else one */
} brg_recognise_options;

/* What the shim said of a communicator ("comm N"). */
typedef struct brg_comm_info {
    uint32_t comm;
    uint32_t size, rank; /* UINT32_MAX: unknown */
    uint64_t hash;       /* the same on all its ranks; 0: unknown */
} brg_comm_info;

typedef enum brg_waste_kind {
    BRG_WASTE_GATHERED, /* a bucket's parameters are gathered more than once in a step */
    BRG_WASTE_REDUCED,  /* the same buffer is reduced more than once in a cycle */
    BRG_WASTE_TINY,     /* small ones right behind one another could be one */
} brg_waste_kind;

/* What a step does that it may not need. Numbers are means over the steps that do it. */
typedef struct brg_waste {
    brg_waste_kind kind;
    bool by_design;  /* gathered again because it was freed after forward */
    uint32_t comm;   /* the shim's number of it */
    uint32_t bucket; /* BRG_NO_BUCKET: none */
    uint8_t func, dtype;
    uint32_t steps;       /* that do it, of those in use: evaluation does what training does not */
    double count;         /* such collectives a step */
    double runs;          /* what they could become, at least 1 */
    double bytes;         /* of those that could go: all but the first; TINY: of all */
    double time_ns;       /* the same; of the timed ones */
    uint64_t first_bytes; /* of one of them */
} brg_waste;

typedef struct brg_recognition {
    /* The trace as if steps and buckets had been recorded: STEP records, collectives with step and
     * bucket, aux = time of the host call or 0. Its texts are those of the source. */
    brg_trace trace;
    bool found;         /* false: nothing recurs, and trace has no steps */
    brg_comm_info comm; /* the data-parallel communicator */
    bool by_address;    /* false: addresses do not recur, only sizes */
    bool gathers_first; /* parameters are gathered at the beginning of the step */
    uint32_t micro_steps;
    bool micro_steps_known; /* false: one is a guess, as nothing marks the end of a step */
    uint32_t steps_whole;   /* became STEP records */
    uint32_t steps_lossy;   /* left out: records of theirs are missing */
    uint32_t steps_untimed; /* left out: some or all of their collectives have no device times,
                               which others have: the host's clock measures something else */
    uint32_t steps_unlike;  /* left out: other gathers than most have, as in evaluation */
    uint64_t early; /* reductions before the first cycle: DDP before it makes its buckets anew */
    /* Of the data-parallel communicator: all, those in whole steps, those in a last step of which
     * nobody knows the end. */
    uint64_t collectives, recognised, unfinished;
    uint64_t untimed, captured; /* of all communicators */
    uint64_t timed_by_kernels;  /* the same: those whose times are NCCL's kernels', not events' */
    brg_waste *waste;
    size_t nwaste;
} brg_recognition;

/* Whether the trace is one of the shim's, without steps. */
bool brg_recognise_needed(const brg_trace *trace);
/* The source must outlive the result. */
brg_status brg_recognise(const brg_trace *source, const brg_recognise_options *options,
                         brg_recognition *recognition);
void brg_recognition_free(brg_recognition *recognition);

/* What is known of communicator `comm`. */
brg_comm_info brg_comm_info_get(const brg_trace *trace, uint32_t comm);

#ifdef __cplusplus
}
#endif
#endif
