// SPDX-License-Identifier: Apache-2.0
// Options, defaults, limits and every refusal.
#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/layout.h"

namespace
{

using LayoutPtr = std::unique_ptr<brg_layout, decltype(&brg_layout_destroy)>;

brg_param matrix(const char *name, int64_t rows, int64_t columns)
{
    brg_param p = {};
    p.name = name;
    p.num_dims = 2;
    p.shape[0] = rows;
    p.shape[1] = columns;
    p.dtype = BRG_BFLOAT16;
    return p;
}

LayoutPtr compute(const std::vector<brg_param> &params, const brg_layout_options *options)
{
    brg_layout *layout = nullptr;
    EXPECT_EQ(BRG_OK, brg_layout_compute(params.data(), (int)params.size(), options, &layout))
        << brg_last_error();
    return LayoutPtr(layout, brg_layout_destroy);
}

// Expects a refusal whose message has all of `words`.
void refused(const std::vector<brg_param> &params, const brg_layout_options &options,
             const std::vector<std::string> &words)
{
    brg_layout *layout = (brg_layout *)&layout;
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT,
              brg_layout_compute(params.data(), (int)params.size(), &options, &layout));
    EXPECT_EQ(nullptr, layout);
    for (const std::string &word : words)
        EXPECT_NE(std::string::npos, std::string(brg_last_error()).find(word))
            << "no \"" << word << "\" in: " << brg_last_error();
}

void option_refused(const std::function<void(brg_layout_options &)> &change,
                    const std::vector<std::string> &words)
{
    brg_layout_options options = {};
    change(options);
    refused({matrix("w", 4, 4)}, options, words);
}

void param_refused(const std::function<void(brg_param &)> &change,
                   const std::vector<std::string> &words)
{
    brg_param bad = matrix("the.bad.one", 4, 4);
    change(bad);
    refused({matrix("w", 4, 4), bad}, {}, words);
}

TEST(LayoutApi, NullsAreRefused)
{
    char *text = nullptr;
    EXPECT_EQ(brg_layout_find(nullptr, 0, nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_layout_to_json(nullptr, &text), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_layout_check(nullptr), BRG_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(brg_layout_num_params(nullptr), 0);
    EXPECT_EQ(brg_layout_num_buffers(nullptr), 0);
    EXPECT_EQ(brg_layout_num_buckets(nullptr), 0);
    EXPECT_EQ(brg_layout_param_info(nullptr, 0), nullptr);
    EXPECT_EQ(brg_layout_get_buffer(nullptr, 0), nullptr);
    EXPECT_EQ(brg_layout_get_options(nullptr), nullptr);
    EXPECT_EQ(brg_param_numel(nullptr), -1);
}

TEST(LayoutOptions, DefaultsAreFilledIn)
{
    LayoutPtr layout = compute({matrix("w", 4, 4)}, nullptr);
    const brg_layout_options *used = brg_layout_get_options(layout.get());
    EXPECT_EQ(BRG_LAYERWISE, used->algorithm);
    EXPECT_EQ(BRG_PACKING_NS_BALANCED, used->packing);
    EXPECT_EQ(1, used->data_parallel_size);
    EXPECT_EQ(1, used->expert_data_parallel_size);
    EXPECT_EQ(40000000, used->bucket_size);
    EXPECT_EQ(BRG_FLOAT32, used->grad_dtype);
    EXPECT_EQ(sizeof(brg_layout_options), used->size);
}

TEST(LayoutOptions, DefaultBucketSizeGrowsWithRanks)
{
    for (auto [dp, size] : std::vector<std::pair<int, int64_t>>{
             {1, 40000000}, {40, 40000000}, {41, 41000000}, {4096, 4096000000}}) {
        brg_layout_options options = {};
        options.data_parallel_size = dp;
        EXPECT_EQ(size, brg_layout_get_options(compute({}, &options).get())->bucket_size);
    }
}

TEST(LayoutOptions, NumBucketsDividesEverything)
{
    brg_layout_options options = {};
    options.num_buckets = 3;
    brg_param expert = matrix("e", 10, 10), fixed = matrix("f", 1, 7);
    expert.flags = BRG_PARAM_EXPERT_PARALLEL;
    fixed.flags = BRG_PARAM_EMBEDDING_OR_OUTPUT;
    LayoutPtr layout = compute({matrix("w", 4, 4), expert, fixed}, &options);
    EXPECT_EQ((16 + 100 + 7) / 3, brg_layout_get_options(layout.get())->bucket_size);
    options.num_buckets = 1000;
    layout = compute({matrix("w", 4, 4)}, &options);
    EXPECT_EQ(BRG_BUCKET_SIZE_SMALLEST, brg_layout_get_options(layout.get())->bucket_size);
}

TEST(LayoutOptions, ResolvedOptionsGiveTheSameLayout)
{
    brg_layout_options options = {};
    options.num_buckets = 2;
    std::vector<brg_param> params = {matrix("a", 64, 64), matrix("b", 64, 3), matrix("c", 9, 9)};
    LayoutPtr first = compute(params, &options);
    LayoutPtr second = compute(params, brg_layout_get_options(first.get()));
    char *a, *b;
    ASSERT_EQ(BRG_OK, brg_layout_to_json(first.get(), &a));
    ASSERT_EQ(BRG_OK, brg_layout_to_json(second.get(), &b));
    EXPECT_STREQ(a, b);
    brg_free(a);
    brg_free(b);
}

TEST(LayoutOptions, OlderCallersHaveShorterStructs)
{
    brg_layout_options options = {};
    options.size = offsetof(brg_layout_options, num_buckets);
    options.bucket_size = 7;
    options.num_buckets = -12345; // behind the caller's end
    LayoutPtr layout = compute({matrix("w", 4, 4)}, &options);
    EXPECT_EQ(7, brg_layout_get_options(layout.get())->bucket_size);
}

TEST(LayoutOptions, NewerCallersHaveLongerStructs)
{
    struct {
        brg_layout_options options;
        int64_t later;
    } longer = {};
    longer.options.size = sizeof longer;
    longer.later = -1;
    LayoutPtr layout = compute({matrix("w", 4, 4)}, &longer.options);
    EXPECT_EQ(sizeof(brg_layout_options), brg_layout_get_options(layout.get())->size);
}

TEST(LayoutOptions, BadOnesAreNamed)
{
    option_refused([](auto &o) { o.size = 1; }, {"size is 1"});
    option_refused([](auto &o) { o.algorithm = (brg_algorithm)3; }, {"algorithm 3"});
    option_refused([](auto &o) { o.algorithm = (brg_algorithm)-1; }, {"algorithm"});
    option_refused([](auto &o) { o.packing = (brg_packing)4; }, {"packing 4"});
    option_refused([](auto &o) { o.data_parallel_size = -1; }, {"data_parallel_size is -1"});
    option_refused([](auto &o) { o.expert_data_parallel_size = -8; },
                   {"expert_data_parallel_size is -8"});
    option_refused([](auto &o) { o.bucket_size = -3; }, {"bucket_size is -3"});
    option_refused([](auto &o) { o.num_buckets = -1; }, {"num_buckets is -1"});
    option_refused([](auto &o) { o.bucket_size = 5, o.num_buckets = 6; },
                   {"bucket_size (5)", "num_buckets (6)", "expected one"});
    option_refused([](auto &o) { o.bucket_size = BRG_BUCKET_SIZE_NONE, o.num_buckets = 6; },
                   {"both given"});
    option_refused([](auto &o) { o.grad_dtype = (brg_dtype)99; }, {"grad_dtype 99"});
}

TEST(LayoutParams, BadOnesAreNamed)
{
    param_refused([](auto &p) { p.name = nullptr; }, {"parameter 1 has no name"});
    param_refused([](auto &p) { p.name = ""; }, {"parameter 1 has no name"});
    param_refused([](auto &p) { p.name = "w"; }, {"0 and 1", "\"w\"", "unique"});
    param_refused([](auto &p) { p.num_dims = -1; }, {"the.bad.one", "-1 dimensions"});
    param_refused([](auto &p) { p.num_dims = 9; }, {"the.bad.one", "9 dimensions"});
    param_refused([](auto &p) { p.shape[1] = -4; }, {"the.bad.one", "dimension 1 is -4"});
    param_refused([](auto &p) { p.shape[0] = p.shape[1] = INT64_MAX; },
                  {"the.bad.one", "elements"});
    param_refused([](auto &p) { p.shape[0] = (int64_t)1 << 60; }, {"the.bad.one", "elements"});
    param_refused([](auto &p) { p.dtype = (brg_dtype)77; }, {"the.bad.one", "dtype 77"});
    param_refused([](auto &p) { p.flags = 1u << 30; }, {"the.bad.one", "0x40000000"});
    param_refused([](auto &p) { p.reserved[3] = 1; }, {"the.bad.one", "reserved[3]"});
    param_refused([](auto &p) { p.ns_row_multiplier = -2; }, {"the.bad.one", "is -2"});
    param_refused([](auto &p) { p.ns_row_multiplier = INT64_MAX; }, {"the.bad.one", "multiplier"});
}

TEST(LayoutParams, NamesAreUtf8)
{
    for (const char *good : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf"})
        EXPECT_TRUE(compute({matrix(good, 2, 2)}, nullptr)) << good;
    for (const char *bad : {"\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "ab\xe2\x82"})
        param_refused([&](auto &p) { p.name = bad; }, {"parameter 1", "UTF-8"});
}

TEST(LayoutParams, TotalsHaveALimit)
{
    std::vector<std::string> names;
    std::vector<brg_param> params;
    for (int i = 0; i < 3; i++)
        names.push_back("big" + std::to_string(i));
    for (const std::string &name : names)
        params.push_back(matrix(name.c_str(), (int64_t)1 << 30, (int64_t)1 << 28));
    refused(params, {}, {"\"big2\"", "together"});
}

TEST(LayoutParams, PaddingHasALimit)
{
    brg_layout_options options = {};
    options.data_parallel_size = INT_MAX;
    refused({matrix("w", 4, 4), matrix("large", (int64_t)1 << 20, (int64_t)1 << 20)}, options,
            {"\"large\"", "2147483647 shards"});
    brg_param shared = matrix("tied", (int64_t)1 << 20, (int64_t)1 << 20);
    shared.flags = BRG_PARAM_SHARED_EMBEDDING;
    refused({shared}, options, {"\"tied\""});
    options.algorithm = BRG_ELEMENTWISE;
    options.bucket_size = BRG_BUCKET_SIZE_SMALLEST;
    options.pad_for_high_bus_bandwidth = 1; // 2^47 elements a bucket
    std::vector<std::string> names;
    std::vector<brg_param> params;
    for (int i = 0; i < 5000; i++)
        names.push_back("p" + std::to_string(i));
    for (const std::string &name : names)
        params.push_back(matrix(name.c_str(), 1, 1));
    refused(params, options, {"2147483647 shards", "padding"});
}

TEST(LayoutParams, ManyRanksCostNoMemory)
{
    brg_layout_options options = {};
    options.data_parallel_size = INT_MAX;
    for (brg_packing packing : {BRG_PACKING_LPT, BRG_PACKING_ABSORB, BRG_PACKING_NS_BALANCED}) {
        options.packing = packing;
        options.bucket_size = BRG_BUCKET_SIZE_SMALLEST;
        LayoutPtr layout = compute({matrix("a", 64, 64), matrix("b", 64, 64)}, &options);
        const brg_layout_buffer *buffer = brg_layout_get_buffer(layout.get(), 0);
        EXPECT_EQ(INT_MAX, buffer->num_shards);
        EXPECT_EQ(0, buffer->numel % INT_MAX);
        EXPECT_NE(buffer->params[0].shard, buffer->params[1].shard);
    }
}

TEST(LayoutParams, NumelOfAnyShape)
{
    brg_param p = {};
    EXPECT_EQ(1, brg_param_numel(&p)); // a scalar
    p.num_dims = 3;
    p.shape[0] = 2, p.shape[1] = 3, p.shape[2] = 5;
    EXPECT_EQ(30, brg_param_numel(&p));
    p.shape[1] = -3;
    EXPECT_EQ(-1, brg_param_numel(&p));
    p.shape[1] = INT64_MAX;
    EXPECT_EQ(-1, brg_param_numel(&p));
    p.shape[2] = 0; // empty, although the others overflow
    EXPECT_EQ(0, brg_param_numel(&p));
    p.num_dims = BRG_MAX_DIMS + 1;
    EXPECT_EQ(-1, brg_param_numel(&p));
}

TEST(LayoutCalls, NothingAtAllIsALayout)
{
    for (brg_algorithm algorithm : {BRG_LAYERWISE, BRG_ELEMENTWISE, BRG_FLAT}) {
        brg_layout_options options = {};
        options.algorithm = algorithm;
        brg_layout *layout = nullptr;
        ASSERT_EQ(BRG_OK, brg_layout_compute(nullptr, 0, &options, &layout));
        EXPECT_EQ(0, brg_layout_num_params(layout));
        EXPECT_EQ(0, brg_layout_num_buffers(layout));
        EXPECT_EQ(0, brg_layout_num_buckets(layout));
        brg_layout_destroy(layout);
    }
    brg_layout_destroy(nullptr);
    brg_free(nullptr);
}

TEST(LayoutCalls, BadArguments)
{
    brg_layout *layout = nullptr;
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_compute(nullptr, 2, nullptr, &layout));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_compute(nullptr, -1, nullptr, &layout));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_compute(nullptr, 0, nullptr, nullptr));
    LayoutPtr made = compute({matrix("w", 4, 4)}, nullptr);
    EXPECT_EQ(nullptr, brg_layout_get_buffer(made.get(), 1));
    EXPECT_EQ(nullptr, brg_layout_get_buffer(made.get(), -1));
    EXPECT_EQ(nullptr, brg_layout_param_info(made.get(), 1));
    EXPECT_EQ(nullptr, brg_layout_param_info(made.get(), -1));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_find(made.get(), 1, nullptr, nullptr));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_find(made.get(), -1, nullptr, nullptr));
    EXPECT_EQ(BRG_OK, brg_layout_find(made.get(), 0, nullptr, nullptr));
}

TEST(LayoutFlat, PadParamStartsAlignsStartsOnly)
{
    brg_layout_options options = {};
    options.algorithm = BRG_FLAT;
    options.bucket_size = 10;
    std::vector<brg_param> params = {matrix("a", 3, 1), matrix("b", 5, 2), matrix("c", 7, 1)};
    LayoutPtr tight = compute(params, &options);
    const brg_layout_buffer *buffer = brg_layout_get_buffer(tight.get(), 0);
    ASSERT_EQ(2, buffer->num_buckets); // c b | a
    EXPECT_EQ(17, buffer->buckets[0].end);
    EXPECT_EQ(20, buffer->numel);

    options.pad_param_starts = 1;
    LayoutPtr padded = compute(params, &options);
    buffer = brg_layout_get_buffer(padded.get(), 0);
    ASSERT_EQ(2, buffer->num_buckets);
    EXPECT_EQ(0, buffer->params[0].start);
    EXPECT_EQ(64, buffer->params[1].start);
    EXPECT_EQ(74, buffer->buckets[0].end);
    EXPECT_EQ(74, buffer->buckets[0].numel_unpadded);
    EXPECT_EQ(128, buffer->params[2].start);
    EXPECT_EQ(131, buffer->numel);
    EXPECT_EQ(20, buffer->numel_unpadded);
}

TEST(LayoutKeys, GradientTypeFollowsTheOptions)
{
    brg_param quantized = matrix("q", 4, 4), plain = matrix("p", 4, 4);
    quantized.flags = BRG_PARAM_QUANTIZED;
    plain.dtype = BRG_FLOAT32;
    brg_layout_options options = {};
    options.grad_dtype_is_param_dtype = 1;
    LayoutPtr layout = compute({quantized, plain}, &options);
    EXPECT_STREQ("u8/bf16/dense/lw", brg_layout_get_buffer(layout.get(), 0)->name);
    EXPECT_STREQ("fp32/fp32/dense/lw", brg_layout_get_buffer(layout.get(), 1)->name);
    options.grad_dtype_is_param_dtype = 0;
    options.grad_dtype = BRG_BFLOAT16;
    layout = compute({quantized, plain}, &options);
    EXPECT_STREQ("u8/bf16/dense/lw", brg_layout_get_buffer(layout.get(), 0)->name);
    EXPECT_STREQ("fp32/bf16/dense/lw", brg_layout_get_buffer(layout.get(), 1)->name);
}

TEST(LayoutKeys, ExpertsHaveTheirOwnShards)
{
    brg_param expert = matrix("e", 64, 64);
    expert.flags = BRG_PARAM_EXPERT_PARALLEL;
    brg_layout_options options = {};
    options.data_parallel_size = 8;
    LayoutPtr layout = compute({expert, matrix("d", 64, 64)}, &options);
    EXPECT_EQ(8, brg_layout_get_buffer(layout.get(), 0)->num_shards);
    options.expert_data_parallel_size = 2;
    layout = compute({expert, matrix("d", 64, 64)}, &options);
    EXPECT_STREQ("bf16/fp32/expert/lw", brg_layout_get_buffer(layout.get(), 0)->name);
    EXPECT_EQ(2, brg_layout_get_buffer(layout.get(), 0)->num_shards);
    EXPECT_EQ(8, brg_layout_get_buffer(layout.get(), 1)->num_shards);
}

} // namespace
