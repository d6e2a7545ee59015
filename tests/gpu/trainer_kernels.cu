// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/trainer_kernels.h"

static __global__ void count(int64_t *step)
{
    *step += 1;
}

void gpu_count(int64_t *step, void *stream)
{
    count<<<1, 1, 0, (cudaStream_t)stream>>>(step);
}

/* As in tests/bucket/harness.h. */
static __device__ float contribution(uint64_t seed, int rank, int step, int p, int64_t i)
{
    uint64_t x = seed + (uint64_t)rank * 7919 + (uint64_t)step * 104729 + (uint64_t)p * 1299709 +
                 (uint64_t)i * 15485863;
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return (float)((double)(x >> 40) / (double)(1 << 24) - 0.5);
}

static __global__ void gradient(float *grad, const float *param, int64_t numel, int rank,
                                const int64_t *step, int p, uint64_t seed, float feedback)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < numel)
        grad[i] += contribution(seed, rank, (int)*step, p, i) + feedback * param[i];
}

void gpu_gradient(float *grad, const float *param, int64_t numel, int rank, const int64_t *step,
                  int param_id, uint64_t seed, float feedback, void *stream)
{
    gradient<<<(unsigned)((numel + 255) / 256), 256, 0, (cudaStream_t)stream>>>(
        grad, param, numel, rank, step, param_id, seed, feedback);
}
