/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of squares, and the search for values that are not finite.
 *
 * Squares are taken and added in float64: no float32 square over- or underflows there, and NaN and
 * Inf stay in the sum. Which thread adds which elements in which order depends on `numel` alone,
 * not on the address, so the bits of a sum do not either.
 */
#include "brigade/dtype.h"
#include "sched/optim/cuda.h"
#include "sched/optim/cuda_reduce.cuh"
#include "sched/optim/cuda_tile.cuh"

/* Two blocks of 512 threads on a multiprocessor, each thread with 8 loads of 16 bytes under way
 * (where these are aligned). */
enum { THREADS = 512, BLOCKS_PER_SM = 2 };

template <typename T> struct thread_sum {
    double sums[2] = {0, 0}; /* of even and of odd elements: two chains of additions */
    int64_t first = INT64_MAX;

    template <bool FIND> __device__ void add(T value, int j, int64_t index)
    {
        double x;
        if constexpr (sizeof(T) == 8)
            x = value;
        else
            x = (float)value;
        sums[j % 2] = fma(x, x, sums[j % 2]);
        if (FIND && !isfinite(x) && index < first)
            first = index;
    }
};

/* Vector number `index` of `values`; zeros if there is none. */
template <typename T, bool ALIGNED>
static __device__ inline uint4 load_vector(const T *values, int64_t index, int64_t num_vectors)
{
    constexpr int W = 16 / sizeof(T);
    if (index >= num_vectors)
        return make_uint4(0, 0, 0, 0);
    if constexpr (ALIGNED) {
        return __ldcs((const uint4 *)values + index);
    } else {
        union {
            unsigned short halves[8];
            uint32_t words[4];
            unsigned long long doubles[2];
            uint4 vector;
        } raw;
#pragma unroll
        for (int w = 0; w < W; w++) {
            const T *value = values + index * W + w;
            if constexpr (sizeof(T) == 2)
                raw.halves[w] = __ldg((const unsigned short *)value);
            else if constexpr (sizeof(T) == 4)
                raw.words[w] = __ldg((const unsigned *)value);
            else
                raw.doubles[w] = __ldg((const unsigned long long *)value);
        }
        return raw.vector;
    }
}

/* Block b writes sums[b] and, with FIND, firsts[b]: the lowest index that is not finite. */
template <typename T, bool FIND, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    partial_sums(const T *values, int64_t numel, double *sums, int64_t *firsts)
{
    constexpr int W = 16 / sizeof(T), UNROLL = ALIGNED ? 8 : 4;
    constexpr int64_t STRIDE = (int64_t)BRG_NORM_PARTIALS * THREADS;
    const int64_t num_vectors = numel / W;
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    thread_sum<T> mine;
    for (int64_t base = thread; base < num_vectors; base += UNROLL * STRIDE) {
        uint4 raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            raw[u] = load_vector<T, ALIGNED>(values, base + u * STRIDE, num_vectors);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t words[4] = {raw[u].x, raw[u].y, raw[u].z, raw[u].w};
#pragma unroll
            for (int w = 0; w < W; w++)
                mine.template add<FIND>(brg_get<T>(words, w), w, (base + u * STRIDE) * W + w);
        }
    }
    if (thread < numel % W) /* the elements behind the last whole vector */
        mine.template add<FIND>(values[num_vectors * W + thread], 0, num_vectors * W + thread);

    __shared__ double shared_sums[THREADS / BRG_WARP];
    double sum = brg_block_sum<THREADS>(mine.sums[0] + mine.sums[1], shared_sums);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
    if constexpr (FIND) {
        __shared__ int64_t shared_firsts[THREADS / BRG_WARP];
        int64_t first = brg_block_min<THREADS>(mine.first, shared_firsts);
        if (threadIdx.x == 0)
            firsts[blockIdx.x] = first;
    }
}

template <typename T, bool FIND>
static int launch(const void *values, int64_t numel, double *sums, int64_t *firsts, void *stream)
{
    auto kernel =
        (uintptr_t)values % 16 == 0 ? partial_sums<T, FIND, true> : partial_sums<T, FIND, false>;
    return brg_cuda_launch(kernel, BRG_NORM_PARTIALS, THREADS, stream, (const T *)values, numel,
                           sums, firsts);
}

template <bool FIND>
static int launch_for_dtype(const void *values, int dtype, int64_t numel, double *sums,
                            int64_t *firsts, void *stream)
{
    if (numel < 0)
        return cudaErrorInvalidValue;
    switch (dtype) {
    case BRG_FLOAT64:
        return launch<double, FIND>(values, numel, sums, firsts, stream);
    case BRG_FLOAT32:
        return launch<float, FIND>(values, numel, sums, firsts, stream);
    case BRG_FLOAT16:
        return launch<__half, FIND>(values, numel, sums, firsts, stream);
    case BRG_BFLOAT16:
        return launch<__nv_bfloat16, FIND>(values, numel, sums, firsts, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

int brg_cuda_sum_squares(const void *values, int dtype, int64_t numel, double *partials,
                         void *stream)
{
    return launch_for_dtype<false>(values, dtype, numel, partials, nullptr, stream);
}

static __global__ void __launch_bounds__(BRG_NORM_PARTIALS)
    finish_check(const double *sums, const int64_t *firsts, int64_t *first_out, double *sum_out)
{
    __shared__ double shared_sums[BRG_NORM_PARTIALS / BRG_WARP];
    __shared__ int64_t shared_firsts[BRG_NORM_PARTIALS / BRG_WARP];
    double sum = brg_block_sum<BRG_NORM_PARTIALS>(sums[threadIdx.x], shared_sums);
    int64_t first = brg_block_min<BRG_NORM_PARTIALS>(firsts[threadIdx.x], shared_firsts);
    if (threadIdx.x == 0) {
        *sum_out = sum;
        *first_out = first == INT64_MAX ? -1 : first;
    }
}

int brg_cuda_check_values(const void *values, int dtype, int64_t numel, int64_t *first,
                          double *sum_squares, double *partials, void *stream)
{
    static_assert(sizeof(int64_t) == sizeof(double), "the second half of `partials` holds indices");
    int64_t *firsts = (int64_t *)(partials + BRG_NORM_PARTIALS);
    int error = launch_for_dtype<true>(values, dtype, numel, partials, firsts, stream);
    if (error != cudaSuccess)
        return error;
    return brg_cuda_launch(finish_check, 1, BRG_NORM_PARTIALS, stream, (const double *)partials,
                           (const int64_t *)firsts, first, sum_squares);
}
