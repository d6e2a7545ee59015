/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz iteration towards the orthogonal polar factor of a matrix. */
#ifndef BRIGADE_SCHED_OPTIM_NS_H
#define BRIGADE_SCHED_OPTIM_NS_H

#include <stdbool.h>
#include <stdint.h>

#include "brigade/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BRG_NS_MAX_STEPS 64

/* Matrices up to this size are iterated in float64. The norm of a small matrix is made of few
 * singular values, so after normalisation they lie near 1, where the polynomials are steep (cans
 * has slope 26); and BLAS calls would cost more than such a matrix's arithmetic. */
enum { BRG_NS_SMALL_ELEMS = 2048, BRG_NS_SMALL_SIDE = 45 /* of the largest square one */ };

/* The polynomial of every step, iteration mode already applied: X <- aX + (bA + cA^2)X, A = XX^T.
 */
typedef struct brg_ns_schedule {
    int num_steps;
    double tuples[BRG_NS_MAX_STEPS][3];
    bool steep; /* the first step multiplies differences by more than BRG_NS_STEEP somewhere in [0,
                   1] */
} brg_ns_schedule;

/* Between polar_express (14.5), which float32 products bear, and cans (26), which they do not. */
#define BRG_NS_STEEP 20.0

/* num_steps 0: the set's own number. `custom` is read for BRG_NS_CUSTOM only.
 * BRG_ERR_INVALID_ARGUMENT: unknown set, steps out of range, cubic5 with other than 5 steps, a
 * custom list that is missing, too long or not finite. */
brg_status brg_ns_schedule_make(brg_ns_coefficients set, int num_steps, const double (*custom)[3],
                                int num_custom, brg_ns_schedule *schedule);

/* What one iteration works on; all of one element type, float or double. */
typedef struct brg_ns_matrices {
    void *x, *y;       /* rows x cols; the iteration moves between them */
    void *gram, *poly; /* the smaller side squared */
} brg_ns_matrices;

/* Memory for matrices up to max_elems elements whose smaller side is at most max_side. */
typedef struct brg_ns_workspace {
    float *x, *y;         /* max_elems each */
    float *gram, *poly;   /* max_side^2 each */
    brg_ns_matrices wide; /* float64; in place of y, gram and poly for steep schedules */
} brg_ns_workspace;

/* wide: for schedules that are steep, else for those that are not. */
brg_status brg_ns_workspace_create(int64_t max_elems, int64_t max_side, bool wide,
                                   brg_ns_workspace *workspace);
void brg_ns_workspace_destroy(brg_ns_workspace *workspace);

/* Divides the row-major rows x cols matrix in workspace->x by max(norm, eps), norm being the root
 * of its sum of squares, and iterates. Division is done in float64: a norm of 1e-20 or 1e20 neither
 * under- nor overflows. A zero matrix stays zero, with eps = 0 too. Returns where the result is: x
 * or y. */
float *brg_ns_orthogonalize_host(brg_ns_workspace *workspace, int64_t rows, int64_t cols,
                                 double sum_of_squares, double eps,
                                 const brg_ns_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
