/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/layout.h"

#include <stdlib.h>

#include "sched/status.h"

/* Items of one buffer, in backprop order. */
static brg_status make_items(const brg_layout *layout, int buffer, brg_plan_item **items)
{
    int count = layout->buffers[buffer].num_params;
    *items = calloc((size_t)count, sizeof **items);
    if (!*items)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to plan %d parameters", count);
    int at = 0;
    for (int i = layout->num_params - 1; i >= 0; i--) {
        const brg_param *param = &layout->params[i];
        if (layout->places[i].buffer != buffer)
            continue;
        (*items)[at++] = (brg_plan_item){
            .name = param->name,
            .param = i,
            .shared_embedding = (param->flags & BRG_PARAM_SHARED_EMBEDDING) != 0,
            .numel = brg_param_numel(param),
            .ns_cost = brg_param_ns_cost(param),
        };
    }
    return BRG_OK;
}

typedef struct sort_entry {
    brg_layout_param param;
    int order;
} sort_entry;

static int by_start(const void *a, const void *b)
{
    const sort_entry *x = a, *y = b;
    if (x->param.start != y->param.start)
        return x->param.start < y->param.start ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Empty parameters share a start with others; they stay in order of placement. */
static brg_status sort_by_start(brg_layout_param *params, int count)
{
    bool sorted = true;
    for (int i = 1; i < count; i++)
        sorted = sorted && params[i - 1].start <= params[i].start;
    if (sorted)
        return BRG_OK;
    sort_entry *entries = calloc((size_t)count, sizeof *entries);
    if (!entries)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to sort %d parameters", count);
    for (int i = 0; i < count; i++)
        entries[i] = (sort_entry){.param = params[i], .order = i};
    qsort(entries, (size_t)count, sizeof *entries, by_start);
    for (int i = 0; i < count; i++)
        params[i] = entries[i].param;
    free(entries);
    return BRG_OK;
}

static brg_status plan_buffer(brg_layout *layout, int index)
{
    const brg_layout_options *options = &layout->options;
    brg_layout_buffer *buffer = &layout->buffers[index];
    brg_plan_item *items = NULL;
    brg_plan plan = {0};
    brg_status status;

    BRG_TRY(make_items(layout, index, &items), out);
    brg_plan_request request = {
        .items = items,
        .num_items = buffer->num_params,
        .num_shards = buffer->num_shards,
        .bucket_size = options->bucket_size == BRG_BUCKET_SIZE_SMALLEST ? 0 : options->bucket_size,
        .pad_for_high_bus_bandwidth = options->pad_for_high_bus_bandwidth,
        .pad_param_starts = options->pad_param_starts,
    };
    if (options->algorithm == BRG_FLAT)
        status = brg_plan_flat(&request, &plan);
    else if (buffer->key.layerwise)
        status = brg_plan_layerwise(&request, options->packing, &plan);
    else
        status = brg_plan_elementwise(&request, &plan);
    if (status != BRG_OK)
        goto out;

    BRG_TRY(sort_by_start(plan.params, plan.num_params), out);
    buffer->params = plan.params;
    buffer->buckets = plan.buckets;
    buffer->num_buckets = plan.num_buckets;
    plan = (brg_plan){0}; /* the buffer owns it now */

out:
    brg_plan_free(&plan);
    free(items);
    return status;
}

brg_status brg_layout_compute(const brg_param *params, int num_params,
                              const brg_layout_options *options, brg_layout **layout)
{
    brg_status status;
    int64_t total;

    if (!layout)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_compute: layout is NULL");
    *layout = NULL;
    brg_layout *made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a layout");

    BRG_TRY(brg_layout_options_resolve(options, &made->options), fail);
    BRG_TRY(brg_layout_copy_params(made, params, num_params, &total), fail);
    brg_layout_options_divide(&made->options, total);
    BRG_TRY(brg_layout_group(made), fail);
    for (int i = 0; i < made->num_buffers; i++)
        BRG_TRY(plan_buffer(made, i), fail);
    BRG_TRY(brg_layout_complete(made), fail);
    *layout = made;
    return BRG_OK;

fail:
    brg_layout_destroy(made);
    return status;
}

typedef struct shard_work {
    int shard;
    brg_ns_cost cost;
} shard_work;

static int by_shard(const void *a, const void *b)
{
    const shard_work *x = a, *y = b;
    return (x->shard > y->shard) - (x->shard < y->shard);
}

/* Largest over mean Newton-Schulz work of the shards of a layer-wise buffer. Sorts instead of
 * keeping an array of shards, because a file may name any shard. */
static brg_status fill_ns_ratio(const brg_layout *layout, brg_layout_buffer *buffer)
{
    if (!buffer->key.layerwise || buffer->num_params == 0)
        return BRG_OK;
    shard_work *work = calloc((size_t)buffer->num_params, sizeof *work);
    if (!work)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the work of %d parameters",
                        buffer->num_params);
    for (int i = 0; i < buffer->num_params; i++) {
        const brg_layout_param *place = &buffer->params[i];
        work[i].shard = place->shard;
        work[i].cost = brg_param_ns_cost(&layout->params[place->param]);
    }
    qsort(work, (size_t)buffer->num_params, sizeof *work, by_shard);

    brg_ns_cost total = 0, load = 0, max = 0;
    for (int i = 0; i < buffer->num_params; i++) {
        load = i > 0 && work[i].shard == work[i - 1].shard ? load + work[i].cost : work[i].cost;
        total += work[i].cost;
        if (load > max)
            max = load;
    }
    if (total > 0)
        buffer->ns_ratio = (double)max * buffer->num_shards / (double)total;
    free(work);
    return BRG_OK;
}

brg_status brg_layout_complete(brg_layout *layout)
{
    for (int b = 0; b < layout->num_buffers; b++) {
        brg_layout_buffer *buffer = &layout->buffers[b];
        buffer->numel = buffer->num_buckets ? buffer->buckets[buffer->num_buckets - 1].end : 0;
        buffer->numel_unpadded = 0;
        for (int i = 0; i < buffer->num_params; i++) {
            int param = buffer->params[i].param;
            buffer->numel_unpadded += brg_param_numel(&layout->params[param]);
            layout->places[param] = (brg_param_place){.buffer = b, .index = i};
        }
    }
    brg_status status = brg_layout_check(layout);
    for (int b = 0; status == BRG_OK && b < layout->num_buffers; b++)
        status = fill_ns_ratio(layout, &layout->buffers[b]);
    return status;
}

void brg_layout_destroy(brg_layout *layout)
{
    if (!layout)
        return;
    for (int i = 0; i < layout->num_buffers; i++) {
        free((void *)layout->buffers[i].params);
        free((void *)layout->buffers[i].buckets);
    }
    free(layout->buffers);
    free(layout->places);
    free(layout->params);
    free(layout->names);
    free(layout);
}

int brg_layout_num_params(const brg_layout *layout)
{
    return layout ? layout->num_params : 0;
}

int brg_layout_num_buffers(const brg_layout *layout)
{
    return layout ? layout->num_buffers : 0;
}

int brg_layout_num_buckets(const brg_layout *layout)
{
    int count = 0;
    for (int i = 0; layout && i < layout->num_buffers; i++)
        count += layout->buffers[i].num_buckets;
    return count;
}

const brg_param *brg_layout_param_info(const brg_layout *layout, int param)
{
    return layout && param >= 0 && param < layout->num_params ? &layout->params[param] : NULL;
}

const brg_layout_buffer *brg_layout_get_buffer(const brg_layout *layout, int buffer)
{
    return layout && buffer >= 0 && buffer < layout->num_buffers ? &layout->buffers[buffer] : NULL;
}

brg_status brg_layout_find(const brg_layout *layout, int param, int *buffer,
                           const brg_layout_param **placement)
{
    if (!layout)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_find: layout is NULL");
    if (param < 0 || param >= layout->num_params)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "parameter %d, expected 0 to %d", param,
                        layout->num_params - 1);
    const brg_param_place *place = &layout->places[param];
    if (buffer)
        *buffer = place->buffer;
    if (placement)
        *placement = &layout->buffers[place->buffer].params[place->index];
    return BRG_OK;
}

const brg_layout_options *brg_layout_get_options(const brg_layout *layout)
{
    return layout ? &layout->options : NULL;
}

void brg_free(void *memory)
{
    free(memory);
}
