// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>

#include "tests/bucket/rank.h"

namespace
{

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
        EXPECT_EQ(brg_sched_begin_step(r.sched, nullptr), BRG_ERR_STATE);
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
