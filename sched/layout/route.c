/* SPDX-License-Identifier: Apache-2.0 */
/* Which buffer a parameter belongs to. */
#include <stdio.h>
#include <stdlib.h>

#include "sched/layout/layout.h"
#include "sched/status.h"

bool brg_param_is_layerwise(const brg_param *param)
{
    return param->num_dims == 2 &&
           !(param->flags & (BRG_PARAM_EMBEDDING_OR_OUTPUT | BRG_PARAM_NO_MUON));
}

brg_buffer_key brg_param_buffer_key(const brg_param *param, const brg_layout_options *options)
{
    return (brg_buffer_key){
        .param_dtype = param->flags & BRG_PARAM_QUANTIZED ? BRG_UINT8 : param->dtype,
        .grad_dtype = options->grad_dtype_is_param_dtype ? param->dtype : options->grad_dtype,
        .expert_parallel = (param->flags & BRG_PARAM_EXPERT_PARALLEL) != 0,
        .layerwise = options->algorithm == BRG_LAYERWISE && brg_param_is_layerwise(param),
    };
}

bool brg_buffer_key_equal(const brg_buffer_key *a, const brg_buffer_key *b)
{
    return a->param_dtype == b->param_dtype && a->grad_dtype == b->grad_dtype &&
           a->expert_parallel == b->expert_parallel && a->layerwise == b->layerwise;
}

void brg_layout_buffer_init(brg_layout_buffer *buffer, brg_buffer_key key,
                            const brg_layout_options *options)
{
    *buffer = (brg_layout_buffer){
        .key = key,
        .num_shards =
            key.expert_parallel ? options->expert_data_parallel_size : options->data_parallel_size,
        .ns_ratio = 1,
    };
    snprintf(buffer->name, sizeof buffer->name, "%s/%s/%s/%s", brg_dtype_str(key.param_dtype),
             brg_dtype_str(key.grad_dtype), key.expert_parallel ? "expert" : "dense",
             key.layerwise ? "lw" : "std");
}

brg_status brg_layout_group(brg_layout *layout)
{
    int capacity = 0;
    for (int i = 0; i < layout->num_params; i++) {
        brg_buffer_key key = brg_param_buffer_key(&layout->params[i], &layout->options);
        int buffer = 0;
        while (buffer < layout->num_buffers &&
               !brg_buffer_key_equal(&layout->buffers[buffer].key, &key))
            buffer++;
        if (buffer == capacity) {
            capacity = capacity ? 2 * capacity : 4;
            brg_layout_buffer *grown =
                realloc(layout->buffers, (size_t)capacity * sizeof *layout->buffers);
            if (!grown)
                return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d buffers", capacity);
            layout->buffers = grown;
        }
        if (buffer == layout->num_buffers)
            brg_layout_buffer_init(&layout->buffers[layout->num_buffers++], key, &layout->options);
        layout->buffers[buffer].num_params++;
        layout->places[i].buffer = buffer;
    }
    return BRG_OK;
}
