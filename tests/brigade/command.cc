/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/brigade/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace
{
using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point end)
{
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return left > 0 ? (int)left : 0;
}

/* Reads what there is; closes at the end of file. */
void drain(int &fd, std::string &text)
{
    char data[65536];
    ssize_t n = read(fd, data, sizeof data);
    if (n > 0) {
        text.append(data, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        close(fd);
        fd = -1;
    }
}

void close_fd(int &fd)
{
    if (fd >= 0)
        close(fd);
    fd = -1;
}
} // namespace

Command::Command(std::vector<std::string> args, CommandOptions options)
{
    int out[2], err[2], in = -1;
    if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
        abort();
    FILE *input = tmpfile(); /* a file: writing it cannot block us */
    fwrite(options.input.data(), 1, options.input.size(), input);
    rewind(input);
    in = fileno(input);
    int out_end = out[1];
    if (!options.out_path.empty())
        out_end = open(options.out_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (options.close_out)
        close_fd(out[0]);
    std::vector<std::string> env = {"LC_ALL=C"};
    for (const char *name : {"PATH", "HOME", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                             "LSAN_OPTIONS", "TSAN_OPTIONS"})
        if (getenv(name))
            env.push_back(std::string(name) + "=" + getenv(name));
    for (auto &[name, value] : options.env)
        env.push_back(name + "=" + value);
    std::vector<char *> argv, envp;
    for (auto &arg : args)
        argv.push_back(arg.data());
    for (auto &item : env)
        envp.push_back(item.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
        dup2(in, 0);
        dup2(out_end, 1);
        dup2(err[1], 2);
        setsid(); /* no terminal, and no signals meant for the test */
        for (int sig :
             {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) /* a test in the background ignores some */
            ::signal(sig, SIG_DFL);
        execve(argv[0], argv.data(), envp.data());
        _exit(127);
    }
    fclose(input);
    if (out_end != out[1])
        close(out_end);
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
}

Command::~Command()
{
    if (!exited_) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    close_fd(out_);
    close_fd(err_);
}

void Command::signal(int sig) const
{
    kill(pid_, sig);
}

bool Command::pump(const std::function<bool()> &done, int timeout_ms)
{
    auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (!done()) {
        if (!left_ms(end))
            return false;
        struct pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
        poll(fds, 2, left_ms(end) < 50 ? left_ms(end) : 50);
        if (out_ >= 0 && fds[0].revents)
            drain(out_, result_.out);
        if (err_ >= 0 && fds[1].revents)
            drain(err_, result_.err);
        int status;
        if (!exited_ && waitpid(pid_, &status, WNOHANG) == pid_) {
            exited_ = true;
            result_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        if (out_ < 0 && err_ < 0 && !exited_)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

bool Command::until(const std::string &text, int times, int timeout_ms)
{
    auto found = [&] { return count_of(result_.out, text) >= times; };
    pump([&] { return found() || (exited_ && out_ < 0); }, timeout_ms);
    return found();
}

CommandResult Command::wait(int timeout_ms)
{
    if (!pump([&] { return exited_ && out_ < 0 && err_ < 0; }, timeout_ms))
        result_.code = 999;
    return result_;
}

std::vector<std::string> brigade_args(std::vector<std::string> args)
{
    args.insert(args.begin(), BRIGADE_COMMAND);
    return args;
}

CommandResult brigade(std::vector<std::string> args, CommandOptions options)
{
    return Command(brigade_args(std::move(args)), std::move(options)).wait();
}

bool gone(pid_t pid, int timeout_ms)
{
    auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
        waitpid(pid, nullptr, WNOHANG); /* it may have become our child */
        if (kill(pid, 0) && errno == ESRCH)
            return true;
        if (!left_ms(end))
            return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

void adopt_orphans()
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool no_children_left(int timeout_ms)
{
    auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (;;) {
        pid_t pid = waitpid(-1, nullptr, WNOHANG);
        if (pid < 0)
            return errno == ECHILD;
        if (!left_ms(end))
            return false;
        if (pid == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

std::vector<std::string> lines_of(const std::string &text)
{
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
        lines.push_back(line);
    return lines;
}

int count_of(const std::string &text, const std::string &what)
{
    int count = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
        count++;
    return count;
}

TempDir::TempDir()
{
    std::string name = (std::filesystem::temp_directory_path() / "brigade-test-XXXXXX").string();
    if (!mkdtemp(name.data()))
        abort();
    path_ = std::filesystem::canonical(name).string();
}

TempDir::~TempDir()
{
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::path(const std::string &name) const
{
    return name.empty() ? path_ : path_ + "/" + name;
}

void write_file(const std::string &path, const std::string &text)
{
    std::ofstream(path, std::ios::binary) << text;
}

std::string read_file(const std::string &path)
{
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

bool exists(const std::string &path)
{
    return std::filesystem::exists(path);
}
