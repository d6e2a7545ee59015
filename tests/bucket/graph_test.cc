// SPDX-License-Identifier: Apache-2.0
/* Captured steps, on the host device with made-up graphs: what is captured, in which order it
 * joins, and that replays do what ordinary steps do. */
#include <cstring>
#include <filesystem>
#include <set>
#include <unistd.h>

#include "tests/bucket/fake_trainer.h"

extern "C" {
#include "sched/trace/analysis.h"
#include "sched/trace/reader.h"
}

namespace
{

struct Mode {
    const char *name;
    int world, overlap, all_reduce, per_group, overlap_gather, prefetch;
    bool optimizer_first;
};

Plan plan_of(const Mode &mode)
{
    Plan plan;
    plan.layout.bucket_size = 500;
    plan.sched.overlap_grad_reduce = mode.overlap;
    plan.sched.all_reduce = mode.all_reduce;
    plan.sched.buckets_per_group = mode.per_group;
    plan.sched.overlap_param_gather = mode.overlap_gather;
    plan.sched.param_gather_prefetch = mode.prefetch;
    return plan;
}

class Graphs : public testing::TestWithParam<Mode>
{
};

/* Two ordinary steps, three replays, one ordinary step, twenty replays, one ordinary step. */
void mixed_run(Trainer &t, bool optimizer_first)
{
    auto half_turn = [&] { /* from one point between two steps to the next */
                           if (optimizer_first)
                               t.optimize();
                           t.compute();
                           if (!optimizer_first)
                               t.optimize();
    };
    if (optimizer_first)
        t.compute();
    half_turn();
    half_turn();
    brg_graph *graph = nullptr;
    ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
    half_turn();
    ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
    for (int i = 0; i < 3; i++)
        ASSERT_OK(brg_graph_launch(graph, t.main));
    half_turn();
    for (int i = 0; i < 20; i++)
        ASSERT_OK(brg_graph_launch(graph, i % 2 ? t.side : t.main));
    half_turn();
    if (optimizer_first)
        t.optimize();
    brg_graph_destroy(graph);
}

TEST_P(Graphs, ReplaysEqualOrdinarySteps)
{
    Mode mode = GetParam();
    Plan plan = plan_of(mode);
    std::vector<std::vector<float>> eager((size_t)mode.world), mixed((size_t)mode.world);
    const int steps = 2 + 3 + 1 + 20 + 1 + mode.optimizer_first;
    run_fake_ranks(mode.world, [&](int rank, brg_context *ctx) {
        Trainer t(ctx, plan);
        for (int i = 0; i < steps; i++) {
            t.compute();
            t.optimize();
        }
        eager[(size_t)rank] = t.values();
    });
    run_fake_ranks(mode.world, [&](int rank, brg_context *ctx) {
        Trainer t(ctx, plan);
        t.slow = true;
        mixed_run(t, mode.optimizer_first);
        mixed[(size_t)rank] = t.values();
        EXPECT_EQ(t.step, steps);
        for (int b = 0; b < brg_scheduler_num_buckets(t.sched); b++) {
            EXPECT_EQ(t.reductions(b), (uint64_t)steps);
            EXPECT_EQ(t.gathers(b), mode.all_reduce ? 0 : (uint64_t)steps);
        }
    });
    for (int rank = 0; rank < mode.world; rank++)
        EXPECT_EQ(eager[(size_t)rank], mixed[(size_t)rank]) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Graph, Graphs,
                         testing::Values(Mode{"plain", 2, 0, 0, 1, 0, 0, false},
                                         Mode{"overlapped", 2, 1, 0, 1, 1, 0, false},
                                         Mode{"grouped", 3, 1, 0, 2, 1, 0, false},
                                         Mode{"limited", 2, 1, 0, 1, 1, 2, false},
                                         Mode{"all_reduce", 2, 1, 1, 1, 0, 0, false},
                                         Mode{"optimizer_first", 2, 1, 0, 1, 1, 0, true},
                                         Mode{"optimizer_first_limited", 2, 1, 0, 1, 1, 1, true},
                                         Mode{"one_rank", 1, 1, 0, 1, 1, 0, false}),
                         [](const testing::TestParamInfo<Mode> &info) { return info.param.name; });

TEST(Graph, TraceShowsReplays)
{
    char name[] = "/tmp/brigade-graph-XXXXXX";
    std::string dir = mkdtemp(name);
    uint64_t begin = brg_now_ns();
    run_fake_ranks(
        2,
        [&](int, brg_context *ctx) {
            Trainer t(ctx, plan_of({"", 2, 1, 0, 1, 1, 0, false}));
            for (int i = 0; i < 3; i++) {
                t.compute();
                t.optimize();
            }
            brg_graph *graph = nullptr;
            ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
            t.compute();
            t.optimize();
            ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
            for (int i = 0; i < 12; i++) {
                ASSERT_OK(brg_graph_launch(graph, t.main));
                ASSERT_OK(brg_stream_synchronize(ctx, t.main));
            }
            t.compute();
            t.optimize();
            brg_graph_destroy(graph);
        },
        dir.c_str());
    uint64_t end = brg_now_ns();
    brg_trace *trace = nullptr;
    ASSERT_OK(brg_trace_open((dir + "/rank-0.ring").c_str(), &trace));
    EXPECT_EQ(trace->drops, 0u);
    EXPECT_EQ(trace->invalid, 0u);
    std::set<uint32_t> replayed, ordinary;
    std::map<int, int> kinds;
    std::map<uint32_t, int> collectives;
    for (size_t i = 0; i < trace->nrecs; i++) {
        const brg_rec &r = trace->recs[i];
        if (r.kind == BRG_REC_CLOCK)
            continue;
        EXPECT_GE(r.t0_ns, begin);
        EXPECT_LE(r.t1_ns, end);
        if (r.kind == BRG_REC_STEP)
            (r.flags & BRG_REC_GRAPH ? replayed : ordinary).insert(r.step);
        if (r.flags & BRG_REC_GRAPH)
            kinds[r.kind]++;
        if (r.kind == BRG_REC_COLLECTIVE)
            collectives[r.step]++;
    }
    EXPECT_EQ(replayed, (std::set<uint32_t>{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    EXPECT_EQ(ordinary, (std::set<uint32_t>{1, 2, 3, 16}));
    for (int kind :
         {BRG_REC_STEP, BRG_REC_COMPUTE, BRG_REC_READY, BRG_REC_COLLECTIVE, BRG_REC_WAIT})
        EXPECT_GT(kinds[kind], 0) << kind;
    for (uint32_t step = 1; step <= 16; step++)
        EXPECT_EQ(collectives[step], collectives[2]) << "step " << step;
    brg_rank_report report;
    brg_analysis_options options{};
    options.warmup_steps = 2;
    ASSERT_OK(brg_trace_analyze(trace, &options, &report));
    EXPECT_EQ(report.steps_recorded, 16u);
    EXPECT_EQ(report.steps_replayed, 12u);
    EXPECT_EQ(report.ncomputes, 1u); /* all forward, with the flag or without */
    brg_rank_report_free(&report);
    brg_trace_close(trace);
    std::filesystem::remove_all(dir);
}

/* Far ahead of the device: rows of the ring are taken again before they were read. */
TEST(Graph, LateReplaysAreCountedAsLost)
{
    char name[] = "/tmp/brigade-graph-XXXXXX";
    std::string dir = mkdtemp(name);
    run_fake_ranks(
        1,
        [&](int, brg_context *ctx) {
            Trainer t(ctx, plan_of({"", 1, 1, 0, 1, 1, 0, false}));
            t.compute();
            t.optimize();
            brg_graph *graph = nullptr;
            ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
            t.compute();
            t.optimize();
            ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
            ASSERT_OK(brg_stream_launch(
                ctx, t.main,
                [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); },
                nullptr));
            for (int i = 0; i < 20; i++)
                ASSERT_OK(brg_graph_launch(graph, t.main));
            brg_graph_destroy(graph);
        },
        dir.c_str());
    brg_trace *trace = nullptr;
    ASSERT_OK(brg_trace_open((dir + "/rank-0.ring").c_str(), &trace));
    int steps = 0;
    for (size_t i = 0; i < trace->nrecs; i++)
        steps += trace->recs[i].kind == BRG_REC_STEP && (trace->recs[i].flags & BRG_REC_GRAPH);
    EXPECT_GT(trace->drops, 0u);
    EXPECT_GE(steps, 7);
    EXPECT_LT(steps, 20);
    brg_trace_close(trace);
    std::filesystem::remove_all(dir);
}

TEST(Graph, NoGraphsOnTheHost)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Rank r(ctx, Plan{});
        EXPECT_EQ(brg_graph_capture_begin(r.sched, nullptr), BRG_ERR_UNSUPPORTED);
        EXPECT_STREQ(brg_last_error(), "brg_graph_capture_begin: device host has no graphs");
        brg_graph *graph = (brg_graph *)1;
        EXPECT_EQ(brg_graph_capture_end(r.sched, nullptr, &graph), BRG_ERR_STATE);
        EXPECT_EQ(graph, nullptr);
        EXPECT_EQ(brg_graph_capture_begin(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_graph_launch(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        brg_graph_destroy(nullptr);
    });
}

/* As an optimizer that sums gradients on a stream of its own under later work. */
struct Owner {
    Trainer *trainer;
    brg_stream own = nullptr;
    void *event = nullptr;
    bool pending = false;
    int joined = 0, left = 0;
    brg_graph_hook hook = {};

    explicit Owner(Trainer *t) : trainer(t)
    {
        EXPECT_OK(brg_stream_create(t->ctx, &own));
        fake::device().rt->event_create(&event, 0);
        hook.join = join;
        hook.leave = leave;
        hook.owner = this;
        brg_sched_add_graph_hook(t->sched, &hook);
    }
    ~Owner()
    {
        brg_sched_remove_graph_hook(trainer->sched, &hook);
        brg_stream_destroy(trainer->ctx, own);
        fake::device().rt->event_destroy(event);
    }
    static brg_status join(void *arg, brg_stream stream)
    {
        auto *o = (Owner *)arg;
        if (o->pending) {
            EXPECT_EQ(fake::device().rt->stream_wait_event(stream, o->event), 0);
        }
        o->pending = false;
        o->joined++;
        return BRG_OK;
    }
    static brg_status leave(void *arg, brg_stream)
    {
        ((Owner *)arg)->left++;
        return BRG_OK;
    }
    void work()
    {
        const brg_runtime *rt = fake::device().rt;
        ASSERT_EQ(rt->event_record(trainer->forked, trainer->main), 0);
        ASSERT_EQ(rt->stream_wait_event(own, trainer->forked), 0);
        ASSERT_OK(brg_stream_launch(
            trainer->ctx, own, [](void *) {}, nullptr));
        ASSERT_EQ(rt->event_record(event, own), 0);
        pending = true;
    }
};

TEST(Graph, StreamsOfOwnersJoinTheCapture)
{
    run_fake_ranks(1, [&](int, brg_context *ctx) {
        Trainer t(ctx, plan_of({"", 1, 1, 0, 1, 1, 0, false}));
        Owner owner(&t);
        brg_graph *graph = nullptr;
        t.compute();
        t.optimize();
        owner.work();
        ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
        EXPECT_FALSE(owner.pending);
        t.compute();
        t.optimize();
        owner.work();
        ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
        EXPECT_EQ(owner.joined, 2);
        EXPECT_EQ(owner.left, 1);
        ASSERT_OK(brg_graph_launch(graph, t.main));
        EXPECT_EQ(owner.joined, 3);
        EXPECT_EQ(owner.left, 2);
        brg_graph_destroy(graph);
    });
}

void expect_refused(brg_status status, brg_status want, const std::string &part)
{
    EXPECT_EQ(status, want);
    EXPECT_NE(std::string(brg_last_error()).find(part), std::string::npos) << brg_last_error();
}

TEST(Graph, CapturesOutOfOrderAreRefused)
{
    run_fake_ranks(1, [&](int, brg_context *ctx) {
        Trainer t(ctx, plan_of({"", 1, 1, 0, 1, 1, 0, false}));
        brg_graph *graph = nullptr;
        auto begin = [&] { return brg_graph_capture_begin(t.sched, t.main); };
        expect_refused(begin(), BRG_ERR_STATE, "the next step learns");
        t.compute();
        t.optimize();
        expect_refused(brg_graph_capture_begin(t.sched, nullptr), BRG_ERR_INVALID_ARGUMENT, "NULL");
        ASSERT_OK(brg_zero_grad(t.sched, t.main));
        expect_refused(begin(), BRG_ERR_STATE, "a step has begun");
        for (int p = 0; p < t.model.size(); p++)
            ASSERT_OK(brg_grad_ready(t.sched, p, t.main));
        ASSERT_OK(brg_finish_grad_sync(t.sched, t.main));
        t.optimize();

        ASSERT_OK(begin());
        expect_refused(begin(), BRG_ERR_STATE, "capturing already");
        expect_refused(brg_scheduler_relearn(t.sched), BRG_ERR_STATE, "in a capture");
        expect_refused(brg_set_main_grad(t.sched, 0, nullptr, BRG_FLOAT32), BRG_ERR_STATE,
                       "in a capture");
        expect_refused(brg_graph_capture_end(t.sched, t.side, &graph), BRG_ERR_INVALID_ARGUMENT,
                       "another stream");
        expect_refused(brg_graph_capture_end(t.sched, t.main, &graph), BRG_ERR_STATE, "0 steps");
        EXPECT_EQ(graph, nullptr);

        ASSERT_OK(begin());
        ASSERT_OK(brg_zero_grad(t.sched, t.main));
        expect_refused(brg_graph_capture_end(t.sched, t.main, &graph), BRG_ERR_STATE,
                       "not finished");

        ASSERT_OK(begin()); /* as if nothing had happened */
        t.compute();
        t.optimize();
        ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
        ASSERT_OK(brg_graph_launch(graph, t.main));
        t.compute();
        expect_refused(brg_graph_launch(graph, t.main), BRG_ERR_STATE, "brg_step() is due");
        t.optimize();
        ASSERT_OK(brg_graph_launch(graph, t.main));
        brg_graph_destroy(graph);
    });
}

TEST(Graph, CheckedGradientsAreNotCaptured)
{
    run_fake_ranks(1, [&](int, brg_context *ctx) {
        Plan plan;
        plan.sched.check_grads = 1;
        Trainer t(ctx, plan);
        t.compute();
        t.optimize();
        expect_refused(brg_graph_capture_begin(t.sched, t.main), BRG_ERR_STATE, "check_grads");
    });
}

TEST(Graph, ACaptureOfTheTrainersOwnIsNamed)
{
    run_fake_ranks(1, [&](int, brg_context *ctx) {
        Trainer t(ctx, plan_of({"", 1, 1, 0, 1, 1, 0, false}));
        t.compute();
        t.optimize();
        const brg_runtime *rt = fake::device().rt;
        ASSERT_EQ(rt->graph_begin(t.main), 0);
        expect_refused(brg_zero_grad(t.sched, t.main), BRG_ERR_STATE, "brg_graph_capture_begin()");
        expect_refused(brg_graph_capture_begin(t.sched, t.main), BRG_ERR_STATE, "being captured");
        void *graph = nullptr;
        ASSERT_EQ(rt->graph_end(t.main, &graph), 0);
        rt->graph_destroy(graph);
        t.compute();
        t.optimize();
    });
}

} // namespace
