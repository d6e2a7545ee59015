/* SPDX-License-Identifier: Apache-2.0 */
/* Muon (K. Jordan et al., 2024): momentum, Nesterov, normalise, Newton-Schulz, shape scale,
 * decoupled decay. Momentum comes in two conventions, which are the same optimizer while mu is
 * constant, since normalisation removes the factor (1-mu) between them: EMA (Megatron-LM,
 * torch.optim.Muon)   M = mu M + (1-mu) g    Nesterov: (1-mu) g + mu M accumulate (Jordan, Dion) M
 * = mu M + g           Nesterov: g + mu M
 */
#include <math.h>

#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"

enum { CHUNK = 512 };

double brg_muon_scale_factor(brg_muon_scale scale, int64_t rows, int64_t cols)
{
    double ratio = (double)rows / (double)cols;
    switch (scale) {
    case BRG_SCALE_SPECTRAL:
        return sqrt((double)(rows > cols ? rows : cols));
    case BRG_SCALE_UNIT_RMS_NORM:
        return sqrt(ratio);
    case BRG_SCALE_SHAPE_SCALING:
        return sqrt(ratio > 1.0 ? ratio : 1.0);
    }
    return 1.0;
}

/* Updates the momentum of elements [start, start + numel) and writes what Newton-Schulz gets to x.
 * Returns the sum of its squares. */
static double momentum_step(const brg_update_target *target, float *momentum, size_t start,
                            size_t numel, double grad_scale, const brg_muon_hyper *hyper, float *x)
{
    const double mu = hyper->momentum;
    const double weight = hyper->style == BRG_MOMENTUM_EMA ? 1.0 - mu : 1.0;
    /* Newton-Schulz input = ahead * M + aside * g */
    const double ahead = hyper->nesterov ? mu : 1.0, aside = hyper->nesterov ? weight : 0.0;
    float buffer[CHUNK];
    for (size_t done = 0; done < numel; done += CHUNK) {
        size_t count = numel - done < CHUNK ? numel - done : CHUNK;
        const float *restrict g =
            brg_load_f32(buffer, target->grad, target->grad_dtype, start + done, count);
        float *restrict m = momentum + start + done;
        float *restrict to = x + done;
        for (size_t i = 0; i < count; i++) {
            double grad = grad_scale * g[i];
            double m1 = mu * m[i] + weight * grad;
            m[i] = (float)m1;
            to[i] = (float)(ahead * m1 + aside * grad);
        }
    }
    return brg_sum_of_squares_host(x, BRG_FLOAT32, numel);
}

static void apply(const brg_update_target *target, size_t start, size_t numel, const float *update,
                  double decay, double rate)
{
    for (size_t done = 0; done < numel; done += CHUNK) {
        size_t count = numel - done < CHUNK ? numel - done : CHUNK;
        float *restrict p = target->master + start + done;
        const float *restrict u = update + done;
        for (size_t i = 0; i < count; i++)
            p[i] = (float)(decay * p[i] - rate * u[i]);
        if (target->param != target->master)
            brg_store_f32(target->param, target->param_dtype, start + done, p, count);
    }
}

/* One block: rows [first_row, first_row + block_rows) of each of num_groups stretches of
 * stride_rows rows, put together to one matrix. */
typedef struct block {
    int64_t first_row, block_rows, stride_rows, num_groups, cols;
} block;

static void step_block(const brg_update_target *target, float *momentum, const block *b,
                       double grad_scale, const brg_muon_hyper *hyper,
                       const brg_ns_schedule *schedule, brg_ns_workspace *workspace)
{
    const size_t piece = (size_t)b->block_rows * (size_t)b->cols;
    const size_t stride = (size_t)b->stride_rows * (size_t)b->cols;
    const size_t first = (size_t)b->first_row * (size_t)b->cols;
    const int64_t rows = b->block_rows * b->num_groups;
    double sum = 0;
    for (int64_t g = 0; g < b->num_groups; g++)
        sum += momentum_step(target, momentum, first + (size_t)g * stride, piece, grad_scale, hyper,
                             workspace->x + (size_t)g * piece);
    const float *update =
        brg_ns_orthogonalize_host(workspace, rows, b->cols, sum, hyper->eps, schedule);
    double rate =
        hyper->lr * hyper->extra_scale * brg_muon_scale_factor(hyper->scale, rows, b->cols);
    double decay = 1.0 - hyper->lr * hyper->weight_decay;
    for (int64_t g = 0; g < b->num_groups; g++)
        apply(target, first + (size_t)g * stride, piece, update + (size_t)g * piece, decay, rate);
}

void brg_muon_host(const brg_update_target *target, float *momentum, int64_t rows, int64_t cols,
                   const brg_row_split *split, double grad_scale, const brg_muon_hyper *hyper,
                   const brg_ns_schedule *schedule, brg_ns_workspace *workspace)
{
    block b = {0, rows, rows, 1, cols};
    if (!split) {
        step_block(target, momentum, &b, grad_scale, hyper, schedule, workspace);
        return;
    }
    b.num_groups = split->num_groups;
    b.stride_rows = rows / split->num_groups;
    for (int i = 0; i < split->num_blocks; i++) {
        b.block_rows = split->block_rows[i];
        step_block(target, momentum, &b, grad_scale, hyper, schedule, workspace);
        b.first_row += b.block_rows;
    }
}
