/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a synthetic model through the real scheduler. */
#ifndef BRIGADE_TOOLS_BENCH_STEP_RUN_H
#define BRIGADE_TOOLS_BENCH_STEP_RUN_H

#include "tools/brigade/bench.h"
#include "tools/brigade/bench_gemm.h"
#include "tools/brigade/bench_model.h"

typedef struct bench_step_options {
    int64_t tokens, bucket_size;
    brg_dtype dtype, grad_dtype;
    bool overlap, precision_aware;
} bench_step_options;

typedef struct bench_step_layer {
    bool computes; /* a matrix that is multiplied with, else only a gradient that is ready */
    bench_gemm_call forward, dgrad, wgrad;
} bench_step_layer;

enum { BENCH_STEP_BLOCK = 4 }; /* timed steps in a row, behind one that is not */

typedef struct bench_step_run {
    bench_session *session;
    const bench_model *model;
    brg_layout *layout;
    brg_scheduler *sched;
    brg_optimizer *children[2], *chain;
    int num_children;
    bench_cublas *cublas;
    bench_step_layer *layers; /* one for each parameter */
    void *inputs[2], *scratch;
    void *events[BENCH_STEP_BLOCK + 2];
    const brg_nccl *nccl; /* the context's own table */
    brg_nccl silent;      /* the same, but that collectives do nothing */
    double gemm_flops;    /* of a step */
} bench_step_run;

/* Zero-initialised `run`; bench_step_close() in any case. */
brg_status bench_step_open(bench_step_run *run, bench_session *session, const bench_model *model,
                           const bench_step_options *options);
void bench_step_close(bench_step_run *run);

/* BENCH_STEP_BLOCK + 1 steps; us gets the times of all but the first, the slowest rank's. Without
 * communication everything is the same but that the collectives of the scheduler do nothing. */
brg_status bench_step_block(bench_step_run *run, bool communicate, double us[BENCH_STEP_BLOCK]);

#endif
