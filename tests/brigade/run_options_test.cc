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

TEST(RunOptions, RecordsReachTheRanks)
{
    TempDir dir;
    std::string script = " -q --records 100K -o t -- sh -c 'echo N=$BRIGADE_TRACE_RECORDS.'";
    EXPECT_EQ(run_in(dir, script).out, "N=102400.\n");
    EXPECT_EQ(count_of(run_in(dir, "-n 2" + script).out, "N=102400."), 2);
    EXPECT_EQ(count_of(run_in(dir, "--dry-run" + script).out, " BRIGADE_TRACE_RECORDS=102400 "), 1);
    EXPECT_EQ(run_in(dir, "-q -o t -- sh -c 'echo N=$BRIGADE_TRACE_RECORDS.'").out, "N=.\n");
}

TEST(RunOptions, ProgramsThatCannotBeRunAreToldApart)
{
    TempDir dir;
    write_file(dir.path("plain"), "#!/bin/sh\n");
    write_file(dir.path("script"), "#!/no/such/interpreter\n");
    chmod(dir.path("script").c_str(), 0755);
    for (const std::string ranks : {"", "-n 1 ", "-n 2 ", "-o t "}) {
        auto expect = [&](const std::string &program, int code, const std::string &why) {
            auto r = run_in(dir, ranks + program);
            EXPECT_EQ(r.code, code) << ranks << program;
            EXPECT_EQ(r.out, "");
            EXPECT_EQ(r.err, "brigade run: cannot run '" + program + "': " + why + "\n");
        };
        expect("no-such-program", 127, "No such file or directory");
        expect("./missing", 127, "No such file or directory");
        expect("./plain", 126, "Permission denied");
        expect("./plain/sub", 127, "Not a directory");
        expect("/", 126, "it is a directory");
        expect("./script", 126, "the interpreter that the file names does not exist");
        EXPECT_NE(access(dir.path("t").c_str(), F_OK), 0) << "no trace of what never ran";
    }
}

TEST(RunOptions, WrongUseIsOneLineThatNamesTheOptionAndTheRange)
{
    TempDir dir;
    ASSERT_EQ(mkdir(dir.path("t").c_str(), 0755), 0);
    write_file(dir.path("t/rank-0.ring"), "old");
    write_file(dir.path("file"), "");
    auto expect = [&](const std::string &arguments, int code, const std::string &text) {
        auto r = run_in(dir, arguments);
        EXPECT_EQ(r.code, code) << arguments;
        EXPECT_EQ(r.out, "");
        EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
        EXPECT_EQ(r.err.find("brigade run: " + text), 0u) << r.err;
    };
    expect("-n 0 true", 2, "--ranks: '0' is not a whole number of 1 to 1024");
    expect("-n -2 true", 2, "--ranks: '-2' is not a whole number of 1 to 1024");
    expect("-n 1025 true", 2, "--ranks: '1025' is not a whole number of 1 to 1024");
    expect("-n 1.5 true", 2, "--ranks: '1.5' is not a whole number of 1 to 1024");
    expect("-n 2 --port 65536 true", 2, "--port: '65536' is not a whole number of 1 to 65535");
    expect("--port 2000 true", 2, "--port has no meaning without --ranks");
    expect("--timeout nan true", 2, "--timeout: 'nan' is not a number of 0.001 to");
    expect("--grace 0 true", 2, "--grace: '0' is not a number of 0.001 to");
    expect("--shim=maybe -o x true", 2, "--shim: 'maybe' is not one of auto, on, off");
    expect("--shim=on true", 2, "--shim=on has no meaning without --output");
    expect("--force true", 2, "--force has no meaning without --output");
    expect("-o '' true", 2, "--output: the directory's name is empty");
    expect("-o x --records 255 true", 2, "--records: '255' is not a size of 256 to 67108864");
    expect("-o x --records 65M true", 2, "--records: '65M' is not a size of 256 to 67108864");
    expect("-o x --records all true", 2, "--records: 'all' is not a");
    expect("--records 1K true", 2, "--records has no meaning without --output");
    expect("-o", 2, "option '--output' needs a value");
    expect("-n 2", 2, "which program?");
    expect("--rnaks 2 true", 2, "unknown option '--rnaks'");
    expect("-n 1 -o t true", 125, "'t' holds the trace of an earlier run (rank-0.ring)");
    expect("-n 1 -o file true", 125, "cannot read directory 'file': Not a directory");
    expect("-n 1 -o file/sub true", 125, "cannot create directory 'file/sub': Not a directory");
    EXPECT_EQ(read_file(dir.path("t/rank-0.ring")), "old");
}
