/* SPDX-License-Identifier: Apache-2.0 */
/* Help, manual pages and completions say the same about every command. */
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/brigade/command.h"

namespace
{
using Args = std::vector<std::string>;

/* First words of the indented lines under `title`. */
Args section(const std::string &help, const std::string &title)
{
    Args words;
    bool inside = false;
    for (auto &line : lines_of(help)) {
        if (line == title)
            inside = true;
        else if (line.empty())
            inside = false;
        else if (inside && line.size() > 2 && line[2] != ' ')
            words.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    return words;
}

/* Every command as its words: {"plan"}, {"bench", "collective"}; {} is brigade itself. */
std::vector<Args> all_commands()
{
    std::vector<Args> commands = {{}};
    std::string help = brigade({"--help"}).out;
    for (auto &word : section(help, "Commands:"))
        commands.push_back({word});
    for (auto &word : section(help, "Benchmarks (brigade bench BENCHMARK):"))
        commands.push_back({"bench", word});
    return commands;
}

/* "--name" and "-n" of the lines that introduce options. */
Args options_of(const std::string &help)
{
    Args options;
    for (auto &line : lines_of(help.substr(help.find("\nOptions:\n")))) {
        size_t dash = line.find("--");
        if (dash != 6 || line.compare(0, 2, "  "))
            continue;
        options.push_back(line.substr(dash, line.find(' ', dash) - dash));
        if (line[2] == '-')
            options.push_back(line.substr(2, 2));
    }
    return options;
}

std::string unescaped(std::string troff)
{
    for (size_t at; (at = troff.find("\\-")) != std::string::npos;)
        troff.erase(at, 1);
    return troff;
}

std::string joined(const Args &words)
{
    std::string text;
    for (auto &word : words)
        text += (text.empty() ? "" : " ") + word;
    return text;
}

Args with(Args front, const Args &back)
{
    front.insert(front.end(), back.begin(), back.end());
    return front;
}
} // namespace

TEST(Tables, HelpExistsInThreeWays)
{
    auto commands = all_commands();
    ASSERT_GE(commands.size(), 6u);
    for (auto &command : commands) {
        auto help = brigade(with(command, {"--help"}));
        EXPECT_EQ(help.code, 0) << joined(command);
        EXPECT_EQ(help.err, "") << joined(command);
        EXPECT_EQ(brigade(with(command, {"-h"})).out, help.out);
        std::string said = brigade(with({"help"}, command)).out; /* bench: also a list */
        EXPECT_EQ(said.substr(0, help.out.size()), help.out) << joined(command);
        for (auto &line : lines_of(help.out))
            EXPECT_LE(line.size(), 100u) << line;
        EXPECT_GE(options_of(help.out).size(), 3u) << help.out; /* --color, --help, -h */
    }
}

TEST(Tables, ManualPagesNameEveryOption)
{
    for (auto &command : all_commands()) {
        auto options = options_of(brigade(with(command, {"--help"})).out);
        auto man = brigade(with({"help", "--man"}, command));
        EXPECT_EQ(man.code, 0) << joined(command);
        EXPECT_NE(man.out.find(".TH BRIGADE"), std::string::npos);
        for (const char *part : {"NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS"})
            EXPECT_NE(man.out.find(std::string(".SH ") + part), std::string::npos) << part;
        std::string text = unescaped(man.out);
        for (auto &name : options)
            EXPECT_NE(text.find("\\fB" + name + "\\fR"), std::string::npos)
                << joined(command) << " " << name;
    }
}

TEST(Tables, ManualPagesAreCleanTroff)
{
    if (access("/usr/bin/groff", X_OK))
        GTEST_SKIP() << "groff is not installed";
    for (auto &command : all_commands()) {
        auto r = Command({"/bin/sh", "-c",
                          std::string(BRIGADE_COMMAND) + " help --man " + joined(command) +
                              " | groff -man -Tascii -ww"})
                     .wait();
        EXPECT_EQ(r.code, 0);
        EXPECT_EQ(r.err, "") << joined(command);
    }
}

TEST(Tables, CompletionsNameEveryOption)
{
    std::string bash = brigade({"completion", "bash"}).out;
    std::string zsh = brigade({"completion", "zsh"}).out;
    std::string fish = brigade({"completion", "fish"}).out;
    for (auto &command : all_commands()) {
        auto options = options_of(brigade(with(command, {"--help"})).out);
        size_t at = bash.find("    '" + joined(command) + "')\n");
        ASSERT_NE(at, std::string::npos) << joined(command);
        std::string words = bash.substr(at, bash.find(" ;;\n    ", bash.find("words='", at)) - at);
        for (auto &name : options) {
            EXPECT_NE(words.find(" " + name), std::string::npos) << joined(command) << " " << name;
            EXPECT_NE(zsh.find(name), std::string::npos) << joined(command) << " " << name;
            std::string in_fish =
                name[1] == '-' ? " -l " + name.substr(2) + " " : " -s " + name.substr(1) + " ";
            EXPECT_NE(fish.find(in_fish), std::string::npos) << joined(command) << " " << name;
        }
        if (!command.empty()) {
            EXPECT_NE(zsh.find("'" + command.back() + ":"), std::string::npos);
            EXPECT_NE(fish.find(" -a " + command.back() + " "), std::string::npos);
        }
    }
}

TEST(Tables, BashCompletionWorks)
{
    auto complete = [](const std::string &words, int at) {
        return Command({"/bin/bash", "-c",
                        std::string("source <(") + BRIGADE_COMMAND +
                            " completion bash); COMP_WORDS=(" + words + "); COMP_CWORD=" +
                            std::to_string(at) + "; _brigade; echo \"${COMPREPLY[*]}\""})
            .wait();
    };
    EXPECT_EQ(complete("brigade ru", 1).out, "run\n");
    EXPECT_EQ(complete("brigade run --ti", 2).out, "--timeout\n");
    EXPECT_EQ(complete("brigade --vers", 1).out, "--version\n");
    EXPECT_EQ(complete("brigade run --color a", 3).out, "auto always\n");
    EXPECT_EQ(complete("brigade completion z", 2).out, "zsh\n");
    EXPECT_EQ(complete("brigade run --ti", 2).err, "");
}

TEST(Tables, VersionAndUsage)
{
    std::string version = brigade({"--version"}).out;
    EXPECT_EQ(version.compare(0, 8, "brigade "), 0);
    EXPECT_EQ(brigade({"version"}).out, version);
    EXPECT_EQ(brigade({"version", "--json"}).out,
              "{\"schema\":1,\"version\":\"" + version.substr(8, version.size() - 9) + "\"}\n");
    for (const Args &bad :
         {Args{}, Args{"nonsense"}, Args{"--nonsense"}, Args{"bench"}, Args{"bench", "nonsense"},
          Args{"completion"}, Args{"completion", "tcsh"}, Args{"help", "nonsense"},
          Args{"version", "extra"}, Args{"help", "run", "extra"}}) {
        auto r = brigade(bad);
        EXPECT_EQ(r.code, 2) << joined(bad);
        EXPECT_EQ(r.out, "") << joined(bad);
        EXPECT_NE(r.err, "") << joined(bad);
    }
    EXPECT_EQ(brigade({"reprt"}).err.find("brigade: unknown command 'reprt'"), 0u);
    EXPECT_EQ(
        brigade({"verzion"}).err,
        "brigade: unknown command 'verzion'; did you mean 'version'? (see 'brigade --help')\n");
}

TEST(Tables, OutputThatCannotBeWritten)
{
    CommandOptions with;
    with.out_path = "/dev/full";
    for (const Args &args : {Args{"--help"}, Args{"version"}, Args{"completion", "bash"}}) {
        auto r = brigade(args, with);
        EXPECT_EQ(r.code, 3) << joined(args);
        EXPECT_NE(r.err.find("cannot write to standard output: No space left"), std::string::npos)
            << r.err;
    }
    CommandOptions gone;
    gone.close_out = true;
    auto r = brigade({"completion", "bash"}, gone);
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.err, "");
    /* a closed descriptor is not taken for another file */
    r = Command({"/bin/sh", "-c", std::string(BRIGADE_COMMAND) + " version >&-"}).wait();
    EXPECT_EQ(r.code, 3);
    EXPECT_NE(r.err.find("Bad file descriptor"), std::string::npos) << r.err;
}
