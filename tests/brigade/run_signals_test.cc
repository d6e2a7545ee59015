/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run: signals to it and to its ranks. */
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/brigade/run.h"

TEST_F(Run, SignalsAreForwarded)
{
    for (auto [sig, name] : {std::pair<int, const char *>{SIGUSR1, "USR1"},
                             {SIGUSR2, "USR2"},
                             {SIGINT, "INT"},
                             {SIGQUIT, "QUIT"},
                             {SIGTERM, "TERM"},
                             {SIGHUP, "HUP"}}) {
        Command command(run_args({"-n", "2"}, std::string("trap 'echo got; exit 0' ") + name +
                                                  "; echo ready; while :; do sleep 0.05; done"));
        ASSERT_TRUE(command.until("ready", 2)) << name;
        command.signal(sig);
        auto r = command.wait();
        EXPECT_EQ(r.code, 0) << name << r.err;
        EXPECT_EQ(count_of(r.out, "got"), 2) << name;
    }
}

TEST_F(Run, SignalsAreForwardedToTheOnlyProgram)
{
    for (const Args &options : {Args{}, Args{"-n", "1"}, Args{"-o", dir.path("t")}}) {
        Command command(run_args(options, "trap 'echo got; exit 5' USR1; echo ready; while :; do "
                                          "sleep 0.05; done"));
        ASSERT_TRUE(command.until("ready"));
        command.signal(SIGUSR1);
        auto r = command.wait();
        EXPECT_EQ(r.code, 5) << r.err;
        EXPECT_EQ(r.out, "ready\ngot\n");
    }
}

TEST_F(Run, SigtermEndsRanksThatIgnoreIt)
{
    Command command(run_args({"-n", "2", "--grace", "0.3"},
                             "trap '' TERM; echo pid $$; while :; do sleep 0.1; done"));
    ASSERT_TRUE(command.until("pid", 2));
    command.signal(SIGTERM);
    auto r = command.wait();
    EXPECT_EQ(r.code, 128 + SIGKILL) << r.err;
    for (pid_t pid : numbers(r.out, "pid"))
        EXPECT_TRUE(gone(pid));
}

TEST_F(Run, SecondInterruptEndsTheRanks)
{
    Command command(run_args({"-n", "2"},
                             "trap 'echo got' INT; echo ready; while :; do sleep 0.05; "
                             "done"));
    ASSERT_TRUE(command.until("ready", 2));
    command.signal(SIGINT);
    ASSERT_TRUE(command.until("got", 2));
    command.signal(SIGINT);
    auto r = command.wait();
    EXPECT_EQ(r.code, 128 + SIGTERM) << r.err;
}

/* A rank that an interrupt ends has not died by itself. */
TEST_F(Run, AnInterruptedJobLeavesNoWordOfDeaths)
{
    const std::string trace = dir.path("trace");
    Command command(run_args({"-n", "2", "-o", trace}, "echo ready; exec sleep 100"));
    ASSERT_TRUE(command.until("ready", 2));
    usleep(100000); /* until the shells have become sleep */
    command.signal(SIGINT);
    auto r = command.wait();
    EXPECT_EQ(r.code, 128 + SIGINT) << r.err;
    EXPECT_FALSE(exists(trace + "/run.json"));
}

TEST_F(Run, StopAndContinue)
{
    /* ranks that wait without starting processes: a shell in vfork() does not count as stopped */
    for (const char *fifo : {"0", "1"})
        ASSERT_EQ(mkfifo(dir.path(fifo).c_str(), 0600), 0);
    Command command(
        run_args({"-n", "2"}, "echo pid $$; read x < " + dir.path() + "/$RANK; echo end"));
    ASSERT_TRUE(command.until("pid", 2));
    auto pids = numbers(command.out(), "pid");
    ASSERT_EQ(pids.size(), 2u);
    pids.push_back(command.pid());
    auto all_are = [&](bool stopped) {
        for (int i = 0; i < 500; i++) {
            int count = 0;
            for (pid_t pid : pids) {
                std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
                count += stat.substr(stat.rfind(')') + 2, 1) == "T";
            }
            if (count == (stopped ? 3 : 0))
                return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return false;
    };
    command.signal(SIGTSTP);
    EXPECT_TRUE(all_are(true));
    command.signal(SIGCONT);
    EXPECT_TRUE(all_are(false));
    for (const char *fifo : {"0", "1"})
        write_file(dir.path(fifo), "go\n");
    auto r = command.wait();
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(count_of(r.out, "end"), 2);
}

TEST_F(Run, KilledLauncherTakesEverythingWithIt)
{
    for (const char *ranks : {"1", "3"}) {
        std::vector<pid_t> pids;
        Command command(run_args({"-n", ranks}, "sleep 100 & echo pid $!; echo pid $$; wait"));
        ASSERT_TRUE(command.until("pid", 2 * std::stoi(ranks)));
        pids = numbers(command.out(), "pid");
        command.signal(SIGKILL);
        EXPECT_EQ(command.wait().code, 137);
        EXPECT_EQ((int)pids.size(), 2 * std::stoi(ranks));
        for (pid_t pid : pids)
            EXPECT_TRUE(gone(pid)) << pid;
    }
}

TEST_F(Run, IgnoredSignalsStayIgnored)
{
    auto r = Command({"/bin/sh", "-c",
                      std::string("trap '' HUP; exec ") + BRIGADE_COMMAND +
                          " run -q -n 2 -- /bin/sh -c 'kill -HUP $$; kill -HUP $PPID; sleep 0.2; "
                          "echo alive'"})
                 .wait();
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(count_of(r.out, "alive"), 2);
}
