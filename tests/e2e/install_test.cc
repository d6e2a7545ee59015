/* SPDX-License-Identifier: Apache-2.0 */
/* An installed copy is what users get: build against it, run it, look at what it holds. */
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/brigade/command.h"

namespace fs = std::filesystem;

namespace
{
CommandResult shell(const std::string &script, CommandOptions options = {})
{
    return Command({"/bin/sh", "-ec", script}, std::move(options)).wait(120000);
}

std::string in_quotes(const std::string &text)
{
    return "'" + text + "'";
}

/* Installed once for all tests, into a directory that stands for the root of a machine. */
class Install : public testing::Test
{
  protected:
    static void SetUpTestSuite()
    {
        root = new TempDir;
        installed = shell("meson install --no-rebuild -C " + in_quotes(BRIGADE_BUILD_ROOT) +
                          " --destdir " + in_quotes(root->path()));
    }
    static void TearDownTestSuite()
    {
        delete root;
    }
    void SetUp() override
    {
        ASSERT_EQ(installed.code, 0) << installed.out << installed.err;
    }
    /* The one installed file of this name; "" if there is none. */
    static std::string find(const std::string &name)
    {
        for (auto &entry : fs::recursive_directory_iterator(root->path()))
            if (entry.path().filename() == name && !entry.is_directory())
                return entry.path();
        return "";
    }
    /* pkg-config, told that the prefix is under the root. */
    static std::string pkg_config(const std::string &args)
    {
        std::string dir = fs::path(find("brigade.pc")).parent_path();
        auto prefix =
            shell("PKG_CONFIG_PATH=" + in_quotes(dir) + " pkg-config --variable=prefix brigade");
        EXPECT_EQ(prefix.code, 0) << prefix.err;
        std::string path = prefix.out.substr(0, prefix.out.find('\n'));
        return "$(PKG_CONFIG_PATH=" + in_quotes(dir) +
               " pkg-config --define-variable=prefix=" + in_quotes(root->path() + path) + " " +
               args + " brigade)";
    }
    static TempDir *root;
    static CommandResult installed;
};

TempDir *Install::root;
CommandResult Install::installed;

void build_and_run(const std::string &compiler, const std::string &flags, const std::string &lib)
{
    TempDir work;
    auto built = shell(compiler + " -Wall -Wextra -Werror " + BRIGADE_PROGRAM + " -o " +
                       in_quotes(work.path("program")) + " " + flags + " -lm");
    ASSERT_EQ(built.code, 0) << built.err;
    CommandOptions with;
    with.env = {{"LD_LIBRARY_PATH", fs::path(lib).parent_path()}};
    auto ran = Command({work.path("program")}, with).wait();
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out, std::string("brigade ") + BRIGADE_EXPECTED_VERSION + ": learned\n");
    /* two ranks of it, started by the installed command's twin */
    auto ranks = brigade({"run", "-q", "-n", "2", "--", work.path("program")}, with);
    EXPECT_EQ(ranks.code, 0) << ranks.err;
    EXPECT_EQ(count_of(ranks.out, ": learned\n"), 2) << ranks.out << ranks.err;
}
} // namespace

TEST_F(Install, ProgramInC)
{
    build_and_run(std::string(BRIGADE_CC) + " -std=c11", pkg_config("--cflags --libs"),
                  find("libbrigade.so.1"));
}

TEST_F(Install, ProgramInCxx)
{
    build_and_run(std::string(BRIGADE_CXX) + " -std=c++17 -x c++", pkg_config("--cflags --libs"),
                  find("libbrigade.so.1"));
}

TEST_F(Install, PkgConfigKnowsTheVersion)
{
    EXPECT_EQ(shell("echo " + pkg_config("--modversion")).out,
              std::string(BRIGADE_EXPECTED_VERSION) + "\n");
}

TEST_F(Install, LibraryHasAVersionedName)
{
    std::string lib = find("libbrigade.so");
    ASSERT_NE(lib, "");
    ASSERT_TRUE(fs::is_symlink(lib));
    ASSERT_TRUE(fs::is_symlink(lib + ".1"));
    EXPECT_EQ(fs::canonical(lib), fs::canonical(lib + "." + BRIGADE_EXPECTED_VERSION));
    auto r = shell("readelf -d " + in_quotes(lib));
    EXPECT_NE(r.out.find("Library soname: [libbrigade.so.1]"), std::string::npos) << r.out;
    EXPECT_EQ(r.out.find("RUNPATH"), std::string::npos) << r.out;
    for (const char *never : {"cuda", "nccl"}) /* loaded by name at run time */
        EXPECT_EQ(r.out.find(never), std::string::npos) << r.out;
}

TEST_F(Install, CommandManualsAndCompletions)
{
    auto version = Command({root->path() + BRIGADE_PREFIX + "/bin/brigade", "--version"}).wait();
    EXPECT_EQ(version.out, std::string("brigade ") + BRIGADE_EXPECTED_VERSION + "\n");
    for (const char *name : {"brigade.1", "brigade-run.1", "_brigade", "brigade.fish"}) {
        std::string path = find(name);
        ASSERT_NE(path, "") << name;
        EXPECT_GT(fs::file_size(path), 100u) << name;
    }
    EXPECT_NE(read_file(find("brigade-run.1")).find("BRIGADE\\-RUN"), std::string::npos);
}

TEST_F(Install, EveryPublicHeaderAndNoOther)
{
    /* Those of the host engine's own NCCL and CUDA names are not on the usual search path. */
    std::vector<std::string> source = {"brigade-host/cuda_runtime_api.h", "brigade-host/nccl.h"};
    std::vector<std::string> copied;
    for (auto &entry : fs::directory_iterator(fs::path(BRIGADE_SOURCE_ROOT) / "include/brigade"))
        source.push_back("brigade/" + entry.path().filename().string());
    for (auto &entry : fs::recursive_directory_iterator(root->path()))
        if (entry.path().extension() == ".h")
            copied.push_back(
                (entry.path().parent_path().filename() / entry.path().filename()).string());
    std::sort(source.begin(), source.end());
    std::sort(copied.begin(), copied.end());
    EXPECT_EQ(source, copied);
}
