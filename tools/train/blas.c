/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/blas.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void blas_select_kernels(char **argv)
{
#if defined(__x86_64__)
    const char *kernels =
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") ? "SkylakeX"
        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")        ? "Haswell"
                                                                                 : NULL;
    if (!kernels || getenv("OPENBLAS_CORETYPE") || strcmp(openblas_get_corename(), "Prescott"))
        return;
    if (setenv("OPENBLAS_CORETYPE", kernels, 1) == 0)
        execv("/proc/self/exe", argv); /* on failure: go on, slowly */
#else
    (void)argv;
#endif
}

void blas_share_cores(int local_ranks)
{
    if (getenv("OPENBLAS_NUM_THREADS"))
        return;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long threads = local_ranks > 0 ? cores / local_ranks : cores;
    openblas_set_num_threads(threads > 1 ? (int)threads : 1);
}

void blas_gemm(bool ta, bool tb, int m, int n, int k, float alpha, const float *a, int lda,
               const float *b, int ldb, float beta, float *c, int ldc)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n,
                k, alpha, a, lda, b, ldb, beta, c, ldc);
}
