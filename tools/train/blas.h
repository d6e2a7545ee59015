/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products. The only file of the trainer that knows which BLAS it runs on. */
#ifndef BRIGADE_TOOLS_TRAIN_BLAS_H
#define BRIGADE_TOOLS_TRAIN_BLAS_H

#include <stdbool.h>

/* Call first in main(). An OpenBLAS older than the CPU falls back to SSE3 kernels, five times
 * slower than what the CPU can do. Where that has happened and the user has not chosen kernels
 * (OPENBLAS_CORETYPE), this starts the program again with the kernels named; else it returns. */
void blas_select_kernels(char **argv);

/* Threads for each product of a process that shares the machine with others, `local_ranks` in all.
 * OPENBLAS_NUM_THREADS, where set, wins. */
void blas_share_cores(int local_ranks);

/* Row-major c[m][n] = alpha * op(a) op(b) + beta * c; op transposes where ta, tb say so. ld*:
 * elements from row to row as stored. */
void blas_gemm(bool ta, bool tb, int m, int n, int k, float alpha, const float *a, int lda,
               const float *b, int ldb, float beta, float *c, int ldc);

#endif
