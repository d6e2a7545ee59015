/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads on GPUs: one each with the real NCCL, all on one with the stand-in. */
#ifndef BRIGADE_TESTS_GPU_GPU_RANK_H
#define BRIGADE_TESTS_GPU_GPU_RANK_H

#include <cstdlib>
#include <cstring>

#include "tests/bucket/rank.h"
#include "tests/gpu/trainer_kernels.h"

/* Set by meson for the programs that run with the stand-in. */
inline bool with_stand_in()
{
    const char *nccl = getenv("BRIGADE_NCCL");
    return nccl && strstr(nccl, "one_gpu_nccl");
}

inline int num_gpus()
{
    brg_device device;
    int count = 0;
    if (brg_device_open(BRG_DEVICE_CUDA, &device) != BRG_OK ||
        device.rt->get_device_count(&count) != BRG_RT_OK)
        return 0;
    return count;
}

/* Why `world` ranks cannot run here; empty: they can. */
inline std::string cannot_run(int world)
{
    int gpus = num_gpus();
    if (gpus < 1)
        return brg_last_error();
    if (!with_stand_in() && world > gpus)
        return std::to_string(world) + " ranks with NCCL need as many GPUs; there are " +
               std::to_string(gpus);
    return "";
}

#define SKIP_UNLESS_RUNS(world)                                                                    \
    do {                                                                                           \
        std::string why_ = cannot_run(world);                                                      \
        if (!why_.empty())                                                                         \
            GTEST_SKIP() << why_;                                                                  \
    } while (0)

inline void run_gpu_ranks(int world, const std::function<void(int, brg_context *)> &body,
                          const char *trace_dir = "")
{
    brg_context_options options = {};
    options.trace_dir = trace_dir;
    auto on_device = [&](int rank, brg_context *ctx) {
        /* This thread puts its own work on the context's device too. */
        const brg_runtime *rt = brg_context_device_tables(ctx)->rt;
        EXPECT_EQ(rt->set_device(with_stand_in() ? 0 : rank), BRG_RT_OK);
        body(rank, ctx);
    };
    run_ranks(world, on_device, options, nullptr, BRG_DEVICE_CUDA);
}

/* A trainer whose gradients are computed by kernels on two streams, with one optimizer for all. */
struct GpuTrainer : Rank {
    const brg_runtime *rt;
    brg_stream main = nullptr, side = nullptr;
    void *forked = nullptr, *joined = nullptr; /* events between the two */
    int64_t *step = nullptr;                   /* in device memory */
    brg_optimizer *optimizer = nullptr;
    std::vector<brg_optimizer *> children;
    int as_rank; /* whose contributions */
    float feedback = 0.125f;

    GpuTrainer(brg_context *context, const Plan &plan) : Rank(context, plan)
    {
        EXPECT_EQ(status, BRG_OK) << error;
        rt = brg_context_device_tables(ctx)->rt;
        as_rank = rank;
        EXPECT_OK(brg_stream_create(ctx, &main));
        EXPECT_OK(brg_stream_create(ctx, &side));
        EXPECT_EQ(rt->event_create(&forked, BRG_EVENT_DISABLE_TIMING), 0);
        EXPECT_EQ(rt->event_create(&joined, BRG_EVENT_DISABLE_TIMING), 0);
        EXPECT_EQ(rt->malloc_device((void **)&step, sizeof *step), 0);
        EXPECT_EQ(rt->memset_async(step, 0, sizeof *step, main), 0);
        start_values();
    }
    ~GpuTrainer()
    {
        EXPECT_OK(brg_stream_synchronize(ctx, main));
        brg_optimizer_destroy(optimizer);
        for (brg_optimizer *child : children)
            if (child != optimizer)
                brg_optimizer_destroy(child);
        rt->event_destroy(forked);
        rt->event_destroy(joined);
        rt->free_device(step);
        brg_stream_destroy(ctx, main);
        brg_stream_destroy(ctx, side);
    }
    /* The same on all ranks. */
    void start_values()
    {
        for (int p = 0; p < model.size(); p++) {
            std::vector<float> values((size_t)model.numel(p));
            for (size_t i = 0; i < values.size(); i++)
                values[i] = contribution(99, 0, p, (int64_t)i);
            EXPECT_EQ(rt->memcpy_async(brg_param_data(sched, p), values.data(),
                                       values.size() * sizeof(float), BRG_COPY_HOST_TO_DEVICE,
                                       main),
                      0);
            EXPECT_OK(brg_stream_synchronize(ctx, main)); /* before `values` goes */
        }
    }
    /* Muon where matrices lie layer-wise, AdamW for the rest. */
    void make_optimizers(bool muon)
    {
        brg_adamw_options adamw = {};
        adamw.lr = 0.01;
        adamw.weight_decay = 0.1;
        brg_optimizer *made = nullptr;
        ASSERT_OK(brg_adamw_create(sched, &adamw, &made));
        children.push_back(made);
        optimizer = made;
        if (!muon)
            return;
        brg_muon_options options = {};
        options.lr = 0.02;
        ASSERT_OK(brg_muon_create(sched, &options, &made));
        children.push_back(made);
        brg_chain_options chain = {};
        chain.max_grad_norm = 1.0;
        ASSERT_OK(brg_chain_create(children.data(), (int)children.size(), &chain, &optimizer));
    }
    void compute()
    {
        ASSERT_OK(brg_zero_grad(sched, main));
        gpu_count(step, main);
        ASSERT_OK(brg_span_begin(ctx, BRG_COMPUTE_FORWARD, "forward", main));
        for (int p = 0; p < model.size(); p++)
            ASSERT_OK(brg_param_wait(sched, p, main));
        ASSERT_OK(brg_span_end(ctx, main));
        ASSERT_EQ(rt->event_record(forked, main), 0);
        ASSERT_EQ(rt->stream_wait_event(side, forked), 0);
        for (int p = model.size() - 1; p >= 0; p--) {
            brg_stream stream = p % 3 ? main : side;
            gpu_gradient((float *)brg_grad_data(sched, p), (const float *)brg_param_data(sched, p),
                         model.numel(p), as_rank, step, p, test_seed(), feedback, stream);
            ASSERT_OK(brg_grad_ready(sched, p, stream));
        }
        ASSERT_EQ(rt->event_record(joined, side), 0);
        ASSERT_EQ(rt->stream_wait_event(main, joined), 0);
        ASSERT_OK(brg_finish_grad_sync(sched, main));
    }
    void train_step()
    {
        compute();
        ASSERT_OK(brg_step(optimizer, main));
    }
    std::vector<float> fetch(const void *from, int64_t numel)
    {
        std::vector<float> values((size_t)numel);
        EXPECT_EQ(rt->memcpy_async(values.data(), from, values.size() * sizeof(float),
                                   BRG_COPY_DEVICE_TO_HOST, main),
                  0);
        EXPECT_OK(brg_stream_synchronize(ctx, main));
        return values;
    }
    std::vector<float> values()
    {
        std::vector<float> all;
        EXPECT_OK(brg_finish_param_sync(sched, main));
        for (int p = 0; p < model.size(); p++) {
            std::vector<float> one = fetch(brg_param_data(sched, p), model.numel(p));
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }
};

#endif
