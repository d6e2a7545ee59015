/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise reductions in rank order 0..n-1, the same on every rank, so that results are bitwise
 * equal between ranks and between runs. */
#include "sched/device/host_reduce.h"
#include "sched/device/host_comm.h"

#define PIECE_BYTES ((size_t)16 << 10) /* of accumulators: stays in the first-level cache */

const host_kernels *host_kernels_of(int dtype)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return &host_kernels_avx2[dtype];
#endif
    return &host_kernels_base[dtype];
}

size_t host_reduce_piece(int dtype)
{
    return PIECE_BYTES / host_kernels_base[dtype].acc_bytes;
}

void host_reduce_first(const host_reduction *r, void *acc, const void *src, const uint8_t scalar[8],
                       size_t count)
{
    const host_kernels *kernels = host_kernels_of(r->dtype);
    if (r->op == HOST_OP_PREMUL_SUM)
        kernels->first_scaled(acc, src, scalar, count);
    else
        kernels->first(acc, src, NULL, count);
}

void host_reduce_next(const host_reduction *r, void *acc, const void *src, const uint8_t scalar[8],
                      size_t count)
{
    host_kernels_of(r->dtype)->next[r->op](acc, src, r->op == HOST_OP_PREMUL_SUM ? scalar : NULL,
                                           count);
}

void host_reduce_last(const host_reduction *r, void *dst, const void *acc, size_t count)
{
    const host_kernels *kernels = host_kernels_of(r->dtype);
    if (r->op == BRG_NCCL_AVG)
        kernels->last_divided(dst, acc, r->num_ranks, count);
    else
        kernels->last(dst, acc, count);
}
