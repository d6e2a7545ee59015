/* SPDX-License-Identifier: Apache-2.0 */
/* Causal multi-head attention over one batch of sequences, forward and backward. */
#ifndef BRIGADE_TOOLS_TRAIN_ATTENTION_H
#define BRIGADE_TOOLS_TRAIN_ATTENTION_H

typedef struct attention_shape {
    int batch, seq_len, heads, head_dim;
} attention_shape;

/* out[batch*seq_len][heads*head_dim] from qkv[batch*seq_len][3*heads*head_dim] (a row holds q, k,
 * v, each head after head). probs[batch][heads][seq_len][seq_len] is kept for the backward. */
void attention_forward(float *out, float *probs, const float *qkv, attention_shape shape);

/* dqkv from dout. scratch: seq_len * seq_len elements. */
void attention_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                        const float *probs, attention_shape shape);

#endif
