/* SPDX-License-Identifier: Apache-2.0 */
/* Muon's elementwise kernels. All of them walk a matrix in tiles of 64 x 64, four neighbours of a
 * row a thread, so that a tall matrix can be transposed in shared memory on its way to or from the
 * wide iterate. Bytes for a parameter with bfloat16 gradient and weight: momentum 10, normalise 8
 * (with Nesterov), apply 12.
 *
 * Arithmetic is in float64 and rounded once, as in muon_host.c; squares of 1e20 and 1e-20 need its
 * range. Vectors and small matrices are iterated here too, in float64. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "sched/optim/cuda_muon.h"
#include "sched/optim/cuda_reduce.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr int TILE = 64, QUADS = TILE / 4, ROW_STEP = THREADS / QUADS;
constexpr int MAX_BLOCKS = 2048; /* for each matrix */
constexpr int VECTOR_BLOCKS = 32;
constexpr int MAX_GRID_Y = 65535;
static_assert(BRG_MUON_PARTIALS == THREADS, "a block sums one partial a thread");

struct quad {
    float v[4];
};

union half_quad {
    uint2 bits;
    __half half[4];
    __nv_bfloat16 bfloat[4];
};

__device__ quad load(const void *from, int dtype, int64_t at, int count, bool vectors)
{
    quad q = {};
    if (dtype == BRG_FLOAT32) {
        const float *f = (const float *)from + at;
        if (vectors) {
            float4 w = *(const float4 *)f;
            return {{w.x, w.y, w.z, w.w}};
        }
        for (int i = 0; i < count; i++)
            q.v[i] = f[i];
        return q;
    }
    const uint16_t *h = (const uint16_t *)from + at;
    half_quad bits = {};
    if (vectors)
        bits.bits = *(const uint2 *)h;
    else
        for (int i = 0; i < count; i++)
            bits.half[i] = __ushort_as_half(h[i]);
    for (int i = 0; i < 4; i++)
        q.v[i] =
            dtype == BRG_FLOAT16 ? __half2float(bits.half[i]) : __bfloat162float(bits.bfloat[i]);
    return q;
}

__device__ void store(void *to, int dtype, int64_t at, int count, bool vectors, const quad &q)
{
    if (dtype == BRG_FLOAT32) {
        float *f = (float *)to + at;
        if (vectors)
            *(float4 *)f = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
        else
            for (int i = 0; i < count; i++)
                f[i] = q.v[i];
        return;
    }
    half_quad bits;
    for (int i = 0; i < 4; i++)
        if (dtype == BRG_FLOAT16)
            bits.half[i] = __float2half_rn(q.v[i]);
        else
            bits.bfloat[i] = __float2bfloat16_rn(q.v[i]);
    uint16_t *h = (uint16_t *)to + at;
    if (vectors)
        *(uint2 *)h = bits.bits;
    else
        for (int i = 0; i < count; i++)
            h[i] = __half_as_ushort(bits.half[i]);
}

__device__ int64_t offset_of(const brg_muon_item &item, int row, int col)
{
    int piece = row / item.piece_rows;
    return piece * item.piece_stride + (int64_t)(row - piece * item.piece_rows) * item.cols + col;
}

__device__ int precision_dtype(int precision)
{
    return precision == BRG_NS_FP16   ? BRG_FLOAT16
           : precision == BRG_NS_BF16 ? BRG_BFLOAT16
                                      : BRG_FLOAT32;
}

__global__ void __launch_bounds__(THREADS)
    momentum_kernel(const brg_muon_item *items, const brg_step_state *state, brg_muon_momentum mom,
                    double *partials)
{
    __shared__ double shared[THREADS / BRG_WARP];
    if (!state->apply)
        return;
    const brg_muon_item item = items[blockIdx.y];
    const double grad_scale = state->grad_scale;
    const int tile_cols = (item.cols + TILE - 1) / TILE;
    const int tiles = (item.rows + TILE - 1) / TILE * tile_cols;
    double sum = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int row = tile / tile_cols * TILE + threadIdx.x / QUADS;
        int col = tile % tile_cols * TILE + threadIdx.x % QUADS * 4;
        if (col >= item.cols)
            continue;
        int count = min(4, item.cols - col);
#pragma unroll
        for (int i = 0; i < TILE; i += ROW_STEP) {
            if (row + i >= item.rows)
                continue;
            int64_t at = offset_of(item, row + i, col);
            quad g = load(item.grad, item.grad_dtype, at, count, item.vectors);
            quad m = load(item.momentum, BRG_FLOAT32, at, count, item.vectors);
            for (int k = 0; k < 4; k++) {
                double grad = grad_scale * g.v[k];
                double m1 = mom.mu * m.v[k] + mom.weight * grad;
                double x = mom.ahead * m1 + mom.aside * grad;
                m.v[k] = (float)m1;
                sum += x * x; /* elements past the row's end are zero */
            }
            store(item.momentum, BRG_FLOAT32, at, count, item.vectors, m);
        }
    }
    sum = brg_block_sum<THREADS>(sum, shared);
    if (threadIdx.x == 0)
        partials[blockIdx.y * (int64_t)BRG_MUON_PARTIALS + blockIdx.x] = sum;
}

/* The norm of matrix blockIdx.y, in all threads. */
__device__ double norm_of(const double *partials)
{
    __shared__ double shared[THREADS / BRG_WARP], norm;
    double sum = brg_block_sum<THREADS>(
        partials[blockIdx.y * (int64_t)BRG_MUON_PARTIALS + threadIdx.x], shared);
    if (threadIdx.x == 0)
        norm = sqrt(sum);
    __syncthreads();
    return norm;
}

/* A NaN norm stays one: the comparison is false. */
__device__ double divisor_of(double norm, double eps)
{
    return norm < eps ? eps : norm;
}

/* Element (row, col) of the matrix and its three right neighbours, normalised. */
__device__ quad normalized(const brg_muon_item &item, int row, int col, double grad_scale,
                           const brg_muon_momentum &mom, double factor)
{
    quad x = {};
    if (row >= item.rows || col >= item.cols)
        return x;
    int count = min(4, item.cols - col);
    int64_t at = offset_of(item, row, col);
    quad m = load(item.momentum, BRG_FLOAT32, at, count, item.vectors), g = {};
    if (mom.aside != 0)
        g = load(item.grad, item.grad_dtype, at, count, item.vectors);
    for (int k = 0; k < 4; k++)
        x.v[k] = (float)((mom.ahead * m.v[k] + mom.aside * (grad_scale * g.v[k])) * factor);
    return x;
}

__global__ void __launch_bounds__(THREADS)
    normalize_kernel(const brg_muon_item *items, brg_ns_shape shape, const brg_step_state *state,
                     brg_muon_momentum mom, const double *partials, double eps, double scale,
                     void *iterates)
{
    __shared__ float tile_of[TILE][TILE + 1];
    if (!state->apply)
        return;
    const double norm = norm_of(partials);
    /* Zeros stay zeros, with eps = 0 too. */
    const double factor = norm == 0 ? 0.0 : scale / divisor_of(norm, eps);
    const brg_muon_item item = items[blockIdx.y];
    const double grad_scale = state->grad_scale;
    const int dtype = precision_dtype(shape.precision);
    const bool tall = item.rows > item.cols;
    const int rows = tall ? shape.length : shape.side, cols = tall ? shape.side : shape.length;
    const int64_t first = blockIdx.y * shape.side * shape.length;
    const int tile_cols = (cols + TILE - 1) / TILE;
    const int tiles = (rows + TILE - 1) / TILE * tile_cols;
    const int quad_row = threadIdx.x / QUADS, quad_col = threadIdx.x % QUADS * 4;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int row0 = tile / tile_cols * TILE, col0 = tile % tile_cols * TILE;
        for (int i = quad_row; i < TILE; i += ROW_STEP) {
            quad x = normalized(item, row0 + i, col0 + quad_col, grad_scale, mom, factor);
            if (tall)
                for (int k = 0; k < 4; k++)
                    tile_of[quad_col + k][i] = x.v[k];
            else if (row0 + i < rows && col0 + quad_col < cols)
                store(iterates, dtype, first + (row0 + i) * shape.length + col0 + quad_col, 4, true,
                      x);
        }
        if (!tall)
            continue;
        __syncthreads();
        for (int i = quad_row; i < TILE; i += ROW_STEP) {
            quad x;
            for (int k = 0; k < 4; k++)
                x.v[k] = tile_of[i][quad_col + k];
            if (col0 + i < cols && row0 + quad_col < rows)
                store(iterates, dtype, first + (col0 + i) * shape.length + row0 + quad_col, 4, true,
                      x);
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(THREADS)
    apply_kernel(const brg_muon_item *items, brg_ns_shape shape, const brg_step_state *state,
                 const brg_hyper_state *hyper, const void *iterates)
{
    __shared__ float tile_of[TILE][TILE + 1];
    if (!state->apply)
        return;
    const brg_muon_item item = items[blockIdx.y];
    const double decay = hyper->decay, rate = hyper->lr * item.rate;
    const int dtype = precision_dtype(shape.precision);
    const bool tall = item.rows > item.cols;
    const int64_t first = blockIdx.y * shape.side * shape.length;
    const int tile_cols = (item.cols + TILE - 1) / TILE;
    const int tiles = (item.rows + TILE - 1) / TILE * tile_cols;
    const int quad_row = threadIdx.x / QUADS, quad_col = threadIdx.x % QUADS * 4;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int row0 = tile / tile_cols * TILE, col0 = tile % tile_cols * TILE;
        if (tall) {
            __syncthreads();
            for (int i = quad_row; i < TILE; i += ROW_STEP) {
                quad x = {};
                if (col0 + i < shape.side && row0 + quad_col < shape.length)
                    x = load(iterates, dtype, first + (col0 + i) * shape.length + row0 + quad_col,
                             4, true);
                for (int k = 0; k < 4; k++)
                    tile_of[quad_col + k][i] = x.v[k];
            }
            __syncthreads();
        }
        const int col = col0 + quad_col;
        if (col >= item.cols)
            continue; /* the barriers above are at the loop's start, for all threads alike */
        const int count = min(4, item.cols - col);
        for (int i = quad_row; i < TILE && row0 + i < item.rows; i += ROW_STEP) {
            quad x;
            if (tall)
                for (int k = 0; k < 4; k++)
                    x.v[k] = tile_of[i][quad_col + k];
            else
                x = load(iterates, dtype, first + (row0 + i) * shape.length + col, 4, true);
            int64_t at = offset_of(item, row0 + i, col);
            quad p = load(item.master, BRG_FLOAT32, at, count, item.vectors);
            for (int k = 0; k < 4; k++)
                p.v[k] = (float)(decay * p.v[k] - rate * x.v[k]);
            store(item.master, BRG_FLOAT32, at, count, item.vectors, p);
            if (item.param != item.master)
                store(item.param, item.param_dtype, at, count, item.vectors, p);
        }
    }
}

/* What Newton-Schulz gets of an element. */
__device__ double direction(const brg_muon_item &item, int64_t at, double grad_scale,
                            const brg_muon_momentum &mom)
{
    double x = mom.ahead * load(item.momentum, BRG_FLOAT32, at, 1, false).v[0];
    if (mom.aside != 0)
        x += mom.aside * (grad_scale * load(item.grad, item.grad_dtype, at, 1, false).v[0]);
    return x;
}

__device__ void apply_one(const brg_muon_item &item, int64_t at, double decay, double update)
{
    quad p = load(item.master, BRG_FLOAT32, at, 1, false);
    p.v[0] = (float)(decay * p.v[0] - update);
    store(item.master, BRG_FLOAT32, at, 1, false, p);
    if (item.param != item.master)
        store(item.param, item.param_dtype, at, 1, false, p);
}

/* A vector has one singular value, which is sent through the polynomials. */
__global__ void __launch_bounds__(THREADS)
    vector_kernel(const brg_muon_item *items, const brg_step_state *state,
                  const brg_hyper_state *hyper, brg_muon_momentum mom, const double *partials,
                  double eps, const __grid_constant__ brg_ns_schedule schedule)
{
    if (!state->apply)
        return;
    const double norm = norm_of(partials);
    const brg_muon_item item = items[blockIdx.y];
    double x = norm == 0 ? 0.0 : norm / divisor_of(norm, eps);
    for (int step = 0; step < schedule.num_steps; step++) {
        const double *tuple = schedule.tuples[step], a = x * x;
        x *= tuple[0] + a * (tuple[1] + a * tuple[2]);
    }
    const double factor = norm == 0 ? 0.0 : hyper->lr * item.rate * (x / norm);
    const double grad_scale = state->grad_scale, decay = hyper->decay;
    const int64_t numel = (int64_t)item.rows * item.cols;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < numel;
         i += (int64_t)gridDim.x * THREADS) {
        const int row = (int)(i / item.cols);
        const int64_t at = offset_of(item, row, (int)(i - (int64_t)row * item.cols));
        apply_one(item, at, decay, factor * direction(item, at, grad_scale, mom));
    }
}

constexpr int PER_THREAD = BRG_NS_SMALL_ELEMS / THREADS; /* elements */
static_assert(BRG_NS_SMALL_SIDE * BRG_NS_SMALL_SIDE <= BRG_NS_SMALL_ELEMS, "squares fit too");

/* values[i] = f(i) for all i < count, where f reads `values` as they were. */
template <typename F> __device__ void replace_all(double *values, int count, F f)
{
    double made[PER_THREAD];
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        int i = threadIdx.x + k * THREADS;
        made[k] = i < count ? f(i) : 0.0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (threadIdx.x + k * THREADS < count)
            values[threadIdx.x + k * THREADS] = made[k];
    __syncthreads();
}

/* A block of threads iterates a whole matrix, side x length, in shared memory. */
__global__ void __launch_bounds__(THREADS)
    small_kernel(const brg_muon_item *items, const brg_step_state *state,
                 const brg_hyper_state *hyper, brg_muon_momentum mom, const double *partials,
                 double eps, const __grid_constant__ brg_ns_schedule schedule)
{
    __shared__ double x[BRG_NS_SMALL_ELEMS], a[BRG_NS_SMALL_SIDE * BRG_NS_SMALL_SIDE];
    if (!state->apply)
        return;
    const double norm = norm_of(partials), factor = norm == 0 ? 0.0 : 1 / divisor_of(norm, eps);
    const brg_muon_item item = items[blockIdx.y];
    const bool tall = item.rows > item.cols;
    const int side = tall ? item.cols : item.rows, length = tall ? item.rows : item.cols;
    const double grad_scale = state->grad_scale, decay = hyper->decay;
    const double rate = hyper->lr * item.rate;
    auto place = [&](int i) {
        int row = i / length, col = i % length;
        return tall ? offset_of(item, col, row) : offset_of(item, row, col);
    };
    replace_all(x, side * length,
                [&](int i) { return direction(item, place(i), grad_scale, mom) * factor; });
    for (int step = 0; step < schedule.num_steps; step++) {
        const double *tuple = schedule.tuples[step];
        replace_all(a, side * side, [&](int i) {
            double sum = 0;
            for (int k = 0; k < length; k++)
                sum += x[i / side * length + k] * x[i % side * length + k];
            return sum;
        });
        replace_all(a, side * side, [&](int i) {
            double sum = 0;
            for (int k = 0; k < side; k++)
                sum += a[i / side * side + k] * a[k * side + i % side];
            return tuple[1] * a[i] + tuple[2] * sum + (i / side == i % side ? tuple[0] : 0.0);
        });
        replace_all(x, side * length, [&](int i) {
            double sum = 0;
            for (int k = 0; k < side; k++)
                sum += a[i / length * side + k] * x[k * length + i % length];
            return sum;
        });
    }
    for (int i = threadIdx.x; i < side * length; i += THREADS)
        apply_one(item, place(i), decay, rate * x[i]);
}

/* A block of threads for each tile, within limits; one row of blocks for each matrix. */
dim3 grid_of(int64_t rows, int64_t cols, int count)
{
    int64_t tiles = (rows + TILE - 1) / TILE * ((cols + TILE - 1) / TILE);
    return dim3((unsigned)(tiles < MAX_BLOCKS ? tiles : MAX_BLOCKS), (unsigned)count);
}

template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, void *stream, Args... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(THREADS);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

} // namespace

int brg_muon_momentum_run(const brg_muon_item *items, int count, const brg_step_state *state,
                          const brg_muon_momentum *momentum, double *partials, void *stream)
{
    int error = 0;
    for (int done = 0; done < count && !error; done += MAX_GRID_Y)
        error = launch(
            momentum_kernel, dim3(BRG_MUON_PARTIALS, (unsigned)min(MAX_GRID_Y, count - done)),
            stream, items + done, state, *momentum, partials + (int64_t)done * BRG_MUON_PARTIALS);
    return error;
}

int brg_muon_exact_run(brg_muon_way way, const brg_muon_item *items, int count,
                       const brg_step_state *state, const brg_hyper_state *hyper,
                       const brg_muon_momentum *momentum, const double *partials, double eps,
                       const brg_ns_schedule *schedule, void *stream)
{
    const bool vectors = way == BRG_MUON_VECTOR;
    int error = 0;
    for (int done = 0; done < count && !error; done += MAX_GRID_Y)
        error = launch(vectors ? vector_kernel : small_kernel,
                       dim3(vectors ? VECTOR_BLOCKS : 1, (unsigned)min(MAX_GRID_Y, count - done)),
                       stream, items + done, state, hyper, *momentum,
                       partials + (int64_t)done * BRG_MUON_PARTIALS, eps, *schedule);
    return error;
}

int brg_muon_normalize_run(const brg_muon_item *items, const brg_ns_shape *shape,
                           const brg_step_state *state, const brg_muon_momentum *momentum,
                           const double *partials, double eps, void *x, void *stream)
{
    return launch(normalize_kernel, grid_of(shape->side, shape->length, shape->batch), stream,
                  items, *shape, state, *momentum, partials, eps, brg_ns_scale(shape->precision),
                  x);
}

int brg_muon_apply_run(const brg_muon_item *items, const brg_ns_shape *shape,
                       const brg_step_state *state, const brg_hyper_state *hyper, const void *x,
                       void *stream)
{
    return launch(apply_kernel, grid_of(shape->side, shape->length, shape->batch), stream, items,
                  *shape, state, hyper, x);
}
