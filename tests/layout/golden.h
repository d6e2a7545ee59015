/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded layouts of Megatron-LM, tests/data/golden/<model>.txt. A line is one of
 *
 *   model NAME
 *   p NAME DTYPE SHAPE FLAGS        a parameter, in model order. SHAPE 3x4, "-" for a scalar.
 * FLAGS: s shared embedding, e expert parallel, o embedding or output, n no Muon, q quantized, L
 * layer-wise managed (a result, not an input), gN rows are 1/N of the whole matrix; "-" for none
 *   plain KEY LIST                  a buffer without layer-wise tags: its parameters ("0-3,7")
 *   layerwise KEY LIST              a buffer with them
 *   r KEY NS_MAX NS_TOTAL NUMEL_MAX SHA256 BUCKETS    a planned buffer, numbered from 0. A bucket
 * is LENGTH/UNPADDED, or UNPADDED if not padded; *N repeats it. SHA256 is of "name start end
 * bucket\n" lines in order of start dps DP/EXPERT_DP ...            columns of the following c
 * ALGORITHM BUCKET_SIZE[@NUM_BUCKETS] PAD RECORDS ...   a row of cases; "." has no buffers
 *
 * corner_cases.txt has single buffers: `corner TAG DP BUCKET_SIZE PAD`, then `p SHAPE FLAGS COUNT`
 * lines (named p0, p1, ...), then an `r` line per algorithm, with its name in the place of the key;
 * `divisors DP PAD BUCKET SHARD`; `routing SHAPE USE_MUON EMBEDDING_OR_OUTPUT SHARED LAYERWISE`. */
#ifndef BRIGADE_TESTS_LAYOUT_GOLDEN_H
#define BRIGADE_TESTS_LAYOUT_GOLDEN_H

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "brigade/layout.h"

namespace golden
{

/* Parameters with the names that they point to. */
struct Params {
    std::vector<std::string> names;
    std::vector<brg_param> list;
    std::vector<bool> layerwise; /* as recorded */
    void add(const std::string &name, const std::string &dtype, const std::string &shape,
             const std::string &flags);
    const std::vector<brg_param> &get(); /* with names set */
};

struct Group {
    std::string key;
    std::vector<int> params;
};

struct Record {
    std::string key;
    int64_t ns_max = -1, ns_total = -1, numel_max = -1; /* -1: not layer-wise */
    std::string sha256;
    std::vector<brg_layout_bucket> buckets;
};

struct Case {
    std::string algorithm;
    int dp = 1, expert_dp = 1;
    int64_t bucket_size = -1; /* -1: none */
    int64_t num_buckets = 0;  /* gives the same bucket size; 0: the size was given */
    bool pad = false;
    std::vector<int> records;
};

struct Model {
    std::string name;
    Params params;
    std::vector<Group> plain, layerwise;
    std::vector<Record> records;
    std::vector<Case> cases;
};

struct Corner {
    std::string tag;
    int dp = 1;
    int64_t bucket_size = -1;
    bool pad = false;
    Params params;
    std::map<std::string, Record> results; /* by algorithm */
};

struct Routing {
    brg_param param;
    bool layerwise;
};

struct Corners {
    std::vector<Corner> corners;
    std::vector<Routing> routing;
    std::vector<std::vector<int64_t>> divisors;
};

/* All models there is a file for. */
std::vector<std::string> model_names();
Model load_model(const std::string &name);
Corners load_corners();

/* SHA-256 in hex. */
std::string sha256(const std::string &text);

} // namespace golden

#endif
