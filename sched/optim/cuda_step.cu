/* SPDX-License-Identifier: Apache-2.0 */
/* What a step decides on the device, and the small writes in stream order: one block each. */
#include "sched/optim/cuda.h"
#include "sched/optim/cuda_reduce.cuh"

static __global__ void __launch_bounds__(BRG_NORM_PARTIALS)
    sum_partials(const double *const *partials, int count, double *out)
{
    __shared__ double shared[BRG_NORM_PARTIALS / BRG_WARP];
    double sum = 0;
#pragma unroll 8
    for (int run = 0; run < count; run++)
        sum += partials[run][threadIdx.x];
    sum = brg_block_sum<BRG_NORM_PARTIALS>(sum, shared);
    if (threadIdx.x == 0)
        *out = sum;
}

int brg_cuda_sum_partials(const double *const *partials, int count, double *sum, void *stream)
{
    return brg_cuda_launch(sum_partials, 1, BRG_NORM_PARTIALS, stream, partials, count, sum);
}

/* 1 - beta^steps without cancellation for beta near 1. */
static __device__ double bias_correction(double beta, int64_t steps)
{
    return beta > 0 ? -expm1((double)steps * log(beta)) : 1.0;
}

static __device__ void decide(const brg_prepare_args &args, brg_step_state *state)
{
    state->norm = sqrt(state->sum_squares) * fabs(args.grad_factor);
    state->apply = isfinite(state->norm) || args.apply_non_finite;
    double clip = 1.0;
    if (args.max_grad_norm > 0) {
        double wanted = args.max_grad_norm / (state->norm + 1e-6);
        if (wanted < 1.0) /* not for NaN */
            clip = wanted;
    }
    state->grad_scale = (float)(clip * args.grad_factor);
    state->skipped += !state->apply;
    state->steps++;
}

/* Thread i prepares child i, each from its own copy of the state; thread 0 writes that back. */
static __global__ void __launch_bounds__(BRG_WARP)
    prepare_step(const __grid_constant__ brg_prepare_args args)
{
    brg_step_state state = *args.state;
    decide(args, &state);
    __syncwarp(); /* all have read it */
    if (threadIdx.x == 0) {
        *args.state = state;
        if (args.host_state)
            *args.host_state = state;
    }
    if (threadIdx.x >= args.num_children)
        return;
    const auto &child = args.children[threadIdx.x];
    brg_hyper_state hyper = *child.hyper;
    if (state.apply) {
        hyper.steps++;
        hyper.lr = child.lr_memory ? *child.lr_memory : child.lr;
        hyper.lr_f = (float)hyper.lr;
        hyper.decay = (float)(1.0 - hyper.lr * child.weight_decay);
        hyper.bias1 = (float)(hyper.lr / bias_correction(child.beta1, hyper.steps));
        hyper.bias2_root = (float)sqrt(bias_correction(child.beta2, hyper.steps));
        *child.hyper = hyper;
    }
    if (args.host_steps)
        args.host_steps[threadIdx.x] = hyper.steps;
}

int brg_cuda_prepare_step(const brg_prepare_args *args, void *stream)
{
    if (args->num_children < 0 || args->num_children > BRG_MAX_CHILDREN)
        return cudaErrorInvalidValue;
    return brg_cuda_launch(prepare_step, 1, BRG_WARP, stream, *args);
}

static __global__ void stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride,
                             uint32_t index, int advance)
{
    uint64_t now_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    uint64_t count = *counter;
    slots[(count % ring) * stride + index] = now_ns;
    if (advance)
        *counter = count + 1;
}

int brg_cuda_stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride,
                   uint32_t index, int advance, void *stream)
{
    if (ring == 0 || index >= stride)
        return cudaErrorInvalidValue;
    return brg_cuda_launch(stamp, 1, 1, stream, slots, counter, ring, stride, index, advance);
}

static __global__ void store_double(double *dst, double value)
{
    *dst = value;
}

int brg_cuda_store_double(double *dst, double value, void *stream)
{
    return brg_cuda_launch(store_double, 1, 1, stream, dst, value);
}
