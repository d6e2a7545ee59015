// SPDX-License-Identifier: Apache-2.0
/* brigade run: what its options come to in the ranks, and what is said of wrong ones. */
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/brigade/command.h"

namespace
{
using Args = std::vector<std::string>;

/* brigade run, started in `dir`. */
CommandResult run_in(const TempDir &dir, const std::string &arguments)
{
    return Command({"/bin/sh", "-c",
                    "cd '" + dir.path() + "' && exec " + BRIGADE_COMMAND + " run " + arguments})
        .wait();
}
} // namespace

TEST(RunOptions, RelativeTraceIsAbsoluteForTheRanks)
{
    TempDir dir;
    std::string line = "BRIGADE_TRACE=" + dir.path("new/trace") + " ";
    for (const char *ranks : {"", "-n 2 "}) {
        auto dry = run_in(dir, std::string(ranks) + "--dry-run -o new/trace true");
        EXPECT_EQ(dry.code, 0) << dry.err;
        EXPECT_EQ(count_of(dry.out, line), *ranks ? 2 : 1) << dry.out;
        EXPECT_NE(access(dir.path("new").c_str(), F_OK), 0);
    }
    for (const char *ranks : {"", "-n 2 --no-prefix -f "}) {
        auto real = run_in(dir, std::string(ranks) + "-q -o new/trace -- sh -c "
                                                     "'cd /; echo BRIGADE_TRACE=$BRIGADE_TRACE .'");
        EXPECT_EQ(real.code, 0) << real.err;
        EXPECT_EQ(count_of(real.out, line), *ranks ? 2 : 1) << real.out;
    }
    EXPECT_EQ(count_of(run_in(dir, "--dry-run -o ./new/../new/trace true").out, line), 1);
    EXPECT_EQ(run_in(dir, "--dry-run -o '' true").code, 2);
}
