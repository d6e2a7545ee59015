// SPDX-License-Identifier: Apache-2.0
/* Contexts: a caller's communicator and stream, groups split off, aborting beside a blocked call,
 * through tables that stand between the library and the host engine. */
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "tests/bucket/tables.h"

namespace
{

using Clock = std::chrono::steady_clock;

/* Runs body(rank, communicator) on a thread for each rank, on communicators of the host table. */
void run_comms(int world, const std::function<void(int, void *)> &body)
{
    const brg_nccl *nccl = brg_host_nccl();
    brg_unique_id id;
    ASSERT_EQ(nccl->get_unique_id(&id), BRG_NCCL_OK);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; rank++)
        threads.emplace_back([&, rank] {
            void *comm = nullptr;
            ASSERT_EQ(nccl->comm_init_rank(&comm, world, id, rank), BRG_NCCL_OK);
            body(rank, comm);
        });
    for (auto &thread : threads)
        thread.join();
}

void expect_sum(brg_context *ctx, double mine, double want)
{
    double value = mine;
    ASSERT_OK(brg_all_reduce(ctx, &value, &value, 1, BRG_FLOAT64, BRG_SUM, nullptr));
    EXPECT_EQ(value, want);
}

TEST(Adoption, CommunicatorAndStreamSurviveTheContext)
{
    run_comms(3, [](int rank, void *comm) {
        const brg_runtime *rt = brg_host_runtime();
        brg_context_options options = host_options();
        options.nccl_comm = comm;
        ASSERT_EQ(rt->stream_create(&options.comm_stream, BRG_STREAM_NON_BLOCKING, 0), BRG_RT_OK);
        for (int round = 0; round < 2; round++) {
            brg_context *ctx = nullptr;
            ASSERT_OK(brg_context_open(&options, &ctx));
            EXPECT_EQ(brg_context_rank(ctx), rank);
            EXPECT_EQ(brg_context_world_size(ctx), 3);
            expect_sum(ctx, rank, 3);
            brg_context_close(ctx);
        }
        double value = 1;
        EXPECT_EQ(brg_host_nccl()->all_reduce(&value, &value, 1, BRG_NCCL_FLOAT64, BRG_NCCL_SUM,
                                              comm, options.comm_stream),
                  BRG_NCCL_OK);
        EXPECT_EQ(rt->stream_synchronize(options.comm_stream), BRG_RT_OK);
        EXPECT_EQ(value, 3);
        EXPECT_EQ(rt->stream_destroy(options.comm_stream), BRG_RT_OK);
        EXPECT_EQ(brg_host_nccl()->comm_destroy(comm), BRG_NCCL_OK);
    });
}

TEST(Adoption, OptionsThatContradictTheCommunicator)
{
    run_comms(2, [](int rank, void *comm) {
        brg_context_options options = host_options();
        options.nccl_comm = comm;
        options.world_size = 3;
        options.rank = rank;
        brg_context *ctx = nullptr;
        EXPECT_EQ(brg_context_open(&options, &ctx), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(brg_last_error()).find("of 3"), std::string::npos)
            << brg_last_error();
        options.world_size = 2; /* and it is still whole */
        ASSERT_OK(brg_context_open(&options, &ctx));
        expect_sum(ctx, 1, 2);
        brg_context_close(ctx);
        EXPECT_EQ(brg_host_nccl()->comm_destroy(comm), BRG_NCCL_OK);
    });
}

TEST(Adoption, AbortTakesTheCommunicatorAway)
{
    run_comms(2, [](int, void *comm) {
        brg_context_options options = host_options();
        options.nccl_comm = comm;
        brg_context *ctx = nullptr;
        ASSERT_OK(brg_context_open(&options, &ctx));
        brg_context_abort(ctx);
        double value = 0;
        EXPECT_EQ(brg_all_reduce(ctx, &value, &value, 1, BRG_FLOAT64, BRG_SUM, nullptr),
                  BRG_ERR_STATE);
        brg_context_close(ctx);
    });
}

TEST(Split, RanksOfOneColorInTheOrderOfTheirKeys)
{
    run_ranks(5, [](int rank, brg_context *ctx) {
        brg_context *child = nullptr;
        ASSERT_OK(brg_context_split(ctx, rank == 4 ? -1 : rank % 2, -rank, &child));
        if (rank == 4) {
            EXPECT_EQ(child, nullptr);
        } else {
            EXPECT_EQ(brg_context_world_size(child), 2);
            EXPECT_EQ(brg_context_rank(child), rank < 2 ? 1 : 0);
            expect_sum(child, rank, rank % 2 ? 4 : 2);
            brg_context *grandchild = nullptr;
            ASSERT_OK(brg_context_split(child, rank, 0, &grandchild));
            expect_sum(grandchild, rank, rank);
            brg_context_close(grandchild);
            brg_context_close(child);
        }
        expect_sum(ctx, 1, 5);
    });
}

TEST(Split, AChildsErrorIsItsParentsAndAParentsAbortItsChilds)
{
    for (bool abort_child : {true, false}) {
        std::atomic<int> num_ready = 0;
        run_ranks(2, [&](int, brg_context *ctx) {
            brg_context *child = nullptr;
            ASSERT_OK(brg_context_split(ctx, 0, 0, &child));
            num_ready++;
            while (num_ready < 2) /* not a collective, which the other's abort may meet */
                std::this_thread::yield();
            brg_context_abort(abort_child ? child : ctx);
            EXPECT_NE(brg_context_status(child), BRG_OK);
            EXPECT_NE(brg_context_status(ctx), BRG_OK);
            brg_context_close(child);
        });
    }
}

/* Tables in between. */

std::mutex gate_lock;
std::condition_variable gate;
bool is_blocked, is_aborted;
std::atomic<int> num_aborts, fake_error;

int blocking_all_reduce(const void *, void *, size_t, int, int, void *, void *)
{
    std::unique_lock<std::mutex> lock(gate_lock);
    is_blocked = true;
    gate.notify_all();
    gate.wait(lock, [] { return is_aborted; });
    return BRG_NCCL_INTERNAL;
}

int counted_abort(void *comm)
{
    num_aborts++;
    {
        std::lock_guard<std::mutex> lock(gate_lock);
        is_aborted = true;
        gate.notify_all();
    }
    return brg_host_nccl()->comm_abort(comm);
}

int faked_async_error(void *comm, int *result)
{
    int status = brg_host_nccl()->comm_get_async_error(comm, result);
    if (fake_error)
        *result = fake_error;
    return status;
}

TEST(Abort, GetsThroughToABlockedCall)
{
    is_blocked = is_aborted = false;
    Tables tables;
    tables.nccl.all_reduce = blocking_all_reduce;
    tables.nccl.comm_abort = counted_abort;
    brg_context *ctx = tables.open();
    ASSERT_NE(ctx, nullptr);
    std::thread caller([&] {
        double value = 0;
        EXPECT_EQ(brg_all_reduce(ctx, &value, &value, 1, BRG_FLOAT64, BRG_SUM, nullptr),
                  BRG_ERR_STATE);
        EXPECT_NE(std::string(brg_last_error()).find("aborted"), std::string::npos);
    });
    {
        std::unique_lock<std::mutex> lock(gate_lock);
        gate.wait(lock, [] { return is_blocked; });
    }
    auto begin = Clock::now();
    brg_context_abort(ctx);
    caller.join();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    brg_context_close(ctx);
}

TEST(Abort, FollowsAnErrorOfALibraryThatLeavesItsCollectivesStuck)
{
    fake_error = 0;
    num_aborts = 0;
    is_aborted = true;
    Tables tables;
    tables.nccl.comm_num_done = nullptr;
    tables.nccl.comm_get_async_error = faked_async_error;
    tables.nccl.comm_abort = counted_abort;
    brg_context *ctx = tables.open();
    ASSERT_NE(ctx, nullptr);
    EXPECT_OK(brg_context_status(ctx));
    fake_error = BRG_NCCL_REMOTE;
    EXPECT_EQ(brg_context_status(ctx), BRG_ERR_PEER_LOST);
    for (int i = 0; i < 500 && !num_aborts; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(num_aborts, 1);
    brg_context_close(ctx);
    EXPECT_EQ(num_aborts, 1);
}

/* As on a GPU: the call returns, and its stream stands still until the communicator is aborted. */
int stuck_reduce_scatter(const void *, void *, size_t, int, int, void *, void *stream)
{
    return brg_host_runtime()->launch_host_func(
        stream,
        [](void *) {
            std::unique_lock<std::mutex> lock(gate_lock);
            gate.wait(lock, [] { return is_aborted; });
        },
        nullptr);
}

TEST(Abort, AStuckCollectiveHoldsUpNeitherTheStepNorDestruction)
{
    for (bool by_watchdog : {false, true}) {
        is_aborted = false;
        Tables tables;
        tables.nccl.reduce_scatter = stuck_reduce_scatter;
        tables.nccl.comm_abort = counted_abort;
        tables.nccl.comm_num_done = nullptr;
        brg_context *ctx = tables.open(0, by_watchdog ? 0.1 : 60);
        ASSERT_NE(ctx, nullptr);
        Model model = small_model();
        brg_layout_options plan = {};
        brg_layout *layout = nullptr;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
        brg_scheduler *sched = nullptr;
        ASSERT_OK(brg_scheduler_create(ctx, layout, nullptr, &sched));
        ASSERT_OK(brg_zero_grad(sched, nullptr));
        for (int p = model.size() - 1; p >= 0; p--)
            ASSERT_OK(brg_grad_ready(sched, p, nullptr));
        std::thread other([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            if (!by_watchdog)
                brg_context_abort(ctx);
        });
        EXPECT_EQ(brg_finish_grad_sync(sched, nullptr),
                  by_watchdog ? BRG_ERR_TIMEOUT : BRG_ERR_STATE);
        std::string text = brg_last_error();
        EXPECT_NE(text.find(by_watchdog ? "reduce-scatter of bucket" : "aborted"),
                  std::string::npos)
            << text;
        other.join();
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
        brg_context_close(ctx);
    }
}

} // namespace
