/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/pack.h"

/* Most work first; equals stay in backprop order, which is the order of their addresses. */
static int by_ns_cost(const void *a, const void *b)
{
    const brg_plan_item *x = ((const brg_packed *)a)->item;
    const brg_plan_item *y = ((const brg_packed *)b)->item;
    if (x->ns_cost != y->ns_cost)
        return x->ns_cost > y->ns_cost ? -1 : 1;
    return (x > y) - (x < y);
}

/* The least worked shard among those that stay within 1.3 times the mean fill; the emptiest one
 * when none does. Loads go on from chunk to chunk, fills do not. */
void brg_pack_ns_balanced(brg_packer *packer, const brg_plan_item *items, int count)
{
    __int128 total = 0;
    for (int i = 0; i < count; i++)
        total += items[i].numel;
    int64_t cap = (int64_t)(13 * total / ((__int128)10 * packer->num_shards));

    brg_packer_begin(packer, items, count, by_ns_cost);
    for (int i = 0; i < count; i++) {
        brg_packed *entry = &packer->placed[i];
        int shard = brg_fit_tree_find(&packer->balance, cap - entry->item->numel);
        if (shard < 0)
            shard = brg_min_tree_first(&packer->fills);
        int64_t fill = brg_packer_place(packer, entry, shard);
        brg_fit_tree_update(&packer->balance, shard, brg_align_start(fill), entry->item->ns_cost);
    }
    for (int i = 0; i < count; i++) {
        int shard = packer->placed[i].shard;
        if (packer->balance.nodes[shard].fill != 0)
            brg_fit_tree_update(&packer->balance, shard, 0, 0);
        brg_min_tree_set(&packer->fills, shard, 0);
    }
}
