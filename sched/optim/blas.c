/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/optim/blas.h"

#include <cblas.h>

void brg_blas_gram_f32(int transpose, int n, int k, float alpha, const float *a, float beta,
                       float *c)
{
    cblas_ssyrk(CblasRowMajor, CblasUpper, transpose ? CblasTrans : CblasNoTrans, n, k, alpha, a,
                transpose ? n : k, beta, c, n);
}

void brg_blas_symm_f32(int from_right, int rows, int cols, const float *s, const float *a, float *c)
{
    cblas_ssymm(CblasRowMajor, from_right ? CblasRight : CblasLeft, CblasUpper, rows, cols, 1.0f, s,
                from_right ? cols : rows, a, cols, 0.0f, c, cols);
}

void brg_blas_gram_f64(int transpose, int n, int k, double alpha, const double *a, double beta,
                       double *c)
{
    cblas_dsyrk(CblasRowMajor, CblasUpper, transpose ? CblasTrans : CblasNoTrans, n, k, alpha, a,
                transpose ? n : k, beta, c, n);
}

void brg_blas_symm_f64(int from_right, int rows, int cols, const double *s, const double *a,
                       double *c)
{
    cblas_dsymm(CblasRowMajor, from_right ? CblasRight : CblasLeft, CblasUpper, rows, cols, 1.0, s,
                from_right ? cols : rows, a, cols, 0.0, c, cols);
}
