// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/intervals.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/seed.h"

namespace
{

using Units = std::vector<char>;
const int kLength = 200;

struct Set {
    ~Set()
    {
        brg_interval_set_free(&set);
    }
    brg_interval_set set{};
};

Units units_of(const brg_interval_set &set)
{
    Units units(kLength);
    int64_t before = 0;
    for (size_t i = 0; i < set.count; i++) {
        EXPECT_LT(set.at[i].t0, set.at[i].t1);
        EXPECT_EQ(set.at[i].before, before);
        if (i) {
            EXPECT_GT(set.at[i].t0, set.at[i - 1].t1);
        }
        for (int64_t t = set.at[i].t0; t < set.at[i].t1; t++)
            units.at((size_t)(t + kLength / 2)) = 1;
        before += set.at[i].t1 - set.at[i].t0;
    }
    return units;
}

TEST(Intervals, RandomSetsAgainstCounting)
{
    auto rng = test_rng(5);
    for (int round = 0; round < 500 * BRIGADE_TEST_STRESS; round++) {
        Set set[2];
        Units units[2] = {Units(kLength), Units(kLength)};
        for (int which = 0; which < 2; which++) {
            for (int n = (int)(rng() % 15); n > 0; n--) {
                int t0 = (int)(rng() % kLength), t1 = (int)(rng() % kLength); /* also backwards */
                if (rng() % 2)
                    t1 = std::min(kLength, t0 + (int)(rng() % 10));
                ASSERT_EQ(brg_interval_set_add(&set[which].set, t0 - kLength / 2, t1 - kLength / 2),
                          BRG_OK);
                for (int t = t0; t < t1; t++)
                    units[which][(size_t)t] = 1;
            }
            brg_interval_set_normalize(&set[which].set);
            ASSERT_EQ(units_of(set[which].set), units[which]);
        }
        Set both, first;
        ASSERT_EQ(brg_interval_set_intersect(&set[0].set, &set[1].set, &both.set), BRG_OK);
        ASSERT_EQ(brg_interval_set_subtract(&set[0].set, &set[1].set, &first.set), BRG_OK);
        Units both_units(kLength), first_units(kLength);
        for (size_t t = 0; t < kLength; t++) {
            both_units[t] = units[0][t] && units[1][t];
            first_units[t] = units[0][t] && !units[1][t];
        }
        ASSERT_EQ(units_of(both.set), both_units);
        ASSERT_EQ(units_of(first.set), first_units);
        for (int look = 0; look < 10; look++) {
            int t0 = (int)(rng() % kLength), t1 = (int)(rng() % kLength), expected = 0;
            for (int t = t0; t < t1; t++)
                expected += units[0][(size_t)t];
            ASSERT_EQ(brg_interval_set_within(&set[0].set, t0 - kLength / 2, t1 - kLength / 2),
                      expected);
        }
    }
}

} // namespace
