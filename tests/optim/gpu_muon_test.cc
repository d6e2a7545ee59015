// SPDX-License-Identifier: Apache-2.0
// Muon on the GPU: Newton-Schulz against float64 of the same polynomial, and whole updates against
// the host's.
#include "tests/optim/gpu_muon.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/seed.h"

using namespace gpu;

namespace
{

class gpu_muon : public gpu_test
{
  protected:
    double error_of(const std::vector<float> &g, int rows, int cols, const Options &o)
    {
        Muon muon(kernels, rows, cols, 1, o);
        std::vector<float> rounded = muon.set_grad(0, g);
        muon.run(stream);
        std::vector<float> got = muon.orthogonal();
        return ref::relative_error(got.data(), polynomial(rounded, rows, cols, o.tuples, o.eps));
    }
};

TEST_F(gpu_muon, GaussianInEveryFormAndPrecision)
{
    auto rng = test_rng(21);
    const int shapes[][2] = {{512, 2048}, {2048, 512}, {1024, 1024}, {333, 1001}, {1001, 333}};
    for (auto [rows, cols] : shapes) {
        std::vector<float> g = ref::gaussian((size_t)rows * cols, rng);
        for (int precision : {BRG_NS_FP16, BRG_NS_BF16, BRG_NS_FP32})
            for (int algorithm : {BRG_NS_AUTO, BRG_NS_STANDARD, BRG_NS_SYMMETRIC, BRG_NS_GRAM}) {
                if (precision == BRG_NS_BF16 && algorithm == BRG_NS_GRAM)
                    continue;
                Options o;
                o.precision = precision;
                o.algorithm = algorithm;
                // A square Gaussian matrix is ill-conditioned; Gram pinned there is the caller's.
                double bar = precision == BRG_NS_FP32   ? 2e-5
                             : precision == BRG_NS_BF16 ? 1e-2
                             : rows == cols             ? 1e-2
                                                        : 1.5e-3;
                if (precision == BRG_NS_FP32 && rows == cols)
                    bar = 1e-3;
                EXPECT_LT(error_of(g, rows, cols, o), bar)
                    << rows << "x" << cols << " precision " << precision << " algorithm "
                    << algorithm;
            }
    }
}

TEST_F(gpu_muon, EverySetIsNoWorseThanBfloat16)
{
    auto rng = test_rng(22);
    const int rows = 256, cols = 1024;
    for (int kind = 0; kind < 4; kind++) {
        ref::Vec values = logarithmic(rows, kind == 1 ? 3 : 9);
        if (kind == 3) // two spikes above a small tail
            for (int i = 0; i < rows; i++)
                values[i] = i == 0 ? 1 : i == 1 ? 0.8 : 1e-4 * std::pow(1e-3, (double)i / rows);
        std::vector<float> g = kind == 0 ? ref::gaussian((size_t)rows * cols, rng)
                                         : with_spectrum(rows, cols, values, rng);
        for (int set = BRG_NS_QUINTIC; set <= BRG_NS_CUBIC5; set++) {
            Options o;
            o.tuples = tuples_of((brg_ns_coefficients)set);
            double chosen = error_of(g, rows, cols, o);
            o.algorithm = BRG_NS_GRAM;
            double gram = error_of(g, rows, cols, o);
            o.algorithm = BRG_NS_STANDARD;
            o.precision = BRG_NS_BF16;
            double bfloat16 = error_of(g, rows, cols, o);
            EXPECT_LE(chosen, bfloat16) << "set " << set << " spectrum " << kind;
            EXPECT_LE(gram, bfloat16) << "set " << set << " spectrum " << kind;
            if (set == BRG_NS_QUINTIC && kind < 3) {
                EXPECT_LT(chosen, kind ? 2e-2 : 1.5e-3) << kind;
                EXPECT_LT(gram, kind ? 2e-2 : 1.5e-3) << kind;
            }
        }
    }
}

TEST_F(gpu_muon, SmallOddAndVectorShapes)
{
    auto rng = test_rng(23);
    const int shapes[][2] = {{1, 1},  {1, 37},  {37, 1},  {1, 2500}, {3, 5},
                             {45, 7}, {64, 64}, {65, 67}, {119, 300}};
    for (auto [rows, cols] : shapes)
        for (int set = BRG_NS_QUINTIC; set <= BRG_NS_CUBIC5; set++) {
            Options o;
            o.tuples = tuples_of((brg_ns_coefficients)set);
            std::vector<float> g = ref::gaussian((size_t)rows * cols, rng);
            // Vectors and small matrices are iterated in float64, the rest in float32.
            double bar = rows == 1 || cols == 1 || rows * cols <= BRG_NS_SMALL_ELEMS ? 3e-7 : 1e-4;
            EXPECT_LT(error_of(g, rows, cols, o), bar) << rows << "x" << cols << " set " << set;
        }
}

TEST_F(gpu_muon, SmallUpdatesEqualTheHosts)
{
    auto rng = test_rng(29);
    brg_ns_schedule schedule;
    ASSERT_EQ(brg_ns_schedule_make(BRG_NS_CANS, 0, nullptr, 0, &schedule), BRG_OK);
    const int shapes[][2] = {{1, 777}, {777, 1}, {1, 1}, {45, 45}, {12, 100}, {100, 12}};
    for (auto [rows, cols] : shapes)
        for (int dtype : {BRG_FLOAT32, BRG_BFLOAT16, BRG_FLOAT16}) {
            Options o;
            o.tuples = tuples_of(BRG_NS_CANS);
            o.grad_dtype = o.param_dtype = dtype;
            o.nesterov = 1;
            o.num_pieces = rows % 4 ? 1 : 4;
            o.gap_rows = 3;
            o.momentum = 0.9;
            o.lr = 0.02;
            o.wd = 0.1;
            o.grad_scale = 0.25f;
            Muon muon(kernels, rows, cols, 3, o);
            std::vector<std::vector<float>> starts, grads;
            for (int i = 0; i < 3; i++) {
                starts.push_back(ref::gaussian((size_t)rows * cols, rng));
                grads.push_back(muon.set_grad(
                    i, i == 1 ? std::vector<float>((size_t)rows * cols) /* zeros stay zeros */
                              : ref::gaussian((size_t)rows * cols, rng)));
                muon.set_master(i, starts[i]);
            }
            muon.run(stream);
            brg_ns_workspace workspace;
            ASSERT_EQ(brg_ns_workspace_create((int64_t)rows * cols, std::min(rows, cols), true,
                                              &workspace),
                      BRG_OK);
            brg_muon_hyper hyper = {o.lr,
                                    o.momentum,
                                    o.wd,
                                    o.eps,
                                    o.extra,
                                    BRG_MOMENTUM_ACCUMULATE,
                                    (brg_muon_scale)o.scale,
                                    true};
            for (int i = 0; i < 3; i++) {
                std::vector<float> m(starts[i].size());
                brg_update_target target = {starts[i].data(), starts[i].data(), grads[i].data(),
                                            BRG_FLOAT32,      BRG_FLOAT32,      m.size(),
                                            nullptr};
                brg_muon_host(&target, m.data(), rows, cols, nullptr, o.grad_scale, &hyper,
                              &schedule, &workspace);
                EXPECT_LT(ref::relative_error(muon.master(i).data(),
                                              ref::Vec(starts[i].begin(), starts[i].end())),
                          5e-7)
                    << rows << "x" << cols << " dtype " << dtype;
                EXPECT_EQ(muon.momentum(i), m);
                std::vector<float> master = muon.master(i), param = muon.param(i);
                for (size_t k = 0; k < master.size() && dtype == BRG_BFLOAT16; k++)
                    ASSERT_EQ(param[k], brg_float_from_bf16(brg_bf16_from_float(master[k])));
            }
            brg_ns_workspace_destroy(&workspace);
        }
}

TEST_F(gpu_muon, ExtremeNormsAndZeros)
{
    auto rng = test_rng(24);
    for (auto [rows, cols] : {std::pair{40, 70}, {256, 384}, {384, 256}}) {
        std::vector<float> unit = ref::gaussian((size_t)rows * cols, rng);
        double size = ref::frobenius(ref::Vec(unit.begin(), unit.end()));
        for (double norm : {1e-20, 1.0, 1e20, 0.0})
            for (double eps : {0.0, 1e-40, 1e-15}) {
                Options o;
                o.eps = eps;
                std::vector<float> g = unit;
                for (float &x : g)
                    x = (float)(x * (norm / size));
                if (norm == 0 || norm > eps) {
                    EXPECT_LT(error_of(g, rows, cols, o), norm == 0 ? 1e-300 : 5e-3)
                        << norm << " eps " << eps;
                }
            }
    }
}

// However many matrices of a shape a rank has, the bits are those of one alone.
TEST_F(gpu_muon, BatchesEqualSinglesAndRepeatBitwise)
{
    auto rng = test_rng(25);
    struct {
        int rows, cols, count, precision, algorithm;
    } cases[] = {{1024, 1536, 5, BRG_NS_FP16, BRG_NS_STANDARD},
                 {1024, 1536, 5, BRG_NS_FP16, BRG_NS_SYMMETRIC},
                 {1024, 1536, 5, BRG_NS_FP16, BRG_NS_GRAM},
                 {1024, 1536, 5, BRG_NS_FP16, BRG_NS_AUTO},
                 {1024, 1024, 5, BRG_NS_BF16, BRG_NS_AUTO},
                 {512, 640, 5, BRG_NS_FP32, BRG_NS_AUTO},
                 {333, 1001, 7, BRG_NS_FP16, BRG_NS_AUTO},
                 {60, 200, 66, BRG_NS_FP16, BRG_NS_AUTO},
                 {30, 40, 66, BRG_NS_FP16, BRG_NS_AUTO},
                 {1, 300, 66, BRG_NS_FP16, BRG_NS_AUTO}};
    for (auto [rows, cols, count, precision, algorithm] : cases) {
        Options o;
        o.precision = precision;
        o.algorithm = algorithm;
        Muon batch(kernels, rows, cols, count, o), single(kernels, rows, cols, 1, o);
        std::vector<std::vector<float>> grads;
        for (int i = 0; i < count; i++) {
            grads.push_back(ref::gaussian((size_t)rows * cols, rng));
            batch.set_grad(i, grads[i]);
        }
        batch.run(stream);
        std::vector<uint8_t> first = batch.memory().result();
        batch.run(stream);
        EXPECT_TRUE(first == batch.memory().result()) << batch.description();
        for (int i : {0, 3, count - 1}) {
            single.set_grad(0, grads[i]);
            single.run(stream);
            EXPECT_TRUE(single.master() == batch.master(i))
                << batch.description() << single.description();
        }
    }
}

// Whole updates against the host's: dtypes, momentum conventions, decay, row pieces.
TEST_F(gpu_muon, UpdatesEqualTheHosts)
{
    auto rng = test_rng(26);
    brg_ns_schedule schedule;
    ASSERT_EQ(brg_ns_schedule_make(BRG_NS_QUINTIC, 0, nullptr, 0, &schedule), BRG_OK);
    for (int bits = 0; bits < 24; bits++)
        for (auto [rows, cols] : {std::pair{60, 200}, {200, 60}, {66, 35}}) {
            Options o;
            o.precision = BRG_NS_FP32;
            o.grad_dtype = bits % 3 == 0 ? BRG_FLOAT32 : bits % 3 == 1 ? BRG_FLOAT16 : BRG_BFLOAT16;
            o.param_dtype = bits / 3 % 2 ? BRG_BFLOAT16 : BRG_FLOAT32;
            o.nesterov = bits / 6 % 2;
            o.accumulate = bits / 12;
            o.num_pieces = bits % 2 ? 1 : cols == 35 ? 3 : 4;
            o.gap_rows = 3;
            o.momentum = 0.9;
            o.lr = 0.02;
            o.wd = 0.1;
            o.extra = 0.2;
            o.grad_scale = 0.25f;
            Muon muon(kernels, rows, cols, 1, o);
            std::vector<float> start = ref::gaussian((size_t)rows * cols, rng);
            std::vector<float> g = muon.set_grad(0, ref::gaussian((size_t)rows * cols, rng)),
                               m(start.size());
            muon.set_master(0, start);
            muon.run(stream);
            brg_muon_hyper hyper = {o.lr,
                                    o.momentum,
                                    o.wd,
                                    o.eps,
                                    o.extra,
                                    BRG_MOMENTUM_EMA,
                                    (brg_muon_scale)o.scale,
                                    o.nesterov != 0};
            hyper.style = o.accumulate ? BRG_MOMENTUM_ACCUMULATE : BRG_MOMENTUM_EMA;
            brg_ns_workspace workspace;
            ASSERT_EQ(brg_ns_workspace_create((int64_t)rows * cols, std::min(rows, cols), false,
                                              &workspace),
                      BRG_OK);
            brg_update_target target = {start.data(), start.data(), g.data(), BRG_FLOAT32,
                                        BRG_FLOAT32,  g.size(),     nullptr};
            brg_muon_host(&target, m.data(), rows, cols, nullptr, o.grad_scale, &hyper, &schedule,
                          &workspace);
            brg_ns_workspace_destroy(&workspace);
            EXPECT_LT(
                ref::relative_error(muon.master().data(), ref::Vec(start.begin(), start.end())),
                2e-6)
                << bits;
            EXPECT_LT(ref::relative_error(muon.momentum().data(), ref::Vec(m.begin(), m.end())),
                      1e-7)
                << bits;
            std::vector<float> master = muon.master(), param = muon.param();
            for (size_t i = 0; i < master.size() && o.param_dtype == BRG_BFLOAT16; i++)
                ASSERT_EQ(param[i], brg_float_from_bf16(brg_bf16_from_float(master[i])));
        }
}

TEST_F(gpu_muon, NothingChangesWhereNothingIsApplied)
{
    auto rng = test_rng(27);
    Options o;
    o.apply = 0;
    o.param_dtype = BRG_BFLOAT16;
    Muon muon(kernels, 256, 512, 2, o);
    for (int i = 0; i < 2; i++) {
        std::vector<float> g = ref::gaussian(256 * 512, rng);
        g[5] = NAN;
        muon.set_grad(i, g);
    }
    muon.run(stream);
    EXPECT_TRUE(muon.memory().unchanged());
}

TEST_F(gpu_muon, ChoicesAreCached)
{
    const std::string file = testing::TempDir() + "brigade-ns-" + std::to_string(getpid());
    FILE *to = fopen(file.c_str(), "w");
    ASSERT_NE(to, nullptr);
    fputs("a line of someone else\nbrigade-ns-3 cut off", to);
    fclose(to);
    Options o;
    o.cache = file.c_str();
    std::string tuned = Muon(kernels, 512, 1024, 2, o).description();
    EXPECT_NE(tuned.find("tuned"), std::string::npos) << tuned;
    std::string cached = Muon(kernels, 512, 1024, 2, o).description();
    EXPECT_NE(cached.find("from the cache"), std::string::npos) << cached;
    EXPECT_EQ(cached.substr(0, cached.rfind(';')), tuned.substr(0, tuned.rfind(';')));
    o.precision = BRG_NS_BF16; // another key
    tuned = Muon(kernels, 512, 1024, 2, o).description();
    EXPECT_NE(tuned.find("tuned"), std::string::npos) << tuned;
    EXPECT_EQ(remove(file.c_str()), 0);
}

/* Rounding leaves whole products of commuting symmetric matrices not quite symmetric. Where A B^T
 * was taken for A B, the Gram form amplified that. */
TEST_F(gpu_muon, AsymmetryOfWholeProductsIsNotAmplified)
{
    auto rng = test_rng(29);
    const int rows = 256, cols = 1024;
    const std::string file = testing::TempDir() + "brigade-ns-whole-" + std::to_string(getpid());
    for (auto set : {BRG_NS_QUINTIC, BRG_NS_DEEPSEEKV4}) {
        Options o;
        o.tuples = tuples_of(set);
        o.cache = file.c_str();
        std::string lines[2]; // the standard form's, whose products are whole; the Gram form's
        for (int gram : {0, 1}) {
            remove(file.c_str());
            o.algorithm = gram ? BRG_NS_GRAM : BRG_NS_STANDARD;
            Muon(kernels, rows, cols, 1, o);
            std::ifstream from(file);
            std::getline(from, lines[gram]);
        }
        const size_t whole = lines[0].find('\t'), gram = lines[1].find('\t');
        ASSERT_TRUE(whole != std::string::npos && gram != std::string::npos) << lines[1];
        std::ofstream(file) << lines[1].substr(0, gram) << "\t1" << lines[0].substr(whole + 2)
                            << "\n";
        std::string text = Muon(kernels, rows, cols, 1, o).description();
        EXPECT_NE(text.find("gram"), std::string::npos) << text;
        EXPECT_NE(text.find("XX^T whole, squares whole; from the cache"), std::string::npos)
            << text;
        EXPECT_LT(error_of(ref::gaussian((size_t)rows * cols, rng), rows, cols, o), 1.5e-3) << text;
    }
    EXPECT_EQ(remove(file.c_str()), 0);
}

TEST_F(gpu_muon, PinsAndRefusals)
{
    Options o;
    o.algorithm = BRG_NS_GRAM;
    o.own_restarts = true;
    o.restarts = {2, 4};
    std::string text = Muon(kernels, 1024, 2048, 1, o).description();
    EXPECT_NE(text.find("gram, restart 2, restart 4"), std::string::npos) << text;
    o.algorithm = BRG_NS_SYMMETRIC;
    text = Muon(kernels, 1024, 2048, 1, o).description();
    EXPECT_NE(text.find("standard; XX^T"), std::string::npos) << text;
    EXPECT_EQ(text.find("whole"), std::string::npos) << text;
    o.algorithm = BRG_NS_STANDARD;
    text = Muon(kernels, 1024, 2048, 1, o).description();
    EXPECT_NE(text.find("standard; XX^T whole, squares whole"), std::string::npos) << text;
    o.algorithm = BRG_NS_AUTO; // near-square: never the Gram form
    text = Muon(kernels, 1024, 1152, 1, o).description();
    EXPECT_NE(text.find("standard"), std::string::npos) << text;
    o.algorithm = BRG_NS_GRAM;
    o.precision = BRG_NS_BF16;
    EXPECT_THROW(Muon(kernels, 1024, 2048, 1, o), std::runtime_error);
    o.precision = BRG_NS_FP16;
    o.restarts = {5};
    EXPECT_THROW(Muon(kernels, 1024, 2048, 1, o), std::runtime_error);
}

TEST_F(gpu_muon, AnUpdateInAGraph)
{
    auto rng = test_rng(28);
    Options o;
    o.momentum = 0.9;
    Muon eager(kernels, 512, 1024, 3, o), captured(kernels, 512, 1024, 3, o);
    for (int i = 0; i < 3; i++) {
        std::vector<float> g = ref::gaussian(512 * 1024, rng);
        eager.set_grad(i, g);
        captured.set_grad(i, g);
    }
    eager.upload();
    captured.upload();
    captured.update(stream); // loads the kernels
    wait();
    captured.upload();
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    captured.update(stream);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
    for (int step = 0; step < 3; step++) {
        eager.update(stream);
        CUDA_CHECK(cudaGraphLaunch(replay, stream));
    }
    wait();
    eager.download();
    captured.download();
    for (int i = 0; i < 3; i++) {
        EXPECT_TRUE(captured.master(i) == eager.master(i));
    }
    CUDA_CHECK(cudaGraphExecDestroy(replay));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

} // namespace
