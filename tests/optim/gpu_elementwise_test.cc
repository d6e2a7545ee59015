// SPDX-License-Identifier: Apache-2.0
// Sums, decisions, conversions and small writes on the GPU against float64 on the host; the
// updates are in gpu_update_test.cc.
#include <limits>

#include "tests/optim/gpu.h"
#include "tests/seed.h"

namespace
{

const int all_dtypes[] = {BRG_FLOAT64, BRG_FLOAT32, BRG_FLOAT16, BRG_BFLOAT16};
const double infinity = std::numeric_limits<double>::infinity();
const double nan_value = std::numeric_limits<double>::quiet_NaN();

std::vector<size_t> sizes(std::mt19937_64 &rng)
{
    std::vector<size_t> out = {1, 2, 3, 7, 8, 9, 31, 33, 255, 2047, 4095, 4096, 4097, 1100003};
    for (int i = 0; i < 20 * BRIGADE_TEST_STRESS; i++)
        out.push_back(rng() % 4097 + 1);
    return out;
}

// Magnitudes over many binades, both signs.
double random_value(std::mt19937_64 &rng)
{
    std::normal_distribution<double> normal;
    return normal(rng) * std::exp2((double)(rng() % 16) - 8);
}

using GpuSumSquares = gpu_test;

struct sums {
    std::vector<double> partials;
    double total;
    bool operator==(const sums &other) const
    {
        return std::memcmp(&total, &other.total, sizeof total) == 0 &&
               std::memcmp(partials.data(), other.partials.data(), BRG_NORM_PARTIALS * 8) == 0;
    }
};

// Also checks check_values() against `first`.
sums run_sums(const brg_kernels *kernels, cudaStream_t stream, const std::vector<double> &values,
              int dtype, size_t misalignment, int64_t first = -1)
{
    arena memory;
    size_t bytes = brg_dtype_bytes((brg_dtype)dtype), n = values.size();
    size_t array = memory.add(n * bytes, misalignment * bytes);
    size_t partials = memory.add(BRG_NORM_PARTIALS * 8, 0, true);
    size_t checked = memory.add(2 * BRG_NORM_PARTIALS * 8, 0, true);
    for (size_t i = 0; i < n; i++)
        set_value(memory.image(array), dtype, i, values[i]);
    memory.allocate();
    memory.upload();
    pinned<int64_t> found;
    pinned<double> checked_sum;
    CUDA_CHECK(kernels->sum_squares(memory.device(array), dtype, (int64_t)n,
                                    memory.device<double>(partials), stream));
    CUDA_CHECK(kernels->check_values(memory.device(array), dtype, (int64_t)n, found.data(),
                                     checked_sum.data(), memory.device<double>(checked), stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    memory.download();
    memory.check_others();
    sums out = {std::vector<double>(BRG_NORM_PARTIALS), 0};
    std::memcpy(out.partials.data(), memory.result(partials), BRG_NORM_PARTIALS * 8);
    for (double partial : out.partials)
        out.total += partial;
    long double wanted = 0;
    for (size_t i = 0; i < n; i++) {
        long double x = get_value(memory.image(array), dtype, i);
        wanted += x * x;
    }
    EXPECT_EQ(found[0], first);
    if (std::isfinite((double)wanted)) {
        EXPECT_NEAR((double)(out.total / wanted), 1.0, 1e-12);
        EXPECT_NEAR((double)(checked_sum[0] / wanted), 1.0, 1e-12);
    } else {
        EXPECT_FALSE(std::isfinite(out.total));
        EXPECT_FALSE(std::isfinite(checked_sum[0]));
    }
    return out;
}

TEST_F(GpuSumSquares, SameBitsAtEveryAlignmentAndNearFloat64)
{
    auto rng = test_rng(1);
    for (int dtype : all_dtypes)
        for (size_t n : sizes(rng)) {
            SCOPED_TRACE(std::to_string(n) + " of " + brg_dtype_str((brg_dtype)dtype));
            std::vector<double> values(n);
            for (double &value : values)
                value = random_value(rng);
            sums aligned = run_sums(kernels, stream, values, dtype, 0);
            ASSERT_EQ(aligned == run_sums(kernels, stream, values, dtype, 0), true);
            ASSERT_EQ(aligned == run_sums(kernels, stream, values, dtype, 1 + rng() % 7), true);
        }
}

TEST_F(GpuSumSquares, NothingSumsToZero)
{
    device_memory partials(2 * BRG_NORM_PARTIALS * 8);
    CUDA_CHECK(cudaMemset(partials.data(), 0xa5, 2 * BRG_NORM_PARTIALS * 8));
    CUDA_CHECK(kernels->sum_squares(nullptr, BRG_FLOAT32, 0, (double *)partials.data(), stream));
    wait();
    std::vector<double> got(BRG_NORM_PARTIALS, 1.0);
    CUDA_CHECK(
        cudaMemcpy(got.data(), partials.data(), BRG_NORM_PARTIALS * 8, cudaMemcpyDeviceToHost));
    EXPECT_EQ(got, std::vector<double>(BRG_NORM_PARTIALS, 0.0));
}

TEST_F(GpuSumSquares, SquaresBeyondFloat32)
{
    for (double scale : {1e-20, 1e20, 3e38})
        for (int dtype : {BRG_FLOAT32, BRG_BFLOAT16})
            run_sums(kernels, stream, std::vector<double>(1001, scale), dtype, 0);
}

TEST_F(GpuSumSquares, NonFiniteStaysInTheSumAndTheFirstIsFound)
{
    auto rng = test_rng(2);
    for (int dtype : all_dtypes)
        for (double bad : {nan_value, infinity, -infinity})
            for (size_t n : sizes(rng)) {
                std::vector<double> values(n);
                for (double &value : values)
                    value = random_value(rng);
                size_t at = rng() % n;
                values[at] = bad;
                values[at + rng() % (n - at)] = nan_value;
                values[at] = bad;
                SCOPED_TRACE(std::to_string(at) + " of " + std::to_string(n));
                run_sums(kernels, stream, values, dtype, rng() % 3, (int64_t)at);
            }
}

TEST_F(GpuSumSquares, PartialsAreAddedInOrder)
{
    auto rng = test_rng(3);
    for (int count : {1, 2, 7, 8, 9, 200}) {
        arena memory;
        std::vector<size_t> runs;
        long double wanted = 0;
        for (int run = 0; run < count; run++) {
            std::vector<double> values(BRG_NORM_PARTIALS);
            for (double &value : values)
                wanted += value = std::fabs(random_value(rng));
            runs.push_back(memory.add_values(values));
        }
        size_t pointers = memory.add((size_t)count * 8), sum = memory.add(8, 0, true);
        memory.allocate();
        for (int run = 0; run < count; run++) {
            const double *pointer = memory.device<double>(runs[(size_t)run]);
            std::memcpy(memory.image(pointers) + 8 * run, &pointer, 8);
        }
        double first = 0;
        for (int repeat = 0; repeat < 2; repeat++) {
            memory.upload();
            CUDA_CHECK(kernels->sum_partials(memory.device<const double *>(pointers), count,
                                             memory.device<double>(sum), stream));
            wait();
            memory.download();
            memory.check_others();
            double got = memory.value<double>(sum);
            EXPECT_NEAR((double)(got / wanted), 1.0, 1e-14);
            if (repeat > 0) {
                EXPECT_EQ(got, first);
            }
            first = got;
        }
    }
}

using GpuPrepareStep = gpu_test;

struct prepared {
    brg_step_state state;
    brg_hyper_state hyper[BRG_MAX_CHILDREN];
};

TEST_F(GpuPrepareStep, DecidesAsTheHostDoes)
{
    const struct {
        double sum, factor, max_norm;
        int apply_non_finite;
        bool applied;
        double norm, scale;
    } cases[] = {
        {16.0, 0.5, 0, 0, true, 2.0, 0.5},
        {16.0, 0.5, 1.0, 0, true, 2.0, 0.5 * (1.0 / (2.0 + 1e-6))},
        {16.0, 1.0, 5.0, 0, true, 4.0, 1.0},
        {0.0, 1.0, 1.0, 0, true, 0.0, 1.0},
        {infinity, 1.0, 1.0, 0, false, infinity, 0.0},
        {nan_value, 0.5, 1.0, 0, false, nan_value, 0.5},
        {nan_value, 0.5, 1.0, 1, true, nan_value, 0.5},
    };
    const double lr = 3e-4, memory_lr = 7e-3, decay = 0.1, beta1 = 0.9, beta2 = 0.999;
    for (const auto &c : cases)
        for (int children : {1, 2, BRG_MAX_CHILDREN}) {
            prepared before = {};
            before.state.sum_squares = c.sum;
            before.state.steps = 41;
            before.state.skipped = 3;
            for (int i = 0; i < BRG_MAX_CHILDREN; i++)
                before.hyper[i].steps = 10 * i;
            arena memory;
            size_t at = memory.add_values(std::vector<prepared>{before}, 0, true);
            size_t lr_at = memory.add_values(std::vector<double>{memory_lr});
            memory.allocate();
            memory.upload();
            prepared *device = memory.device<prepared>(at);
            pinned<brg_step_state> host_state;
            pinned<int64_t> host_steps(BRG_MAX_CHILDREN);
            brg_prepare_args args = {};
            args.state = &device->state;
            args.grad_factor = c.factor;
            args.max_grad_norm = c.max_norm;
            args.apply_non_finite = c.apply_non_finite;
            args.num_children = children;
            args.host_state = host_state.data();
            args.host_steps = host_steps.data();
            for (int i = 0; i < children; i++) {
                args.children[i] = {&device->hyper[i],
                                    i % 2 ? memory.device<double>(lr_at) : nullptr,
                                    lr,
                                    decay,
                                    beta1,
                                    beta2};
            }
            CUDA_CHECK(kernels->prepare_step(&args, stream));
            wait();
            memory.download();
            memory.check_others();
            auto after = memory.value<prepared>(at);
            EXPECT_EQ(after.state.apply, c.applied);
            EXPECT_TRUE(after.state.norm == c.norm || std::isnan(c.norm));
            EXPECT_FLOAT_EQ(after.state.grad_scale, (float)c.scale);
            EXPECT_EQ(after.state.steps, 42);
            EXPECT_EQ(after.state.skipped, c.applied ? 3 : 4);
            EXPECT_EQ(std::memcmp(host_state.data(), &after.state, sizeof after.state), 0);
            for (int i = 0; i < BRG_MAX_CHILDREN; i++) {
                const brg_hyper_state &hyper = after.hyper[i];
                if (i >= children || !c.applied) {
                    EXPECT_EQ(std::memcmp(&hyper, &before.hyper[i], sizeof hyper), 0);
                } else {
                    double t = 10 * i + 1, rate = i % 2 ? memory_lr : lr;
                    EXPECT_EQ(hyper.steps, t);
                    EXPECT_EQ(hyper.lr, rate);
                    EXPECT_EQ(hyper.lr_f, (float)rate);
                    EXPECT_FLOAT_EQ(hyper.decay, (float)(1 - rate * decay));
                    EXPECT_FLOAT_EQ(hyper.bias1, (float)(rate / (1 - std::pow(beta1, t))));
                    EXPECT_FLOAT_EQ(hyper.bias2_root, (float)std::sqrt(1 - std::pow(beta2, t)));
                }
                if (i < children) {
                    EXPECT_EQ(host_steps[(size_t)i], hyper.steps);
                }
            }
        }
}

using GpuConvert = gpu_test;

TEST_F(GpuConvert, RoundsOnceBetweenAllTypes)
{
    auto rng = test_rng(4);
    for (int from : all_dtypes)
        for (int to : all_dtypes)
            for (size_t n : sizes(rng)) {
                size_t src_bytes = brg_dtype_bytes((brg_dtype)from);
                size_t dst_bytes = brg_dtype_bytes((brg_dtype)to);
                size_t shift = rng() % 9, other = rng() % 2 ? shift : rng() % 9;
                arena memory;
                size_t src = memory.add(n * src_bytes, shift * src_bytes);
                size_t dst = memory.add(n * dst_bytes, other * dst_bytes, true);
                const double special[] = {0.0,
                                          -0.0,
                                          infinity,
                                          -infinity,
                                          nan_value,
                                          65504,
                                          65519,
                                          65520,
                                          0x1p-24,
                                          0x1p-25,
                                          1e-41,
                                          3e38,
                                          3.3961775292e+38,
                                          0x1.01p0,
                                          0x1.03p0,
                                          0x1.008p0,
                                          0x1.0080000001p0,
                                          0x1.00ffffffp0};
                for (size_t i = 0; i < n; i++)
                    set_value(memory.image(src), from, i,
                              rng() % 8 == 0 ? special[rng() % (sizeof special / 8)]
                                             : random_value(rng));
                memory.allocate();
                memory.upload();
                CUDA_CHECK(kernels->convert(memory.device(dst), to, memory.device(src), from,
                                            (int64_t)n, stream));
                wait();
                memory.download();
                memory.check_others();
                for (size_t i = 0; i < n; i++) {
                    double x = get_value(memory.image(src), from, i);
                    uint8_t wanted[8];
                    set_value(wanted, to, 0, x);
                    const uint8_t *got = memory.result(dst) + i * dst_bytes;
                    if (std::isnan(x)) {
                        ASSERT_TRUE(std::isnan(get_value(got, to, 0)));
                    } else {
                        ASSERT_EQ(std::memcmp(got, wanted, dst_bytes), 0)
                            << x << " as " << brg_dtype_str((brg_dtype)to) << " is "
                            << get_value(got, to, 0);
                    }
                }
            }
}

using GpuSmallWrites = gpu_test;

TEST_F(GpuSmallWrites, StampsGoRoundTheRing)
{
    const uint32_t ring = 3, stride = 2;
    pinned<uint64_t> slots(ring * stride + 1);
    device_memory counter(8);
    CUDA_CHECK(cudaMemset(counter.data(), 0, 8));
    for (uint32_t step = 0; step < 4; step++)
        for (uint32_t index = 0; index < stride; index++)
            CUDA_CHECK(kernels->stamp(slots.data(), (uint64_t *)counter.data(), ring, stride, index,
                                      index == 1, stream));
    wait();
    // Steps 1, 2 and 3: the last one lies where the first one did.
    const uint64_t in_order[] = {slots[2], slots[3], slots[4], slots[5], slots[0], slots[1]};
    for (int i = 1; i < 6; i++) {
        EXPECT_GE(in_order[i], in_order[i - 1]);
        EXPECT_LT(in_order[i] - in_order[i - 1], 10000000000u);
    }
    EXPECT_EQ(slots[6], 0xa5a5a5a5a5a5a5a5u);
    uint64_t steps = 0;
    CUDA_CHECK(cudaMemcpy(&steps, counter.data(), 8, cudaMemcpyDeviceToHost));
    EXPECT_EQ(steps, 4u);
}

TEST_F(GpuSmallWrites, StoreDouble)
{
    arena memory;
    size_t at = memory.add(8, 8, true);
    memory.allocate();
    memory.upload();
    CUDA_CHECK(kernels->store_double(memory.device<double>(at), 0.1, stream));
    wait();
    memory.download();
    memory.check_others();
    EXPECT_EQ(memory.value<double>(at), 0.1);
}

} // namespace
