// SPDX-License-Identifier: Apache-2.0
// Runs programs from tests: output captured, never longer than a limit, nothing left running.
#ifndef BRIGADE_TESTS_TRAIN_JOB_H
#define BRIGADE_TESTS_TRAIN_JOB_H

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/trace/temp_dir.h"

using Words = std::vector<std::string>;

struct Result {
    int code = -1; // exit status; 128 + n after signal n; -1: over the time limit
    std::string out, err;
};

// A program in a process group of its own.
class Job
{
  public:
    Job(const Words &argv, const Words &env = {})
    {
        std::vector<char *> words;
        for (const std::string &word : argv)
            words.push_back(const_cast<char *>(word.c_str()));
        words.push_back(nullptr);
        std::string out = dir_.path("out"), err = dir_.path("err");
        pid_ = fork();
        if (pid_ != 0)
            return;
        setpgid(0, 0);
        for (const std::string &setting : env) {
            size_t equals = setting.find('=');
            setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
        }
        dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
        dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
        execv(words[0], words.data());
        _exit(127);
    }
    ~Job()
    {
        if (running_) {
            kill(-pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    void signal(int number) const
    {
        kill(pid_, number);
    }

    std::string out() const
    {
        return file_read(dir_.path("out"));
    }

    Result wait(double limit_s)
    {
        Result result;
        const timespec pause = {0, 10 * 1000 * 1000};
        for (double waited = 0; waited < limit_s && running_; waited += 0.01) {
            int status;
            if (waitpid(pid_, &status, WNOHANG) == pid_) {
                running_ = false;
                result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            } else {
                nanosleep(&pause, nullptr);
            }
        }
        result.out = out();
        result.err = file_read(dir_.path("err"));
        return result;
    }

  private:
    TempDir dir_;
    pid_t pid_ = -1;
    bool running_ = true;
};

inline Words operator+(Words words, const Words &more)
{
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

inline Result run(const Words &argv, const Words &env = {}, double limit_s = 240)
{
    return Job(argv, env).wait(limit_s);
}

#endif
