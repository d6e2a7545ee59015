/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel steps for `brigade bench shim`, with the shim and without it in turn, so that
 * whatever else the machine does meets both. */
#ifndef BRIGADE_TOOLS_BENCH_SHIM_STEP_H
#define BRIGADE_TOOLS_BENCH_SHIM_STEP_H

#include <stdbool.h>

#include "tools/brigade/bench_peer.h"

enum {
    BENCH_SHIM_BUCKETS = 36,
    BENCH_SHIM_BLOCK = 4, /* steps */
    BENCH_SHIM_MAX_PAIRS = 10000
};

/* Of rank 0. A block is a few steps of one kind, and stands for their median. */
typedef struct bench_shim_steps {
    double plain_ns, traced_ns; /* medians of the blocks */
    double ratio, low, high;    /* of a traced block to the plain one beside it: median, 95% */
} bench_shim_steps;

/* Whether block i of 2 * pairs is the one with the shim: the two of a pair in changing order. */
static inline bool bench_shim_turn(int i)
{
    return (i + i / 2) % 2;
}

/* Two ranks, threads of this process, on libbrigade-host: one all-reduce a bucket behind the
 * computation that makes it. `pairs` blocks through the shim and as many past it. False: failed. */
bool bench_shim_steps_run(const char *host, const char *shim, int pairs, bench_shim_steps *out);

/* DistributedDataParallel of PyTorch on all GPUs, a job with the shim preloaded beside one without.
 * True with an empty name where there is no torch with a GPU (standard error says why). False:
 * failed, standard error says how. */
bool bench_shim_torch_run(const cli_command *command, const bench_peer_options *options,
                          const char *shim, int pairs, char name[BENCH_PEER_NAME],
                          bench_shim_steps *out);

/* Sorts both. */
void bench_shim_summarise(double *plain, double *traced, int n, bench_shim_steps *out);

#endif
