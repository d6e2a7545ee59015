// SPDX-License-Identifier: Apache-2.0
// What ranks see when others die, leave or come late, and what stays behind.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/device/failure.h"

namespace
{

/* Rank 2 dies; the parent does not reap it before the others have ended. */
void killed_rank(bool others_wait)
{
    brg_unique_id id = new_id();
    Board board;
    std::vector<pid_t> pids;
    for (int r = 0; r < 4; r++)
        pids.push_back(fork_rank(r, [&](int rank_number) {
            Rank rank(id, 4, rank_number);
            Memory memory(1 << 20);
            expect_sum(rank);
            board.flags[0]++;
            board.wait_for(0, 4);
            if (rank_number == 2)
                raise(SIGKILL);
            Clock::time_point start = Clock::now();
            if (others_wait) {
                ASSERT_EQ(nccl()->all_reduce(memory.data, memory.data, 1 << 18, BRG_NCCL_FLOAT32,
                                             BRG_NCCL_SUM, rank.comm, rank.stream),
                          0);
                rank.sync();
            } else {
                wait_for_async_error(rank, 10);
            }
            EXPECT_LT(seconds_since(start), 5.0);
            EXPECT_EQ(rank.async_error(), BRG_NCCL_REMOTE);
            expect_text(rank, {"rank 2", "has died"});
            if (others_wait)
                expect_text(rank, {"collective #2", "all-reduce (sum) of 262144 fp32"});
            EXPECT_EQ(brg_host_comm_status(rank.comm), BRG_ERR_PEER_LOST);
            expect_broken(rank);
        }));
    for (int r : {0, 1, 3, 2}) {
        int status = wait_rank(pids[(size_t)r]);
        if (r == 2)
            EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            EXPECT_EQ(status, 0) << "rank " << r;
    }
    EXPECT_TRUE(segments_left().empty());
}

TEST(Killed, WhileOthersAreInACollective)
{
    killed_rank(true);
}

TEST(Killed, WhileOthersAreIdle)
{
    killed_rank(false);
}

TEST(Killed, WhileAPeerReceives)
{
    brg_unique_id id = new_id();
    Board board;
    std::vector<pid_t> pids;
    for (int r = 0; r < 2; r++)
        pids.push_back(fork_rank(r, [&](int rank_number) {
            Rank rank(id, 2, rank_number);
            expect_sum(rank);
            board.flags[0]++;
            board.wait_for(0, 2);
            if (rank_number == 1)
                raise(SIGKILL);
            float data[4];
            Clock::time_point start = Clock::now();
            ASSERT_EQ(nccl()->recv(data, 4, BRG_NCCL_FLOAT32, 1, rank.comm, rank.stream), 0);
            rank.sync();
            EXPECT_LT(seconds_since(start), 5.0);
            EXPECT_EQ(rank.async_error(), BRG_NCCL_REMOTE);
            expect_text(rank, {"rank 1", "has died", "receive of 4 fp32 from rank 1"});
        }));
    EXPECT_EQ(wait_rank(pids[0]), 0);
    wait_rank(pids[1]);
}

TEST(Killed, DuringInit)
{
    brg_unique_id id = new_id();
    pid_t victim = fork_rank(1, [&](int) {
        void *comm;
        nccl()->comm_init_rank(&comm, 3, id, 1);
    });
    while (segments_left().empty())
        nap(5);
    pid_t other = fork_rank(0, [&](int) {
        void *comm;
        EXPECT_NE(nccl()->comm_init_rank(&comm, 3, id, 0), 0);
        std::string text = nccl()->last_error(nullptr);
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        EXPECT_NE(text.find("has died"), std::string::npos) << text;
        EXPECT_EQ(comm, nullptr);
    });
    nap(300);
    kill(victim, SIGKILL);
    EXPECT_EQ(wait_rank(other), 0);
    wait_rank(victim);
    EXPECT_TRUE(segments_left().empty());
}

TEST(Left, WhileOthersNeedIt)
{
    for (bool threads : {false, true}) {
        brg_unique_id id = new_id();
        auto body = [&](int r) {
            Rank rank(id, 3, r);
            expect_sum(rank);
            if (r == 1)
                return;
            Clock::time_point start = Clock::now();
            float value;
            int result = reduce_ones(rank, &value, rank.stream);
            EXPECT_TRUE(result == 0 || result == BRG_NCCL_REMOTE);
            rank.sync();
            EXPECT_LT(seconds_since(start), 5.0);
            EXPECT_EQ(rank.async_error(), BRG_NCCL_REMOTE);
            expect_text(rank,
                        {"rank 1", "has left", "collective #2", "all-reduce (sum) of 1 fp32"});
        };
        if (threads)
            run_threads(3, body);
        else
            run_processes(3, body);
    }
}

TEST(Left, IsNoErrorForThoseWhoDoNotNeedIt)
{
    brg_unique_id id = new_id();
    run_processes(3, [&](int r) {
        Rank rank(id, 3, r);
        expect_sum(rank);
        if (r == 1)
            return;
        nap(700);
        EXPECT_EQ(rank.async_error(), 0) << rank.text();
    });
}

TEST(Late, CollectiveTimeOutNamesTheLateRank)
{
    brg_unique_id id = new_id();
    Board board;
    run_processes(3, [&](int r) {
        brg_host_set_timeouts(0, 0.6);
        Rank rank(id, 3, r);
        expect_sum(rank);
        if (r == 1) {
            board.wait_for(0, 2);
            EXPECT_NE(rank.async_error(), 0);
            return;
        }
        float value;
        ASSERT_EQ(reduce_ones(rank, &value, rank.stream), 0);
        rank.sync();
        EXPECT_EQ(rank.async_error(), BRG_NCCL_REMOTE);
        EXPECT_EQ(brg_host_comm_status(rank.comm), BRG_ERR_TIMEOUT);
        expect_text(rank, {"collective #2", "all-reduce (sum) of 1 fp32",
                           "rank 1 did not arrive within 0.6 s"});
        board.flags[0]++;
    });
}

TEST(Late, InitTimeOutNamesTheMissingRanks)
{
    brg_unique_id id = new_id();
    setenv("BRIGADE_INIT_TIMEOUT", "0.5", 1);
    run_processes(2, [&](int r) {
        void *comm = &comm;
        EXPECT_NE(nccl()->comm_init_rank(&comm, 4, id, 2 * r), 0);
        EXPECT_EQ(comm, nullptr);
        EXPECT_EQ(brg_host_last_cause(), BRG_ERR_TIMEOUT);
        std::string text = nccl()->last_error(nullptr);
        EXPECT_NE(text.find("ranks 1, 3 did not arrive within 0.5 s"), std::string::npos) << text;
    });
    unsetenv("BRIGADE_INIT_TIMEOUT");
    EXPECT_TRUE(segments_left().empty());
}

TEST(Abort, UnblocksBothSides)
{
    for (bool threads : {false, true}) {
        brg_unique_id id = new_id();
        auto body = [&](int r) {
            Rank rank(id, 2, r);
            float data[2] = {};
            expect_sum(rank);
            if (r == 1) { /* waits for a send that never comes */
                ASSERT_EQ(nccl()->recv(data, 1, BRG_NCCL_FLOAT32, 0, rank.comm, rank.stream), 0);
                rank.sync();
                EXPECT_EQ(rank.async_error(), BRG_NCCL_REMOTE);
                expect_text(rank, {"rank 0", "has aborted"});
                return;
            }
            ASSERT_EQ(nccl()->recv(data, 1, BRG_NCCL_FLOAT32, 1, rank.comm, rank.stream), 0);
            nap(50);
            EXPECT_EQ(rt()->stream_query(rank.stream), BRG_RT_NOT_READY);
            EXPECT_EQ(nccl()->comm_abort(rank.comm), 0);
            rank.comm = nullptr;
            rank.sync();
        };
        if (threads)
            run_threads(2, body);
        else
            run_processes(2, body);
        EXPECT_TRUE(segments_left().empty());
    }
}

/* Large copies between threads while one of them gives up: its memory must not be read any more
 * after abort and stream synchronisation (the sanitizers would see it). */
TEST(Abort, DoesNotLeaveReadersBehind)
{
    for (int round = 0; round < 10; round++) {
        brg_unique_id id = new_id();
        run_threads(3, [&](int r) {
            Rank rank(id, 3, r);
            std::vector<float> data(1 << 18), all(3 << 18);
            for (int i = 0; i < 20; i++)
                if (nccl()->all_gather(data.data(), all.data(), 1 << 18, BRG_NCCL_FLOAT32,
                                       rank.comm, rank.stream))
                    break;
            if (r == 1) {
                nap(round);
                EXPECT_EQ(nccl()->comm_abort(rank.comm), 0);
                rank.comm = nullptr;
            }
            rank.sync();
        });
    }
}

TEST(Leftovers, KilledGroupIsSweptAtTheNextStart)
{
    brg_unique_id lonely = new_id(), alive = new_id(), next = new_id();
    pid_t dead = fork_rank(0, [&](int) {
        void *comm;
        nccl()->comm_init_rank(&comm, 2, lonely, 0);
    });
    while (segments_left().size() < 1)
        nap(5);
    pid_t waiting = fork_rank(0, [&](int) { Rank rank(alive, 2, 0); });
    while (segments_left().size() < 2)
        nap(5);
    kill(dead, SIGKILL);
    wait_rank(dead);
    pid_t starter = fork_rank(0, [&](int) { Rank rank(next, 1, 0); });
    EXPECT_EQ(wait_rank(starter), 0);
    EXPECT_EQ(segments_left(), std::vector<std::string>{segment_path(alive)})
        << "the dead one's segment is gone, the live one's is not";
    pid_t partner = fork_rank(1, [&](int) { Rank rank(alive, 2, 1); });
    EXPECT_EQ(wait_rank(partner), 0);
    EXPECT_EQ(wait_rank(waiting), 0);
    EXPECT_TRUE(segments_left().empty());
}

TEST(Leftovers, ConcurrentStartsDoNotSweepEachOther)
{
    std::vector<pid_t> pids;
    for (int group = 0; group < 8; group++) {
        brg_unique_id id = new_id();
        for (int r = 0; r < 2; r++)
            pids.push_back(fork_rank(r, [id](int rank_number) {
                Rank rank(id, 2, rank_number);
                expect_sum(rank);
            }));
    }
    for (pid_t pid : pids)
        EXPECT_EQ(wait_rank(pid), 0);
    EXPECT_TRUE(segments_left().empty());
}

TEST(Leftovers, NoneAfterSigtermAndSigkillOfAll)
{
    for (int signal : {SIGTERM, SIGKILL}) {
        brg_unique_id id = new_id();
        Board board;
        std::vector<pid_t> pids;
        for (int r = 0; r < 3; r++)
            pids.push_back(fork_rank(r, [&](int rank_number) {
                Rank rank(id, 3, rank_number);
                board.flags[0]++;
                for (;;)
                    expect_sum(rank);
            }));
        board.wait_for(0, 3);
        nap(50);
        for (pid_t pid : pids)
            kill(pid, signal);
        for (pid_t pid : pids) {
            int status = wait_rank(pid);
            EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
        }
        EXPECT_TRUE(segments_left().empty());
    }
}

TEST(Fork, ChildNeitherUsesNorHarmsItsParentsThings)
{
    brg_unique_id id = new_id();
    run_processes(2, [&](int r) {
        Rank rank(id, 2, r);
        Memory memory(8192);
        memset(memory.data, 7, 8192);
        expect_sum(rank);
        pid_t child = fork_rank(0, [&](int) {
            float value;
            EXPECT_EQ(memory.data[5000], 7);
            memset(memory.data, 9, 8192);
            EXPECT_EQ(reduce_ones(rank, &value, rank.stream), BRG_NCCL_INVALID_USAGE);
            EXPECT_NE(rank.text().find("forked"), std::string::npos) << rank.text();
            int error;
            EXPECT_EQ(nccl()->comm_get_async_error(rank.comm, &error), BRG_NCCL_INVALID_USAGE);
            EXPECT_EQ(rt()->stream_synchronize(rank.stream), BRG_RT_INVALID_VALUE);
            EXPECT_EQ(nccl()->comm_destroy(rank.comm), 0);
            EXPECT_EQ(rt()->stream_destroy(rank.stream), 0);
            EXPECT_EQ(rt()->free_device(memory.data), 0);
#ifndef __SANITIZE_THREAD__           /* which allows no new threads here */
            Rank own(new_id(), 1, 0); /* the child may start anew */
            expect_sum(own);
            Memory other(4096);
            memset(other.data, 1, 4096);
#endif
        });
        EXPECT_EQ(wait_rank(child), 0);
        for (int i = 0; i < 8192; i++)
            ASSERT_EQ(memory.data[i], 7);
        expect_sum(rank);
    });
    EXPECT_TRUE(segments_left().empty());
}

TEST(Limits, FullSharedMemoryIsAnError)
{
    pid_t pid = fork_rank(0, [](int) {
        if (unshare(CLONE_NEWNS) || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
            mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16k"))
            _exit(77);
        void *comm;
        EXPECT_EQ(nccl()->comm_init_rank(&comm, 4, new_id(), 0), BRG_NCCL_SYSTEM);
        EXPECT_EQ(brg_host_last_cause(), BRG_ERR_NO_MEMORY);
        std::string text = nccl()->last_error(nullptr);
        EXPECT_NE(text.find("/dev/shm"), std::string::npos) << text;
        EXPECT_NE(text.find("No space left"), std::string::npos) << text;
        EXPECT_TRUE(segments_left().empty());
    });
    int status = wait_rank(pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        GTEST_SKIP() << "needs the right to mount";
    EXPECT_EQ(status, 0);
}

TEST(Limits, GarbageInTheEnvironmentIsNamed)
{
    for (const char *name :
         {"BRIGADE_INIT_TIMEOUT", "BRIGADE_COLLECTIVE_TIMEOUT", "BRIGADE_HOST_TRANSPORT"})
        for (const char *value : {"soon", "-1", "1e400", "5 s"}) {
            setenv(name, value, 1);
            void *comm;
            EXPECT_EQ(nccl()->comm_init_rank(&comm, 1, new_id(), 0), BRG_NCCL_INVALID_USAGE);
            std::string text = nccl()->last_error(nullptr);
            EXPECT_NE(text.find(std::string(name) + "=" + value), std::string::npos) << text;
            EXPECT_TRUE(segments_left().empty());
            unsetenv(name);
        }
}

TEST(Limits, BadPlacesAreNamed)
{
    void *comm;
    brg_unique_id id = new_id(), foreign = {};
    EXPECT_EQ(nccl()->comm_init_rank(&comm, 0, id, 0), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(nccl()->comm_init_rank(&comm, 4, id, 4), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(nccl()->comm_init_rank(&comm, 4, id, -1), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(nccl()->comm_init_rank(&comm, 1, foreign, 0), BRG_NCCL_INVALID_ARGUMENT);
    EXPECT_EQ(nccl()->comm_init_rank(nullptr, 1, id, 0), BRG_NCCL_INVALID_ARGUMENT);
}

TEST(Limits, RanksMustAgreeOnTheirNumberAndPlaces)
{
    brg_unique_id id = new_id();
    brg_host_set_timeouts(1.0, 0);
    std::atomic<int> taken{0};
    run_threads(2, [&](int) {
        void *comm;
        EXPECT_NE(nccl()->comm_init_rank(&comm, 2, id, 0), 0);
        taken += strstr(nccl()->last_error(nullptr), "already taken") != nullptr;
    });
    EXPECT_EQ(taken, 1);
    brg_unique_id other = new_id();
    std::atomic<int> differ{0};
    run_threads(2, [&](int r) {
        void *comm;
        nap(100 * r);
        EXPECT_NE(nccl()->comm_init_rank(&comm, 2 + r, other, r), 0);
        differ += strstr(nccl()->last_error(nullptr), "3 ranks, another one says 2") != nullptr;
    });
    EXPECT_EQ(differ, 1);
    brg_host_set_timeouts(0, 0);
    EXPECT_TRUE(segments_left().empty());
}

} // namespace
