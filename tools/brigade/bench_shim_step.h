/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel step for `brigade bench shim`: two ranks, threads of this process, on
 * libbrigade-host, one all-reduce a bucket behind the computation that makes it. */
#ifndef BRIGADE_TOOLS_BENCH_SHIM_STEP_H
#define BRIGADE_TOOLS_BENCH_SHIM_STEP_H

#include <stdbool.h>

enum { BENCH_SHIM_BUCKETS = 36 };

/* Of rank 0. A block is a few steps of one kind, and stands for their median. */
typedef struct bench_shim_steps {
    double plain_ns, traced_ns; /* medians of the blocks */
    double ratio, low, high;    /* of a traced block to the plain one beside it: median, 95% */
} bench_shim_steps;

/* Opens the libraries and trains, `pairs` blocks through the shim and `pairs` past it in turn, so
 * that whatever else the machine does meets both. False: failed. */
bool bench_shim_steps_run(const char *host, const char *shim, int pairs, bench_shim_steps *out);

#endif
