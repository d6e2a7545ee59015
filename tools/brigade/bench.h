/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share. */
#ifndef BRIGADE_TOOLS_BENCH_H
#define BRIGADE_TOOLS_BENCH_H

#include <math.h>
#include <stdbool.h>
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

/* What one thing took in each round. */
enum { BENCH_MAX_ROUNDS = 1000 };
typedef struct bench_samples {
    double values[BENCH_MAX_ROUNDS];
    int count;
} bench_samples;

/* Not what could not be measured, which is a NaN. */
static inline void bench_add(bench_samples *samples, double value)
{
    if (!isnan(value) && samples->count < BENCH_MAX_ROUNDS)
        samples->values[samples->count++] = value;
}

/* NaN without samples. Sorts them. */
static inline double bench_median_of(bench_samples *samples)
{
    return samples->count ? bench_median(samples->values, samples->count) : (double)NAN;
}

/* A directory of our own for traces, in TMPDIR. False with errno; `dir` is what could not be made.
 */
enum { BENCH_DIR_SIZE = 1024 };
bool bench_dir_make(char dir[BENCH_DIR_SIZE]);
/* With the traces in it; whether there were any. */
bool bench_dir_remove(const char *dir);

#endif
