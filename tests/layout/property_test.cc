// SPDX-License-Identifier: Apache-2.0
// Random models: against a slow reference, against an independent checker, through JSON and back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "sched/layout/fit_tree.h"
#include "sched/layout/min_tree.h"
#include "tests/layout/reference.h"
#include "tests/seed.h"

namespace
{

using LayoutPtr = std::unique_ptr<brg_layout, decltype(&brg_layout_destroy)>;

const int models = 400 * BRIGADE_TEST_STRESS;

LayoutPtr compute(const std::vector<brg_param> &params, const brg_layout_options &options)
{
    brg_layout *layout = nullptr;
    EXPECT_EQ(BRG_OK, brg_layout_compute(params.data(), (int)params.size(), &options, &layout))
        << brg_last_error();
    return LayoutPtr(layout, brg_layout_destroy);
}

void expect_buffer(const reference::Buffer &want, const brg_layout_buffer &got)
{
    EXPECT_EQ(want.name, got.name);
    EXPECT_EQ(want.shards, got.num_shards);
    ASSERT_EQ((int)want.buckets.size(), got.num_buckets);
    for (int i = 0; i < got.num_buckets; i++) {
        ASSERT_EQ(want.buckets[i].start, got.buckets[i].start) << want.name << " bucket " << i;
        ASSERT_EQ(want.buckets[i].end, got.buckets[i].end) << want.name << " bucket " << i;
        ASSERT_EQ(want.buckets[i].unpadded, got.buckets[i].numel_unpadded)
            << want.name << " bucket " << i;
    }
    ASSERT_EQ((int)want.places.size(), got.num_params);
    int64_t total = 0;
    for (int i = 0; i < got.num_params; i++) {
        ASSERT_EQ(want.places[i].param, got.params[i].param) << want.name << " place " << i;
        ASSERT_EQ(want.places[i].start, got.params[i].start) << want.name << " place " << i;
        ASSERT_EQ(want.places[i].end, got.params[i].end) << want.name << " place " << i;
        ASSERT_EQ(want.places[i].bucket, got.params[i].bucket) << want.name << " place " << i;
        ASSERT_EQ(want.places[i].shard, got.params[i].shard) << want.name << " place " << i;
        total += want.places[i].end - want.places[i].start;
    }
    EXPECT_EQ(total, got.numel_unpadded);
    EXPECT_EQ(want.buckets.empty() ? 0 : want.buckets.back().end, got.numel);
    EXPECT_NEAR(want.ns_ratio, got.ns_ratio, 1e-12 * want.ns_ratio);
}

TEST(LayoutProperty, EqualsTheReference)
{
    auto rng = test_rng(1);
    for (int i = 0; i < models && !HasFailure(); i++) {
        reference::Model model = reference::random_model(rng);
        brg_layout_options options = reference::random_options(rng);
        SCOPED_TRACE(reference::describe(options, model.params));
        auto want = reference::plan(model.params, options);
        LayoutPtr layout = compute(model.params, options);
        ASSERT_TRUE(layout);
        ASSERT_EQ((int)want.size(), brg_layout_num_buffers(layout.get()));
        for (size_t b = 0; b < want.size(); b++)
            expect_buffer(want[b], *brg_layout_get_buffer(layout.get(), (int)b));
    }
}

TEST(LayoutProperty, KeepsTheInvariants)
{
    auto rng = test_rng(2);
    for (int i = 0; i < models && !HasFailure(); i++) {
        reference::Model model = reference::random_model(rng);
        brg_layout_options options = reference::random_options(rng);
        SCOPED_TRACE(reference::describe(options, model.params));
        LayoutPtr layout = compute(model.params, options);
        ASSERT_TRUE(layout);
        EXPECT_EQ("", reference::fault(layout.get(), model.params, options));
        EXPECT_EQ(BRG_OK, brg_layout_check(layout.get())) << brg_last_error();
        int buckets = 0;
        for (int b = 0; b < brg_layout_num_buffers(layout.get()); b++)
            buckets += brg_layout_get_buffer(layout.get(), b)->num_buckets;
        EXPECT_EQ(buckets, brg_layout_num_buckets(layout.get()));
    }
}

TEST(LayoutProperty, FindsEveryParameter)
{
    auto rng = test_rng(3);
    reference::Model model = reference::random_model(rng);
    while (model.params.size() < 5)
        model = reference::random_model(rng);
    LayoutPtr layout = compute(model.params, {});
    ASSERT_EQ((int)model.params.size(), brg_layout_num_params(layout.get()));
    for (int i = 0; i < (int)model.params.size(); i++) {
        int buffer = -1;
        const brg_layout_param *place = nullptr;
        ASSERT_EQ(BRG_OK, brg_layout_find(layout.get(), i, &buffer, &place));
        EXPECT_EQ(i, place->param);
        const brg_layout_buffer *in = brg_layout_get_buffer(layout.get(), buffer);
        EXPECT_TRUE(place >= in->params && place < in->params + in->num_params);
        EXPECT_EQ(model.names[i], brg_layout_param_info(layout.get(), i)->name);
        EXPECT_NE(model.names[i].c_str(), brg_layout_param_info(layout.get(), i)->name);
    }
}

TEST(LayoutProperty, SurvivesJson)
{
    auto rng = test_rng(4);
    for (int i = 0; i < models && !HasFailure(); i++) {
        reference::Model model = reference::random_model(rng);
        brg_layout_options options = reference::random_options(rng);
        SCOPED_TRACE(reference::describe(options, model.params));
        LayoutPtr layout = compute(model.params, options);
        char *text = nullptr, *again = nullptr;
        ASSERT_EQ(BRG_OK, brg_layout_to_json(layout.get(), &text));
        brg_layout *read = nullptr;
        ASSERT_EQ(BRG_OK, brg_layout_from_json(text, strlen(text), model.params.data(),
                                               (int)model.params.size(), &read))
            << brg_last_error();
        LayoutPtr owner(read, brg_layout_destroy);
        ASSERT_EQ(BRG_OK, brg_layout_to_json(read, &again));
        EXPECT_STREQ(text, again);
        auto want = reference::plan(model.params, options);
        ASSERT_EQ((int)want.size(), brg_layout_num_buffers(read));
        for (size_t b = 0; b < want.size(); b++)
            expect_buffer(want[b], *brg_layout_get_buffer(read, (int)b));
        brg_free(text);
        brg_free(again);
    }
}

TEST(LayoutProperty, SameInputSameLayout)
{
    auto rng = test_rng(5);
    for (int i = 0; i < 20; i++) {
        reference::Model model = reference::random_model(rng);
        brg_layout_options options = reference::random_options(rng);
        char *texts[2];
        for (char *&text : texts) {
            LayoutPtr layout = compute(model.params, options);
            ASSERT_EQ(BRG_OK, brg_layout_to_json(layout.get(), &text));
        }
        EXPECT_STREQ(texts[0], texts[1]);
        brg_free(texts[0]);
        brg_free(texts[1]);
    }
}

TEST(MinTree, FindsTheFirstLeast)
{
    auto rng = test_rng(6);
    for (int count : {1, 2, 3, 7, 64, 100}) {
        brg_min_tree tree;
        ASSERT_EQ(BRG_OK, brg_min_tree_init(&tree, count));
        std::vector<int64_t> values(count, 0);
        for (int i = 0; i < 2000; i++) {
            int at = (int)(rng() % count);
            values[at] = (int64_t)(rng() % 20);
            brg_min_tree_set(&tree, at, values[at]);
            ASSERT_EQ(values[at], brg_min_tree_get(&tree, at));
            int want = (int)(std::min_element(values.begin(), values.end()) - values.begin());
            ASSERT_EQ(want, brg_min_tree_first(&tree)) << count << " leaves, step " << i;
        }
        brg_min_tree_free(&tree);
    }
}

TEST(FitTree, FindsTheFirstLeastLoadedWithRoom)
{
    auto rng = test_rng(7);
    for (int count : {1, 2, 5, 64, 300}) {
        brg_fit_tree tree;
        ASSERT_EQ(BRG_OK, brg_fit_tree_init(&tree, count));
        std::vector<int64_t> fills(count, 0), loads(count, 0);
        for (int i = 0; i < 3000; i++) {
            int at = (int)(rng() % count);
            int64_t more = (int64_t)(rng() % 5);
            fills[at] = (int64_t)(rng() % 30);
            loads[at] += more;
            brg_fit_tree_update(&tree, at, fills[at], (brg_ns_cost)more);
            int64_t limit = (int64_t)(rng() % 34) - 2;
            int want = -1;
            for (int s = 0; s < count; s++)
                if (fills[s] <= limit && (want < 0 || loads[s] < loads[want]))
                    want = s;
            ASSERT_EQ(want, brg_fit_tree_find(&tree, limit)) << count << " shards, step " << i;
        }
        brg_fit_tree_free(&tree);
    }
}

} // namespace
