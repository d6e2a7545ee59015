/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix products of Newton-Schulz; blas.c is the only file that knows BLAS. Matrices are
 * row-major and dense; symmetric ones are given and made by their upper triangle. */
#ifndef BRIGADE_SCHED_OPTIM_BLAS_H
#define BRIGADE_SCHED_OPTIM_BLAS_H

/* c (n x n, upper) = alpha a a^T + beta c, a is n x k; with transpose alpha a^T a + beta c, a is k
 * x n. */
void brg_blas_gram_f32(int transpose, int n, int k, float alpha, const float *a, float beta,
                       float *c);
void brg_blas_gram_f64(int transpose, int n, int k, double alpha, const double *a, double beta,
                       double *c);

/* c (rows x cols) = s a, s symmetric rows x rows; or with from_right a s, s symmetric cols x cols.
 */
void brg_blas_symm_f32(int from_right, int rows, int cols, const float *s, const float *a,
                       float *c);
void brg_blas_symm_f64(int from_right, int rows, int cols, const double *s, const double *a,
                       double *c);

#endif
