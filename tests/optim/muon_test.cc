// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz and Muon against float64.
#include <gtest/gtest.h>

#include <cfloat>

#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"
#include "tests/optim/reference.h"
#include "tests/seed.h"

namespace
{

class Workspace
{
  public:
    Workspace(int rows, int cols, bool wide = false)
    {
        EXPECT_EQ(brg_ns_workspace_create((int64_t)rows * cols, std::min(rows, cols), wide, &w_),
                  BRG_OK);
    }
    ~Workspace()
    {
        brg_ns_workspace_destroy(&w_);
    }
    brg_ns_workspace *get()
    {
        return &w_;
    }

  private:
    brg_ns_workspace w_ = {};
};

brg_ns_schedule schedule_of(brg_ns_coefficients set, int steps = 0)
{
    brg_ns_schedule schedule;
    EXPECT_EQ(brg_ns_schedule_make(set, steps, nullptr, 0, &schedule), BRG_OK);
    return schedule;
}

ref::Tuples tuples_of(const brg_ns_schedule &schedule)
{
    ref::Tuples tuples;
    for (int i = 0; i < schedule.num_steps; i++)
        tuples.push_back({schedule.tuples[i][0], schedule.tuples[i][1], schedule.tuples[i][2]});
    return tuples;
}

void expect_tuple(const brg_ns_schedule &s, int step, double a, double b, double c)
{
    EXPECT_NEAR(s.tuples[step][0], a, 1e-12) << step;
    EXPECT_NEAR(s.tuples[step][1], b, 1e-12) << step;
    EXPECT_NEAR(s.tuples[step][2], c, 1e-12) << step;
}

TEST(Coefficients, DefaultStepsAndValues)
{
    brg_ns_schedule s = schedule_of(BRG_NS_QUINTIC);
    ASSERT_EQ(s.num_steps, 5);
    for (int i = 0; i < 5; i++)
        expect_tuple(s, i, ref::quintic()[i][0], ref::quintic()[i][1], ref::quintic()[i][2]);
    s = schedule_of(BRG_NS_SIMPLE);
    ASSERT_EQ(s.num_steps, 5);
    for (int i = 0; i < 5; i++)
        expect_tuple(s, i, 3.4445, -4.7750, 2.0315);
    s = schedule_of(BRG_NS_POLAR_EXPRESS);
    ASSERT_EQ(s.num_steps, 5);
    const double f = 1.05, f3 = f * f * f, f5 = f3 * f * f;
    expect_tuple(s, 0, 8.287212 / f, -23.595887 / f3, 17.300387 / f5);
    expect_tuple(s, 1, 4.107059 / f, -2.947850 / f3, 0.544843 / f5);
    expect_tuple(s, 4, 2.300652 / f, -1.668904 / f3, 0.418807 / f5);
    s = schedule_of(BRG_NS_CANS);
    ASSERT_EQ(s.num_steps, 5);
    expect_tuple(s, 0, 8.4703, -25.1081, 18.6293);
    expect_tuple(s, 3, 3.2866, -2.4647, 0.5074);
    s = schedule_of(BRG_NS_AOL);
    ASSERT_EQ(s.num_steps, 5);
    expect_tuple(s, 1, 3.4585, -5.5479, 2.5959);
    expect_tuple(s, 3, 2.7215, -3.0494, 1.3169);
    s = schedule_of(BRG_NS_DEEPSEEKV4);
    ASSERT_EQ(s.num_steps, 10);
    for (int i = 0; i < 8; i++)
        expect_tuple(s, i, 3.4445, -4.7750, 2.0315);
    expect_tuple(s, 8, 2, -1.5, 0.5);
    expect_tuple(s, 9, 2, -1.5, 0.5);
    s = schedule_of(BRG_NS_CUBIC5);
    ASSERT_EQ(s.num_steps, 5);
    expect_tuple(s, 0, 3.3656576, -3.3420992, 0);
    expect_tuple(s, 4, 2.2230472, -0.9630650, 0);
}

TEST(Coefficients, IterationModes)
{
    brg_ns_schedule s = schedule_of(BRG_NS_QUINTIC, 7); // cycles
    expect_tuple(s, 5, 4.0848, -6.8946, 2.9270);
    expect_tuple(s, 6, 3.9505, -6.3029, 2.6377);
    s = schedule_of(BRG_NS_AOL, 6); // cycles
    expect_tuple(s, 4, 4.0098, -7.0585, 2.4635);
    expect_tuple(s, 5, 3.4585, -5.5479, 2.5959);
    s = schedule_of(BRG_NS_CANS, 7); // repeats the last
    expect_tuple(s, 5, 2.2737, -1.6447, 0.4162);
    expect_tuple(s, 6, 2.2737, -1.6447, 0.4162);
    s = schedule_of(BRG_NS_POLAR_EXPRESS, 9);
    for (int j = 0; j < 3; j++)
        EXPECT_EQ(s.tuples[8][j], s.tuples[4][j]);
    s = schedule_of(BRG_NS_DEEPSEEKV4, 12);
    expect_tuple(s, 11, 2, -1.5, 0.5);
    s = schedule_of(BRG_NS_DEEPSEEKV4, 3); // fewer: the first ones
    expect_tuple(s, 2, 3.4445, -4.7750, 2.0315);
    const double custom[2][3] = {{1.5, -0.5, 0}, {2, -1.5, 0.5}};
    ASSERT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 3, custom, 2, &s), BRG_OK);
    expect_tuple(s, 0, 1.5, -0.5, 0);
    expect_tuple(s, 1, 2, -1.5, 0.5);
    expect_tuple(s, 2, 1.5, -0.5, 0);
    ASSERT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 0, custom, 2, &s), BRG_OK);
    EXPECT_EQ(s.num_steps, 2);
}

TEST(Coefficients, Errors)
{
    brg_ns_schedule s;
    const double bad[1][3] = {{1, NAN, 0}};
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUBIC5, 4, nullptr, 0, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(brg_last_error()).find("cubic5"), std::string::npos) << brg_last_error();
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUBIC5, 6, nullptr, 0, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_QUINTIC, -1, nullptr, 0, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_QUINTIC, 65, nullptr, 0, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make((brg_ns_coefficients)8, 5, nullptr, 0, &s),
              BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make((brg_ns_coefficients)-1, 5, nullptr, 0, &s),
              BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 5, nullptr, 3, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 5, bad, 0, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 5, bad, 1, &s), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_schedule_make(BRG_NS_CUSTOM, 5, bad, 65, &s), BRG_ERR_INVALID_ARGUMENT);
    brg_ns_workspace w;
    EXPECT_EQ(brg_ns_workspace_create(-1, 1, false, &w), BRG_ERR_NO_MEMORY);
    EXPECT_EQ(brg_ns_workspace_create(1, INT64_MAX, true, &w), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_ns_workspace_create(INT64_MAX / 2, 4, false, &w), BRG_ERR_NO_MEMORY);
}

/* Normalises and iterates, in the library and in float64; returns the relative error. */
double newton_schulz_error(const std::vector<float> &g, int rows, int cols,
                           const brg_ns_schedule &schedule)
{
    Workspace w(rows, cols, schedule.steep);
    memcpy(w.get()->x, g.data(), g.size() * sizeof(float));
    double sum = brg_sum_of_squares_host(g.data(), BRG_FLOAT32, g.size());
    const float *got = brg_ns_orthogonalize_host(w.get(), rows, cols, sum, 0, &schedule);
    ref::Matrix x = ref::matrix(g, rows, cols);
    double norm = ref::frobenius(x.v);
    for (double &e : x.v)
        e /= norm;
    return ref::relative_error(got, ref::newton_schulz(x, tuples_of(schedule)).v);
}

TEST(NewtonSchulz, EverySetOnWellConditionedMatrices)
{
    auto rng = test_rng(7);
    const int shapes[][2] = {{48, 160}, {160, 48}, {1, 1},   {1, 37},  {37, 1},
                             {1, 2500}, {250, 1},  {2, 2},   {3, 5},   {5, 3},
                             {45, 45},  {2, 1024}, {300, 6}, {33, 97}, {128, 512}};
    for (int set = BRG_NS_QUINTIC; set <= BRG_NS_CUBIC5; set++) {
        brg_ns_schedule schedule = schedule_of((brg_ns_coefficients)set);
        for (auto [rows, cols] : shapes) {
            std::vector<float> g = ref::gaussian((size_t)rows * cols, rng);
            EXPECT_LT(newton_schulz_error(g, rows, cols, schedule), 1e-5)
                << "set " << set << " " << rows << "x" << cols;
        }
    }
}

TEST(NewtonSchulz, SquareWithModerateCondition)
{
    auto rng = test_rng(8);
    const int n = 64;
    std::vector<float> g = ref::gaussian(n * n, rng, 0.05);
    for (int i = 0; i < n; i++)
        g[(size_t)i * n + i] += 1;
    for (int set = BRG_NS_QUINTIC; set <= BRG_NS_CUBIC5; set++)
        EXPECT_LT(newton_schulz_error(g, n, n, schedule_of((brg_ns_coefficients)set)), 1e-5) << set;
}

TEST(NewtonSchulz, OnlySteepSetsAreIteratedInFloat64)
{
    for (int set = BRG_NS_QUINTIC; set <= BRG_NS_CUBIC5; set++)
        EXPECT_EQ(schedule_of((brg_ns_coefficients)set).steep, set == BRG_NS_CANS) << set;
}

TEST(NewtonSchulz, OneStepOfEachParity)
{
    // The result is in x or in y, depending on the number of steps.
    auto rng = test_rng(9);
    std::vector<float> g = ref::gaussian(20 * 31, rng);
    for (int steps : {1, 2, 3, 4})
        EXPECT_LT(newton_schulz_error(g, 20, 31, schedule_of(BRG_NS_QUINTIC, steps)), 1e-5)
            << steps;
}

TEST(NewtonSchulz, SingularValuesComeNearOne)
{
    auto rng = test_rng(10);
    Workspace w(24, 80);
    std::vector<float> g = ref::gaussian(24 * 80, rng);
    memcpy(w.get()->x, g.data(), g.size() * sizeof(float));
    double sum = brg_sum_of_squares_host(g.data(), BRG_FLOAT32, g.size());
    brg_ns_schedule schedule = schedule_of(BRG_NS_DEEPSEEKV4);
    const float *got = brg_ns_orthogonalize_host(w.get(), 24, 80, sum, 0, &schedule);
    ref::Matrix x = ref::matrix(std::vector<float>(got, got + 24 * 80), 24, 80);
    ref::Matrix gram = ref::product(x, ref::transposed(x));
    for (int i = 0; i < 24; i++)
        for (int j = 0; j < 24; j++)
            EXPECT_NEAR(gram.at(i, j), i == j, 0.02);
}

brg_muon_hyper hyper_of(const ref::Muon &m)
{
    brg_muon_hyper h = {};
    h.lr = m.lr;
    h.momentum = m.mu;
    h.weight_decay = m.wd;
    h.eps = m.eps;
    h.extra_scale = m.extra;
    h.style = m.ema ? BRG_MOMENTUM_EMA : BRG_MOMENTUM_ACCUMULATE;
    h.nesterov = m.nesterov;
    h.scale = m.scale == ref::Scale::spectral        ? BRG_SCALE_SPECTRAL
              : m.scale == ref::Scale::unit_rms_norm ? BRG_SCALE_UNIT_RMS_NORM
                                                     : BRG_SCALE_SHAPE_SCALING;
    return h;
}

const ref::Muon defaults = {0.02,          0.95, 0.0, 1e-15, 1.0, true, true, ref::Scale::spectral,
                            ref::quintic()};

struct MuonRun {
    int rows, cols;
    std::vector<float> p, m;
    Workspace w;
    MuonRun(int r, int c, const std::vector<float> &start)
        : rows(r), cols(c), p(start), m(start.size()), w(r, c)
    {
    }
    void step(const std::vector<float> &g, const brg_muon_hyper &h, const brg_ns_schedule &s,
              const brg_row_split *split = nullptr, double scale = 1)
    {
        brg_update_target t = {p.data(),    p.data(), g.data(), BRG_FLOAT32,
                               BRG_FLOAT32, p.size(), nullptr};
        brg_muon_host(&t, m.data(), rows, cols, split, scale, &h, &s, w.get());
    }
};

/* Steps and decay, all momentum and scale conventions, wide, tall and square. */
TEST(Muon, AgainstFloat64)
{
    auto rng = test_rng(11);
    brg_ns_schedule schedule = schedule_of(BRG_NS_QUINTIC);
    const int shapes[][2] = {{32, 80}, {80, 32}, {1, 19}, {19, 1}, {1, 1}, {21, 40}};
    for (int bits = 0; bits < 12; bits++) {
        ref::Muon h = defaults;
        h.ema = bits & 1;
        h.nesterov = bits & 2;
        h.scale = (ref::Scale)(bits / 4);
        h.wd = 0.1;
        h.extra = 0.2;
        for (auto [rows, cols] : shapes) {
            std::vector<float> start = ref::gaussian((size_t)rows * cols, rng);
            MuonRun run(rows, cols, start);
            ref::Matrix p = ref::matrix(start, rows, cols), m(rows, cols);
            for (int t = 0; t < 4; t++) {
                std::vector<float> g = ref::gaussian(start.size(), rng);
                run.step(g, hyper_of(h), schedule, nullptr, 0.25);
                ref::Matrix rg = ref::matrix(g, rows, cols);
                for (double &e : rg.v)
                    e *= 0.25;
                h.step(p, m, rg);
            }
            EXPECT_LT(ref::relative_error(run.p.data(), p.v), 2e-6)
                << "case " << bits << " " << rows << "x" << cols;
            for (size_t i = 0; i < m.v.size(); i++) // against the gradients' size, which is 1/4
                ASSERT_NEAR(run.m[i], m.v[i], 1e-6);
        }
    }
}

TEST(Muon, ScaleFactors)
{
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_SPECTRAL, 16, 64), 8);
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_SPECTRAL, 64, 16), 8);
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_UNIT_RMS_NORM, 16, 64), 0.5);
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_UNIT_RMS_NORM, 64, 16), 2);
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_SHAPE_SCALING, 16, 64), 1);
    EXPECT_DOUBLE_EQ(brg_muon_scale_factor(BRG_SCALE_SHAPE_SCALING, 64, 16), 2);
}

TEST(Muon, AveragingAndAccumulatingMomentumAreOneOptimizer)
{
    auto rng = test_rng(12);
    brg_ns_schedule schedule = schedule_of(BRG_NS_QUINTIC);
    std::vector<float> start = ref::gaussian(20 * 50, rng);
    MuonRun ema(20, 50, start), accumulate(20, 50, start);
    ref::Muon a = defaults, b = defaults;
    b.ema = false;
    for (int t = 0; t < 30; t++) {
        std::vector<float> g = ref::gaussian(start.size(), rng);
        ema.step(g, hyper_of(a), schedule);
        accumulate.step(g, hyper_of(b), schedule);
    }
    ref::Vec expected(accumulate.p.begin(), accumulate.p.end());
    EXPECT_LT(ref::relative_error(ema.p.data(), expected), 1e-5);
    for (size_t i = 0; i < start.size(); i++)
        ASSERT_NEAR(ema.m[i], 0.05 * accumulate.m[i], 1e-6);
}

TEST(Muon, ZeroMatrixStaysZero)
{
    for (double eps : {1e-15, 0.0}) {
        ref::Muon h = defaults;
        h.eps = eps;
        for (auto [rows, cols] : {std::pair{5, 9}, {9, 5}, {1, 1}}) {
            MuonRun run(rows, cols, std::vector<float>((size_t)rows * cols, 3.0f));
            run.step(std::vector<float>((size_t)rows * cols), hyper_of(h),
                     schedule_of(BRG_NS_QUINTIC));
            for (float p : run.p)
                EXPECT_EQ(p, 3.0f);
            for (float m : run.m)
                EXPECT_EQ(m, 0.0f);
        }
    }
}

TEST(Muon, RankOne)
{
    auto rng = test_rng(13);
    const int rows = 40, cols = 70; // not small
    std::vector<float> u = ref::gaussian(rows, rng), v = ref::gaussian(cols, rng), g(rows * cols);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            g[(size_t)i * cols + j] = u[i] * v[j];
    std::vector<float> zero(g.size());
    MuonRun run(rows, cols, zero);
    ref::Matrix p(rows, cols), m(rows, cols);
    run.step(g, hyper_of(defaults), schedule_of(BRG_NS_QUINTIC));
    defaults.step(p, m, ref::matrix(g, rows, cols));
    // Rounding is a full-rank perturbation of 1e-7, which the iteration amplifies at most 4^5
    // times.
    EXPECT_LT(ref::relative_error(run.p.data(), p.v), 2e-4);
}

TEST(Muon, ExtremeNorms)
{
    auto rng = test_rng(14);
    std::vector<float> unit = ref::gaussian(12 * 30, rng);
    for (double norm : {1e-30, 1e-20, 1e-8, 1.0, 1e8, 1e20, 1e30}) {
        for (double eps : {1e-15, 1e-40}) {
            ref::Muon h = defaults;
            h.eps = eps;
            std::vector<float> g = unit, zero(unit.size());
            double size = ref::frobenius(ref::Vec(unit.begin(), unit.end()));
            for (float &x : g)
                x = (float)(x * (norm / size));
            MuonRun run(12, 30, zero);
            run.step(g, hyper_of(h), schedule_of(BRG_NS_QUINTIC));
            ref::Matrix p(12, 30), m(12, 30);
            h.step(p, m, ref::matrix(g, 12, 30));
            for (float x : run.p)
                ASSERT_TRUE(std::isfinite(x)) << norm;
            EXPECT_LT(ref::relative_error(run.p.data(), p.v), 1e-5) << norm << " eps " << eps;
        }
    }
}

/* Fused QKV against the same three matrices taken apart by hand. */
TEST(Muon, RowSplitEqualsSeparateMatrices)
{
    auto rng = test_rng(15);
    brg_ns_schedule schedule = schedule_of(BRG_NS_POLAR_EXPRESS);
    const int groups = 3, cols = 20, heights[3] = {8, 2, 2}, sum = 12, rows = groups * sum;
    const int64_t block_rows[3] = {8, 2, 2};
    const brg_row_split split = {groups, 3, block_rows};
    ref::Muon h = defaults;
    h.scale = ref::Scale::shape_scaling; // differs between the whole and its blocks
    h.wd = 0.1;
    std::vector<float> start = ref::gaussian((size_t)rows * cols, rng);
    MuonRun fused(rows, cols, start);
    auto cut = [&](const std::vector<float> &whole, int block) {
        std::vector<float> part;
        int offset = block == 0 ? 0 : block == 1 ? heights[0] : heights[0] + heights[1];
        for (int g = 0; g < groups; g++)
            for (int r = 0; r < heights[block]; r++) {
                auto row = whole.begin() + (ptrdiff_t)(g * sum + offset + r) * cols;
                part.insert(part.end(), row, row + cols);
            }
        return part;
    };
    MuonRun q(groups * 8, cols, cut(start, 0)), k(groups * 2, cols, cut(start, 1)),
        v(groups * 2, cols, cut(start, 2));
    MuonRun *apart[3] = {&q, &k, &v};
    for (int t = 0; t < 3; t++) {
        std::vector<float> g = ref::gaussian(start.size(), rng);
        fused.step(g, hyper_of(h), schedule, &split);
        for (int block = 0; block < 3; block++) {
            apart[block]->step(cut(g, block), hyper_of(h), schedule);
            // Only the order in which the norm is summed differs.
            std::vector<float> got = cut(fused.p, block);
            ref::Vec expected(apart[block]->p.begin(), apart[block]->p.end());
            EXPECT_LT(ref::relative_error(got.data(), expected), 1e-6);
            EXPECT_EQ(cut(fused.m, block), apart[block]->m);
        }
    }
    MuonRun whole(rows, cols, start);
    whole.step(ref::gaussian(start.size(), rng), hyper_of(h), schedule);
    EXPECT_NE(whole.p, fused.p);
}

TEST(Muon, SixteenBitParametersAndGradients)
{
    auto rng = test_rng(16);
    brg_ns_schedule schedule = schedule_of(BRG_NS_QUINTIC);
    const int rows = 18, cols = 33;
    const size_t numel = rows * cols;
    for (brg_dtype dtype : {BRG_FLOAT16, BRG_BFLOAT16}) {
        std::vector<float> start = ref::gaussian(numel, rng), buffer(numel);
        std::vector<uint16_t> param(numel), grad(numel), rounded(numel);
        MuonRun run(rows, cols, start);
        ref::Matrix p = ref::matrix(start, rows, cols), m(rows, cols);
        for (int t = 0; t < 3; t++) {
            std::vector<float> g = ref::gaussian(numel, rng);
            brg_store_f32(grad.data(), dtype, 0, g.data(), numel);
            brg_update_target target = {run.p.data(), param.data(), grad.data(), dtype,
                                        dtype,        numel,        nullptr};
            brg_muon_hyper h = hyper_of(defaults);
            brg_muon_host(&target, run.m.data(), rows, cols, nullptr, 1.0, &h, &schedule,
                          run.w.get());
            brg_load_f32(buffer.data(), grad.data(), dtype, 0, numel);
            defaults.step(p, m, ref::matrix(buffer, rows, cols));
        }
        EXPECT_LT(ref::relative_error(run.p.data(), p.v), 2e-6);
        brg_store_f32(rounded.data(), dtype, 0, run.p.data(), numel);
        EXPECT_EQ(rounded, param);
    }
}

} // namespace
