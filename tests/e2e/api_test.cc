/* SPDX-License-Identifier: Apache-2.0 */
/* The public headers, and that the library exports what they declare and nothing else. */
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/brigade/command.h"

namespace fs = std::filesystem;

namespace
{
const fs::path include_dir = fs::path(BRIGADE_SOURCE_ROOT) / "include";

std::vector<fs::path> headers()
{
    std::vector<fs::path> found;
    for (auto &entry : fs::directory_iterator(include_dir / "brigade"))
        found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
}

/* Without comments and preprocessor lines. */
std::string code_of(const std::string &text)
{
    std::string code;
    for (size_t i = 0; i < text.size();) {
        if (!text.compare(i, 2, "/*")) {
            i = text.find("*/", i) + 2;
            code += ' ';
        } else if (!text.compare(i, 2, "//")) {
            i = text.find('\n', i);
        } else if (text[i] == '#' && (i == 0 || text[i - 1] == '\n')) {
            while (text[i] != '\n' || text[i - 1] == '\\')
                i++;
        } else {
            code += text[i++];
        }
    }
    return code;
}

/* The names that follow BRG_API. */
std::set<std::string> declared()
{
    std::set<std::string> names;
    std::regex function("BRG_API\\b[^;(]*?\\b([A-Za-z_]\\w*)\\s*\\(");
    for (auto &header : headers()) {
        std::string code = code_of(read_file(header));
        for (std::sregex_iterator i(code.begin(), code.end(), function), end; i != end; ++i)
            names.insert((*i)[1]);
    }
    return names;
}

/* The dynamic symbols that the library defines. */
std::set<std::string> exported(const std::string &library)
{
    std::set<std::string> names;
    auto r = Command({"/bin/sh", "-c", "nm -D --defined-only '" + library + "'"}).wait();
    EXPECT_EQ(r.code, 0) << r.err;
    for (auto &line : lines_of(r.out)) {
        std::string name = line.substr(line.rfind(' ') + 1);
        bool version = line.find(" A ") != std::string::npos; /* the version's own name */
        if (!version)
            names.insert(name.substr(0, name.find('@')));
    }
    return names;
}

std::string difference(const std::set<std::string> &a, const std::set<std::string> &b)
{
    std::string names;
    for (auto &name : a)
        if (!b.count(name))
            names += name + " ";
    return names;
}

void expect_compiles(const std::string &compiler, const fs::path &header, const std::string &suffix)
{
    TempDir work;
    std::string unit = work.path("unit." + suffix);
    /* twice: it must bear being included again */
    std::string line = "#include <brigade/" + header.filename().string() + ">\n";
    write_file(unit, line + line + "int brigade_test_unit;\n");
    auto r = Command({"/bin/sh", "-c",
                      compiler + " -Wall -Wextra -pedantic -Werror -fsyntax-only -I'" +
                          include_dir.string() + "' '" + unit + "'"})
                 .wait();
    EXPECT_EQ(r.code, 0) << header << "\n" << r.err;
}
} // namespace

TEST(Api, LibraryExportsWhatTheHeadersDeclare)
{
    auto headers_say = declared(), library_has = exported(BRIGADE_LIBRARY);
    EXPECT_GT(headers_say.size(), 40u);
    EXPECT_TRUE(headers_say.count("start_param_sync_for_bucket_group_subset"));
    EXPECT_EQ(difference(headers_say, library_has), "") << "declared, not exported";
    EXPECT_EQ(difference(library_has, headers_say), "") << "exported, not declared";
}

TEST(Api, EveryDeclarationIsExported)
{
    /* no function of a public header without BRG_API: it could not be called */
    std::regex function("\\b((?:brg|start)_\\w+)\\s*\\(");
    auto names = declared();
    for (auto &header : headers()) {
        std::string code = code_of(read_file(header));
        for (std::sregex_iterator i(code.begin(), code.end(), function), end; i != end; ++i)
            EXPECT_TRUE(names.count((*i)[1])) << (*i)[1] << " in " << header;
    }
}

TEST(Api, HeadersCompileAloneAsC11)
{
    for (auto &header : headers())
        expect_compiles(std::string(BRIGADE_CC) + " -std=c11 -Wstrict-prototypes", header, "c");
}

TEST(Api, HeadersCompileAloneAsCxx17)
{
    for (auto &header : headers())
        expect_compiles(std::string(BRIGADE_CXX) + " -std=c++17", header, "cc");
}

TEST(Api, HeadersIncludeTheStandardLibraryAndEachOther)
{
    std::regex include("#\\s*include\\s*([<\"][^>\"]+[>\"])");
    const std::set<std::string> standard = {"<stddef.h>", "<stdint.h>", "<stdbool.h>"};
    for (auto &header : headers()) {
        std::string text = read_file(header);
        for (std::sregex_iterator i(text.begin(), text.end(), include), end; i != end; ++i) {
            std::string what = (*i)[1];
            bool own = what.compare(0, 9, "\"brigade/") == 0 &&
                       exists(include_dir / what.substr(1, what.size() - 2));
            EXPECT_TRUE(own || standard.count(what)) << header << " includes " << what;
        }
    }
}

TEST(Api, OneHeaderHasThemAll)
{
    std::string all = read_file(include_dir / "brigade/brigade.h");
    for (auto &header : headers()) {
        std::string name = header.filename();
        if (name != "brigade.h") {
            EXPECT_NE(all.find("#include \"brigade/" + name + "\""), std::string::npos) << name;
        }
    }
}
