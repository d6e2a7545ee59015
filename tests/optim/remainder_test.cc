// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include "sched/half.h"
#include "sched/optim/remainder.h"
#include "tests/seed.h"

namespace
{

struct halves {
    uint16_t weight, remainder;
};

halves split(uint32_t master)
{
    halves out;
    brg_remainder_split(master, &out.weight, &out.remainder);
    return out;
}

// Nearest bfloat16, ties away from zero; for finite masters below the largest bfloat16.
float nearest(float master)
{
    float below = brg_float_of_bits(brg_bits_of_float(master) & 0xffff0000u);
    float above = brg_float_of_bits((brg_bits_of_float(master) & 0xffff0000u) + 0x10000u);
    double to_below = std::fabs((double)master - below),
           to_above = std::fabs((double)above - master);
    return to_above <= to_below ? above : below;
}

void check(uint32_t master)
{
    halves out = split(master);
    uint32_t back = brg_remainder_join(out.weight, out.remainder);
    if ((master & 0x7fffffffu) > 0x7f800000u) {
        ASSERT_EQ(back, (master & 0x80000000u) | 0x7fc00000u) << std::hex << master;
        ASSERT_TRUE(std::isnan(brg_float_from_bf16(out.weight))) << std::hex << master;
        return;
    }
    ASSERT_EQ(back, master) << std::hex << master;
    float value = brg_float_of_bits(master), weight = brg_float_from_bf16(out.weight);
    ASSERT_EQ(std::signbit(weight), std::signbit(value)) << std::hex << master;
    if (std::fabs(value) < brg_float_from_bf16(0x7f7f)) {
        ASSERT_EQ(weight, nearest(value)) << std::hex << master;
    }
    if ((master & 0xffffu) != 0x8000u) {
        ASSERT_EQ(out.weight, brg_bf16_from_float(value)) << std::hex << master;
    }
}

TEST(Remainder, EveryBfloat16WithBoundaryRemainders)
{
    const uint16_t lows[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    for (uint32_t high = 0; high <= 0xffffu; high++)
        for (uint16_t low : lows)
            check(high << 16 | low);
}

TEST(Remainder, EveryRemainder)
{
    for (uint32_t high :
         {0u, 0x8000u, 0x007fu, 0x3f80u, 0xbf7fu, 0x7f7fu, 0xff7fu, 0x7f80u, 0x7fffu})
        for (uint32_t low = 0; low <= 0xffffu; low++)
            check(high << 16 | low);
}

TEST(Remainder, RandomMasters)
{
    auto rng = test_rng(1);
    for (int i = 0; i < 1000000 * BRIGADE_TEST_STRESS; i++)
        check((uint32_t)rng());
}

TEST(Remainder, MasterBeyondTheLargestWeightComesBack)
{
    uint32_t largest = 0x7f7fffffu; // FLT_MAX
    EXPECT_EQ(split(largest).weight, 0x7f80u);
    EXPECT_EQ(brg_remainder_join(0x7f80u, 0xffffu), largest);
}

// A weight that a caller loaded is its own master while the remainder is zero.
TEST(Remainder, ZeroRemainderIsTheWeight)
{
    for (uint32_t weight = 0; weight <= 0xffffu; weight++)
        ASSERT_EQ(brg_remainder_join((uint16_t)weight, 0), weight << 16);
}

} // namespace
