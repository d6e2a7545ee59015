// SPDX-License-Identifier: Apache-2.0
/* The whole scheduler on GPUs: one rank with the real NCCL, or as many as there are GPUs; two and
 * four on one GPU with the stand-in. */
#include <cmath>
#include <filesystem>
#include <set>
#include <unistd.h>

#include "tests/gpu/gpu_rank.h"

extern "C" {
#include "sched/trace/reader.h"
}

namespace
{

struct Mode {
    const char *name;
    int world, overlap, all_reduce, per_group, overlap_gather, prefetch;
};

Plan plan_of(const Mode &mode, brg_algorithm algorithm = BRG_LAYERWISE)
{
    Plan plan;
    plan.layout.algorithm = algorithm;
    plan.layout.bucket_size = 500;
    plan.sched.overlap_grad_reduce = mode.overlap;
    plan.sched.all_reduce = mode.all_reduce;
    plan.sched.buckets_per_group = mode.per_group;
    plan.sched.overlap_param_gather = mode.overlap_gather;
    plan.sched.param_gather_prefetch = mode.prefetch;
    return plan;
}

class GpuScheduler : public testing::TestWithParam<Mode>
{
};

bool same_bits(const std::vector<float> &a, const std::vector<float> &b)
{
    return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

TEST_P(GpuScheduler, ReducedGradientsEqualFloat64Sums)
{
    Mode mode = GetParam();
    SKIP_UNLESS_RUNS(mode.world);
    run_gpu_ranks(mode.world, [&](int, brg_context *ctx) {
        GpuTrainer t(ctx, plan_of(mode));
        t.feedback = 0;
        for (int step = 1; step <= 4; step++) {
            t.compute();
            for (int b = 0; b < brg_scheduler_num_buckets(t.sched); b++) {
                const brg_bucket_view *view = brg_sched_view(t.sched, b);
                for (int s = 0; s < view->num_segments; s++) {
                    const brg_segment &seg = view->segments[s];
                    std::vector<float> got =
                        t.fetch((const float *)view->grad_base + seg.offset, seg.numel);
                    for (int64_t i = 0; i < seg.numel; i++) {
                        double sum = 0;
                        for (int r = 0; r < t.world; r++)
                            sum += contribution(r, step, seg.param, seg.param_start + i);
                        ASSERT_NEAR(got[(size_t)i], sum / t.world, 1e-6)
                            << "step " << step << " param " << t.model.names[(size_t)seg.param];
                    }
                }
            }
        }
        for (int b = 0; b < brg_scheduler_num_buckets(t.sched); b++)
            EXPECT_EQ(t.reductions(b), 4u);
    });
}

std::vector<std::vector<float>> train(const Mode &mode, int steps)
{
    std::vector<std::vector<float>> values((size_t)mode.world);
    run_gpu_ranks(mode.world, [&](int rank, brg_context *ctx) {
        GpuTrainer t(ctx, plan_of(mode));
        t.make_optimizers(true);
        for (int i = 0; i < steps; i++)
            t.train_step();
        values[(size_t)rank] = t.values();
    });
    return values;
}

TEST_P(GpuScheduler, TheSameRunTwiceGivesTheSameBits)
{
    Mode mode = GetParam();
    SKIP_UNLESS_RUNS(mode.world);
    auto first = train(mode, 10), second = train(mode, 10);
    for (int rank = 0; rank < mode.world; rank++) {
        EXPECT_TRUE(same_bits(first[(size_t)rank], second[(size_t)rank])) << "rank " << rank;
        EXPECT_TRUE(same_bits(first[0], first[(size_t)rank])) << "rank " << rank;
        for (float value : first[(size_t)rank])
            ASSERT_TRUE(std::isfinite(value));
    }
}

/* Twenty captured steps against twenty ordinary ones, the learning rate falling in both. */
void run_twenty(GpuTrainer &t, bool captured, bool optimizer_first)
{
    auto turn = [&] { /* from one point between two steps to the next */
                      if (optimizer_first)
                          ASSERT_OK(brg_step(t.optimizer, t.main));
                      t.compute();
                      if (!optimizer_first)
                          ASSERT_OK(brg_step(t.optimizer, t.main));
    };
    if (optimizer_first)
        t.compute();
    for (int i = 0; i < 3; i++)
        turn();
    brg_graph *graph = nullptr;
    if (captured) {
        ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
        turn();
        ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
    }
    for (int i = 0; i < 20; i++) {
        for (brg_optimizer *child : t.children)
            ASSERT_OK(brg_optimizer_set_lr(child, 0.01 / (1 + i)));
        if (captured) {
            ASSERT_OK(brg_graph_launch(graph, t.main));
        } else {
            turn();
        }
        if (i % 4 == 3) /* else older replays' times are lost */
            ASSERT_OK(brg_stream_synchronize(t.ctx, t.main));
    }
    turn();
    if (optimizer_first)
        ASSERT_OK(brg_step(t.optimizer, t.main));
    brg_graph_destroy(graph);
}

void compare_graph(const Mode &mode, bool optimizer_first, const char *trace_dir)
{
    std::vector<std::vector<float>> eager((size_t)mode.world), captured((size_t)mode.world);
    for (bool graph : {false, true})
        run_gpu_ranks(
            mode.world,
            [&](int rank, brg_context *ctx) {
                GpuTrainer t(ctx, plan_of(mode));
                t.make_optimizers(true);
                run_twenty(t, graph, optimizer_first);
                (graph ? captured : eager)[(size_t)rank] = t.values();
                double norm = 0;
                EXPECT_OK(brg_grad_norm(t.optimizer, &norm));
                EXPECT_TRUE(std::isfinite(norm) && norm > 0) << norm;
                for (int b = 0; b < brg_scheduler_num_buckets(t.sched); b++)
                    EXPECT_EQ(t.reductions(b), 24u + optimizer_first);
            },
            graph ? trace_dir : "");
    for (int rank = 0; rank < mode.world; rank++)
        EXPECT_TRUE(same_bits(eager[(size_t)rank], captured[(size_t)rank])) << "rank " << rank;
}

TEST_P(GpuScheduler, ReplaysEqualOrdinarySteps)
{
    SKIP_UNLESS_RUNS(GetParam().world);
    compare_graph(GetParam(), false, "");
}

/* The stand-in's ranks wait for one another in kernels, and with the branches of four graphs on one
 * GPU such a kernel can sit in front of what it waits for: seen on an H200. */
#define SKIP_UNLESS_REPLAYS(world)                                                                 \
    do {                                                                                           \
        SKIP_UNLESS_RUNS(world);                                                                   \
        if (with_stand_in() && (world) > 2)                                                        \
            GTEST_SKIP() << "the stand-in for NCCL cannot replay graphs of four ranks on one GPU"; \
    } while (0)

TEST_P(GpuScheduler, ReplaysThatBeginWithTheOptimizerEqualOrdinarySteps)
{
    SKIP_UNLESS_REPLAYS(GetParam().world);
    compare_graph(GetParam(), true, "");
}

TEST_P(GpuScheduler, TraceShowsReplays)
{
    SKIP_UNLESS_REPLAYS(GetParam().world);
    char name[] = "/tmp/brigade-gpu-XXXXXX";
    std::string dir = mkdtemp(name);
    uint64_t begin = brg_now_ns();
    compare_graph(GetParam(), false, dir.c_str());
    uint64_t end = brg_now_ns();
    const double slack_ns = 1e6; /* two clocks */
    brg_trace *trace = nullptr;
    ASSERT_OK(brg_trace_open((dir + "/rank-0.ring").c_str(), &trace));
    EXPECT_EQ(trace->drops, 0u);
    std::set<uint32_t> replayed;
    std::set<int> kinds;
    uint64_t last = 0;
    for (size_t i = 0; i < trace->nrecs; i++) {
        const brg_rec &r = trace->recs[i];
        if (!(r.flags & BRG_REC_GRAPH) || r.kind == BRG_REC_CLOCK)
            continue;
        kinds.insert(r.kind);
        EXPECT_GT((double)r.t0_ns, (double)begin - slack_ns);
        EXPECT_LT((double)r.t1_ns, (double)end + slack_ns);
        if (r.kind != BRG_REC_STEP)
            continue;
        EXPECT_TRUE(replayed.insert(r.step).second) << r.step;
        EXPECT_GT(r.t1_ns, r.t0_ns);
        EXPECT_GE(r.t0_ns, last);
        last = r.t1_ns;
    }
    EXPECT_EQ(replayed.size(), 20u);
    for (int kind : {BRG_REC_STEP, BRG_REC_COMPUTE, BRG_REC_OPTIMIZER, BRG_REC_NORM})
        EXPECT_TRUE(kinds.count(kind)) << kind;
    EXPECT_TRUE(kinds.count(BRG_REC_COLLECTIVE));
    brg_trace_close(trace);
    std::filesystem::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuScheduler,
                         testing::Values(Mode{"one", 1, 1, 0, 1, 1, 0},
                                         Mode{"two_plain", 2, 0, 0, 1, 0, 0},
                                         Mode{"two", 2, 1, 0, 1, 1, 0},
                                         Mode{"two_limited", 2, 1, 0, 1, 1, 1},
                                         Mode{"two_all_reduce", 2, 1, 1, 1, 0, 0},
                                         Mode{"four_grouped", 4, 1, 0, 2, 1, 0}),
                         [](const testing::TestParamInfo<Mode> &info) { return info.param.name; });

/* All ranks with the same gradients: their average is that gradient, to the bit. */
void compare_worlds(const Model *model)
{
    std::vector<float> values[3];
    for (int world : {1, 2})
        run_gpu_ranks(world, [&](int rank, brg_context *ctx) {
            Plan plan = plan_of({"", world, 1, 0, 1, 1, 0});
            if (model) {
                plan.model = *model;
                plan.layout.bucket_size = 100000;
            }
            GpuTrainer t(ctx, plan);
            t.as_rank = 0;
            t.feedback = 0;
            brg_muon_options options = {};
            options.lr = 0.02;
            ASSERT_OK(brg_muon_create(t.sched, &options, &t.optimizer));
            for (int i = 0; i < 10; i++)
                t.train_step();
            std::vector<float> mine = t.values();
            if (rank == 0)
                values[world] = mine;
        });
    EXPECT_TRUE(same_bits(values[1], values[2]));
    for (float value : values[1])
        ASSERT_TRUE(std::isfinite(value));
}

TEST(GpuMuon, TwoRanksEqualOne)
{
    SKIP_UNLESS_RUNS(2);
    compare_worlds(nullptr);
}

/* Shapes that are iterated by products, of which the two ranks have other numbers than one alone.
 */
TEST(GpuMuon, TwoRanksEqualOneWithProducts)
{
    SKIP_UNLESS_RUNS(2);
    Model model;
    for (int i = 0; i < 5; i++) {
        std::string prefix = std::to_string(i) + ".";
        model.add(prefix + "square", {256, 256});
        model.add(prefix + "wide", {192, 640});
        model.add(prefix + "narrow", {300, 72});
        model.add(prefix + "bias", {256});
    }
    compare_worlds(&model);
}

TEST(GpuMuon, RowSplitsAreRefusedWhileGraphsUseThePlan)
{
    SKIP_UNLESS_RUNS(1);
    run_gpu_ranks(1, [&](int, brg_context *ctx) {
        Plan plan = plan_of({"", 1, 1, 0, 1, 1, 0});
        plan.model = Model();
        plan.model.add("fused", {48, 16});
        GpuTrainer t(ctx, plan);
        brg_muon_options options = {};
        ASSERT_OK(brg_muon_create(t.sched, &options, &t.optimizer));
        const int64_t whole = 48, blocks[] = {32, 8, 8};
        ASSERT_OK(brg_muon_set_row_split(t.optimizer, 0, 1, &whole, 1));
        t.train_step();
        brg_graph *graph = nullptr;
        ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
        t.train_step();
        EXPECT_EQ(brg_muon_set_row_split(t.optimizer, 0, 1, blocks, 3), BRG_ERR_STATE);
        ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
        EXPECT_EQ(brg_muon_set_row_split(t.optimizer, 0, 1, blocks, 3), BRG_ERR_STATE);
        ASSERT_OK(brg_graph_launch(graph, t.main));
        brg_graph_destroy(graph);
        ASSERT_OK(brg_muon_set_row_split(t.optimizer, 0, 1, blocks, 3));
        t.train_step();
    });
}

TEST(GpuStepStates, MainGradientsAndAccumulation)
{
    SKIP_UNLESS_RUNS(with_stand_in() ? 2 : 1);
    run_gpu_ranks(with_stand_in() ? 2 : 1, [&](int, brg_context *ctx) {
        Plan plan = plan_of({"", 1, 1, 0, 1, 1, 0});
        GpuTrainer t(ctx, plan);
        int64_t numel = t.model.numel(0);
        std::vector<double> ones((size_t)numel, 2.5);
        void *main_grad = nullptr;
        ASSERT_EQ(t.rt->malloc_device(&main_grad, ones.size() * sizeof(double)), 0);
        ASSERT_EQ(t.rt->memcpy_async(main_grad, ones.data(), ones.size() * sizeof(double),
                                     BRG_COPY_HOST_TO_DEVICE, t.main),
                  0);
        ASSERT_OK(brg_stream_synchronize(ctx, t.main));
        ASSERT_OK(brg_set_main_grad(t.sched, 0, main_grad, BRG_FLOAT64));
        for (int step = 0; step < 3; step++) {
            t.compute();
            const brg_bucket_view *view =
                brg_sched_view(t.sched, brg_scheduler_bucket_of(t.sched, 0));
            for (int s = 0; s < view->num_segments; s++) {
                if (view->segments[s].param != 0)
                    continue;
                for (float got : t.fetch((const float *)view->grad_base + view->segments[s].offset,
                                         view->segments[s].numel))
                    ASSERT_EQ(got, 2.5f);
            }
        }
        ASSERT_OK(brg_set_main_grad(t.sched, 0, nullptr, BRG_FLOAT32));
        t.rt->free_device(main_grad);
    });
}

} // namespace

int main(int argc, char **argv)
{
    /* Streams of several ranks must not share hardware queues: kernels of the stand-in wait for
     * each other. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
