/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the command as a user would, in a process of its own. */
#ifndef BRIGADE_TESTS_COMMAND_H
#define BRIGADE_TESTS_COMMAND_H

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

struct CommandOptions {
    std::string input;                      /* of standard input, which then ends */
    std::map<std::string, std::string> env; /* on top of a small fixed environment */
    std::string out_path;                   /* standard output goes here instead */
    bool close_out = false;                 /* the reader of standard output has gone */
};

struct CommandResult {
    int code = -1; /* 128+n for signal n */
    std::string out, err;
};

/* A started command. Its output is collected by wait() and until(). */
class Command
{
  public:
    explicit Command(std::vector<std::string> args, CommandOptions options = {});
    ~Command(); /* kills what is still running */
    Command(const Command &) = delete;

    pid_t pid() const
    {
        return pid_;
    }
    void signal(int sig) const;
    /* Reads until standard output holds `text` `times` times; false after a while. */
    bool until(const std::string &text, int times = 1, int timeout_ms = 20000);
    /* Waits for the end of process and output; code 999 when it takes too long. */
    CommandResult wait(int timeout_ms = 60000);
    const std::string &out() const
    {
        return result_.out;
    }

  private:
    bool pump(const std::function<bool()> &done, int timeout_ms);

    pid_t pid_ = -1;
    int out_ = -1, err_ = -1;
    bool exited_ = false;
    CommandResult result_;
};

/* brigade with these arguments. */
CommandResult brigade(std::vector<std::string> args, CommandOptions options = {});
std::vector<std::string> brigade_args(std::vector<std::string> args);

/* Whether the process is gone, or goes within the time. */
bool gone(pid_t pid, int timeout_ms = 10000);

/* Orphans of what is started come to this process, which can thus tell that none are left. */
void adopt_orphans();
bool no_children_left(int timeout_ms = 5000);

std::vector<std::string> lines_of(const std::string &text);
int count_of(const std::string &text, const std::string &what);

/* A directory that goes away with the object. */
class TempDir
{
  public:
    TempDir();
    ~TempDir();
    std::string path(const std::string &name = "") const;

  private:
    std::string path_;
};

void write_file(const std::string &path, const std::string &text);
std::string read_file(const std::string &path);
bool exists(const std::string &path);

#endif
