/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/pack.h"

/* Largest first; equals stay in backprop order, which is the order of their addresses. */
static int by_numel(const void *a, const void *b)
{
    const brg_plan_item *x = ((const brg_packed *)a)->item;
    const brg_plan_item *y = ((const brg_packed *)b)->item;
    if (x->numel != y->numel)
        return x->numel > y->numel ? -1 : 1;
    return (x > y) - (x < y);
}

void brg_pack_largest_first(brg_packer *packer, const brg_plan_item *items, int count)
{
    brg_packer_begin(packer, items, count, by_numel);
    for (int i = 0; i < count; i++)
        brg_packer_place(packer, &packer->placed[i], brg_min_tree_first(&packer->fills));
    for (int i = 0; i < count; i++)
        brg_min_tree_set(&packer->fills, packer->placed[i].shard, 0);
}
