/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"

enum { CHUNK = 512, LANES = 8 };

/* LANES running sums, so that the compiler may use vectors without changing the order of additions.
 * No float32 square over- or underflows in float64. */
double brg_sum_of_squares_host(const void *values, brg_dtype dtype, size_t numel)
{
    float buffer[CHUNK];
    double lanes[LANES] = {0};
    for (size_t start = 0; start < numel; start += CHUNK) {
        size_t count = numel - start < CHUNK ? numel - start : CHUNK;
        const float *x = brg_load_f32(buffer, values, dtype, start, count);
        size_t i = 0;
        for (; i + LANES <= count; i += LANES)
            for (size_t lane = 0; lane < LANES; lane++)
                lanes[lane] += (double)x[i + lane] * (double)x[i + lane];
        for (size_t lane = 0; i + lane < count; lane++)
            lanes[lane] += (double)x[i + lane] * (double)x[i + lane];
    }
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    return lanes[0];
}
