// SPDX-License-Identifier: Apache-2.0
// Every recorded layout of Megatron-LM, element for element.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "sched/layout/layout.h"
#include "tests/layout/golden.h"

namespace
{

using LayoutPtr = std::unique_ptr<brg_layout, decltype(&brg_layout_destroy)>;

// What a record says about a buffer, from its placements alone.
struct Facts {
    std::string lines;
    std::map<int64_t, int64_t> work, numel; // by shard
    int64_t ns_total = 0;
};

int64_t newton_schulz_work(const brg_param &param)
{
    if (param.num_dims != 2) {
        int64_t numel = 1;
        for (int i = 0; i < param.num_dims; i++)
            numel *= param.shape[i];
        return numel;
    }
    int64_t rows = param.shape[0] * std::max<int64_t>(1, param.ns_row_multiplier);
    int64_t columns = param.shape[1];
    return std::max(rows, columns) * std::min(rows, columns) * std::min(rows, columns);
}

Facts facts_of(const std::vector<brg_param> &params, const brg_layout_param *places, int count,
               bool layerwise)
{
    Facts facts;
    for (int i = 0; i < count; i++) {
        const brg_layout_param &place = places[i];
        const brg_param &param = params[place.param];
        facts.lines += std::string(param.name) + " " + std::to_string(place.start) + " " +
                       std::to_string(place.end) + " " + std::to_string(place.bucket) + "\n";
        if (layerwise) {
            facts.work[place.shard] += newton_schulz_work(param);
            facts.numel[place.shard] += place.end - place.start;
            facts.ns_total += newton_schulz_work(param);
        }
    }
    return facts;
}

int64_t largest(const std::map<int64_t, int64_t> &values)
{
    int64_t max = 0;
    for (const auto &value : values)
        max = std::max(max, value.second);
    return max;
}

void expect_buckets(const golden::Record &want, const brg_layout_bucket *buckets, int count)
{
    ASSERT_EQ((int)want.buckets.size(), count);
    for (int i = 0; i < count; i++) {
        EXPECT_EQ(want.buckets[i].start, buckets[i].start) << "bucket " << i;
        EXPECT_EQ(want.buckets[i].end, buckets[i].end) << "bucket " << i;
        EXPECT_EQ(want.buckets[i].numel_unpadded, buckets[i].numel_unpadded) << "bucket " << i;
    }
}

void expect_facts(const golden::Record &want, const Facts &facts)
{
    EXPECT_EQ(want.sha256, golden::sha256(facts.lines)) << facts.lines.substr(0, 2000);
    if (want.ns_total >= 0) {
        EXPECT_EQ(want.ns_total, facts.ns_total);
        EXPECT_EQ(want.ns_max, largest(facts.work));
        EXPECT_EQ(want.numel_max, largest(facts.numel));
    }
}

void expect_buffer(const golden::Record &want, const std::vector<brg_param> &params,
                   const brg_layout_buffer *buffer)
{
    ASSERT_STREQ(want.key.c_str(), buffer->name);
    expect_buckets(want, buffer->buckets, buffer->num_buckets);
    expect_facts(want, facts_of(params, buffer->params, buffer->num_params, buffer->key.layerwise));
    EXPECT_EQ(want.buckets.empty() ? 0 : want.buckets.back().end, buffer->numel);
    double ratio =
        want.ns_total > 0 ? (double)want.ns_max * buffer->num_shards / (double)want.ns_total : 1.0;
    EXPECT_DOUBLE_EQ(ratio, buffer->ns_ratio);
}

brg_layout_options options_of(const golden::Case &c)
{
    static const std::map<std::string, std::pair<brg_algorithm, brg_packing>> algorithms = {
        {"default", {BRG_FLAT, BRG_PACKING_DEFAULT}},
        {"distopt", {BRG_ELEMENTWISE, BRG_PACKING_DEFAULT}},
        {"distopt_rest", {BRG_LAYERWISE, BRG_PACKING_DEFAULT}},
        {"lpt_v1", {BRG_LAYERWISE, BRG_PACKING_LPT}},
        {"absorb", {BRG_LAYERWISE, BRG_PACKING_ABSORB}},
        {"ns_balanced", {BRG_LAYERWISE, BRG_PACKING_NS_BALANCED}}};
    brg_layout_options options = {};
    options.algorithm = algorithms.at(c.algorithm).first;
    options.packing = algorithms.at(c.algorithm).second;
    options.data_parallel_size = c.dp;
    options.expert_data_parallel_size = c.expert_dp;
    options.pad_for_high_bus_bandwidth = c.pad;
    options.bucket_size = c.bucket_size < 0    ? (int64_t)BRG_BUCKET_SIZE_NONE
                          : c.bucket_size == 0 ? (int64_t)BRG_BUCKET_SIZE_SMALLEST
                                               : c.bucket_size;
    return options;
}

// The buffers that a case records: a layer-wise layout is recorded in two halves.
std::vector<const brg_layout_buffer *> recorded_buffers(const golden::Case &c,
                                                        const brg_layout *layout)
{
    std::vector<const brg_layout_buffer *> buffers;
    bool whole = c.algorithm == "default" || c.algorithm == "distopt";
    for (int i = 0; i < brg_layout_num_buffers(layout); i++) {
        const brg_layout_buffer *buffer = brg_layout_get_buffer(layout, i);
        if (whole || (c.algorithm == "distopt_rest") == !buffer->key.layerwise)
            buffers.push_back(buffer);
    }
    return buffers;
}

void expect_case(golden::Model &model, const golden::Case &c, const brg_layout_options &options)
{
    SCOPED_TRACE(model.name + " " + c.algorithm + " dp " + std::to_string(c.dp) + " bucket size " +
                 std::to_string(c.bucket_size) + " pad " + std::to_string(c.pad));
    const std::vector<brg_param> &params = model.params.get();
    brg_layout *layout = nullptr;
    ASSERT_EQ(BRG_OK, brg_layout_compute(params.data(), (int)params.size(), &options, &layout))
        << brg_last_error();
    LayoutPtr owner(layout, brg_layout_destroy);
    auto buffers = recorded_buffers(c, layout);
    ASSERT_EQ(c.records.size(), buffers.size());
    for (size_t i = 0; i < buffers.size(); i++)
        expect_buffer(model.records.at(c.records[i]), params, buffers[i]);
}

class GoldenModel : public testing::TestWithParam<std::string>
{
  protected:
    golden::Model model = golden::load_model(GetParam());
};

TEST_P(GoldenModel, EveryCase)
{
    ASSERT_GE(model.cases.size(), 364u);
    for (const golden::Case &c : model.cases)
        expect_case(model, c, options_of(c));
}

TEST_P(GoldenModel, NumBucketsGivesTheSameBucketSize)
{
    int found = 0;
    for (const golden::Case &c : model.cases) {
        if (c.num_buckets == 0 || c.pad)
            continue;
        brg_layout_options options = options_of(c);
        options.bucket_size = BRG_BUCKET_SIZE_DEFAULT;
        options.num_buckets = c.num_buckets;
        expect_case(model, c, options);
        found++;
    }
    EXPECT_GT(found, 0);
}

TEST_P(GoldenModel, Grouping)
{
    const std::vector<brg_param> &params = model.params.get();
    for (brg_algorithm algorithm : {BRG_FLAT, BRG_ELEMENTWISE, BRG_LAYERWISE}) {
        const auto &groups = algorithm == BRG_LAYERWISE ? model.layerwise : model.plain;
        brg_layout_options options = {};
        options.algorithm = algorithm;
        brg_layout *layout = nullptr;
        ASSERT_EQ(BRG_OK, brg_layout_compute(params.data(), (int)params.size(), &options, &layout));
        LayoutPtr owner(layout, brg_layout_destroy);
        ASSERT_EQ((int)groups.size(), brg_layout_num_buffers(layout));
        for (size_t g = 0; g < groups.size(); g++) {
            const brg_layout_buffer *buffer = brg_layout_get_buffer(layout, (int)g);
            EXPECT_EQ(groups[g].key, buffer->name);
            std::vector<int> members;
            for (int i = 0; i < buffer->num_params; i++)
                members.push_back(buffer->params[i].param);
            std::sort(members.begin(), members.end());
            EXPECT_EQ(groups[g].params, members);
        }
    }
}

TEST_P(GoldenModel, Routing)
{
    const std::vector<brg_param> &params = model.params.get();
    for (size_t i = 0; i < params.size(); i++)
        EXPECT_EQ(model.params.layerwise[i], brg_param_is_layerwise(&params[i])) << params[i].name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, testing::ValuesIn(golden::model_names()),
                         [](const auto &test) { return test.param; });

TEST(GoldenFiles, AreAllThere)
{
    EXPECT_EQ(19u, golden::model_names().size());
}

// Corner cases give single buffers to the planners, also what routing would not send there.
brg_status plan_corner(golden::Corner &corner, const std::string &algorithm, brg_plan *plan)
{
    const std::vector<brg_param> &params = corner.params.get();
    std::vector<brg_plan_item> items;
    for (int i = (int)params.size() - 1; i >= 0; i--)
        items.push_back({params[i].name, i, (params[i].flags & BRG_PARAM_SHARED_EMBEDDING) != 0,
                         brg_param_numel(&params[i]), brg_param_ns_cost(&params[i])});
    brg_plan_request request = {items.data(),       (int)items.size(), corner.dp,
                                corner.bucket_size, corner.pad,        false};
    if (algorithm == "default")
        return brg_plan_flat(&request, plan);
    if (algorithm == "distopt")
        return brg_plan_elementwise(&request, plan);
    return brg_plan_layerwise(&request,
                              algorithm == "lpt_v1"   ? BRG_PACKING_LPT
                              : algorithm == "absorb" ? BRG_PACKING_ABSORB
                                                      : BRG_PACKING_NS_BALANCED,
                              plan);
}

TEST(GoldenCorners, EveryCase)
{
    golden::Corners all = golden::load_corners();
    ASSERT_EQ(130u, all.corners.size());
    for (golden::Corner &corner : all.corners) {
        ASSERT_EQ(5u, corner.results.size());
        for (const auto &[algorithm, want] : corner.results) {
            SCOPED_TRACE(corner.tag + " " + algorithm + " dp " + std::to_string(corner.dp) +
                         " bucket size " + std::to_string(corner.bucket_size) + " pad " +
                         std::to_string(corner.pad));
            brg_plan plan = {};
            ASSERT_EQ(BRG_OK, plan_corner(corner, algorithm, &plan)) << brg_last_error();
            expect_buckets(want, plan.buckets, plan.num_buckets);
            std::stable_sort(plan.params, plan.params + plan.num_params,
                             [](const auto &a, const auto &b) { return a.start < b.start; });
            expect_facts(want, facts_of(corner.params.get(), plan.params, plan.num_params,
                                        want.ns_total >= 0));
            brg_plan_free(&plan);
        }
    }
}

TEST(GoldenCorners, RoutingTable)
{
    golden::Corners all = golden::load_corners();
    ASSERT_EQ(84u, all.routing.size());
    for (const golden::Routing &row : all.routing)
        EXPECT_EQ(row.layerwise, brg_param_is_layerwise(&row.param))
            << row.param.num_dims << " dimensions, flags " << row.param.flags;
}

TEST(GoldenCorners, Divisors)
{
    golden::Corners all = golden::load_corners();
    ASSERT_EQ(50u, all.divisors.size());
    for (const auto &row : all.divisors) {
        EXPECT_EQ(row[2], brg_plan_bucket_divisor((int)row[0], row[1] != 0)) << "dp " << row[0];
        EXPECT_EQ(row[3], brg_plan_shard_divisor((int)row[0], row[1] != 0)) << "dp " << row[0];
    }
}

} // namespace
