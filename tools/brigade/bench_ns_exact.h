/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz of one matrix in float64, to compare with. */
#ifndef BRIGADE_TOOLS_BENCH_NS_EXACT_H
#define BRIGADE_TOOLS_BENCH_NS_EXACT_H

#include "sched/optim/ns.h"
#include "tools/brigade/bench_session.h"

/* Normalises the row-major rows x cols matrix and iterates; `result` is the same size. On the
 * device cuda by cuBLAS, which takes well under a second for 4096 x 14336; on the host by BLAS. */
brg_status bench_ns_exact(bench_session *session, const brg_ns_schedule *schedule, int64_t rows,
                          int64_t cols, const float *input, double *result);

#endif
