// SPDX-License-Identifier: Apache-2.0
/* The difference of two samples, against a reference that enumerates everything. */
#include "tools/brigade/shift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace
{
using Values = std::vector<double>;

/* P(U <= u) by going through every way to choose which ranks are those of the first sample. */
double reference_critical(int na, int nb, double alpha)
{
    std::vector<double> ways(na * nb + 1);
    double total = 0;
    for (unsigned mask = 0; mask < 1u << (na + nb); mask++) {
        if (__builtin_popcount(mask) != na)
            continue;
        int u = 0, second = 0; /* pairs in which the second sample's value is smaller */
        for (int i = 0; i < na + nb; i++) {
            if (mask >> i & 1)
                u += second;
            else
                second++;
        }
        ways[u]++;
        total++;
    }
    double tail = 0, critical = -1;
    for (size_t u = 0; u < ways.size(); u++) {
        tail += ways[u];
        if (tail / total <= alpha / 2)
            critical = (double)u;
    }
    return critical;
}

Values differences(const Values &a, const Values &b)
{
    Values all;
    for (double x : a)
        for (double y : b)
            all.push_back(y - x);
    std::sort(all.begin(), all.end());
    return all;
}

shift_result estimate(Values a, Values b, double alpha = 0.05)
{
    shift_result result;
    EXPECT_TRUE(shift_estimate(a.data(), a.size(), b.data(), b.size(), alpha, &result));
    return result;
}
} // namespace

TEST(Shift, CriticalValuesAreThoseOfEveryArrangement)
{
    for (int na = 1; na <= 8; na++)
        for (int nb = 1; nb <= 8; nb++)
            for (double alpha : {0.2, 0.05, 0.01})
                EXPECT_EQ(shift_critical(na, nb, alpha), reference_critical(na, nb, alpha))
                    << na << " " << nb << " " << alpha;
}

TEST(Shift, CriticalValuesOfTheTables)
{
    /* two-sided 5%, as printed in textbooks */
    EXPECT_EQ(shift_critical(3, 3, 0.05), -1);
    EXPECT_EQ(shift_critical(4, 4, 0.05), 0);
    EXPECT_EQ(shift_critical(10, 10, 0.05), 23);
    EXPECT_EQ(shift_critical(20, 20, 0.05), 127);
    EXPECT_EQ(shift_critical(5, 20, 0.05), 20);
}

TEST(Shift, NormalApproximationGoesOnWhereTheExactOneEnds)
{
    double exact = shift_critical(SHIFT_EXACT_MAX, SHIFT_EXACT_MAX, 0.05);
    double next = shift_critical(SHIFT_EXACT_MAX + 1, SHIFT_EXACT_MAX, 0.05);
    EXPECT_GT(next, exact);
    EXPECT_NEAR(next - exact, SHIFT_EXACT_MAX / 2.0 - 5, 5);
}

TEST(Shift, EstimateAndIntervalAreThoseOfTheSortedDifferences)
{
    std::mt19937_64 random(test_seed());
    for (int round = 0; round < 300; round++) {
        Values a(1 + random() % 30), b(1 + random() % 30);
        int spread = round % 3 ? 1000000 : 5; /* few values: many ties */
        for (double &x : a)
            x = (double)(int)(random() % spread) - spread / 2;
        for (double &x : b)
            x = (double)(int)(random() % spread) * (round % 2 ? 1 : 0.37);
        Values all = differences(a, b);
        size_t n = all.size();
        shift_result result = estimate(a, b);
        EXPECT_EQ(result.estimate, (all[(n - 1) / 2] + all[n / 2]) / 2);
        double u = shift_critical(a.size(), b.size(), 0.05);
        ASSERT_EQ(result.bounded, u >= 0);
        if (result.bounded) {
            EXPECT_EQ(result.low, all[(size_t)u]);
            EXPECT_EQ(result.high, all[n - 1 - (size_t)u]);
        }
    }
}

TEST(Shift, SwappingTheSamplesChangesTheSign)
{
    Values a = {5, 1, 9, 4, 4, 7, 12}, b = {8, 3, 3, 14, 11, 6};
    shift_result ab = estimate(a, b), ba = estimate(b, a);
    EXPECT_EQ(ab.estimate, -ba.estimate);
    EXPECT_EQ(ab.low, -ba.high);
    EXPECT_EQ(ab.high, -ba.low);
}

TEST(Shift, TheIntervalCoversTheTruthAsOftenAsItSays)
{
    std::mt19937_64 random(test_seed());
    std::lognormal_distribution<double> steps(2, 0.5); /* a long tail, as step times have */
    for (size_t n : {8, 60}) {
        int covered = 0, rounds = 1000;
        for (int round = 0; round < rounds; round++) {
            Values a(n), b(n + 3);
            for (double &x : a)
                x = steps(random);
            for (double &x : b)
                x = steps(random) + 1.5;
            shift_result result = estimate(a, b);
            covered += result.low <= 1.5 && 1.5 <= result.high;
        }
        EXPECT_GE(covered, 915) << n; /* 950 expected, deviation 7 */
        EXPECT_LE(covered, 990) << n;
    }
}

TEST(Shift, EqualValuesDifferByNothing)
{
    shift_result result = estimate(Values(100, 7.0), Values(100, 7.0));
    EXPECT_EQ(result.estimate, 0);
    EXPECT_FALSE(std::signbit(result.estimate));
    EXPECT_TRUE(result.bounded);
    EXPECT_EQ(result.low, 0);
    EXPECT_EQ(result.high, 0);
}
