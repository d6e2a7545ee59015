/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run on a terminal: input, Ctrl-C, Ctrl-D. */
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/brigade/command.h"

namespace
{
/* brigade in the foreground of a terminal of its own. */
class Terminal
{
  public:
    explicit Terminal(std::vector<std::string> args)
    {
        args = brigade_args(std::move(args));
        std::vector<char *> argv;
        for (auto &arg : args)
            argv.push_back(arg.data());
        argv.push_back(nullptr);
        pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
        if (pid_ == 0) {
            execv(argv[0], argv.data());
            _exit(127);
        }
    }
    ~Terminal()
    {
        close(fd_);
        if (pid_ > 0)
            waitpid(pid_, nullptr, 0);
    }
    void type(const std::string &text)
    {
        ASSERT_EQ(write(fd_, text.data(), text.size()), (ssize_t)text.size());
    }
    bool until(const std::string &text, int times = 1)
    {
        auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (count_of(output, text) < times) {
            struct pollfd fd = {fd_, POLLIN, 0};
            char data[4096];
            if (std::chrono::steady_clock::now() > end)
                return false;
            if (poll(&fd, 1, 100) != 1)
                continue;
            ssize_t n = read(fd_, data, sizeof data);
            if (n <= 0) /* EIO: nobody has the terminal open any more */
                return count_of(output, text) >= times;
            output.append(data, (size_t)n);
        }
        return true;
    }
    int finish()
    {
        int status;
        until("the end of the output, as this never comes");
        waitpid(pid_, &status, 0);
        pid_ = -1;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    std::string output;

  private:
    int fd_ = -1;
    pid_t pid_ = -1;
};

std::vector<std::string> run(const char *ranks, const char *script)
{
    return {"run", "-q", "-n", ranks, "--", "/bin/sh", "-c", script};
}
} // namespace

TEST(RunOnTerminal, TypedLinesGoToRankZero)
{
    Terminal terminal(run("2", "read x; echo \"<$RANK $x>\"; read y || echo no more"));
    ASSERT_TRUE(terminal.until("no more")) << terminal.output; /* rank 1 has no input */
    terminal.type("hello\n");
    ASSERT_TRUE(terminal.until("[0] <0 hello>")) << terminal.output;
    terminal.type("\x04"); /* Ctrl-D */
    EXPECT_EQ(terminal.finish(), 0) << terminal.output;
    EXPECT_EQ(count_of(terminal.output, "no more"), 2) << terminal.output;
}

TEST(RunOnTerminal, InterruptReachesEveryRankOnce)
{
    for (const char *ranks : {"1", "2"}) {
        int n = atoi(ranks);
        Terminal terminal(run(ranks, "trap 'echo got' INT; echo ready; i=0; "
                                     "while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done"));
        ASSERT_TRUE(terminal.until("ready", n)) << terminal.output;
        terminal.type("\x03"); /* Ctrl-C */
        EXPECT_EQ(terminal.finish(), 0) << terminal.output;
        EXPECT_EQ(count_of(terminal.output, "got"), n) << terminal.output;
    }
}

TEST(RunOnTerminal, InterruptEndsRanks)
{
    for (const char *ranks : {"1", "3"}) {
        Terminal terminal(run(ranks, "echo ready; exec sleep 100"));
        ASSERT_TRUE(terminal.until("ready", atoi(ranks))) << terminal.output;
        terminal.type("\x03");
        EXPECT_EQ(terminal.finish(), 130) << terminal.output;
    }
}

TEST(RunOnTerminal, OneRankKeepsTheTerminal)
{
    Terminal terminal(run("1", "test -t 0 && test -t 1 && echo terminal; read x; echo \"<$x>\""));
    ASSERT_TRUE(terminal.until("terminal")) << terminal.output;
    terminal.type("typed\n");
    EXPECT_EQ(terminal.finish(), 0);
    EXPECT_EQ(count_of(terminal.output, "<typed>"), 1) << terminal.output;
}
