// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "tests/bucket/harness.h"

namespace
{

struct Plan {
    brg_layout_options layout = {};
    brg_scheduler_options sched = {};
    Model model = small_model();
};

/* Layout and scheduler of one rank. */
struct Rank {
    brg_layout *layout = nullptr;
    brg_scheduler *sched = nullptr;
    Model model;
    brg_context *ctx;
    int rank, world;

    Rank(brg_context *context, Plan setup)
        : model(setup.model), ctx(context), rank(brg_context_rank(context)),
          world(brg_context_world_size(context))
    {
        setup.layout.data_parallel_size = world;
        EXPECT_OK(brg_layout_compute(model.data(), model.size(), &setup.layout, &layout));
        status = brg_scheduler_create(ctx, layout, &setup.sched, &sched);
        if (status != BRG_OK)
            error = brg_last_error();
    }
    ~Rank()
    {
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
    }
    brg_status status;
    std::string error;

    void write_grad(int step, int p, brg_stream = nullptr)
    {
        float *grad = (float *)brg_grad_data(sched, p);
        for (int64_t i = 0; i < model.numel(p); i++)
            grad[i] += contribution(rank, step, p, i);
    }
    std::vector<int> backward_order() const
    {
        std::vector<int> order((size_t)model.size());
        std::iota(order.rbegin(), order.rend(), 0);
        return order;
    }
    void backward(int step, const std::vector<int> &order)
    {
        for (int p : order) {
            write_grad(step, p);
            EXPECT_OK(brg_grad_ready(sched, p, nullptr));
        }
    }
    /* Checks the gradients that this rank owns (all of them in all-reduce mode) against float64
     * sums. */
    void expect_reduced(int step, double factor, int contributions = 1)
    {
        int64_t checked = 0;
        for (int b = 0; b < brg_scheduler_num_buckets(sched); b++) {
            const brg_bucket_view *view = brg_sched_view(sched, b);
            for (int s = 0; s < view->num_segments; s++) {
                const brg_segment &seg = view->segments[s];
                for (int64_t i = 0; i < seg.numel; i++) {
                    double sum = 0;
                    for (int r = 0; r < world; r++)
                        sum += contribution(r, step, seg.param, seg.param_start + i);
                    double want = sum * factor * contributions;
                    double got = ((const float *)view->grad_base)[seg.offset + i];
                    ASSERT_NEAR(got, want, 1e-6 * world * contributions)
                        << "step " << step << " param " << model.names[(size_t)seg.param];
                    checked++;
                }
            }
        }
        total_checked += checked;
    }
    int64_t total_checked = 0;

    std::vector<int> all_groups() const
    {
        std::vector<int> groups((size_t)brg_scheduler_num_groups(sched));
        std::iota(groups.begin(), groups.end(), 0);
        return groups;
    }
    uint64_t gathers(int bucket) const
    {
        brg_bucket_info info;
        EXPECT_OK(brg_scheduler_bucket(sched, bucket, &info));
        return info.gathers;
    }
    uint64_t reductions(int bucket) const
    {
        brg_bucket_info info;
        EXPECT_OK(brg_scheduler_bucket(sched, bucket, &info));
        return info.reductions;
    }
};

struct Mode {
    const char *name;
    int world, overlap, all_reduce, per_group;
    brg_grad_scaling scaling;
    brg_algorithm algorithm;
};

class Modes : public testing::TestWithParam<Mode>
{
};

TEST_P(Modes, ReducedGradientsEqualFloat64Sums)
{
    Mode mode = GetParam();
    Plan setup;
    setup.layout.algorithm = mode.algorithm;
    setup.layout.bucket_size = 500;
    setup.sched.overlap_grad_reduce = mode.overlap;
    setup.sched.all_reduce = mode.all_reduce;
    setup.sched.buckets_per_group = mode.per_group;
    setup.sched.grad_scaling = mode.scaling;
    setup.sched.grad_scale_factor = 0.25;
    double factor = mode.scaling == BRG_SCALE_NONE     ? 1.0
                    : mode.scaling == BRG_SCALE_FACTOR ? 0.25
                                                       : 1.0 / mode.world;
    std::vector<int64_t> checked((size_t)mode.world);
    run_ranks(mode.world, [&](int rank, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        auto rng = test_rng((uint64_t)rank + 100);
        std::vector<int> order = r.backward_order();
        for (int step = 0; step < 4; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            if (step) /* whatever order gradients arrive in, on every rank another one */
                std::shuffle(order.begin(), order.end(), rng);
            r.backward(step, order);
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, factor);
        }
        for (int b = 0; b < brg_scheduler_num_buckets(r.sched); b++)
            EXPECT_EQ(r.reductions(b), 4u);
        checked[(size_t)rank] = r.total_checked;
    });
    int64_t total = std::accumulate(checked.begin(), checked.end(), (int64_t)0), elements = 0;
    for (int p = 0; p < setup.model.size(); p++)
        elements += setup.model.numel(p);
    EXPECT_EQ(total, elements * 4 * (mode.all_reduce ? mode.world : 1));
}

INSTANTIATE_TEST_SUITE_P(
    Scheduler, Modes,
    testing::Values(Mode{"one_rank", 1, 1, 0, 1, BRG_SCALE_AVERAGE, BRG_ELEMENTWISE},
                    Mode{"overlap", 4, 1, 0, 1, BRG_SCALE_AVERAGE, BRG_ELEMENTWISE},
                    Mode{"serial", 3, 0, 0, 1, BRG_SCALE_AVERAGE, BRG_ELEMENTWISE},
                    Mode{"layerwise", 4, 1, 0, 1, BRG_SCALE_AVERAGE, BRG_LAYERWISE},
                    Mode{"grouped", 2, 1, 0, 3, BRG_SCALE_AVERAGE, BRG_LAYERWISE},
                    Mode{"all_reduce", 3, 1, 1, 1, BRG_SCALE_AVERAGE, BRG_ELEMENTWISE},
                    Mode{"all_reduce_flat", 2, 1, 1, 2, BRG_SCALE_AVERAGE, BRG_FLAT},
                    Mode{"pre_divide", 4, 1, 0, 1, BRG_SCALE_PRE_DIVIDE, BRG_ELEMENTWISE},
                    Mode{"factor", 2, 1, 0, 1, BRG_SCALE_FACTOR, BRG_LAYERWISE},
                    Mode{"sum", 2, 0, 0, 1, BRG_SCALE_NONE, BRG_ELEMENTWISE}),
    [](const testing::TestParamInfo<Mode> &info) { return std::string(info.param.name); });

TEST(Scheduler, ReadinessFromManyThreads)
{
    Plan setup;
    setup.layout.bucket_size = 300;
    setup.sched.overlap_grad_reduce = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        for (int step = 0; step < 5; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            std::vector<std::thread> threads;
            std::vector<brg_stream> streams(6); /* more than are tracked without a lock */
            for (int t = 0; t < 6; t++)
                threads.emplace_back([&, t] {
                    brg_stream &stream = streams[(size_t)t];
                    EXPECT_OK(brg_stream_create(ctx, &stream));
                    for (int p = t; p < r.model.size(); p += 6) {
                        r.write_grad(step, p);
                        EXPECT_OK(brg_grad_ready(r.sched, p, stream));
                    }
                });
            for (auto &thread : threads)
                thread.join();
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, 0.5);
            for (brg_stream stream : streams)
                brg_stream_destroy(ctx, stream);
        }
    });
}

/* Gradients written by host functions on a compute stream, slowly: the reduction must wait for
 * them. */
struct SlowWrite {
    Rank *rank;
    int step, param;
};

TEST(Scheduler, ReductionWaitsForTheComputeStream)
{
    Plan setup;
    setup.layout.bucket_size = 300;
    setup.sched.overlap_grad_reduce = 1;
    run_ranks(2, [&](int rank, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        brg_stream stream;
        ASSERT_OK(brg_stream_create(ctx, &stream));
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, stream));
            std::vector<SlowWrite> writes((size_t)r.model.size());
            for (int p = r.model.size() - 1; p >= 0; p--) {
                writes[(size_t)p] = {&r, step, p};
                ASSERT_OK(brg_stream_launch(
                    ctx, stream,
                    [](void *arg) {
                        auto *w = (SlowWrite *)arg;
                        std::this_thread::sleep_for(
                            std::chrono::milliseconds(w->rank->rank ? 3 : 1));
                        w->rank->write_grad(w->step, w->param);
                    },
                    &writes[(size_t)p]));
                ASSERT_OK(brg_grad_ready(r.sched, p, stream));
            }
            ASSERT_OK(brg_finish_grad_sync(r.sched, stream));
            ASSERT_OK(brg_stream_synchronize(ctx, stream));
            r.expect_reduced(step, 0.5);
        }
        brg_stream_destroy(ctx, stream);
        (void)rank;
    });
}

TEST(Scheduler, SharedParameterIsCountedAsLearned)
{
    Plan setup;
    setup.layout.bucket_size = 300;
    setup.sched.overlap_grad_reduce = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        int head = r.model.size() - 1;
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            for (int p = head; p >= 0; p--) {
                r.write_grad(step, p);
                ASSERT_OK(brg_grad_ready(r.sched, p, nullptr));
            }
            ASSERT_OK(brg_grad_ready(r.sched, head, nullptr)); /* used twice: ready twice */
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, 0.5);
        }
        ASSERT_OK(brg_zero_grad(r.sched, nullptr));
        r.backward(3, r.backward_order()); /* once only */
        EXPECT_EQ(brg_finish_grad_sync(r.sched, nullptr), BRG_ERR_READINESS);
        EXPECT_NE(std::string(brg_last_error()).find("\"head\""), std::string::npos)
            << brg_last_error();
    });
}

TEST(Scheduler, ReadyMoreOftenThanLearnedNamesTheParameter)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    setup.layout.bucket_size = 300;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        for (int step = 0; step < 2; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            r.backward(step, r.backward_order());
            if (step == 1) {
                EXPECT_EQ(brg_grad_ready(r.sched, 2, nullptr), BRG_ERR_READINESS);
                EXPECT_NE(std::string(brg_last_error()).find("\"block0.qkv\""), std::string::npos)
                    << brg_last_error();
            }
            EXPECT_EQ(brg_finish_grad_sync(r.sched, nullptr), step ? BRG_ERR_READINESS : BRG_OK);
        }
    });
}

TEST(Scheduler, MissingGradientIsAnErrorOrZeros)
{
    for (int allow : {0, 1}) {
        Plan setup;
        setup.sched.overlap_grad_reduce = 1;
        setup.sched.allow_unused = allow;
        setup.layout.bucket_size = 300;
        run_ranks(2, [&](int rank, brg_context *ctx) {
            Rank r(ctx, setup);
            ASSERT_EQ(r.status, BRG_OK) << r.error;
            for (int step = 0; step < 3; step++) {
                ASSERT_OK(brg_zero_grad(r.sched, nullptr));
                for (int p : r.backward_order())
                    if (!(step == 1 && p == 3 && rank == 1)) {
                        r.write_grad(step, p);
                        ASSERT_OK(brg_grad_ready(r.sched, p, nullptr));
                    }
                brg_status status = brg_finish_grad_sync(r.sched, nullptr);
                if (step == 1 && rank == 1 && !allow) {
                    EXPECT_EQ(status, BRG_ERR_READINESS);
                    EXPECT_NE(std::string(brg_last_error()).find("\"block0.bias\""),
                              std::string::npos)
                        << brg_last_error();
                } else {
                    EXPECT_EQ(status, BRG_OK) << brg_last_error();
                    if (step != 1)
                        r.expect_reduced(step, 0.5);
                }
            }
        });
    }
}

TEST(Scheduler, NeverUsedParameterDoesNotHoldItsBucketBack)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    setup.sched.allow_unused = 1;
    setup.layout.bucket_size = BRG_BUCKET_SIZE_SMALLEST;
    setup.layout.algorithm = BRG_ELEMENTWISE;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            for (int p : r.backward_order())
                if (p != 4) {
                    r.write_grad(step, p);
                    ASSERT_OK(brg_grad_ready(r.sched, p, nullptr));
                }
            int bucket = brg_scheduler_bucket_of(r.sched, 0);
            if (step) { /* everything is complete: issued without brg_finish_grad_sync() */
                EXPECT_EQ(r.reductions(bucket), (uint64_t)step + 1);
            }
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            EXPECT_EQ(r.reductions(bucket), (uint64_t)step + 1);
        }
    });
}

TEST(Scheduler, ChangedPatternIsLearnedAnewWhenAllowed)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    setup.sched.allow_relearn = 1;
    setup.layout.bucket_size = 300;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        int counts[] = {1, 2, 2, 1, 1, 2};
        for (int step = 0; step < 6; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            /* the first in registration order: the last bucket, still open when it comes again */
            for (int i = 0; i < counts[step]; i++) {
                r.write_grad(step, 0);
                ASSERT_OK(brg_grad_ready(r.sched, 0, nullptr));
            }
            for (int p : r.backward_order())
                if (p) {
                    for (int i = 0; i < counts[step]; i++)
                        r.write_grad(step, p);
                    ASSERT_OK(brg_grad_ready(r.sched, p, nullptr));
                }
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, 0.5, counts[step]);
        }
    });
}

TEST(Scheduler, NoSyncAccumulates)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    setup.layout.bucket_size = 300;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        EXPECT_EQ(brg_no_sync_end(r.sched), BRG_ERR_STATE);
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            ASSERT_OK(brg_no_sync_begin(r.sched));
            EXPECT_EQ(brg_no_sync_begin(r.sched), BRG_ERR_STATE);
            r.backward(step, r.backward_order());
            r.backward(step, r.backward_order());
            EXPECT_EQ(brg_finish_grad_sync(r.sched, nullptr), BRG_ERR_STATE);
            ASSERT_OK(brg_no_sync_end(r.sched));
            EXPECT_EQ(r.reductions(0), (uint64_t)step);
            r.backward(step, r.backward_order());
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, 0.5, 3);
        }
    });
}

TEST(Scheduler, CallsOutOfOrderAreErrors)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    run_ranks(1, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        EXPECT_EQ(brg_finish_grad_sync(r.sched, nullptr), BRG_ERR_STATE);
        EXPECT_EQ(brg_sched_begin_step(r.sched), BRG_ERR_STATE);
        ASSERT_OK(brg_zero_grad(r.sched, nullptr));
        ASSERT_OK(brg_grad_ready(r.sched, 0, nullptr));
        EXPECT_EQ(brg_zero_grad(r.sched, nullptr), BRG_ERR_STATE);
        EXPECT_EQ(brg_scheduler_relearn(r.sched), BRG_ERR_STATE);
        EXPECT_EQ(brg_grad_ready(r.sched, -1, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_grad_ready(r.sched, r.model.size(), nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_param_wait(r.sched, 1000, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_param_data(r.sched, -1), nullptr);
        EXPECT_EQ(brg_grad_data(nullptr, 0), nullptr);
        EXPECT_EQ(brg_zero_grad(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_scheduler_create(ctx, nullptr, nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
    });
}

TEST(Scheduler, CheckNamesBucketAndParameter)
{
    for (int kind = 0; kind < 3; kind++) {
        Plan setup;
        setup.sched.overlap_grad_reduce = 1;
        setup.sched.check_grads = 1;
        setup.sched.large_grad_norm = kind == 2 ? 100.0 : 0.0;
        setup.layout.bucket_size = 300;
        run_ranks(2, [&](int rank, brg_context *ctx) {
            Rank r(ctx, setup);
            ASSERT_EQ(r.status, BRG_OK) << r.error;
            for (int step = 0; step < 2; step++) {
                ASSERT_OK(brg_zero_grad(r.sched, nullptr));
                if (step == 1 && rank == 1) {
                    float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                                   -std::numeric_limits<float>::infinity(), 1000.0f};
                    ((float *)brg_grad_data(r.sched, 6))[5] = bad[kind];
                }
                r.backward(step, r.backward_order());
                brg_status status = brg_finish_grad_sync(r.sched, nullptr);
                if (step == 1 && rank == 1) {
                    std::string text = brg_last_error();
                    EXPECT_EQ(status, BRG_ERR_NON_FINITE);
                    EXPECT_NE(text.find("\"block1.qkv\""), std::string::npos) << text;
                    std::string bucket =
                        "bucket " + std::to_string(brg_scheduler_bucket_of(r.sched, 6));
                    EXPECT_NE(text.find(bucket), std::string::npos) << text;
                    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
                    const char *words[] = {"NaN", "Inf", "norm"};
                    EXPECT_NE(text.find(words[kind]), std::string::npos) << text;
                } else {
                    EXPECT_EQ(status, BRG_OK) << brg_last_error();
                }
            }
        });
    }
}

TEST(Scheduler, RanksThatDifferGetAnErrorThatSaysWhat)
{
    struct Case {
        const char *expect;
        std::function<void(Plan &)> change;
    } cases[] = {
        {"bucket size is 2000 on rank 1, 300 on rank 0",
         [](Plan &s) { s.layout.bucket_size = 2000; }},
        {"hash of the layout", [](Plan &s) { s.layout.pad_for_high_bus_bandwidth = 1; }},
        {"layout algorithm", [](Plan &s) { s.layout.algorithm = BRG_ELEMENTWISE; }},
        {"overlap_param_gather is 1 on rank 1, 0 on rank 0",
         [](Plan &s) { s.sched.overlap_param_gather = 1; }},
        {"buckets_per_group is 2", [](Plan &s) { s.sched.buckets_per_group = 2; }},
        {"number of parameters is 16", [](Plan &s) { s.model.add("more", {3}); }},
        {"parameter 2", [](Plan &s) { s.model.names[2] = "renamed"; }},
        {"parameter 4", [](Plan &s) { s.model.params[4].shape[0] = 32; }},
    };
    for (const Case &c : cases)
        run_ranks(3, [&](int rank, brg_context *ctx) {
            Plan setup;
            setup.layout.bucket_size = 300;
            if (rank == 1)
                c.change(setup);
            Rank r(ctx, setup);
            EXPECT_EQ(r.status, BRG_ERR_MISMATCH) << c.expect;
            EXPECT_NE(r.error.find(c.expect), std::string::npos) << r.error;
        });
}

TEST(Scheduler, OptionsThatGiveTheSameLayoutMayDiffer)
{
    run_ranks(2, [&](int rank, brg_context *ctx) {
        Plan plan;
        plan.layout.bucket_size = rank ? 301 : 300; /* no parameter ends between the two */
        Rank r(ctx, plan);
        EXPECT_EQ(r.status, BRG_OK) << r.error;
    });
}

TEST(Scheduler, LayoutForOtherNumberOfRanksIsRefused)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Model model = small_model();
        brg_layout_options options = {};
        options.data_parallel_size = 4;
        brg_layout *layout;
        brg_scheduler *sched;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &options, &layout));
        EXPECT_EQ(brg_scheduler_create(ctx, layout, nullptr, &sched), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(sched, nullptr);
        brg_layout_destroy(layout);
    });
}

/* Parameters: each rank writes its shards, the gather brings the others'. */
float updated(int step, int p, int64_t i)
{
    return contribution(17, step, p, i);
}

void update_shards(Rank &r, int step, const std::vector<int> &groups)
{
    for (int b = 0; b < brg_scheduler_num_buckets(r.sched); b++) {
        const brg_bucket_view *view = brg_sched_view(r.sched, b);
        if (std::find(groups.begin(), groups.end(), view->group) == groups.end())
            continue;
        for (int s = 0; s < view->num_segments; s++) {
            const brg_segment &seg = view->segments[s];
            for (int64_t i = 0; i < seg.numel; i++)
                ((float *)view->param_base)[seg.offset + i] =
                    updated(step, seg.param, seg.param_start + i);
        }
    }
}

void expect_params(Rank &r, int step, int p)
{
    const float *data = (const float *)brg_param_data(r.sched, p);
    for (int64_t i = 0; i < r.model.numel(p); i++)
        ASSERT_EQ(data[i], updated(step, p, i))
            << "step " << step << " " << r.model.names[(size_t)p];
}

TEST(Scheduler, GathersEachGroupOnceInAnyMode)
{
    for (int overlap : {0, 1})
        for (int prefetch : {0, 1, 2})
            for (int per_group : {1, 2}) {
                Plan setup;
                setup.layout.bucket_size = 200;
                setup.sched.overlap_param_gather = overlap;
                setup.sched.param_gather_prefetch = prefetch;
                setup.sched.buckets_per_group = per_group;
                run_ranks(2, [&](int, brg_context *ctx) {
                    Rank r(ctx, setup);
                    ASSERT_EQ(r.status, BRG_OK) << r.error;
                    std::vector<int> groups = r.all_groups();
                    size_t half = groups.size() / 2;
                    std::vector<int> first(groups.begin(), groups.begin() + (long)half);
                    std::vector<int> second(groups.begin() + (long)half, groups.end());
                    for (int step = 0; step < 4; step++) {
                        ASSERT_OK(brg_zero_grad(r.sched, nullptr));
                        for (int p = 0; step && p < r.model.size(); p++) {
                            ASSERT_OK(brg_param_wait(r.sched, p, nullptr));
                            expect_params(r, step - 1, p);
                        }
                        r.backward(step, r.backward_order());
                        ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
                        for (int b = 0; b < brg_scheduler_num_buckets(r.sched); b++)
                            EXPECT_EQ(r.gathers(b), (uint64_t)step);
                        update_shards(r, step, first);
                        ASSERT_OK(brg_sched_start_param_sync(r.sched, first.data(),
                                                             (int)first.size(), nullptr));
                        update_shards(r, step, second);
                        ASSERT_OK(brg_sched_start_param_sync(r.sched, second.data(),
                                                             (int)second.size(), nullptr));
                        EXPECT_EQ(brg_sched_start_param_sync(r.sched, first.data(), 1, nullptr),
                                  BRG_ERR_STATE);
                    }
                    ASSERT_OK(brg_finish_param_sync(r.sched, nullptr));
                    for (int p = 0; p < r.model.size(); p++)
                        expect_params(r, 3, p);
                });
            }
}

TEST(Scheduler, PrefetchFollowsTheLearnedForwardOrder)
{
    Plan setup;
    setup.layout.algorithm = BRG_ELEMENTWISE;
    setup.layout.bucket_size = BRG_BUCKET_SIZE_SMALLEST; /* a bucket per parameter */
    setup.sched.overlap_param_gather = 1;
    setup.sched.param_gather_prefetch = 1;
    run_ranks(2, [&](int rank, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        int n = r.model.size();
        std::vector<int> forward((size_t)n);
        std::iota(forward.begin(), forward.end(), 0);
        std::mt19937_64 rng = test_rng(5);
        std::shuffle(forward.begin(), forward.end(), rng); /* not the registration order */
        std::vector<int> groups = r.all_groups();
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            std::vector<int> mine = forward;
            if (step == 0 && rank == 1) /* rank 0's order counts */
                std::reverse(mine.begin(), mine.end());
            for (int at = 0; at < n; at++) {
                ASSERT_OK(brg_param_wait(r.sched, mine[(size_t)at], nullptr));
                if (step == 0)
                    continue;
                for (int other = 0; other < n; other++) {
                    uint64_t want = (uint64_t)(other <= at + 1 ? step : step - 1);
                    EXPECT_EQ(r.gathers(brg_scheduler_bucket_of(r.sched, forward[(size_t)other])),
                              want)
                        << "waited for " << at << ", looking at " << other;
                }
            }
            r.backward(step, r.backward_order());
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            update_shards(r, step, groups);
            ASSERT_OK(
                brg_sched_start_param_sync(r.sched, groups.data(), (int)groups.size(), nullptr));
        }
    });
}

TEST(Scheduler, BroadcastAndMainGrads)
{
    Plan setup;
    setup.layout.bucket_size = 300;
    setup.model = small_model();
    run_ranks(3, [&](int rank, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        for (int p = 0; p < r.model.size(); p++)
            for (int64_t i = 0; i < r.model.numel(p); i++)
                ((float *)brg_param_data(r.sched, p))[i] = rank == 2 ? updated(0, p, i) : -1.0f;
        ASSERT_OK(brg_broadcast_params(r.sched, 2, nullptr));
        for (int p = 0; p < r.model.size(); p++)
            expect_params(r, 0, p);
        std::vector<std::vector<double>> main((size_t)r.model.size());
        ASSERT_OK(brg_zero_grad(r.sched, nullptr));
        for (int p = r.model.size() - 1; p >= 0; p--) {
            for (int64_t i = 0; i < r.model.numel(p); i++)
                main[(size_t)p].push_back(contribution(rank, 0, p, i));
            ASSERT_OK(brg_set_main_grad(r.sched, p, main[(size_t)p].data(), BRG_FLOAT64));
        }
        EXPECT_EQ(brg_set_main_grad(r.sched, 0, nullptr, BRG_INT8), BRG_ERR_INVALID_ARGUMENT);
        for (int p = r.model.size() - 1; p >= 0; p--)
            ASSERT_OK(brg_grad_ready(r.sched, p, nullptr));
        EXPECT_EQ(brg_set_main_grad(r.sched, 0, nullptr, BRG_FLOAT32), BRG_ERR_STATE);
        ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
        r.expect_reduced(0, 1.0 / 3);
    });
}

TEST(Scheduler, RelearnForgetsCounts)
{
    Plan setup;
    setup.sched.overlap_grad_reduce = 1;
    setup.layout.bucket_size = 300;
    run_ranks(2, [&](int, brg_context *ctx) {
        Rank r(ctx, setup);
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        for (int step = 0; step < 4; step++) {
            int times = step < 2 ? 1 : 2;
            if (step == 2) {
                ASSERT_OK(brg_scheduler_relearn(r.sched));
            }
            ASSERT_OK(brg_zero_grad(r.sched, nullptr));
            for (int i = 0; i < times; i++)
                r.backward(step, r.backward_order());
            ASSERT_OK(brg_finish_grad_sync(r.sched, nullptr));
            r.expect_reduced(step, 0.5, times);
        }
    });
}

} // namespace
