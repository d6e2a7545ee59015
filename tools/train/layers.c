/* SPDX-License-Identifier: Apache-2.0 */
/* The model's layers, forward and backward. */
#include <string.h>

#include "tools/train/attention.h"
#include "tools/train/model.h"
#include "tools/train/ops.h"

static int batch_rows(const model *m, const model_batch *batch)
{
    return batch->count * m->config.seq_len;
}

static const model_tensor *block_tensors(const model *m, int layer)
{
    return &m->tensors[model_block_param(layer, LN1_GAIN)];
}

/* Where a block writes its output: the next layer's input. */
static float *block_out(const model *m, int layer)
{
    return layer + 1 < m->config.layers ? m->blocks[layer + 1].in : m->final_in;
}

static attention_shape block_attention(const model *m, const model_batch *batch)
{
    return (attention_shape){batch->count, m->config.seq_len, m->config.heads,
                             m->config.dim / m->config.heads};
}

void model_embed_forward(model *m, const model_batch *batch)
{
    const int dim = m->config.dim, len = m->config.seq_len;
    const float *token = m->tensors[MODEL_TOKEN_EMBEDDING].value;
    const float *position = m->tensors[MODEL_POSITION_EMBEDDING].value;
    float *out = m->blocks[0].in;
    for (int sample = 0; sample < batch->count; sample++) {
        const uint8_t *tokens = batch->tokens + (size_t)sample * (size_t)(len + 1);
        for (int t = 0; t < len; t++, out += dim)
            for (int j = 0; j < dim; j++)
                out[j] = token[tokens[t] * dim + j] + position[t * dim + j];
    }
}

void model_block_forward(model *m, const model_batch *batch, int layer)
{
    const int rows = batch_rows(m, batch), dim = m->config.dim;
    const size_t count = (size_t)rows * (size_t)dim;
    const model_tensor *w = block_tensors(m, layer);
    model_block *b = &m->blocks[layer];
    float *out = block_out(m, layer);

    ops_layernorm(b->ln1_out, b->ln1_mean, b->ln1_rstd, b->in, w[LN1_GAIN].value, w[LN1_BIAS].value,
                  rows, dim);
    ops_linear(b->qkv, b->ln1_out, w[QKV_WEIGHT].value, w[QKV_BIAS].value, rows, dim, 3 * dim);
    attention_forward(b->attn_out, b->probs, b->qkv, block_attention(m, batch));
    ops_linear(b->mid, b->attn_out, w[ATTN_PROJ_WEIGHT].value, w[ATTN_PROJ_BIAS].value, rows, dim,
               dim);
    ops_add(b->mid, b->in, count);

    ops_layernorm(b->ln2_out, b->ln2_mean, b->ln2_rstd, b->mid, w[LN2_GAIN].value,
                  w[LN2_BIAS].value, rows, dim);
    ops_linear(b->fc_out, b->ln2_out, w[FC_WEIGHT].value, w[FC_BIAS].value, rows, dim, 4 * dim);
    ops_gelu(b->gelu_out, b->fc_out, 4 * count);
    ops_linear(out, b->gelu_out, w[MLP_PROJ_WEIGHT].value, w[MLP_PROJ_BIAS].value, rows, 4 * dim,
               dim);
    ops_add(out, b->mid, count);
}

double model_head_pass(model *m, const model_batch *batch, float grad_scale)
{
    const int rows = batch_rows(m, batch), dim = m->config.dim, vocab = m->config.vocab;
    const int len = m->config.seq_len;
    const model_tensor *norm = &m->tensors[model_final_norm(m)];
    const model_tensor *head = &m->tensors[model_head(m)];

    ops_layernorm(m->final_out, m->final_mean, m->final_rstd, m->final_in, norm[0].value,
                  norm[1].value, rows, dim);
    ops_linear(m->logits, m->final_out, head->value, NULL, rows, dim, vocab);
    double loss = 0.0;
    for (int sample = 0; sample < batch->count; sample++)
        loss += ops_cross_entropy(m->logits + (size_t)sample * (size_t)len * (size_t)vocab,
                                  batch->tokens + (size_t)sample * (size_t)(len + 1) + 1, len,
                                  vocab, grad_scale);
    if (grad_scale == 0.0f)
        return loss;
    ops_linear_backward(m->d_dim, head->grad, NULL, m->logits, m->final_out, head->value, rows, dim,
                        vocab);
    memset(m->dx, 0, (size_t)rows * (size_t)dim * sizeof *m->dx);
    ops_layernorm_backward(m->dx, norm[0].grad, norm[1].grad, m->d_dim, m->final_in, m->final_mean,
                           m->final_rstd, norm[0].value, rows, dim);
    return loss;
}

void model_block_backward(model *m, const model_batch *batch, int layer)
{
    const int rows = batch_rows(m, batch), dim = m->config.dim;
    const model_tensor *w = block_tensors(m, layer);
    const model_block *b = &m->blocks[layer];

    ops_linear_backward(m->d_wide, w[MLP_PROJ_WEIGHT].grad, w[MLP_PROJ_BIAS].grad, m->dx,
                        b->gelu_out, w[MLP_PROJ_WEIGHT].value, rows, 4 * dim, dim);
    ops_gelu_backward(m->d_wide, b->fc_out, 4 * (size_t)rows * (size_t)dim);
    ops_linear_backward(m->d_dim, w[FC_WEIGHT].grad, w[FC_BIAS].grad, m->d_wide, b->ln2_out,
                        w[FC_WEIGHT].value, rows, dim, 4 * dim);
    ops_layernorm_backward(m->dx, w[LN2_GAIN].grad, w[LN2_BIAS].grad, m->d_dim, b->mid, b->ln2_mean,
                           b->ln2_rstd, w[LN2_GAIN].value, rows, dim);

    ops_linear_backward(m->d_dim, w[ATTN_PROJ_WEIGHT].grad, w[ATTN_PROJ_BIAS].grad, m->dx,
                        b->attn_out, w[ATTN_PROJ_WEIGHT].value, rows, dim, dim);
    float *dqkv = m->d_wide; /* 3 of its 4 dims */
    attention_backward(dqkv, m->d_probs, m->d_dim, b->qkv, b->probs, block_attention(m, batch));
    ops_linear_backward(m->d_dim, w[QKV_WEIGHT].grad, w[QKV_BIAS].grad, dqkv, b->ln1_out,
                        w[QKV_WEIGHT].value, rows, dim, 3 * dim);
    ops_layernorm_backward(m->dx, w[LN1_GAIN].grad, w[LN1_BIAS].grad, m->d_dim, b->in, b->ln1_mean,
                           b->ln1_rstd, w[LN1_GAIN].value, rows, dim);
}

void model_embed_backward(model *m, const model_batch *batch)
{
    const int dim = m->config.dim, len = m->config.seq_len;
    float *token = m->tensors[MODEL_TOKEN_EMBEDDING].grad;
    float *position = m->tensors[MODEL_POSITION_EMBEDDING].grad;
    const float *dx = m->dx;
    for (int sample = 0; sample < batch->count; sample++) {
        const uint8_t *tokens = batch->tokens + (size_t)sample * (size_t)(len + 1);
        for (int t = 0; t < len; t++, dx += dim)
            for (int j = 0; j < dim; j++) {
                token[tokens[t] * dim + j] += dx[j];
                position[t * dim + j] += dx[j];
            }
    }
}

double model_loss(model *m, const model_batch *batch)
{
    model_embed_forward(m, batch);
    for (int layer = 0; layer < m->config.layers; layer++)
        model_block_forward(m, batch, layer);
    return model_head_pass(m, batch, 0.0f);
}
