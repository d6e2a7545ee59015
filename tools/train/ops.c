/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/ops.h"

#include <math.h>
#include <string.h>

#include "tools/train/blas.h"

#define LANES 16
#define LAYERNORM_EPS 1e-5f

/* e^x to about one unit in the last place, written so that loops around it become vector code:
 * x = n ln 2 + r with |r| <= ln(2)/2, Taylor series of e^r, then n is added to the exponent. Beyond
 * +-60 it stays where it is: nothing here can tell e^-60 from 0, and quotients that end up denormal
 * make the CPU a hundred times slower. */
static inline float exp_inline(float x)
{
    const float round_bias = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = x < -60.0f ? -60.0f : x;
    x = x > 60.0f ? 60.0f : x;
    float n = x * 1.44269504089f + round_bias;
    int32_t bits;
    memcpy(&bits, &n, sizeof bits);
    n -= round_bias;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t value;
    memcpy(&value, &p, sizeof value);
    value = (int32_t)((uint32_t)value + ((uint32_t)bits << 23));
    memcpy(&p, &value, sizeof p);
    return p;
}

/* Sums in LANES partial sums: the compiler may not reorder float additions, so the order that
 * vector units want is written out. */
static inline float sum_inline(const float *x, int count)
{
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l];
    for (int l = 0; i + l < count; l++)
        lane[l] += x[i + l];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

static inline float dot_inline(const float *x, const float *y, int count)
{
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (int l = 0; i + l < count; l++)
        lane[l] += x[i + l] * y[i + l];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

static inline float max_inline(const float *x, int count)
{
    float lane[LANES];
    for (int l = 0; l < LANES; l++)
        lane[l] = x[0];
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; i + l < count; l++)
        lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    float max = lane[0];
    for (int l = 1; l < LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

void ops_linear(float *y, const float *x, const float *w, const float *b, int rows, int in, int out)
{
    if (b)
        for (int row = 0; row < rows; row++)
            memcpy(y + (size_t)row * (size_t)out, b, (size_t)out * sizeof *y);
    blas_gemm(false, true, rows, out, in, 1.0f, x, in, w, in, b ? 1.0f : 0.0f, y, out);
}

void ops_linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                         const float *w, int rows, int in, int out)
{
    blas_gemm(true, false, out, in, rows, 1.0f, dy, out, x, in, 1.0f, dw, in);
    if (db)
        ops_add_column_sums(db, dy, rows, out);
    if (dx)
        blas_gemm(false, false, rows, in, out, 1.0f, dy, out, w, in, 0.0f, dx, in);
}

OPS_CLONES void ops_layernorm(float *restrict y, float *restrict mean, float *restrict rstd,
                              const float *restrict x, const float *restrict gain,
                              const float *restrict bias, int rows, int dim)
{
    for (int row = 0; row < rows; row++) {
        const float *in = x + (size_t)row * (size_t)dim;
        float *out = y + (size_t)row * (size_t)dim;
        float m = sum_inline(in, dim) / (float)dim;
        for (int j = 0; j < dim; j++)
            out[j] = in[j] - m;
        float r = 1.0f / sqrtf(dot_inline(out, out, dim) / (float)dim + LAYERNORM_EPS);
        for (int j = 0; j < dim; j++)
            out[j] = out[j] * r * gain[j] + bias[j];
        mean[row] = m;
        rstd[row] = r;
    }
}

OPS_CLONES void ops_layernorm_backward(float *restrict dx, float *restrict dgain,
                                       float *restrict dbias, const float *restrict dy,
                                       const float *restrict x, const float *restrict mean,
                                       const float *restrict rstd, const float *restrict gain,
                                       int rows, int dim)
{
    for (int row = 0; row < rows; row++) {
        const float *dout = dy + (size_t)row * (size_t)dim;
        const float *in = x + (size_t)row * (size_t)dim;
        float *din = dx + (size_t)row * (size_t)dim;
        const float m = mean[row], r = rstd[row];
        float sum_lane[LANES] = {0}, dot_lane[LANES] = {0}; /* of dxhat; of dxhat * xhat */
        for (int base = 0; base < dim; base += LANES) {
            int width = dim - base < LANES ? dim - base : LANES;
            for (int l = 0; l < width; l++) {
                float xhat = (in[base + l] - m) * r, dxhat = dout[base + l] * gain[base + l];
                sum_lane[l] += dxhat;
                dot_lane[l] += dxhat * xhat;
            }
        }
        const float sum = sum_inline(sum_lane, LANES) / (float)dim;
        const float dot = sum_inline(dot_lane, LANES) / (float)dim;
        for (int j = 0; j < dim; j++) {
            float xhat = (in[j] - m) * r;
            din[j] += r * (dout[j] * gain[j] - sum - xhat * dot);
            dgain[j] += dout[j] * xhat;
            dbias[j] += dout[j];
        }
    }
}

#define GELU_SLOPE 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

OPS_CLONES void ops_gelu(float *restrict y, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float u = GELU_SLOPE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]);
        y[i] = x[i] / (1.0f + exp_inline(-u));
    }
}

OPS_CLONES void ops_gelu_backward(float *restrict dy, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float u = GELU_SLOPE * (x[i] + GELU_CUBIC * x[i] * x[i] * x[i]);
        float du = GELU_SLOPE * (1.0f + 3.0f * GELU_CUBIC * x[i] * x[i]);
        float s = 1.0f / (1.0f + exp_inline(-u));
        dy[i] *= s + x[i] * s * (1.0f - s) * du;
    }
}

OPS_CLONES void ops_add(float *restrict y, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}

OPS_CLONES void ops_add_column_sums(float *restrict dst, const float *restrict src, int rows,
                                    int cols)
{
    for (int row = 0; row < rows; row++) {
        const float *in = src + (size_t)row * (size_t)cols;
        for (int j = 0; j < cols; j++)
            dst[j] += in[j];
    }
}

OPS_CLONES void ops_softmax(float *row, int count, int width, float scale)
{
    float max = max_inline(row, count);
    for (int j = 0; j < count; j++)
        row[j] = exp_inline((row[j] - max) * scale);
    float inverse = 1.0f / sum_inline(row, count);
    for (int j = 0; j < count; j++)
        row[j] *= inverse;
    for (int j = count; j < width; j++)
        row[j] = 0.0f;
}

OPS_CLONES void ops_softmax_backward(float *restrict drow, const float *restrict p, int count,
                                     int width, float scale)
{
    float dot = dot_inline(drow, p, count);
    for (int j = 0; j < count; j++)
        drow[j] = scale * p[j] * (drow[j] - dot);
    for (int j = count; j < width; j++)
        drow[j] = 0.0f;
}

OPS_CLONES double ops_cross_entropy(float *logits, const uint8_t *targets, int rows, int vocab,
                                    float grad_scale)
{
    double loss = 0.0;
    for (int row = 0; row < rows; row++) {
        float *x = logits + (size_t)row * (size_t)vocab;
        const float max = max_inline(x, vocab), of_target = x[targets[row]];
        float lane[LANES] = {0};
        for (int base = 0; base < vocab; base += LANES) {
            int width = vocab - base < LANES ? vocab - base : LANES;
            for (int l = 0; l < width; l++) {
                float e = exp_inline(x[base + l] - max);
                lane[l] += e;
                x[base + l] = grad_scale > 0.0f ? e : x[base + l];
            }
        }
        const float sum = sum_inline(lane, LANES);
        loss += log((double)sum) + (double)max - (double)of_target;
        if (grad_scale > 0.0f) {
            const float factor = grad_scale / sum;
            for (int j = 0; j < vocab; j++)
                x[j] *= factor;
            x[targets[row]] -= grad_scale;
        }
    }
    return loss;
}
