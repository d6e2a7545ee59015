/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019), eps outside the root
 * and after the bias correction, as in PyTorch: m = b1 m + (1-b1) g          v = b2 v + (1-b2) g^2
 *     p = p (1 - lr wd) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 */
#if defined(__GNUC__) && !defined(__clang__)
/* Lets the square root and the comparison be vector instructions; results stay the same. */
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#endif

#include <float.h>
#include <math.h>

#include "sched/half.h"
#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"
#include "sched/optim/remainder.h"

enum { CHUNK = 512 };
#define MAX_BF16 0x1.fep+127f

typedef struct factors {
    double grad_scale, beta1, beta2, grad1, grad2, correction1, correction2, eps, decay, lr;
} factors;

/* 1 - beta^step without cancellation for beta near 1. */
static double bias_correction(double beta, int64_t step)
{
    return beta > 0 ? -expm1((double)step * log(beta)) : 1.0;
}

/* v is kept at the largest float32 where it would overflow (|g| > 1.8e19): an infinite v would stop
 * the element for good, this one decays again. NaN passes. */
static void update(const factors *f, size_t numel, const float *restrict g, float *restrict p,
                   float *restrict m, float *restrict v)
{
    const factors k = *f;
    for (size_t i = 0; i < numel; i++) {
        double grad = k.grad_scale * g[i];
        double m1 = k.beta1 * m[i] + k.grad1 * grad;
        double v1 = k.beta2 * v[i] + k.grad2 * (grad * grad);
        v1 = v1 > FLT_MAX ? FLT_MAX : v1;
        m[i] = (float)m1;
        v[i] = (float)v1;
        double update = (m1 * k.correction1) / (sqrt(v1 * k.correction2) + k.eps);
        p[i] = (float)(k.decay * p[i] - k.lr * update);
    }
}

/* Elements [start, start + count) of the precision-aware form: expanded to float32, updated, put
 * back. Bit by bit the same masters as with float32 moments of the same values. */
static void update_compact(const factors *f, const brg_update_target *target, uint16_t *m,
                           uint16_t *v, size_t start, size_t count, const float *g)
{
    float p[CHUNK], m1[CHUNK], v1[CHUNK];
    uint16_t *weights = (uint16_t *)target->param + start, *low = target->low + start;
    for (size_t i = 0; i < count; i++)
        p[i] = brg_float_of_bits(brg_remainder_join(weights[i], low[i]));
    brg_load_f32(m1, m, BRG_BFLOAT16, start, count);
    brg_load_f32(v1, v, BRG_BFLOAT16, start, count);
    update(f, count, g, p, m1, v1);
    for (size_t i = 0; i < count; i++)
        brg_remainder_split(brg_bits_of_float(p[i]), &weights[i], &low[i]);
    brg_store_f32(m, BRG_BFLOAT16, start, m1, count);
    for (size_t i = 0; i < count; i++) /* the largest float32 would round to infinity */
        v1[i] = v1[i] > MAX_BF16 ? MAX_BF16 : v1[i];
    brg_store_f32(v, BRG_BFLOAT16, start, v1, count);
}

void brg_adamw_host(const brg_update_target *target, void *m, void *v, int64_t step,
                    double grad_scale, const brg_adamw_hyper *hyper)
{
    const factors f = {
        .grad_scale = grad_scale,
        .beta1 = hyper->beta1,
        .beta2 = hyper->beta2,
        .grad1 = 1.0 - hyper->beta1,
        .grad2 = 1.0 - hyper->beta2,
        .correction1 = 1.0 / bias_correction(hyper->beta1, step),
        .correction2 = 1.0 / bias_correction(hyper->beta2, step),
        .eps = hyper->eps,
        .decay = 1.0 - hyper->lr * hyper->weight_decay,
        .lr = hyper->lr,
    };
    float buffer[CHUNK];
    for (size_t start = 0; start < target->numel; start += CHUNK) {
        size_t count = target->numel - start < CHUNK ? target->numel - start : CHUNK;
        const float *g = brg_load_f32(buffer, target->grad, target->grad_dtype, start, count);
        if (target->low) {
            update_compact(&f, target, m, v, start, count, g);
            continue;
        }
        update(&f, count, g, target->master + start, (float *)m + start, (float *)v + start);
        if (target->param != target->master)
            brg_store_f32(target->param, target->param_dtype, start, target->master + start, count);
    }
}
