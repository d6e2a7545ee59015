// SPDX-License-Identifier: Apache-2.0
// What a step on a device with a kernel table puts on streams, and when.
#include "tests/optim/training.h"

#include <atomic>
#include <cstring>
#include <thread>

extern "C" {
/* sched/optim/optimizer_impl.h, which is not C++. */
brg_status brg_optim_refresh_lr(brg_optimizer *optimizer, brg_stream stream);
}

namespace
{

using training::Job;
using training::Optimizers;
using training::Reference;
using Rule = training::Reference::Rule;

Reference reference_of(const Job &job)
{
    return Reference(job.model, [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
}

TEST(KernelStep, LaunchesOnePerBucketForTheNormAndOnePerOptimizer)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(BRG_BFLOAT16));
        Optimizers all;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
        ASSERT_NE(chain, nullptr);
        HostKernelCounts &counts = host_kernel_counts();
        int buckets = brg_scheduler_num_buckets(job.sched);
        ASSERT_GT(buckets, 3);
        int plans = counts.muon_create;
        for (int step = 0; step < 3; step++) {
            int sums = counts.sum_squares, totals = counts.sum_partials, adamw = counts.adamw,
                muon = counts.muon_update, prepared = counts.prepare_step,
                converted = counts.convert;
            job.backward(step);
            EXPECT_EQ(counts.sum_squares - sums, buckets); // as reductions are launched
            ASSERT_OK(brg_step(chain, nullptr));
            EXPECT_EQ(counts.sum_squares - sums, buckets);
            EXPECT_EQ(counts.sum_partials - totals, 1);
            EXPECT_EQ(counts.prepare_step - prepared, 1);
            EXPECT_EQ(counts.adamw - adamw, 1);
            EXPECT_EQ(counts.muon_update - muon, 1);
            EXPECT_EQ(counts.convert - converted, step == 0 ? buckets : 0); // masters
        }
        EXPECT_EQ(counts.muon_create - plans, 1);
    });
}

TEST(KernelStep, OptimizersCreatedBetweenSynchronisationAndStep)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        job.backward(0);
        Optimizers all;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
        Reference reference = reference_of(job);
        for (int step = 0; step < 3; step++) {
            if (step > 0)
                job.backward(step);
            ASSERT_OK(brg_step(chain, nullptr));
            reference.step(step);
            double norm = 0;
            ASSERT_OK(brg_grad_norm(chain, &norm));
            EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
        }
        expect_params(job, reference, 3e-6);
    });
}

/* Gradients that are synchronised and then dropped leave sums behind that count for nothing. */
TEST(KernelStep, SynchronisationWithoutAStep)
{
    for (int overlap : {0, 1}) {
        run_ranks(3, [&](int, brg_context *ctx) {
            brg_scheduler_options so = {};
            so.overlap_grad_reduce = overlap;
            Job job(ctx, small_model(), {}, so);
            Optimizers all;
            brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
            Reference reference = reference_of(job);
            for (int step = 0; step < 4; step++) {
                job.backward(step + 10, 100);
                if (step == 2)
                    ASSERT_OK(brg_scheduler_relearn(job.sched));
                job.backward(step);
                ASSERT_OK(brg_step(chain, nullptr));
                reference.step(step);
                double norm = 0;
                ASSERT_OK(brg_grad_norm(chain, &norm));
                EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
            }
            expect_params(job, reference, 3e-6);
            job.backward(9); // and destroyed with sums outstanding
        });
    }
}

TEST(KernelStep, AccumulationAndStreamsOfTheirOwn)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        brg_scheduler_options so = {};
        so.overlap_grad_reduce = so.overlap_param_gather = 1;
        Job job(ctx, small_model(), {}, so);
        Optimizers all;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
        Reference reference = reference_of(job);
        brg_stream streams[3];
        for (brg_stream &stream : streams)
            ASSERT_OK(brg_stream_create(ctx, &stream));
        for (int step = 0; step < 4; step++) {
            ASSERT_OK(brg_zero_grad(job.sched, streams[0]));
            ASSERT_OK(brg_stream_synchronize(ctx, streams[0]));
            ASSERT_OK(brg_no_sync_begin(job.sched));
            job.write_grads(step, 0.5);
            for (int p = 0; p < job.model.size(); p++)
                ASSERT_OK(brg_grad_ready(job.sched, p, streams[0]));
            ASSERT_OK(brg_no_sync_end(job.sched));
            job.write_grads(step, 0.5);
            for (int p = job.model.size() - 1; p >= 0; p--)
                ASSERT_OK(brg_grad_ready(job.sched, p, streams[0]));
            ASSERT_OK(brg_finish_grad_sync(job.sched, streams[1]));
            ASSERT_OK(brg_step(chain, streams[2]));
            ASSERT_OK(brg_finish_param_sync(job.sched, streams[0]));
            reference.step(step);
        }
        ASSERT_OK(brg_stream_synchronize(ctx, streams[0]));
        expect_params(job, reference, 3e-6);
        for (brg_stream stream : streams)
            brg_stream_destroy(ctx, stream);
    });
}

/* Counts stay with the optimizer when it joins a chain, and when that ends. */
TEST(KernelStep, StepCountsInAndOutOfAChain)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        brg_layout_options lo = {};
        lo.algorithm = BRG_ELEMENTWISE;
        Job job(ctx, small_model(), lo);
        Optimizers all;
        brg_optimizer *adamw = all.adamw(job.sched), *chain = nullptr;
        int64_t steps = 0;
        auto expect = [&](int64_t want) {
            ASSERT_OK(brg_param_step_count(adamw, 0, &steps));
            EXPECT_EQ(steps, want);
        };
        job.backward(0);
        ASSERT_OK(brg_step(adamw, nullptr));
        expect(1);
        ASSERT_OK(brg_chain_create(&adamw, 1, nullptr, &chain));
        expect(1);
        job.backward(1);
        ASSERT_OK(brg_step(chain, nullptr));
        expect(2);
        brg_optimizer_destroy(chain);
        expect(2);
        job.backward(2);
        ASSERT_OK(brg_step(adamw, nullptr));
        expect(3);
    });
}

TEST(KernelStep, PlansFollowRowSplits)
{
    Model fused;
    fused.add("qkv", {48, 16});
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, fused);
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched);
        HostKernelCounts &counts = host_kernel_counts();
        int made = counts.muon_create, gone = counts.muon_destroy;
        job.backward(0);
        ASSERT_OK(brg_step(muon, nullptr));
        const int64_t blocks[] = {16, 8};
        ASSERT_OK(brg_muon_set_row_split(muon, 0, 2, blocks, 2));
        job.backward(1);
        ASSERT_OK(brg_step(muon, nullptr));
        EXPECT_EQ(counts.muon_create - made, 2);
        EXPECT_EQ(counts.muon_destroy - gone, 1);
    });
}

TEST(KernelStep, ARankWithoutAPlanLeavesNoOtherWaiting)
{
    HostKernelCounts &counts = host_kernel_counts();
    std::atomic<int> without{0}, others{0}, reduced{0};
    counts.failing_creates = 1;
    run_ranks(3, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched);
        job.backward(0);
        EXPECT_OK(brg_stream_synchronize(ctx, nullptr));
        for (reduced++; reduced < 3;) /* else the abort meets others in their reductions */
            std::this_thread::yield();
        double norm = 0;
        brg_status status = brg_step(muon, nullptr);
        if (status != BRG_OK && strstr(brg_last_error(), "no room for a plan"))
            without++;
        else if (status != BRG_OK || brg_grad_norm(muon, &norm) != BRG_OK)
            others++;
        EXPECT_NE(brg_context_status(ctx), BRG_OK);
    });
    counts.failing_creates = 0;
    EXPECT_EQ(without, 1);
    EXPECT_EQ(others, 2);
}

TEST(KernelStep, LearningRatesAreStoredWhenTheyChange)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_optimizer *chain = all.chain({muon, adamw});
        HostKernelCounts &counts = host_kernel_counts();
        int stores = counts.store_double;
        ASSERT_OK(brg_optim_refresh_lr(chain, nullptr));
        EXPECT_EQ(counts.store_double - stores, 2);
        ASSERT_OK(brg_optimizer_set_lr(muon, 0.5));
        ASSERT_OK(brg_optim_refresh_lr(chain, nullptr));
        ASSERT_OK(brg_optim_refresh_lr(chain, nullptr));
        EXPECT_EQ(counts.store_double - stores, 3);
    });
}

TEST(KernelStep, AChainHasAsManyChildrenAsTheKernelTakes)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Model model;
        for (int p = 0; p < BRG_MAX_CHILDREN + 1; p++)
            model.add("p" + std::to_string(p), {700});
        brg_layout_options lo = {};
        lo.algorithm = BRG_ELEMENTWISE;
        Job job(ctx, model, lo);
        ASSERT_GT(brg_scheduler_num_groups(job.sched), BRG_MAX_CHILDREN);
        Optimizers all;
        std::vector<brg_optimizer *> children;
        for (int g = 0; g < brg_scheduler_num_groups(job.sched); g++) {
            brg_sgd_options so = {};
            so.groups = &g;
            so.num_groups = 1;
            children.push_back(all.sgd(job.sched, so));
        }
        brg_optimizer *chain = nullptr;
        EXPECT_EQ(brg_chain_create(children.data(), (int)children.size(), nullptr, &chain),
                  BRG_ERR_UNSUPPORTED);
        EXPECT_EQ(chain, nullptr);
    });
}

} // namespace
