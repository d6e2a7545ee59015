/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>

#include "sched/layout/layout.h"
#include "sched/status.h"

#define SCHEMA 1

/* Every helper gives NULL when memory is exhausted; json_pack passes that on and frees the rest. */
static json_t *buckets_json(const brg_layout_buffer *buffer)
{
    json_t *array = json_array();
    for (int i = 0; array && i < buffer->num_buckets; i++) {
        const brg_layout_bucket *bucket = &buffer->buckets[i];
        json_t *item = json_pack("{s:I, s:I, s:I}", "start", (json_int_t)bucket->start, "end",
                                 (json_int_t)bucket->end, "numel_unpadded",
                                 (json_int_t)bucket->numel_unpadded);
        if (json_array_append_new(array, item) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *params_json(const brg_layout *layout, const brg_layout_buffer *buffer)
{
    json_t *array = json_array();
    for (int i = 0; array && i < buffer->num_params; i++) {
        const brg_layout_param *place = &buffer->params[i];
        json_t *item =
            json_pack("{s:s, s:I, s:I, s:i, s:i}", "name", layout->params[place->param].name,
                      "start", (json_int_t)place->start, "end", (json_int_t)place->end, "bucket",
                      place->bucket, "shard", place->shard);
        if (json_array_append_new(array, item) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *buffer_json(const brg_layout *layout, const brg_layout_buffer *buffer)
{
    int64_t padding = buffer->numel - buffer->numel_unpadded;
    double overhead =
        buffer->numel_unpadded > 0 ? (double)padding / (double)buffer->numel_unpadded : 0;
    return json_pack("{s:s, s:i, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "key", buffer->name, "shards",
                     buffer->num_shards, "numel", (json_int_t)buffer->numel, "numel_unpadded",
                     (json_int_t)buffer->numel_unpadded, "padding", (json_int_t)padding, "overhead",
                     overhead, "ns_ratio", buffer->ns_ratio, "buckets", buckets_json(buffer),
                     "params", params_json(layout, buffer));
}

static json_t *layout_json(const brg_layout *layout)
{
    const brg_layout_options *options = &layout->options;
    json_t *buffers = json_array();
    for (int i = 0; buffers && i < layout->num_buffers; i++) {
        if (json_array_append_new(buffers, buffer_json(layout, &layout->buffers[i])) != 0) {
            json_decref(buffers);
            buffers = NULL;
        }
    }
    return json_pack("{s:i, s:s, s:s?, s:i, s:o}", "schema", SCHEMA, "algorithm",
                     brg_algorithm_str(options->algorithm), "packing",
                     options->algorithm == BRG_LAYERWISE ? brg_packing_str(options->packing) : NULL,
                     "dp", options->data_parallel_size, "buffers", buffers);
}

brg_status brg_layout_to_json(const brg_layout *layout, char **text)
{
    if (!layout || !text)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_to_json: %s is NULL",
                        layout ? "text" : "layout");
    *text = NULL;
    json_t *root = layout_json(layout);
    if (root)
        *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (!*text)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to write a layout of %d parameters",
                        layout->num_params);
    return BRG_OK;
}
