/* SPDX-License-Identifier: Apache-2.0 */
/* A small GPT: byte embeddings, learned positions, pre-norm blocks (causal attention, GELU MLP),
 * final norm, head that is a matrix of its own or the token embedding again (tied).
 *
 * The model computes layer by layer, so that a trainer can put each layer on a stream and talk to
 * Brigade in between. Where parameters and gradients live is the trainer's choice: model_bind().
 *
 * Thread rules: the layer functions of one model run one at a time, in the order forward, head,
 * backward; they touch nothing but the model, the batch and the bound memory. */
#ifndef BRIGADE_TOOLS_TRAIN_MODEL_H
#define BRIGADE_TOOLS_TRAIN_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "brigade/param.h"

typedef struct model_config {
    int vocab;   /* 2..256 */
    int seq_len; /* tokens per sample */
    int dim;     /* a multiple of heads */
    int heads;
    int layers;
    int max_batch; /* samples per pass at most */
    bool tied;
} model_config;

/* Parameters of one block, in registration order. */
enum model_role {
    LN1_GAIN,
    LN1_BIAS,
    QKV_WEIGHT, /* [3 dim][dim]: rows of q, of k, of v */
    QKV_BIAS,
    ATTN_PROJ_WEIGHT,
    ATTN_PROJ_BIAS,
    LN2_GAIN,
    LN2_BIAS,
    FC_WEIGHT, /* [4 dim][dim] */
    FC_BIAS,
    MLP_PROJ_WEIGHT, /* [dim][4 dim] */
    MLP_PROJ_BIAS,
    MODEL_BLOCK_PARAMS,
};

/* Registration order: token embedding, position embedding, blocks, final norm, head (unless tied).
 */
enum { MODEL_TOKEN_EMBEDDING, MODEL_POSITION_EMBEDDING, MODEL_FIRST_BLOCK };

typedef struct model_tensor {
    float *value;
    float *grad;
} model_tensor;

/* What one block keeps from its forward for its backward; rows are tokens. */
typedef struct model_block {
    float *in; /* [rows][dim] */
    float *ln1_mean, *ln1_rstd, *ln1_out;
    float *qkv;      /* [rows][3 dim] */
    float *probs;    /* [batch][heads][seq_len][seq_len] */
    float *attn_out; /* [rows][dim] */
    float *mid;      /* [rows][dim]: after the attention half */
    float *ln2_mean, *ln2_rstd, *ln2_out;
    float *fc_out, *gelu_out; /* [rows][4 dim] */
} model_block;

typedef struct model {
    model_config config;
    int num_params;
    brg_param *params; /* as registered with Brigade */
    char *names;
    model_tensor *tensors;
    model_block *blocks;
    float *final_in, *final_mean, *final_rstd, *final_out;
    float *logits;         /* [rows][vocab] */
    float *dx;             /* gradient at the border between two layers */
    float *d_dim, *d_wide; /* scratch: [rows][dim], [rows][4 dim] */
    float *d_probs;        /* scratch: [seq_len][seq_len] */
    float *arena;
} model;

/* Samples: `count` rows of seq_len + 1 tokens; token i + 1 is to be predicted from those up to i.
 */
typedef struct model_batch {
    int count;
    const uint8_t *tokens;
} model_batch;

/* Returns NULL when memory is short; config must be valid (options.c checks it). */
model *model_create(const model_config *config);
void model_destroy(model *m); /* NULL is allowed */

int model_block_param(int layer, enum model_role which); /* registration index */
int model_final_norm(const model *m);                    /* gain; bias is the next */
int model_head(const model *m);                          /* the token embedding when tied */

void model_bind(model *m, int param, float *value, float *grad);

/* Fills the bound values; depends on nothing but config and seed. */
void model_init(const model *m, uint64_t seed);

/* Layers. Gradients are added to the bound memory. */
void model_embed_forward(model *m, const model_batch *batch);
void model_block_forward(model *m, const model_batch *batch, int layer);
/* Sum of the losses of all tokens, in nats. Gradients are those of grad_scale times that sum;
 * grad_scale 0: loss only. */
double model_head_pass(model *m, const model_batch *batch, float grad_scale);
void model_block_backward(model *m, const model_batch *batch, int layer);
void model_embed_backward(model *m, const model_batch *batch);

/* Forward through all layers, loss only. */
double model_loss(model *m, const model_batch *batch);

#endif
