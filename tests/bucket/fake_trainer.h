/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on the host device with made-up graphs, and a trainer whose work can be captured. */
#ifndef BRIGADE_TESTS_BUCKET_FAKE_TRAINER_H
#define BRIGADE_TESTS_BUCKET_FAKE_TRAINER_H

#include "tests/bucket/fake_graphs.h"
#include "tests/bucket/rank.h"

inline void run_fake_ranks(int world, const std::function<void(int, brg_context *)> &body,
                           const char *trace_dir = "")
{
    brg_device device = fake::device();
    brg_context_options options = {};
    options.trace_dir = trace_dir;
    fake::violations = 0;
    run_ranks(world, body, options, &device);
    EXPECT_EQ(fake::violations, 0);
}

/* A trainer whose work is all on streams: gradients that depend on the parameters and on a step
 * counter in memory, and an update. */
struct Trainer : Rank {
    brg_stream main = nullptr, side = nullptr;
    void *forked = nullptr, *joined = nullptr; /* events between the two */
    int64_t step = 0;                          /* written on the stream */
    struct Work {
        Trainer *trainer;
        int param;
    };
    std::vector<Work> works;

    Trainer(brg_context *context, const Plan &plan) : Rank(context, plan)
    {
        EXPECT_EQ(status, BRG_OK) << error;
        const brg_runtime *rt = fake::device().rt;
        EXPECT_OK(brg_stream_create(ctx, &main));
        EXPECT_OK(brg_stream_create(ctx, &side));
        rt->event_create(&forked, 0);
        rt->event_create(&joined, 0);
        for (int p = 0; p < model.size(); p++)
            works.push_back({this, p});
    }
    ~Trainer()
    {
        brg_stream_synchronize(ctx, main);
        const brg_runtime *rt = fake::device().rt;
        rt->event_destroy(forked);
        rt->event_destroy(joined);
        brg_stream_destroy(ctx, main);
        brg_stream_destroy(ctx, side);
    }
    bool slow = false; /* so that whatever does not wait is early */
    static void count(void *arg)
    {
        auto *t = (Trainer *)arg;
        if (t->slow)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        t->step++;
    }
    static void gradient(void *arg)
    {
        auto *w = (Work *)arg;
        Trainer *t = w->trainer;
        auto *grad = (float *)brg_grad_data(t->sched, w->param);
        auto *param = (const float *)brg_param_data(t->sched, w->param);
        for (int64_t i = 0; i < t->model.numel(w->param); i++)
            grad[i] += contribution(t->rank, (int)t->step, w->param, i) + 0.125f * param[i];
    }
    static void update(void *arg)
    {
        auto *t = (Trainer *)arg;
        for (int b = 0; b < brg_scheduler_num_buckets(t->sched); b++) {
            const brg_bucket_view *view = brg_sched_view(t->sched, b);
            for (int s = 0; s < view->num_segments; s++)
                for (int64_t i = 0; i < view->segments[s].numel; i++) {
                    int64_t at = view->segments[s].offset + i;
                    ((float *)view->param_base)[at] -= 0.1f * ((const float *)view->grad_base)[at];
                }
        }
    }
    void compute()
    {
        const brg_runtime *rt = fake::device().rt;
        ASSERT_OK(brg_zero_grad(sched, main));
        ASSERT_OK(brg_stream_launch(ctx, main, count, this));
        ASSERT_OK(brg_span_begin(ctx, BRG_COMPUTE_FORWARD, "forward", main));
        for (int p = 0; p < model.size(); p++)
            ASSERT_OK(brg_param_wait(sched, p, main));
        ASSERT_OK(brg_span_end(ctx, main));
        ASSERT_EQ(rt->event_record(forked, main), 0);
        ASSERT_EQ(rt->stream_wait_event(side, forked), 0);
        for (int p = model.size() - 1; p >= 0; p--) {
            brg_stream stream = p % 3 ? main : side;
            ASSERT_OK(brg_stream_launch(ctx, stream, gradient, &works[(size_t)p]));
            ASSERT_OK(brg_grad_ready(sched, p, stream));
        }
        ASSERT_EQ(rt->event_record(joined, side), 0);
        ASSERT_EQ(rt->stream_wait_event(main, joined), 0);
        ASSERT_OK(brg_finish_grad_sync(sched, main));
    }
    void optimize()
    {
        std::vector<int> groups = all_groups();
        ASSERT_OK(brg_sched_begin_step(sched, main));
        ASSERT_OK(brg_stream_launch(ctx, main, update, this));
        ASSERT_OK(brg_sched_start_param_sync(sched, groups.data(), (int)groups.size(), main));
        ASSERT_OK(brg_sched_end_step(sched, main));
    }
    std::vector<float> values()
    {
        std::vector<float> all;
        EXPECT_OK(brg_finish_param_sync(sched, main));
        EXPECT_OK(brg_stream_synchronize(ctx, main));
        for (int p = 0; p < model.size(); p++) {
            auto *data = (const float *)brg_param_data(sched, p);
            all.insert(all.end(), data, data + model.numel(p));
        }
        return all;
    }
};

#endif
