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
    const brg_runtime *rt;

    Job(brg_context *ctx, Model m, brg_layout_options lo = {}, brg_scheduler_options so = {})
        : model(std::move(m)), rank(brg_context_rank(ctx)), world(brg_context_world_size(ctx)),
          rt(brg_context_device_tables(ctx)->rt)
    {
        lo.data_parallel_size = world;
        if (!lo.bucket_size)
            lo.bucket_size = 700;
        so.grad_scaling = BRG_SCALE_NONE;
        EXPECT_OK(brg_layout_compute(model.data(), model.size(), &lo, &layout));
        EXPECT_OK(brg_scheduler_create(ctx, layout, &so, &sched));
        for (int p = 0; p < model.size(); p++) {
            std::vector<float> values((size_t)model.numel(p));
            for (size_t i = 0; i < values.size(); i++)
                values[i] = initial(p, (int64_t)i);
            set_params(p, values);
        }
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
    /* Copies between this and the device's memory, wherever that is. */
    void copy(void *dst, const void *src, size_t bytes) const
    {
        if (std::string(rt->name) == "host") { // also inside host functions
            if (bytes > 0)
                memcpy(dst, src, bytes);
            return;
        }
        EXPECT_EQ(rt->memcpy_async(dst, src, bytes, BRG_COPY_DEFAULT, nullptr), BRG_RT_OK);
        EXPECT_EQ(rt->stream_synchronize(nullptr), BRG_RT_OK);
    }
    ref::Vec load(int p, int64_t first, int64_t numel) const
    {
        size_t bytes = brg_dtype_bytes(dtype(p)), count = (size_t)numel;
        std::vector<char> raw(count * bytes + 1);
        copy(raw.data(), (const char *)brg_param_data(sched, p) + (size_t)first * bytes,
             count * bytes);
        ref::Vec values(count);
        for (size_t i = 0; i < count; i++) {
            if (dtype(p) == BRG_FLOAT32) {
                float value;
                memcpy(&value, &raw[i * bytes], sizeof value);
                values[i] = value;
            } else {
                uint16_t half;
                memcpy(&half, &raw[i * bytes], sizeof half);
                values[i] =
                    dtype(p) == BRG_FLOAT16 ? ref::half_value(half) : ref::bfloat_value(half);
            }
        }
        return values;
    }
    double param(int p, int64_t i) const
    {
        return load(p, i, 1)[0];
    }
    ref::Vec params(int p) const
    {
        return load(p, 0, model.numel(p));
    }
    /* Values must be exact in the parameter's type. */
    void set_params(int p, const std::vector<float> &values, int64_t first = 0)
    {
        char *data = (char *)brg_param_data(sched, p);
        if (dtype(p) == BRG_FLOAT32) {
            copy(data + (size_t)first * 4, values.data(), values.size() * 4);
            return;
        }
        ASSERT_EQ(dtype(p), BRG_BFLOAT16);
        std::vector<uint16_t> halves;
        for (float value : values) {
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            halves.push_back((uint16_t)(bits >> 16));
        }
        copy(data + (size_t)first * 2, halves.data(), halves.size() * 2);
    }
    void set_param(int p, int64_t i, float value)
    {
        set_params(p, {value}, i);
    }
    std::vector<float> grads(int p) const
    {
        std::vector<float> values((size_t)model.numel(p));
        copy(values.data(), brg_grad_data(sched, p), values.size() * sizeof(float));
        return values;
    }
    void set_grads(int p, const std::vector<float> &values)
    {
        copy(brg_grad_data(sched, p), values.data(), values.size() * sizeof(float));
    }
    void set_grad(int p, int64_t i, float value)
    {
        copy((float *)brg_grad_data(sched, p) + i, &value, sizeof value);
    }
    void write_grads(int step, double factor = 1)
    {
        for (int p = 0; p < model.size(); p++) {
            std::vector<float> values = grads(p);
            for (int64_t i = 0; i < model.numel(p); i++)
                for (int k = rank; k < num_microbatches; k += world)
                    values[(size_t)i] += (float)factor * microbatch_grad(k, step, p, i);
            set_grads(p, values);
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
