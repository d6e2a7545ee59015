/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/optim/blas.h"

#include <cblas.h>

void brg_blas_gram(int transpose, int n, int k, float alpha, const float *a, float beta, float *c)
{
    cblas_ssyrk(CblasRowMajor, CblasUpper, transpose ? CblasTrans : CblasNoTrans, n, k, alpha, a,
                transpose ? n : k, beta, c, n);
}

void brg_blas_symm(int from_right, int rows, int cols, const float *s, const float *a, float *c)
{
    cblas_ssymm(CblasRowMajor, from_right ? CblasRight : CblasLeft, CblasUpper, rows, cols, 1.0f, s,
                from_right ? cols : rows, a, cols, 0.0f, c, cols);
}
