/* SPDX-License-Identifier: Apache-2.0 */
/* The file of autotuned choices: one line each, "key <tab> choice". The key names all that a choice
 * depends on, but no number of matrices; lines with other keys, and lines that do not read, are of
 * no concern and are kept. Lines are added at the end under a lock, and only if there is none with
 * the key: of ranks that tune at the same time all take what the first has found. */
#include <sys/file.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "sched/optim/cuda_muon.h"

namespace
{

constexpr int ALGO_WORDS = 8;
static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGO_WORDS * sizeof(uint64_t), "see cublasLt.h");

/* gram, then for each kind its method and the words of its algorithm, which cuBLASLt documents as
 * plain data for one version of itself. */
std::string write_choice(const brg_ns_choice *choice)
{
    std::string text = std::to_string(choice->gram);
    char word[32];
    for (int kind = 0; kind < BRG_NS_KINDS; kind++) {
        text += " " + std::to_string((int)choice->method[kind]);
        for (uint64_t value : choice->algo[kind].data) {
            snprintf(word, sizeof word, " %" PRIx64, value);
            text += word;
        }
    }
    return text;
}

bool read_choice(const char *text, brg_ns_choice *choice)
{
    int used = 0, method = 0;
    brg_ns_choice found = {};
    if (sscanf(text, "%d%n", &found.gram, &used) != 1 || found.gram < 0 || found.gram > 1)
        return false;
    text += used;
    for (int kind = 0; kind < BRG_NS_KINDS; kind++) {
        if (sscanf(text, "%d%n", &method, &used) != 1 ||
            (method != BRG_NS_WHOLE && method != BRG_NS_KERNEL && method != BRG_NS_BLOCKS4 &&
             method != BRG_NS_BLOCKS8) ||
            (kind == BRG_NS_APPLY && method != BRG_NS_WHOLE))
            return false;
        found.method[kind] = (brg_ns_method)method;
        text += used;
        for (uint64_t &value : found.algo[kind].data) {
            if (sscanf(text, "%" SCNx64 "%n", &value, &used) != 1)
                return false;
            text += used;
        }
    }
    if (text[strspn(text, " \r\n")] != '\0')
        return false;
    *choice = found;
    return true;
}

std::vector<std::string> read_lines(FILE *from)
{
    std::vector<std::string> lines;
    char *line = nullptr;
    size_t capacity = 0;
    ssize_t length;
    rewind(from);
    while ((length = getline(&line, &capacity, from)) >= 0)
        lines.push_back(std::string(line, (size_t)length));
    free(line);
    return lines;
}

bool has_key(const std::string &line, const std::string &key)
{
    return line.size() > key.size() && line.compare(0, key.size(), key) == 0 &&
           line[key.size()] == '\t';
}

bool find_line(const std::vector<std::string> &lines, const std::string &key, brg_ns_choice *choice)
{
    for (const std::string &line : lines)
        if (has_key(line, key) && read_choice(line.c_str() + key.size() + 1, choice))
            return true;
    return false;
}

/* This process' choices, so that plans without a file agree too. */
std::mutex table_lock;
std::map<std::string, brg_ns_choice> table;

} // namespace

std::string brg_ns_cache_key(const brg_ns_device *device, const brg_ns_shape *shape,
                             const brg_ns_polynomial *polynomial, int algorithm)
{
    static const char *precisions[] = {"fp16", "bf16", "fp32"};
    std::string key = "brigade-ns-3 " + device->name + " cublas " + device->cublas_version + " " +
                      std::to_string(shape->side) + "x" + std::to_string(shape->length) + " " +
                      precisions[shape->precision] + " algorithm " + std::to_string(algorithm) +
                      " steps ";
    for (int i = 0; i < polynomial->num_steps(); i++) /* degrees */
        key += polynomial->tuples[3 * i + 2] != 0 ? '5' : '3';
    key += " restarts";
    for (int restart : polynomial->restarts)
        key += " " + std::to_string(restart);
    return key;
}

bool brg_ns_cache_find(const char *file, const std::string &key, brg_ns_choice *choice)
{
    if (!file) {
        std::lock_guard<std::mutex> guard(table_lock);
        auto found = table.find(key);
        if (found != table.end())
            *choice = found->second;
        return found != table.end();
    }
    FILE *from = fopen(file, "re");
    if (!from)
        return false;
    bool found = find_line(read_lines(from), key, choice);
    fclose(from);
    return found;
}

void brg_ns_cache_add(const char *file, const std::string &key, brg_ns_choice *choice)
{
    {
        std::lock_guard<std::mutex> guard(table_lock);
        *choice = table.emplace(key, *choice).first->second;
    }
    FILE *to = file ? fopen(file, "a+e") : nullptr;
    if (!to)
        return;
    flock(fileno(to), LOCK_EX);
    std::vector<std::string> lines = read_lines(to);
    if (!find_line(lines, key, choice)) {
        std::string text = !lines.empty() && lines.back().back() != '\n' ? "\n" : "";
        text += key + "\t" + write_choice(choice) + "\n";
        fseek(to, 0, SEEK_END);
        fwrite(text.data(), 1, text.size(), to);
    }
    fclose(to); /* writes it, and unlocks */
}
