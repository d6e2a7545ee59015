/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that vanish with the test. */
#ifndef BRIGADE_TESTS_TRACE_TEMP_DIR_H
#define BRIGADE_TESTS_TRACE_TEMP_DIR_H

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

class TempDir
{
  public:
    TempDir()
    {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "brigade-trace-XXXXXX").string();
        if (!mkdtemp(pattern.data()))
            throw std::runtime_error("mkdtemp " + pattern);
        path_ = pattern;
    }
    ~TempDir()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir &) = delete;
    TempDir &operator=(const TempDir &) = delete;

    std::string path(const std::string &name = "") const
    {
        return name.empty() ? path_ : path_ + "/" + name;
    }

  private:
    std::string path_;
};

inline std::string file_read(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

inline void file_write(const std::string &path, const std::string &bytes)
{
    /* A new file: some file systems write an overwritten one to the disk at once. */
    std::filesystem::remove(path);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), (std::streamsize)bytes.size());
}

#endif
