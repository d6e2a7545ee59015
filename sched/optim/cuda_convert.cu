/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between the floating-point types, each value rounded once, to nearest even. */
#include "brigade/dtype.h"
#include "sched/optim/cuda.h"
#include "sched/optim/cuda_tile.cuh"

enum { THREADS = 256, BLOCKS_PER_SM = 4 };

/* 16 elements a thread: vectors of 8 between two 16-bit types, else of 4. */
template <typename D, typename S>
using tile_for = brg_tile<THREADS, sizeof(D) == 2 && sizeof(S) == 2 ? 8 : 4,
                          sizeof(D) == 2 && sizeof(S) == 2 ? 2 : 4>;

template <typename D, typename S>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    convert(D *dst, const S *src, int64_t numel, int64_t num_tiles, int shift)
{
    using Tile = tile_for<D, S>;
    for (int64_t t = blockIdx.x; t < num_tiles; t += gridDim.x) {
        int64_t start = t * Tile::ELEMENTS - max(shift, 0), left = numel - start;
        brg_tile_part part;
        part.begin = start < 0 ? (int)-start : 0;
        part.end = left < Tile::ELEMENTS ? (int)left : Tile::ELEMENTS;
        part.vectors = shift >= 0 && start >= 0 && left >= Tile::ELEMENTS;
        uint32_t in[Tile::template words<S>], out[Tile::template words<D>];
        Tile::template load<S>(in, src + start, part);
#pragma unroll
        for (int j = 0; j < Tile::E; j += 2) {
            if constexpr (sizeof(S) == 8)
                brg_put_as<D>(out, j, brg_get<S>(in, j), brg_get<S>(in, j + 1));
            else
                brg_put_as<D>(out, j, (float)brg_get<S>(in, j), (float)brg_get<S>(in, j + 1));
        }
        Tile::template store<D>(dst + start, out, part);
    }
}

template <typename D, typename S>
static int launch(void *dst, const void *src, int64_t numel, void *stream)
{
    using Tile = tile_for<D, S>;
    int shift = brg_vector_shift(src, Tile::W, sizeof(S));
    if (brg_vector_shift(dst, Tile::W, sizeof(D)) != shift)
        shift = -1;
    int64_t elements = numel + (shift > 0 ? shift : 0);
    int64_t num_tiles = (elements + Tile::ELEMENTS - 1) / Tile::ELEMENTS;
    unsigned blocks;
    int error = brg_cuda_num_blocks(num_tiles, BLOCKS_PER_SM, &blocks);
    if (error != cudaSuccess)
        return error;
    return brg_cuda_launch(convert<D, S>, blocks, THREADS, stream, (D *)dst, (const S *)src, numel,
                           num_tiles, shift);
}

template <typename D>
static int launch_for_src(void *dst, const void *src, int src_dtype, int64_t numel, void *stream)
{
    switch (src_dtype) {
    case BRG_FLOAT64:
        return launch<D, double>(dst, src, numel, stream);
    case BRG_FLOAT32:
        return launch<D, float>(dst, src, numel, stream);
    case BRG_FLOAT16:
        return launch<D, __half>(dst, src, numel, stream);
    case BRG_BFLOAT16:
        return launch<D, __nv_bfloat16>(dst, src, numel, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

int brg_cuda_convert(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t numel,
                     void *stream)
{
    if (numel <= 0)
        return numel == 0 ? cudaSuccess : cudaErrorInvalidValue;
    switch (dst_dtype) {
    case BRG_FLOAT64:
        return launch_for_src<double>(dst, src, src_dtype, numel, stream);
    case BRG_FLOAT32:
        return launch_for_src<float>(dst, src, src_dtype, numel, stream);
    case BRG_FLOAT16:
        return launch_for_src<__half>(dst, src, src_dtype, numel, stream);
    case BRG_BFLOAT16:
        return launch_for_src<__nv_bfloat16>(dst, src, src_dtype, numel, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
