/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of half-open intervals [t0, t1) on the timeline. */
#ifndef BRIGADE_SCHED_TRACE_INTERVALS_H
#define BRIGADE_SCHED_TRACE_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

#include "sched/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_interval {
    int64_t t0, t1;
    int64_t before; /* total length of the intervals before this one; valid once normal */
} brg_interval;

/* All zero is the empty set. A set is normal when its intervals are sorted, apart and not empty;
 * everything but _add() and _normalize() needs normal sets and makes normal sets. */
typedef struct brg_interval_set {
    brg_interval *at;
    size_t count, capacity;
} brg_interval_set;

void brg_interval_set_free(brg_interval_set *set);
/* t1 <= t0 adds nothing. */
brg_status brg_interval_set_add(brg_interval_set *set, int64_t t0, int64_t t1);
void brg_interval_set_normalize(brg_interval_set *set);

/* Set `out`, which must be empty. */
brg_status brg_interval_set_intersect(const brg_interval_set *a, const brg_interval_set *b,
                                      brg_interval_set *out);
brg_status brg_interval_set_subtract(const brg_interval_set *a, const brg_interval_set *b,
                                     brg_interval_set *out);

/* Length of the part of the set that lies in [t0, t1); O(log n). */
int64_t brg_interval_set_within(const brg_interval_set *set, int64_t t0, int64_t t1);

#ifdef __cplusplus
}
#endif
#endif
