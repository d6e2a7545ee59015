/* SPDX-License-Identifier: Apache-2.0 */
/* Which tiles of the lower triangles a block of cuda_syrk.cu works on, and in which order.
 *
 * Width 256 runs fastest, but the work must fill whole waves of tiles: its row ends, and a last
 * wave that is less than half full, are done in half tiles (128 x 128) instead. Width 144 is for
 * one matrix of order 2048: its triangle is just below 132 tiles, one wave.
 */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_SYRK_TILES_CUH
#define BRIGADE_SCHED_OPTIM_CUDA_SYRK_TILES_CUH

#include <math.h>
#include <stdint.h>

namespace
{
constexpr int kRows = 128;      /* of a tile */
constexpr int kHalfWidth = 128; /* of a half tile */

struct problem {
    const void *c;
    void *d;
    int64_t stride_c, stride_d;
    float alpha, beta, diag;
    int n, num_steps;                /* stages per tile */
    int member_tiles, member_halves; /* whole tiles and half tiles at row ends, per member */
    /* Units of work: num_whole tiles, then num_pairs times two half tiles, then single ones.
     * Half tiles are first num_split whole tiles cut in two, then row ends. */
    int num_whole, num_pairs, num_split, num_halves, num_units;
};

struct tile {
    int member, row, col;
    bool half;
};

/* The number of tiles in row `row` of tiles. */
__host__ __device__ int tiles_in_row(int width, int n, int row)
{
    int to_diagonal = (row * kRows + kRows - 1) / width + 1;
    int all = (n + width - 1) / width;
    return to_diagonal < all ? to_diagonal : all;
}

template <int kWidth> __host__ __device__ tile whole_tile(const problem &p, int index)
{
    tile t = {index / p.member_tiles, 0, 0, false};
    int rest = index % p.member_tiles;
    int row;
    if (kWidth == 2 * kHalfWidth) { /* row i has (i + 1) / 2, the rows before it i^2 / 4 */
        row = (int)(2.0f * sqrtf((float)rest));
        while ((row + 1) * (row + 1) / 4 <= rest)
            row++;
        while (row * row / 4 > rest)
            row--;
        rest -= row * row / 4;
    } else {
        for (row = 0; rest >= tiles_in_row(kWidth, p.n, row); row++)
            rest -= tiles_in_row(kWidth, p.n, row);
    }
    t.row = row * kRows;
    t.col = rest * kWidth;
    return t;
}

template <int kWidth> __host__ __device__ tile half_tile(const problem &p, int index)
{
    tile t;
    if (index < 2 * p.num_split) {
        t = whole_tile<kWidth>(p, p.num_whole + index / 2);
        t.col += index % 2 * kHalfWidth;
    } else {
        index -= 2 * p.num_split;
        t.member = index / p.member_halves;
        t.row = t.col = index % p.member_halves * 2 * kRows;
    }
    t.half = true;
    return t;
}

/* Walks a block's tiles: starts at the block's number; `part` counts within a unit. */
struct tile_list {
    int unit, part;
};

template <int kWidth>
__host__ __device__ bool next_tile(const problem &p, int num_blocks, tile_list *list, tile *out)
{
    if (list->unit >= p.num_units)
        return false;
    int parts = 1;
    if (kWidth != 2 * kHalfWidth || list->unit < p.num_whole) {
        *out = whole_tile<kWidth>(p, list->unit);
    } else {
        int index = list->unit - p.num_whole;
        if (index < p.num_pairs) {
            parts = p.num_halves - 2 * index < 2 ? 1 : 2;
            index = 2 * index + list->part;
        } else {
            index += p.num_pairs;
        }
        *out = half_tile<kWidth>(p, index);
    }
    if (++list->part == parts) {
        list->part = 0;
        list->unit += num_blocks;
    }
    return true;
}

/* Divides the work among num_sms blocks; returns the time of the longest in columns of tiles. A
 * narrower tile costs more per column: more of its operands come from the L2 cache. */
inline double plan_width_256(problem *p, int batch, int num_sms)
{
    int rows = (p->n + kRows - 1) / kRows;
    p->member_tiles = rows * rows / 4;
    p->member_halves = (rows + 1) / 2;
    int tiles = batch * p->member_tiles, row_ends = batch * p->member_halves;
    int rest = tiles % num_sms;
    p->num_split = 2 * rest + row_ends <= num_sms ? rest : 0;
    p->num_whole = tiles - p->num_split;
    p->num_halves = 2 * p->num_split + row_ends;
    p->num_pairs = (p->num_halves + 1) / 2;
    /* A last wave of few pairs becomes one of single half tiles. */
    int last_wave = (p->num_whole + p->num_pairs - 1) / num_sms * num_sms;
    int single = 0;
    if (last_wave >= p->num_whole) {
        int before = last_wave - p->num_whole;
        if (p->num_halves - 2 * before <= num_sms) {
            p->num_pairs = before;
            single = p->num_halves - 2 * before;
        }
    }
    p->num_units = p->num_whole + p->num_pairs + single;
    int waves = (p->num_whole + p->num_pairs + num_sms - 1) / num_sms;
    return waves * 256.0 + (single > 0 ? 128 * 1.15 : 0);
}

inline double plan_width_144(problem *p, int batch, int num_sms)
{
    p->member_tiles = 0;
    for (int row = 0; row * kRows < p->n; row++)
        p->member_tiles += tiles_in_row(144, p->n, row);
    p->num_whole = p->num_units = batch * p->member_tiles;
    p->member_halves = p->num_split = p->num_halves = p->num_pairs = 0;
    return (double)((p->num_units + num_sms - 1) / num_sms) * 144 * 1.15;
}
} // namespace

#endif
