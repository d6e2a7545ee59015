/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers' arithmetic on host memory: pure functions, no device, no state of their own.
 *
 * All of them read float32, float16 or bfloat16 gradients, multiply them with `grad_scale` (the
 * clip factor) while reading, compute in double and round once to the float32 state.
 */
#ifndef BRIGADE_SCHED_OPTIM_KERNELS_H
#define BRIGADE_SCHED_OPTIM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "brigade/optimizer.h"
#include "sched/optim/ns.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one update reads and writes. */
typedef struct brg_update_target {
    float *master; /* float32 values that are updated; NULL with `low` */
    void *param;   /* gets the masters in param_dtype; equal to master for float32 */
    const void *grad;
    brg_dtype param_dtype, grad_dtype;
    size_t numel;
    uint16_t *low; /* precision-aware AdamW: low halves of the masters; see remainder.h */
} brg_update_target;

/* Sum of squares in float64, in an order that depends on `numel` alone. */
double brg_sum_of_squares_host(const void *values, brg_dtype dtype, size_t numel);

typedef struct brg_adamw_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} brg_adamw_hyper;

/* Step `step` (1 is the first) of AdamW; m and v are its two moments, `numel` elements each:
 * float32, with target->low bfloat16, and the parameters bfloat16 too. */
void brg_adamw_host(const brg_update_target *target, void *m, void *v, int64_t step,
                    double grad_scale, const brg_adamw_hyper *hyper);

typedef struct brg_sgd_hyper {
    double lr, momentum, weight_decay;
} brg_sgd_hyper;

/* `momentum` may be NULL if hyper->momentum is 0. */
void brg_sgd_host(const brg_update_target *target, float *momentum, double grad_scale,
                  const brg_sgd_hyper *hyper);

typedef struct brg_muon_hyper {
    double lr, momentum, weight_decay, eps, extra_scale;
    brg_momentum_style style;
    brg_muon_scale scale;
    bool nesterov;
} brg_muon_hyper;

/* num_groups repetitions of num_blocks row blocks; see brg_muon_set_row_split(). */
typedef struct brg_row_split {
    int64_t num_groups;
    int num_blocks;
    const int64_t *block_rows;
} brg_row_split;

double brg_muon_scale_factor(brg_muon_scale scale, int64_t rows, int64_t cols);

/* One Muon step of a rows x cols matrix. `split` may be NULL: the matrix is one block. The
 * workspace must have been made for at least that many rows and columns. */
void brg_muon_host(const brg_update_target *target, float *momentum, int64_t rows, int64_t cols,
                   const brg_row_split *split, double grad_scale, const brg_muon_hyper *hyper,
                   const brg_ns_schedule *schedule, brg_ns_workspace *workspace);

#ifdef __cplusplus
}
#endif
#endif
