/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/shift.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* z with P(Z > z) = p for a normal Z; p < 0.5. */
static double normal_quantile(double p)
{
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        if (erfc(middle / M_SQRT2) / 2 > p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The number of arrangements with U = u are the coefficients of the Gaussian binomial
 * prod (1 - q^(nb+i)) / (1 - q^i), i = 1..na. Those of the lower tail, which is what is wanted,
 * come out of those with smaller u only. */
static double critical_exact(size_t na, size_t nb, double alpha)
{
    size_t n = na * nb + 1;
    double *ways = calloc(n, sizeof *ways), total = 0, tail = 0, u = -1;
    if (!ways)
        return -2;
    ways[0] = 1;
    for (size_t i = 1; i <= na; i++) {
        for (size_t k = n; k-- > nb + i;)
            ways[k] -= ways[k - nb - i];
        for (size_t k = i; k < n; k++)
            ways[k] += ways[k - i];
    }
    for (size_t k = 0; k < n; k++)
        total += ways[k];
    for (size_t k = 0; k < n && (tail += ways[k]) <= total * alpha / 2; k++)
        u = (double)k;
    free(ways);
    return u;
}

double shift_critical(size_t na, size_t nb, double alpha)
{
    if (na <= SHIFT_EXACT_MAX && nb <= SHIFT_EXACT_MAX)
        return critical_exact(na, nb, alpha);
    double pairs = (double)na * (double)nb;
    double deviation = sqrt(pairs * (double)(na + nb + 1) / 12);
    return fmax(floor(pairs / 2 - normal_quantile(alpha / 2) * deviation - 0.5), -1);
}

/* Doubles in the order of their values, as integers without gaps. */
static uint64_t rank_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static double of_rank(uint64_t rank)
{
    uint64_t bits = rank >> 63 ? rank & ~(UINT64_C(1) << 63) : ~rank;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* How many of the differences b - a are at most d; a and b sorted. */
static double count_at_most(const double *a, size_t na, const double *b, size_t nb, double d)
{
    double count = 0;
    size_t k = 0;
    for (size_t i = 0; i < na; i++) {
        while (k < nb && b[k] - a[i] <= d)
            k++;
        count += (double)k;
    }
    return count;
}

/* The k-th smallest difference, k from 1: found by bisection over all doubles, since there can be
 * more differences than fit into memory. */
static double difference_at(const double *a, size_t na, const double *b, size_t nb, double k)
{
    uint64_t low = rank_of(b[0] - a[na - 1]), high = rank_of(b[nb - 1] - a[0]);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (count_at_most(a, na, b, nb, of_rank(middle)) >= k)
            high = middle;
        else
            low = middle + 1;
    }
    return of_rank(low) + 0.0; /* no negative zero */
}

bool shift_estimate(double *a, size_t na, double *b, size_t nb, double alpha, shift_result *result)
{
    double pairs = (double)na * (double)nb, u = shift_critical(na, nb, alpha);
    *result = (shift_result){.bounded = u >= 0};
    if (u < -1)
        return false;
    qsort(a, na, sizeof *a, double_compare);
    qsort(b, nb, sizeof *b, double_compare);
    result->estimate = (difference_at(a, na, b, nb, floor((pairs + 1) / 2)) +
                        difference_at(a, na, b, nb, floor((pairs + 2) / 2))) /
                       2;
    if (result->bounded) {
        result->low = difference_at(a, na, b, nb, u + 1);
        result->high = difference_at(a, na, b, nb, pairs - u);
    }
    return true;
}
