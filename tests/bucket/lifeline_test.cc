// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other beside a communication library that tells them nothing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bucket/port.h"
#include "tests/bucket/rank.h"

extern "C" {
#include "sched/bucket/lifeline.h"
#include "sched/device/host.h"
}

namespace
{

using Clock = std::chrono::steady_clock;

// Lifelines of `world` ranks in this process.
struct Star {
    std::vector<brg_lifeline *> lines;
    std::vector<int> outer; // the ranks' ends, as numbers

    explicit Star(int world)
    {
        std::vector<int> inner(world, -1);
        outer.assign(world, -1);
        lines.assign(world, nullptr);
        for (int r = 1; r < world; r++) {
            int pair[2];
            EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
            inner[r] = pair[0];
            outer[r] = pair[1];
            EXPECT_OK(brg_lifeline_create(r, world, &outer[r], &lines[r]));
        }
        EXPECT_OK(brg_lifeline_create(0, world, inner.data(), &lines[0]));
    }
    ~Star()
    {
        for (brg_lifeline *line : lines)
            brg_lifeline_destroy(line);
    }
    void destroy(int rank)
    {
        brg_lifeline_destroy(lines[rank]);
        lines[rank] = nullptr;
    }
    // As the end of a process closes it.
    void kill(int rank)
    {
        shutdown(outer[rank], SHUT_RDWR);
    }
    std::string hear(int rank, int wait_ms = 0)
    {
        brg_lifeline_news news;
        if (!brg_lifeline_look(lines[rank], 0, wait_ms, &news))
            return "";
        status = news.status;
        teller = news.rank;
        return news.text;
    }
    brg_status status = BRG_OK;
    int teller = -1;
};

TEST(Lifeline, QuietWhileAllIsWell)
{
    Star star(4);
    for (int round = 0; round < 3; round++)
        for (int r = 0; r < 4; r++)
            EXPECT_EQ(star.hear(r), "");
}

TEST(Lifeline, EveryRankHearsOfALostOne)
{
    for (int victim = 1; victim < 4; victim++) {
        Star star(4);
        star.kill(victim);
        std::string text =
            "rank " + std::to_string(victim) + " has ended without closing its context";
        for (int r : {0, 1, 2, 3}) {
            if (r == victim)
                continue;
            EXPECT_EQ(star.hear(r, 1000), text);
            EXPECT_EQ(star.status, BRG_ERR_PEER_LOST);
            EXPECT_EQ(star.teller, victim);
            EXPECT_EQ(star.hear(r), "") << "told once";
        }
    }
}

TEST(Lifeline, TheEndOfRank0IsHeard)
{
    Star star(3);
    // Without a goodbye: both ends of rank 0's connections go down.
    star.kill(1);
    star.kill(2);
    for (int r : {1, 2})
        EXPECT_EQ(star.hear(r, 1000), "rank 0 has ended without closing its context");
}

TEST(Lifeline, AGoodbyeIsNoLoss)
{
    Star star(3);
    star.destroy(2);
    EXPECT_EQ(star.hear(0, 50), "");
    EXPECT_EQ(star.hear(1, 50), "");
    star.destroy(0);
    EXPECT_EQ(star.hear(1, 50), "");
    EXPECT_EQ(star.hear(1, 0), "");
}

TEST(Lifeline, FailuresReachAllAndTheFirstCounts)
{
    for (int teller = 0; teller < 4; teller++) {
        Star star(4);
        brg_lifeline_tell(star.lines[teller], BRG_ERR_NON_FINITE, "rank T: a NaN in bucket 3");
        brg_lifeline_tell(star.lines[teller], BRG_ERR_STATE, "told once only");
        for (int r = 0; r < 4; r++)
            if (r != teller) {
                EXPECT_EQ(star.hear(r, 1000), "rank T: a NaN in bucket 3");
                EXPECT_EQ(star.status, BRG_ERR_NON_FINITE);
                EXPECT_EQ(star.teller, teller);
            }
        star.kill(1); // comes too late
        brg_lifeline_tell(star.lines[2], BRG_ERR_STATE, "so does this");
        if (teller != 3) {
            EXPECT_NE(star.hear(3, 200), "rank T: a NaN in bucket 3");
        }
    }
}

TEST(Lifeline, LongTextsAreCut)
{
    Star star(2);
    brg_lifeline_tell(star.lines[1], BRG_ERR_STATE, std::string(5000, 'x').c_str());
    std::string text = star.hear(0, 1000);
    EXPECT_EQ(text, std::string(text.size(), 'x'));
    EXPECT_GT(text.size(), 400u);
    EXPECT_LT(text.size(), sizeof(brg_lifeline_news::text));
}

TEST(Lifeline, LateRanksAreNamedAgainstCounting)
{
    auto rng = test_rng(7);
    for (int round = 0; round < 20; round++) {
        const int world = 2 + (int)(rng() % 20);
        Star star(world);
        std::vector<uint64_t> ops(world);
        brg_lifeline_news news;
        for (int r = world - 1; r >= 0; r--) {
            ops[r] = 1 + rng() % 4 * (rng() % 2);
            EXPECT_FALSE(brg_lifeline_look(star.lines[r], ops[r], 0, &news));
        }
        uint64_t most = *std::max_element(ops.begin(), ops.end());
        const int asker = (int)(rng() % (unsigned)world);
        std::atomic<bool> stop = false;
        std::thread rank0([&] { // which its own watchdog's thread would be
            brg_lifeline_news unused;
            while (!stop && asker)
                EXPECT_FALSE(brg_lifeline_look(star.lines[0], ops[0], 10, &unused));
        });
        char text[256];
        brg_lifeline_name_late(star.lines[asker], ops[asker], text);
        stop = true;
        rank0.join();
        std::string expected;
        int late = 0;
        for (int r = 0; r < world; r++)
            if (ops[r] != most && late++ < 8)
                expected += (expected.empty() ? "rank " : ", rank ") + std::to_string(r) +
                            " has issued " + std::to_string(ops[r]) + " collectives";
        if (late > 8)
            expected += ", and " + std::to_string(late - 8) + " others";
        expected += late ? ", others " + std::to_string(most)
                         : "all ranks have issued " + std::to_string(most) + " collectives";
        EXPECT_EQ(text, expected.substr(0, 255));
    }
}

TEST(Lifeline, NobodyAnswersWhoIsLate)
{
    Star star(3);
    char text[256] = "x";
    auto begin = Clock::now();
    brg_lifeline_name_late(star.lines[1], 5, text);
    EXPECT_STREQ(text, "");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    star.kill(2);
    brg_lifeline_name_late(star.lines[2], 5, text);
    EXPECT_STREQ(text, "");
    EXPECT_EQ(star.hear(2), "rank 0 has ended without closing its context");
}

// Ranks time out together: rank 0 has failed by then, and answers no more.
TEST(Lifeline, WhoAsksWhileRank0FailsHearsItsNews)
{
    Star star(3);
    brg_lifeline_tell(star.lines[0], BRG_ERR_TIMEOUT, "rank 0: rank 2 is late");
    char text[256] = "x";
    brg_lifeline_name_late(star.lines[1], 5, text);
    EXPECT_STREQ(text, "");
    EXPECT_EQ(star.hear(1), "rank 0: rank 2 is late");
    EXPECT_EQ(star.status, BRG_ERR_TIMEOUT);
}

TEST(Lifeline, NonsenseEndsAConnectionQuietly)
{
    Star star(2);
    char junk[512 * 3];
    memset(junk, 0x7e, sizeof junk);
    ASSERT_EQ(send(star.outer[1], junk, sizeof junk, MSG_NOSIGNAL), (ssize_t)sizeof junk);
    EXPECT_EQ(star.hear(0, 50), "");
    EXPECT_EQ(star.hear(0, 0), "");
}

// A process of its own, so that it is the kernel that closes.
TEST(Lifeline, AKilledProcessIsHeardOf)
{
    int pair[2], none = -1;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(pair[0]);
        for (;;)
            pause();
    }
    close(pair[1]);
    int fds[2] = {none, pair[0]};
    brg_lifeline *line;
    ASSERT_OK(brg_lifeline_create(0, 2, fds, &line));
    brg_lifeline_news news;
    EXPECT_FALSE(brg_lifeline_look(line, 0, 20, &news));
    kill(pid, SIGKILL);
    EXPECT_TRUE(brg_lifeline_look(line, 0, 5000, &news));
    EXPECT_EQ(news.status, BRG_ERR_PEER_LOST);
    EXPECT_STREQ(news.text, "rank 1 has ended without closing its context");
    waitpid(pid, nullptr, 0);
    brg_lifeline_destroy(line);
}

// The host engine as a library that says nothing of its ranks: an error in it is never seen.
int no_error(void *, int *result)
{
    *result = BRG_NCCL_OK;
    return BRG_NCCL_OK;
}

// The engine's ranks notice an abort at once; those of a library that says nothing go on waiting.
int late_abort(void *comm)
{
    usleep(500000);
    return brg_host_nccl()->comm_abort(comm);
}

const brg_device *silent_device()
{
    static brg_nccl nccl = *brg_host_nccl();
    static brg_device device;
    nccl.comm_num_done = nullptr;
    nccl.comm_get_async_error = no_error;
    nccl.comm_abort = late_abort;
    EXPECT_OK(brg_device_open(BRG_DEVICE_HOST, &device));
    device.nccl = &nccl;
    return &device;
}

// As run_ranks(), by the rendezvous.
void meet(int world, double timeout_s, const std::function<void(int, brg_context *)> &body)
{
    setenv("BRIGADE_MASTER_PORT", std::to_string(Port().release()).c_str(), 1);
    brg_context_options options = {};
    options.collective_timeout_s = timeout_s;
    run_ranks(world, body, options, silent_device(), BRG_DEVICE_HOST, BY_RENDEZVOUS);
    unsetenv("BRIGADE_MASTER_PORT");
}

std::string wait_for_failure(brg_context *ctx, brg_status *status)
{
    auto until = Clock::now() + std::chrono::seconds(20);
    while ((*status = brg_context_status(ctx)) == BRG_OK && Clock::now() < until)
        usleep(10000);
    return *status == BRG_OK ? "" : brg_last_error();
}

TEST(LifelineContext, WhatOneRankFailsWithEndsTheOthersWait)
{
    for (int failing : {0, 2})
        meet(3, 300, [&](int rank, brg_context *ctx) {
            Rank r(ctx, Plan{});
            ASSERT_EQ(r.status, BRG_OK) << r.error;
            brg_context *child = nullptr;
            ASSERT_OK(brg_context_split(ctx, 0, rank, &child));
            brg_status status;
            if (rank == failing) {
                usleep(200000);
                brg_context_fail(ctx, BRG_ERR_NON_FINITE, "rank %d: a NaN in bucket 3", rank);
                brg_context_abort(ctx);
            } else {
                EXPECT_OK(brg_zero_grad(r.sched, nullptr));
                r.backward(0, r.backward_order());
                brg_finish_grad_sync(r.sched, nullptr);
                std::string said = "rank " + std::to_string(failing) + ": a NaN in bucket 3";
                for (brg_context *each : {ctx, child}) {
                    std::string text = wait_for_failure(each, &status);
                    EXPECT_EQ(status, BRG_ERR_NON_FINITE);
                    EXPECT_EQ(text.find("rank " + std::to_string(rank) + ": "), 0u) << text;
                    EXPECT_NE(text.find(said), std::string::npos) << text;
                    EXPECT_NE(text.find("of bucket"), std::string::npos) << text;
                }
            }
            brg_context_close(child);
        });
}

TEST(LifelineContext, ATimeoutNamesTheLateRank)
{
    meet(3, 0.2, [&](int rank, brg_context *ctx) {
        Rank r(ctx, Plan{});
        ASSERT_EQ(r.status, BRG_OK) << r.error;
        brg_status status;
        if (rank != 1) {
            EXPECT_OK(brg_zero_grad(r.sched, nullptr));
            r.backward(0, r.backward_order());
            brg_finish_grad_sync(r.sched, nullptr);
        }
        std::string text = wait_for_failure(ctx, &status);
        EXPECT_EQ(status, BRG_ERR_TIMEOUT) << text;
        EXPECT_NE(text.find("has not finished for"), std::string::npos) << text;
        EXPECT_NE(text.find("rank 1 has issued "), std::string::npos) << text;
        EXPECT_EQ(text.find("rank 2 has issued "), std::string::npos) << text;
    });
}

} // namespace
