/* SPDX-License-Identifier: Apache-2.0 */
/* Which shard holds least, the first of equals: a tournament tree. Setting a value and asking take
 * time logarithmic in the number of shards. */
#ifndef BRIGADE_LAYOUT_MIN_TREE_H
#define BRIGADE_LAYOUT_MIN_TREE_H

#include <stdint.h>

#include "brigade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_min_tree {
    int num_leaves; /* a power of two */
    int64_t *min;   /* min[1] is the root, min[num_leaves + i] leaf i */
} brg_min_tree;

/* `count` values (1 or more), all 0. */
brg_status brg_min_tree_init(brg_min_tree *tree, int count);
void brg_min_tree_free(brg_min_tree *tree);
void brg_min_tree_set(brg_min_tree *tree, int index, int64_t value);
int64_t brg_min_tree_get(const brg_min_tree *tree, int index);
int brg_min_tree_first(const brg_min_tree *tree);

#ifdef __cplusplus
}
#endif
#endif
