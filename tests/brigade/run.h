/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run with ranks that are small shell scripts. */
#ifndef BRIGADE_TESTS_RUN_H
#define BRIGADE_TESTS_RUN_H

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/brigade/command.h"

using Args = std::vector<std::string>;

inline Args run_words(const Args &options, const std::string &script)
{
    Args words = {"run"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    return words;
}

inline CommandResult run(const Args &options, const std::string &script, CommandOptions with = {})
{
    return brigade(run_words(options, script), with);
}

inline Args run_args(const Args &options, const std::string &script)
{
    return brigade_args(run_words(options, script));
}

/* The values of "NAME <number>" in the output. */
inline std::vector<pid_t> numbers(const std::string &text, const std::string &name)
{
    std::vector<pid_t> found;
    for (size_t at = 0; (at = text.find(name + " ", at)) != std::string::npos; at++)
        found.push_back((pid_t)std::stol(text.substr(at + name.size() + 1)));
    return found;
}

inline double seconds_of(const std::function<void()> &work)
{
    auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Run : public testing::Test
{
  protected:
    void SetUp() override
    {
        adopt_orphans();
    }
    /* Whatever a test did, nothing of it may be left: no rank, no guard, no zombie. */
    void TearDown() override
    {
        EXPECT_TRUE(no_children_left());
    }
    TempDir dir;
};

#endif
