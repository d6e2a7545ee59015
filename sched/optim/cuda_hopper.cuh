/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX instructions of Hopper (sm_90a) that a tensor-core kernel needs: mbarriers, bulk tensor
 * copies (TMA), warpgroup products (wgmma), 8x8 matrix moves between registers and shared memory.
 *
 * A name ending in _addr is an address in shared memory. Tiles for wgmma are K-major: a row holds
 * 64 two-byte values of one matrix row (128 bytes), and TMA's 128-byte swizzle permutes the
 * 16-byte units of each row by the row number modulo 8. PTX ISA, "Asynchronous Warpgroup Level
 * Matrix Instructions" and "Tensor-map", is the reference.
 */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_HOPPER_CUH
#define BRIGADE_SCHED_OPTIM_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_addr(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void mbarrier_init(uint32_t barrier_addr, uint32_t num_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(barrier_addr), "r"(num_arrivals)
                 : "memory");
}

/* Makes initialised barriers visible to TMA. */
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier_addr)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier_addr) : "memory");
}

/* One arrival, and `bytes` of copies that must land before the phase ends. */
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier_addr, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier_addr), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has ended; of a fresh barrier, parity 1 has. */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier_addr, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n\t"
                     ".reg .pred ended;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, ended;\n\t"
                     "}"
                     : "=r"(done)
                     : "r"(barrier_addr), "r"(parity)
                     : "memory");
    } while (!done);
}

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

/* Copies the box at (x, y, z) of a 3-d map; what lies outside of the tensor becomes zeros, and
 * counts as bytes like the rest. */
__device__ __forceinline__ void tma_load(uint32_t to_addr, const CUtensorMap *map, int x, int y,
                                         int z, uint32_t barrier_addr)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];"
                 :
                 : "r"(to_addr), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier_addr)
                 : "memory");
}

/* Descriptor of a K-major tile in 128-byte swizzle at a multiple of 1024 bytes: groups of 8 rows
 * are 1024 bytes apart, the leading offset is unused. Within the 128 bytes of a row, K advances by
 * adding bytes / 16 to the descriptor. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t tile_addr)
{
    return (uint64_t)((tile_addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Orders earlier accesses to the accumulators before the next products. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most kPending committed groups are unfinished. */
template <int kPending> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

/* wgmma<T, kWidth>(d, a, b, accumulate): d (64 x kWidth, kWidth / 2 registers a thread) = a (64 x
 * 16) b (kWidth x 16)^T, plus d if accumulate is not 0. Thread t of the warpgroup holds in
 * d[4 j + 2 h + e] row 16 (t / 32) + (t % 32) / 4 + 8 h, column 8 j + 2 (t % 4) + e.
 */
template <typename T, int kWidth>
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int accumulate);

#define BRG_TEN(tens)                                                                              \
    "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens        \
    "6, %" #tens "7, %" #tens "8, %" #tens "9, "
#define BRG_SIXTY BRG_TEN() BRG_TEN(1) BRG_TEN(2) BRG_TEN(3) BRG_TEN(4) BRG_TEN(5)
#define BRG_NAMES_64 BRG_SIXTY "%60, %61, %62, %63"
#define BRG_NAMES_72 BRG_SIXTY BRG_TEN(6) "%70, %71"
#define BRG_NAMES_128                                                                              \
    BRG_SIXTY BRG_TEN(6) BRG_TEN(7) BRG_TEN(8) BRG_TEN(9) BRG_TEN(10)                              \
        BRG_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"

#define BRG_OUT_8(i)                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define BRG_OUT_64                                                                                 \
    BRG_OUT_8(0), BRG_OUT_8(8), BRG_OUT_8(16), BRG_OUT_8(24), BRG_OUT_8(32), BRG_OUT_8(40),        \
        BRG_OUT_8(48), BRG_OUT_8(56)
#define BRG_OUT_72 BRG_OUT_64, BRG_OUT_8(64)
#define BRG_OUT_128                                                                                \
    BRG_OUT_72, BRG_OUT_8(72), BRG_OUT_8(80), BRG_OUT_8(88), BRG_OUT_8(96), BRG_OUT_8(104),        \
        BRG_OUT_8(112), BRG_OUT_8(120)

/* The three numbers are the positions of a, b and accumulate among the operands. */
#define BRG_WGMMA(T, type, width, names, outputs, a_pos, b_pos, accumulate_pos)                    \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma<T, width>(float(&d)[128], uint64_t a, uint64_t b,        \
                                                    int accumulate)                                \
    {                                                                                              \
        asm volatile("{\n\t"                                                                       \
                     ".reg .pred scale_d;\n\t"                                                     \
                     "setp.ne.b32 scale_d, %" #accumulate_pos ", 0;\n\t"                           \
                     "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type           \
                     " {" names "}, %" #a_pos ", %" #b_pos ", scale_d, 1, 1, 0, 0;\n\t"            \
                     "}"                                                                           \
                     : outputs                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }
BRG_WGMMA(__half, "f16", 128, BRG_NAMES_64, BRG_OUT_64, 64, 65, 66)
BRG_WGMMA(__half, "f16", 144, BRG_NAMES_72, BRG_OUT_72, 72, 73, 74)
BRG_WGMMA(__half, "f16", 256, BRG_NAMES_128, BRG_OUT_128, 128, 129, 130)
BRG_WGMMA(__nv_bfloat16, "bf16", 128, BRG_NAMES_64, BRG_OUT_64, 64, 65, 66)
BRG_WGMMA(__nv_bfloat16, "bf16", 144, BRG_NAMES_72, BRG_OUT_72, 72, 73, 74)
BRG_WGMMA(__nv_bfloat16, "bf16", 256, BRG_NAMES_128, BRG_OUT_128, 128, 129, 130)

/* Four 8x8 matrices of two-byte values. Lane l gives the address of row l % 8 of matrix l / 8 and
 * holds in values[m] row l / 4, columns 2 (l % 4) and the next, of matrix m; or with _transposed
 * that element of its transpose. */
__device__ __forceinline__ void matrix_store(uint32_t row_addr, const uint32_t (&values)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row_addr), "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
                 : "memory");
}

__device__ __forceinline__ void matrix_store_transposed(uint32_t row_addr,
                                                        const uint32_t (&values)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(row_addr), "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
                 : "memory");
}

__device__ __forceinline__ void matrix_load(uint32_t row_addr, uint32_t (&values)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(row_addr)
                 : "memory");
}

#endif
