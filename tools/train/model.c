/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/random.h"

#define NAME_BYTES 48
#define ALIGN_ELEMS 16 /* 64 bytes */

int model_block_param(int layer, enum model_role which)
{
    return MODEL_FIRST_BLOCK + layer * MODEL_BLOCK_PARAMS + (int)which;
}

int model_final_norm(const model *m)
{
    return model_block_param(m->config.layers, LN1_GAIN);
}

int model_head(const model *m)
{
    return m->config.tied ? MODEL_TOKEN_EMBEDDING : model_final_norm(m) + 2;
}

void model_bind(model *m, int param, float *value, float *grad)
{
    m->tensors[param] = (model_tensor){value, grad};
}

/* Describes parameter `index`; cols 0 makes it a vector. */
static void describe(model *m, int index, int rows, int cols, uint32_t flags, const char *format,
                     int layer)
{
    char *name = m->names + (size_t)index * NAME_BYTES;
    if (layer >= 0)
        snprintf(name, NAME_BYTES, "blocks.%d.%s", layer, format);
    else
        snprintf(name, NAME_BYTES, "%s", format);
    m->params[index] = (brg_param){.name = name,
                                   .num_dims = cols ? 2 : 1,
                                   .shape = {rows, cols},
                                   .dtype = BRG_FLOAT32,
                                   .flags = flags};
}

static void describe_all(model *m)
{
    const int dim = m->config.dim, vocab = m->config.vocab;
    const struct {
        const char *name;
        int rows, cols;
    } block[MODEL_BLOCK_PARAMS] = {
        [LN1_GAIN] = {"ln1.weight", dim, 0},
        [LN1_BIAS] = {"ln1.bias", dim, 0},
        [QKV_WEIGHT] = {"attn.qkv.weight", 3 * dim, dim},
        [QKV_BIAS] = {"attn.qkv.bias", 3 * dim, 0},
        [ATTN_PROJ_WEIGHT] = {"attn.proj.weight", dim, dim},
        [ATTN_PROJ_BIAS] = {"attn.proj.bias", dim, 0},
        [LN2_GAIN] = {"ln2.weight", dim, 0},
        [LN2_BIAS] = {"ln2.bias", dim, 0},
        [FC_WEIGHT] = {"mlp.fc.weight", 4 * dim, dim},
        [FC_BIAS] = {"mlp.fc.bias", 4 * dim, 0},
        [MLP_PROJ_WEIGHT] = {"mlp.proj.weight", dim, 4 * dim},
        [MLP_PROJ_BIAS] = {"mlp.proj.bias", dim, 0},
    };
    const uint32_t edge = BRG_PARAM_EMBEDDING_OR_OUTPUT;
    describe(m, MODEL_TOKEN_EMBEDDING, vocab, dim,
             edge | (m->config.tied ? BRG_PARAM_SHARED_EMBEDDING : 0u), "embed.token.weight", -1);
    describe(m, MODEL_POSITION_EMBEDDING, m->config.seq_len, dim, edge, "embed.position.weight",
             -1);
    for (int layer = 0; layer < m->config.layers; layer++)
        for (int i = 0; i < MODEL_BLOCK_PARAMS; i++)
            describe(m, model_block_param(layer, (enum model_role)i), block[i].rows, block[i].cols,
                     0, block[i].name, layer);
    describe(m, model_final_norm(m), dim, 0, 0, "final_ln.weight", -1);
    describe(m, model_final_norm(m) + 1, dim, 0, 0, "final_ln.bias", -1);
    if (!m->config.tied)
        describe(m, model_head(m), vocab, dim, edge, "head.weight", -1);
}

/* Hands out the next `count` elements of the arena; base NULL only counts. */
static float *take(float *base, size_t *used, size_t count)
{
    float *piece = base ? base + *used : NULL;
    *used += (count + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
    return piece;
}

/* Lays the activations out in `base`; returns how many elements they need. */
static size_t place_activations(model *m, float *base)
{
    const size_t dim = (size_t)m->config.dim, len = (size_t)m->config.seq_len;
    const size_t rows = len * (size_t)m->config.max_batch, square = len * len;
    size_t used = 0;
    for (int layer = 0; layer < m->config.layers; layer++) {
        model_block *b = &m->blocks[layer];
        b->in = take(base, &used, rows * dim);
        b->ln1_mean = take(base, &used, rows);
        b->ln1_rstd = take(base, &used, rows);
        b->ln1_out = take(base, &used, rows * dim);
        b->qkv = take(base, &used, rows * 3 * dim);
        b->probs =
            take(base, &used, (size_t)m->config.max_batch * (size_t)m->config.heads * square);
        b->attn_out = take(base, &used, rows * dim);
        b->mid = take(base, &used, rows * dim);
        b->ln2_mean = take(base, &used, rows);
        b->ln2_rstd = take(base, &used, rows);
        b->ln2_out = take(base, &used, rows * dim);
        b->fc_out = take(base, &used, rows * 4 * dim);
        b->gelu_out = take(base, &used, rows * 4 * dim);
    }
    m->final_in = take(base, &used, rows * dim);
    m->final_mean = take(base, &used, rows);
    m->final_rstd = take(base, &used, rows);
    m->final_out = take(base, &used, rows * dim);
    m->logits = take(base, &used, rows * (size_t)m->config.vocab);
    m->dx = take(base, &used, rows * dim);
    m->d_dim = take(base, &used, rows * dim);
    m->d_wide = take(base, &used, rows * 4 * dim);
    m->d_probs = take(base, &used, square);
    return used;
}

model *model_create(const model_config *config)
{
    model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->config = *config;
    m->num_params = model_final_norm(m) + (config->tied ? 2 : 3);
    const size_t count = (size_t)m->num_params;
    m->params = calloc(count, sizeof *m->params);
    m->names = calloc(count, NAME_BYTES);
    m->tensors = calloc(count, sizeof *m->tensors);
    m->blocks = calloc((size_t)config->layers, sizeof *m->blocks);
    if (!m->params || !m->names || !m->tensors || !m->blocks)
        goto fail;
    describe_all(m);
    const size_t bytes = place_activations(m, NULL) * sizeof(float);
    m->arena = aligned_alloc(ALIGN_ELEMS * sizeof(float), bytes);
    if (!m->arena)
        goto fail;
    memset(m->arena, 0, bytes);
    place_activations(m, m->arena);
    return m;
fail:
    model_destroy(m);
    return NULL;
}

void model_destroy(model *m)
{
    if (!m)
        return;
    free(m->arena);
    free(m->blocks);
    free(m->tensors);
    free(m->names);
    free(m->params);
    free(m);
}

static void fill_normal(float *value, int64_t count, double deviation, uint64_t seed, int param)
{
    for (int64_t i = 0; i < count; i++)
        value[i] = (float)(deviation * random_normal(seed, (uint64_t)param, (uint64_t)i));
}

void model_init(const model *m, uint64_t seed)
{
    const double narrow = 1.0 / sqrt((double)m->config.dim);
    /* Each block adds two branches to the residual; this keeps their sum's size. */
    const double branch = 1.0 / sqrt(2.0 * m->config.layers);
    for (int i = 0; i < m->num_params; i++) {
        const brg_param *param = &m->params[i];
        const int64_t count = param->shape[0] * (param->num_dims == 2 ? param->shape[1] : 1);
        float *value = m->tensors[i].value;
        if (param->num_dims == 1) {
            const bool gain = strstr(param->name, "ln") && strstr(param->name, ".weight");
            for (int64_t j = 0; j < count; j++)
                value[j] = gain ? 1.0f : 0.0f;
            continue;
        }
        double deviation = narrow * 0.5;
        if (i == MODEL_TOKEN_EMBEDDING || i == MODEL_POSITION_EMBEDDING)
            deviation = 0.02;
        else if (strstr(param->name, "mlp.proj."))
            deviation = narrow * 0.25 * branch;
        else if (strstr(param->name, "attn.proj."))
            deviation = narrow * 0.5 * branch;
        else if (i == model_head(m))
            deviation = 0.02;
        fill_normal(value, count, deviation, seed, i);
    }
}
