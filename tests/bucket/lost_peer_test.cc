// SPDX-License-Identifier: Apache-2.0
/* Ranks as processes, one of which dies in the middle of a step. */
#include <chrono>
#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bucket/harness.h"

namespace
{

using Clock = std::chrono::steady_clock;

/* The body of a rank process: trains until a call fails. Exit code 0 when the failure is what it
 * should be. Runs after fork, so no gtest in here. */
int train(int rank, int world, const brg_unique_id *id, int victim, int victim_step, bool overlap)
{
    brg_context_options options = {};
    options.device = BRG_DEVICE_HOST;
    options.world_size = world;
    options.rank = options.local_rank = rank;
    options.unique_id = id;
    options.trace_dir = "";
    brg_context *ctx;
    if (brg_context_open(&options, &ctx) != BRG_OK)
        return 10;
    Model model = small_model();
    brg_layout_options layout_options = {};
    layout_options.data_parallel_size = world;
    layout_options.bucket_size = 300;
    brg_layout *layout;
    brg_scheduler_options sched_options = {};
    sched_options.overlap_grad_reduce = overlap;
    brg_scheduler *sched;
    if (brg_layout_compute(model.data(), model.size(), &layout_options, &layout) != BRG_OK ||
        brg_scheduler_create(ctx, layout, &sched_options, &sched) != BRG_OK)
        return 11;
    brg_status status = BRG_OK;
    for (int step = 0; status == BRG_OK && step < 200; step++) {
        status = brg_zero_grad(sched, nullptr);
        for (int p = model.size() - 1; status == BRG_OK && p >= 0; p--) {
            if (rank == victim && step == victim_step && p == 6) {
                usleep(300000); /* until the others wait for it in a bucket's collective */
                raise(SIGKILL);
            }
            status = brg_grad_ready(sched, p, nullptr);
        }
        if (status == BRG_OK)
            status = brg_finish_grad_sync(sched, nullptr);
        if (status == BRG_OK)
            status = brg_context_status(ctx);
    }
    std::string text = brg_last_error(), name = "rank " + std::to_string(victim);
    int code = status != BRG_ERR_PEER_LOST                ? 12
               : text.find(name) == std::string::npos     ? 13
               : text.find("bucket") == std::string::npos ? 14
                                                          : 0;
    if (code)
        fprintf(stderr, "rank %d: status %d: %s\n", rank, status, text.c_str());
    brg_scheduler_destroy(sched);
    brg_layout_destroy(layout);
    brg_context_close(ctx);
    return code;
}

class LostPeer : public testing::TestWithParam<std::tuple<int, int, bool>>
{
};

TEST_P(LostPeer, OthersNameItWithinFiveSeconds)
{
    auto [world, victim_step, overlap] = GetParam();
    int victim = world - 2;
    brg_unique_id id;
    ASSERT_OK(brg_unique_id_create(BRG_DEVICE_HOST, &id));
    std::vector<pid_t> children;
    auto begin = Clock::now();
    for (int rank = 0; rank < world; rank++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(train(rank, world, &id, victim, victim_step, overlap));
        children.push_back(pid);
    }
    for (int rank = 0; rank < world; rank++) {
        int state = 0;
        ASSERT_EQ(waitpid(children[(size_t)rank], &state, 0), children[(size_t)rank]);
        if (rank == victim)
            EXPECT_TRUE(WIFSIGNALED(state));
        else
            EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0)
                << "rank " << rank << " code " << WEXITSTATUS(state) << " signal "
                << WTERMSIG(state);
    }
    /* 5 s from the death, and room for a slow machine to get there */
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(25));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LostPeer,
                         testing::Combine(testing::Values(2, 5), testing::Values(0, 3),
                                          testing::Bool()));

} // namespace
