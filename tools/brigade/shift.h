/* SPDX-License-Identifier: Apache-2.0 */
/* By how much two samples differ, without assuming a distribution: step times have long tails, and
 * a mean of theirs says little.
 *
 * The estimate is that of Hodges and Lehmann: the median of all differences b - a. The confidence
 * interval is the one that belongs to the Mann-Whitney test: between the c-th smallest and the c-th
 * largest of the differences, with the c that the distribution of the rank sum gives, exact for
 * samples of up to SHIFT_EXACT_MAX, else by the normal approximation. Zero lies outside of it
 * exactly when the test finds a difference. With ties it is wider than it need be, never narrower.
 * Small samples (4 and 4 for 95%, 3 and 3 not) have no finite interval.
 */
#ifndef BRIGADE_TOOLS_SHIFT_H
#define BRIGADE_TOOLS_SHIFT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIFT_EXACT_MAX = 40 };

typedef struct shift_result {
    double estimate;
    bool bounded;     /* false: too few values for this confidence */
    double low, high; /* the interval, when bounded */
} shift_result;

/* Values must be finite, na and nb positive; sorts both. `alpha` is 1 - confidence. False: no
 * memory. */
bool shift_estimate(double *a, size_t na, double *b, size_t nb, double alpha, shift_result *result);

/* The largest u for which P(U <= u) <= alpha/2, or -1: U is the Mann-Whitney statistic of samples
 * of one distribution. -2: no memory. */
double shift_critical(size_t na, size_t nb, double alpha);

#ifdef __cplusplus
}
#endif
#endif
