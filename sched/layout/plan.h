/* SPDX-License-Identifier: Apache-2.0 */
/* Planning one buffer: what the planners are given and what they give back.
 *
 * A planner is a pure function of a request. It places every item once, in an order of its own, and
 * closes buckets back to back from element 0. The limit below keeps every sum of positions, sizes
 * and alignment gaps far from the end of int64_t, so that only products need a check. */
#ifndef BRIGADE_LAYOUT_PLAN_H
#define BRIGADE_LAYOUT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "brigade/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most elements a buffer may have, padding included. */
#define BRG_PLAN_MAX_ELEMS ((int64_t)1 << 59)

/* Parameter starts are multiples of this many elements. */
#define BRG_PLAN_ALIGN 64

/* Newton-Schulz work in max * min^2 units: below 2^95 for a matrix, below 2^126 for a buffer. */
typedef unsigned __int128 brg_ns_cost;

typedef struct brg_plan_item {
    const char *name; /* for messages */
    int param;        /* index in registration order */
    bool shared_embedding;
    int64_t numel;
    brg_ns_cost ns_cost;
} brg_plan_item;

typedef struct brg_plan_request {
    const brg_plan_item *items; /* in backprop order; numels sum up to BRG_PLAN_MAX_ELEMS at most */
    int num_items;
    int num_shards;
    int64_t bucket_size; /* 0 or more, or BRG_BUCKET_SIZE_NONE */
    bool pad_for_high_bus_bandwidth;
    bool pad_param_starts; /* flat only */
} brg_plan_request;

typedef struct brg_plan {
    brg_layout_param *params; /* in order of placement */
    int num_params;
    brg_layout_bucket *buckets;
    int num_buckets;
} brg_plan;

/* The planners. On success the caller frees the plan with brg_plan_free(); on failure it is empty.
 */
brg_status brg_plan_flat(const brg_plan_request *request, brg_plan *plan);
brg_status brg_plan_elementwise(const brg_plan_request *request, brg_plan *plan);
brg_status brg_plan_layerwise(const brg_plan_request *request, brg_packing packing, brg_plan *plan);

void brg_plan_free(brg_plan *plan);

/* For planners: room for every item, and for as many buckets (none is ever without an item). */
brg_status brg_plan_init(brg_plan *plan, int num_items);

/* Places an item in the bucket that is still open; `shard` is -1 where shards may cut items. */
void brg_plan_place(brg_plan *plan, const brg_plan_item *item, int64_t start, int shard);

/* Closes the open bucket at `end`, which starts where the one before ended. */
void brg_plan_close(brg_plan *plan, int64_t end, int64_t numel_unpadded);

/* End of the last closed bucket: where the open one starts. */
int64_t brg_plan_end(const brg_plan *plan);

/* Fails if a buffer that is to end at `end` is too large; `item` is the one that got it there. */
brg_status brg_plan_check_end(__int128 end, const brg_plan_item *item, int num_shards);

/* Smallest multiple of `divisor` that is at least `value`; both not negative, divisor positive. */
static inline int64_t brg_round_up(int64_t value, int64_t divisor)
{
    int64_t rest = value % divisor;
    return rest ? value + (divisor - rest) : value;
}

static inline int64_t brg_align_start(int64_t value)
{
    return (value + (BRG_PLAN_ALIGN - 1)) & ~(int64_t)(BRG_PLAN_ALIGN - 1);
}

/* Bucket ends are multiples of the first, shard sizes of the second; num_shards times the second is
 * a multiple of the first. */
int64_t brg_plan_bucket_divisor(int num_shards, bool pad_for_high_bus_bandwidth);
int64_t brg_plan_shard_divisor(int num_shards, bool pad_for_high_bus_bandwidth);

#ifdef __cplusplus
}
#endif
#endif
