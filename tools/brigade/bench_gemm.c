/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "sched/status.h"

/* Values of cublas_api.h and library_types.h. */
enum { OP_N = 0, OP_T = 1, GEMM_DEFAULT = -1 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };
enum { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };

struct bench_cublas {
    void *library, *handle;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
};

static void *open_library(void)
{
    const char *names[] = {getenv("BRIGADE_CUBLAS"), "libcublas.so.13", "libcublas.so.12"};
    for (int i = 0; i < 3; i++) {
        void *library = names[i] && *names[i] ? dlopen(names[i], RTLD_NOW | RTLD_LOCAL) : NULL;
        if (library)
            return library;
    }
    return NULL;
}

static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

brg_status bench_gemm_open(const bench_session *session, bench_cublas **out)
{
    *out = NULL;
    if (!session->device->kernels)
        return BRG_OK;
    bench_cublas *cublas = calloc(1, sizeof *cublas);
    if (!cublas)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for cuBLAS");
    cublas->library = open_library();
    if (!cublas->library) {
        const char *why = dlerror();
        free(cublas);
        return brg_fail(BRG_ERR_UNSUPPORTED,
                        "cuBLAS is neither libcublas.so.13 nor libcublas.so.12 (%s); name it with "
                        "BRIGADE_CUBLAS",
                        why ? why : "?");
    }
    if (!find(cublas->library, "cublasCreate_v2", &cublas->create) ||
        !find(cublas->library, "cublasDestroy_v2", &cublas->destroy) ||
        !find(cublas->library, "cublasSetStream_v2", &cublas->set_stream) ||
        !find(cublas->library, "cublasGemmEx", &cublas->gemm)) {
        bench_gemm_close(cublas);
        return brg_fail(BRG_ERR_UNSUPPORTED, "cuBLAS lacks a function");
    }
    int error = cublas->create(&cublas->handle);
    if (!error)
        error = cublas->set_stream(cublas->handle, session->stream);
    if (error) {
        bench_gemm_close(cublas);
        return brg_fail(BRG_ERR_DEVICE, "cuBLAS does not start: error %d", error);
    }
    *out = cublas;
    return BRG_OK;
}

void bench_gemm_close(bench_cublas *cublas)
{
    if (!cublas)
        return;
    if (cublas->handle)
        cublas->destroy(cublas->handle);
    dlclose(cublas->library);
    free(cublas);
}

static int cuda_type(brg_dtype dtype)
{
    return dtype == BRG_FLOAT64   ? CUDA_R_64F
           : dtype == BRG_FLOAT32 ? CUDA_R_32F
           : dtype == BRG_FLOAT16 ? CUDA_R_16F
                                  : CUDA_R_16BF;
}

/* cuBLAS is column-major: the transposed product, factors exchanged, is ours. */
static int call_cublas(bench_cublas *cublas, const bench_gemm_call *call)
{
    const float alpha = (float)call->alpha, beta = (float)call->beta;
    const bool wide = call->dtype == BRG_FLOAT64;
    int compute = wide ? COMPUTE_64F : COMPUTE_32F;
    if (call->dtype == BRG_FLOAT32)
        compute = COMPUTE_32F_FAST_TF32;
    int lda = (int)(call->transpose_a ? call->m : call->k);
    int ldb = (int)(call->transpose_b ? call->k : call->n);
    int type = cuda_type(call->dtype);
    return cublas->gemm(cublas->handle, call->transpose_b ? OP_T : OP_N,
                        call->transpose_a ? OP_T : OP_N, (int)call->n, (int)call->m, (int)call->k,
                        wide ? (const void *)&call->alpha : (const void *)&alpha, call->b, type,
                        ldb, call->a, type, lda,
                        wide ? (const void *)&call->beta : (const void *)&beta, call->c,
                        cuda_type(call->c_dtype), (int)call->n, compute, GEMM_DEFAULT);
}

static void call_host(void *arg)
{
    const bench_gemm_call *call = arg;
    cblas_sgemm(
        CblasRowMajor, call->transpose_a ? CblasTrans : CblasNoTrans,
        call->transpose_b ? CblasTrans : CblasNoTrans, (int)call->m, (int)call->n, (int)call->k,
        (float)call->alpha, call->a, (int)(call->transpose_a ? call->m : call->k), call->b,
        (int)(call->transpose_b ? call->k : call->n), (float)call->beta, call->c, (int)call->n);
}

brg_status bench_gemm_put(const bench_session *session, bench_cublas *cublas,
                          const bench_gemm_call *call)
{
    if (!cublas)
        return brg_stream_launch(session->ctx, session->stream, call_host, (void *)call);
    int error = call_cublas(cublas, call);
    return error ? brg_fail(BRG_ERR_DEVICE, "cublasGemmEx: error %d", error) : BRG_OK;
}
