/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run: what a user sees of it. Ranks are small shell scripts. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tests/brigade/json.h"
#include "tests/brigade/run.h"

TEST_F(Run, ExitCodeIsThatOfTheProgram)
{
    for (int ranks : {1, 3}) {
        EXPECT_EQ(run({"-n", std::to_string(ranks)}, "exit 0").code, 0);
        EXPECT_EQ(run({"-n", std::to_string(ranks)}, "exit 7").code, 7);
        EXPECT_EQ(run({"-n", std::to_string(ranks)}, "kill -KILL $$").code, 128 + SIGKILL);
        EXPECT_EQ(run({"-n", std::to_string(ranks)}, "kill -SEGV $$").code, 128 + SIGSEGV);
    }
    EXPECT_EQ(run({}, "exit 9").code, 9);
    EXPECT_EQ(run({"-o", dir.path("t")}, "exit 9").code, 9);
}

TEST_F(Run, ProgramThatCannotBeRun)
{
    write_file(dir.path("plain"), "not a program");
    for (const Args &options : {Args{}, Args{"-n", "1"}, Args{"-n", "2"}}) {
        Args missing = {"run"}, plain = {"run"};
        missing.insert(missing.end(), options.begin(), options.end());
        plain.insert(plain.end(), options.begin(), options.end());
        missing.push_back("no-such-program-here");
        plain.push_back(dir.path("plain"));
        auto r = brigade(missing);
        EXPECT_EQ(r.code, 127);
        EXPECT_EQ(r.err, "brigade run: cannot run 'no-such-program-here': No such file or "
                         "directory\n");
        r = brigade(plain);
        EXPECT_EQ(r.code, 126);
        EXPECT_NE(r.err.find("Permission denied"), std::string::npos) << r.err;
    }
}

TEST_F(Run, TraceDirectoryIsNotLeftWhenNothingRan)
{
    EXPECT_EQ(brigade({"run", "-n", "2", "-o", dir.path("t"), "no-such-program-here"}).code, 127);
    EXPECT_FALSE(exists(dir.path("t")));
}

TEST_F(Run, BadUsage)
{
    for (const Args &bad :
         {Args{"run"}, Args{"run", "-n", "0", "true"}, Args{"run", "-n", "2000", "true"},
          Args{"run", "-n", "x", "true"}, Args{"run", "-n"},
          Args{"run", "--rank", "2", "--", "true", "--bogus"}, Args{"run", "--bogus", "true"},
          Args{"run", "-n", "2", "--"}, Args{"run", "--force", "true"},
          Args{"run", "--timeout", "0", "true"}, Args{"run", "--port", "1", "true"},
          Args{"run", "-o", "", "true"}, Args{"run", "-n", "1", "--port", "70000", "true"}}) {
        auto r = brigade(bad);
        if (bad.size() > 1 && bad[1] == "--rank") { /* an abbreviation; --bogus is the program's */
            EXPECT_EQ(r.code, 0) << r.err;
            continue;
        }
        EXPECT_EQ(r.code, 2) << r.err;
        EXPECT_EQ(r.out, "");
        EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
    }
}

TEST_F(Run, EnvironmentOfRanks)
{
    auto r = run({"-n", "3"}, "echo R=$RANK W=$WORLD_SIZE L=$LOCAL_RANK LW=$LOCAL_WORLD_SIZE "
                              "A=$MASTER_ADDR P=$MASTER_PORT T=${BRIGADE_TRACE-none}.");
    ASSERT_EQ(r.code, 0) << r.err;
    auto lines = lines_of(r.out);
    std::sort(lines.begin(), lines.end());
    ASSERT_EQ(lines.size(), 3u);
    std::string port = lines[0].substr(lines[0].find("P=") + 2);
    port = port.substr(0, port.find(' '));
    EXPECT_GE(std::stoi(port), 1024);
    EXPECT_LE(std::stoi(port), 65535);
    for (int i = 0; i < 3; i++) {
        std::string n = std::to_string(i);
        EXPECT_EQ(lines[(size_t)i], "[" + n + "] R=" + n + " W=3 L=" + n +
                                        " LW=3 A=127.0.0.1 P=" + port + " T=none.");
    }
    EXPECT_NE(run({"-n", "1", "--port", "23456"}, "echo P=$MASTER_PORT").out.find("P=23456\n"),
              std::string::npos);
}

TEST_F(Run, ThreadCountsAreSharedOutUnlessSet)
{
    std::string script = "echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS";
    auto one = run({"-n", "1"}, script);
    int cores = std::stoi(one.out);
    EXPECT_GE(cores, 1);
    EXPECT_EQ(one.out, std::to_string(cores) + " " + std::to_string(cores) + "\n");
    /* more ranks than cores: one each */
    auto many = run({"-n", "2", "--no-prefix"}, script);
    std::string each = std::to_string(std::max(1, cores / 2));
    EXPECT_EQ(many.out, each + " " + each + "\n" + each + " " + each + "\n");
    CommandOptions with;
    with.env = {{"OMP_NUM_THREADS", "5"}};
    EXPECT_EQ(run({"-n", "1"}, script, with).out, "5 " + std::to_string(cores) + "\n");
}

TEST_F(Run, WithoutRanksTheEnvironmentIsLeftAlone)
{
    std::string script = "echo ${RANK-no} ${WORLD_SIZE-no} ${OMP_NUM_THREADS-no}";
    EXPECT_EQ(run({}, script).out, "no no no\n");
    EXPECT_EQ(run({}, script).err, "");
    CommandOptions inside;
    inside.env = {{"RANK", "3"}, {"WORLD_SIZE", "8"}};
    EXPECT_EQ(run({}, script, inside).out, "3 8 no\n");
    auto traced = run({"-o", dir.path("t")}, script + " $BRIGADE_TRACE", inside);
    EXPECT_EQ(traced.out, "3 8 no " + dir.path("t") + "\n");
    EXPECT_EQ(traced.err, ""); /* rank 0 has the summary */
    inside.env["RANK"] = "0";
    traced = run({"-o", dir.path("t")}, script, inside);
    EXPECT_EQ(traced.out, "0 8 no\n");
    EXPECT_NE(traced.err.find("finished in"), std::string::npos);
}

TEST_F(Run, RanksEnvironmentReplacesAnOuterOne)
{
    CommandOptions inside;
    inside.env = {{"RANK", "30"}, {"WORLD_SIZE", "80"}, {"MASTER_PORT", "1"}};
    EXPECT_EQ(run({"-n", "1"}, "echo $RANK $WORLD_SIZE; test $MASTER_PORT != 1", inside).out,
              "0 1\n");
}

TEST_F(Run, PrefixOnlyWithSeveralRanks)
{
    EXPECT_EQ(run({"-n", "1"}, "echo a; echo b >&2").out, "a\n");
    auto r = run({"-n", "2", "--no-prefix", "-q"}, "echo a; echo b >&2");
    EXPECT_EQ(r.out, "a\na\n");
    EXPECT_EQ(r.err, "b\nb\n");
    r = run({"-n", "2", "-q"}, "test $RANK = 1 || exit 0; echo a; echo; echo b >&2; printf end");
    EXPECT_EQ(r.out, "[1] a\n[1] \n[1] end\n");
    EXPECT_EQ(r.err, "[1] b\n");
}

TEST_F(Run, ReturnsAndOtherBytesPass)
{
    auto r = run({"-n", "2", "-q"},
                 "test $RANK = 1 || exit 0; printf 'a\\r\\nb\\0c\\n\\r 5%%\\r 10%%\\n\\377\\n'");
    const char expected[] = "[1] a\r\n[1] b\0c\n\r[1]  5%\r[1]  10%\n[1] \377\n";
    EXPECT_EQ(r.out, std::string(expected, sizeof expected - 1));
}

TEST_F(Run, VeryLongLine)
{
    auto r =
        run({"-n", "2", "-q"}, "test $RANK = 0 || exit 0; head -c 3000000 /dev/zero | tr '\\0' "
                               "x; echo; printf done");
    EXPECT_EQ(r.out, "[0] " + std::string(3000000, 'x') + "\n[0] done\n");
}

TEST_F(Run, LinesOfRanksDoNotMix)
{
    auto r =
        run({"-n", "4"}, "i=0; while [ $i -lt 2000 ]; do echo \"line $i of $RANK and some more "
                         "text\"; i=$((i+1)); done");
    ASSERT_EQ(r.code, 0);
    std::vector<int> next(4, 0);
    for (auto &line : lines_of(r.out)) {
        int rank = line[1] - '0';
        ASSERT_TRUE(rank >= 0 && rank < 4) << line;
        ASSERT_EQ(line, "[" + std::to_string(rank) + "] line " + std::to_string(next[rank]++) +
                            " of " + std::to_string(rank) + " and some more text");
    }
    EXPECT_EQ(next, std::vector<int>(4, 2000));
}

TEST_F(Run, SlowReaderGetsEverything)
{
    Command command(run_args({"-n", "2"}, "head -c 4000000 /dev/zero | tr '\\0' '\\n'"));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    auto r = command.wait();
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(count_of(r.out, "\n"), 8000000);
}

TEST_F(Run, OutputToFile)
{
    CommandOptions with;
    with.out_path = dir.path("out");
    EXPECT_EQ(run({"-n", "2"}, "echo $RANK", with).code, 0);
    std::string text = read_file(dir.path("out"));
    EXPECT_TRUE(text == "[0] 0\n[1] 1\n" || text == "[1] 1\n[0] 0\n") << text;
    with.out_path = "/dev/null";
    EXPECT_EQ(run({"-n", "2"}, "echo $RANK", with).code, 0);
}

TEST_F(Run, FullDiskIsAnErrorButDoesNotStopTheRanks)
{
    CommandOptions with;
    with.out_path = "/dev/full";
    auto r = run({"-n", "2"}, "echo $RANK; sleep 0.2; echo ok > " + dir.path("ok"), with);
    EXPECT_EQ(r.code, 125);
    EXPECT_NE(r.err.find("No space left"), std::string::npos) << r.err;
    EXPECT_TRUE(exists(dir.path("ok")));
}

TEST_F(Run, GoneReaderEndsTheJobQuietly)
{
    CommandOptions with;
    with.close_out = true;
    auto r = run({"-n", "2"}, "while :; do echo yes; done", with);
    EXPECT_EQ(r.code, 128 + SIGPIPE);
    EXPECT_EQ(r.err, "");
}

TEST_F(Run, InputGoesToRankZero)
{
    CommandOptions with;
    with.input = "for zero\n";
    auto r = run({"-n", "2", "-q"}, "read x; echo \"<$x>\"", with);
    auto lines = lines_of(r.out);
    std::sort(lines.begin(), lines.end());
    EXPECT_EQ(lines, (Args{"[0] <for zero>", "[1] <>"}));
    EXPECT_EQ(run({"-n", "1"}, "cat", with).out, "for zero\n");
    EXPECT_EQ(run({}, "cat", with).out, "for zero\n");
}

TEST_F(Run, OneRankFailsTheOthersEnd)
{
    CommandResult r;
    double s = seconds_of([&] {
        r = run({"-n", "4"},
                "echo pid $$; if [ $RANK = 2 ]; then sleep 0.3; exit 3; fi; sleep 100 & "
                "echo pid $!; wait");
    });
    EXPECT_EQ(r.code, 3);
    EXPECT_LT(s, 30);
    EXPECT_NE(r.err.find("rank 2 (process "), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(") exited with status 3; ending the other 3\n"), std::string::npos)
        << r.err;
    auto pids = numbers(r.out, "pid");
    EXPECT_EQ(pids.size(), 7u);
    for (pid_t pid : pids)
        EXPECT_TRUE(gone(pid)) << pid;
}

TEST_F(Run, KilledRankIsNamed)
{
    auto r = run({"-n", "3"}, "test $RANK != 1 || kill -KILL $$; sleep 100");
    EXPECT_EQ(r.code, 137);
    EXPECT_NE(r.err.find("rank 1 (process "), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("was killed by signal 9 (SIGKILL); ending the other 2"), std::string::npos)
        << r.err;
}

TEST_F(Run, RankThatIgnoresSigtermIsKilledAfterTheGrace)
{
    CommandResult r;
    double s = seconds_of([&] {
        r = run({"-n", "2", "--grace", "0.3"}, "if [ $RANK = 0 ]; then sleep 0.5; exit 4; fi; "
                                               "trap '' TERM; while :; do sleep 0.1; done");
    });
    EXPECT_EQ(r.code, 4);
    EXPECT_LT(s, 30);
    EXPECT_NE(r.err.find("1 rank did not end within 0.3 s; killed"), std::string::npos) << r.err;
}

TEST_F(Run, StoppedRankEndsToo)
{
    auto r = run({"-n", "2"}, "if [ $RANK = 0 ]; then sleep 0.3; exit 4; fi; kill -STOP $$");
    EXPECT_EQ(r.code, 4);
}

TEST_F(Run, LaterEndOfOneRankDoesNotEndTheOthers)
{
    auto r = run({"-n", "2"}, "test $RANK = 0 && exit 0; sleep 0.5; echo late");
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.out, "[1] late\n");
}

TEST_F(Run, TimeoutEndsTheJob)
{
    auto r = run({"-n", "2", "--timeout", "0.3"}, "sleep 100");
    EXPECT_EQ(r.code, 124);
    EXPECT_NE(r.err.find("not finished after 0.3 s; ending 2 ranks"), std::string::npos) << r.err;
    EXPECT_EQ(run({"--timeout", "0.3"}, "sleep 100").code, 124);
    EXPECT_EQ(run({"-n", "2", "--timeout", "50"}, "exit 0").code, 0);
}

TEST_F(Run, LeftBehindProcessesAreEnded)
{
    auto r = run({"-n", "2"}, "sleep 100 & echo pid $!");
    EXPECT_EQ(r.code, 0) << r.err;
    for (pid_t pid : numbers(r.out, "pid"))
        EXPECT_TRUE(gone(pid));
    /* even if they resist */
    r = run({"-n", "2", "--grace", "0.2"},
            "(trap '' TERM; while :; do sleep 0.1; done) & echo pid $!");
    EXPECT_EQ(r.code, 0) << r.err;
    for (pid_t pid : numbers(r.out, "pid"))
        EXPECT_TRUE(gone(pid));
}

TEST_F(Run, LastWordsOfABackgroundProcessAreKept)
{
    auto r = run({"-n", "2"}, "(sleep 0.2; echo last) &");
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(count_of(r.out, "last\n"), 2);
}

TEST_F(Run, TraceDirectory)
{
    std::string trace = dir.path("a/b/trace");
    auto r = run({"-n", "2", "-o", trace}, "echo x > $BRIGADE_TRACE/rank-$RANK.ring");
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(lines_of(r.err).size(), 1u);
    EXPECT_NE(r.err.find("; trace in " + trace + "; next: brigade report " + trace + "\n"),
              std::string::npos)
        << r.err;
    EXPECT_EQ(read_file(trace + "/rank-1.ring"), "x\n");

    r = run({"-n", "1", "-o", trace}, "echo ran");
    EXPECT_EQ(r.code, 125);
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("--force"), std::string::npos) << r.err;
    EXPECT_EQ(read_file(trace + "/rank-0.ring"), "x\n");

    write_file(trace + "/notes.txt", "mine");
    r = run({"-n", "1", "-o", trace, "--force"}, "echo y > $BRIGADE_TRACE/rank-$RANK.ring");
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(read_file(trace + "/rank-0.ring"), "y\n");
    EXPECT_FALSE(exists(trace + "/rank-1.ring")); /* it would spoil the report */
    EXPECT_EQ(read_file(trace + "/notes.txt"), "mine");

    r = run({"-n", "1", "-o", dir.path("none")}, "exit 0");
    EXPECT_NE(r.err.find("no trace was written to " + dir.path("none")), std::string::npos);
}

TEST_F(Run, TraceDirectoryInsideAnotherLauncher)
{
    CommandOptions with;
    with.env = {{"RANK", "1"}};
    write_file(dir.path("rank-0.ring"), "of rank 0");
    EXPECT_EQ(run({"-o", dir.path()}, "exit 0", with).code, 0);
    EXPECT_EQ(run({"-o", dir.path(), "--force"}, "exit 0", with).code, 0);
    EXPECT_EQ(read_file(dir.path("rank-0.ring")), "of rank 0");
    write_file(dir.path("rank-1.ring"), "old");
    EXPECT_EQ(run({"-o", dir.path()}, "exit 0", with).code, 125);
    EXPECT_EQ(run({"-o", dir.path(), "--force"}, "exit 0", with).code, 0);
    EXPECT_FALSE(exists(dir.path("rank-1.ring")));
}

TEST_F(Run, TraceDirectoryThatCannotBe)
{
    write_file(dir.path("file"), "");
    for (const std::string &bad :
         {dir.path("file"), dir.path("file/sub"), std::string("/proc/x")}) {
        auto r = run({"-n", "1", "-o", bad}, "echo ran");
        EXPECT_EQ(r.code, 125) << bad;
        EXPECT_EQ(r.out, "");
        EXPECT_NE(r.err.find(bad), std::string::npos) << r.err;
    }
}

TEST_F(Run, DryRunPrintsWhatAShellCanRun)
{
    auto r = brigade({"run", "-n", "2", "-o", dir.path("a b"), "--dry-run", "--", "/bin/sh", "-c",
                      "echo \"$0 $RANK/$WORLD_SIZE $BRIGADE_TRACE\"", "it's"});
    EXPECT_EQ(r.code, 0);
    EXPECT_FALSE(exists(dir.path("a b")));
    auto lines = lines_of(r.out);
    ASSERT_EQ(lines.size(), 2u);
    for (size_t i = 0; i < 2; i++) {
        auto shell = Command({"/bin/sh", "-c", lines[i]}).wait();
        EXPECT_EQ(shell.out, "it's " + std::to_string(i) + "/2 " + dir.path("a b") + "\n");
    }
}

/* For the report: who died first. Nothing is left of a run that went well, was ended from outside
 * or had no ranks of ours, nor of an earlier one. */
TEST_F(Run, HowTheRanksOfAFailedJobEndedIsLeftBesideTheirTraces)
{
    const std::string trace = dir.path("trace"), ends = trace + "/run.json";
    auto r = run({"-n", "3", "-o", trace}, "test $RANK != 1 || exit 3; exec sleep 100");
    EXPECT_EQ(r.code, 3);
    Json json(read_file(ends));
    ASSERT_EQ(json_array_size(json["ranks"]), 3u);
    for (size_t rank = 0; rank < 3; rank++) {
        json_t *end = json_array_get(json["ranks"], rank);
        EXPECT_EQ(integer(end, "rank"), (int64_t)rank);
        EXPECT_EQ(json_is_true(json_object_get(end, "first")), rank == 1);
        EXPECT_EQ(json_is_true(json_object_get(end, "ended_by_run")), rank != 1);
        EXPECT_EQ(integer(end, rank == 1 ? "exit_status" : "signal"), rank == 1 ? 3 : SIGTERM);
        EXPECT_TRUE(json_is_null(json_object_get(end, rank == 1 ? "signal" : "exit_status")));
    }
    EXPECT_FALSE(exists(ends + ".tmp"));
    EXPECT_EQ(run({"-n", "1", "-o", trace}, "exit 0").code, 0);
    EXPECT_FALSE(exists(ends));
    EXPECT_EQ(run({"-n", "2", "-o", trace, "--timeout", "0.2"}, "exec sleep 100").code, 124);
    EXPECT_FALSE(exists(ends));
    EXPECT_EQ(run({"-o", trace}, "exit 3").code, 3);
    EXPECT_FALSE(exists(ends));
    write_file(ends, "old");
    EXPECT_EQ(run({"-n", "1", "-o", trace}, "kill -KILL $$").code, 137);
    EXPECT_NE(read_file(ends).find("\"signal\": 9"), std::string::npos) << read_file(ends);
}

TEST_F(Run, TakenPort)
{
    /* every rank of one job uses one port; a job may not be given a port that is taken */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {};
    address.sin_family = AF_INET;
    ASSERT_EQ(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    socklen_t size = sizeof address;
    ASSERT_EQ(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    auto r = run({"-n", "1", "--port", std::to_string(ntohs(address.sin_port))}, "echo ran");
    EXPECT_EQ(r.code, 125);
    EXPECT_NE(r.err.find("is not free"), std::string::npos) << r.err;
    close(fd);
}

TEST_F(Run, ManyRanks)
{
    auto r = run({"-n", "40"}, "echo $RANK");
    EXPECT_EQ(r.code, 0) << r.err;
    auto lines = lines_of(r.out);
    EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 40u);
}
