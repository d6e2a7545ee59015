/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and memory of the host device, and the choice of a device. */
#include "tests/device/ranks.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

extern "C" {
#include "sched/status.h"
}

namespace
{

struct Stream {
    void *handle = nullptr;
    Stream()
    {
        EXPECT_EQ(rt()->stream_create(&handle, BRG_STREAM_NON_BLOCKING, 0), 0);
    }
    ~Stream()
    {
        EXPECT_EQ(rt()->stream_destroy(handle), 0);
    }
    void run(void (*fn)(void *), void *arg)
    {
        EXPECT_EQ(rt()->launch_host_func(handle, fn, arg), 0);
    }
    void sync()
    {
        EXPECT_EQ(rt()->stream_synchronize(handle), 0);
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
};

struct Event {
    void *handle = nullptr;
    explicit Event(unsigned flags = 0)
    {
        EXPECT_EQ(rt()->event_create(&handle, flags), 0);
    }
    ~Event()
    {
        if (handle) {
            EXPECT_EQ(rt()->event_destroy(handle), 0);
        }
    }
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
};

/* Holds a stream until it is opened. */
class Gate
{
  public:
    void hold(Stream &stream)
    {
        stream.run(
            [](void *self) {
                Gate *gate = (Gate *)self;
                std::unique_lock<std::mutex> lock(gate->mutex_);
                gate->changed_.wait(lock, [gate] { return gate->open_; });
            },
            this);
    }
    void open()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

void increment(void *counter)
{
    ++*(std::atomic<int> *)counter;
}

TEST(Streams, RunInOrderAndAsynchronously)
{
    Stream stream;
    Gate gate;
    std::vector<int> order;
    static std::vector<int> *seen;
    seen = &order;
    gate.hold(stream);
    std::vector<int> numbers(1000); /* more than the queue holds at first */
    for (int i = 0; i < 1000; i++) {
        numbers[(size_t)i] = i;
        stream.run([](void *number) { seen->push_back(*(int *)number); }, &numbers[(size_t)i]);
    }
    EXPECT_EQ(rt()->stream_query(stream.handle), BRG_RT_NOT_READY);
    gate.open();
    stream.sync();
    EXPECT_EQ(rt()->stream_query(stream.handle), 0);
    EXPECT_EQ(order, numbers);
}

TEST(Streams, TakeWorkFromManyThreads)
{
    Stream stream;
    std::atomic<int> count{0};
    run_threads(4, [&](int) {
        for (int i = 0; i < 2000; i++)
            stream.run(increment, &count);
        stream.sync();
    });
    stream.sync();
    EXPECT_EQ(count, 8000);
}

TEST(Streams, DestroyWaitsForTheWork)
{
    std::atomic<int> count{0};
    {
        Stream stream;
        for (int i = 0; i < 100; i++)
            stream.run(increment, &count);
    }
    EXPECT_EQ(count, 100);
}

TEST(Streams, CopyAndSetInOrder)
{
    Stream stream;
    Memory a(1 << 20), b(1 << 20);
    Gate gate;
    memset(b.data, 1, 1 << 20);
    gate.hold(stream);
    EXPECT_EQ(rt()->memset_async(a.data, 7, 1 << 20, stream.handle), 0);
    EXPECT_EQ(rt()->memcpy_async(b.data, a.data, 1 << 20, BRG_COPY_DEVICE_TO_DEVICE, stream.handle),
              0);
    EXPECT_EQ(rt()->memset_async(a.data, 3, 1 << 20, stream.handle), 0);
    EXPECT_EQ(rt()->memcpy_async(nullptr, nullptr, 0, BRG_COPY_DEFAULT, stream.handle), 0);
    EXPECT_EQ(b.data[12345], 1);
    gate.open();
    stream.sync();
    EXPECT_EQ(b.data[12345], 7);
    EXPECT_EQ(a.data[54321], 3);
    EXPECT_EQ(rt()->memcpy_async(nullptr, a.data, 1, BRG_COPY_DEFAULT, stream.handle),
              BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->memcpy_async(b.data, a.data, 1, 9, stream.handle), BRG_RT_INVALID_VALUE);
}

TEST(Streams, NullStreamIsTheCaller)
{
    static std::thread::id where;
    EXPECT_EQ(rt()->launch_host_func(
                  nullptr, [](void *) { where = std::this_thread::get_id(); }, nullptr),
              0);
    EXPECT_EQ(where, std::this_thread::get_id());
    char data[4] = {};
    EXPECT_EQ(rt()->memset_async(data, 5, 4, nullptr), 0);
    EXPECT_EQ(data[3], 5);
    EXPECT_EQ(rt()->stream_synchronize(nullptr), 0);
    EXPECT_EQ(rt()->stream_query(nullptr), 0);
    Event event;
    EXPECT_EQ(rt()->event_record(event.handle, nullptr), 0);
    EXPECT_EQ(rt()->event_query(event.handle), 0);
}

TEST(Streams, PrioritiesAndBadArguments)
{
    int least, greatest;
    EXPECT_EQ(rt()->stream_priority_range(&least, &greatest), 0);
    EXPECT_LT(greatest, least);
    void *stream;
    ASSERT_EQ(rt()->stream_create(&stream, 0, greatest), 0);
    EXPECT_EQ(rt()->stream_destroy(stream), 0);
    EXPECT_EQ(rt()->stream_create(nullptr, 0, 0), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->stream_create(&stream, 2, 0), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->stream_destroy(nullptr), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->launch_host_func(nullptr, nullptr, nullptr), BRG_RT_INVALID_VALUE);
}

TEST(Events, OrderTwoStreams)
{
    for (int round = 0; round < 200; round++) {
        Stream first, second;
        Event event(BRG_EVENT_DISABLE_TIMING);
        static std::atomic<int> value;
        value = 0;
        first.run([](void *) { value = 1; }, nullptr);
        EXPECT_EQ(rt()->event_record(event.handle, first.handle), 0);
        EXPECT_EQ(rt()->stream_wait_event(second.handle, event.handle), 0);
        int seen = -1;
        second.run([](void *out) { *(int *)out = value; }, &seen);
        second.sync();
        ASSERT_EQ(seen, 1);
    }
}

/* A wait means the record that was the last one when the wait was made. */
TEST(Events, LaterRecordsDoNotChangeAWait)
{
    Stream fast, slow, waiter;
    Gate first, second;
    Event event;
    first.hold(slow);
    EXPECT_EQ(rt()->event_record(event.handle, slow.handle), 0);
    EXPECT_EQ(rt()->stream_wait_event(waiter.handle, event.handle), 0);
    std::atomic<int> count{0};
    waiter.run(increment, &count);
    EXPECT_EQ(rt()->event_record(event.handle, fast.handle), 0); /* done at once */
    EXPECT_EQ(rt()->event_synchronize(event.handle), 0);
    EXPECT_EQ(rt()->event_query(event.handle), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(count, 0) << "the wait is for the record on the slow stream";
    second.hold(fast);
    EXPECT_EQ(rt()->event_record(event.handle, fast.handle), 0); /* not done */
    first.open();
    waiter.sync();
    EXPECT_EQ(count, 1);
    EXPECT_EQ(rt()->event_query(event.handle), BRG_RT_NOT_READY);
    second.open();
    EXPECT_EQ(rt()->event_synchronize(event.handle), 0);
}

TEST(Events, MayBeDestroyedWhileWaitedFor)
{
    Stream slow, waiter;
    Gate gate;
    std::atomic<int> count{0};
    gate.hold(slow);
    slow.run(increment, &count);
    {
        Event event;
        EXPECT_EQ(rt()->event_record(event.handle, slow.handle), 0);
        EXPECT_EQ(rt()->stream_wait_event(waiter.handle, event.handle), 0);
    }
    int seen = -1;
    struct Arguments {
        std::atomic<int> *count;
        int *seen;
    } arguments = {&count, &seen};
    waiter.run(
        [](void *a) {
            Arguments *args = (Arguments *)a;
            *args->seen = *args->count;
        },
        &arguments);
    gate.open();
    waiter.sync();
    EXPECT_EQ(seen, 1);
}

TEST(Events, TimesAndTheirErrors)
{
    Stream stream;
    Event start, end, plain(BRG_EVENT_DISABLE_TIMING), never;
    float ms = -1;
    EXPECT_EQ(rt()->event_query(never.handle), 0);
    EXPECT_EQ(rt()->event_synchronize(never.handle), 0);
    EXPECT_EQ(rt()->stream_wait_event(stream.handle, never.handle), 0);
    EXPECT_EQ(rt()->event_record(start.handle, stream.handle), 0);
    EXPECT_EQ(rt()->event_elapsed(&ms, start.handle, never.handle), BRG_RT_INVALID_VALUE);
    stream.run([](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr);
    Gate gate;
    gate.hold(stream);
    EXPECT_EQ(rt()->event_record(end.handle, stream.handle), 0);
    EXPECT_EQ(rt()->event_record(plain.handle, stream.handle), 0);
    EXPECT_EQ(rt()->event_elapsed(&ms, start.handle, end.handle), BRG_RT_NOT_READY);
    gate.open();
    stream.sync();
    EXPECT_EQ(rt()->event_elapsed(&ms, start.handle, end.handle), 0);
    EXPECT_GE(ms, 20.0f);
    EXPECT_EQ(rt()->event_elapsed(&ms, end.handle, start.handle), 0);
    EXPECT_LE(ms, -20.0f);
    EXPECT_EQ(rt()->event_elapsed(&ms, start.handle, plain.handle), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->event_create(nullptr, 0), BRG_RT_INVALID_VALUE);
    EXPECT_EQ(rt()->event_record(nullptr, stream.handle), BRG_RT_INVALID_VALUE);
}

TEST(Devices, CountIsConfigurableAndCurrentIsPerThread)
{
    int count, device;
    EXPECT_EQ(rt()->get_device_count(&count), 0);
    EXPECT_EQ(count, 16);
    setenv("BRIGADE_HOST_DEVICES", "3", 1);
    EXPECT_EQ(rt()->get_device_count(&count), 0);
    EXPECT_EQ(count, 3);
    EXPECT_NE(rt()->set_device(3), 0);
    EXPECT_EQ(rt()->set_device(2), 0);
    for (const char *bad : {"0", "x", "2.5", "99999"}) {
        setenv("BRIGADE_HOST_DEVICES", bad, 1);
        brg_device device_tables = {rt(), nccl(), nullptr};
        int error = rt()->get_device_count(&count);
        ASSERT_NE(error, 0) << bad;
        EXPECT_NE(brg_rt_status(&device_tables, error, "devices"), BRG_OK);
        EXPECT_NE(strstr(brg_last_error(), (std::string("BRIGADE_HOST_DEVICES=") + bad).c_str()),
                  nullptr)
            << brg_last_error();
    }
    unsetenv("BRIGADE_HOST_DEVICES");
    EXPECT_NE(rt()->set_device(-1), 0);
    std::thread([&] {
        EXPECT_EQ(rt()->get_device(&device), 0);
        EXPECT_EQ(device, 0);
    }).join();
    EXPECT_EQ(rt()->get_device(&device), 0);
    EXPECT_EQ(device, 2);
    EXPECT_EQ(rt()->set_device(0), 0);
}

TEST(Devices, SynchronizeWaitsForTheCurrentOnesStreams)
{
    EXPECT_EQ(rt()->set_device(1), 0);
    Stream other;
    EXPECT_EQ(rt()->set_device(0), 0);
    Stream mine;
    Gate gate;
    gate.hold(other);
    std::atomic<int> count{0};
    for (int i = 0; i < 50; i++)
        mine.run(increment, &count);
    EXPECT_EQ(rt()->device_synchronize(), 0);
    EXPECT_EQ(count, 50);
    EXPECT_EQ(rt()->stream_query(other.handle), BRG_RT_NOT_READY);
    gate.open();
}

TEST(MemoryBlocks, AreAlignedDistinctAndReusable)
{
    std::vector<void *> blocks;
    for (size_t bytes : {1ul, 255ul, 4096ul, 100000ul, 3ul << 20})
        for (int i = 0; i < 3; i++) {
            void *memory = nullptr;
            ASSERT_EQ(rt()->malloc_device(&memory, bytes), 0);
            EXPECT_EQ((uintptr_t)memory % 256, 0u);
            memset(memory, (int)blocks.size(), bytes);
            blocks.push_back(memory);
        }
    for (size_t i = 0; i < blocks.size(); i++)
        EXPECT_EQ(*(unsigned char *)blocks[i], i);
    for (size_t i : {1, 3, 2, 0}) {
        EXPECT_EQ(rt()->free_device(blocks[i]), 0);
        EXPECT_EQ(rt()->free_device(blocks[i]), BRG_RT_INVALID_VALUE) << "freed twice";
    }
    EXPECT_EQ(rt()->free_device((char *)blocks[6] + 8), BRG_RT_INVALID_VALUE);
    for (size_t i = 4; i < blocks.size(); i++)
        EXPECT_EQ(rt()->free_device(blocks[i]), 0);
    EXPECT_EQ(rt()->free_device(nullptr), 0);
    EXPECT_EQ(rt()->free_host(nullptr), 0);
    void *zero = &zero;
    EXPECT_EQ(rt()->malloc_device(&zero, 0), 0);
    EXPECT_EQ(zero, nullptr);
    EXPECT_EQ(rt()->malloc_device(nullptr, 5), BRG_RT_INVALID_VALUE);
    void *host;
    ASSERT_EQ(rt()->malloc_host(&host, 5000), 0);
    memset(host, 1, 5000);
    EXPECT_EQ(rt()->free_host(host), 0);
}

TEST(MemoryBlocks, TooMuchIsAnError)
{
    size_t available, total;
    ASSERT_EQ(rt()->mem_get_info(&available, &total), 0);
    EXPECT_LE(available, total);
    EXPECT_GT(available, 0u);
    for (size_t bytes : {total + 1, (size_t)1 << 60, SIZE_MAX}) {
        void *memory = &memory;
        EXPECT_EQ(rt()->malloc_device(&memory, bytes), BRG_RT_NO_MEMORY);
        EXPECT_EQ(memory, nullptr);
        EXPECT_NE(nccl()->mem_alloc(&memory, bytes), 0);
    }
    void *memory;
    ASSERT_EQ(nccl()->mem_alloc(&memory, 100), 0);
    EXPECT_EQ(nccl()->mem_free(memory), 0);
}

TEST(Choice, FollowsTheEnvironment)
{
    brg_device device = {};
    for (const char *value : {"host", "HOST"}) { /* auto: cuda_open_test.cc */
        setenv("BRIGADE_DEVICE", value, 1);
        ASSERT_EQ(brg_device_open(BRG_DEVICE_AUTO, &device), BRG_OK) << value;
        EXPECT_STREQ(device.rt->name, "host");
    }
    setenv("BRIGADE_DEVICE", "cuda", 1);
    EXPECT_EQ(brg_device_open(BRG_DEVICE_HOST, &device), BRG_OK) << "an explicit choice wins";
    setenv("BRIGADE_DEVICE", "tpu", 1);
    EXPECT_EQ(brg_device_open(BRG_DEVICE_AUTO, &device), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_NE(strstr(brg_last_error(), "BRIGADE_DEVICE=tpu"), nullptr);
    unsetenv("BRIGADE_DEVICE");
    EXPECT_EQ(brg_device_open((brg_device_kind)9, &device), BRG_ERR_INVALID_ARGUMENT);
}

TEST(Conversions, TypesOperatorsAndErrors)
{
    for (int type = BRG_FLOAT32; type <= BRG_UINT64; type++) {
        EXPECT_GE(brg_nccl_dtype((brg_dtype)type), 0);
    }
    EXPECT_EQ(brg_nccl_dtype((brg_dtype)10), -1);
    EXPECT_EQ(brg_nccl_dtype(BRG_BFLOAT16), BRG_NCCL_BFLOAT16);
    EXPECT_EQ(brg_nccl_op(BRG_AVG), BRG_NCCL_AVG);
    EXPECT_EQ(brg_nccl_op((brg_op)5), -1);
    brg_device device = {brg_host_runtime(), brg_host_nccl(), nullptr};
    EXPECT_EQ(brg_rt_status(&device, 0, "x"), BRG_OK);
    EXPECT_EQ(brg_rt_status(&device, BRG_RT_NO_MEMORY, "buffer 3"), BRG_ERR_NO_MEMORY);
    EXPECT_STREQ(brg_last_error(), "buffer 3: out of memory");
    EXPECT_EQ(brg_nccl_status(&device, 0, nullptr, "x"), BRG_OK);
    int result = nccl()->comm_count(nullptr, nullptr);
    EXPECT_EQ(brg_nccl_status(&device, result, nullptr, "bucket 2"), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_STREQ(brg_last_error(), "bucket 2: comm_count: communicator is NULL");
}

} // namespace
