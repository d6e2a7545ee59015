/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for tests: forked processes or threads. Processes must be forked while the test program has
 * but one thread, so tests never leave a stream of their own behind. */
#ifndef BRIGADE_TESTS_DEVICE_RANKS_H
#define BRIGADE_TESTS_DEVICE_RANKS_H

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "sched/device/device.h"
#include "sched/device/host.h"
}

inline const brg_runtime *rt()
{
    return brg_host_runtime();
}

inline const brg_nccl *nccl()
{
    return brg_host_nccl();
}

/* Every id that this test program has made; other programs' segments come and go meanwhile. */
inline std::vector<brg_unique_id> &made_ids()
{
    static std::vector<brg_unique_id> ids;
    return ids;
}

inline brg_unique_id new_id()
{
    brg_unique_id id;
    EXPECT_EQ(nccl()->get_unique_id(&id), 0);
    made_ids().push_back(id);
    return id;
}

inline std::string segment_path(const brg_unique_id &id)
{
    return "/dev/shm/brigade-" + std::string(id.bytes + 8, 32);
}

/* The segments of this program's ids that are there. */
inline std::vector<std::string> segments_left()
{
    std::vector<std::string> names;
    for (const brg_unique_id &id : made_ids())
        if (access(segment_path(id).c_str(), F_OK) == 0)
            names.push_back(segment_path(id));
    return names;
}

using RankBody = std::function<void(int rank)>;

/* A rank process; its failed expectations are printed there and make it exit with 1. */
inline pid_t fork_rank(int rank, const RankBody &body)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(240); /* a hang must not outlive the test */
        body(rank);
        bool failed = testing::Test::HasFailure();
        fflush(stdout);
        _exit(failed ? 1 : 0);
    }
    return pid;
}

inline int wait_rank(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

inline void run_processes(int n, const RankBody &body)
{
    std::vector<pid_t> pids;
    for (int r = 0; r < n; r++)
        pids.push_back(fork_rank(r, body));
    for (int r = 0; r < n; r++)
        EXPECT_EQ(wait_rank(pids[(size_t)r]), 0) << "rank " << r;
}

inline void run_threads(int n, const RankBody &body)
{
    std::vector<std::thread> threads;
    for (int r = 0; r < n; r++)
        threads.emplace_back([&body, r] { body(r); });
    for (std::thread &thread : threads)
        thread.join();
}

/* One rank's communicator and stream, ended in the right order. */
struct Rank {
    void *comm = nullptr;
    void *stream = nullptr;
    int rank, size;

    Rank(const brg_unique_id &id, int n, int r) : rank(r), size(n)
    {
        int result = nccl()->comm_init_rank(&comm, n, id, r);
        EXPECT_EQ(result, 0) << nccl()->last_error(nullptr);
        EXPECT_EQ(rt()->stream_create(&stream, BRG_STREAM_NON_BLOCKING, 0), 0);
    }
    ~Rank()
    {
        rt()->stream_destroy(stream);
        if (comm)
            nccl()->comm_destroy(comm);
    }
    void sync()
    {
        EXPECT_EQ(rt()->stream_synchronize(stream), 0);
    }
    int async_error()
    {
        int error = -1;
        EXPECT_EQ(nccl()->comm_get_async_error(comm, &error), 0);
        return error;
    }
    std::string text()
    {
        return nccl()->last_error(comm);
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;
};

/* Device memory. */
struct Memory {
    char *data = nullptr;
    explicit Memory(size_t bytes)
    {
        void *memory = nullptr;
        EXPECT_EQ(rt()->malloc_device(&memory, bytes ? bytes : 1), 0);
        data = (char *)memory;
    }
    ~Memory()
    {
        EXPECT_EQ(rt()->free_device(data), 0);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
};

#endif
