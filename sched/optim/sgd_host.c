/* SPDX-License-Identifier: Apache-2.0 */
/* SGD with momentum, as in PyTorch without dampening: g = g + wd p ; b = mu b + g ; p = p - lr b.
 */
#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"

enum { CHUNK = 512 };

static void update_plain(const brg_sgd_hyper *hyper, double scale, size_t numel,
                         const float *restrict g, float *restrict p)
{
    const double lr = hyper->lr, decay = hyper->weight_decay;
    for (size_t i = 0; i < numel; i++)
        p[i] = (float)(p[i] - lr * (scale * g[i] + decay * p[i]));
}

static void update_momentum(const brg_sgd_hyper *hyper, double scale, size_t numel,
                            const float *restrict g, float *restrict p, float *restrict b)
{
    const double lr = hyper->lr, decay = hyper->weight_decay, mu = hyper->momentum;
    for (size_t i = 0; i < numel; i++) {
        double b1 = mu * b[i] + (scale * g[i] + decay * p[i]);
        b[i] = (float)b1;
        p[i] = (float)(p[i] - lr * b1);
    }
}

void brg_sgd_host(const brg_update_target *target, float *momentum, double grad_scale,
                  const brg_sgd_hyper *hyper)
{
    float buffer[CHUNK];
    for (size_t start = 0; start < target->numel; start += CHUNK) {
        size_t count = target->numel - start < CHUNK ? target->numel - start : CHUNK;
        const float *g = brg_load_f32(buffer, target->grad, target->grad_dtype, start, count);
        float *p = target->master + start;
        if (momentum)
            update_momentum(hyper, grad_scale, count, g, p, momentum + start);
        else
            update_plain(hyper, grad_scale, count, g, p);
        if (target->param != p - start)
            brg_store_f32(target->param, target->param_dtype, start, p, count);
    }
}
