// SPDX-License-Identifier: Apache-2.0
// Symmetric products on the GPU against float64 on the host.
#include "sched/optim/cuda_syrk.h"
#include "tests/optim/gpu.h"
#include "tests/seed.h"

namespace
{

struct product {
    int dtype; // a brg_dtype
    int batch, n, k;
    float alpha, beta, diag;
    bool in_place, same_factors;
    int gap; // between batch members, in elements
};

std::ostream &operator<<(std::ostream &out, const product &p)
{
    return out << (p.dtype == BRG_FLOAT16 ? "float16 " : "bfloat16 ") << p.batch << " x n " << p.n
               << " k " << p.k << " alpha " << p.alpha << " beta " << p.beta << " diag " << p.diag
               << (p.in_place ? " in place" : "") << (p.same_factors ? " A A^T" : " A B^T")
               << " gap " << p.gap;
}

// Members of `values` elements each, with p.gap poisoned ones after each.
size_t add_random(arena &memory, const product &p, size_t values, std::mt19937_64 &rng, bool output)
{
    std::normal_distribution<double> normal;
    size_t stride = values + (size_t)p.gap;
    size_t at = memory.add(stride * (size_t)p.batch * 2, 0, output);
    for (size_t member = 0; member < (size_t)p.batch; member++)
        for (size_t i = 0; i < values; i++)
            set_value(memory.image(at), p.dtype, member * stride + i, normal(rng));
    return at;
}

void make_symmetric(uint8_t *values, const product &p)
{
    size_t n = (size_t)p.n, stride = n * n + (size_t)p.gap;
    for (size_t member = 0; member < (size_t)p.batch; member++)
        for (size_t row = 0; row < n; row++)
            for (size_t col = 0; col < row; col++)
                std::memcpy(values + 2 * (member * stride + col * n + row),
                            values + 2 * (member * stride + row * n + col), 2);
}

std::vector<double> decoded(const uint8_t *values, const product &p, size_t count)
{
    std::vector<double> out(count * (size_t)p.batch);
    for (size_t i = 0; i < out.size(); i++)
        out[i] = get_value(values, p.dtype, i / count * (count + (size_t)p.gap) + i % count);
    return out;
}

struct GpuSymmetricProduct : gpu_test {
    int launch(const product &p, const void *a, const void *b, const void *c, void *d)
    {
        int64_t factor = (int64_t)p.n * p.k + p.gap, square = (int64_t)p.n * p.n + p.gap;
        return brg_symmetric_product(p.dtype == BRG_BFLOAT16, p.batch, p.n, p.k, p.alpha, a, factor,
                                     b, factor, p.beta, c, square, p.diag, d, square, stream);
    }

    bool supported()
    {
        device_memory memory(4096);
        return launch({BRG_FLOAT16, 1, 8, 8, 1, 0, 0, false, true, 0}, memory.data(), memory.data(),
                      nullptr, memory.data() + 2048) != cudaErrorNotSupported;
    }

    void check(const product &p, std::mt19937_64 &rng)
    {
        size_t n = (size_t)p.n, k = (size_t)p.k, stride = n * n + (size_t)p.gap;
        arena memory;
        size_t a_at = add_random(memory, p, n * k, rng, false);
        size_t b_at = p.same_factors ? a_at : add_random(memory, p, n * k, rng, false);
        size_t c_at = add_random(memory, p, n * n, rng, p.in_place);
        size_t d_at = p.in_place ? c_at : memory.add(stride * (size_t)p.batch * 2, 0, true);
        make_symmetric(memory.image(c_at), p);
        memory.allocate();
        memory.upload();
        CUDA_CHECK(launch(p, memory.device(a_at), memory.device(b_at),
                          p.beta != 0 ? memory.device(c_at) : nullptr, memory.device(d_at)));
        wait();
        memory.download();
        memory.check_others();

        std::vector<double> a = decoded(memory.image(a_at), p, n * k);
        std::vector<double> b = decoded(memory.image(b_at), p, n * k);
        std::vector<double> c = decoded(memory.image(c_at), p, n * n);
        const uint8_t *d = memory.result(d_at);
        // Half a unit in the last place, and float32 sums of k terms.
        double relative = p.dtype == BRG_FLOAT16 ? 0x1p-11 : 0x1p-8;
        double absolute = 1e-5 + std::fabs(p.alpha) * p.k * 3e-6;
        for (size_t member = 0; member < (size_t)p.batch; member++) {
            for (size_t row = 0; row < n; row++)
                for (size_t col = 0; col <= row; col++) {
                    double sum = 0;
                    for (size_t i = 0; i < k; i++)
                        sum += a[(member * n + row) * k + i] * b[(member * n + col) * k + i];
                    double want = p.alpha * sum + (row == col ? p.diag : 0);
                    if (p.beta != 0)
                        want += p.beta * c[(member * n + row) * n + col];
                    size_t at = member * stride + row * n + col;
                    ASSERT_NEAR(get_value(d, p.dtype, at), want,
                                std::fabs(want) * relative * 1.01 + absolute)
                        << p << " member " << member << " row " << row << " col " << col;
                    size_t mirrored = member * stride + col * n + row;
                    ASSERT_EQ(std::memcmp(d + 2 * at, d + 2 * mirrored, 2), 0)
                        << p << " not symmetric: member " << member << " row " << row << " col "
                        << col;
                }
            for (size_t i = 2 * (member * stride + n * n); i < 2 * (member + 1) * stride; i++)
                ASSERT_EQ(d[i], arena::POISON) << p << " wrote after member " << member;
        }
    }
};

TEST_F(GpuSymmetricProduct, AgreesWithFloat64)
{
    if (!supported())
        GTEST_SKIP() << "not a device of compute capability 9.0";
    std::mt19937_64 rng = test_rng(1);
    std::vector<product> products = {
        // One tile, whole tiles, tiles cut by the edge.
        {BRG_FLOAT16, 1, 8, 8, 1, 0, 0, false, true, 0},
        {BRG_FLOAT16, 1, 256, 128, 0.1f, 0, 1, false, true, 0},
        {BRG_BFLOAT16, 2, 264, 72, 0.1f, -1.5f, 0, false, false, 8},
        {BRG_FLOAT16, 3, 384, 200, 0.1f, 2, 0.5f, true, true, 64},
        // More tiles than a wave: pairs of half tiles; a narrow tile per block.
        {BRG_FLOAT16, 30, 640, 16, 0.25f, 1, 0, true, false, 0},
        {BRG_BFLOAT16, 1, 2048, 24, 0.25f, 1, 2, true, true, 0},
        {BRG_FLOAT16, 8, 1000, 8, 0.25f, 0, -1, false, true, 16},
    };
    for (int i = 0; i < 12 * BRIGADE_TEST_STRESS; i++) {
        product p = {};
        p.dtype = rng() % 2 ? BRG_FLOAT16 : BRG_BFLOAT16;
        p.batch = (int)(rng() % 5 + 1);
        p.n = (int)(rng() % 50 + 1) * 8;
        p.k = (int)(rng() % 40 + 1) * 8;
        p.alpha = (float)(int)(rng() % 9 - 4) / 16;
        p.beta = (float)(int)(rng() % 5 - 2);
        p.diag = (float)(int)(rng() % 5 - 2) / 2;
        p.in_place = p.beta != 0 && rng() % 2;
        p.same_factors = rng() % 2;
        p.gap = p.batch > 1 ? (int)(rng() % 3) * 8 : 0;
        products.push_back(p);
    }
    for (const product &p : products) {
        check(p, rng);
        if (HasFatalFailure())
            return;
    }
}

TEST_F(GpuSymmetricProduct, RefusesWhatItCannotDo)
{
    if (!supported())
        GTEST_SKIP() << "not a device of compute capability 9.0";
    device_memory memory(1 << 16);
    char *a = memory.data(), *d = a + (1 << 15);
    product good = {BRG_FLOAT16, 2, 64, 32, 1, 1, 0, true, true, 0};
    product odd_n = good, odd_k = good, odd_stride = good;
    odd_n.n = 60;
    odd_k.k = 28;
    odd_stride.gap = 4;
    EXPECT_EQ(launch(odd_n, a, a, d, d), cudaErrorNotSupported);
    EXPECT_EQ(launch(odd_k, a, a, d, d), cudaErrorNotSupported);
    EXPECT_EQ(launch(odd_stride, a, a, d, d), cudaErrorNotSupported);
    EXPECT_EQ(launch(good, a + 2, a, d, d), cudaErrorNotSupported);
    EXPECT_EQ(launch(good, a, a + 8, d, d), cudaErrorNotSupported);
    EXPECT_EQ(launch(good, a, a, nullptr, d + 2), cudaErrorNotSupported);
    CUDA_CHECK(cudaMemset(a, 0, 1 << 16));
    EXPECT_EQ(launch(good, a, a, d, d), cudaSuccess);
    wait();
}

} // namespace
