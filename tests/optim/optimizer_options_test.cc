// SPDX-License-Identifier: Apache-2.0
// Options that change what is kept or multiplied: precision-aware AdamW, a chain's grad_scale, how
// Newton-Schulz is evaluated.
#include "tests/optim/training.h"

namespace
{

using training::Job;
using training::Optimizers;
using training::Reference;
using Rule = training::Reference::Rule;

brg_layout_options elementwise()
{
    brg_layout_options lo = {};
    lo.algorithm = BRG_ELEMENTWISE;
    return lo;
}

void expect_close_to_masters(const Job &job, const Reference &reference, double error)
{
    int moved = 0;
    for (int p = 0; p < job.model.size(); p++) {
        ref::Vec got = job.params(p);
        const ref::Vec &want = reference.states[(size_t)p].p.v;
        for (size_t i = 0; i < got.size(); i++) {
            ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-8 + error)
                << job.model.names[(size_t)p] << " " << i;
            moved += got[i] != training::initial(p, (int64_t)i);
        }
    }
    EXPECT_GT(moved, 100);
}

/* Steps far below a unit in the last place of the parameters: the low halves collect them. */
TEST(PrecisionAware, CollectsSmallStepsAsFloat32MastersDo)
{
    for (int world : {1, 3}) {
        run_ranks(world, [&](int, brg_context *ctx) {
            Job job(ctx, small_model(BRG_BFLOAT16), elementwise());
            Optimizers all;
            brg_adamw_options ao = {};
            ao.lr = 1e-5;
            ao.precision_aware = 1;
            brg_optimizer *adamw = all.adamw(job.sched, ao);
            ASSERT_NE(adamw, nullptr);
            Reference reference(job.model, [](int) { return Rule::adamw; });
            reference.adamw.lr = 1e-5;
            for (int p = 0; p < job.model.size(); p++)
                reference.states[(size_t)p].p.v = job.params(p);
            const int steps = 40;
            for (int step = 0; step < steps; step++) {
                job.backward(step % 2);
                ASSERT_OK(brg_step(adamw, nullptr));
                reference.step(step % 2);
            }
            // bfloat16 moments are off by up to 2^-8, twice that a step at most.
            expect_close_to_masters(job, reference, steps * 1e-5 * 0x1p-6);
        });
    }
}

TEST(PrecisionAware, ReloadTakesWhatTheCallerHasWritten)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(BRG_BFLOAT16), elementwise());
        Optimizers all;
        brg_adamw_options ao = {};
        ao.lr = 1e-5; // below a unit in the last place of 2
        ao.precision_aware = 1;
        brg_optimizer *adamw = all.adamw(job.sched, ao);
        job.backward(0);
        ASSERT_OK(brg_step(adamw, nullptr));
        for (int p = 0; p < job.model.size(); p++)
            job.set_params(p, std::vector<float>((size_t)job.model.numel(p), 2.0f));
        ASSERT_OK(brg_optimizer_reload_params(adamw, nullptr));
        job.backward(1);
        ASSERT_OK(brg_step(adamw, nullptr));
        for (int p = 0; p < job.model.size(); p++)
            for (double value : job.params(p))
                ASSERT_EQ(value, 2.0);
    });
}

TEST(PrecisionAware, NeedsBfloat16Parameters)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model(), elementwise());
        brg_adamw_options ao = {};
        ao.precision_aware = 1;
        brg_optimizer *made = nullptr;
        EXPECT_EQ(brg_adamw_create(job.sched, &ao, &made), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(made, nullptr);
        std::string message = brg_last_error();
        EXPECT_NE(message.find("bucket 0"), std::string::npos) << message;
        EXPECT_NE(message.find("fp32"), std::string::npos) << message;
    });
}

/* Gradients four times too large and a grad_scale of 1/4 are the gradients. */
TEST(GradScale, ComesBeforeNormAndClipping)
{
    run_ranks(2, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_chain_options co = {};
        co.max_grad_norm = 10;
        co.grad_scale = 0.25;
        brg_optimizer *chain = all.chain({muon, adamw}, co);
        ASSERT_NE(chain, nullptr);
        Reference reference(job.model,
                            [&](int p) { return job.layerwise(p) ? Rule::muon : Rule::adamw; });
        reference.max_norm = 10;
        for (int step = 0; step < 3; step++) {
            job.backward(step, 4);
            ASSERT_OK(brg_step(chain, nullptr));
            reference.step(step);
            double norm = 0;
            ASSERT_OK(brg_grad_norm(chain, &norm));
            EXPECT_NEAR(norm, reference.norm, 1e-12 * reference.norm);
            expect_params(job, reference, 3e-6);
        }
    });
}

TEST(GradScale, MustBePositive)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *children[] = {all.muon(job.sched), all.adamw(job.sched)};
        for (double scale : {-1.0, (double)NAN, (double)INFINITY}) {
            brg_chain_options co = {};
            co.grad_scale = scale;
            brg_optimizer *made = nullptr;
            EXPECT_EQ(brg_chain_create(children, 2, &co, &made), BRG_ERR_INVALID_ARGUMENT);
            EXPECT_NE(std::string(brg_last_error()).find("grad_scale"), std::string::npos);
        }
    });
}

TEST(NewtonSchulz, FormsAndRestartsAreChecked)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        const int restarts[] = {2, 4}, late[] = {5}, zero[] = {0}, falling[] = {3, 3};
        auto refused = [&](brg_muon_options o, const char *text) {
            brg_optimizer *made = nullptr;
            EXPECT_EQ(brg_muon_create(job.sched, &o, &made), BRG_ERR_INVALID_ARGUMENT) << text;
            EXPECT_NE(std::string(brg_last_error()).find(text), std::string::npos)
                << brg_last_error();
        };
        brg_muon_options o = {};
        o.ns_precision = (brg_ns_precision)3;
        refused(o, "ns_precision 3");
        o.ns_precision = BRG_NS_BF16;
        o.ns_algorithm = BRG_NS_GRAM;
        refused(o, "gram");
        o.ns_algorithm = (brg_ns_algorithm)4;
        refused(o, "ns_algorithm 4");
        o.ns_precision = BRG_NS_FP32;
        o.ns_algorithm = BRG_NS_GRAM;
        o.num_ns_restarts = 1;
        o.ns_restarts = late; // five steps: the last is step 4
        refused(o, "ns_restarts[0] is 5");
        o.ns_restarts = zero;
        refused(o, "ns_restarts[0] is 0");
        o.num_ns_restarts = 2;
        o.ns_restarts = falling;
        refused(o, "ns_restarts[1] is 3");
        o.num_ns_restarts = -1;
        refused(o, "-1");
        o.num_ns_restarts = 2;
        o.ns_restarts = restarts;
        Optimizers all;
        EXPECT_NE(all.muon(job.sched, o), nullptr);
    });
}

} // namespace
