// SPDX-License-Identifier: Apache-2.0
#include "sched/optim/convert.h"

#include <gtest/gtest.h>

#include "tests/optim/reference.h"
#include "tests/seed.h"

namespace
{

double value16(brg_dtype dtype, uint16_t bits)
{
    return dtype == BRG_FLOAT16 ? ref::half_value(bits) : ref::bfloat_value(bits);
}

uint16_t store16(brg_dtype dtype, float value)
{
    uint16_t bits = 0;
    brg_store_f32(&bits, dtype, 0, &value, 1);
    return bits;
}

/* Nearest by search: all finite magnitudes are ordered like their bits. */
uint16_t nearest16(brg_dtype dtype, double value)
{
    uint16_t infinity = dtype == BRG_FLOAT16 ? 0x7c00 : 0x7f80;
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    double magnitude = std::fabs(value);
    uint16_t low = 0, high = infinity; // low <= magnitude, high above it
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        (value16(dtype, middle) <= magnitude ? low : high) = middle;
    }
    double below = value16(dtype, low);
    // Where infinity stands for the next binade's first value.
    double above =
        high == infinity ? std::ldexp(1.0, dtype == BRG_FLOAT16 ? 16 : 128) : value16(dtype, high);
    double middle = below + (above - below) / 2;
    bool up = magnitude > middle || (magnitude == middle && (low & 1));
    return (uint16_t)(sign | (up ? high : low));
}

class Convert : public testing::TestWithParam<brg_dtype>
{
};

TEST_P(Convert, LoadsEveryValueExactly)
{
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); i++)
        all[i] = (uint16_t)i;
    std::vector<float> out(all.size());
    ASSERT_EQ(brg_load_f32(out.data(), all.data(), GetParam(), 0, all.size()), out.data());
    for (size_t i = 0; i < all.size(); i++) {
        double expected = value16(GetParam(), (uint16_t)i);
        if (std::isnan(expected))
            ASSERT_TRUE(std::isnan(out[i])) << i;
        else
            ASSERT_EQ(out[i], expected) << i;
        ASSERT_EQ(std::signbit(out[i]), i >= 0x8000) << i;
    }
}

TEST_P(Convert, StoresEveryValueBack)
{
    for (uint32_t i = 0; i < 65536; i++) {
        double value = value16(GetParam(), (uint16_t)i);
        uint16_t got = store16(GetParam(), (float)value);
        if (std::isnan(value))
            ASSERT_TRUE(std::isnan(value16(GetParam(), got))) << i;
        else
            ASSERT_EQ(got, i);
    }
}

TEST_P(Convert, RoundsToNearestEven)
{
    auto rng = test_rng(1);
    std::vector<float> values;
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)rng();
        float value;
        memcpy(&value, &bits, sizeof value);
        values.push_back(std::isnan(value) ? 0.0f : value);
        // Between two neighbours: below, on and above the middle.
        uint16_t low = (uint16_t)(rng() % (GetParam() == BRG_FLOAT16 ? 0x7bff : 0x7f7f));
        double a = value16(GetParam(), low), b = value16(GetParam(), (uint16_t)(low + 1));
        float middle = (float)(a + (b - a) / 2);
        for (float x : {middle, std::nextafterf(middle, 0), std::nextafterf(middle, INFINITY)})
            values.push_back(rng() & 1 ? x : -x);
    }
    for (float x :
         {65504.0f, 65519.99f, 65520.0f, 65536.0f, 1e30f, 3.3e38f, 3.4028235e38f, INFINITY,
          0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f, 0x1p-149f, 0.0f, -0.0f})
        values.push_back(x);
    for (float x : values)
        ASSERT_EQ(store16(GetParam(), x), nearest16(GetParam(), x)) << x;
}

TEST_P(Convert, NotANumberStaysOne)
{
    for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu, 0xff800001u}) {
        float value;
        memcpy(&value, &bits, sizeof value);
        EXPECT_TRUE(std::isnan(value16(GetParam(), store16(GetParam(), value)))) << bits;
    }
}

TEST_P(Convert, StartCountsElements)
{
    uint16_t memory[4] = {1, 2, 3, 4};
    float values[2] = {1.0f, -2.0f};
    brg_store_f32(memory, GetParam(), 1, values, 2);
    EXPECT_EQ(memory[0], 1);
    EXPECT_EQ(memory[3], 4);
    float out[2];
    brg_load_f32(out, memory, GetParam(), 1, 2);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], -2.0f);
}

INSTANTIATE_TEST_SUITE_P(Types, Convert, testing::Values(BRG_FLOAT16, BRG_BFLOAT16),
                         [](const auto &info) { return std::string(brg_dtype_str(info.param)); });

TEST(ConvertFloat32, IsNotCopiedOnLoad)
{
    float values[3] = {1, 2, 3}, buffer[3];
    EXPECT_EQ(brg_load_f32(buffer, values, BRG_FLOAT32, 1, 2), values + 1);
    brg_store_f32(values, BRG_FLOAT32, 1, values, 2);
    EXPECT_EQ(values[1], 1);
    EXPECT_EQ(values[2], 2);
}

TEST(ConvertTypes, TrainableOnes)
{
    for (int dtype = 0; dtype < 16; dtype++)
        EXPECT_EQ(brg_dtype_is_trainable((brg_dtype)dtype),
                  dtype == BRG_FLOAT32 || dtype == BRG_FLOAT16 || dtype == BRG_BFLOAT16);
}

} // namespace
