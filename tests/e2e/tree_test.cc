/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for source files: a licence line, and a length that can be read. */
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/brigade/command.h"

namespace fs = std::filesystem;

namespace
{
bool is_script(const fs::path &path)
{
    return path.extension().empty() && read_file(path).compare(0, 2, "#!") == 0;
}

/* Code written by hand; recorded data and texts have no licence line of ours. */
bool is_source(const fs::path &path)
{
    static const std::set<std::string> suffixes = {".c",  ".h",  ".cc",    ".cpp", ".cu",
                                                   ".py", ".sh", ".build", ".map", ".cuh"};
    return suffixes.count(path.extension()) || path.filename() == "meson_options.txt" ||
           is_script(path);
}

std::vector<fs::path> sources()
{
    std::vector<fs::path> found;
    fs::path root = BRIGADE_SOURCE_ROOT;
    auto walk = fs::recursive_directory_iterator(root);
    for (auto i = begin(walk); i != end(walk); ++i) {
        std::string name = i->path().filename();
        bool foreign = name.compare(0, 5, "build") == 0 && i.depth() == 0;
        if (i->is_directory() && (foreign || (name[0] == '.' && name != ".ci") || name == "data" ||
                                  name == "__pycache__"))
            i.disable_recursion_pending();
        else if (i->is_regular_file() && is_source(i->path()))
            found.push_back(i->path());
    }
    return found;
}
} // namespace

TEST(Tree, EverySourceFileHasItsLicenceLine)
{
    auto files = sources();
    EXPECT_GT(files.size(), 50u);
    for (auto &path : files) {
        auto lines = lines_of(read_file(path));
        bool found = false;
        for (size_t i = 0; i < lines.size() && i < 2; i++) /* a script has #! first */
            found |= lines[i].find("SPDX-License-Identifier: Apache-2.0") != std::string::npos;
        EXPECT_TRUE(found) << path;
    }
    EXPECT_NE(read_file(fs::path(BRIGADE_SOURCE_ROOT) / "LICENSE").find("Apache License"),
              std::string::npos);
}

TEST(Tree, FilesAreShortEnoughToRead)
{
    const size_t hard_limit = 900, median_limit = 300;
    std::vector<size_t> lengths;
    for (auto &path : sources()) {
        size_t length = lines_of(read_file(path)).size();
        EXPECT_LE(length, hard_limit) << path;
        lengths.push_back(length);
    }
    std::sort(lengths.begin(), lengths.end());
    EXPECT_LE(lengths[lengths.size() / 2], median_limit);
}

TEST(Tree, NothingIsLeftForLater)
{
    /* spelled apart, so that this file passes */
    std::regex marks(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X)\\b");
    for (auto &path : sources())
        for (auto &line : lines_of(read_file(path)))
            EXPECT_FALSE(std::regex_search(line, marks)) << path << ": " << line;
}
