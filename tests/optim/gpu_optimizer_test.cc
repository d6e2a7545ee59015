// SPDX-License-Identifier: Apache-2.0
// The optimizers on GPUs: the same training on the device cuda and on the host.
#include <cstring>

#include "tests/optim/training.h"

namespace
{

using training::Job;
using training::Optimizers;

using Params = std::vector<ref::Vec>;

/* What one training ends with, on rank 0. */
struct Outcome {
    Params params;
    std::vector<double> norms;
    int64_t skipped = -1;
};

struct Training {
    brg_device_kind device = BRG_DEVICE_CUDA;
    int world = 1;
    brg_dtype dtype = BRG_FLOAT32;
    bool muon = false, overlap = false, all_reduce = false;
    int precision_aware = 0, bad_step = -1;
    brg_ns_precision ns_precision = BRG_NS_FP16;
};

brg_optimizer *optimizer_of(const Training &how, Job &job, Optimizers *all)
{
    brg_adamw_options ao = {};
    ao.lr = 3e-3;
    ao.weight_decay = 0.1;
    ao.precision_aware = how.precision_aware;
    std::vector<brg_optimizer *> children = {all->adamw(job.sched, ao)};
    if (how.muon) {
        brg_muon_options mo = {};
        mo.weight_decay = 0.05;
        mo.extra_scale = 0.2;
        mo.ns_precision = how.ns_precision;
        children.push_back(all->muon(job.sched, mo));
    }
    brg_chain_options co = {};
    co.max_grad_norm = 30; // clips in some steps
    return all->chain(children, co);
}

void train(const Training &how, brg_context *ctx, int num_steps, Outcome *outcome)
{
    brg_layout_options lo = {};
    if (!how.muon)
        lo.algorithm = BRG_ELEMENTWISE;
    brg_scheduler_options so = {};
    so.overlap_grad_reduce = so.overlap_param_gather = how.overlap;
    so.all_reduce = how.all_reduce;
    Job job(ctx, small_model(how.dtype), lo, so);
    Optimizers all;
    brg_optimizer *chain = optimizer_of(how, job, &all);
    ASSERT_NE(chain, nullptr);
    brg_stream stream = nullptr;
    ASSERT_OK(brg_stream_create(ctx, &stream));
    for (int step = 0; step < num_steps; step++) {
        ASSERT_OK(brg_finish_param_sync(job.sched, stream));
        ASSERT_OK(brg_zero_grad(job.sched, stream));
        ASSERT_OK(brg_stream_synchronize(ctx, stream)); // gradients come from another stream
        job.write_grads(step, step % 3 == 1 ? 0.25 : 4);
        if (step == how.bad_step && job.rank == 0)
            job.set_grad(3, 5, NAN);
        job.sync_grads(stream);
        ASSERT_OK(brg_step(chain, stream));
        double norm = 0;
        ASSERT_OK(brg_grad_norm(chain, &norm));
        outcome->norms.push_back(norm);
    }
    ASSERT_OK(brg_finish_param_sync(job.sched, stream));
    ASSERT_OK(brg_stream_synchronize(ctx, stream));
    ASSERT_OK(brg_skipped_steps(chain, &outcome->skipped));
    for (int p = 0; p < job.model.size(); p++)
        outcome->params.push_back(job.params(p));
    brg_stream_destroy(ctx, stream);
}

Outcome outcome_of(const Training &how, int num_steps)
{
    std::vector<Outcome> outcomes((size_t)how.world);
    run_ranks(
        how.world,
        [&](int rank, brg_context *ctx) { train(how, ctx, num_steps, &outcomes[(size_t)rank]); },
        {}, nullptr, how.device);
    for (const Outcome &other : outcomes) {
        EXPECT_EQ(other.params, outcomes[0].params); // gathered
    }
    return outcomes[0];
}

/* Largest relative error, in the Frobenius norm, of any parameter's change, beyond what rounding to
 * float32 in every step makes of it: that is much where steps of one value cancel. */
double update_error(const Outcome &got, const Outcome &want, int num_steps)
{
    double worst = 0;
    EXPECT_EQ(got.params.size(), want.params.size());
    for (size_t p = 0; p < want.params.size() && p < got.params.size(); p++) {
        double error = 0, change = 0,
               rounding = num_steps * 0x1p-23 * ref::frobenius(want.params[p]);
        for (size_t i = 0; i < want.params[p].size(); i++) {
            error += std::pow(got.params[p][i] - want.params[p][i], 2);
            change += std::pow(want.params[p][i] - training::initial((int)p, (int64_t)i), 2);
        }
        if (change > 0)
            worst = std::max(worst, (std::sqrt(error) - rounding) / std::sqrt(change));
    }
    return worst;
}

class Gpu : public testing::Test
{
  protected:
    /* GPUs that answer, with the kernels that the optimizers need. */
    static int num_gpus()
    {
        brg_device device;
        int count = 0;
        if (brg_device_open(BRG_DEVICE_CUDA, &device) != BRG_OK || !device.kernels ||
            device.rt->get_device_count(&count) != BRG_RT_OK)
            return 0;
        return count;
    }
    void need(int count)
    {
        int have = num_gpus();
        if (have < count)
            GTEST_SKIP() << "needs " << count << " GPUs and libbrigade-cuda.so, found " << have
                         << " (" << brg_last_error() << ")";
    }
    /* The same training on both devices. */
    void compare(Training how, double bound, int num_steps = 6)
    {
        Outcome gpu = outcome_of(how, num_steps);
        how.device = BRG_DEVICE_HOST;
        Outcome host = outcome_of(how, num_steps);
        ASSERT_EQ(gpu.norms.size(), host.norms.size());
        for (size_t i = 0; i < host.norms.size(); i++) {
            EXPECT_EQ(std::isfinite(gpu.norms[i]), std::isfinite(host.norms[i]));
            if (std::isfinite(host.norms[i])) {
                EXPECT_NEAR(gpu.norms[i], host.norms[i], 1e-12 * host.norms[i]);
            }
        }
        EXPECT_EQ(gpu.skipped, host.skipped);
        EXPECT_LT(update_error(gpu, host, num_steps), bound);
    }
    void repeat(const Training &how)
    {
        Outcome first = outcome_of(how, 5), second = outcome_of(how, 5);
        EXPECT_EQ(first.norms, second.norms);
        EXPECT_EQ(first.params, second.params);
    }
};

TEST_F(Gpu, AdamWAsOnTheHost)
{
    need(1);
    if (IsSkipped())
        return;
    compare({}, 1e-5);
    Training skip;
    skip.bad_step = 2;
    compare(skip, 1e-5);
    Training all_reduce;
    all_reduce.all_reduce = true;
    compare(all_reduce, 1e-5);
}

/* Rounded parameters may differ by a unit in the last place where masters do by a float32's. */
TEST_F(Gpu, BFloat16ParametersAsOnTheHost)
{
    need(1);
    if (IsSkipped())
        return;
    Training how;
    how.dtype = BRG_BFLOAT16;
    compare(how, 1e-2);
    how.precision_aware = 1;
    compare(how, 1e-2);
}

TEST_F(Gpu, MuonAsOnTheHost)
{
    need(1);
    if (IsSkipped())
        return;
    Training how;
    how.muon = true;
    compare(how, 1e-2);
    how.ns_precision = BRG_NS_FP32;
    compare(how, 1e-4);
}

TEST_F(Gpu, RepeatsBitByBit)
{
    need(1);
    if (IsSkipped())
        return;
    Training how;
    how.muon = how.overlap = true;
    repeat(how);
    how.dtype = BRG_BFLOAT16;
    how.precision_aware = 1;
    repeat(how);
}

TEST_F(Gpu, TwoRanks)
{
    need(2);
    if (IsSkipped())
        return;
    Training how;
    how.world = 2;
    compare(how, 1e-5);
    how.overlap = how.muon = true;
    compare(how, 1e-2);
    repeat(how);
}

} // namespace
