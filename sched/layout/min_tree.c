/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/min_tree.h"

#include <stdlib.h>

#include "sched/status.h"

static int64_t least(int64_t a, int64_t b)
{
    return b < a ? b : a;
}

brg_status brg_min_tree_init(brg_min_tree *tree, int count)
{
    size_t leaves = 1;
    while (leaves < (size_t)count)
        leaves *= 2;
    tree->min = leaves <= (size_t)1 << 30 ? calloc(2 * leaves, sizeof *tree->min) : NULL;
    if (!tree->min)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the fill of %d shards", count);
    tree->num_leaves = (int)leaves;
    for (size_t i = leaves + (size_t)count; i < 2 * leaves; i++)
        tree->min[i] = INT64_MAX;
    for (size_t i = leaves - 1; i > 0; i--)
        tree->min[i] = least(tree->min[2 * i], tree->min[2 * i + 1]);
    return BRG_OK;
}

void brg_min_tree_free(brg_min_tree *tree)
{
    free(tree->min);
    tree->min = NULL;
}

void brg_min_tree_set(brg_min_tree *tree, int index, int64_t value)
{
    size_t i = (size_t)tree->num_leaves + (size_t)index;
    tree->min[i] = value;
    for (i /= 2; i > 0; i /= 2) {
        int64_t min = least(tree->min[2 * i], tree->min[2 * i + 1]);
        if (tree->min[i] == min)
            return; /* nothing above looks further down */
        tree->min[i] = min;
    }
}

int64_t brg_min_tree_get(const brg_min_tree *tree, int index)
{
    return tree->min[tree->num_leaves + index];
}

int brg_min_tree_first(const brg_min_tree *tree)
{
    size_t i = 1;
    while (i < (size_t)tree->num_leaves)
        i = 2 * i + (tree->min[2 * i] > tree->min[2 * i + 1]);
    return (int)(i - (size_t)tree->num_leaves);
}
