// SPDX-License-Identifier: Apache-2.0
// Optimizers on real schedulers, ranks as threads, against float64.
#include <chrono>
#include <thread>

#include "tests/optim/training.h"

namespace
{

using training::Job;
using training::Optimizers;
using training::Reference;
using Rule = training::Reference::Rule;

struct Mode {
    const char *name;
    int world, overlap, all_reduce, per_group, prefetch;
};

class Chains : public testing::TestWithParam<Mode>
{
};

brg_scheduler_options sched_options(const Mode &mode)
{
    brg_scheduler_options o = {};
    o.overlap_grad_reduce = o.overlap_param_gather = mode.overlap;
    o.all_reduce = mode.all_reduce;
    o.buckets_per_group = mode.per_group;
    o.param_gather_prefetch = mode.prefetch;
    return o;
}

double schedule(double lr, int step)
{
    return lr * (step + 1) / 8;
}

TEST_P(Chains, EqualTwoSeparateOptimizersInFloat64)
{
    Mode mode = GetParam();
    run_ranks(mode.world, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(), {}, sched_options(mode));
        Optimizers all;
        brg_muon_options mo = {};
        mo.lr = 0.02;
        mo.weight_decay = 0.05;
        mo.extra_scale = 0.2;
        brg_adamw_options ao = {};
        ao.lr = 3e-3;
        ao.weight_decay = 0.1;
        brg_optimizer *muon = all.muon(job.sched, mo), *adamw = all.adamw(job.sched, ao);
        brg_chain_options co = {};
        co.max_grad_norm = 60;
        brg_optimizer *chain = all.chain({muon, adamw}, co);
        ASSERT_NE(chain, nullptr);

        Reference reference(job.model,
                            [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
        reference.muon.wd = 0.05;
        reference.muon.extra = 0.2;
        reference.adamw = {3e-3, 0.9, 0.999, 1e-8, 0.1};
        reference.max_norm = 60;
        int clipped = 0;
        const int steps = 6;
        for (int step = 0; step < steps; step++) {
            double factor = step % 3 == 1 ? 0.25 : 4; // clipped in some steps only
            reference.muon.lr = schedule(0.02, step);
            reference.adamw.lr = schedule(3e-3, step);
            ASSERT_OK(brg_optimizer_set_lr(muon, schedule(0.02, step)));
            ASSERT_OK(brg_optimizer_set_lr(adamw, schedule(3e-3, step)));
            job.backward(step, factor);
            ASSERT_OK(brg_step(chain, nullptr));
            ASSERT_OK(brg_finish_param_sync(job.sched, nullptr));
            reference.step(step, factor);
            double norm = 0;
            ASSERT_OK(brg_grad_norm(chain, &norm));
            EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
            EXPECT_NE(norm, 60);
            clipped += norm > 60;
            expect_params(job, reference, 3e-6);
        }
        EXPECT_GT(clipped, 0);
        EXPECT_LT(clipped, steps);
        job.expect_counters(steps, mode.all_reduce ? 0 : steps);
        int64_t skipped = -1;
        ASSERT_OK(brg_skipped_steps(muon, &skipped));
        EXPECT_EQ(skipped, 0);
    });
}

INSTANTIATE_TEST_SUITE_P(Modes, Chains,
                         testing::Values(Mode{"one", 1, 0, 0, 1, 0}, Mode{"two", 2, 0, 0, 1, 0},
                                         Mode{"four", 4, 0, 0, 1, 0},
                                         Mode{"four_overlapped", 4, 1, 0, 2, 0},
                                         Mode{"two_prefetch", 2, 1, 0, 1, 1},
                                         Mode{"one_overlapped", 1, 1, 0, 3, 0},
                                         Mode{"two_all_reduce", 2, 0, 1, 1, 0}),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Chain, ThreeChildrenGatherEveryBucketOnce)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        std::vector<int> rest = job.groups(false), some = {rest.back()};
        rest.pop_back();
        ASSERT_FALSE(rest.empty());
        brg_adamw_options ao = {};
        ao.groups = rest.data();
        ao.num_groups = (int)rest.size();
        brg_sgd_options so = {};
        so.momentum = 0.9;
        so.weight_decay = 0.01;
        so.lr = 0.01;
        so.groups = some.data();
        so.num_groups = 1;
        brg_optimizer *sgd = all.sgd(job.sched, so);
        brg_optimizer *chain =
            all.chain({all.adamw(job.sched, ao), all.muon(job.sched), sgd}); // no clipping
        ASSERT_NE(chain, nullptr);
        Reference reference(job.model, [&](int p) {
            brg_bucket_info info;
            EXPECT_OK(
                brg_scheduler_bucket(job.sched, brg_scheduler_bucket_of(job.sched, p), &info));
            return job.layerwise(p) ? Rule::muon : info.group == some[0] ? Rule::sgd : Rule::adamw;
        });
        reference.sgd_lr = 0.01;
        reference.sgd_momentum = 0.9;
        reference.sgd_decay = 0.01;
        for (int step = 0; step < 3; step++) {
            job.backward(step);
            ASSERT_OK(brg_step(chain, nullptr));
            reference.step(step);
            expect_params(job, reference, 3e-6);
        }
        job.expect_counters(3, 3);
    });
}

TEST(Chain, ChildrenAndRanksWithNothingToDo)
{
    // Three parameters on four ranks: some shards hold padding only; no layer-wise group at all.
    Model tiny;
    tiny.add("a", {3});
    tiny.add("b", {});
    tiny.add("c", {0});
    run_ranks(4, [&](int rank, brg_context *ctx) {
        Job job(ctx, tiny);
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_optimizer *chain = all.chain({muon, adamw});
        ASSERT_NE(chain, nullptr);
        Reference reference(job.model, [](int) { return Rule::adamw; });
        for (int step = 0; step < 3; step++) {
            job.backward(step);
            ASSERT_OK(brg_step(chain, nullptr));
            reference.step(step);
            double norm = 0;
            ASSERT_OK(brg_grad_norm(adamw, &norm));
            EXPECT_NEAR(norm, reference.norm, 1e-12);
        }
        expect_params(job, reference, 1e-6);
        job.expect_counters(3, 3);
        int64_t steps = 0;
        if (rank == 3) { // parameters are few and at the start
            EXPECT_EQ(brg_param_step_count(chain, 0, &steps), BRG_ERR_INVALID_ARGUMENT);
        }
        EXPECT_EQ(brg_param_step_count(muon, 0, &steps), BRG_ERR_INVALID_ARGUMENT);
    });
}

class Single : public testing::TestWithParam<int>
{
};

TEST_P(Single, OptimizerWithoutAChain)
{
    Rule rule = (Rule)GetParam();
    run_ranks(2, [&](int, brg_context *ctx) {
        Model model = small_model();
        brg_layout_options lo = {};
        lo.algorithm = BRG_ELEMENTWISE;
        if (rule == Rule::muon) {
            lo.algorithm = BRG_LAYERWISE;
            model = Model();
            model.add("a", {40, 60});
            model.add("b", {60, 20});
            model.add("c", {7, 3});
        }
        Job job(ctx, model, lo);
        Optimizers all;
        brg_optimizer *optimizer = rule == Rule::adamw ? all.adamw(job.sched)
                                   : rule == Rule::sgd ? all.sgd(job.sched)
                                                       : all.muon(job.sched);
        ASSERT_NE(optimizer, nullptr);
        Reference reference(job.model, [&](int) { return rule; });
        for (int step = 0; step < 3; step++) {
            job.backward(step);
            ASSERT_OK(brg_step(optimizer, nullptr));
            reference.step(step);
            double norm = 0;
            ASSERT_OK(brg_grad_norm(optimizer, &norm));
            EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
        }
        expect_params(job, reference, 3e-6);
        job.expect_counters(3, 3);
    });
}

std::string rule_name(const testing::TestParamInfo<int> &info)
{
    return std::vector<std::string>{"adamw", "sgd", "muon"}[(size_t)info.param];
}

INSTANTIATE_TEST_SUITE_P(Rules, Single, testing::Values(0, 1, 2), rule_name);

struct Queued {
    Job *job;
    int step;
};

/* Everything is put on the stream while it is held up: learning rates are those of the call. */
TEST(Step, RunsBehindTheCaller)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        brg_scheduler_options so = {};
        so.overlap_grad_reduce = so.overlap_param_gather = 1;
        Job job(ctx, small_model(), {}, so);
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_optimizer *chain = all.chain({muon, adamw});
        Reference reference(job.model,
                            [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
        brg_stream stream = nullptr, other = nullptr;
        ASSERT_OK(brg_stream_create(ctx, &stream));
        ASSERT_OK(brg_stream_create(ctx, &other));
        const int steps = 5;
        std::vector<Queued> queued;
        for (int step = 0; step < steps; step++)
            queued.push_back({&job, step});
        for (int step = 0; step < steps; step++) {
            if (step == 1) {
                ASSERT_OK(brg_stream_launch(
                    ctx, stream,
                    [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); },
                    nullptr));
            }
            reference.muon.lr = schedule(0.02, step);
            reference.adamw.lr = schedule(1e-3, step);
            ASSERT_OK(brg_optimizer_set_lr(muon, schedule(0.02, step)));
            ASSERT_OK(brg_optimizer_set_lr(adamw, schedule(1e-3, step)));
            for (int p = 0; p < job.model.size(); p++)
                ASSERT_OK(brg_param_wait(job.sched, p, stream));
            ASSERT_OK(brg_zero_grad(job.sched, stream));
            ASSERT_OK(brg_stream_launch(
                ctx, stream,
                [](void *arg) {
                    Queued *q = (Queued *)arg;
                    q->job->write_grads(q->step);
                },
                &queued[(size_t)step]));
            job.sync_grads(stream);
            ASSERT_OK(brg_step(chain, stream));
            reference.step(step);
        }
        // Must not reach the steps that are on the stream.
        ASSERT_OK(brg_optimizer_set_lr(muon, 99));
        ASSERT_OK(brg_optimizer_set_lr(adamw, 99));
        double norm = 0;
        ASSERT_OK(brg_grad_norm(chain, &norm)); // waits
        EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
        int64_t count = 0, seen = 0;
        for (int p = 0; p < job.model.size(); p++)
            if (brg_param_step_count(chain, p, &count) == BRG_OK) {
                EXPECT_EQ(count, steps);
                seen++;
            }
        EXPECT_GT(seen, 0);
        ASSERT_OK(brg_finish_param_sync(job.sched, stream));
        ASSERT_OK(brg_stream_synchronize(ctx, stream));
        expect_params(job, reference, 3e-6);
        job.expect_counters(steps, steps);

        // The next step on another stream comes after these.
        ASSERT_OK(brg_optimizer_set_lr(muon, 0));
        ASSERT_OK(brg_optimizer_set_lr(adamw, 0));
        job.backward(9);
        ASSERT_OK(brg_step(chain, other));
        ASSERT_OK(brg_finish_param_sync(job.sched, other));
        ASSERT_OK(brg_stream_synchronize(ctx, other));
        expect_params(job, reference, 3e-6);
        brg_stream_destroy(ctx, stream);
        brg_stream_destroy(ctx, other);
    });
}

TEST(Step, NonFiniteGradientsSkipEverywhere)
{
    for (float bad : {NAN, INFINITY}) {
        run_ranks(2, [&](int rank, brg_context *ctx) {
            Job job(ctx, small_model());
            Optimizers all;
            brg_chain_options co = {};
            co.max_grad_norm = 1;
            brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)}, co);
            Reference reference(job.model,
                                [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
            reference.max_norm = 1;
            for (int step = 0; step < 4; step++) {
                ASSERT_OK(brg_zero_grad(job.sched, nullptr));
                job.write_grads(step);
                if (step == 2 && rank == 1) // one element on one rank
                    job.set_grad(3, 5, bad);
                job.sync_grads();
                std::vector<ref::Vec> before;
                for (int p = 0; p < job.model.size(); p++)
                    before.push_back(job.params(p));
                ASSERT_OK(brg_step(chain, nullptr));
                double norm = 0;
                ASSERT_OK(brg_grad_norm(chain, &norm));
                int64_t skipped = 0, count = 0;
                ASSERT_OK(brg_skipped_steps(chain, &skipped));
                EXPECT_EQ(skipped, step >= 2);
                for (int p = 0; p < job.model.size(); p++) {
                    if (step == 2) {
                        EXPECT_EQ(job.params(p), before[(size_t)p]);
                    }
                    if (brg_param_step_count(chain, p, &count) == BRG_OK) {
                        EXPECT_EQ(count, step < 2 ? step + 1 : step);
                    }
                }
                EXPECT_EQ(std::isfinite(norm), step != 2);
                job.expect_counters((uint64_t)step + 1,
                                    (uint64_t)step + 1); // gathered all the same
                if (step != 2) {
                    reference.step(step); // state is as if step 2 had not been
                    expect_params(job, reference, 3e-6);
                }
            }
        });
    }
}

TEST(Step, NonFiniteGradientsAreAppliedIfAskedFor)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_chain_options co = {};
        co.apply_non_finite = 1;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)}, co);
        ASSERT_OK(brg_zero_grad(job.sched, nullptr));
        job.write_grads(0);
        job.set_grad(0, 5, NAN);
        job.sync_grads();
        ASSERT_OK(brg_step(chain, nullptr));
        EXPECT_TRUE(std::isnan(job.param(0, 5)));
        EXPECT_TRUE(std::isfinite(job.param(0, 6)));
        int64_t skipped = -1;
        ASSERT_OK(brg_skipped_steps(chain, &skipped));
        EXPECT_EQ(skipped, 0);
    });
}

/* Sixteen-bit parameters: float32 masters collect steps far below a bf16 unit in the last place. */
TEST(Masters, CollectSmallSteps)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(BRG_BFLOAT16));
        Optimizers all;
        brg_muon_options mo = {};
        mo.lr = 1e-5;
        brg_adamw_options ao = {};
        ao.lr = 1e-5;
        brg_optimizer *chain = all.chain({all.muon(job.sched, mo), all.adamw(job.sched, ao)});
        ASSERT_NE(chain, nullptr);
        Reference reference(job.model,
                            [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
        reference.muon.lr = reference.adamw.lr = 1e-5;
        // The masters begin as what bf16 has made of the initial values.
        for (int p = 0; p < job.model.size(); p++)
            reference.states[(size_t)p].p.v = job.params(p);
        for (int step = 0; step < 40; step++) {
            job.backward(step % 2);
            ASSERT_OK(brg_step(chain, nullptr));
            reference.step(step % 2);
        }
        int moved = 0;
        for (int p = 0; p < job.model.size(); p++) {
            ref::Vec got = job.params(p);
            const ref::Vec &want = reference.states[(size_t)p].p.v;
            for (size_t i = 0; i < got.size(); i++) {
                ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-8 + 1e-7)
                    << job.model.names[(size_t)p] << " " << i;
                moved += got[i] != training::initial(p, (int64_t)i);
            }
        }
        EXPECT_GT(moved, 100);
    });
}

TEST(Masters, ReloadTakesWhatTheCallerHasWritten)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(BRG_BFLOAT16));
        Optimizers all;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
        job.backward(0);
        ASSERT_OK(brg_step(chain, nullptr));
        for (int p = 0; p < job.model.size(); p++)
            for (int64_t i = 0; i < job.model.numel(p); i++)
                job.set_param(p, i, 2.0f);
        ASSERT_OK(brg_optimizer_reload_params(chain, nullptr));
        job.backward(1);
        ASSERT_OK(brg_step(chain, nullptr));
        for (int p = 0; p < job.model.size(); p++)
            for (int64_t i = 0; i < job.model.numel(p); i++)
                ASSERT_NEAR(job.param(p, i), 2.0, 0.2);
    });
}

/* Work on one stream comes after the optimizer's earlier work on another. */
TEST(Masters, ReloadOnAnotherStreamComesAfterTheStep)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(BRG_BFLOAT16));
        Optimizers all;
        brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
        brg_stream slow = nullptr, other = nullptr;
        ASSERT_OK(brg_stream_create(ctx, &slow));
        ASSERT_OK(brg_stream_create(ctx, &other));
        job.backward(0);
        ref::Vec before = job.params(0);
        ASSERT_OK(brg_stream_launch(
            ctx, slow, [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); },
            nullptr));
        ASSERT_OK(brg_step(chain, slow));
        ASSERT_OK(brg_optimizer_reload_params(chain, other));
        ASSERT_OK(brg_stream_synchronize(ctx, other));
        EXPECT_NE(job.params(0), before);
        brg_stream_destroy(ctx, slow);
        brg_stream_destroy(ctx, other);
    });
}

/* Fused QKV: blocks of the first layer's matrix against three matrices of their own. */
TEST(RowSplit, EqualsSeparateMatrices)
{
    Model fused, apart;
    fused.add("qkv", {48, 16});
    apart.add("q", {24, 16});
    apart.add("k", {12, 16});
    apart.add("v", {12, 16});
    const int64_t blocks[3] = {8, 4, 4}; // three query groups
    const int64_t whole = 48;
    const int base[3] = {0, 8, 12};
    run_ranks(2, [&](int, brg_context *ctx) {
        Job one(ctx, fused), three(ctx, apart);
        Optimizers all;
        brg_muon_options mo = {};
        mo.scale = BRG_SCALE_SHAPE_SCALING;
        mo.weight_decay = 0.1;
        brg_optimizer *a = all.muon(one.sched, mo), *b = all.muon(three.sched, mo);
        ASSERT_OK(brg_muon_set_row_split(a, 0, 1, &whole, 1)); // replaced by:
        ASSERT_OK(brg_muon_set_row_split(a, 0, 3, blocks, 3));
        auto row_of = [&](int block, int64_t row) { // in the fused matrix
            return row / blocks[block] * 16 + base[block] + row % blocks[block];
        };
        auto copy = [&](auto get, auto set) {
            for (int block = 0; block < 3; block++)
                for (int64_t row = 0; row < blocks[block] * 3; row++)
                    for (int64_t col = 0; col < 16; col++)
                        set(block, row * 16 + col, get(row_of(block, row) * 16 + col));
        };
        copy([&](int64_t i) { return (float)one.param(0, i); },
             [&](int block, int64_t i, float x) { three.set_param(block, i, x); });
        for (int step = 0; step < 3; step++) {
            ASSERT_OK(brg_zero_grad(one.sched, nullptr));
            ASSERT_OK(brg_zero_grad(three.sched, nullptr));
            one.write_grads(step);
            copy([&](int64_t i) { return one.grads(0)[(size_t)i]; },
                 [&](int block, int64_t i, float x) { three.set_grad(block, i, x); });
            one.sync_grads();
            three.sync_grads();
            ASSERT_OK(brg_step(a, nullptr));
            ASSERT_OK(brg_step(b, nullptr));
            copy([&](int64_t i) { return (float)one.param(0, i); },
                 [&](int block, int64_t i, float x) {
                     EXPECT_NEAR(three.param(block, i), x, 1e-6) << block << " " << i;
                 });
        }
    });
}

} // namespace
