/* SPDX-License-Identifier: Apache-2.0 */
/* A slow second implementation of the layout rules, from their description alone: linear searches,
 * no shared code with the library. For tests of small random models. */
#ifndef BRIGADE_TESTS_LAYOUT_REFERENCE_H
#define BRIGADE_TESTS_LAYOUT_REFERENCE_H

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "brigade/layout.h"

namespace reference
{

struct Place {
    int param, bucket, shard;
    int64_t start, end;
};

struct Bucket {
    int64_t start, end, unpadded;
};

struct Buffer {
    std::string name;
    int shards;
    std::vector<Bucket> buckets;
    std::vector<Place> places; /* in order of start; equals in order of placement */
    double ns_ratio;
};

std::vector<Buffer> plan(const std::vector<brg_param> &params, const brg_layout_options &options);

/* What is wrong with a layout, "" if nothing. Looks at the public view only. */
std::string fault(const brg_layout *layout, const std::vector<brg_param> &params,
                  const brg_layout_options &options);

/* Parameters with the names that they point to. */
struct Model {
    std::vector<std::string> names;
    std::vector<brg_param> params;
};

Model random_model(std::mt19937_64 &rng);
brg_layout_options random_options(std::mt19937_64 &rng);
std::string describe(const brg_layout_options &options, const std::vector<brg_param> &params);

} // namespace reference

#endif
