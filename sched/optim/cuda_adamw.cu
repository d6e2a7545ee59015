/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW as in adamw_host.c, in float32 with fused multiply-adds. The root and the quotient are the
 * hardware's approximations, within 2 units in the last place of an update that is added to a much
 * larger parameter; exact ones would cost the 18-byte form its memory speed.
 *
 * In the precision-aware form m and v are rounded to bfloat16 when they are stored; the update is
 * computed from what they were before.
 */
#include <cfloat>

#include "brigade/dtype.h"
#include "sched/optim/cuda_ranges.cuh"
#include "sched/optim/remainder.h"

enum { THREADS = 256 };

struct adamw_params {
    const brg_step_state *state;
    const brg_hyper_state *hyper;
    float beta1, beta2, eps, one_minus_beta1, one_minus_beta2;
    brg_range_batch batch;
};

static_assert(sizeof(adamw_params) <= 4096, "too large for the parameters of a kernel");

/* What all elements share. */
struct factors {
    float grad_scale, beta1, beta2, grad1, grad2, bias1, root_scale, eps, decay, v_max;
};

static __device__ inline float approximate_sqrt(float x)
{
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

static __device__ inline void update(const factors &f, float g, float &p, float &m, float &v)
{
    g *= f.grad_scale;
    m = fmaf(f.beta1, m, f.grad1 * g);
    v = fmaf(f.grad2 * g, g, f.beta2 * v);
    v = v > f.v_max ? f.v_max : v; /* an infinite v would stop the element for good; NaN passes */
    float denominator = fmaf(approximate_sqrt(v), f.root_scale, f.eps);
    p = fmaf(f.decay, p, -f.bias1 * __fdividef(m, denominator));
}

/* A thread has one vector of each array and few registers, a block one tile. On an H200 this moves
 * as many bytes a second as a copy; more vectors in a thread move up to 5% less, and blocks that
 * stay for many tiles 5 to 15% less. */
template <typename P, typename G, bool AWARE> struct forms {
    using State = float;
    using Tile = brg_tile<THREADS, 4, 1>;
    static constexpr int BLOCKS_PER_SM = 8; /* of 32 registers a thread */
};

template <typename P, typename G> struct forms<P, G, true> {
    using State = __nv_bfloat16;
    using Tile = brg_tile<THREADS, sizeof(G) == 2 ? 8 : 4, 1>;
    static constexpr int BLOCKS_PER_SM = 6; /* of 40 */
};

/* The parameter's and the master's registers to and from values. */
template <typename Tile, typename P, bool AWARE> struct master_io {
    uint32_t param[Tile::template words<P>];
    uint32_t master[Tile::E * (AWARE ? sizeof(uint16_t) : sizeof(float)) / 4];

    __device__ void load(const brg_range_tile &tile)
    {
        if constexpr (AWARE) {
            Tile::template load<__half>(master, (const __half *)tile.range->low + tile.start,
                                        tile.part);
            Tile::template load<P>(param, (const P *)tile.range->param + tile.start, tile.part);
        } else {
            Tile::template load<float>(master, tile.range->master + tile.start, tile.part);
        }
    }

    __device__ float get(int j) const
    {
        if constexpr (AWARE)
            return __uint_as_float(brg_remainder_join((uint16_t)(param[j / 2] >> (j % 2 * 16)),
                                                      (uint16_t)(master[j / 2] >> (j % 2 * 16))));
        else
            return brg_get<float>(master, j);
    }

    __device__ void put(int j, float x, float y)
    {
        if constexpr (AWARE) {
            uint16_t weight[2], remainder[2];
            brg_remainder_split(__float_as_uint(x), &weight[0], &remainder[0]);
            brg_remainder_split(__float_as_uint(y), &weight[1], &remainder[1]);
            param[j / 2] = (uint32_t)weight[1] << 16 | weight[0];
            master[j / 2] = (uint32_t)remainder[1] << 16 | remainder[0];
        } else {
            brg_put_as<float>(master, j, x, y);
            if constexpr (sizeof(P) == 2)
                brg_put_as<P>(param, j, x, y);
        }
    }

    __device__ void store(const brg_range_tile &tile) const
    {
        if constexpr (AWARE)
            Tile::template store<__half>((__half *)tile.range->low + tile.start, master, tile.part);
        else
            Tile::template store<float>(tile.range->master + tile.start, master, tile.part);
        if constexpr (sizeof(P) == 2) /* a float32 parameter is the master */
            Tile::template store<P>((P *)tile.range->param + tile.start, param, tile.part);
    }
};

template <typename P, typename G, bool AWARE>
static __global__ void __launch_bounds__(THREADS, forms<P, G, AWARE>::BLOCKS_PER_SM)
    adamw(const __grid_constant__ adamw_params params)
{
    using State = typename forms<P, G, AWARE>::State;
    using Tile = typename forms<P, G, AWARE>::Tile;
    if (!params.state->apply)
        return;
    const brg_hyper_state hyper = *params.hyper;
    const factors f = {
        params.state->grad_scale,
        params.beta1,
        params.beta2,
        params.one_minus_beta1,
        params.one_minus_beta2,
        hyper.bias1,
        1.0f / hyper.bias2_root,
        params.eps,
        hyper.decay,
        AWARE ? 0x1.fep127f : FLT_MAX, /* the largest that State holds */
    };
    const brg_range_tile tile = brg_my_tile<Tile>(params.batch);
    uint32_t grad[Tile::template words<G>];
    uint32_t m_words[Tile::template words<State>], v_words[Tile::template words<State>];
    master_io<Tile, P, AWARE> masters;
    State *m_tile = (State *)tile.range->state0 + tile.start;
    State *v_tile = (State *)tile.range->state1 + tile.start;
    Tile::template load<G>(grad, (const G *)tile.range->grad + tile.start, tile.part);
    masters.load(tile);
    Tile::template load<State>(m_words, m_tile, tile.part);
    Tile::template load<State>(v_words, v_tile, tile.part);
#pragma unroll
    for (int j = 0; j < Tile::E; j += 2) {
        float p[2], m[2], v[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            p[k] = masters.get(j + k);
            m[k] = (float)brg_get<State>(m_words, j + k);
            v[k] = (float)brg_get<State>(v_words, j + k);
            update(f, (float)brg_get<G>(grad, j + k), p[k], m[k], v[k]);
        }
        masters.put(j, p[0], p[1]);
        brg_put_as<State>(m_words, j, m[0], m[1]);
        brg_put_as<State>(v_words, j, v[0], v[1]);
    }
    masters.store(tile);
    Tile::template store<State>(m_tile, m_words, tile.part);
    Tile::template store<State>(v_tile, v_words, tile.part);
}

template <typename P, typename G, bool AWARE>
static int launch(const brg_adamw_args *args, void *stream)
{
    using State = typename forms<P, G, AWARE>::State;
    using Tile = typename forms<P, G, AWARE>::Tile;
    const brg_range_bytes bytes = {sizeof(P), sizeof(G), sizeof(State)};
    adamw_params params = {
        args->state, args->hyper,           args->beta1,           args->beta2,
        args->eps,   args->one_minus_beta1, args->one_minus_beta2, {},
    };
    return brg_launch_batches<Tile>(adamw<P, G, AWARE>, args->ranges, args->num_ranges, &bytes,
                                    &params, stream);
}

template <typename P, bool AWARE>
static int launch_for_grad(const brg_adamw_args *args, void *stream)
{
    switch (args->grad_dtype) {
    case BRG_FLOAT32:
        return launch<P, float, AWARE>(args, stream);
    case BRG_FLOAT16:
        return launch<P, __half, AWARE>(args, stream);
    case BRG_BFLOAT16:
        return launch<P, __nv_bfloat16, AWARE>(args, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

int brg_cuda_adamw(const brg_adamw_args *args, void *stream)
{
    if (args->precision_aware)
        return args->param_dtype == BRG_BFLOAT16
                   ? launch_for_grad<__nv_bfloat16, true>(args, stream)
                   : cudaErrorInvalidValue;
    switch (args->param_dtype) {
    case BRG_FLOAT32:
        return launch_for_grad<float, false>(args, stream);
    case BRG_FLOAT16:
        return launch_for_grad<__half, false>(args, stream);
    case BRG_BFLOAT16:
        return launch_for_grad<__nv_bfloat16, false>(args, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
