/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers that know nothing of Brigade, on libbrigade-host, with and without the shim. */
#include "interpose.h"

#include <signal.h>
#include <sys/stat.h>

#include <fstream>

namespace
{

enum { STEPS = 6, LAYERS = 4, BUCKETS = 2 };

/* The trainers are built like the rest: with the address sanitizer, nothing can go under them. */
class ShimTrainers : public testing::Test
{
  protected:
    void SetUp() override
    {
#ifdef __SANITIZE_ADDRESS__
        GTEST_SKIP() << "built with the address sanitizer";
#endif
    }
};
using ShimRunOption = ShimTrainers;

CommandResult train(const std::string &trainer, int ranks, const TempDir &dir,
                    const std::string &shim, const std::map<std::string, std::string> &env = {})
{
    CommandOptions options;
    options.env = env;
    options.env["NCCL_ID_FILE"] = dir.path("id");
    return brigade({"run", "-q", "--no-prefix", "-n", std::to_string(ranks), "-o",
                    dir.path("trace"), "--shim", shim, "--", trainer, std::to_string(STEPS)},
                   options);
}

std::string ring(const TempDir &dir, int rank)
{
    return dir.path("trace/rank-" + std::to_string(rank) + ".ring");
}

TEST_F(ShimTrainers, TrainTheSameWeightsWithTheShim)
{
    for (int ranks : {2, 4})
        for (const char *trainer : {DDP_TRAINER, ZERO_TRAINER}) {
            TempDir with, without, untimed;
            CommandResult a = train(trainer, ranks, with, "auto");
            CommandResult b = train(trainer, ranks, without, "off");
            CommandResult c =
                train(trainer, ranks, untimed, "on", {{"BRIGADE_SHIM_TIMING", "none"}});
            EXPECT_EQ(a.code, 0) << a.err;
            EXPECT_NE(a.out.find("weights"), std::string::npos);
            EXPECT_EQ(a.out, b.out);
            EXPECT_EQ(a.out, c.out);
            EXPECT_FALSE(Trace(ring(without, 0)).there);
            size_t expected = STEPS * (trainer == std::string(DDP_TRAINER) ? LAYERS : 2 * BUCKETS);
            std::string hash;
            for (int rank = 0; rank < ranks; rank++) {
                Trace trace(ring(with, rank));
                ASSERT_TRUE(trace.there && trace.closed);
                EXPECT_EQ(trace.collectives.size(), expected);
                EXPECT_EQ(trace.calls.size(), expected);
                EXPECT_EQ(trace.drops, 0u);
                EXPECT_EQ(trace.info("nccl").substr(0, 6), "22809 ");
                std::string comm = trace.info("comm 1");
                EXPECT_EQ(comm.substr(21),
                          " size=" + std::to_string(ranks) + " rank=" + std::to_string(rank) +
                              " device=" + std::to_string(rank) + " parent=0 how=init blocking=1");
                EXPECT_EQ(comm.substr(0, 21), rank ? hash : comm.substr(0, 21));
                hash = comm.substr(0, 21);
                EXPECT_EQ(Trace(ring(untimed, rank)).collectives.size(), expected);
            }
        }
}

TEST_F(ShimTrainers, LinkedBeforeNcclInsteadOfPreloaded)
{
    TempDir with, without;
    CommandResult a = train(DDP_TRAINER_LINKED, 2, with, "off");
    CommandResult b = train(DDP_TRAINER, 2, without, "off");
    EXPECT_EQ(a.code, 0) << a.err;
    EXPECT_EQ(a.out, b.out);
    for (int rank = 0; rank < 2; rank++)
        EXPECT_EQ(Trace(ring(with, rank)).collectives.size(), (size_t)STEPS * LAYERS);
}

TEST_F(ShimTrainers, LinkedAndPreloadedItRecordsOnce)
{
    for (const char *trainer : {DDP_TRAINER_LINKED, DDP_TRAINER_LATE}) {
        TempDir dir;
        CommandResult r = train(trainer, 2, dir, "on");
        EXPECT_EQ(r.code, 0) << r.err;
        EXPECT_EQ(r.err, "");
        for (int rank = 0; rank < 2; rank++) {
            Trace trace(ring(dir, rank));
            EXPECT_EQ(trace.collectives.size(), (size_t)STEPS * LAYERS) << trainer;
            EXPECT_EQ(trace.calls.size(), (size_t)STEPS * LAYERS) << trainer;
        }
    }
}

/* Every rank's shell leaves its process id in a file and becomes the trainer. */
TEST_F(ShimTrainers, ARankThatIsKilledLeavesReadableTraces)
{
    TempDir dir;
    CommandOptions options;
    options.env["NCCL_ID_FILE"] = dir.path("id");
    Command command(
        brigade_args({"run", "-q", "-n", "2", "-o", dir.path("trace"), "--grace", "2", "--",
                      "/bin/sh", "-c",
                      "echo $$ > " + dir.path("pid") + "-$RANK; exec " DDP_TRAINER " 1000000"}),
        options);
    pid_t victim = 0;
    for (int i = 0; i < 1000 && Trace(ring(dir, 1)).collectives.size() < 100; i++)
        usleep(10000);
    std::ifstream(dir.path("pid-1")) >> victim;
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    EXPECT_EQ(command.wait().code, 128 + SIGKILL);
    for (int rank = 0; rank < 2; rank++) {
        Trace trace(ring(dir, rank));
        ASSERT_TRUE(trace.there);
        EXPECT_GE(trace.collectives.size(), 100u);
    }
    EXPECT_FALSE(Trace(ring(dir, 1)).closed) << "who died";
}

TEST_F(ShimRunOption, DryRunShowsThePreloadByItsAbsoluteNameAndKeepsTheUsers)
{
    TempDir dir;
    CommandOptions options;
    auto shown = [&](std::vector<std::string> words) {
        std::vector<std::string> args = {"run", "--dry-run"};
        args.insert(args.end(), words.begin(), words.end());
        return brigade(args, options);
    };
    std::string out = shown({"-o", dir.path("t"), "--", "x"}).out;
    EXPECT_NE(out.find(" LD_PRELOAD=/"), std::string::npos) << out;
    EXPECT_NE(out.find("/libbrigade-shim.so.1"), std::string::npos) << out;
    EXPECT_EQ(shown({"-o", dir.path("t"), "--shim", "off", "--", "x"}).out.find("LD_PRELOAD"),
              std::string::npos);
    EXPECT_EQ(shown({"--", "x"}).out.find("LD_PRELOAD"), std::string::npos);
    EXPECT_EQ(shown({"--shim", "on", "--", "x"}).code, 2);
    options.env["LD_PRELOAD"] = "libc.so.6";
    out = shown({"-o", dir.path("t"), "--", "x"}).out;
    EXPECT_NE(out.find(":libc.so.6 "), std::string::npos) << out;
    options.env["LD_PRELOAD"] = SHIM;
    EXPECT_EQ(shown({"-o", dir.path("t"), "--", "x"}).out.find("LD_PRELOAD"), std::string::npos);
}

TEST_F(ShimRunOption, RecordsThatATraceKeeps)
{
    for (const char *records : {"300", ""}) {
        TempDir dir;
        CommandOptions options;
        options.env["NCCL_ID_FILE"] = dir.path("id");
        std::vector<std::string> args = {"run", "-q", "-n", "2", "-o", dir.path("trace")};
        if (*records)
            args.insert(args.end(), {"--records", records});
        args.insert(args.end(), {"--", DDP_TRAINER, std::to_string(STEPS)});
        CommandResult r = brigade(args, options);
        ASSERT_EQ(r.code, 0) << r.err;
        struct stat info;
        ASSERT_EQ(stat(ring(dir, 1).c_str(), &info), 0);
        EXPECT_EQ((size_t)info.st_size,
                  4096 + (1 << 20) + (*records ? 512u : 65536u) * sizeof(brg_rec));
        EXPECT_EQ(Trace(ring(dir, 1)).collectives.size(), (size_t)STEPS * LAYERS);
    }
    TempDir dir;
    CommandResult r = train(DDP_TRAINER, 2, dir, "on", {{"BRIGADE_TRACE_RECORDS", "few"}});
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(count_of(r.err, "BRIGADE_TRACE_RECORDS is \"few\", expected 256 to 67108864"), 2);
    EXPECT_EQ(Trace(ring(dir, 0)).collectives.size(), (size_t)STEPS * LAYERS);
}

/* The summary's last part of a run that leaves no trace. */
std::string blame(const TempDir &dir, const std::vector<std::string> &options,
                  const std::vector<std::string> &program, int code = 0)
{
    CommandOptions with;
    with.env["NCCL_ID_FILE"] = dir.path("id");
    std::vector<std::string> args = {"run", "-f", "-o", dir.path("trace")};
    args.insert(args.end(), options.begin(), options.end());
    args.push_back("--");
    args.insert(args.end(), program.begin(), program.end());
    CommandResult r = brigade(args, with);
    EXPECT_EQ(r.code, code) << r.err;
    std::string before = "; no trace was written to " + dir.path("trace");
    size_t at = r.err.find(before);
    return at == std::string::npos ? "(" + r.err : r.err.substr(at + before.size());
}

TEST_F(ShimRunOption, ARunWithoutATraceSaysWhyThatIsLikely)
{
    TempDir dir;
    EXPECT_EQ(blame(dir, {"-n", "2", "--shim=off"}, {DDP_TRAINER_LATE, "2"}),
              ": " DDP_TRAINER_LATE " names libbrigade-host.so.1 before libbrigade-shim, which "
              "thus sees nothing; link with -lbrigade-shim first\n");
    EXPECT_EQ(blame(dir, {"--shim=off"}, {DDP_TRAINER, "2"}),
              ": the shim was off, and the program does not use libbrigade\n");
    EXPECT_EQ(blame(dir, {}, {"true"}).find(": no communicator of NCCL was made, or"), 0u);
    EXPECT_EQ(blame(dir, {}, {"sh", "-c", "exit 3"}, 3), "\n") << "it failed: that is why";
    write_file(dir.path("script"), "#!/bin/sh\n");
    chmod(dir.path("script").c_str(), 0755);
    EXPECT_EQ(blame(dir, {"--shim=off"}, {dir.path("script")}).find(": the shim was off"), 0u);
}

} // namespace
