/* SPDX-License-Identifier: Apache-2.0 */
/* The third table of a device: the arithmetic that the scheduler and the optimizers put on streams.
 *
 * libbrigade-cuda.so fills it for the device `cuda`. The device `host` has none (its arithmetic is
 * host functions). Everything here is plain C, so that libbrigade needs no CUDA header.
 *
 * Functions return a cudaError_t value (0 success). All of them but the constructors are
 * asynchronous: they put work on `stream`, allocate nothing and synchronise nothing, so that they
 * can be captured into a graph. Pointers are device memory unless said otherwise. Any thread whose
 * current device is that of the stream. All results are deterministic: the same input gives the
 * same bits, in any launch, on any stream.
 */
#ifndef BRIGADE_SCHED_KERNELS_H
#define BRIGADE_SCHED_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRG_KERNELS_ABI 1

/* Partial sums that sum_squares() writes; always all of them. */
#define BRG_NORM_PARTIALS 256

/* What one step decides on the device; one for each optimizer that is given to brg_step(). */
typedef struct brg_step_state {
    double sum_squares; /* of this rank's gradients, then of all ranks' */
    double norm;        /* of gradients times grad_factor, before clipping */
    float grad_scale;   /* what updates multiply gradients with: clip factor * grad_factor */
    int32_t apply;      /* 0: updates do nothing (a norm that is NaN or Inf) */
    int64_t skipped;    /* steps with apply == 0 so far */
    int64_t steps;      /* all steps so far */
} brg_step_state;

/* What one optimizer's update needs besides; device memory, written by prepare_step(). */
typedef struct brg_hyper_state {
    int64_t steps; /* updates applied so far, this one included */
    double lr;
    float lr_f;       /* (float)lr */
    float decay;      /* 1 - lr * weight_decay */
    float bias1;      /* lr / (1 - beta1^steps); AdamW only */
    float bias2_root; /* sqrt(1 - beta2^steps); AdamW only */
} brg_hyper_state;

#define BRG_MAX_CHILDREN 16

typedef struct brg_prepare_args {
    brg_step_state *state;
    double grad_factor;   /* 1/dp where the collective only sums; else 1 */
    double max_grad_norm; /* 0: no clipping; else clip = min(1, max / (norm + 1e-6)) */
    int32_t apply_non_finite;
    int32_t num_children;
    struct {
        brg_hyper_state *hyper;
        const double *lr_memory; /* device memory to read lr from when the kernel runs (graphs);
                                    NULL: `lr` */
        double lr, weight_decay, beta1, beta2;
    } children[BRG_MAX_CHILDREN];
    /* Page-locked host memory that gets a copy of *state and of every child's hyper->steps, for the
     * caller's thread to read after an event; may be NULL. */
    brg_step_state *host_state;
    int64_t *host_steps; /* num_children */
} brg_prepare_args;

/* A contiguous range of one bucket's shard, and its state. Any alignment of whole elements. */
typedef struct brg_update_range {
    void *param;      /* param_dtype; gets the updated values */
    const void *grad; /* grad_dtype */
    float *master;    /* float32 values; == param for float32 parameters; NULL with `low` */
    uint16_t *low;    /* precision-aware: the low half of the float32 master whose high half is the
                         bfloat16 parameter; else NULL */
    void *state0,
        *state1; /* m and v, float32 (bfloat16 when precision-aware); SGD: momentum, or NULL */
    int64_t numel;
} brg_update_range;

/* dtypes are brg_dtype values: float32, float16, bfloat16. */
typedef struct brg_adamw_args {
    const brg_step_state *state;
    const brg_hyper_state *hyper;
    float beta1, beta2, eps;
    float one_minus_beta1, one_minus_beta2; /* rounded from double */
    int32_t param_dtype, grad_dtype;
    int32_t precision_aware; /* bfloat16 parameters only */
    int32_t num_ranges;
    const brg_update_range *ranges; /* host memory, read during the call */
} brg_adamw_args;

typedef struct brg_sgd_args {
    const brg_step_state *state;
    const brg_hyper_state *hyper;
    float momentum, weight_decay; /* weight decay is added to the gradient */
    int32_t param_dtype, grad_dtype;
    int32_t num_ranges;
    const brg_update_range *ranges; /* host memory, read during the call */
} brg_sgd_args;

/* One matrix that is orthogonalised on its own: `num_pieces` stretches of rows/num_pieces rows,
 * `piece_stride` elements apart in all four arrays (row split), or one piece. */
typedef struct brg_muon_matrix {
    void *param;
    const void *grad;
    float *master, *momentum;
    int64_t rows, cols; /* of the whole matrix; row-major */
    int64_t num_pieces, piece_stride;
    int32_t param_dtype, grad_dtype;
} brg_muon_matrix;

/* Values of brg_ns_precision and brg_ns_algorithm in brigade/optimizer.h. */
typedef struct brg_muon_config {
    int32_t num_steps;
    const double (*tuples)[3];    /* (a, b, c) of every step; copied */
    int32_t precision;            /* brg_ns_precision */
    int32_t algorithm;            /* brg_ns_algorithm; 0: autotuned per shape */
    const int32_t *restarts;      /* Gram form: steps before which to restart; copied */
    int32_t num_restarts;         /* -1: chosen per coefficient set */
    int32_t nesterov, accumulate; /* accumulate: BRG_MOMENTUM_ACCUMULATE */
    int32_t scale;                /* brg_muon_scale */
    double momentum, eps, extra_scale;
    size_t workspace_bytes; /* upper limit for batches; 0: chosen from free memory */
    const char *cache_file; /* of autotuned choices; NULL: none */
} brg_muon_config;

typedef struct brg_muon_plan brg_muon_plan;

typedef struct brg_kernels {
    int abi; /* BRG_KERNELS_ABI */
    int (*sum_squares)(const void *values, int dtype, int64_t numel,
                       double *partials /* BRG_NORM_PARTIALS */, void *stream);
    /* Adds `count` runs of BRG_NORM_PARTIALS values, in order; runs are where the `count` pointers
     * in the device array `partials` say. Writes *sum. */
    int (*sum_partials)(const double *const *partials, int count, double *sum, void *stream);
    /* From the ranks' sum of squares to norm, clip factor, skip, step counts, bias corrections. */
    int (*prepare_step)(const brg_prepare_args *args, void *stream);
    int (*adamw)(const brg_adamw_args *args, void *stream);
    int (*sgd)(const brg_sgd_args *args, void *stream);
    /* dst = (dst_dtype)src, between float64, float32, float16 and bfloat16. */
    int (*convert)(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t numel,
                   void *stream);
    /* Looks for NaN and Inf: *first = index of the first one, or -1; *sum_squares = sum of squares
     * in float64. Both in page-locked host memory. */
    int (*check_values)(const void *values, int dtype, int64_t numel, int64_t *first,
                        double *sum_squares, double *partials /* 2 * BRG_NORM_PARTIALS */,
                        void *stream);
    /* Writes the device clock (ns) to slots[(*counter % ring) * stride + index]; slots is
     * page-locked host memory. Then, if `advance`, *counter += 1. For time stamps inside graphs. */
    int (*stamp)(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride, uint32_t index,
                 int advance, void *stream);
    /* *dst = value, in stream order. */
    int (*store_double)(double *dst, double value, void *stream);

    /* Muon over `count` matrices: plans batches of equal shapes, allocates the workspace, tunes.
     * Blocks. On failure returns an error and writes a message. `matrices` is copied. A matrix gets
     * the same bits from every plan that makes the same choice for its shape, whatever else is in
     * it; plans that share a cache file, or a process, do. */
    int (*muon_create)(const brg_muon_matrix *matrices, int count, const brg_muon_config *config,
                       brg_muon_plan **plan, char *message, size_t message_bytes);
    /* Momentum, Nesterov, norm, Newton-Schulz, scale, decay, apply and weight cast of all matrices.
     */
    int (*muon_update)(brg_muon_plan *plan, const brg_step_state *state,
                       const brg_hyper_state *hyper, void *stream);
    void (*muon_destroy)(brg_muon_plan *plan); /* waits for nothing; NULL allowed */
    /* Human-readable choices, one line a shape; valid until the plan is destroyed. */
    const char *(*muon_describe)(const brg_muon_plan *plan);
    /* Newton-Schulz alone on what lies in the workspace, all batches: for benchmarks. muon_update()
     * before it puts sensible values there. Not the vectors and small matrices that need no
     * workspace. */
    int (*muon_ns_run)(brg_muon_plan *plan, void *stream);

    const char *(*error_string)(int error);
} brg_kernels;

/* The only symbol that libbrigade-cuda.so exports; NULL for another ABI number. */
typedef const brg_kernels *(*brg_cuda_kernels_fn)(int abi);
#define BRG_CUDA_KERNELS_SYMBOL "brg_cuda_kernels"

#ifdef __cplusplus
}
#endif
#endif
