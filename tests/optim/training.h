/* SPDX-License-Identifier: Apache-2.0 */
/* A tiny training job with made-up gradients: on real schedulers over thread ranks, and in float64.
 */
#ifndef BRIGADE_TESTS_OPTIM_TRAINING_H
#define BRIGADE_TESTS_OPTIM_TRAINING_H

#include <cmath>
#include <map>
#include <memory>

#include "tests/bucket/harness.h"
#include "tests/optim/reference.h"

namespace training
{

constexpr int num_microbatches = 4;

/* Multiples of 2^-12: sums over microbatches are exact in float32 in any order, so that the number
 * of ranks makes no difference to gradients. */
inline float grid(float value)
{
    return std::nearbyint(value * 4096.0f) / 4096.0f;
}
inline float microbatch_grad(int microbatch, int step, int p, int64_t i)
{
    return grid(contribution(microbatch, step, p, i));
}
inline float initial(int p, int64_t i)
{
    return grid(contribution(77, 0, p, i)) / 8;
}

/* One rank's layout and scheduler. */
class Job
{
  public:
    brg_layout *layout = nullptr;
    brg_scheduler *sched = nullptr;
    Model model;
    int rank, world;

    Job(brg_context *ctx, Model m, brg_layout_options lo = {}, brg_scheduler_options so = {})
        : model(std::move(m)), rank(brg_context_rank(ctx)), world(brg_context_world_size(ctx))
    {
        lo.data_parallel_size = world;
        if (!lo.bucket_size)
            lo.bucket_size = 700;
        so.grad_scaling = BRG_SCALE_NONE;
        EXPECT_OK(brg_layout_compute(model.data(), model.size(), &lo, &layout));
        EXPECT_OK(brg_scheduler_create(ctx, layout, &so, &sched));
        for (int p = 0; p < model.size(); p++)
            for (int64_t i = 0; i < model.numel(p); i++)
                set_param(p, i, initial(p, i));
    }
    ~Job()
    {
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
    }
    Job(const Job &) = delete;

    brg_dtype dtype(int p) const
    {
        return model.params[(size_t)p].dtype;
    }
    bool layerwise(int p) const
    {
        brg_bucket_info info;
        EXPECT_OK(brg_scheduler_bucket(sched, brg_scheduler_bucket_of(sched, p), &info));
        return brg_sched_group_layerwise(sched, info.group);
    }
    double param(int p, int64_t i) const
    {
        const void *data = brg_param_data(sched, p);
        if (dtype(p) == BRG_FLOAT32)
            return ((const float *)data)[i];
        uint16_t half = ((const uint16_t *)data)[i];
        return dtype(p) == BRG_FLOAT16 ? ref::half_value(half) : ref::bfloat_value(half);
    }
    /* Values must be exact in the parameter's type. */
    void set_param(int p, int64_t i, float value)
    {
        void *data = brg_param_data(sched, p);
        if (dtype(p) == BRG_FLOAT32) {
            ((float *)data)[i] = value;
        } else {
            ASSERT_EQ(dtype(p), BRG_BFLOAT16);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        }
    }
    ref::Vec params(int p) const
    {
        ref::Vec v((size_t)model.numel(p));
        for (size_t i = 0; i < v.size(); i++)
            v[i] = param(p, (int64_t)i);
        return v;
    }
    void write_grads(int step, double factor = 1)
    {
        for (int p = 0; p < model.size(); p++) {
            float *grad = (float *)brg_grad_data(sched, p);
            for (int64_t i = 0; i < model.numel(p); i++)
                for (int k = rank; k < num_microbatches; k += world)
                    grad[i] += (float)factor * microbatch_grad(k, step, p, i);
        }
    }
    void sync_grads(brg_stream stream = nullptr)
    {
        for (int p = model.size() - 1; p >= 0; p--)
            EXPECT_OK(brg_grad_ready(sched, p, stream));
        EXPECT_OK(brg_finish_grad_sync(sched, stream));
    }
    /* A whole step but for the optimizer, on the calling thread. */
    void backward(int step, double factor = 1)
    {
        EXPECT_OK(brg_zero_grad(sched, nullptr));
        write_grads(step, factor);
        sync_grads();
    }
    std::vector<int> groups(bool of_layerwise) const
    {
        std::vector<int> list;
        for (int g = 0; g < brg_scheduler_num_groups(sched); g++)
            if (brg_sched_group_layerwise(sched, g) == of_layerwise)
                list.push_back(g);
        return list;
    }
    void expect_counters(uint64_t reductions, uint64_t gathers) const
    {
        for (int b = 0; b < brg_scheduler_num_buckets(sched); b++) {
            brg_bucket_info info;
            ASSERT_OK(brg_scheduler_bucket(sched, b, &info));
            EXPECT_EQ(info.reductions, reductions) << "bucket " << b;
            EXPECT_EQ(info.gathers, gathers) << "bucket " << b;
        }
    }
};

/* Owns optimizers, the chain last. */
class Optimizers
{
  public:
    ~Optimizers()
    {
        while (!all_.empty()) {
            brg_optimizer_destroy(all_.back());
            all_.pop_back();
        }
    }
    brg_optimizer *adamw(brg_scheduler *sched, brg_adamw_options options = {})
    {
        return keep([&](brg_optimizer **o) { return brg_adamw_create(sched, &options, o); });
    }
    brg_optimizer *sgd(brg_scheduler *sched, brg_sgd_options options = {})
    {
        return keep([&](brg_optimizer **o) { return brg_sgd_create(sched, &options, o); });
    }
    brg_optimizer *muon(brg_scheduler *sched, brg_muon_options options = {})
    {
        return keep([&](brg_optimizer **o) { return brg_muon_create(sched, &options, o); });
    }
    brg_optimizer *chain(std::vector<brg_optimizer *> children, brg_chain_options options = {})
    {
        return keep([&](brg_optimizer **o) {
            return brg_chain_create(children.data(), (int)children.size(), &options, o);
        });
    }

  private:
    template <class F> brg_optimizer *keep(F make)
    {
        brg_optimizer *made = nullptr;
        EXPECT_OK(make(&made));
        if (made)
            all_.push_back(made);
        return made;
    }
    std::vector<brg_optimizer *> all_;
};

/* The whole model in float64, one process, separate optimizers per parameter. */
class Reference
{
  public:
    enum class Rule { adamw, sgd, muon };
    struct State {
        Rule rule;
        ref::Matrix p, m, v;
        int64_t steps = 0;
    };
    std::vector<State> states;
    ref::AdamW adamw = {1e-3, 0.9, 0.999, 1e-8, 0};
    ref::Muon muon = {0.02, 0.95, 0, 1e-15, 1, true, true, ref::Scale::spectral, ref::quintic()};
    double sgd_lr = 1e-3, sgd_momentum = 0, sgd_decay = 0;
    double max_norm = 0, norm = 0;

    template <class F> Reference(const Model &model, F rule)
    {
        for (int p = 0; p < model.size(); p++) {
            const brg_param &info = model.params[(size_t)p];
            int cols = info.num_dims == 2 ? (int)info.shape[1] : 1;
            int rows = (int)(model.numel(p) / cols);
            State s = {rule(p), {rows, cols}, {rows, cols}, {rows, cols}};
            for (size_t i = 0; i < s.p.v.size(); i++)
                s.p.v[i] = initial(p, (int64_t)i);
            states.push_back(s);
        }
    }
    void step(int step, double factor = 1)
    {
        std::vector<ref::Vec> grads;
        ref::Vec norms;
        for (size_t p = 0; p < states.size(); p++) {
            ref::Vec g(states[p].p.v.size());
            for (size_t i = 0; i < g.size(); i++)
                for (int k = 0; k < num_microbatches; k++)
                    g[i] += factor * microbatch_grad(k, step, (int)p, (int64_t)i);
            norms.push_back(ref::frobenius(g));
            grads.push_back(g);
        }
        norm = ref::frobenius(norms);
        double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
        for (size_t p = 0; p < states.size(); p++) {
            for (double &g : grads[p])
                g *= clip;
            update(states[p], grads[p]);
        }
    }

  private:
    void update(State &s, const ref::Vec &g)
    {
        s.steps++;
        if (s.rule == Rule::muon) {
            ref::Matrix grad(s.p.rows, s.p.cols);
            grad.v = g;
            muon.step(s.p, s.m, grad);
            return;
        }
        for (size_t i = 0; i < g.size(); i++) {
            if (s.rule == Rule::adamw) {
                adamw.step(s.p.v[i], s.m.v[i], s.v.v[i], g[i], s.steps);
            } else {
                s.m.v[i] = sgd_momentum * s.m.v[i] + g[i] + sgd_decay * s.p.v[i];
                s.p.v[i] -= sgd_lr * s.m.v[i];
            }
        }
    }
};

inline void expect_params(const Job &job, const Reference &reference, double bound)
{
    for (int p = 0; p < job.model.size(); p++) {
        ref::Vec got = job.params(p);
        std::vector<float> values(got.begin(), got.end());
        EXPECT_LT(ref::relative_error(values.data(), reference.states[(size_t)p].p.v), bound)
            << job.model.names[(size_t)p] << " of rank " << job.rank;
    }
}

} // namespace training

#endif
