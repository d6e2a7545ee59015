/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/fit_tree.h"

#include <stdlib.h>

#include "sched/status.h"

static uint32_t priority_of(int shard)
{
    uint64_t x = (uint64_t)shard + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

static int better(const brg_fit_node *nodes, int a, int b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    if (nodes[a].load != nodes[b].load)
        return nodes[a].load < nodes[b].load ? a : b;
    return a < b ? a : b;
}

static void refresh(brg_fit_node *nodes, int at)
{
    int best = at;
    if (nodes[at].left >= 0)
        best = better(nodes, best, nodes[nodes[at].left].best);
    if (nodes[at].right >= 0)
        best = better(nodes, best, nodes[nodes[at].right].best);
    nodes[at].best = best;
}

/* Whether node `a` comes before (fill, shard). */
static bool before(const brg_fit_node *nodes, int a, int64_t fill, int shard)
{
    return nodes[a].fill != fill ? nodes[a].fill < fill : a < shard;
}

static void split(brg_fit_node *nodes, int at, int64_t fill, int shard, int *left, int *right)
{
    if (at < 0) {
        *left = *right = -1;
        return;
    }
    if (before(nodes, at, fill, shard)) {
        split(nodes, nodes[at].right, fill, shard, &nodes[at].right, right);
        *left = at;
    } else {
        split(nodes, nodes[at].left, fill, shard, left, &nodes[at].left);
        *right = at;
    }
    refresh(nodes, at);
}

static int merge(brg_fit_node *nodes, int left, int right)
{
    if (left < 0 || right < 0)
        return left < 0 ? right : left;
    if (nodes[left].priority >= nodes[right].priority) {
        nodes[left].right = merge(nodes, nodes[left].right, right);
        refresh(nodes, left);
        return left;
    }
    nodes[right].left = merge(nodes, left, nodes[right].left);
    refresh(nodes, right);
    return right;
}

static int insert(brg_fit_node *nodes, int at, int shard)
{
    if (at < 0 || nodes[shard].priority > nodes[at].priority) {
        split(nodes, at, nodes[shard].fill, shard, &nodes[shard].left, &nodes[shard].right);
        refresh(nodes, shard);
        return shard;
    }
    if (before(nodes, at, nodes[shard].fill, shard))
        nodes[at].right = insert(nodes, nodes[at].right, shard);
    else
        nodes[at].left = insert(nodes, nodes[at].left, shard);
    refresh(nodes, at);
    return at;
}

static int take_out(brg_fit_node *nodes, int at, int shard)
{
    if (at == shard)
        return merge(nodes, nodes[at].left, nodes[at].right);
    if (before(nodes, at, nodes[shard].fill, shard))
        nodes[at].right = take_out(nodes, nodes[at].right, shard);
    else
        nodes[at].left = take_out(nodes, nodes[at].left, shard);
    refresh(nodes, at);
    return at;
}

brg_status brg_fit_tree_init(brg_fit_tree *tree, int count)
{
    tree->root = -1;
    tree->nodes = calloc((size_t)count, sizeof *tree->nodes);
    if (!tree->nodes)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the work of %d shards", count);
    for (int shard = 0; shard < count; shard++) {
        tree->nodes[shard].priority = priority_of(shard);
        tree->root = insert(tree->nodes, tree->root, shard);
    }
    return BRG_OK;
}

void brg_fit_tree_free(brg_fit_tree *tree)
{
    free(tree->nodes);
    tree->nodes = NULL;
}

void brg_fit_tree_update(brg_fit_tree *tree, int shard, int64_t fill, brg_ns_cost more_load)
{
    tree->root = take_out(tree->nodes, tree->root, shard);
    tree->nodes[shard].fill = fill;
    tree->nodes[shard].load += more_load;
    tree->root = insert(tree->nodes, tree->root, shard);
}

int brg_fit_tree_find(const brg_fit_tree *tree, int64_t fill_limit)
{
    const brg_fit_node *nodes = tree->nodes;
    int best = -1;
    int at = tree->root;
    while (at >= 0) {
        if (nodes[at].fill > fill_limit) {
            at = nodes[at].left;
            continue;
        }
        best = better(nodes, best, at);
        if (nodes[at].left >= 0)
            best = better(nodes, best, nodes[nodes[at].left].best);
        at = nodes[at].right;
    }
    return best;
}
