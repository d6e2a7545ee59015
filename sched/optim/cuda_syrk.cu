/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric product for Hopper. cuda_syrk.h says what it computes.
 *
 * A block stays on its multiprocessor and works through a fixed list of tiles, 128 rows by kWidth
 * columns, of all members' lower triangles. One warp keeps a ring of stages (128 x 64 of A, kWidth
 * x 64 of B) filled by TMA, also while the others finish a tile; two warpgroups multiply 64 rows
 * each. Each warp then stores its 16 rows, and their mirror image, through shared memory.
 *
 * Only elements on and below the diagonal are stored and mirrored, so each element of D has one
 * writer, and what is read from C in place is read by that writer before.
 */
#include "sched/optim/cuda_syrk.h"

#include <cuda_runtime.h>

#include "sched/optim/cuda_hopper.cuh"
#include "sched/optim/cuda_syrk_tiles.cuh"

namespace
{
constexpr int kDepth = 64;     /* values of k in a stage */
constexpr int kRowBytes = 128; /* of a stage: kDepth values */
constexpr int kConsumerWarps = 8;
constexpr int kThreads = 128 + 32 * kConsumerWarps;
constexpr int kBlockBytes = 16 * 64 * 2; /* what a warp stores at a time */

/* Shared memory: the stages, per consumer warp a block and its transpose, the barriers. */
template <int kWidth> struct layout {
    static constexpr int a_bytes = kRows * kRowBytes;
    static constexpr int stage_bytes = a_bytes + kWidth * kRowBytes;
    static constexpr int num_stages = 192 * 1024 / stage_bytes;
    static constexpr int blocks = num_stages * stage_bytes;
    static constexpr int barriers = blocks + kConsumerWarps * 2 * kBlockBytes;
    static constexpr int bytes = barriers + 2 * num_stages * (int)sizeof(uint64_t);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The ring of stages as its two ends see it. */
template <int kWidth> struct ring {
    uint32_t base_addr;
    int slot;
    uint32_t phase;

    __device__ uint32_t stage() const
    {
        return base_addr + slot * layout<kWidth>::stage_bytes;
    }
    __device__ uint32_t full() const
    {
        return base_addr + layout<kWidth>::barriers + slot * 8;
    }
    __device__ uint32_t empty() const
    {
        return full() + layout<kWidth>::num_stages * 8;
    }
    __device__ void advance()
    {
        if (++slot == layout<kWidth>::num_stages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* One thread. The map of B has boxes of kWidth / 2 rows. */
template <int kWidth>
__device__ void load_tiles(const problem &p, const CUtensorMap *map_a, const CUtensorMap *map_b,
                           ring<kWidth> stages)
{
    using shape = layout<kWidth>;
    constexpr int half_bytes = kWidth / 2 * kRowBytes;
    tile_list list = {(int)blockIdx.x, 0};
    tile t;
    tma_prefetch_map(map_a);
    tma_prefetch_map(map_b);
    while (next_tile<kWidth>(p, (int)gridDim.x, &list, &t)) {
        for (int step = 0; step < p.num_steps; step++) {
            uint32_t full = stages.full(), to = stages.stage();
            mbarrier_wait(stages.empty(), stages.phase ^ 1);
            mbarrier_arrive_expect(full, shape::stage_bytes - (t.half ? half_bytes : 0));
            tma_load(to, map_a, step * kDepth, t.row, t.member, full);
            to += shape::a_bytes;
            tma_load(to, map_b, step * kDepth, t.col, t.member, full);
            if (!t.half)
                tma_load(to + half_bytes, map_b, step * kDepth, t.col + kWidth / 2, t.member, full);
            stages.advance();
        }
    }
}

/* Keeps the compiler from moving accesses to the sums across the asynchronous products. */
__device__ __forceinline__ void pin(float (&sums)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        asm volatile("" : "+f"(sums[i]) : : "memory");
}

/* One warpgroup: sums = its 64 rows of the tile, kTile columns. A stage is free again when the
 * products after it have been issued and its own have ended. */
template <typename T, int kTile, int kWidth>
__device__ __forceinline__ void multiply(float (&sums)[128], ring<kWidth> &stages, int num_steps,
                                         int group)
{
    uint32_t last_empty = 0;
    bool signals = threadIdx.x % 32 == 0;
    pin(sums);
    for (int step = 0; step < num_steps; step++) {
        mbarrier_wait(stages.full(), stages.phase);
        uint64_t a = wgmma_descriptor(stages.stage() + group * 64 * kRowBytes);
        uint64_t b = wgmma_descriptor(stages.stage() + layout<kWidth>::a_bytes);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kDepth / 16; part++)
            wgmma<T, kTile>(sums, a + part * 2, b + part * 2, step + part);
        wgmma_commit();
        wgmma_wait<1>();
        if (signals && step > 0)
            mbarrier_arrive(last_empty);
        last_empty = stages.empty();
        stages.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    if (signals)
        mbarrier_arrive(last_empty);
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __half)
{
    return __half22float2(*(__half2 *)&pair);
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16)
{
    return __bfloat1622float2(*(__nv_bfloat162 *)&pair);
}

__device__ __forceinline__ uint32_t pack(float2 values, __half)
{
    __half2 pair = __float22half2_rn(values);
    return *(uint32_t *)&pair;
}

__device__ __forceinline__ uint32_t pack(float2 values, __nv_bfloat16)
{
    __nv_bfloat162 pair = __float22bfloat162_rn(values);
    return *(uint32_t *)&pair;
}

/* A warp's 16 rows and up to 64 columns of the result, at (row, col) of member's matrix. */
struct block {
    int64_t c_offset, d_offset; /* of the member */
    int n, row, col, num_cols;
    uint8_t *rows, *cols; /* in shared memory: the block, 128 bytes a row; its transpose, 32 */
};

/* The 16-byte units of both are permuted such that no two of 8 rows share a bank. */
__device__ __forceinline__ int row_unit(int row, int unit)
{
    return row * 128 + ((unit ^ (row & 7)) << 4);
}

__device__ __forceinline__ int col_unit(int col, int unit)
{
    return col * 32 + (((unit ^ (col >> 2)) & 1) << 4);
}

/* Lane l's part of C: unit l % 8 of rows l / 8, and every 4th row on. */
__device__ __forceinline__ void load_c(const problem &p, const block &b, uint4 (&out)[4])
{
    int lane = threadIdx.x % 32, col = b.col + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = b.row + i * 4 + lane / 8;
        out[i] = make_uint4(0, 0, 0, 0);
        if (lane % 8 * 8 < b.num_cols && row < b.n && col <= row)
            out[i] =
                *(const uint4 *)((const uint16_t *)p.c + b.c_offset + (int64_t)row * b.n + col);
    }
}

/* Scales the block's sums (from column first_col of the tile's; a constant once unrolled), adds C
 * (in b.rows) and the diagonal, rounds; leaves the result in b.rows and b.cols. */
template <typename T>
__device__ __forceinline__ void finish_block(const problem &p, const block &b, int first_col,
                                             int num_cols, const float (&sums)[128])
{
    int lane = threadIdx.x % 32, matrix = lane / 8;
    int row_in_unit = matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int unit = 0; unit < num_cols / 8; unit += 2) {
        uint32_t packed[4], c[4];
        uint32_t place = shared_addr(b.rows + row_unit(row_in_unit, unit + matrix / 2));
        if (p.beta != 0)
            matrix_load(place, c);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int row = b.row + m % 2 * 8 + lane / 4, col = b.col + (unit + m / 2) * 8 + lane % 4 * 2;
            int first = (first_col / 8 + unit + m / 2) * 4 + m % 2 * 2;
            float2 sum = make_float2(p.alpha * sums[first], p.alpha * sums[first + 1]);
            if (p.beta != 0) {
                float2 old = unpack(c[m], T());
                sum.x = fmaf(p.beta, old.x, sum.x);
                sum.y = fmaf(p.beta, old.y, sum.y);
            }
            sum.x += row == col ? p.diag : 0.0f;
            sum.y += row == col + 1 ? p.diag : 0.0f;
            packed[m] = pack(sum, T());
        }
        matrix_store(place, packed);
        matrix_store_transposed(
            shared_addr(b.cols + col_unit((unit + matrix / 2) * 8 + lane % 8, matrix % 2)), packed);
    }
}

/* Stores elements first to last of 8. */
__device__ __forceinline__ void store_unit(uint16_t *to, uint4 values, int first, int last)
{
    if (first <= 0 && last >= 7) {
        *(uint4 *)to = values;
        return;
    }
    uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i >= first && i <= last)
            to[i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
}

/* The block's elements on and below the diagonal to their place, and those below it to their
 * mirror image's. */
__device__ __forceinline__ void store_block(const problem &p, const block &b)
{
    int lane = threadIdx.x % 32;
    uint16_t *d = (uint16_t *)p.d + b.d_offset;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int in_block = i * 4 + lane / 8, unit = lane % 8;
        int row = b.row + in_block, col = b.col + unit * 8;
        uint4 values = *(const uint4 *)(b.rows + row_unit(in_block, unit));
        if (unit * 8 < b.num_cols && row < b.n && col <= row)
            store_unit(d + (int64_t)row * b.n + col, values, 0, row - col);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int in_block = i * 16 + lane / 2, unit = lane % 2;
        int col = b.col + in_block, row = b.row + unit * 8;
        uint4 values = *(const uint4 *)(b.cols + col_unit(in_block, unit));
        if (in_block < b.num_cols && row < b.n && row + 7 > col)
            store_unit(d + (int64_t)col * b.n + row, values, col + 1 - row, 7);
    }
}

/* Stores what multiply() left, kTile columns from t.col. Blocks above the diagonal are not
 * needed. */
template <typename T, int kTile>
__device__ __forceinline__ void store_tile(const problem &p, const tile &t, uint8_t *blocks,
                                           const float (&sums)[128])
{
    int warp = (int)threadIdx.x / 32 - 4;
    block b = {t.member * p.stride_c, t.member * p.stride_d, p.n, t.row + warp * 16, t.col, 64};
    b.rows = blocks + warp * 2 * kBlockBytes;
    b.cols = b.rows + kBlockBytes;
    uint4 c[4];
    if (b.row >= p.n)
        return;
    if (p.beta != 0)
        load_c(p, b, c);
#pragma unroll
    for (int first = 0; first < kTile; first += 64) {
        constexpr int kLast = kTile % 64 ? kTile % 64 : 64;
        if (b.col > b.row + 15)
            break;
        b.num_cols = first + 64 > kTile ? kLast : 64;
        if (p.beta != 0) {
            int lane = threadIdx.x % 32;
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint4 *)(b.rows + row_unit(i * 4 + lane / 8, lane % 8)) = c[i];
            __syncwarp();
        }
        block next = b;
        next.col += 64;
        next.num_cols = first + 128 > kTile ? kLast : 64;
        if (p.beta != 0 && first + 64 < kTile)
            load_c(p, next, c);
        finish_block<T>(p, b, first, b.num_cols, sums);
        __syncwarp();
        store_block(p, b);
        __syncwarp();
        b = next;
    }
}

#endif

/* Registers move from the warpgroup that only copies to those that hold the sums. */
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1)
    symmetric_product(const __grid_constant__ CUtensorMap map_a,
                      const __grid_constant__ CUtensorMap map_b, const __grid_constant__ problem p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using shape = layout<kWidth>;
    extern __shared__ __align__(1024) uint8_t shared[];
    ring<kWidth> stages = {shared_addr(shared), 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < shape::num_stages; i++) {
            uint32_t full = stages.full() + i * 8;
            mbarrier_init(full, 1);
            mbarrier_init(full + shape::num_stages * 8, kConsumerWarps);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            load_tiles<kWidth>(p, &map_a, &map_b, stages);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float sums[128];
        int group = (int)threadIdx.x / 128 - 1;
        tile_list list = {(int)blockIdx.x, 0};
        tile t;
        while (next_tile<kWidth>(p, (int)gridDim.x, &list, &t)) {
            if (kWidth == 2 * kHalfWidth && t.half) {
                multiply<T, kHalfWidth>(sums, stages, p.num_steps, group);
                store_tile<T, kHalfWidth>(p, t, shared + shape::blocks, sums);
            } else {
                multiply<T, kWidth>(sums, stages, p.num_steps, group);
                store_tile<T, kWidth>(p, t, shared + shape::blocks, sums);
            }
        }
    }
#endif
}

/* Multiprocessors of the current device, 0 if it is not Hopper. */
int hopper_sms()
{
    static int known[64]; /* 1 + the answer */
    int device, major, minor, sms;
    if (cudaGetDevice(&device) || device >= 64)
        return 0;
    int answer = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
    if (answer == 0) {
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ||
            cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device))
            return 0;
        answer = 1 + (major == 9 && minor == 0 ? sms : 0);
        __atomic_store_n(&known[device], answer, __ATOMIC_RELAXED);
    }
    return answer - 1;
}

/* A map of batch matrices rows x k for boxes of box_rows x kDepth. The driver's function is asked
 * of the runtime, so that nothing links the driver. */
bool encode_map(CUtensorMap *map, int dtype, int batch, int rows, int k, const void *values,
                int64_t stride, int box_rows)
{
    static decltype(&cuTensorMapEncodeTiled) known;
    decltype(known) encode = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!encode) {
        void *entry = nullptr;
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &found) ||
            found != cudaDriverEntryPointSuccess || !entry)
            return false;
        encode = (decltype(known))entry;
        __atomic_store_n(&known, encode, __ATOMIC_RELAXED);
    }
    cuuint64_t sizes[3] = {(cuuint64_t)k, (cuuint64_t)rows, (cuuint64_t)batch};
    cuuint64_t strides[2] = {(cuuint64_t)k * 2, (cuuint64_t)stride * 2};
    cuuint32_t box[3] = {kDepth, (cuuint32_t)box_rows, 1}, steps[3] = {1, 1, 1};
    return encode(map,
                  dtype == 0 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                  3, (void *)values, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, int kWidth>
cudaError_t launch(CUtensorMap map_a, CUtensorMap map_b, problem p, int num_sms,
                   cudaStream_t stream)
{
    auto kernel = symmetric_product<T, kWidth>;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              layout<kWidth>::bytes);
    if (status)
        return status;
    void *arguments[] = {&map_a, &map_b, &p};
    int blocks = p.num_units < num_sms ? p.num_units : num_sms;
    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks), dim3(kThreads), arguments,
                            layout<kWidth>::bytes, stream);
}

bool aligned(const void *values, int64_t stride)
{
    return (uintptr_t)values % 16 == 0 && stride > 0 && stride % 8 == 0;
}
} // namespace

int brg_symmetric_product(int dtype, int batch, int n, int k, float alpha, const void *A,
                          int64_t stride_a, const void *B, int64_t stride_b, float beta,
                          const void *C, int64_t stride_c, float diag, void *D, int64_t stride_d,
                          void *stream)
{
    if (batch == 1) {
        stride_a = stride_b = (int64_t)n * k;
        stride_c = stride_d = (int64_t)n * n;
    }
    if (n <= 0 || k <= 0 || batch <= 0 || n % 8 || k % 8 || !aligned(A, stride_a) ||
        !aligned(B, stride_b) || !aligned(D, stride_d) || (beta != 0 && !aligned(C, stride_c)))
        return cudaErrorNotSupported;
    int num_sms = hopper_sms();
    if (num_sms == 0)
        return cudaErrorNotSupported;

    problem wide = {C, D, stride_c, stride_d, alpha, beta, diag, n, (k + kDepth - 1) / kDepth};
    problem narrow = wide;
    bool is_wide = plan_width_256(&wide, batch, num_sms) <= plan_width_144(&narrow, batch, num_sms);
    CUtensorMap map_a, map_b;
    if (!encode_map(&map_a, dtype, batch, n, k, A, stride_a, kRows) ||
        !encode_map(&map_b, dtype, batch, n, k, B, stride_b, is_wide ? 128 : 72))
        return cudaErrorNotSupported;
    cudaStream_t to = (cudaStream_t)stream;
    if (dtype == 0)
        return is_wide ? launch<__half, 256>(map_a, map_b, wide, num_sms, to)
                       : launch<__half, 144>(map_a, map_b, narrow, num_sms, to);
    return is_wide ? launch<__nv_bfloat16, 256>(map_a, map_b, wide, num_sms, to)
                   : launch<__nv_bfloat16, 144>(map_a, map_b, narrow, num_sms, to);
}
