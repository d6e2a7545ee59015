/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranges in one launch: they are passed by value, a batch at a time, so that nothing is
 * allocated or copied and a captured graph holds them. The batch's tiles are numbered through, and
 * every tile is one block's: what is under way then lies close together in all arrays. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_RANGES_CUH
#define BRIGADE_SCHED_OPTIM_CUDA_RANGES_CUH

#include "sched/optim/cuda.h"
#include "sched/optim/cuda_tile.cuh"

/* Parameters of a kernel must fit in 4096 bytes. */
#define BRG_RANGES_PER_BATCH 48

struct brg_range_batch {
    int count;
    uint32_t first_tile[BRG_RANGES_PER_BATCH + 1]; /* [count]: number of tiles */
    int8_t shift[BRG_RANGES_PER_BATCH]; /* the first tile starts so many elements before the range,
                                           where vectors are aligned in all arrays; -1: nowhere */
    brg_update_range ranges[BRG_RANGES_PER_BATCH];
};

/* A tile of a range: `start` is the index in the range of the tile's first element. */
struct brg_range_tile {
    const brg_update_range *range;
    int64_t start;
    brg_tile_part part;
};

/* The tile of this block. */
template <typename Tile>
static __device__ inline brg_range_tile brg_my_tile(const brg_range_batch &batch)
{
    static_assert(BRG_RANGES_PER_BATCH <= 64, "steps from 32 on reach all");
    int r = 0;
    for (int step = 32; step > 0; step /= 2) /* the last range that starts at or before the tile */
        if (r + step < batch.count && batch.first_tile[r + step] <= blockIdx.x)
            r += step;
    int shift = batch.shift[r];
    brg_range_tile tile;
    tile.range = &batch.ranges[r];
    tile.start = (int64_t)(blockIdx.x - batch.first_tile[r]) * Tile::ELEMENTS - max(shift, 0);
    int64_t left = tile.range->numel - tile.start;
    tile.part.begin = tile.start < 0 ? (int)-tile.start : 0;
    tile.part.end = left < Tile::ELEMENTS ? (int)left : Tile::ELEMENTS;
    tile.part.vectors = shift >= 0 && tile.start >= 0 && left >= Tile::ELEMENTS;
    return tile;
}

/* Bytes of an element in each array of a range. */
struct brg_range_bytes {
    size_t param, grad, state;
};

static inline int8_t brg_range_shift(const brg_update_range *range, const brg_range_bytes *bytes,
                                     int vector)
{
    const struct {
        const void *array;
        size_t bytes;
    } others[] = {{range->param, bytes->param},
                  {range->master, sizeof(float)},
                  {range->low, sizeof(uint16_t)},
                  {range->state0, bytes->state},
                  {range->state1, bytes->state}};
    int shift = brg_vector_shift(range->grad, vector, bytes->grad);
    for (const auto &other : others)
        if (other.array && brg_vector_shift(other.array, vector, other.bytes) != shift)
            return -1;
    return (int8_t)shift;
}

/* Fills `batch` from ranges[*next] on and moves *next behind what it took. False: none were left.
 */
template <typename Tile>
static bool brg_next_batch(const brg_update_range *ranges, int num_ranges, int *next,
                           const brg_range_bytes *bytes, brg_range_batch *batch)
{
    batch->count = 0;
    batch->first_tile[0] = 0;
    for (; *next < num_ranges && batch->count < BRG_RANGES_PER_BATCH; (*next)++) {
        const brg_update_range *range = &ranges[*next];
        if (range->numel <= 0)
            continue;
        int i = batch->count++;
        batch->ranges[i] = *range;
        batch->shift[i] = brg_range_shift(range, bytes, Tile::W);
        int64_t elements = range->numel + (batch->shift[i] > 0 ? batch->shift[i] : 0);
        batch->first_tile[i + 1] =
            batch->first_tile[i] + (uint32_t)((elements + Tile::ELEMENTS - 1) / Tile::ELEMENTS);
    }
    return batch->count > 0;
}

/* Launches `kernel` for all ranges; `params` has everything but the batch. */
template <typename Tile, typename Params>
static int brg_launch_batches(void (*kernel)(Params), const brg_update_range *ranges,
                              int num_ranges, const brg_range_bytes *bytes, Params *params,
                              void *stream)
{
    brg_range_batch *batch = &params->batch;
    int next = 0;
    while (brg_next_batch<Tile>(ranges, num_ranges, &next, bytes, batch)) {
        int error = brg_cuda_launch(kernel, batch->first_tile[batch->count], Tile::THREADS, stream,
                                    *params);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

#endif
