/* SPDX-License-Identifier: Apache-2.0 */
/* The iteration on matrices that are worth BLAS calls, for one element type. Included by ns_host.c
 * with REAL (float or double) and NAME(x), which gives the functions their own names. */

/* Copies the upper triangle to the lower one, in tiles so that the strided side stays in cache. */
static void NAME(mirror_upper)(REAL *a, int n)
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
static void NAME(polynomial)(const brg_ns_matrices *w, int side, const double *tuple)
{
    size_t numel = (size_t)side * side;
    REAL *gram = w->gram, *poly = w->poly;
    REAL a = (REAL)tuple[0], b = (REAL)tuple[1], c = (REAL)tuple[2];
    if (c != 0) {
        NAME(mirror_upper)(gram, side);
        memcpy(poly, gram, numel * sizeof(REAL));
        NAME(brg_blas_gram)(0, side, side, c, gram, b, poly);
    } else {
        for (int row = 0; row < side; row++)
            for (int col = row; col < side; col++)
                poly[(size_t)row * side + col] = b * gram[(size_t)row * side + col];
    }
    for (int i = 0; i < side; i++)
        poly[(size_t)i * side + i] += a;
}

static REAL *NAME(iterate)(const brg_ns_matrices *w, int rows, int cols,
                           const brg_ns_schedule *schedule)
{
    int tall = rows > cols, side = tall ? cols : rows, length = tall ? rows : cols;
    REAL *from = w->x, *to = w->y;
    for (int i = 0; i < schedule->num_steps; i++) {
        NAME(brg_blas_gram)(tall, side, length, 1, from, 0, w->gram);
        NAME(polynomial)(w, side, schedule->tuples[i]);
        NAME(brg_blas_symm)(tall, rows, cols, w->poly, from, to);
        REAL *swap = from;
        from = to;
        to = swap;
    }
    return from;
}
