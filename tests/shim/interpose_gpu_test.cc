/* SPDX-License-Identifier: Apache-2.0 */
/* The shim under C programs on real GPUs, with the real NCCL: results as without it, all that was
 * issued is recorded, with device times. */
#include "gpu.h"
#include "interpose.h"

extern "C" {
#include "sched/status.h"
}

namespace
{

enum { RANKS = 2, STEPS = 20, LAYERS = 4, BUCKETS = 2 };

CommandResult run(std::vector<std::string> program, int ranks, const TempDir &dir,
                  const std::string &shim)
{
    CommandOptions options;
    options.env = gpu_environment();
    options.env["NCCL_ID_FILE"] = dir.path("id");
    std::vector<std::string> args = {
        "run",    "-q", "--no-prefix", "-n", std::to_string(ranks), "-o", dir.path("trace"),
        "--shim", shim, "--"};
    args.insert(args.end(), program.begin(), program.end());
    return brigade(args, options);
}

void expect_timed(const Trace &trace, size_t expected)
{
    ASSERT_TRUE(trace.there && trace.closed);
    EXPECT_EQ(trace.info("timing"), "events");
    EXPECT_EQ(trace.collectives.size(), expected);
    EXPECT_EQ(trace.drops, 0u);
    uint64_t issued = 0, began = 0;
    for (const brg_rec &rec : trace.collectives) {
        EXPECT_EQ(rec.flags & BRG_REC_UNTIMED, 0);
        EXPECT_LT(rec.t1_ns - rec.t0_ns, 10000000000u);
        began += rec.t0_ns / expected;
    }
    for (const brg_rec &call : trace.calls)
        issued += call.t0_ns / expected;
    EXPECT_GT(began + 100000, issued) << "on average nothing begins before it is issued";
}

TEST(ShimGpu, TrainersGiveTheSameWeightsAndAreRecorded)
{
    const int gpus = gpu_count();
    if (!gpus)
        GTEST_SKIP() << "no GPU answers: " << brg_last_error();
    for (const char *trainer : {GPU_DDP_TRAINER, GPU_ZERO_TRAINER}) {
        std::vector<std::string> program = {trainer, std::to_string(STEPS)};
        if (gpus < RANKS)
            program = sharing_gpu(program);
        TempDir with, without;
        CommandResult a = run(program, RANKS, with, "on");
        CommandResult b = run(program, RANKS, without, "off");
        EXPECT_EQ(a.code, 0) << a.err;
        EXPECT_EQ(a.out, b.out);
        EXPECT_NE(a.out.find("weights"), std::string::npos);
        size_t expected = STEPS * (trainer == std::string(GPU_DDP_TRAINER) ? LAYERS : 2 * BUCKETS);
        for (int rank = 0; rank < RANKS; rank++)
            expect_timed(Trace(with.path("trace/rank-" + std::to_string(rank) + ".ring")),
                         expected);
    }
}

TEST(ShimGpu, AGraphCapturedCollectiveIsLeftAlone)
{
    if (!gpu_count())
        GTEST_SKIP() << "no GPU answers: " << brg_last_error();
    TempDir with, without;
    CommandResult a = run({GPU_CAPTURE}, 1, with, "on");
    CommandResult b = run({GPU_CAPTURE}, 1, without, "off");
    EXPECT_EQ(a.code, 0) << a.err;
    EXPECT_EQ(a.out, b.out);
    Trace trace(with.path("trace/rank-0.ring"));
    ASSERT_EQ(trace.collectives.size(), 3u);
    const uint64_t bytes = UINT64_C(4) << 20;
    ASSERT_TRUE(trace.of_bytes(bytes) && trace.of_bytes(bytes / 2) && trace.of_bytes(bytes / 4));
    EXPECT_EQ(trace.of_bytes(bytes)->flags, 0);
    EXPECT_EQ(trace.of_bytes(bytes / 2)->flags, BRG_REC_UNTIMED | BRG_REC_CAPTURED);
    EXPECT_EQ(trace.of_bytes(bytes / 4)->flags, 0);
}

} // namespace
