/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and minima over the threads of a block, always in the same order. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_REDUCE_CUH
#define BRIGADE_SCHED_OPTIM_CUDA_REDUCE_CUH

#include <stdint.h>

#define BRG_WARP 32

/* The sum over all THREADS threads of a block, in thread 0; the others get nothing of use. Called
 * once in a kernel at most for each `shared` array of THREADS / BRG_WARP values. */
template <int THREADS> static __device__ double brg_block_sum(double value, double *shared)
{
    for (int width = BRG_WARP / 2; width > 0; width /= 2)
        value += __shfl_down_sync(0xffffffffu, value, width);
    if (threadIdx.x % BRG_WARP == 0)
        shared[threadIdx.x / BRG_WARP] = value;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0)
        for (int warp = 0; warp < THREADS / BRG_WARP; warp++)
            sum += shared[warp];
    return sum;
}

/* The same for the lowest value. */
template <int THREADS> static __device__ int64_t brg_block_min(int64_t value, int64_t *shared)
{
    for (int width = BRG_WARP / 2; width > 0; width /= 2)
        value = min(value, (int64_t)__shfl_down_sync(0xffffffffu, (long long)value, width));
    if (threadIdx.x % BRG_WARP == 0)
        shared[threadIdx.x / BRG_WARP] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < THREADS / BRG_WARP; warp++)
            value = min(value, shared[warp]);
    return value;
}

#endif
