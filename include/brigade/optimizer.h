/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Optimizers. Each owns a disjoint set of bucket groups of one scheduler, keeps its state for this
 * rank's shards only, and after updating them gathers its own buckets and no other, so that a chain
 * gathers every bucket exactly once in a step.
 *
 * Numbers in options: 0 means the default, a negative value means zero (where zero makes sense).
 *
 * Thread rules: one thread at a time for all optimizers of a scheduler.
 */
#ifndef BRIGADE_OPTIMIZER_H
#define BRIGADE_OPTIMIZER_H

#include "brigade/scheduler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_optimizer brg_optimizer;

/** AdamW, decoupled weight decay (Loshchilov & Hutter 2019): with t the parameter's own step count,
 *     m = b1 m + (1-b1) g          v = b2 v + (1-b2) g^2
 *     p = p (1 - lr wd) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) */
typedef struct brg_adamw_options {
    size_t size;         /**< sizeof(brg_adamw_options); 0 means its size in version 1.0 */
    double lr;           /**< default 1e-3 */
    double beta1, beta2; /**< defaults 0.9, 0.999 */
    double eps;          /**< default 1e-8 */
    double weight_decay; /**< default 0 */
    const int *groups;   /**< bucket groups to own; NULL: all that are not layer-wise */
    int num_groups;
    int precision_aware; /**< bfloat16 m and v, and instead of a float32 master only its low 16
                            bits: with the bfloat16 parameter as the high half the master is exact.
                            18 bytes of traffic a parameter with bfloat16 gradients, 6 of state.
                              Needs bfloat16 parameters */
} brg_adamw_options;

/** SGD with momentum: b = mu b + g ; p = p - lr b. Weight decay is added to g (L2). */
typedef struct brg_sgd_options {
    size_t size;         /**< sizeof(brg_sgd_options); 0 means its size in version 1.0 */
    double lr;           /**< default 1e-3 */
    double momentum;     /**< default 0 */
    double weight_decay; /**< default 0 */
    const int *groups;   /**< as brg_adamw_options::groups */
    int num_groups;
} brg_sgd_options;

/** Newton-Schulz coefficient sets. Step i uses (a,b,c): X = aX + (bA + cA^2)X with A = XX^T. */
typedef enum brg_ns_coefficients {
    BRG_NS_QUINTIC = 0,       /**< 5 tuples, cycled */
    BRG_NS_SIMPLE = 1,        /**< one tuple, cycled */
    BRG_NS_POLAR_EXPRESS = 2, /**< 5 tuples with safety 1.05, last repeated */
    BRG_NS_CANS = 3,          /**< 5 tuples, last repeated */
    BRG_NS_AOL = 4,           /**< 4 tuples, cycled */
    BRG_NS_DEEPSEEKV4 = 5,    /**< 10 tuples, last repeated */
    BRG_NS_CUBIC5 = 6,        /**< 5 tuples with c = 0; exactly 5 steps */
    BRG_NS_CUSTOM = 7,        /**< the caller's tuples, cycled */
} brg_ns_coefficients;

/** Factor on the orthogonalised update of a rows x cols matrix. */
typedef enum brg_muon_scale {
    BRG_SCALE_SPECTRAL = 0,      /**< sqrt(max(rows, cols)) */
    BRG_SCALE_UNIT_RMS_NORM = 1, /**< sqrt(rows / cols) */
    BRG_SCALE_SHAPE_SCALING = 2, /**< sqrt(max(1, rows / cols)) */
} brg_muon_scale;

typedef enum brg_momentum_style {
    BRG_MOMENTUM_EMA = 0,        /**< M = mu M + (1-mu) g ; Nesterov input (1-mu) g + mu M */
    BRG_MOMENTUM_ACCUMULATE = 1, /**< M = mu M + g ; Nesterov input g + mu M */
} brg_momentum_style;

/** What Newton-Schulz products are rounded to on the device `cuda`; the host device always iterates
 * in float32. Accumulation is in float32. */
typedef enum brg_ns_precision {
    BRG_NS_FP16 = 0, /**< about 8 times more accurate than bfloat16 at the same speed */
    BRG_NS_BF16 = 1, /**< standard form in bfloat16, for comparison with other implementations */
    BRG_NS_FP32 = 2, /**< reference */
} brg_ns_precision;

/** How the polynomial is evaluated on the device `cuda`. */
typedef enum brg_ns_algorithm {
    BRG_NS_AUTO = 0,      /**< the fastest on this device that is accurate enough for the shape */
    BRG_NS_STANDARD = 1,  /**< X <- aX + (bA + cA^2)X with full products */
    BRG_NS_SYMMETRIC = 2, /**< the same, computing one triangle of A and A^2 */
    BRG_NS_GRAM = 3,      /**< iterates on the Gram matrix, with restarts; fp16 and fp32 only */
} brg_ns_algorithm;

/** Muon: per matrix, momentum, optional Nesterov, X / max(|X|_F, eps), Newton-Schulz, scale,
 *     p = p (1 - lr wd) - lr * extra_scale * scale(rows, cols) * X */
typedef struct brg_muon_options {
    size_t size;     /**< sizeof(brg_muon_options); 0 means its size in version 1.0 */
    double lr;       /**< default 0.02 */
    double momentum; /**< default 0.95 */
    brg_momentum_style momentum_style;
    int no_nesterov;
    brg_ns_coefficients coefficients;
    int num_steps;             /**< 0: 5 (10 for BRG_NS_DEEPSEEKV4; the list's length for custom) */
    const double (*custom)[3]; /**< BRG_NS_CUSTOM: num_custom tuples (a, b, c); copied */
    int num_custom;
    brg_muon_scale scale;
    double extra_scale;  /**< default 1 */
    double weight_decay; /**< default 0 */
    double eps;          /**< floor of the norm; default 1e-15 */
    const int *groups;   /**< bucket groups to own; NULL: all layer-wise groups */
    int num_groups;
    brg_ns_precision ns_precision;
    brg_ns_algorithm ns_algorithm;
    const int *ns_restarts; /**< BRG_NS_GRAM: steps (1 to num_steps - 1) before which the Gram
                               matrix is formed anew; copied; NULL: chosen for the coefficients.
                               The host device checks all of ns_* and uses none */
    int num_ns_restarts;
} brg_muon_options;

typedef struct brg_chain_options {
    size_t size;          /**< sizeof(brg_chain_options); 0 means its size in version 1.0 */
    double max_grad_norm; /**< clip all gradients by one factor max_norm / (norm + 1e-6) if below 1;
                               0: no clipping */
    int apply_non_finite; /**< do not skip a step whose gradient norm is NaN or Inf */
    double grad_scale;    /**< factor on all gradients, before norm and clipping: 1/ranks where the
                               scheduler only sums (BRG_SCALE_NONE); 0: 1 */
} brg_chain_options;

/** Create an optimizer on @p sched, which must outlive it. State starts at zero; float32 master
 * copies of parameters of another type are taken in the first step (and by
 * brg_optimizer_reload_params()).
 * @param options NULL means all defaults.
 * @param[out] optimizer freed with brg_optimizer_destroy(); NULL on failure.
 * @return BRG_ERR_INVALID_ARGUMENT: an option out of range, a group that does not exist, is listed
 *         twice, is owned by another optimizer, or (Muon) is not layer-wise. BRG_ERR_NO_MEMORY. */
BRG_API brg_status brg_adamw_create(brg_scheduler *sched, const brg_adamw_options *options,
                                    brg_optimizer **optimizer);
BRG_API brg_status brg_sgd_create(brg_scheduler *sched, const brg_sgd_options *options,
                                  brg_optimizer **optimizer);
BRG_API brg_status brg_muon_create(brg_scheduler *sched, const brg_muon_options *options,
                                   brg_optimizer **optimizer);

/** Chains @p num_children optimizers of one scheduler: one gradient norm and one clip factor over
 * all, then each child in order. Every bucket group must be owned by exactly one child.
 * @param children borrowed; destroy the chain before them. The array is copied. On the device
 *        `cuda` at most 16. */
BRG_API brg_status brg_chain_create(brg_optimizer *const *children, int num_children,
                                    const brg_chain_options *options, brg_optimizer **chain);

/** Frees an optimizer or a chain. NULL is allowed. */
BRG_API void brg_optimizer_destroy(brg_optimizer *optimizer);

/** Treats the rows of matrix @p param as @p num_row_groups repetitions of @p num_blocks row blocks
 * of the given heights (fused QKV: one repetition per query group, blocks q*head_dim, head_dim,
 * head_dim). The rows of one block over all repetitions form a matrix that is orthogonalised and
 * scaled on its own.
 * @return BRG_ERR_INVALID_ARGUMENT unless num_row_groups * sum(block_rows) is the number of rows
 * and
 *         @p optimizer is a Muon that owns @p param. On the device `cuda` BRG_ERR_STATE while there
 *         are graphs of the scheduler. Blocks until its last step is done. */
BRG_API brg_status brg_muon_set_row_split(brg_optimizer *optimizer, int param,
                                          int64_t num_row_groups, const int64_t *block_rows,
                                          int num_blocks);

/** One optimizer step on @p stream after brg_finish_grad_sync(): gradient norm, clip factor, then
 * each child's update and the gather of its buckets. Does not block, except that on the device
 * `cuda` the first step of a Muon, and the first after brg_muon_set_row_split(), makes its
 * workspace and may tune. There the norm is of the gradients as brg_finish_grad_sync() left them;
 * on the host as they are when the step runs. */
BRG_API brg_status brg_step(brg_optimizer *optimizer, brg_stream stream);

/** Starts the gather of exactly those bucket groups that @p optimizer owns, after the work now on
 * @p stream. brg_step() calls it after each child's update. With overlap_param_gather it returns at
 * once; without, @p stream waits for the gathers. In all_reduce mode there is nothing to gather.
 * @return BRG_ERR_STATE if one of the groups is already being gathered. */
BRG_API brg_status start_param_sync_for_bucket_group_subset(brg_optimizer *optimizer,
                                                            brg_stream stream);

/** Sets the learning rate for the steps that follow; 0 is zero here. */
BRG_API brg_status brg_optimizer_set_lr(brg_optimizer *optimizer, double lr);

/** The global gradient norm of the last brg_step(), before clipping; and how many steps were
 * skipped for a non-finite norm. Both block until that step is done. A chain's child gives
 * those of its chain.
 * @return BRG_ERR_STATE (norm only) before the first step. */
BRG_API brg_status brg_grad_norm(brg_optimizer *optimizer, double *norm);
BRG_API brg_status brg_skipped_steps(brg_optimizer *optimizer, int64_t *steps);

/** Number of updates that @p param has had. Blocks until the last brg_step() is done.
 * @return BRG_ERR_INVALID_ARGUMENT if no part of it is in this rank's shards. */
BRG_API brg_status brg_param_step_count(brg_optimizer *optimizer, int param, int64_t *steps);

/** Takes the float32 masters from the current parameters anew, e.g. after the caller changed them.
 * Makes @p stream wait for outstanding gathers first. */
BRG_API brg_status brg_optimizer_reload_params(brg_optimizer *optimizer, brg_stream stream);

#ifdef __cplusplus
}
#endif
#endif
