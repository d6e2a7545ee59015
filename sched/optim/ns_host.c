/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz on the host, in float32 but for small matrices and steep polynomials.
 *
 * X <- aX + (bA + cA^2)X with A = XX^T is X <- (aI + bA + cA^2)X; for a tall X the same polynomial
 * in A = X^TX is applied from the right, X(aI + bA + cA^2), which is the iteration on the
 * transposed matrix without transposing anything. So A always has the smaller side. A and A^2 are
 * symmetric: only one triangle of them is computed.
 */
#include "sched/optim/ns.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/blas.h"
#include "sched/status.h"

static brg_status allocate(int64_t numel, size_t elem_bytes, void *memory)
{
    size_t bytes = 0;
    if (numel < 0 || __builtin_mul_overflow((size_t)numel, elem_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)64, &bytes))
        return brg_fail(BRG_ERR_NO_MEMORY,
                        "a Newton-Schulz workspace of %lld elements is too large",
                        (long long)numel);
    bytes -= bytes % 64; /* at least one cache line, and a multiple of it */
    void *made = aligned_alloc(64, bytes);
    memcpy(memory, &made, sizeof made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a Newton-Schulz workspace of %zu bytes",
                        bytes);
    return BRG_OK;
}

brg_status brg_ns_workspace_create(int64_t max_elems, int64_t max_side, bool wide,
                                   brg_ns_workspace *workspace)
{
    brg_status status = BRG_OK;
    brg_ns_workspace made = {0};
    int64_t square = 0;
    if (max_side < 0 || max_side > INT_MAX || __builtin_mul_overflow(max_side, max_side, &square))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "Newton-Schulz: a matrix side of %lld is too large", (long long)max_side);
    BRG_TRY(allocate(max_elems, sizeof(float), &made.x), fail);
    if (wide) {
        BRG_TRY(allocate(max_elems, sizeof(double), &made.wide.x), fail);
        BRG_TRY(allocate(max_elems, sizeof(double), &made.wide.y), fail);
        BRG_TRY(allocate(square, sizeof(double), &made.wide.gram), fail);
        BRG_TRY(allocate(square, sizeof(double), &made.wide.poly), fail);
    } else {
        BRG_TRY(allocate(max_elems, sizeof(float), &made.y), fail);
        BRG_TRY(allocate(square, sizeof(float), &made.gram), fail);
        BRG_TRY(allocate(square, sizeof(float), &made.poly), fail);
    }
    *workspace = made;
    return BRG_OK;
fail:
    brg_ns_workspace_destroy(&made);
    return status;
}

void brg_ns_workspace_destroy(brg_ns_workspace *workspace)
{
    free(workspace->x);
    free(workspace->y);
    free(workspace->gram);
    free(workspace->poly);
    free(workspace->wide.x);
    free(workspace->wide.y);
    free(workspace->wide.gram);
    free(workspace->wide.poly);
    memset(workspace, 0, sizeof *workspace);
}

static void multiply(float *x, int64_t numel, double factor)
{
    for (int64_t i = 0; i < numel; i++)
        x[i] = (float)(x[i] * factor);
}

#define REAL float
#define NAME(x) x##_f32
#include "sched/optim/ns_iterate.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##_f64
#include "sched/optim/ns_iterate.h"
#undef REAL
#undef NAME

/* A vector has one singular value, which is sent through the polynomials. */
static double iterate_scalar(double x, const brg_ns_schedule *schedule)
{
    for (int i = 0; i < schedule->num_steps; i++) {
        const double *tuple = schedule->tuples[i];
        double a = x * x;
        x *= tuple[0] + a * (tuple[1] + a * tuple[2]);
    }
    return x;
}

/* One step of the side x length matrix x, dense, into y. */
static void small_step(int side, int length, const double *tuple, const double *x, double *y)
{
    double gram[BRG_NS_SMALL_SIDE * BRG_NS_SMALL_SIDE];
    for (int i = 0; i < side; i++)
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int k = 0; k < length; k++)
                sum += x[i * length + k] * x[j * length + k];
            gram[i * side + j] = gram[j * side + i] = sum;
        }
    memset(y, 0, sizeof *y * (size_t)(side * length));
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            double sum = 0;
            for (int k = 0; k < side; k++)
                sum += gram[i * side + k] * gram[k * side + j];
            double factor = tuple[1] * gram[i * side + j] + tuple[2] * sum;
            factor += i == j ? tuple[0] : 0.0;
            for (int k = 0; k < length; k++)
                y[i * length + k] += factor * x[j * length + k];
        }
}

static void iterate_small(float *matrix, int rows, int cols, double divisor,
                          const brg_ns_schedule *schedule)
{
    double memory[2][BRG_NS_SMALL_ELEMS];
    double *x = memory[0], *y = memory[1];
    int tall = rows > cols, side = tall ? cols : rows, length = tall ? rows : cols;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            x[tall ? c * rows + r : r * cols + c] = matrix[r * cols + c] / divisor;
    for (int i = 0; i < schedule->num_steps; i++) {
        small_step(side, length, schedule->tuples[i], x, y);
        double *swap = x;
        x = y;
        y = swap;
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            matrix[r * cols + c] = (float)x[tall ? c * rows + r : r * cols + c];
}

/* Polynomials that are steep where the singular values are multiply the rounding of float32
 * products beyond float32 accuracy of the result: iterated in float64, in the workspace's second
 * half. */
static void iterate_wide(brg_ns_workspace *workspace, int rows, int cols, double divisor,
                         const brg_ns_schedule *schedule)
{
    size_t numel = (size_t)rows * (size_t)cols;
    double *x = workspace->wide.x;
    for (size_t i = 0; i < numel; i++)
        x[i] = workspace->x[i] / divisor;
    const double *result = iterate_f64(&workspace->wide, rows, cols, schedule);
    for (size_t i = 0; i < numel; i++)
        workspace->x[i] = (float)result[i];
}

float *brg_ns_orthogonalize_host(brg_ns_workspace *workspace, int64_t rows, int64_t cols,
                                 double sum_of_squares, double eps, const brg_ns_schedule *schedule)
{
    int64_t numel = rows * cols;
    double norm = sqrt(sum_of_squares);
    double divisor = norm < eps ? eps : norm; /* a NaN norm stays */
    if (norm == 0)
        return workspace->x;
    if (rows == 1 || cols == 1) {
        multiply(workspace->x, numel, iterate_scalar(norm / divisor, schedule) / norm);
        return workspace->x;
    }
    if (numel <= BRG_NS_SMALL_ELEMS) {
        iterate_small(workspace->x, (int)rows, (int)cols, divisor, schedule);
        return workspace->x;
    }
    if (workspace->wide.x) {
        iterate_wide(workspace, (int)rows, (int)cols, divisor, schedule);
        return workspace->x;
    }
    multiply(workspace->x, numel, 1.0 / divisor);
    const brg_ns_matrices narrow = {workspace->x, workspace->y, workspace->gram, workspace->poly};
    return iterate_f32(&narrow, (int)rows, (int)cols, schedule);
}
