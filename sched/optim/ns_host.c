/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz on the host in float32.
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

static brg_status allocate_floats(int64_t numel, float **memory)
{
    size_t bytes = 0;
    if (numel < 0 || __builtin_mul_overflow((size_t)numel, sizeof(float), &bytes) ||
        __builtin_add_overflow(bytes, (size_t)64, &bytes))
        return brg_fail(BRG_ERR_NO_MEMORY,
                        "a Newton-Schulz workspace of %lld elements is too large",
                        (long long)numel);
    bytes -= bytes % 64; /* at least one cache line, and a multiple of it */
    *memory = aligned_alloc(64, bytes);
    if (!*memory)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a Newton-Schulz workspace of %zu bytes",
                        bytes);
    return BRG_OK;
}

brg_status brg_ns_workspace_create(int64_t max_elems, int64_t max_side, brg_ns_workspace *workspace)
{
    brg_status status = BRG_OK;
    brg_ns_workspace made = {0};
    int64_t square = 0;
    if (max_side < 0 || max_side > INT_MAX || __builtin_mul_overflow(max_side, max_side, &square))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "Newton-Schulz: a matrix side of %lld is too large", (long long)max_side);
    BRG_TRY(allocate_floats(max_elems, &made.x), fail);
    BRG_TRY(allocate_floats(max_elems, &made.y), fail);
    BRG_TRY(allocate_floats(square, &made.gram), fail);
    BRG_TRY(allocate_floats(square, &made.poly), fail);
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
    memset(workspace, 0, sizeof *workspace);
}

static void multiply(float *x, int64_t numel, double factor)
{
    for (int64_t i = 0; i < numel; i++)
        x[i] = (float)(x[i] * factor);
}

/* Copies the upper triangle to the lower one, in tiles so that the strided side stays in cache. */
static void mirror_upper(float *a, int n)
{
    enum { TILE = 32 };
    for (int row0 = 0; row0 < n; row0 += TILE)
        for (int col0 = 0; col0 <= row0; col0 += TILE) {
            int row_end = row0 + TILE < n ? row0 + TILE : n;
            for (int row = row0; row < row_end; row++) {
                int col_end = col0 + TILE < row ? col0 + TILE : row;
                for (int col = col0; col < col_end; col++)
                    a[(size_t)row * n + col] = a[(size_t)col * n + row];
            }
        }
}

/* poly (upper triangle) = aI + bA + cA^2 */
static void polynomial(brg_ns_workspace *w, int side, const double *tuple)
{
    size_t numel = (size_t)side * side;
    float a = (float)tuple[0], b = (float)tuple[1], c = (float)tuple[2];
    if (c != 0.0f) {
        mirror_upper(w->gram, side);
        memcpy(w->poly, w->gram, numel * sizeof(float));
        brg_blas_gram(0, side, side, c, w->gram, b, w->poly);
    } else {
        for (int row = 0; row < side; row++)
            for (int col = row; col < side; col++)
                w->poly[(size_t)row * side + col] = b * w->gram[(size_t)row * side + col];
    }
    for (int i = 0; i < side; i++)
        w->poly[(size_t)i * side + i] += a;
}

/* A vector has one singular value, 1 after normalisation, where the slope of some sets is so steep
 * (26 in the first step of cans) that float32 would lose half of its digits. Here it costs nothing
 * to send that one number through the polynomials in float64. */
static double iterate_scalar(double x, const brg_ns_schedule *schedule)
{
    for (int i = 0; i < schedule->num_steps; i++) {
        const double *tuple = schedule->tuples[i];
        double a = x * x;
        x *= tuple[0] + a * (tuple[1] + a * tuple[2]);
    }
    return x;
}

float *brg_ns_orthogonalize_host(brg_ns_workspace *workspace, int64_t rows, int64_t cols,
                                 double sum_of_squares, double eps, const brg_ns_schedule *schedule)
{
    int tall = rows > cols;
    int side = (int)(tall ? cols : rows), length = (int)(tall ? rows : cols);
    double norm = sqrt(sum_of_squares);
    double divisor = norm < eps ? eps : norm; /* a NaN norm stays */
    float *from = workspace->x, *to = workspace->y;
    if (norm == 0)
        return from;
    if (side == 1) {
        multiply(from, rows * cols, iterate_scalar(norm / divisor, schedule) / norm);
        return from;
    }
    multiply(from, rows * cols, 1.0 / divisor);
    for (int i = 0; i < schedule->num_steps; i++) {
        brg_blas_gram(tall, side, length, 1.0f, from, 0.0f, workspace->gram);
        polynomial(workspace, side, schedule->tuples[i]);
        brg_blas_symm(tall, (int)rows, (int)cols, workspace->poly, from, to);
        float *swap = from;
        from = to;
        to = swap;
    }
    return from;
}
