/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the shards that have room carries the least work, the first of equals.
 *
 * A treap ordered by (fill, shard), each node knowing the best shard of its subtree. Shards without
 * room are a suffix of that order, so a question is one walk down. Priorities are a hash of the
 * shard number: the same on every rank and run. */
#ifndef BRIGADE_LAYOUT_FIT_TREE_H
#define BRIGADE_LAYOUT_FIT_TREE_H

#include <stdint.h>

#include "sched/layout/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_fit_node {
    int64_t fill;     /* aligned: where the next parameter would start */
    brg_ns_cost load; /* work of everything placed on the shard so far */
    uint32_t priority;
    int left, right; /* -1: none */
    int best;        /* shard of least load in this subtree */
} brg_fit_node;

typedef struct brg_fit_tree {
    brg_fit_node *nodes; /* one per shard */
    int root;
} brg_fit_tree;

/* `count` shards (1 or more), all empty and idle. */
brg_status brg_fit_tree_init(brg_fit_tree *tree, int count);
void brg_fit_tree_free(brg_fit_tree *tree);

/* Gives a shard another fill and adds to its load. */
void brg_fit_tree_update(brg_fit_tree *tree, int shard, int64_t fill, brg_ns_cost more_load);

/* Least loaded shard with a fill of at most `fill_limit`, -1 if there is none. */
int brg_fit_tree_find(const brg_fit_tree *tree, int64_t fill_limit);

#ifdef __cplusplus
}
#endif
#endif
