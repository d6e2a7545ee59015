// SPDX-License-Identifier: Apache-2.0
// The model's loss in float64, token by token with plain loops: what model.c is checked against.
#ifndef BRIGADE_TESTS_TRAIN_REFERENCE_H
#define BRIGADE_TESTS_TRAIN_REFERENCE_H

#include <cmath>
#include <cstdint>
#include <vector>

extern "C" {
#include "tools/train/model.h"
}

using Vec = std::vector<double>;
using Params = std::vector<Vec>; // in registration order

// y[o] = sum_i w[o][i] x[i] + b[o]
inline Vec ref_linear(const Vec &x, const Vec &w, const Vec *b)
{
    Vec y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); o++) {
        y[o] = b ? (*b)[o] : 0.0;
        for (size_t i = 0; i < x.size(); i++)
            y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
}

inline Vec ref_norm(const Vec &x, const Vec &gain, const Vec &bias)
{
    double mean = 0, variance = 0;
    for (double v : x)
        mean += v / (double)x.size();
    for (double v : x)
        variance += (v - mean) * (v - mean) / (double)x.size();
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); i++)
        y[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + bias[i];
    return y;
}

inline double ref_gelu(double x)
{
    return 0.5 * x *
           (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

inline void ref_add(Vec &y, const Vec &x)
{
    for (size_t i = 0; i < y.size(); i++)
        y[i] += x[i];
}

// Attention of the last token in `qkv` over all of them.
inline Vec ref_attend(const std::vector<Vec> &qkv, int heads)
{
    const size_t dim = qkv[0].size() / 3, width = dim / (size_t)heads;
    Vec out(dim, 0.0);
    for (size_t head = 0; head < (size_t)heads; head++) {
        Vec weight(qkv.size());
        double sum = 0;
        for (size_t s = 0; s < qkv.size(); s++) {
            double score = 0;
            for (size_t j = head * width; j < (head + 1) * width; j++)
                score += qkv.back()[j] * qkv[s][dim + j];
            sum += weight[s] = std::exp(score / std::sqrt((double)width));
        }
        for (size_t s = 0; s < qkv.size(); s++)
            for (size_t j = head * width; j < (head + 1) * width; j++)
                out[j] += weight[s] / sum * qkv[s][2 * dim + j];
    }
    return out;
}

inline void ref_block(const model_config &c, const Params &p, int layer, std::vector<Vec> &x)
{
    auto param = [&](model_role which) -> const Vec & {
        return p[(size_t)model_block_param(layer, which)];
    };
    std::vector<Vec> qkv;
    for (Vec &token : x) {
        Vec normed = ref_norm(token, param(LN1_GAIN), param(LN1_BIAS));
        qkv.push_back(ref_linear(normed, param(QKV_WEIGHT), &param(QKV_BIAS)));
        Vec attended = ref_attend(qkv, c.heads);
        ref_add(token, ref_linear(attended, param(ATTN_PROJ_WEIGHT), &param(ATTN_PROJ_BIAS)));
    }
    for (Vec &token : x) {
        Vec wide = ref_linear(ref_norm(token, param(LN2_GAIN), param(LN2_BIAS)), param(FC_WEIGHT),
                              &param(FC_BIAS));
        for (double &v : wide)
            v = ref_gelu(v);
        ref_add(token, ref_linear(wide, param(MLP_PROJ_WEIGHT), &param(MLP_PROJ_BIAS)));
    }
}

// Sum of the losses of all tokens of the batch.
inline double ref_loss(const model *m, const Params &p, const model_batch &batch)
{
    const model_config &c = m->config;
    const size_t dim = (size_t)c.dim;
    double loss = 0;
    for (int sample = 0; sample < batch.count; sample++) {
        const uint8_t *tokens = batch.tokens + sample * (c.seq_len + 1);
        std::vector<Vec> x;
        for (size_t t = 0; t < (size_t)c.seq_len; t++) {
            Vec row(dim);
            for (size_t j = 0; j < dim; j++)
                row[j] = p[MODEL_TOKEN_EMBEDDING][tokens[t] * dim + j] +
                         p[MODEL_POSITION_EMBEDDING][t * dim + j];
            x.push_back(row);
        }
        for (int layer = 0; layer < c.layers; layer++)
            ref_block(c, p, layer, x);
        for (size_t t = 0; t < (size_t)c.seq_len; t++) {
            size_t norm = (size_t)model_final_norm(m);
            Vec logits =
                ref_linear(ref_norm(x[t], p[norm], p[norm + 1]), p[(size_t)model_head(m)], nullptr);
            double sum = 0;
            for (double logit : logits)
                sum += std::exp(logit);
            loss += std::log(sum) - logits[tokens[t + 1]];
        }
    }
    return loss;
}

#endif
