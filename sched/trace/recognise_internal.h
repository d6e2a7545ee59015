/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the recognition share. */
#ifndef BRIGADE_SCHED_TRACE_RECOGNISE_INTERNAL_H
#define BRIGADE_SCHED_TRACE_RECOGNISE_INTERNAL_H

#include "sched/trace/recognise.h"

/* Smaller collectives are scalars and flags, not buckets. */
#define BRG_TINY_BYTES (64u << 10)

/* A collective of the data-parallel communicator. */
typedef struct brg_event {
    const brg_rec *rec;
    size_t index;    /* of rec */
    uint64_t lost;   /* operations between the one before and this one that are not in the trace */
    uint32_t symbol; /* equal for those that are the same collective; 0: plays no part */
    uint32_t loose;  /* the same without the address */
    uint32_t bucket; /* BRG_NO_BUCKET: none */
    bool reduction, gather;
    double time_ns; /* its share, by bytes, of the time that all issued with it as one have */
} brg_event;

/* Cycles of a sequence: every one is `pattern`, of length `period`. */
typedef struct brg_cycles {
    size_t period;
    uint32_t *pattern;
    size_t *first; /* index of each cycle's first element */
    size_t count;
    double score; /* 0 to 1: how much of the sequence recurs */
} brg_cycles;

/* Idle time between collectives of which one has device times and the other the host's. */
#define BRG_GAP_UNKNOWN INT64_MIN

/* `gaps_ns`: idle time in front of each, or unknown; a cycle begins after the longest. `lost`: how
 * many operations before each are missing in the trace. count = 0 when nothing recurs. */
brg_status brg_cycles_find(const uint32_t *symbols, const int64_t *gaps_ns, const uint64_t *lost,
                           size_t n, brg_cycles *cycles);
void brg_cycles_free(brg_cycles *cycles);

/* A step: reductions [r_first, r_end) of the sequence, events [e_first, e_end). */
typedef struct brg_step_span {
    size_t r_first, r_end, e_first, e_end;
    bool closed;        /* e_end is known */
    bool host;          /* without a single device time */
    bool lossy, unlike; /* why it does not count */
    bool mixed;         /* the same: its times are by two clocks, or not by that of the others */
    uint64_t gathers;   /* their number */
    uint64_t signature; /* of its gathers */
} brg_step_span;

typedef struct brg_pattern {
    brg_event *events; /* of the communicator, in the order of the calls */
    size_t nevents;
    bool timed;         /* some have device times */
    size_t *reductions; /* those that make cycles: indices into events */
    uint32_t *symbols;  /* their symbols */
    size_t nreductions;
    brg_cycles cycles;
    bool by_address, gathers_by_address; /* addresses recur */
    size_t micro_steps;
    bool micro_steps_known;
    brg_step_span *steps;
    size_t nsteps, nlost; /* nlost: what is left of steps between cycles */
    size_t nearly;        /* reductions before the first step that can be whole */
    bool gathers_first, interleaved;
    const brg_step_span *model; /* one like most; NULL: none */
} brg_pattern;

/* recognise_steps.c: from reductions to cycles and steps. `repeats`: cycles of a step, 0: unknown.
 */
brg_status brg_pattern_find(brg_pattern *pattern, uint32_t repeats, const char *path);
void brg_pattern_free(brg_pattern *pattern);
uint64_t brg_event_elements(const brg_event *event);

/* Idle time from the end of one event to the begin of a later one, or BRG_GAP_UNKNOWN. */
int64_t brg_pattern_gap(const brg_pattern *pattern, size_t from, size_t to);
/* Whether its time is that of the call on the host, and not a capture's, which is no time at all.
 */
static inline bool brg_event_untimed(const brg_event *e)
{
    return (e->rec->flags & BRG_REC_UNTIMED) && !(e->rec->flags & BRG_REC_CAPTURED);
}

/* recognise_rounds.c: how many cycles make a step, and which cycle is the last of one. */
brg_status brg_pattern_rounds(brg_pattern *pattern, uint32_t repeats, bool *ends, const char *path);
/* Gathers among the events [from, to). */
size_t brg_pattern_gathers(const brg_pattern *pattern, size_t from, size_t to);

/* recognise_buckets.c: bucket numbers of the events of all steps in use; *nbuckets of them. */
brg_status brg_pattern_buckets(brg_pattern *pattern, brg_trace_bucket **buckets, size_t *nbuckets);

/* recognise_kernels.c: gives collectives the times of the kernels of NCCL's that they launched, as
 * far as those are in the trace. */
brg_status brg_recognise_kernels(brg_recognition *recognition);

/* waste.c: fills `waste` of a recognition whose trace is complete. */
brg_status brg_waste_find(brg_recognition *recognition, const brg_pattern *pattern,
                          const brg_trace *source);

/* Behind the last reduction of a cycle. */
static inline size_t brg_cycle_end(const brg_pattern *p, size_t cycle)
{
    return p->cycles.first[cycle] + p->cycles.period;
}

/* Whether the step is one of those in use. */
static inline bool brg_step_counts(const brg_step_span *s)
{
    return s->closed && !s->lossy && !s->unlike && !s->mixed;
}

#endif
