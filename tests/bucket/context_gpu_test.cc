// SPDX-License-Identifier: Apache-2.0
/* Contexts on the device cuda, ranks as threads of one process. Skipped where no GPU answers. */
#include <chrono>
#include <cmath>

#include "tests/bucket/harness.h"

namespace
{

/* Empty, or why the tests cannot run here. */
std::string missing(int devices)
{
    brg_device device;
    int count = 0;
    if (brg_device_open(BRG_DEVICE_CUDA, &device) != BRG_OK)
        return brg_last_error();
    if (device.rt->get_device_count(&count) != BRG_RT_OK || count < devices)
        return "needs " + std::to_string(devices) + " GPUs, there are " + std::to_string(count);
    return "";
}

#define NEED_GPUS(devices)                                                                         \
    do {                                                                                           \
        std::string why_ = missing(devices);                                                       \
        if (!why_.empty())                                                                         \
            GTEST_SKIP() << why_;                                                                  \
    } while (0)

brg_context_options gpu_options(int world, int rank, const brg_unique_id *id)
{
    brg_context_options options = {};
    options.device = BRG_DEVICE_CUDA;
    options.world_size = world;
    options.rank = options.local_rank = rank;
    options.unique_id = id;
    options.trace_dir = "";
    return options;
}

void on_ranks(int world, const std::function<void(int, const brg_unique_id *)> &body)
{
    brg_unique_id id;
    ASSERT_OK(brg_unique_id_create(BRG_DEVICE_CUDA, &id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; rank++)
        threads.emplace_back([&, rank] { body(rank, &id); });
    for (auto &thread : threads)
        thread.join();
}

/* Sums `mine` over the ranks, with another device current than the context's. */
void expect_sum(brg_context *ctx, double mine, double want)
{
    const brg_runtime *rt = brg_context_device_tables(ctx)->rt;
    double got = 0;
    void *memory = nullptr;
    brg_stream stream = nullptr;
    int device = -1;
    {
        BRG_ON_DEVICE(ctx);
        ASSERT_EQ(rt->malloc_device(&memory, sizeof mine), BRG_RT_OK);
    }
    ASSERT_EQ(rt->set_device(0), BRG_RT_OK);
    ASSERT_OK(brg_stream_create(ctx, &stream));
    ASSERT_EQ(rt->memcpy_async(memory, &mine, sizeof mine, BRG_COPY_HOST_TO_DEVICE, stream),
              BRG_RT_OK);
    ASSERT_OK(brg_all_reduce(ctx, memory, memory, 1, BRG_FLOAT64, BRG_SUM, stream));
    ASSERT_EQ(rt->memcpy_async(&got, memory, sizeof got, BRG_COPY_DEVICE_TO_HOST, stream),
              BRG_RT_OK);
    ASSERT_OK(brg_stream_synchronize(ctx, stream));
    EXPECT_EQ(got, want);
    EXPECT_EQ(rt->get_device(&device), BRG_RT_OK);
    EXPECT_EQ(device, 0);
    brg_stream_destroy(ctx, stream);
    rt->free_device(memory);
}

TEST(ContextGpu, SplitsAndKeepsTheCallersDevice)
{
    NEED_GPUS(2);
    on_ranks(2, [](int rank, const brg_unique_id *id) {
        brg_context_options options = gpu_options(2, rank, id);
        brg_context *ctx = nullptr, *both = nullptr, *alone = nullptr;
        ASSERT_OK(brg_context_open(&options, &ctx));
        expect_sum(ctx, rank + 1, 3);
        ASSERT_OK(brg_context_split(ctx, 0, -rank, &both));
        EXPECT_EQ(brg_context_rank(both), 1 - rank);
        expect_sum(both, rank + 2, 5);
        ASSERT_OK(brg_context_split(ctx, rank ? -1 : 0, 0, &alone));
        EXPECT_EQ(alone == nullptr, rank == 1);
        if (alone)
            expect_sum(alone, 7, 7);
        brg_context_close(alone);
        brg_context_close(both);
        brg_context_close(ctx);
    });
}

TEST(ContextGpu, AdoptedCommunicatorOutlivesTheContext)
{
    NEED_GPUS(2);
    on_ranks(2, [](int rank, const brg_unique_id *id) {
        brg_device device;
        ASSERT_OK(brg_device_open(BRG_DEVICE_CUDA, &device));
        ASSERT_EQ(device.rt->set_device(rank), BRG_RT_OK);
        void *comm = nullptr;
        ASSERT_EQ(device.nccl->comm_init_rank(&comm, 2, *id, rank), BRG_NCCL_OK);
        brg_context_options options = {};
        options.device = BRG_DEVICE_CUDA;
        options.trace_dir = "";
        options.nccl_comm = comm;
        for (int round = 0; round < 2; round++) {
            brg_context *ctx = nullptr;
            ASSERT_OK(brg_context_open(&options, &ctx));
            EXPECT_EQ(brg_context_rank(ctx), rank);
            expect_sum(ctx, rank + 1, 3);
            brg_context_close(ctx);
        }
        EXPECT_EQ(device.rt->set_device(rank), BRG_RT_OK);
        EXPECT_EQ(device.nccl->comm_destroy(comm), BRG_NCCL_OK);
    });
}

/* Rank 1 never comes to the all-reduce. */
TEST(ContextGpu, AbortEndsAStuckCollective)
{
    NEED_GPUS(2);
    auto begin = std::chrono::steady_clock::now();
    on_ranks(2, [](int rank, const brg_unique_id *id) {
        brg_context_options options = gpu_options(2, rank, id);
        brg_context *ctx = nullptr;
        ASSERT_OK(brg_context_open(&options, &ctx));
        void *memory = nullptr;
        const brg_runtime *rt = brg_context_device_tables(ctx)->rt;
        ASSERT_EQ(rt->malloc_device(&memory, 1 << 20), BRG_RT_OK);
        brg_stream stream = nullptr;
        ASSERT_OK(brg_stream_create(ctx, &stream));
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
            brg_context_abort(ctx);
        });
        if (rank == 0) {
            brg_all_reduce(ctx, memory, memory, 1 << 18, BRG_FLOAT32, BRG_SUM, stream);
            EXPECT_EQ(brg_stream_synchronize(ctx, stream), BRG_ERR_STATE);
        }
        other.join();
        brg_stream_destroy(ctx, stream);
        rt->free_device(memory);
        brg_context_close(ctx);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

/* One GPU: main gradients are converted, and what is not finite is named. */
TEST(ContextGpu, MainGradientsAndChecks)
{
    NEED_GPUS(1);
    brg_context_options options = gpu_options(1, 0, nullptr);
    brg_context *ctx = nullptr;
    ASSERT_OK(brg_context_open(&options, &ctx));
    const brg_runtime *rt = brg_context_device_tables(ctx)->rt;
    if (!brg_context_device_tables(ctx)->kernels) {
        brg_context_close(ctx);
        GTEST_SKIP() << "no kernels";
    }
    Model model = small_model();
    brg_layout_options plan = {};
    brg_layout *layout = nullptr;
    ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
    brg_scheduler_options scheduling = {};
    scheduling.check_grads = 1;
    brg_scheduler *sched = nullptr;
    ASSERT_OK(brg_scheduler_create(ctx, layout, &scheduling, &sched));
    std::vector<double> grad((size_t)model.numel(3), 1.5);
    size_t bytes = grad.size() * sizeof grad[0];
    void *main_grad = nullptr;
    brg_stream stream = nullptr;
    ASSERT_OK(brg_stream_create(ctx, &stream));
    ASSERT_EQ(rt->malloc_device(&main_grad, bytes), BRG_RT_OK);
    ASSERT_OK(brg_set_main_grad(sched, 3, main_grad, BRG_FLOAT64));
    for (double value : {2.5, (double)NAN, (double)INFINITY, 3.5}) {
        grad[5] = value;
        ASSERT_EQ(rt->memcpy_async(main_grad, grad.data(), bytes, BRG_COPY_HOST_TO_DEVICE, stream),
                  BRG_RT_OK);
        ASSERT_OK(brg_zero_grad(sched, stream));
        for (int p = model.size() - 1; p >= 0; p--)
            ASSERT_OK(brg_grad_ready(sched, p, stream));
        brg_status status = brg_finish_grad_sync(sched, stream);
        std::string text = brg_last_error();
        EXPECT_EQ(status, std::isfinite(value) ? BRG_OK : BRG_ERR_NON_FINITE) << text;
        if (!std::isfinite(value)) {
            EXPECT_NE(text.find(std::isnan(value) ? "NaN" : "Inf"), std::string::npos) << text;
            EXPECT_NE(text.find(model.names[3]), std::string::npos) << text;
            continue;
        }
        float got[6];
        ASSERT_EQ(rt->memcpy_async(got, brg_grad_data(sched, 3), sizeof got,
                                   BRG_COPY_DEVICE_TO_HOST, stream),
                  BRG_RT_OK);
        ASSERT_OK(brg_stream_synchronize(ctx, stream));
        EXPECT_EQ(got[0], 1.5f);
        EXPECT_EQ(got[5], (float)value);
    }
    brg_scheduler_destroy(sched);
    brg_stream_destroy(ctx, stream);
    rt->free_device(main_grad);
    brg_layout_destroy(layout);
    brg_context_close(ctx);
}

} // namespace
