/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of failing ranks share. */
#ifndef BRIGADE_TESTS_DEVICE_FAILURE_H
#define BRIGADE_TESTS_DEVICE_FAILURE_H

#include <sys/mman.h>

#include <atomic>
#include <chrono>

#include "tests/device/ranks.h"

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

inline void nap(int ms)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

/* Flags shared by the rank processes of a test. */
struct Board {
    std::atomic<int> *flags;
    Board()
    {
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(page, MAP_FAILED);
        flags = new (page) std::atomic<int>[16]();
    }
    ~Board()
    {
        munmap(flags, 4096);
    }
    void wait_for(int flag, int value)
    {
        while (flags[flag] < value)
            nap(5);
    }
    Board(const Board &) = delete;
    Board &operator=(const Board &) = delete;
};

inline int reduce_ones(Rank &rank, float *value, void *stream)
{
    *value = 1;
    return nccl()->all_reduce(value, value, 1, BRG_NCCL_FLOAT32, BRG_NCCL_SUM, rank.comm, stream);
}

inline void expect_sum(Rank &rank)
{
    float value;
    ASSERT_EQ(reduce_ones(rank, &value, rank.stream), 0) << rank.text();
    rank.sync();
    ASSERT_EQ(rank.async_error(), 0) << rank.text();
    ASSERT_EQ(value, (float)rank.size);
}

inline void expect_text(Rank &rank, std::initializer_list<const char *> parts)
{
    for (const char *part : parts)
        EXPECT_NE(rank.text().find(part), std::string::npos)
            << "rank " << rank.rank << " says \"" << rank.text() << "\", without \"" << part
            << "\"";
}

/* After an error: the code stays, calls fail at once, the stream goes on. */
inline void expect_broken(Rank &rank)
{
    EXPECT_NE(rank.async_error(), 0);
    float value = 0;
    Clock::time_point start = Clock::now();
    EXPECT_EQ(reduce_ones(rank, &value, rank.stream), BRG_NCCL_REMOTE);
    EXPECT_EQ(reduce_ones(rank, &value, nullptr), BRG_NCCL_REMOTE);
    bool ran = false;
    EXPECT_EQ(rt()->launch_host_func(
                  rank.stream, [](void *flag) { *(bool *)flag = true; }, &ran),
              0);
    rank.sync();
    EXPECT_TRUE(ran);
    EXPECT_LT(seconds_since(start), 2.0);
}

inline int wait_for_async_error(Rank &rank, double limit_s)
{
    Clock::time_point start = Clock::now();
    int error;
    while (!(error = rank.async_error()) && seconds_since(start) < limit_s)
        nap(20);
    return error;
}

#endif
