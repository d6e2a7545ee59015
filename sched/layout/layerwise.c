/* SPDX-License-Identifier: Apache-2.0 */
/* Layer-wise buffers: items in backprop order are gathered into chunks; a chunk is packed into the
 * shards of one bucket, no item cut; all shards are as long as the fullest.
 *
 * LPT closes a chunk as soon as it is large enough. The others look first whether the next item
 * would fit for nothing: into the room that the chunk, packed in backprop order, leaves below its
 * fullest shard. */
#include <stdlib.h>

#include "sched/layout/pack.h"
#include "sched/status.h"

typedef struct layerwise {
    const brg_plan_request *request;
    brg_packing packing;
    int64_t shard_divisor;
    brg_plan *plan;
    brg_packer packer;

    int first, count;       /* the open chunk: items [first, first + count) */
    int64_t total, largest; /* elements of the chunk, of its largest item */

    brg_min_tree estimate; /* loads of the chunk packed in backprop order; unused by LPT */
    int64_t estimate_max;
    int *estimate_used; /* shards with a load, `count` of them */
} layerwise;

static bool absorbs(const layerwise *lw)
{
    return lw->packing != BRG_PACKING_LPT && lw->request->bucket_size != BRG_BUCKET_SIZE_NONE;
}

/* Whether the chunk may be closed: it holds bucket_size elements, and nearly enough for every shard
 * to be as full as its largest item is long. */
static bool chunk_full(const layerwise *lw)
{
    int64_t bucket_size = lw->request->bucket_size;
    if (bucket_size == BRG_BUCKET_SIZE_NONE)
        return false;
    return lw->total >= bucket_size &&
           lw->total >= (__int128)9 * lw->request->num_shards * lw->largest / 10;
}

static int64_t estimate_load(const layerwise *lw, int shard, const brg_plan_item *item)
{
    return brg_align_start(brg_min_tree_get(&lw->estimate, shard)) + item->numel;
}

static bool fits_for_nothing(const layerwise *lw, const brg_plan_item *item)
{
    int shard = brg_min_tree_first(&lw->estimate);
    return estimate_load(lw, shard, item) <= brg_round_up(lw->estimate_max, lw->shard_divisor);
}

static void chunk_add(layerwise *lw, int index)
{
    const brg_plan_item *item = &lw->request->items[index];
    if (absorbs(lw)) {
        int shard = brg_min_tree_first(&lw->estimate);
        int64_t load = estimate_load(lw, shard, item);
        brg_min_tree_set(&lw->estimate, shard, load);
        lw->estimate_used[lw->count] = shard;
        if (load > lw->estimate_max)
            lw->estimate_max = load;
    }
    if (lw->count == 0)
        lw->first = index;
    lw->count++;
    lw->total += item->numel;
    if (item->numel > lw->largest)
        lw->largest = item->numel;
}

/* Makes a bucket of the open chunk, if there is one. */
static brg_status chunk_close(layerwise *lw)
{
    if (lw->count == 0)
        return BRG_OK;
    const brg_plan_item *items = &lw->request->items[lw->first];
    if (lw->packing == BRG_PACKING_NS_BALANCED)
        brg_pack_ns_balanced(&lw->packer, items, lw->count);
    else
        brg_pack_largest_first(&lw->packer, items, lw->count);

    int64_t start = brg_plan_end(lw->plan);
    int64_t shard_size = brg_round_up(lw->packer.max_fill, lw->shard_divisor);
    __int128 end = start + (__int128)shard_size * lw->request->num_shards;
    brg_status status = brg_plan_check_end(end, lw->packer.placed[0].item, lw->request->num_shards);
    if (status != BRG_OK)
        return status;
    for (int i = 0; i < lw->packer.num_placed; i++) {
        const brg_packed *entry = &lw->packer.placed[i];
        brg_plan_place(lw->plan, entry->item, start + entry->shard * shard_size + entry->offset,
                       entry->shard);
    }
    brg_plan_close(lw->plan, (int64_t)end, lw->total);

    for (int i = 0; absorbs(lw) && i < lw->count; i++)
        brg_min_tree_set(&lw->estimate, lw->estimate_used[i], 0);
    lw->estimate_max = 0;
    lw->count = 0;
    lw->total = lw->largest = 0;
    return BRG_OK;
}

/* A tied embedding has a bucket of its own, in shard 0, and counts for no load. */
static brg_status place_shared_embedding(layerwise *lw, const brg_plan_item *item)
{
    int64_t start = brg_plan_end(lw->plan);
    __int128 end =
        start + (__int128)brg_round_up(item->numel, lw->shard_divisor) * lw->request->num_shards;
    brg_status status = brg_plan_check_end(end, item, lw->request->num_shards);
    if (status != BRG_OK)
        return status;
    brg_plan_place(lw->plan, item, start, 0);
    brg_plan_close(lw->plan, (int64_t)end, item->numel);
    return BRG_OK;
}

static brg_status plan_items(layerwise *lw)
{
    brg_status status = BRG_OK;
    for (int i = 0; i < lw->request->num_items; i++) {
        const brg_plan_item *item = &lw->request->items[i];
        if (item->shared_embedding) {
            BRG_TRY(chunk_close(lw), out);
            BRG_TRY(place_shared_embedding(lw, item), out);
            continue;
        }
        if (absorbs(lw) && lw->count > 0 && chunk_full(lw) && !fits_for_nothing(lw, item))
            BRG_TRY(chunk_close(lw), out);
        chunk_add(lw, i);
        if (!absorbs(lw) && chunk_full(lw))
            BRG_TRY(chunk_close(lw), out);
    }
    status = chunk_close(lw);
out:
    return status;
}

brg_status brg_plan_layerwise(const brg_plan_request *request, brg_packing packing, brg_plan *plan)
{
    layerwise lw = {
        .request = request,
        .packing = packing,
        .shard_divisor =
            brg_plan_shard_divisor(request->num_shards, request->pad_for_high_bus_bandwidth),
        .plan = plan,
    };
    int tracked =
        request->num_items < request->num_shards ? request->num_items : request->num_shards;
    brg_status status = brg_plan_init(plan, request->num_items);
    if (status != BRG_OK || request->num_items == 0)
        return status;

    BRG_TRY(brg_packer_init(&lw.packer, request, packing), out);
    if (absorbs(&lw)) {
        BRG_TRY(brg_min_tree_init(&lw.estimate, tracked), out);
        lw.estimate_used = calloc((size_t)request->num_items, sizeof *lw.estimate_used);
        if (!lw.estimate_used) {
            status = brg_fail(BRG_ERR_NO_MEMORY, "no memory to gather %d parameters",
                              request->num_items);
            goto out;
        }
    }
    status = plan_items(&lw);

out:
    free(lw.estimate_used);
    brg_min_tree_free(&lw.estimate);
    brg_packer_free(&lw.packer);
    if (status != BRG_OK)
        brg_plan_free(plan);
    return status;
}
