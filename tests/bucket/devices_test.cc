// SPDX-License-Identifier: Apache-2.0
// Contexts on devices that the host engine is not: with a current device, and with kernels.
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "tests/bucket/tables.h"

namespace
{

/* Two devices. Streams and events know theirs; whatever is put on one of another is counted. */

thread_local int current_device;
std::atomic<int> num_set_device, num_misplaced;
std::mutex places_lock;
std::map<void *, int> places;

void place(void *object)
{
    std::lock_guard<std::mutex> lock(places_lock);
    places[object] = current_device;
}
void look(void *object)
{
    std::lock_guard<std::mutex> lock(places_lock);
    auto at = places.find(object);
    num_misplaced += at != places.end() && at->second != current_device;
}
int device_count(int *count)
{
    *count = 2;
    return BRG_RT_OK;
}
int get_device(int *device)
{
    *device = current_device;
    return BRG_RT_OK;
}
int set_device(int device)
{
    num_set_device++;
    current_device = device;
    return BRG_RT_OK;
}
int stream_create(void **stream, unsigned flags, int priority)
{
    int error = brg_host_runtime()->stream_create(stream, flags, priority);
    place(*stream);
    return error;
}
int event_create(void **event, unsigned flags)
{
    int error = brg_host_runtime()->event_create(event, flags);
    place(*event);
    return error;
}
int event_record(void *event, void *stream)
{
    look(event);
    look(stream);
    return brg_host_runtime()->event_record(event, stream);
}
int memset_async(void *dst, int value, size_t bytes, void *stream)
{
    look(stream);
    return brg_host_runtime()->memset_async(dst, value, bytes, stream);
}
int memcpy_async(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    look(stream);
    return brg_host_runtime()->memcpy_async(dst, src, bytes, kind, stream);
}
int launch_host_func(void *stream, void (*fn)(void *), void *arg)
{
    look(stream);
    return brg_host_runtime()->launch_host_func(stream, fn, arg);
}
int event_query(void *event) /* the watchdog's thread, too */
{
    look(event);
    return brg_host_runtime()->event_query(event);
}

Tables two_devices()
{
    Tables tables;
    tables.rt.get_device_count = device_count;
    tables.rt.get_device = get_device;
    tables.rt.set_device = set_device;
    tables.rt.stream_create = stream_create;
    tables.rt.event_create = event_create;
    tables.rt.event_record = event_record;
    tables.rt.memset_async = memset_async;
    tables.rt.memcpy_async = memcpy_async;
    tables.rt.launch_host_func = launch_host_func;
    tables.rt.event_query = event_query;
    return tables;
}

void train(brg_context *ctx, int steps)
{
    int before = current_device;
    Model model = small_model();
    brg_layout_options plan = {};
    plan.bucket_size = 300;
    brg_layout *layout = nullptr;
    ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
    brg_scheduler_options options = {};
    options.overlap_grad_reduce = options.overlap_param_gather = options.check_grads = 1;
    options.allow_unused = 1;
    brg_scheduler *sched = nullptr;
    ASSERT_OK(brg_scheduler_create(ctx, layout, &options, &sched));
    brg_stream stream = nullptr;
    ASSERT_OK(brg_stream_create(ctx, &stream));
    std::vector<float> main_grad((size_t)model.numel(2));
    ASSERT_OK(brg_set_main_grad(sched, 2, main_grad.data(), BRG_FLOAT32));
    for (int step = 0; step < steps; step++) {
        ASSERT_OK(brg_zero_grad(sched, stream));
        for (int p = model.size() - 1; p > 0; p--)
            ASSERT_OK(brg_grad_ready(sched, p, stream));
        ASSERT_OK(brg_finish_grad_sync(sched, stream));
        std::vector<int> groups((size_t)brg_scheduler_num_groups(sched));
        for (size_t g = 0; g < groups.size(); g++)
            groups[g] = (int)g;
        ASSERT_OK(brg_sched_begin_step(sched, stream));
        ASSERT_OK(brg_sched_start_param_sync(sched, groups.data(), (int)groups.size(), stream));
        ASSERT_OK(brg_sched_end_step(sched, stream));
        for (int p = 0; p < model.size(); p++)
            ASSERT_OK(brg_param_wait(sched, p, stream));
        EXPECT_EQ(current_device, before);
    }
    ASSERT_OK(brg_broadcast_params(sched, 0, stream));
    ASSERT_OK(brg_barrier(ctx));
    ASSERT_OK(brg_stream_synchronize(ctx, stream));
    brg_stream_destroy(ctx, stream);
    brg_scheduler_destroy(sched);
    brg_layout_destroy(layout);
    EXPECT_EQ(current_device, before);
}

TEST(CurrentDevice, IsTheContextsInsideAndTheCallersOutside)
{
    Tables tables = two_devices();
    current_device = num_misplaced = 0;
    brg_context *first = tables.open(0), *second = tables.open(1);
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(current_device, 1); /* the thread's from opening on */
    train(first, 3);
    train(second, 3);
    EXPECT_EQ(current_device, 1);
    brg_context *child = nullptr;
    EXPECT_OK(brg_context_split(first, 0, 0, &child));
    train(child, 2);
    brg_context_close(child);
    num_set_device = 0;
    train(second, 3); /* current already */
    EXPECT_EQ(num_set_device, 0);
    brg_context_close(first);
    EXPECT_EQ(current_device, 1);
    brg_context_close(second);
    EXPECT_EQ(num_misplaced, 0);
    places.clear();
}

/* Kernels: what a device with a table of them does in front of a reduction. */

std::atomic<int> num_converted, num_checked;

int convert(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t numel, void *stream)
{
    num_converted++;
    EXPECT_EQ(dst_dtype, BRG_FLOAT32);
    EXPECT_EQ(src_dtype, BRG_FLOAT64);
    auto *run = new std::function<void()>([=] {
        for (int64_t i = 0; i < numel; i++)
            ((float *)dst)[i] = (float)((const double *)src)[i];
    });
    return brg_host_runtime()->launch_host_func(
        stream,
        [](void *arg) {
            auto *fn = (std::function<void()> *)arg;
            (*fn)();
            delete fn;
        },
        run);
}

int check_values(const void *values, int dtype, int64_t numel, int64_t *first, double *sum_squares,
                 double *partials, void *stream)
{
    num_checked++;
    EXPECT_EQ(dtype, BRG_FLOAT32);
    auto *run = new std::function<void()>([=] {
        *first = -1;
        *sum_squares = 0;
        for (int i = 0; i < 2 * BRG_NORM_PARTIALS; i++)
            partials[i] = 0; /* the room is there */
        for (int64_t i = 0; i < numel; i++) {
            double value = (double)((const float *)values)[i];
            if (!std::isfinite(value) && *first < 0)
                *first = i;
            *sum_squares += value * value;
        }
    });
    return brg_host_runtime()->launch_host_func(
        stream,
        [](void *arg) {
            auto *fn = (std::function<void()> *)arg;
            (*fn)();
            delete fn;
        },
        run);
}

TEST(Kernels, ConvertMainGradientsAndCheckValues)
{
    brg_kernels kernels = {};
    kernels.abi = BRG_KERNELS_ABI;
    kernels.convert = convert;
    kernels.check_values = check_values;
    Tables tables;
    tables.device.kernels = &kernels;
    brg_context *ctx = tables.open();
    ASSERT_NE(ctx, nullptr);
    Model model = small_model();
    brg_layout_options plan = {};
    plan.bucket_size = 300;
    brg_layout *layout = nullptr;
    ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
    brg_scheduler_options options = {};
    options.check_grads = 1;
    options.large_grad_norm = 1e6;
    brg_scheduler *sched = nullptr;
    ASSERT_OK(brg_scheduler_create(ctx, layout, &options, &sched));
    std::vector<double> main_grad((size_t)model.numel(3), 1.5);
    ASSERT_OK(brg_set_main_grad(sched, 3, main_grad.data(), BRG_FLOAT64));
    auto step = [&] {
        EXPECT_OK(brg_zero_grad(sched, nullptr));
        for (int p = model.size() - 1; p >= 0; p--)
            EXPECT_OK(brg_grad_ready(sched, p, nullptr));
        return brg_finish_grad_sync(sched, nullptr);
    };
    num_converted = num_checked = 0;
    EXPECT_OK(step());
    EXPECT_EQ(((const float *)brg_grad_data(sched, 3))[7], 1.5f);
    EXPECT_EQ(num_converted, 1);
    EXPECT_EQ(num_checked, model.size());
    main_grad[5] = INFINITY;
    EXPECT_EQ(step(), BRG_ERR_NON_FINITE);
    EXPECT_NE(std::string(brg_last_error()).find("Inf in the gradient"), std::string::npos)
        << brg_last_error();
    main_grad[5] = 1e9;
    EXPECT_EQ(step(), BRG_ERR_NON_FINITE);
    EXPECT_NE(std::string(brg_last_error()).find("norm"), std::string::npos) << brg_last_error();
    main_grad[5] = 0;
    EXPECT_OK(step());
    brg_scheduler_destroy(sched);
    brg_layout_destroy(layout);
    brg_context_close(ctx);
}

} // namespace
