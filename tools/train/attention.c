/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/attention.h"

#include <math.h>
#include <stddef.h>

#include "tools/train/blas.h"
#include "tools/train/ops.h"

void attention_forward(float *out, float *probs, const float *qkv, attention_shape shape)
{
    const int len = shape.seq_len, width = shape.head_dim, dim = shape.heads * width;
    const float scale = 1.0f / sqrtf((float)width);
    for (int sample = 0; sample < shape.batch; sample++) {
        const size_t first_row = (size_t)sample * (size_t)len;
        for (int head = 0; head < shape.heads; head++) {
            const float *q = qkv + first_row * 3 * (size_t)dim + (size_t)(head * width);
            const float *k = q + dim, *v = k + dim;
            float *p = probs + ((size_t)sample * (size_t)shape.heads + (size_t)head) * (size_t)len *
                                   (size_t)len;
            blas_gemm(false, true, len, len, width, 1.0f, q, 3 * dim, k, 3 * dim, 0.0f, p, len);
            for (int i = 0; i < len; i++)
                ops_softmax(p + (size_t)i * (size_t)len, i + 1, len, scale);
            blas_gemm(false, false, len, width, len, 1.0f, p, len, v, 3 * dim, 0.0f,
                      out + first_row * (size_t)dim + (size_t)(head * width), dim);
        }
    }
}

void attention_backward(float *dqkv, float *scratch, const float *dout, const float *qkv,
                        const float *probs, attention_shape shape)
{
    const int len = shape.seq_len, width = shape.head_dim, dim = shape.heads * width;
    const float scale = 1.0f / sqrtf((float)width);
    for (int sample = 0; sample < shape.batch; sample++) {
        const size_t first_row = (size_t)sample * (size_t)len;
        for (int head = 0; head < shape.heads; head++) {
            const size_t start = first_row * 3 * (size_t)dim + (size_t)(head * width);
            const float *q = qkv + start, *k = q + dim, *v = k + dim;
            float *dq = dqkv + start, *dk = dq + dim, *dv = dk + dim;
            const float *p = probs + ((size_t)sample * (size_t)shape.heads + (size_t)head) *
                                         (size_t)len * (size_t)len;
            const float *dy = dout + first_row * (size_t)dim + (size_t)(head * width);
            blas_gemm(true, false, len, width, len, 1.0f, p, len, dy, dim, 0.0f, dv, 3 * dim);
            blas_gemm(false, true, len, len, width, 1.0f, dy, dim, v, 3 * dim, 0.0f, scratch, len);
            for (int i = 0; i < len; i++)
                ops_softmax_backward(scratch + (size_t)i * (size_t)len, p + (size_t)i * (size_t)len,
                                     i + 1, len, scale);
            blas_gemm(false, false, len, width, len, 1.0f, scratch, len, k, 3 * dim, 0.0f, dq,
                      3 * dim);
            blas_gemm(true, false, len, width, len, 1.0f, scratch, len, q, 3 * dim, 0.0f, dk,
                      3 * dim);
        }
    }
}
