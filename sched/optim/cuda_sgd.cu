/* SPDX-License-Identifier: Apache-2.0 */
/* SGD with momentum as in sgd_host.c, in float32 with fused multiply-adds. */
#include "brigade/dtype.h"
#include "sched/optim/cuda_ranges.cuh"

/* One vector of each array in a thread, one tile in a block: see cuda_adamw.cu. */
enum { THREADS = 256, BLOCKS_PER_SM = 6 };

using Tile = brg_tile<THREADS, 4, 1>;

struct sgd_params {
    const brg_step_state *state;
    const brg_hyper_state *hyper;
    float momentum, weight_decay;
    brg_range_batch batch;
};

static_assert(sizeof(sgd_params) <= 4096, "too large for the parameters of a kernel");

template <typename P, typename G>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    sgd(const __grid_constant__ sgd_params params)
{
    if (!params.state->apply)
        return;
    const float grad_scale = params.state->grad_scale, lr = params.hyper->lr_f;
    const brg_range_tile tile = brg_my_tile<Tile>(params.batch);
    uint32_t grad[Tile::words<G>], param[Tile::words<P>];
    uint32_t master[Tile::words<float>], buffer[Tile::words<float>] = {};
    float *master_tile = tile.range->master + tile.start;
    float *buffer_tile = (float *)tile.range->state0 + tile.start;
    const bool has_buffer = tile.range->state0 != nullptr;
    Tile::load<G>(grad, (const G *)tile.range->grad + tile.start, tile.part);
    Tile::load<float>(master, master_tile, tile.part);
    if (has_buffer)
        Tile::load<float>(buffer, buffer_tile, tile.part);
#pragma unroll
    for (int j = 0; j < Tile::E; j += 2) {
        float p[2], b[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            p[k] = brg_get<float>(master, j + k);
            b[k] = fmaf(params.weight_decay, p[k], grad_scale * (float)brg_get<G>(grad, j + k));
            if (has_buffer)
                b[k] = fmaf(params.momentum, brg_get<float>(buffer, j + k), b[k]);
            p[k] = fmaf(-lr, b[k], p[k]);
        }
        brg_put_as<float>(master, j, p[0], p[1]);
        brg_put_as<float>(buffer, j, b[0], b[1]);
        if constexpr (sizeof(P) == 2)
            brg_put_as<P>(param, j, p[0], p[1]);
    }
    Tile::store<float>(master_tile, master, tile.part);
    if (has_buffer)
        Tile::store<float>(buffer_tile, buffer, tile.part);
    if constexpr (sizeof(P) == 2) /* a float32 parameter is the master */
        Tile::store<P>((P *)tile.range->param + tile.start, param, tile.part);
}

template <typename P, typename G> static int launch(const brg_sgd_args *args, void *stream)
{
    const brg_range_bytes bytes = {sizeof(P), sizeof(G), sizeof(float)};
    sgd_params params = {args->state, args->hyper, args->momentum, args->weight_decay, {}};
    return brg_launch_batches<Tile>(sgd<P, G>, args->ranges, args->num_ranges, &bytes, &params,
                                    stream);
}

template <typename P> static int launch_for_grad(const brg_sgd_args *args, void *stream)
{
    switch (args->grad_dtype) {
    case BRG_FLOAT32:
        return launch<P, float>(args, stream);
    case BRG_FLOAT16:
        return launch<P, __half>(args, stream);
    case BRG_BFLOAT16:
        return launch<P, __nv_bfloat16>(args, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

int brg_cuda_sgd(const brg_sgd_args *args, void *stream)
{
    switch (args->param_dtype) {
    case BRG_FLOAT32:
        return launch_for_grad<float>(args, stream);
    case BRG_FLOAT16:
        return launch_for_grad<__half>(args, stream);
    case BRG_BFLOAT16:
        return launch_for_grad<__nv_bfloat16>(args, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
