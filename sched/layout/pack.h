/* SPDX-License-Identifier: Apache-2.0 */
/* Packing a chunk: which shard each matrix goes to, and where in it.
 *
 * A packer is made once for a buffer and packs its chunks one after the other. Only the first
 * min(shards, items) shards are kept track of: both packings take the first of equally good shards,
 * so with k items placed, shards from k on are still empty and idle. */
#ifndef BRIGADE_LAYOUT_PACK_H
#define BRIGADE_LAYOUT_PACK_H

#include "sched/layout/fit_tree.h"
#include "sched/layout/min_tree.h"
#include "sched/layout/plan.h"

typedef struct brg_packed {
    const brg_plan_item *item;
    int shard;
    int64_t offset; /* in the shard */
} brg_packed;

typedef struct brg_packer {
    int num_shards;
    brg_packed *placed; /* the chunk last packed, in order of placement */
    int num_placed;
    int64_t max_fill;
    brg_min_tree fills;   /* of the shards, unaligned; 0 between chunks */
    brg_fit_tree balance; /* ns-balanced: fills and persistent loads */
} brg_packer;

brg_status brg_packer_init(brg_packer *packer, const brg_plan_request *request,
                           brg_packing packing);
void brg_packer_free(brg_packer *packer);

/* Pack `count` consecutive items; the result is in placed, num_placed and max_fill. */
void brg_pack_largest_first(brg_packer *packer, const brg_plan_item *items, int count);
void brg_pack_ns_balanced(brg_packer *packer, const brg_plan_item *items, int count);

/* For the packings: starts a chunk with its items in the given order, and places the next of them;
 * returns the new fill of the shard. */
void brg_packer_begin(brg_packer *packer, const brg_plan_item *items, int count,
                      int (*order)(const void *, const void *));
int64_t brg_packer_place(brg_packer *packer, brg_packed *entry, int shard);

#endif
