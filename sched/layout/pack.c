/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/pack.h"

#include <stdlib.h>

#include "sched/status.h"

brg_status brg_packer_init(brg_packer *packer, const brg_plan_request *request, brg_packing packing)
{
    int tracked =
        request->num_items < request->num_shards ? request->num_items : request->num_shards;
    brg_status status = BRG_OK;

    *packer = (brg_packer){.num_shards = request->num_shards};
    if (tracked == 0)
        return BRG_OK;
    packer->placed = calloc((size_t)request->num_items, sizeof *packer->placed);
    if (!packer->placed)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to pack %d parameters", request->num_items);
    BRG_TRY(brg_min_tree_init(&packer->fills, tracked), fail);
    if (packing == BRG_PACKING_NS_BALANCED)
        BRG_TRY(brg_fit_tree_init(&packer->balance, tracked), fail);
    return BRG_OK;

fail:
    brg_packer_free(packer);
    return status;
}

void brg_packer_free(brg_packer *packer)
{
    free(packer->placed);
    packer->placed = NULL;
    brg_min_tree_free(&packer->fills);
    brg_fit_tree_free(&packer->balance);
}

void brg_packer_begin(brg_packer *packer, const brg_plan_item *items, int count,
                      int (*order)(const void *, const void *))
{
    for (int i = 0; i < count; i++)
        packer->placed[i] = (brg_packed){.item = &items[i]};
    qsort(packer->placed, (size_t)count, sizeof *packer->placed, order);
    packer->num_placed = count;
    packer->max_fill = 0;
}

int64_t brg_packer_place(brg_packer *packer, brg_packed *entry, int shard)
{
    entry->shard = shard;
    entry->offset = brg_align_start(brg_min_tree_get(&packer->fills, shard));
    int64_t fill = entry->offset + entry->item->numel;
    brg_min_tree_set(&packer->fills, shard, fill);
    if (fill > packer->max_fill)
        packer->max_fill = fill;
    return fill;
}
