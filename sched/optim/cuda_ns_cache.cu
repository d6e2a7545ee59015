/* SPDX-License-Identifier: Apache-2.0 */
/* The file of autotuned choices: one line each, "key <tab> choice". The key names all that a choice
 * depends on; lines with other keys, and lines that do not read, are of no concern and are kept.
 * A new file is written beside the old one and renamed over it; of two ranks that add at the same
 * time one may lose its lines, which are found again by tuning. */
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

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

std::vector<std::string> read_lines(const char *file)
{
    std::vector<std::string> lines;
    FILE *from = fopen(file, "r");
    if (!from)
        return lines;
    char *line = nullptr;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, from)) >= 0)
        lines.push_back(std::string(line, (size_t)length));
    free(line);
    fclose(from);
    return lines;
}

bool has_key(const std::string &line, const std::string &key)
{
    return line.size() > key.size() && line.compare(0, key.size(), key) == 0 &&
           line[key.size()] == '\t';
}

} // namespace

std::string brg_ns_cache_key(const brg_ns_device *device, const brg_ns_shape *shape,
                             const brg_ns_polynomial *polynomial, int algorithm)
{
    static const char *precisions[] = {"fp16", "bf16", "fp32"};
    std::string key = "brigade-ns-1 " + device->name + " cublas " + device->cublas_version + " " +
                      std::to_string(shape->side) + "x" + std::to_string(shape->length) + " x" +
                      std::to_string(shape->batch) + " " + precisions[shape->precision] +
                      " algorithm " + std::to_string(algorithm) + " steps ";
    for (int i = 0; i < polynomial->num_steps(); i++) /* degrees */
        key += polynomial->tuples[3 * i + 2] != 0 ? '5' : '3';
    key += " restarts";
    for (int restart : polynomial->restarts)
        key += " " + std::to_string(restart);
    return key;
}

bool brg_ns_cache_find(const char *file, const std::string &key, brg_ns_choice *choice)
{
    for (const std::string &line : read_lines(file))
        if (has_key(line, key) && read_choice(line.c_str() + key.size() + 1, choice))
            return true;
    return false;
}

void brg_ns_cache_add(const char *file, const std::string &key, const brg_ns_choice *choice)
{
    std::string text;
    for (const std::string &line : read_lines(file))
        if (!has_key(line, key))
            text += line.back() == '\n' ? line : line + "\n";
    text += key + "\t" + write_choice(choice) + "\n";
    const std::string temporary = std::string(file) + "." + std::to_string(getpid());
    FILE *to = fopen(temporary.c_str(), "w");
    if (!to)
        return;
    bool written = fwrite(text.data(), 1, text.size(), to) == text.size();
    written = fclose(to) == 0 && written;
    if (!written || rename(temporary.c_str(), file) != 0)
        remove(temporary.c_str());
}
