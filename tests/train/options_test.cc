// SPDX-License-Identifier: Apache-2.0
// What brigade-train says to bad options and files: one clear line and the right exit code.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/train/job.h"

namespace
{

std::string train()
{
    const char *path = std::getenv("BRIGADE_TRAIN_EXE");
    return path ? path : "";
}

void expect_line(const Words &options, int code, const std::string &expected)
{
    Result result = run(Words{train()} + options);
    EXPECT_EQ(result.code, code) << expected << "\n" << result.err;
    EXPECT_NE(result.err.find(expected), std::string::npos) << result.err;
    EXPECT_EQ(result.err.rfind("brigade-train: ", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "") << expected;
}

TEST(TrainOptions, BadOnesAreNamed)
{
    expect_line({"--step", "3", "--stepz", "4"}, 2, "unknown option '--stepz'");
    expect_line({"--steps", "0"}, 2, "--steps: '0'");
    expect_line({"--steps", "many"}, 2, "--steps: 'many'");
    expect_line({"--optimizer", "adam"}, 2, "did you mean 'adamw'");
    expect_line({"--overlap", "all"}, 2, "none, grad, param, both");
    expect_line({"--dim", "100", "--heads", "3"}, 2, "--dim 100 is not a multiple of --heads 3");
    expect_line({"--optimizer", "muon+adamw", "--chain", "1"}, 2, "at least 2");
    expect_line({"--chain", "4"}, 2, "--chain: '4'");
    expect_line({"--algorithm", "flat"}, 2, "--algorithm flat does not go with muon+adamw");
    expect_line({"extra"}, 2, "unexpected argument 'extra'");
    expect_line({"--bucket-size", "-1"}, 2, "--bucket-size: '-1'");
}

TEST(TrainOptions, BatchMustDivide)
{
    expect_line({"--global-batch", "5", "--grad-accumulation", "2"}, 2,
                "--global-batch 5 is not a multiple of 1 ranks x --grad-accumulation 2 = 2");
}

TEST(TrainOptions, ChainNeedsEnoughBucketGroups)
{
    expect_line({"--chain", "3", "--bucket-size", "1G", "--steps", "1"}, 2,
                "choose a smaller --bucket-size");
}

TEST(TrainOptions, BadFilesAreNamed)
{
    TempDir dir;
    file_write(dir.path("empty"), "");
    file_write(dir.path("short"), "too little to learn from");
    expect_line({"--data", dir.path("none")}, 3, "cannot read " + dir.path("none"));
    expect_line({"--data", dir.path("empty")}, 3, "is empty");
    expect_line({"--data", dir.path("short")}, 3, "has 24 bytes");
    expect_line({"--json", dir.path("no/such/file"), "--steps", "1"}, 3, "cannot write");
}

TEST(TrainOptions, HelpNamesEveryOptionThatIsPromised)
{
    Result result = run({train(), "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find("Usage: brigade-train [options]"), std::string::npos) << result.out;
    for (const char *option : {"--steps",      "--seed",         "--optimizer",
                               "--overlap",    "--global-batch", "--bucket-size",
                               "--json",       "--layers",       "--dim",
                               "--heads",      "--seq-len",      "--lr",
                               "--muon-lr",    "--weight-decay", "--tied",
                               "--packing",    "--algorithm",    "--grad-accumulation",
                               "--chain",      "--log-every",    "--quiet",
                               "--eval-every", "--data"})
        EXPECT_NE(result.out.find(option), std::string::npos) << option;
}

} // namespace
