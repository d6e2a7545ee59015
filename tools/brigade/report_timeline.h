/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's records as what a timeline viewer shows: lanes of slices that nest, flows between
 * them, the bytes in flight. */
#ifndef BRIGADE_TOOLS_REPORT_TIMELINE_H
#define BRIGADE_TOOLS_REPORT_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/trace/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lane_kind {
    LANE_STEP,
    LANE_COMPUTE, /* of a stream */
    LANE_WAIT,    /* of a stream */
    LANE_OPTIMIZER,
    LANE_COMM,   /* of a stream: what was issued as one is one slice */
    LANE_BUCKET, /* of a bucket, or of all collectives without one */
} lane_kind;

typedef struct timeline_lane {
    lane_kind kind;
    uint32_t id;   /* stream or bucket */
    uint32_t copy; /* slices that overlap and do not nest are on several lanes of a kind and id */
    size_t first, count;
} timeline_lane;

typedef struct timeline_slice {
    uint64_t t0_ns, t1_ns;         /* of CLOCK_MONOTONIC, as the records have them */
    const brg_rec *const *records; /* one, but for collectives that were issued as one */
    size_t nrecords;
    lane_kind kind;
    uint32_t id;
    uint32_t lane; /* index of it */
} timeline_slice;

/* A bucket's way: gradients (LANE_BUCKET), launch (LANE_COMM), optimizer. */
typedef struct timeline_point {
    size_t slice;
    uint64_t flow;
    int stage; /* order within the flow */
    bool last;
} timeline_point;

typedef struct timeline_counter {
    uint64_t t_ns, bytes;
} timeline_counter;

typedef struct timeline {
    const brg_trace *trace;
    const brg_rec **records;
    timeline_slice *slices; /* lane by lane; within one by begin, the enclosing first */
    size_t nslices;
    timeline_lane *lanes; /* by kind, id, copy */
    size_t nlanes;
    timeline_point *points; /* by slice */
    size_t npoints;
    timeline_counter *in_flight; /* by time */
    size_t nin_flight;
} timeline;

/* Records in [from_ns, to_ns), by their begin. */
brg_status timeline_build(const brg_trace *trace, uint64_t from_ns, uint64_t to_ns, timeline *t);
void timeline_free(timeline *t);

/* The earliest time in the trace; UINT64_MAX when there is none. */
uint64_t timeline_begin(const brg_trace *trace);

enum { TIMELINE_TEXT = 160 };

/* Printable ASCII. */
const char *timeline_lane_name(const timeline *t, const timeline_lane *lane,
                               char buffer[TIMELINE_TEXT]);
const char *timeline_slice_name(const timeline *t, const timeline_slice *slice,
                                char buffer[TIMELINE_TEXT]);
const char *timeline_func_name(uint8_t func); /* "ReduceScatter" */
uint64_t timeline_slice_bytes(const timeline_slice *slice);

#ifdef __cplusplus
}
#endif
#endif
