// SPDX-License-Identifier: Apache-2.0
// What a step leaves behind for the next one.
#include <algorithm>
#include <chrono>
#include <limits>

#include "tests/bucket/harness.h"

namespace
{

/* Two parameters, a bucket each; what a rank needs for a step of its own. */
struct Pair {
    enum { ELEMS = 100 };
    brg_layout *layout = nullptr;
    brg_scheduler *sched = nullptr;

    Pair(brg_context *ctx, int num_params, const brg_scheduler_options &options)
    {
        Model model;
        for (int p = 0; p < num_params; p++)
            model.add("p" + std::to_string(p), {ELEMS});
        brg_layout_options o = {};
        o.algorithm = BRG_ELEMENTWISE;
        o.bucket_size = BRG_BUCKET_SIZE_SMALLEST;
        o.data_parallel_size = brg_context_world_size(ctx);
        EXPECT_OK(brg_layout_compute(model.data(), model.size(), &o, &layout));
        EXPECT_OK(brg_scheduler_create(ctx, layout, &options, &sched));
        EXPECT_EQ(brg_scheduler_num_groups(sched), num_params);
    }
    ~Pair()
    {
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
    }
    float *grad(int p) const
    {
        return (float *)brg_grad_data(sched, p);
    }
    void backward() const
    {
        for (int p = brg_layout_num_params(layout) - 1; p >= 0; p--)
            EXPECT_OK(brg_grad_ready(sched, p, nullptr));
    }
};

TEST(StepStates, BadGradientInTheLearningStepDoesNotLoseTheCounts)
{
    brg_scheduler_options options = {};
    options.check_grads = 1;
    options.overlap_grad_reduce = 1;
    run_ranks(1, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
            if (step == 0)
                pair.grad(0)[7] = std::numeric_limits<float>::quiet_NaN();
            pair.backward();
            EXPECT_EQ(brg_finish_grad_sync(pair.sched, nullptr),
                      step == 0 ? BRG_ERR_NON_FINITE : BRG_OK)
                << brg_last_error();
        }
    });
}

/* An optimizer that owns a few of many groups leaves the queue of gathers standing from one step to
 * the next. */
TEST(StepStates, PrefetchIssuesTheGatherOfThisStepAndNotAnOlderOne)
{
    brg_scheduler_options options = {};
    options.overlap_grad_reduce = 1;
    options.overlap_param_gather = 1;
    options.param_gather_prefetch = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Pair pair(ctx, 5, options);
        int owned[] = {0, 1};
        brg_sgd_options sgd = {};
        sgd.lr = 1;
        sgd.groups = owned;
        sgd.num_groups = 2;
        brg_optimizer *optimizer = nullptr;
        ASSERT_OK(brg_sgd_create(pair.sched, &sgd, &optimizer));
        for (int step = 0; step < 5; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
            for (int p = 0; p < 5; p++) {
                ASSERT_OK(brg_param_wait(pair.sched, p, nullptr));
                brg_bucket_info info;
                ASSERT_OK(brg_scheduler_bucket(pair.sched, brg_scheduler_bucket_of(pair.sched, p),
                                               &info));
                float want = info.group <= 1 ? (float)-step : 0.0f;
                const float *data = (const float *)brg_param_data(pair.sched, p);
                for (int i = 0; i < Pair::ELEMS; i++) {
                    ASSERT_EQ(data[i], want) << "step " << step << " parameter " << p;
                    pair.grad(p)[i] = 1;
                }
            }
            pair.backward();
            ASSERT_OK(brg_finish_grad_sync(pair.sched, nullptr));
            ASSERT_OK(brg_step(optimizer, nullptr));
        }
        brg_optimizer_destroy(optimizer);
    });
}

/* A gradient that is written only between brg_no_sync_begin() and _end(), and on a stream that
 * nothing else makes the reduction wait for. */
TEST(StepStates, ReductionWaitsForStreamsOfUnsynchronisedContributions)
{
    brg_scheduler_options options = {};
    options.overlap_grad_reduce = 1;
    options.allow_unused = 1;
    options.all_reduce = 1;
    run_ranks(2, [&](int rank, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        brg_stream hidden, open;
        ASSERT_OK(brg_stream_create(ctx, &hidden));
        ASSERT_OK(brg_stream_create(ctx, &open));
        ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
        ASSERT_OK(brg_no_sync_begin(pair.sched));
        ASSERT_OK(brg_stream_launch(
            ctx, hidden,
            [](void *arg) {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                *(float *)arg += 1;
            },
            pair.grad(0)));
        ASSERT_OK(brg_grad_ready(pair.sched, 0, hidden));
        ASSERT_OK(brg_no_sync_end(pair.sched));
        ASSERT_OK(brg_grad_ready(pair.sched, 1, open));
        ASSERT_OK(brg_finish_grad_sync(pair.sched, open)); /* the learning step blocks */
        ASSERT_OK(brg_stream_synchronize(ctx, open));
        EXPECT_EQ(pair.grad(0)[0], 1.0f) << "rank " << rank;
        brg_stream_destroy(ctx, hidden);
        brg_stream_destroy(ctx, open);
    });
}

TEST(StepStates, ReadyOutsideOfAStepIsRefusedAndHarmless)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, {});
        for (int step = 0; step < 3; step++) {
            EXPECT_EQ(brg_grad_ready(pair.sched, 0, nullptr), BRG_ERR_STATE);
            EXPECT_NE(std::string(brg_last_error()).find("\"p0\""), std::string::npos);
            ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
            pair.backward();
            ASSERT_OK(brg_finish_grad_sync(pair.sched, nullptr));
        }
    });
}

/* The copy of a main gradient runs behind the compute stream, long after brg_finish_grad_sync(). */
TEST(StepStates, NextMainGradIsNotCopiedForTheLastStep)
{
    brg_scheduler_options options = {};
    options.overlap_grad_reduce = 1;
    run_ranks(1, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        brg_stream stream;
        ASSERT_OK(brg_stream_create(ctx, &stream));
        float first[Pair::ELEMS], second[Pair::ELEMS];
        std::fill_n(first, (int)Pair::ELEMS, 1.0f);
        std::fill_n(second, (int)Pair::ELEMS, 2.0f);
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_set_main_grad(pair.sched, 0, first, BRG_FLOAT32));
            ASSERT_OK(brg_zero_grad(pair.sched, stream));
            ASSERT_OK(brg_stream_launch(
                ctx, stream,
                [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); },
                nullptr));
            ASSERT_OK(brg_grad_ready(pair.sched, 1, stream));
            ASSERT_OK(brg_grad_ready(pair.sched, 0, stream));
            ASSERT_OK(brg_finish_grad_sync(pair.sched, stream));
            ASSERT_OK(brg_set_main_grad(pair.sched, 0, second, BRG_FLOAT32));
            ASSERT_OK(brg_stream_synchronize(ctx, stream));
            EXPECT_EQ(pair.grad(0)[0], 1.0f) << "step " << step;
        }
        brg_stream_destroy(ctx, stream);
    });
}

/* Without gathers there is still an update to wait for. */
TEST(StepStates, ParamWaitWaitsForTheUpdateInAllReduceMode)
{
    brg_scheduler_options options = {};
    options.all_reduce = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        brg_sgd_options sgd = {};
        sgd.lr = 1;
        brg_optimizer *optimizer = nullptr;
        ASSERT_OK(brg_sgd_create(pair.sched, &sgd, &optimizer));
        brg_stream stepping, forward;
        ASSERT_OK(brg_stream_create(ctx, &stepping));
        ASSERT_OK(brg_stream_create(ctx, &forward));
        for (int step = 1; step <= 3; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, stepping));
            ASSERT_OK(brg_stream_synchronize(ctx, stepping));
            pair.grad(0)[5] = 1;
            pair.backward();
            ASSERT_OK(brg_finish_grad_sync(pair.sched, stepping));
            ASSERT_OK(brg_stream_launch(
                ctx, stepping,
                [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); },
                nullptr));
            ASSERT_OK(brg_step(optimizer, stepping));
            ASSERT_OK(brg_param_wait(pair.sched, 0, forward));
            ASSERT_OK(brg_stream_synchronize(ctx, forward));
            EXPECT_EQ(((const float *)brg_param_data(pair.sched, 0))[5], (float)-step);
        }
        brg_optimizer_destroy(optimizer);
        brg_stream_destroy(ctx, stepping);
        brg_stream_destroy(ctx, forward);
    });
}

/* A parameter with a main gradient of its own that one step does not use. */
TEST(StepStates, UnusedMainGradientIsZeros)
{
    brg_scheduler_options options = {};
    options.allow_unused = 1;
    options.overlap_grad_reduce = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        std::vector<float> main(Pair::ELEMS, 5.0f);
        ASSERT_OK(brg_set_main_grad(pair.sched, 0, main.data(), BRG_FLOAT32));
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
            ASSERT_OK(brg_grad_ready(pair.sched, 1, nullptr));
            if (step != 1) {
                ASSERT_OK(brg_grad_ready(pair.sched, 0, nullptr));
            }
            ASSERT_OK(brg_finish_grad_sync(pair.sched, nullptr));
            const brg_bucket_view *view =
                brg_sched_view(pair.sched, brg_scheduler_bucket_of(pair.sched, 0));
            for (int s = 0; s < view->num_segments; s++)
                for (int64_t i = 0; i < view->segments[s].numel; i++)
                    ASSERT_EQ(((const float *)view->grad_base)[view->segments[s].offset + i],
                              step == 1 ? 0.0f : 5.0f)
                        << "step " << step;
        }
    });
}

TEST(StepStates, UnusedParameterIsZerosWhateverWasWritten)
{
    brg_scheduler_options options = {};
    options.allow_unused = 1;
    options.overlap_grad_reduce = 1;
    run_ranks(2, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        for (int step = 0; step < 2; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, nullptr));
            for (int i = 0; i < Pair::ELEMS; i++)
                pair.grad(0)[i] = pair.grad(1)[i] = 3;
            ASSERT_OK(brg_grad_ready(pair.sched, 1, nullptr));
            ASSERT_OK(brg_finish_grad_sync(pair.sched, nullptr));
            for (int p = 0; p < 2; p++) {
                const brg_bucket_view *view =
                    brg_sched_view(pair.sched, brg_scheduler_bucket_of(pair.sched, p));
                for (int s = 0; s < view->num_segments; s++)
                    ASSERT_EQ(((const float *)view->grad_base)[view->segments[s].offset],
                              p ? 3.0f : 0.0f)
                        << "step " << step;
            }
        }
    });
}

/* Zeroing, finishing and stepping on three streams, of which the optimizer's is slow. */
TEST(StepStates, ZeroingWaitsForTheOptimizerOnAnotherStream)
{
    brg_scheduler_options options = {};
    options.grad_scaling = BRG_SCALE_AVERAGE;
    run_ranks(2, [&](int, brg_context *ctx) {
        Pair pair(ctx, 2, options);
        brg_sgd_options sgd = {};
        sgd.lr = 1;
        brg_optimizer *optimizer = nullptr;
        brg_stream streams[3];
        for (brg_stream &stream : streams)
            ASSERT_OK(brg_stream_create(ctx, &stream));
        ASSERT_OK(brg_sgd_create(pair.sched, &sgd, &optimizer));
        const int steps = 4;
        struct Write {
            float *grad;
            float value;
        } writes[steps][2];
        for (int step = 0; step < steps; step++) {
            ASSERT_OK(brg_zero_grad(pair.sched, streams[0]));
            for (int p = 0; p < 2; p++) {
                writes[step][p] = {pair.grad(p), (float)(step + 1)}; /* every step another */
                ASSERT_OK(brg_stream_launch(
                    ctx, streams[0],
                    [](void *arg) {
                        auto *w = (Write *)arg;
                        for (int i = 0; i < Pair::ELEMS; i++)
                            w->grad[i] = w->value;
                    },
                    &writes[step][p]));
                ASSERT_OK(brg_grad_ready(pair.sched, p, streams[0]));
            }
            ASSERT_OK(brg_finish_grad_sync(pair.sched, streams[1]));
            ASSERT_OK(brg_stream_launch(
                ctx, streams[2],
                [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); },
                nullptr));
            ASSERT_OK(brg_step(optimizer, streams[2]));
        }
        ASSERT_OK(brg_finish_param_sync(pair.sched, streams[1]));
        ASSERT_OK(brg_stream_synchronize(ctx, streams[1]));
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < Pair::ELEMS; i++)
                ASSERT_EQ(((const float *)brg_param_data(pair.sched, p))[i],
                          -1.0f - 2.0f - 3.0f - 4.0f);
        brg_optimizer_destroy(optimizer);
        for (brg_stream stream : streams)
            brg_stream_destroy(ctx, stream);
    });
}

} // namespace
