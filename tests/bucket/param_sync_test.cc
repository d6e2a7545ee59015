// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "tests/bucket/rank.h"

namespace
{

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

TEST(ParamSync, GathersEachGroupOnceInAnyMode)
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

TEST(ParamSync, PrefetchFollowsTheLearnedForwardOrder)
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

TEST(ParamSync, BroadcastAndMainGrads)
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

} // namespace
