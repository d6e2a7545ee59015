/* SPDX-License-Identifier: Apache-2.0 */
/* Late peer or slow transfer: the same collective as all its ranks saw it. Pure.
 *
 * A collective moves data only when its last rank has come, and no rank leaves it much before the
 * others. So the ends of the same collectives tell how the ranks' clocks differ (offset and drift,
 * fitted to the medians), what is left between the ends after that is the error of everything said
 * here, and a start later than the others by more than that error is a late peer. The transfer is
 * what remains: from the last start to the end.
 */
#ifndef BRIGADE_SCHED_TRACE_ARRIVALS_H
#define BRIGADE_SCHED_TRACE_ARRIVALS_H

#include "sched/trace/analysis.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A timed collective of one rank. */
typedef struct brg_arrival {
    uint64_t hash;   /* of the communicator, the same on all ranks */
    uint32_t number; /* of the collective on its communicator */
    uint32_t bucket; /* or BRG_NO_BUCKET; of steps in use only */
    uint64_t bytes;
    uint64_t t0_ns, t1_ns;
    uint8_t func;
    bool used; /* belongs to a step in use */
} brg_arrival;

typedef struct brg_arrival_list {
    brg_arrival *at;
    size_t count;
    uint32_t rank;
} brg_arrival_list;

/* Times in ns. */
typedef struct brg_rank_arrivals {
    uint32_t rank;
    double
        offset_ns;   /* of its clock against the first rank's, at the first collective they share */
    double drift;    /* ns per ns */
    double error_ns; /* 95th percentile of what is left between the ends */
    uint64_t shared; /* collectives that the clock was fitted to; 0: not comparable */
    uint64_t last;   /* collectives for which it came last by more than the error */
    brg_stat late;   /* by how much, after the median rank, in those */
} brg_rank_arrivals;

/* What most of a bucket's time on the rank that came first was. */
typedef enum brg_reason {
    BRG_REASON_UNCLEAR, /* the clocks' error is too large to tell */
    BRG_REASON_LATE_PEER,
    BRG_REASON_TRANSFER,
} brg_reason;

typedef struct brg_bucket_arrivals {
    uint32_t bucket;
    brg_stat spread;    /* last start - first start */
    brg_stat transfer;  /* end - last start */
    brg_stat wait;      /* last start - median start: what most ranks waited */
    uint32_t last_rank; /* the one that came last most often */
    double last_share;  /* how often, 0 to 1 */
    brg_reason reason;
} brg_bucket_arrivals;

typedef struct brg_arrivals {
    brg_rank_arrivals *ranks; /* in the order of the lists */
    size_t nranks;
    brg_bucket_arrivals *buckets; /* by bucket */
    size_t nbuckets;
    uint64_t matched; /* collectives that all ranks of the lists have */
    uint64_t unlike;  /* left out: of the same number, but not the same */
    double error_ns;  /* the largest of the ranks'; what lies below it is not known */
} brg_arrivals;

/* The timed collectives of a recognised trace; `source` with its records. Other traces: none. */
brg_status brg_arrival_list_make(const brg_trace *source, const brg_rank_report *report,
                                 brg_arrival_list *list);
void brg_arrival_list_free(brg_arrival_list *list);

/* Two lists or more, of different ranks; sorts them. Without anything in common: matched = 0. */
brg_status brg_arrivals_compare(brg_arrival_list *lists, size_t nlists, brg_arrivals *arrivals);
void brg_arrivals_free(brg_arrivals *arrivals);

#ifdef __cplusplus
}
#endif
#endif
