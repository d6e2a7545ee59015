/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share. */
#ifndef BRIGADE_TOOLS_BENCH_H
#define BRIGADE_TOOLS_BENCH_H

#include <stdint.h>
#include <stdlib.h>

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts `count` > 0 values; returns their median, the mean of the middle two for an even count. */
static inline double bench_median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, bench_by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

#endif
