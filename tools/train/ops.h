/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of the model but attention, forward and backward, in float32.
 *
 * Tensors are row-major. `rows` is the number of tokens, and each row's arithmetic is the same
 * however many rows there are. Gradients of parameters are added to; other outputs are overwritten
 * unless said. Sums run in a fixed order, so equal inputs give bitwise equal outputs. */
#ifndef BRIGADE_TOOLS_TRAIN_OPS_H
#define BRIGADE_TOOLS_TRAIN_OPS_H

#include <stddef.h>
#include <stdint.h>

/* Compiled for wider vectors too, chosen when the program starts. Sanitizers cannot instrument the
 * choice, which runs before they do. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OPS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OPS_CLONES
#endif

/* y[rows][out] = x[rows][in] w[out][in]^T + b[out]; b may be NULL. */
void ops_linear(float *y, const float *x, const float *w, const float *b, int rows, int in,
                int out);
/* dx = dy w (NULL: not wanted); dw += dy^T x; db += column sums of dy (NULL: no bias). */
void ops_linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                         const float *w, int rows, int in, int out);

/* y = (x - mean) * rstd * gain + bias over each row; mean and rstd are kept for the backward. */
void ops_layernorm(float *y, float *mean, float *rstd, const float *x, const float *gain,
                   const float *bias, int rows, int dim);
/* dx += gradient through the norm (dx holds that of the residual path). */
void ops_layernorm_backward(float *dx, float *dgain, float *dbias, const float *dy, const float *x,
                            const float *mean, const float *rstd, const float *gain, int rows,
                            int dim);

/* y = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)): GELU in its tanh form. */
void ops_gelu(float *y, const float *x, size_t count);
/* dy becomes dx in place. */
void ops_gelu_backward(float *dy, const float *x, size_t count);

/* y += x */
void ops_add(float *y, const float *x, size_t count);
/* dst[j] += the sum of column j of src. */
void ops_add_column_sums(float *dst, const float *src, int rows, int cols);

/* row[0..count) = softmax(scale * row); the rest up to `width` becomes 0. */
void ops_softmax(float *row, int count, int width, float scale);
/* drow becomes scale * p (drow - sum(drow p)) over the first `count`, 0 up to `width`. */
void ops_softmax_backward(float *drow, const float *p, int count, int width, float scale);

/* Cross entropy of each row of logits against targets[row], summed, in nats. grad_scale > 0: logits
 * become (softmax - onehot) * grad_scale; 0: they are left. */
double ops_cross_entropy(float *logits, const uint8_t *targets, int rows, int vocab,
                         float grad_scale);

#endif
