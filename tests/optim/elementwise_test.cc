// SPDX-License-Identifier: Apache-2.0
// AdamW, SGD and the norm against float64.
#include <gtest/gtest.h>

#include <cfloat>

#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"
#include "tests/optim/reference.h"
#include "tests/seed.h"

namespace
{

brg_update_target target_of(std::vector<float> &p, const std::vector<float> &g)
{
    return {p.data(), p.data(), g.data(), BRG_FLOAT32, BRG_FLOAT32, p.size(), nullptr};
}

/* Elements with their own magnitude over many decades, as gradients have. */
std::vector<float> spread(size_t numel, std::mt19937_64 &rng, double lowest, double highest)
{
    std::uniform_real_distribution<double> exponent(lowest, highest);
    std::vector<float> v = ref::gaussian(numel, rng);
    for (float &x : v)
        x = (float)(x * std::pow(10.0, exponent(rng)));
    return v;
}

struct AdamWCase {
    const char *name;
    ref::AdamW hyper;
    double grad_scale;
};

class AdamWSteps : public testing::TestWithParam<AdamWCase>
{
};

TEST_P(AdamWSteps, ThousandStepsWithinTwoUlp)
{
    const ref::AdamW h = GetParam().hyper;
    const double scale = GetParam().grad_scale;
    const brg_adamw_hyper hyper = {h.lr, h.b1, h.b2, h.eps, h.wd};
    auto rng = test_rng(2);
    const size_t numel = 1037; // more than one chunk, no multiple of a vector
    std::vector<float> p = spread(numel, rng, -3, 1), m(numel), v(numel);
    double worst = 0;
    for (int64_t t = 1; t <= 1000; t++) {
        std::vector<float> g = spread(numel, rng, -6, 2);
        std::vector<float> p0 = p, m0 = m, v0 = v;
        brg_update_target target = target_of(p, g);
        brg_adamw_host(&target, m.data(), v.data(), t, scale, &hyper);
        for (size_t i = 0; i < numel; i++) {
            double rp = p0[i], rm = m0[i], rv = v0[i];
            h.step(rp, rm, rv, scale * g[i], t);
            worst = std::max({worst, ref::ulps(p[i], rp, p0[i]), ref::ulps(m[i], rm, m0[i]),
                              ref::ulps(v[i], rv)});
        }
        ASSERT_LE(worst, 2.0) << "step " << t;
    }
    printf("worst distance: %.3f ulp\n", worst);
    EXPECT_GT(worst, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Options, AdamWSteps,
    testing::Values(AdamWCase{"defaults", {1e-3, 0.9, 0.999, 1e-8, 0}, 1},
                    AdamWCase{"decay", {3e-4, 0.9, 0.95, 1e-15, 0.1}, 1},
                    AdamWCase{"clipped", {0.1, 0.8, 0.99, 1e-6, 0.01}, 0.0123},
                    AdamWCase{"memoryless", {1e-2, 0, 0, 1e-8, 0}, 1},
                    AdamWCase{"long_memory", {1e-3, 0.999, 0.999999, 1e-12, 0.5}, 1}),
    [](const auto &info) { return std::string(info.param.name); });

/* A parameter that an update takes to zero but for some 1e-9 of its size: the reference's 1 - b^t,
 * with b = 1 - 1e-6, was off by more than that. */
TEST(AdamW, AParameterThatNearlyCancelsIsWithinTwoUlp)
{
    const ref::AdamW h = {1e-3, 0.999, 0.999999, 1e-12, 0};
    const brg_adamw_hyper hyper = {h.lr, h.b1, h.b2, h.eps, h.wd};
    auto rng = test_rng(5);
    for (int i = 0; i < 1000; i++) {
        int64_t t = 2 + i % 5;
        std::vector<float> state = ref::gaussian(3, rng);
        double update = 0, rm = 1e-3 * state[0], rv = 1e-6 * state[1] * state[1];
        std::vector<float> g = {state[2]}, m = {(float)rm}, v = {(float)rv};
        rm = m[0], rv = v[0];
        h.step(update, rm, rv, g[0], t);
        std::vector<float> p = {(float)-update}; // leaves half a unit of its last place at most
        double rp = p[0], rm2 = m[0], rv2 = v[0], p0 = p[0];
        brg_update_target target = target_of(p, g);
        brg_adamw_host(&target, m.data(), v.data(), t, 1.0, &hyper);
        h.step(rp, rm2, rv2, g[0], t);
        ASSERT_LE(ref::ulps(p[0], rp, p0), 2.0) << "step " << t << ", " << rp << " of " << p0;
    }
}

TEST(AdamW, StaysCloseToAFloat64RunOverManySteps)
{
    const ref::AdamW h = {1e-3, 0.9, 0.999, 1e-8, 0.01};
    const brg_adamw_hyper hyper = {h.lr, h.b1, h.b2, h.eps, h.wd};
    auto rng = test_rng(3);
    std::vector<float> p = ref::gaussian(300, rng), m(300), v(300);
    ref::Vec rp(p.begin(), p.end()), rm(300), rv(300);
    for (int64_t t = 1; t <= 300; t++) {
        std::vector<float> g = ref::gaussian(300, rng, 0.1);
        brg_update_target target = target_of(p, g);
        brg_adamw_host(&target, m.data(), v.data(), t, 1.0, &hyper);
        for (size_t i = 0; i < 300; i++)
            h.step(rp[i], rm[i], rv[i], g[i], t);
    }
    EXPECT_LT(ref::relative_error(p.data(), rp), 1e-6);
}

TEST(AdamW, ExtremeGradientsStayFinite)
{
    const brg_adamw_hyper hyper = {1e-3, 0.9, 0.999, 1e-8, 0};
    for (float size : {0.0f, 1e-45f, 1e-38f, 1e-20f, 1e10f, 1e19f, 1e20f, 1e30f, FLT_MAX}) {
        std::vector<float> p(9, 1.0f), m(9), v(9), g(9, size);
        brg_update_target target = target_of(p, g);
        for (int64_t t = 1; t <= 100; t++)
            brg_adamw_host(&target, m.data(), v.data(), t, 1.0, &hyper);
        for (size_t i = 0; i < 9; i++) {
            EXPECT_TRUE(std::isfinite(p[i]) && std::isfinite(m[i]) && std::isfinite(v[i])) << size;
            if (size == 0) {
                EXPECT_EQ(p[i], 1.0f);
            }
            if (size >= 1e10f && size < 1e19f) { // 100 steps of lr
                EXPECT_NEAR(p[i], 1.0f - 0.1f, 1e-5f);
            }
        }
    }
}

TEST(AdamW, NotANumberGoesThrough)
{
    const brg_adamw_hyper hyper = {1e-3, 0.9, 0.999, 1e-8, 0};
    std::vector<float> p(3, 1.0f), m(3), v(3), g = {1.0f, NAN, 1.0f};
    brg_update_target target = target_of(p, g);
    brg_adamw_host(&target, m.data(), v.data(), 1, 1.0, &hyper);
    EXPECT_TRUE(std::isnan(p[1]) && std::isnan(m[1]) && std::isnan(v[1]));
    EXPECT_TRUE(std::isfinite(p[0]) && std::isfinite(p[2]));
}

class Sixteen : public testing::TestWithParam<std::tuple<brg_dtype, brg_dtype>>
{
};

/* 16-bit gradients are read as what they are; the parameter is the rounded master, which keeps what
 * 16 bits cannot hold. */
TEST_P(Sixteen, MastersAndRoundedParameters)
{
    auto [param_dtype, grad_dtype] = GetParam();
    const ref::AdamW h = {1e-3, 0.9, 0.999, 1e-8, 0.1};
    const brg_adamw_hyper hyper = {h.lr, h.b1, h.b2, h.eps, h.wd};
    auto rng = test_rng(4);
    const size_t numel = 777;
    std::vector<float> master = ref::gaussian(numel, rng), m(numel), v(numel), rounded(numel);
    std::vector<float> param_memory(numel), grad_memory(numel), buffer(numel);
    for (int64_t t = 1; t <= 20; t++) {
        std::vector<float> g = ref::gaussian(numel, rng), master0 = master, m0 = m, v0 = v;
        brg_store_f32(grad_memory.data(), grad_dtype, 0, g.data(), numel);
        brg_update_target target = {master.data(), param_memory.data(), grad_memory.data(),
                                    param_dtype,   grad_dtype,          numel,
                                    nullptr};
        brg_adamw_host(&target, m.data(), v.data(), t, 1.0, &hyper);
        const float *read = brg_load_f32(buffer.data(), grad_memory.data(), grad_dtype, 0, numel);
        for (size_t i = 0; i < numel; i++) {
            double rp = master0[i], rm = m0[i], rv = v0[i];
            h.step(rp, rm, rv, read[i], t);
            ASSERT_LE(ref::ulps(master[i], rp, master0[i]), 2.0);
        }
        brg_store_f32(rounded.data(), param_dtype, 0, master.data(), numel);
        ASSERT_EQ(memcmp(rounded.data(), param_memory.data(), numel * brg_dtype_bytes(param_dtype)),
                  0);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, Sixteen,
                         testing::Combine(testing::Values(BRG_FLOAT32, BRG_FLOAT16, BRG_BFLOAT16),
                                          testing::Values(BRG_FLOAT32, BRG_FLOAT16, BRG_BFLOAT16)),
                         [](const auto &info) {
                             return std::string(brg_dtype_str(std::get<0>(info.param))) + "_" +
                                    brg_dtype_str(std::get<1>(info.param));
                         });

TEST(Sgd, WithAndWithoutMomentum)
{
    auto rng = test_rng(5);
    const size_t numel = 1030;
    for (double mu : {0.0, 0.9}) {
        const brg_sgd_hyper hyper = {0.1, mu, 0.01};
        std::vector<float> p = ref::gaussian(numel, rng), b(numel);
        for (int t = 0; t < 50; t++) {
            std::vector<float> g = ref::gaussian(numel, rng), p0 = p, b0 = b;
            brg_update_target target = target_of(p, g);
            brg_sgd_host(&target, mu > 0 ? b.data() : nullptr, 0.5, &hyper);
            for (size_t i = 0; i < numel; i++) {
                double buf = mu * b0[i] + (0.5 * g[i] + 0.01 * p0[i]);
                ASSERT_LE(ref::ulps(p[i], p0[i] - 0.1 * buf, p0[i]), 1.0);
                if (mu > 0) {
                    ASSERT_LE(ref::ulps(b[i], buf), 1.0);
                }
            }
        }
    }
}

TEST(Norm, EverySizeAndType)
{
    auto rng = test_rng(6);
    for (size_t numel : {0, 1, 3, 7, 8, 9, 511, 512, 513, 4097}) {
        for (brg_dtype dtype : {BRG_FLOAT32, BRG_FLOAT16, BRG_BFLOAT16}) {
            std::vector<float> v = ref::gaussian(numel, rng), memory(numel + 1), buffer(numel + 1);
            brg_store_f32(memory.data(), dtype, 0, v.data(), numel);
            const float *read = brg_load_f32(buffer.data(), memory.data(), dtype, 0, numel);
            long double sum = 0;
            for (size_t i = 0; i < numel; i++)
                sum += (long double)read[i] * read[i];
            double got = brg_sum_of_squares_host(memory.data(), dtype, numel);
            EXPECT_NEAR(got, (double)sum, 1e-13 * (double)sum) << numel;
            EXPECT_EQ(got, brg_sum_of_squares_host(memory.data(), dtype, numel));
        }
    }
}

TEST(Norm, NeitherOverflowsNorUnderflows)
{
    for (float size : {1e-45f, 1e-30f, 1e-20f, 1e20f, FLT_MAX}) {
        std::vector<float> v(1000, size);
        double expected = 1000.0 * size * (double)size;
        EXPECT_NEAR(brg_sum_of_squares_host(v.data(), BRG_FLOAT32, 1000), expected,
                    1e-12 * expected);
    }
    std::vector<float> bad(100, 1.0f);
    bad[77] = NAN;
    EXPECT_TRUE(std::isnan(brg_sum_of_squares_host(bad.data(), BRG_FLOAT32, 100)));
    bad[77] = INFINITY;
    EXPECT_TRUE(std::isinf(brg_sum_of_squares_host(bad.data(), BRG_FLOAT32, 100)));
}

} // namespace
