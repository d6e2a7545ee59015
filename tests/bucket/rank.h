/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's layout and scheduler, and what the scheduler's tests do with them. */
#ifndef BRIGADE_TESTS_BUCKET_RANK_H
#define BRIGADE_TESTS_BUCKET_RANK_H

#include <numeric>

#include "tests/bucket/harness.h"

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

#endif
