/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of a synthetic model: cuBLAS, opened at run time, or the host's BLAS. */
#ifndef BRIGADE_TOOLS_BENCH_GEMM_H
#define BRIGADE_TOOLS_BENCH_GEMM_H

#include "tools/brigade/bench_session.h"

/* Row-major and dense: c (m x n) = alpha op(a) op(b) + beta c, the inner dimension is k. On the
 * host all three are float32; float64 is for all three, and with cuBLAS. */
typedef struct bench_gemm_call {
    int64_t m, n, k;
    bool transpose_a, transpose_b; /* a is given as k x m, b as n x k */
    const void *a, *b;
    void *c;
    double alpha, beta;
    brg_dtype dtype, c_dtype; /* of a and b; of c */
} bench_gemm_call;

typedef struct bench_cublas bench_cublas;

/* For the session's stream; *cublas stays NULL on the host device. */
brg_status bench_gemm_open(const bench_session *session, bench_cublas **cublas);
void bench_gemm_close(bench_cublas *cublas);

/* Puts it on the session's stream; `call` must live until it has run. */
brg_status bench_gemm_put(const bench_session *session, bench_cublas *cublas,
                          const bench_gemm_call *call);

#endif
