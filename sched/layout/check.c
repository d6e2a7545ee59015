/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of a layout, checked from its contents alone: what a planner has made and what a
 * file claims go through the same gate. */
#include <stdlib.h>

#include "sched/layout/layout.h"
#include "sched/status.h"

typedef struct seen_param {
    int buffer; /* -1: not seen */
    int bucket;
} seen_param;

typedef struct bucket_use {
    int64_t numel; /* of its parameters */
    int64_t end;   /* of the last of them */
} bucket_use;

#define BAD(buffer, format, ...)                                                                   \
    brg_fail(BRG_ERR_FORMAT, "buffer %s: " format, (buffer)->name, __VA_ARGS__)

static brg_status check_buckets(const brg_layout *layout, const brg_layout_buffer *buffer)
{
    bool flat = layout->options.algorithm == BRG_FLAT;
    int64_t end = 0;
    for (int i = 0; i < buffer->num_buckets; i++) {
        const brg_layout_bucket *bucket = &buffer->buckets[i];
        if (bucket->start != end)
            return BAD(buffer, "bucket %d starts at %lld, expected %lld, where the one before ends",
                       i, (long long)bucket->start, (long long)end);
        if (bucket->end < bucket->start || bucket->end > BRG_PLAN_MAX_ELEMS)
            return BAD(buffer, "bucket %d ends at %lld, expected %lld to %lld", i,
                       (long long)bucket->end, (long long)bucket->start,
                       (long long)BRG_PLAN_MAX_ELEMS);
        end = bucket->end;
        if (!flat && end % buffer->num_shards != 0)
            return BAD(buffer, "bucket %d ends at %lld, expected a multiple of %d, the shards", i,
                       (long long)end, buffer->num_shards);
        if (bucket->numel_unpadded < 0 || bucket->numel_unpadded > end - bucket->start)
            return BAD(buffer, "bucket %d has %lld unpadded elements, expected 0 to %lld", i,
                       (long long)bucket->numel_unpadded, (long long)(end - bucket->start));
        if (flat && bucket->numel_unpadded != end - bucket->start)
            return BAD(buffer, "bucket %d has %lld unpadded elements, expected its length, %lld", i,
                       (long long)bucket->numel_unpadded, (long long)(end - bucket->start));
    }
    if (buffer->numel != end)
        return BAD(buffer, "numel is %lld, expected %lld, where the last bucket ends",
                   (long long)buffer->numel, (long long)end);
    return BRG_OK;
}

static brg_status mark_seen(const brg_layout *layout, int index, const brg_layout_param *place,
                            seen_param *seen)
{
    const brg_layout_buffer *buffer = &layout->buffers[index];
    if (place->param < 0 || place->param >= layout->num_params)
        return BAD(buffer, "no parameter has index %d", place->param);
    if (seen[place->param].buffer >= 0)
        return BAD(buffer, "parameter \"%s\" is placed a second time",
                   layout->params[place->param].name);
    seen[place->param] = (seen_param){.buffer = index, .bucket = place->bucket};
    return BRG_OK;
}

static brg_status check_identity(const brg_layout *layout, const brg_layout_buffer *buffer,
                                 const brg_layout_param *place)
{
    const brg_param *param = &layout->params[place->param];
    brg_buffer_key key = brg_param_buffer_key(param, &layout->options);
    brg_layout_buffer own;
    if (!brg_buffer_key_equal(&key, &buffer->key)) {
        brg_layout_buffer_init(&own, key, &layout->options);
        return BAD(buffer, "parameter \"%s\" belongs in buffer %s", param->name, own.name);
    }
    int64_t numel = brg_param_numel(param);
    if (place->start < 0 || place->start > BRG_PLAN_MAX_ELEMS || place->end != place->start + numel)
        return BAD(buffer, "parameter \"%s\" is at [%lld, %lld), expected %lld elements",
                   param->name, (long long)place->start, (long long)place->end, (long long)numel);
    return BRG_OK;
}

/* A layer-wise parameter lies whole in the shard that it names; the others name none. */
static brg_status check_shard(const brg_layout_buffer *buffer, const brg_layout_param *place,
                              const char *name)
{
    const brg_layout_bucket *bucket = &buffer->buckets[place->bucket];
    if (!buffer->key.layerwise) {
        if (place->shard != -1)
            return BAD(buffer, "parameter \"%s\" names shard %d, expected -1", name, place->shard);
        return BRG_OK;
    }
    if (place->shard < 0 || place->shard >= buffer->num_shards)
        return BAD(buffer, "parameter \"%s\" is in shard %d, expected 0 to %d", name, place->shard,
                   buffer->num_shards - 1);
    int64_t size = (bucket->end - bucket->start) / buffer->num_shards;
    int64_t start = bucket->start + place->shard * size;
    if (place->start < start || place->end > start + size)
        return BAD(buffer,
                   "parameter \"%s\" at [%lld, %lld) is not inside shard %d of bucket %d, "
                   "[%lld, %lld)",
                   name, (long long)place->start, (long long)place->end, place->shard,
                   place->bucket, (long long)start, (long long)(start + size));
    return BRG_OK;
}

static brg_status check_place(const brg_layout *layout, const brg_layout_buffer *buffer,
                              const brg_layout_param *place)
{
    const brg_layout_options *options = &layout->options;
    const char *name = layout->params[place->param].name;
    if (place->bucket < 0 || place->bucket >= buffer->num_buckets)
        return BAD(buffer, "parameter \"%s\" is in bucket %d of %d", name, place->bucket,
                   buffer->num_buckets);
    const brg_layout_bucket *bucket = &buffer->buckets[place->bucket];
    if (place->start < bucket->start || place->end > bucket->end)
        return BAD(buffer, "parameter \"%s\" at [%lld, %lld) is not inside bucket %d, [%lld, %lld)",
                   name, (long long)place->start, (long long)place->end, place->bucket,
                   (long long)bucket->start, (long long)bucket->end);
    if ((options->algorithm != BRG_FLAT || options->pad_param_starts) &&
        place->start % BRG_PLAN_ALIGN != 0)
        return BAD(buffer, "parameter \"%s\" starts at %lld, expected a multiple of %d", name,
                   (long long)place->start, BRG_PLAN_ALIGN);
    return check_shard(buffer, place, name);
}

/* What a bucket counts as unpadded: all of its parameters, and no padding if layer-wise. */
static brg_status check_bucket_contents(const brg_layout_buffer *buffer, const bucket_use *used)
{
    for (int i = 0; i < buffer->num_buckets; i++) {
        const brg_layout_bucket *bucket = &buffer->buckets[i];
        bool layerwise = buffer->key.layerwise;
        int64_t least = layerwise ? used[i].numel : used[i].end - bucket->start;
        if (bucket->numel_unpadded < least || (layerwise && bucket->numel_unpadded != least))
            return BAD(buffer, "bucket %d has %lld unpadded elements, expected %s%lld", i,
                       (long long)bucket->numel_unpadded, layerwise ? "" : "at least ",
                       (long long)least);
    }
    return BRG_OK;
}

/* `before` is the one with elements that ends last so far. An empty parameter may stand between two
 * others, which is where either of them starts or ends. */
static brg_status check_overlap(const brg_layout *layout, const brg_layout_buffer *buffer,
                                const brg_layout_param *place, const brg_layout_param *before)
{
    bool empty = place->end == place->start;
    if (place->start >= before->end || (empty && place->start == before->start))
        return BRG_OK;
    return BAD(buffer,
               "parameter \"%s\" at [%lld, %lld) overlaps \"%s\" at "
               "[%lld, %lld)",
               layout->params[place->param].name, (long long)place->start, (long long)place->end,
               layout->params[before->param].name, (long long)before->start,
               (long long)before->end);
}

static brg_status check_params(const brg_layout *layout, int index, seen_param *seen)
{
    const brg_layout_buffer *buffer = &layout->buffers[index];
    const brg_layout_param *before = NULL;
    int64_t total = 0;
    brg_status status;
    bucket_use *used = calloc((size_t)buffer->num_buckets + 1, sizeof *used);
    if (!used)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to check %d buckets", buffer->num_buckets);
    for (int i = 0; i < buffer->num_buckets; i++)
        used[i].end = buffer->buckets[i].start;

    for (int i = 0; i < buffer->num_params; i++) {
        const brg_layout_param *place = &buffer->params[i];
        BRG_TRY(mark_seen(layout, index, place, seen), out);
        BRG_TRY(check_identity(layout, buffer, place), out);
        BRG_TRY(check_place(layout, buffer, place), out);
        if (i > 0 && place->start < place[-1].start) {
            status = BAD(buffer, "parameter \"%s\" at %lld is listed behind \"%s\" at %lld",
                         layout->params[place->param].name, (long long)place->start,
                         layout->params[place[-1].param].name, (long long)place[-1].start);
            goto out;
        }
        if (before)
            BRG_TRY(check_overlap(layout, buffer, place, before), out);
        if (place->end > place->start)
            before = place;
        total += place->end - place->start;
        used[place->bucket].numel += place->end - place->start;
        if (place->end > used[place->bucket].end)
            used[place->bucket].end = place->end;
    }
    BRG_TRY(check_bucket_contents(buffer, used), out);
    if (buffer->numel_unpadded != total)
        status = BAD(buffer, "numel_unpadded is %lld, expected %lld, the sum over its parameters",
                     (long long)buffer->numel_unpadded, (long long)total);
out:
    free(used);
    return status;
}

/* Against backprop order bucket ids start at 0, stay or rise by one, and reach the last bucket. */
static brg_status check_order(const brg_layout *layout, const seen_param *seen)
{
    int *last = calloc(layout->num_buffers ? (size_t)layout->num_buffers : 1, sizeof *last);
    brg_status status = BRG_OK;
    if (!last)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to check %d buffers", layout->num_buffers);
    for (int b = 0; b < layout->num_buffers; b++)
        last[b] = -1;
    for (int i = layout->num_params - 1; i >= 0 && status == BRG_OK; i--) {
        const brg_layout_buffer *buffer = &layout->buffers[seen[i].buffer];
        int *before = &last[seen[i].buffer];
        if (seen[i].bucket > *before + 1 || seen[i].bucket < *before)
            status =
                BAD(buffer, "parameter \"%s\" is in bucket %d, expected %d or %d in backprop order",
                    layout->params[i].name, seen[i].bucket, *before < 0 ? 0 : *before, *before + 1);
        *before = seen[i].bucket;
    }
    for (int b = 0; b < layout->num_buffers && status == BRG_OK; b++)
        if (last[b] + 1 != layout->buffers[b].num_buckets)
            status = BAD(&layout->buffers[b], "bucket %d has no parameter", last[b] + 1);
    free(last);
    return status;
}

static brg_status check_buffer_head(const brg_layout *layout, int index)
{
    const brg_layout_buffer *buffer = &layout->buffers[index];
    brg_layout_buffer expected;
    brg_layout_buffer_init(&expected, buffer->key, &layout->options);
    if (buffer->num_shards != expected.num_shards)
        return BAD(buffer, "%d shards, expected %d", buffer->num_shards, expected.num_shards);
    for (int i = 0; i < index; i++)
        if (brg_buffer_key_equal(&layout->buffers[i].key, &buffer->key))
            return BAD(buffer, "buffers %d and %d have the same key", i, index);
    return BRG_OK;
}

brg_status brg_layout_check(const brg_layout *layout)
{
    if (!layout)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_check: layout is NULL");
    brg_status status = BRG_OK;
    size_t count = layout->num_params ? (size_t)layout->num_params : 1;
    seen_param *seen = calloc(count, sizeof *seen);
    if (!seen)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to check %d parameters", layout->num_params);
    for (int i = 0; i < layout->num_params; i++)
        seen[i].buffer = -1;

    for (int i = 0; i < layout->num_buffers; i++) {
        BRG_TRY(check_buffer_head(layout, i), out);
        BRG_TRY(check_buckets(layout, &layout->buffers[i]), out);
        BRG_TRY(check_params(layout, i, seen), out);
    }
    for (int i = 0; i < layout->num_params; i++) {
        if (seen[i].buffer < 0) {
            status = brg_fail(BRG_ERR_FORMAT, "parameter \"%s\" is in no buffer",
                              layout->params[i].name);
            goto out;
        }
    }
    status = check_order(layout, seen);
out:
    free(seen);
    return status;
}
