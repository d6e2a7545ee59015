/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_ns_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/kernels.h"
#include "sched/status.h"
#include "tools/brigade/bench_gemm.h"

static double sum_of_squares(const float *values, size_t numel)
{
    return brg_sum_of_squares_host(values, BRG_FLOAT32, numel);
}

/* By the library's own iteration for polynomials that float32 does not bear. */
static brg_status exact_on_host(const brg_ns_schedule *schedule, int64_t rows, int64_t cols,
                                const float *input, double *result)
{
    size_t numel = (size_t)(rows * cols);
    brg_ns_workspace workspace;
    brg_status status =
        brg_ns_workspace_create((int64_t)numel, rows < cols ? rows : cols, true, &workspace);
    if (status != BRG_OK)
        return status;
    memcpy(workspace.x, input, numel * sizeof *input);
    const float *made = brg_ns_orthogonalize_host(&workspace, rows, cols,
                                                  sum_of_squares(input, numel), 1e-15, schedule);
    for (size_t i = 0; i < numel; i++)
        result[i] = made[i];
    brg_ns_workspace_destroy(&workspace);
    return BRG_OK;
}

typedef struct device_job {
    bench_session *session;
    bench_cublas *cublas;
    int64_t rows, cols, side;
    void *x, *y;       /* rows x cols */
    void *gram, *poly; /* side x side */
} device_job;

static brg_status copy(device_job *j, void *to, const void *from, int64_t numel, int kind)
{
    return bench_rt(j->session,
                    j->session->device->rt->memcpy_async(to, from, (size_t)numel * sizeof(double),
                                                         kind, j->session->stream),
                    "memcpy_async");
}

/* x becomes ax + (bA + cA^2)x with A = xx^T, from the right for a tall x. */
static brg_status step(device_job *j, const double *tuple)
{
    const bool tall = j->rows > j->cols;
    const int64_t side = j->side;
    const bench_gemm_call gram = {.m = side,
                                  .n = side,
                                  .k = tall ? j->rows : j->cols,
                                  .transpose_a = tall,
                                  .transpose_b = !tall,
                                  .a = j->x,
                                  .b = j->x,
                                  .c = j->gram,
                                  .alpha = 1,
                                  .dtype = BRG_FLOAT64,
                                  .c_dtype = BRG_FLOAT64};
    bench_gemm_call poly = gram, apply = gram;
    poly.k = side;
    poly.transpose_a = poly.transpose_b = false;
    poly.a = poly.b = j->gram;
    poly.c = j->poly;
    poly.alpha = tuple[2];
    poly.beta = tuple[1];
    apply.m = j->rows;
    apply.n = j->cols;
    apply.k = side;
    apply.transpose_a = apply.transpose_b = false;
    apply.a = tall ? j->x : j->poly;
    apply.b = tall ? j->poly : j->x;
    apply.c = j->y;
    apply.beta = tuple[0];
    brg_status status;
    BRG_TRY(bench_gemm_put(j->session, j->cublas, &gram), out);
    BRG_TRY(copy(j, j->poly, j->gram, side * side, BRG_COPY_DEVICE_TO_DEVICE), out);
    BRG_TRY(bench_gemm_put(j->session, j->cublas, &poly), out);
    BRG_TRY(copy(j, j->y, j->x, j->rows * j->cols, BRG_COPY_DEVICE_TO_DEVICE), out);
    BRG_TRY(bench_gemm_put(j->session, j->cublas, &apply), out);
    void *swap = j->x;
    j->x = j->y;
    j->y = swap;
out:
    return status;
}

static brg_status exact_on_device(device_job *j, const brg_ns_schedule *schedule,
                                  const float *input, double *result)
{
    const int64_t numel = j->rows * j->cols;
    bench_session *s = j->session;
    double norm = sqrt(sum_of_squares(input, (size_t)numel));
    brg_status status;
    for (int64_t i = 0; i < numel; i++)
        result[i] = input[i] / norm;
    BRG_TRY(bench_gemm_open(s, &j->cublas), out);
    BRG_TRY(bench_alloc(s, (size_t)numel * sizeof *result, &j->x), out);
    BRG_TRY(bench_alloc(s, (size_t)numel * sizeof *result, &j->y), out);
    BRG_TRY(bench_alloc(s, (size_t)(j->side * j->side) * sizeof *result, &j->gram), out);
    BRG_TRY(bench_alloc(s, (size_t)(j->side * j->side) * sizeof *result, &j->poly), out);
    BRG_TRY(copy(j, j->x, result, numel, BRG_COPY_HOST_TO_DEVICE), out);
    for (int i = 0; i < schedule->num_steps; i++)
        BRG_TRY(step(j, schedule->tuples[i]), out);
    BRG_TRY(copy(j, result, j->x, numel, BRG_COPY_DEVICE_TO_HOST), out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
out:
    bench_free(s, j->x);
    bench_free(s, j->y);
    bench_free(s, j->gram);
    bench_free(s, j->poly);
    bench_gemm_close(j->cublas);
    return status;
}

brg_status bench_ns_exact(bench_session *session, const brg_ns_schedule *schedule, int64_t rows,
                          int64_t cols, const float *input, double *result)
{
    if (!session->device->kernels)
        return exact_on_host(schedule, rows, cols, input, result);
    device_job j = {
        .session = session, .rows = rows, .cols = cols, .side = rows < cols ? rows : cols};
    return exact_on_device(&j, schedule, input, result);
}
