/* SPDX-License-Identifier: Apache-2.0 */
/* The device `cuda` on real GPUs: its runtime table, and NCCL's with one rank and with two. */
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "sched/device/cuda.h"
#include "sched/device/device.h"
#include "sched/status.h"
}

namespace
{

class Gpu : public testing::Test
{
  protected:
    void SetUp() override
    {
        bool answers = false;
        brg_status status = brg_cuda_open(&device, &answers);
        if (!answers)
            GTEST_SKIP() << "no GPU answers: " << brg_last_error();
        ASSERT_EQ(status, BRG_OK) << brg_last_error();
        rt = device.rt;
        nccl = device.nccl;
        ASSERT_EQ(rt->set_device(0), 0);
        ASSERT_EQ(rt->stream_create(&stream, BRG_STREAM_NON_BLOCKING, 0), 0);
    }
    void TearDown() override
    {
        if (stream) {
            EXPECT_EQ(rt->stream_destroy(stream), 0);
        }
    }
    void sync()
    {
        ASSERT_EQ(rt->stream_synchronize(stream), 0);
    }
    /* Holds the stream until the flag is set. */
    void hold(std::atomic<bool> &open)
    {
        auto wait = [](void *flag) {
            while (!*(std::atomic<bool> *)flag)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        ASSERT_EQ(rt->launch_host_func(stream, wait, &open), 0);
    }

    brg_device device = {};
    const brg_runtime *rt = nullptr;
    const brg_nccl *nccl = nullptr;
    void *stream = nullptr;
};

/* Values on a GPU. */
class Floats
{
  public:
    Floats(const brg_runtime *rt, std::vector<float> values) : rt_(rt), count_(values.size())
    {
        EXPECT_EQ(rt->malloc_device(&data, count_ * sizeof(float)), 0);
        EXPECT_EQ(rt->memcpy_async(data, values.data(), count_ * sizeof(float),
                                   BRG_COPY_HOST_TO_DEVICE, nullptr),
                  0);
        EXPECT_EQ(rt->stream_synchronize(nullptr), 0);
    }
    ~Floats()
    {
        EXPECT_EQ(rt_->free_device(data), 0);
    }
    std::vector<float> read() const
    {
        std::vector<float> values(count_);
        EXPECT_EQ(rt_->memcpy_async(values.data(), data, count_ * sizeof(float),
                                    BRG_COPY_DEVICE_TO_HOST, nullptr),
                  0);
        EXPECT_EQ(rt_->stream_synchronize(nullptr), 0);
        return values;
    }
    void *data = nullptr;

  private:
    const brg_runtime *rt_;
    size_t count_;
};

using Values = std::vector<float>;

TEST_F(Gpu, NamesItself)
{
    char name[128] = "", pci[32] = "";
    size_t free_bytes = 0, total_bytes = 0;
    EXPECT_EQ(rt->device_name(name, sizeof name, 0), 0);
    EXPECT_GT(strlen(name), 3u);
    EXPECT_EQ(rt->device_pci_bus_id(pci, sizeof pci, 0), 0);
    EXPECT_NE(strchr(pci, ':'), nullptr);
    EXPECT_EQ(rt->mem_get_info(&free_bytes, &total_bytes), 0);
    EXPECT_LE(free_bytes, total_bytes);
    EXPECT_EQ(device.kernels->abi, BRG_KERNELS_ABI);
    printf("%s at %s\n", name, pci);
}

TEST_F(Gpu, MemoryRoundTripAndLimits)
{
    void *page_locked = nullptr, *memory = nullptr, *huge = &memory;
    ASSERT_EQ(rt->malloc_host(&page_locked, 1 << 20), 0);
    ASSERT_EQ(rt->malloc_device(&memory, 1 << 20), 0);
    EXPECT_EQ((uintptr_t)memory % 256, 0u);
    memset(page_locked, 1, 1 << 20);
    EXPECT_EQ(rt->memset_async(memory, 7, 1 << 20, stream), 0);
    EXPECT_EQ(rt->memcpy_async(page_locked, memory, 1 << 20, BRG_COPY_DEVICE_TO_HOST, stream), 0);
    sync();
    EXPECT_EQ(((char *)page_locked)[54321], 7);
    EXPECT_EQ(rt->memcpy_async(nullptr, nullptr, 0, BRG_COPY_DEFAULT, stream), 0);
    EXPECT_EQ(rt->malloc_device(&huge, (size_t)1 << 50), BRG_RT_NO_MEMORY);
    EXPECT_EQ(huge, nullptr);
    EXPECT_EQ(rt->free_device(memory), 0);
    EXPECT_EQ(rt->free_host(page_locked), 0);
    EXPECT_EQ(rt->free_device(nullptr), 0);
    EXPECT_EQ(rt->free_host(nullptr), 0);
    EXPECT_EQ(rt->device_synchronize(), 0) << "no error is left behind";
}

TEST_F(Gpu, StreamsRunInOrderAndAsynchronously)
{
    std::atomic<bool> open{false};
    std::vector<int> order, numbers(100);
    static std::vector<int> *seen;
    seen = &order;
    hold(open);
    for (int i = 0; i < 100; i++) {
        numbers[(size_t)i] = i;
        EXPECT_EQ(rt->launch_host_func(
                      stream, [](void *n) { seen->push_back(*(int *)n); }, &numbers[(size_t)i]),
                  0);
    }
    EXPECT_EQ(rt->stream_query(stream), BRG_RT_NOT_READY);
    open = true;
    sync();
    EXPECT_EQ(rt->stream_query(stream), 0);
    EXPECT_EQ(order, numbers);
}

TEST_F(Gpu, PrioritiesAndBadArguments)
{
    int least = 0, greatest = 0;
    EXPECT_EQ(rt->stream_priority_range(&least, &greatest), 0);
    EXPECT_LT(greatest, least);
    void *urgent;
    ASSERT_EQ(rt->stream_create(&urgent, BRG_STREAM_NON_BLOCKING, greatest), 0);
    EXPECT_EQ(rt->stream_destroy(urgent), 0);
    EXPECT_EQ(rt->stream_destroy(nullptr), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt->event_destroy(nullptr), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt->launch_host_func(stream, nullptr, nullptr), BRG_RT_INVALID_VALUE);
    EXPECT_NE(rt->set_device(9999), 0);
}

TEST_F(Gpu, EventsOrderStreamsAndTellTime)
{
    void *other, *start, *end, *plain, *never;
    std::atomic<bool> open{false};
    float ms = -1;
    ASSERT_EQ(rt->stream_create(&other, BRG_STREAM_NON_BLOCKING, 0), 0);
    ASSERT_EQ(rt->event_create(&start, 0), 0);
    ASSERT_EQ(rt->event_create(&end, 0), 0);
    ASSERT_EQ(rt->event_create(&never, 0), 0);
    ASSERT_EQ(rt->event_create(&plain, BRG_EVENT_DISABLE_TIMING), 0);
    EXPECT_EQ(rt->event_query(never), 0);
    EXPECT_EQ(rt->stream_wait_event(stream, never), 0);
    EXPECT_EQ(rt->event_record(start, stream), 0);
    hold(open);
    EXPECT_EQ(rt->event_record(end, stream), 0);
    EXPECT_EQ(rt->event_record(plain, stream), 0);
    EXPECT_EQ(rt->stream_wait_event(other, plain), 0);
    EXPECT_EQ(rt->event_query(end), BRG_RT_NOT_READY);
    EXPECT_EQ(rt->event_elapsed(&ms, start, end), BRG_RT_NOT_READY);
    EXPECT_EQ(rt->stream_query(other), BRG_RT_NOT_READY) << "it waits for the first stream";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    open = true;
    EXPECT_EQ(rt->event_synchronize(end), 0);
    EXPECT_EQ(rt->stream_synchronize(other), 0);
    EXPECT_EQ(rt->event_elapsed(&ms, start, end), 0);
    EXPECT_GE(ms, 15.0f);
    EXPECT_EQ(rt->event_elapsed(&ms, start, plain), BRG_RT_INVALID_VALUE);
    for (void *event : {start, end, plain, never})
        EXPECT_EQ(rt->event_destroy(event), 0);
    EXPECT_EQ(rt->stream_destroy(other), 0);
}

TEST_F(Gpu, GraphsReplay)
{
    Floats from(rt, {1, 2, 3, 4}), to(rt, {0, 0, 0, 0});
    int capturing = -1;
    void *graph = nullptr;
    EXPECT_EQ(rt->stream_is_capturing(stream, &capturing), 0);
    EXPECT_EQ(capturing, 0);
    ASSERT_EQ(rt->graph_begin(stream), 0);
    EXPECT_EQ(rt->stream_is_capturing(stream, &capturing), 0);
    EXPECT_EQ(capturing, 1);
    EXPECT_EQ(rt->stream_is_capturing(nullptr, &capturing), 0)
        << "never fails for another's capture";
    EXPECT_EQ(rt->memcpy_async(to.data, from.data, 16, BRG_COPY_DEVICE_TO_DEVICE, stream), 0);
    EXPECT_EQ(rt->memset_async(from.data, 0, 16, stream), 0);
    std::thread([&] { /* others may go on calling */
                      void *memory, *event;
                      EXPECT_EQ(rt->set_device(0), 0);
                      EXPECT_EQ(rt->malloc_device(&memory, 100), 0);
                      EXPECT_EQ(rt->free_device(memory), 0);
                      EXPECT_EQ(rt->event_create(&event, 0), 0);
                      EXPECT_EQ(rt->event_query(event), 0);
                      EXPECT_EQ(rt->event_destroy(event), 0);
    })
        .join();
    ASSERT_EQ(rt->graph_end(stream, &graph), 0);
    EXPECT_EQ(to.read(), Values({0, 0, 0, 0})) << "captured, not run";
    EXPECT_EQ(rt->graph_launch(graph, stream), 0);
    sync();
    EXPECT_EQ(to.read(), Values({1, 2, 3, 4}));
    EXPECT_EQ(rt->graph_launch(graph, stream), 0);
    sync();
    EXPECT_EQ(to.read(), Values({0, 0, 0, 0}));
    EXPECT_EQ(rt->graph_destroy(graph), 0);
    EXPECT_EQ(rt->graph_destroy(nullptr), 0);
}

TEST_F(Gpu, OneRankThroughNccl)
{
    brg_unique_id id;
    void *comm = nullptr, *child = nullptr, *memory = nullptr;
    int version = 0, number = -1;
    ASSERT_EQ(nccl->get_version(&version), 0);
    printf("NCCL %d\n", version);
    ASSERT_EQ(nccl->get_unique_id(&id), 0);
    ASSERT_EQ(nccl->comm_init_rank(&comm, 1, id, 0), 0) << nccl->last_error(nullptr);
    EXPECT_EQ(nccl->comm_count(comm, &number), 0);
    EXPECT_EQ(number, 1);
    EXPECT_EQ(nccl->comm_user_rank(comm, &number), 0);
    EXPECT_EQ(number, 0);
    EXPECT_EQ(nccl->comm_device(comm, &number), 0);
    EXPECT_EQ(number, 0);
    const Values values = {1, 2, 3, 4}, zeros = {0, 0, 0, 0};
    Floats from(rt, values);
    const int type = BRG_NCCL_FLOAT32, sum = BRG_NCCL_SUM;
    for (int call = 0; call < 7; call++) {
        Floats to(rt, zeros);
        int result = 0;
        switch (call) {
        case 0:
            result = nccl->all_reduce(from.data, to.data, 4, type, sum, comm, stream);
            break;
        case 1:
            result = nccl->reduce_scatter(from.data, to.data, 4, type, sum, comm, stream);
            break;
        case 2:
            result = nccl->all_gather(from.data, to.data, 4, type, comm, stream);
            break;
        case 3:
            result = nccl->broadcast(from.data, to.data, 4, type, 0, comm, stream);
            break;
        case 4:
            result = nccl->reduce(from.data, to.data, 4, type, sum, 0, comm, stream);
            break;
        case 5:
            result = nccl->all_to_all(from.data, to.data, 4, type, comm, stream);
            break;
        case 6:
            EXPECT_EQ(nccl->group_start(), 0);
            EXPECT_EQ(nccl->send(from.data, 4, type, 0, comm, stream), 0);
            EXPECT_EQ(nccl->recv(to.data, 4, type, 0, comm, stream), 0);
            result = nccl->group_end();
            break;
        }
        EXPECT_EQ(result, 0) << "call " << call << ": " << nccl->last_error(comm);
        sync();
        EXPECT_EQ(to.read(), values) << "call " << call;
    }
    EXPECT_EQ(nccl->comm_get_async_error(comm, &number), 0);
    EXPECT_EQ(number, 0);
    EXPECT_EQ(nccl->comm_split(comm, 0, 0, &child), 0) << nccl->last_error(comm);
    ASSERT_NE(child, nullptr);
    EXPECT_EQ(nccl->comm_abort(child), 0);
    EXPECT_EQ(nccl->comm_split(comm, -1, 0, &child), 0);
    EXPECT_EQ(child, nullptr);
    EXPECT_NE(nccl->all_reduce(from.data, from.data, 4, 99, sum, comm, stream), 0);
    EXPECT_STRNE(nccl->last_error(comm), "");
    EXPECT_EQ(nccl->mem_alloc(&memory, 1 << 20), 0);
    EXPECT_EQ(nccl->mem_free(memory), 0);
    EXPECT_EQ(nccl->comm_finalize(comm), 0) << nccl->last_error(comm);
    EXPECT_EQ(nccl->comm_destroy(comm), 0) << nccl->last_error(comm);
}

TEST_F(Gpu, AMissingRankIsATimeOut)
{
    brg_unique_id id;
    void *comm;
    brg_cuda_set_timeouts(1, 1);
    ASSERT_EQ(nccl->get_unique_id(&id), 0);
    int result = nccl->comm_init_rank(&comm, 2, id, 0);
    EXPECT_EQ(brg_nccl_status(&device, result, nullptr, "init"), BRG_ERR_TIMEOUT);
    EXPECT_NE(strstr(brg_last_error(), "rank 0 of 2"), nullptr) << brg_last_error();
    brg_cuda_set_timeouts(0, 0);
}

TEST_F(Gpu, TwoRanksOnTwoDevices)
{
    int devices = 0;
    ASSERT_EQ(rt->get_device_count(&devices), 0);
    if (devices < 2)
        GTEST_SKIP() << "one GPU; two ranks need two";
    brg_unique_id id;
    ASSERT_EQ(nccl->get_unique_id(&id), 0);
    auto rank_main = [&](int rank) {
        void *comm = nullptr, *own = nullptr;
        ASSERT_EQ(rt->set_device(rank), 0);
        ASSERT_EQ(rt->stream_create(&own, BRG_STREAM_NON_BLOCKING, 0), 0);
        ASSERT_EQ(nccl->comm_init_rank(&comm, 2, id, rank), 0) << nccl->last_error(nullptr);
        {
            float r = (float)rank;
            Floats mine(rt, {1 + r, 2 + r}), sum(rt, {0, 0}), part(rt, {0}), both(rt, {0, 0, 0, 0});
            const int type = BRG_NCCL_FLOAT32, op = BRG_NCCL_SUM;
            EXPECT_EQ(nccl->all_reduce(mine.data, sum.data, 2, type, op, comm, own), 0);
            EXPECT_EQ(nccl->reduce_scatter(mine.data, part.data, 1, type, op, comm, own), 0);
            EXPECT_EQ(nccl->all_gather(mine.data, both.data, 2, type, comm, own), 0);
            EXPECT_EQ(rt->stream_synchronize(own), 0);
            EXPECT_EQ(sum.read(), Values({3, 5}));
            EXPECT_EQ(part.read(), Values({rank ? 5.0f : 3.0f}));
            EXPECT_EQ(both.read(), Values({1, 2, 2, 3}));
        }
        EXPECT_EQ(nccl->comm_finalize(comm), 0);
        EXPECT_EQ(nccl->comm_destroy(comm), 0);
        EXPECT_EQ(rt->stream_destroy(own), 0);
    };
    std::thread second(rank_main, 1);
    rank_main(0);
    second.join();
}

} // namespace
