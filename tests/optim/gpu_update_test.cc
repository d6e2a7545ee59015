// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD on the GPU: every element of one step against float64 arithmetic on the same
// inputs, over many ranges that start anywhere; what is not theirs stays as it was.
#include <cfloat>

#include "sched/optim/remainder.h"
#include "tests/optim/gpu.h"
#include "tests/seed.h"

namespace
{

const float largest_bf16 = 0x1.fep127f;

struct form {
    int param_dtype, grad_dtype;
    bool aware, momentum; // SGD alone has the choice of a momentum
};

std::ostream &operator<<(std::ostream &out, const form &form)
{
    return out << brg_dtype_str((brg_dtype)form.param_dtype) << " parameters, "
               << brg_dtype_str((brg_dtype)form.grad_dtype) << " gradients"
               << (form.aware ? ", precision-aware" : "") << (form.momentum ? ", momentum" : "");
}

// Where the arrays of a range lie in the arena; `low` or `master`, one of them.
struct range_arrays {
    size_t numel, param, grad, master, low, state0, state1;
};

struct problem {
    form shape;
    bool adamw;
    arena memory;
    std::vector<range_arrays> arrays;
    std::vector<brg_update_range> ranges;
    size_t state_at, hyper_at;
    int state_dtype;
};

float master_of(const problem &p, const range_arrays &a, const uint8_t *memory, size_t i)
{
    if (!p.shape.aware)
        return (float)get_value(memory + a.master, BRG_FLOAT32, i);
    uint16_t weight, low;
    std::memcpy(&weight, memory + a.param + 2 * i, 2);
    std::memcpy(&low, memory + a.low + 2 * i, 2);
    return brg_float_of_bits(brg_remainder_join(weight, low));
}

void fill(problem &p, const range_arrays &a, std::mt19937_64 &rng)
{
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < a.numel; i++) {
        double grad = normal(rng) * std::exp2(-(double)(rng() % 12));
        if (rng() % 500 == 0)
            grad = p.shape.grad_dtype == BRG_FLOAT16 ? 60000 : 1e20; // v overflows
        if (rng() % 20 == 0)
            grad = 0;
        set_value(p.memory.image(a.grad), p.shape.grad_dtype, i, grad);
        float master = (float)normal(rng);
        if (p.shape.aware) {
            uint16_t weight, low;
            brg_remainder_split(brg_bits_of_float(master), &weight, &low);
            std::memcpy(p.memory.image(a.param) + 2 * i, &weight, 2);
            std::memcpy(p.memory.image(a.low) + 2 * i, &low, 2);
        } else {
            set_value(p.memory.image(a.master), BRG_FLOAT32, i, master);
        }
        if (a.state0)
            set_value(p.memory.image(a.state0), p.state_dtype, i, 0.1 * normal(rng));
        if (a.state1)
            set_value(p.memory.image(a.state1), p.state_dtype, i,
                      std::pow(normal(rng), 2) * std::exp2(-(double)(rng() % 20)));
    }
}

// Half of the ranges have arrays that are misaligned alike, the others each its own way.
void build(problem &p, std::mt19937_64 &rng, int num_ranges, float grad_scale, int apply)
{
    const size_t param_bytes = brg_dtype_bytes((brg_dtype)p.shape.param_dtype);
    const size_t grad_bytes = brg_dtype_bytes((brg_dtype)p.shape.grad_dtype);
    p.state_dtype = p.shape.aware ? BRG_BFLOAT16 : BRG_FLOAT32;
    const size_t state_bytes = brg_dtype_bytes((brg_dtype)p.state_dtype);
    for (int r = 0; r < num_ranges; r++) {
        size_t numel = r % 50 == 7 ? 5000 + rng() % 60000 : rng() % 4098; // some are empty
        size_t shift = r % 3 ? rng() % 8 : 0;
        if (r % 10 == 3) // to the end of a tile of 2048 elements, or one more or less
            numel = 2048 * (rng() % 2 + 1) - shift % 4 + rng() % 3 - 1;
        bool alike = rng() % 2;
        auto add = [&](size_t bytes, bool output) {
            return p.memory.add(numel * bytes, (alike ? shift : rng() % 8) * bytes, output);
        };
        range_arrays a = {};
        a.numel = numel;
        a.grad = add(grad_bytes, false);
        a.param = add(param_bytes, apply);
        if (p.shape.aware)
            a.low = add(2, apply);
        else
            a.master = p.shape.param_dtype == BRG_FLOAT32 ? a.param : add(4, apply);
        if (p.adamw || p.shape.momentum)
            a.state0 = add(state_bytes, apply);
        if (p.adamw)
            a.state1 = add(state_bytes, apply);
        fill(p, a, rng);
        p.arrays.push_back(a);
    }
    brg_step_state state = {};
    state.grad_scale = grad_scale;
    state.apply = apply;
    p.state_at = p.memory.add_values(std::vector<brg_step_state>{state});
    brg_hyper_state hyper = {};
    hyper.steps = 3;
    hyper.lr = 1e-2;
    hyper.lr_f = 1e-2f;
    hyper.decay = (float)(1 - 1e-2 * 0.1);
    hyper.bias1 = (float)(1e-2 / (1 - std::pow(0.9, 3)));
    hyper.bias2_root = (float)std::sqrt(1 - std::pow(0.99, 3));
    p.hyper_at = p.memory.add_values(std::vector<brg_hyper_state>{hyper});
    p.memory.allocate();
    auto pointer = [&](size_t offset) { return offset ? p.memory.device(offset) : nullptr; };
    for (const range_arrays &a : p.arrays)
        p.ranges.push_back({pointer(a.param), pointer(a.grad), (float *)pointer(a.master),
                            (uint16_t *)pointer(a.low), pointer(a.state0), pointer(a.state1),
                            (int64_t)a.numel});
}

brg_adamw_args adamw_args(const problem &p)
{
    brg_adamw_args args = {};
    args.state = p.memory.device<brg_step_state>(p.state_at);
    args.hyper = p.memory.device<brg_hyper_state>(p.hyper_at);
    args.beta1 = 0.9f;
    args.beta2 = 0.99f;
    args.eps = 1e-8f;
    args.one_minus_beta1 = 0.1f;
    args.one_minus_beta2 = 0.01f;
    args.param_dtype = p.shape.param_dtype;
    args.grad_dtype = p.shape.grad_dtype;
    args.precision_aware = p.shape.aware;
    args.num_ranges = (int32_t)p.ranges.size();
    args.ranges = p.ranges.data();
    return args;
}

brg_sgd_args sgd_args(const problem &p)
{
    brg_sgd_args args = {};
    args.state = p.memory.device<brg_step_state>(p.state_at);
    args.hyper = p.memory.device<brg_hyper_state>(p.hyper_at);
    args.momentum = p.shape.momentum ? 0.9f : 0;
    args.weight_decay = 0.05f;
    args.param_dtype = p.shape.param_dtype;
    args.grad_dtype = p.shape.grad_dtype;
    args.num_ranges = (int32_t)p.ranges.size();
    args.ranges = p.ranges.data();
    return args;
}

// A state's or a parameter's stored type rounds by half a unit in the last place.
double unit(int dtype)
{
    return dtype == BRG_FLOAT32 ? 0x1p-24 : dtype == BRG_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

// The weight is the rounded master, whatever that is.
void check_weight(const problem &p, const range_arrays &a, size_t i)
{
    const uint8_t *result = p.memory.result().data();
    float master = master_of(p, a, result, i);
    if (p.shape.aware) {
        uint16_t weight, low, got[2];
        brg_remainder_split(brg_bits_of_float(master), &weight, &low);
        std::memcpy(&got[0], result + a.param + 2 * i, 2);
        std::memcpy(&got[1], result + a.low + 2 * i, 2);
        ASSERT_EQ(got[0], weight);
        ASSERT_EQ(got[1], low);
    } else {
        uint8_t wanted[8];
        set_value(wanted, p.shape.param_dtype, 0, master);
        size_t bytes = brg_dtype_bytes((brg_dtype)p.shape.param_dtype);
        ASSERT_EQ(std::memcmp(result + a.param + bytes * i, wanted, bytes), 0);
    }
}

void check_adamw(problem &p, const range_arrays &a, size_t i, double grad_scale)
{
    const brg_adamw_args args = adamw_args(p);
    brg_hyper_state hyper;
    std::memcpy(&hyper, p.memory.image(p.hyper_at), sizeof hyper);
    const uint8_t *before = p.memory.image(0);
    double g = grad_scale * get_value(before + a.grad, p.shape.grad_dtype, i);
    double p0 = master_of(p, a, before, i);
    double m0 = get_value(before + a.state0, p.state_dtype, i);
    double v0 = get_value(before + a.state1, p.state_dtype, i);
    double m = args.beta1 * m0 + args.one_minus_beta1 * g;
    double v = args.beta2 * v0 + args.one_minus_beta2 * (g * g);
    v = std::min(v, (double)(p.shape.aware ? largest_bf16 : FLT_MAX));
    double denominator = std::sqrt(v) / hyper.bias2_root + args.eps;
    double update = hyper.bias1 * m / denominator;
    double m_error = 0x1p-22 * (std::fabs(args.beta1 * m0) + std::fabs(args.one_minus_beta1 * g));
    double half_unit = unit(p.state_dtype);
    EXPECT_NEAR(get_value(p.memory.result(a.state0), p.state_dtype, i), m,
                m_error + half_unit * std::fabs(m) + 1e-37);
    EXPECT_NEAR(get_value(p.memory.result(a.state1), p.state_dtype, i), v,
                (0x1p-21 + half_unit) * v + 1e-37);
    double wanted = hyper.decay * p0 - update;
    EXPECT_NEAR(master_of(p, a, p.memory.result().data(), i), wanted,
                0x1p-23 * std::fabs(hyper.decay * p0) + 0x1p-23 * std::fabs(wanted) +
                    0x1p-20 * std::fabs(update) + hyper.bias1 * m_error / denominator);
    check_weight(p, a, i);
}

void check_sgd(problem &p, const range_arrays &a, size_t i, double grad_scale)
{
    const brg_sgd_args args = sgd_args(p);
    const float lr = 1e-2f;
    const uint8_t *before = p.memory.image(0);
    double g = grad_scale * get_value(before + a.grad, p.shape.grad_dtype, i);
    double p0 = master_of(p, a, before, i);
    double b0 = a.state0 ? get_value(before + a.state0, BRG_FLOAT32, i) : 0;
    double b = args.momentum * b0 + (g + args.weight_decay * p0);
    double b_error = 0x1p-22 * (std::fabs(args.momentum * b0) + std::fabs(g) +
                                std::fabs(args.weight_decay * p0));
    if (a.state0) {
        EXPECT_NEAR(get_value(p.memory.result(a.state0), BRG_FLOAT32, i), b, b_error);
    }
    EXPECT_NEAR(master_of(p, a, p.memory.result().data(), i), p0 - lr * b,
                0x1p-23 * (std::fabs(p0) + std::fabs(lr * b)) + lr * b_error);
    check_weight(p, a, i);
}

class GpuUpdate : public gpu_test
{
  protected:
    void run(problem &p)
    {
        p.memory.upload();
        if (p.adamw) {
            brg_adamw_args args = adamw_args(p);
            CUDA_CHECK(kernels->adamw(&args, stream));
        } else {
            brg_sgd_args args = sgd_args(p);
            CUDA_CHECK(kernels->sgd(&args, stream));
        }
        wait();
        p.memory.download();
    }

    void check(const form &shape, bool adamw, std::mt19937_64 &rng)
    {
        SCOPED_TRACE(testing::Message() << shape);
        const float grad_scale = 0.37f;
        problem p = {};
        p.shape = shape;
        p.adamw = adamw;
        build(p, rng, 200, grad_scale, 1);
        run(p);
        p.memory.check_others();
        for (const range_arrays &a : p.arrays)
            for (size_t i = 0; i < a.numel; i++) {
                if (adamw)
                    check_adamw(p, a, i, grad_scale);
                else
                    check_sgd(p, a, i, grad_scale);
                if (HasFailure()) {
                    FAIL() << "element " << i << " of " << a.numel;
                }
            }
        std::vector<uint8_t> first = p.memory.result();
        run(p);
        EXPECT_TRUE(p.memory.result() == first) << "a second run gave other bits";
    }
};

const int dtypes[] = {BRG_FLOAT32, BRG_FLOAT16, BRG_BFLOAT16};

TEST_F(GpuUpdate, AdamW)
{
    auto rng = test_rng(1);
    for (int param : dtypes)
        for (int grad : dtypes)
            check({param, grad, false, true}, true, rng);
}

TEST_F(GpuUpdate, PrecisionAwareAdamW)
{
    auto rng = test_rng(2);
    for (int grad : dtypes)
        check({BRG_BFLOAT16, grad, true, true}, true, rng);
}

TEST_F(GpuUpdate, Sgd)
{
    auto rng = test_rng(3);
    for (int param : dtypes)
        for (int grad : dtypes)
            for (bool momentum : {false, true})
                check({param, grad, false, momentum}, false, rng);
}

TEST_F(GpuUpdate, NothingChangesWithoutApply)
{
    auto rng = test_rng(4);
    for (bool adamw : {true, false})
        for (bool aware : {false, true}) {
            if (aware && !adamw)
                continue;
            problem p = {};
            p.shape = {BRG_BFLOAT16, BRG_FLOAT32, aware, true};
            p.adamw = adamw;
            build(p, rng, 60, 1.0f, 0);
            run(p);
            EXPECT_TRUE(p.memory.unchanged());
        }
}

TEST_F(GpuUpdate, NoRangesAndUnknownTypes)
{
    brg_adamw_args args = {};
    args.param_dtype = BRG_BFLOAT16;
    args.grad_dtype = BRG_FLOAT32;
    EXPECT_EQ(kernels->adamw(&args, stream), 0);
    args.grad_dtype = BRG_INT8;
    EXPECT_NE(kernels->adamw(&args, stream), 0);
    args.grad_dtype = BRG_FLOAT32;
    args.param_dtype = BRG_FLOAT16;
    args.precision_aware = 1;
    EXPECT_NE(kernels->adamw(&args, stream), 0);
    wait();
}

// One range of `numel` precision-aware elements.
void build_aware(problem &p, size_t numel, const brg_hyper_state &hyper)
{
    p.shape = {BRG_BFLOAT16, BRG_FLOAT32, true, true};
    p.adamw = true;
    p.state_dtype = BRG_BFLOAT16;
    range_arrays a = {};
    a.numel = numel;
    a.grad = p.memory.add_values(std::vector<float>(numel, 0.0f));
    for (size_t *array : {&a.param, &a.low, &a.state0, &a.state1})
        *array = p.memory.add_values(std::vector<uint16_t>(numel, 0), 0, true);
    p.arrays.push_back(a);
    brg_step_state state = {};
    state.grad_scale = 1;
    state.apply = 1;
    p.state_at = p.memory.add_values(std::vector<brg_step_state>{state});
    p.hyper_at = p.memory.add_values(std::vector<brg_hyper_state>{hyper});
    p.memory.allocate();
    p.ranges.push_back({p.memory.device(a.param), p.memory.device(a.grad), nullptr,
                        p.memory.device<uint16_t>(a.low), p.memory.device(a.state0),
                        p.memory.device(a.state1), (int64_t)numel});
}

TEST_F(GpuUpdate, UpdateOfNothingKeepsEveryMaster)
{
    const uint16_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    const size_t per_high = sizeof lows / sizeof lows[0], numel = 0x10000 * per_high;
    brg_hyper_state hyper = {};
    hyper.decay = 1;
    hyper.bias2_root = 1;
    problem p = {};
    build_aware(p, numel, hyper);
    const range_arrays &a = p.arrays[0];
    auto master = [&](size_t i) { return (uint32_t)(i / per_high) << 16 | lows[i % per_high]; };
    for (size_t i = 0; i < numel; i++) {
        uint16_t weight, low;
        brg_remainder_split(master(i), &weight, &low);
        std::memcpy(p.memory.image(a.param) + 2 * i, &weight, 2);
        std::memcpy(p.memory.image(a.low) + 2 * i, &low, 2);
    }
    run(p);
    p.memory.check_others();
    for (size_t i = 0; i < numel; i++) {
        float got = master_of(p, a, p.memory.result().data(), i);
        if (std::isnan(brg_float_of_bits(master(i)))) {
            ASSERT_TRUE(std::isnan(got)) << std::hex << master(i);
            ASSERT_TRUE(std::isnan(get_value(p.memory.result(a.param), BRG_BFLOAT16, i)));
        } else {
            ASSERT_EQ(brg_bits_of_float(got), master(i)) << std::hex << master(i);
        }
    }
}

// Ten steps against AdamW in float32 whose m and v are rounded to bfloat16 after every step.
TEST_F(GpuUpdate, PrecisionAwareFollowsFloat32)
{
    auto rng = test_rng(5);
    std::normal_distribution<float> normal;
    const size_t numel = 5001;
    const int steps = 10;
    const float lr = 1e-3f;
    brg_hyper_state hyper = {};
    problem p = {};
    build_aware(p, numel, hyper);
    const range_arrays a = p.arrays[0];
    std::vector<float> master(numel), m(numel, 0.0f), v(numel, 0.0f);
    for (size_t i = 0; i < numel; i++) {
        master[i] = normal(rng);
        uint16_t halves[2];
        brg_remainder_split(brg_bits_of_float(master[i]), &halves[0], &halves[1]);
        std::memcpy(p.memory.image(a.param) + 2 * i, &halves[0], 2);
        std::memcpy(p.memory.image(a.low) + 2 * i, &halves[1], 2);
    }
    const brg_adamw_args args = adamw_args(p);
    for (int step = 1; step <= steps; step++) {
        hyper.decay = 1 - lr * 0.1f;
        hyper.bias1 = (float)(lr / (1 - std::pow(0.9, step)));
        hyper.bias2_root = (float)std::sqrt(1 - std::pow(0.99, step));
        std::memcpy(p.memory.image(p.hyper_at), &hyper, sizeof hyper);
        for (size_t i = 0; i < numel; i++) {
            float g = normal(rng);
            set_value(p.memory.image(a.grad), BRG_FLOAT32, i, g);
            float m1 = args.beta1 * m[i] + args.one_minus_beta1 * g;
            float v1 = args.beta2 * v[i] + args.one_minus_beta2 * g * g;
            master[i] = hyper.decay * master[i] -
                        hyper.bias1 * m1 / (std::sqrt(v1) / hyper.bias2_root + args.eps);
            m[i] = brg_float_from_bf16(brg_bf16_from_float(m1));
            v[i] = brg_float_from_bf16(brg_bf16_from_float(v1));
        }
        run(p);
        for (size_t array : {a.param, a.low, a.state0, a.state1})
            std::memcpy(p.memory.image(array), p.memory.result(array), 2 * numel);
    }
    // A moment at a tie of two bfloat16 values may be rounded either way, by 2^-8 of it.
    for (size_t i = 0; i < numel; i++)
        ASSERT_NEAR(master_of(p, a, p.memory.result().data(), i), master[i],
                    1e-6 * std::fabs(master[i]) + 0x1p-7 * lr * steps);
}

} // namespace
