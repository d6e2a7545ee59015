// SPDX-License-Identifier: Apache-2.0
// Documents that are not layouts, and layouts that do not hold together.
#include <gtest/gtest.h>

#include <jansson.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/layout.h"
#include "tests/seed.h"

namespace
{

using LayoutPtr = std::unique_ptr<brg_layout, decltype(&brg_layout_destroy)>;

// Buffer 0: element-wise "norm", "bias" in one bucket. Buffer 1: layer-wise, two buckets over two
// shards: "d", "c" | "b", "a". All matrices are 64x64 = 4096 elements.
class LayoutJson : public testing::Test
{
  protected:
    std::vector<brg_param> params;

    LayoutJson()
    {
        for (const char *name : {"a", "b", "c", "d"})
            add(name, {64, 64});
        params.insert(params.begin(), params.front());
        params.front().name = "bias";
        params.front().num_dims = 1;
        add("norm", {64});
    }

    void add(const char *name, std::vector<int64_t> shape)
    {
        brg_param p = {};
        p.name = name;
        p.num_dims = (int)shape.size();
        for (size_t i = 0; i < shape.size(); i++)
            p.shape[i] = shape[i];
        p.dtype = BRG_BFLOAT16;
        params.push_back(p);
    }

    std::string document(brg_algorithm algorithm = BRG_LAYERWISE)
    {
        brg_layout_options options = {};
        options.algorithm = algorithm;
        options.data_parallel_size = 2;
        options.bucket_size = 8192;
        options.packing = BRG_PACKING_LPT;
        brg_layout *layout = nullptr;
        EXPECT_EQ(BRG_OK, brg_layout_compute(params.data(), (int)params.size(), &options, &layout));
        LayoutPtr owner(layout, brg_layout_destroy);
        char *text;
        EXPECT_EQ(BRG_OK, brg_layout_to_json(layout, &text));
        std::string copy = text;
        brg_free(text);
        return copy;
    }

    brg_status read(const std::string &text)
    {
        brg_layout *layout = nullptr;
        brg_status status = brg_layout_from_json(text.data(), text.size(), params.data(),
                                                 (int)params.size(), &layout);
        EXPECT_EQ(status == BRG_OK, layout != nullptr);
        brg_layout_destroy(layout);
        return status;
    }

    // Changes a document and reads it.
    brg_status changed(const std::function<void(json_t *)> &change,
                       brg_algorithm algorithm = BRG_LAYERWISE)
    {
        json_t *root = json_loads(document(algorithm).c_str(), 0, nullptr);
        change(root);
        char *text = json_dumps(root, JSON_ENCODE_ANY);
        json_decref(root);
        brg_status status = read(text);
        free(text);
        return status;
    }

    void refused(const std::function<void(json_t *)> &change, const std::vector<std::string> &words,
                 brg_algorithm algorithm = BRG_LAYERWISE)
    {
        EXPECT_EQ(BRG_ERR_FORMAT, changed(change, algorithm));
        for (const std::string &word : words)
            EXPECT_NE(std::string::npos, std::string(brg_last_error()).find(word))
                << "no \"" << word << "\" in: " << brg_last_error();
    }
};

json_t *buffer(json_t *root, size_t b)
{
    return json_array_get(json_object_get(root, "buffers"), b);
}

json_t *bucket(json_t *root, size_t b, size_t i)
{
    return json_array_get(json_object_get(buffer(root, b), "buckets"), i);
}

json_t *param(json_t *root, size_t b, size_t i)
{
    return json_array_get(json_object_get(buffer(root, b), "params"), i);
}

void set(json_t *object, const char *field, json_int_t value)
{
    json_object_set_new(object, field, json_integer(value));
}

TEST_F(LayoutJson, IsExactlyThis)
{
    params.resize(2);
    EXPECT_EQ("{\"schema\":1,\"algorithm\":\"layerwise\",\"packing\":\"lpt\",\"dp\":2,\"buffers\":["
              "{\"key\":\"bf16/fp32/dense/std\",\"shards\":2,\"numel\":128,\"numel_unpadded\":64,"
              "\"padding\":64,\"overhead\":1.0,\"ns_ratio\":1.0,"
              "\"buckets\":[{\"start\":0,\"end\":128,\"numel_unpadded\":64}],"
              "\"params\":[{\"name\":\"bias\",\"start\":0,\"end\":64,\"bucket\":0,\"shard\":-1}]},"
              "{\"key\":\"bf16/fp32/dense/lw\",\"shards\":2,\"numel\":8192,\"numel_unpadded\":4096,"
              "\"padding\":4096,\"overhead\":1.0,\"ns_ratio\":2.0,"
              "\"buckets\":[{\"start\":0,\"end\":8192,\"numel_unpadded\":4096}],"
              "\"params\":[{\"name\":\"a\",\"start\":0,\"end\":4096,\"bucket\":0,\"shard\":0}]}]}",
              document());
}

TEST_F(LayoutJson, TheExampleIsValidAndUnknownFieldsAreIgnored)
{
    EXPECT_EQ(BRG_OK, changed([](json_t *) {})) << brg_last_error();
    auto more = [](json_t *r) {
        json_object_set_new(r, "made_by", json_string("someone"));
        json_object_set_new(buffer(r, 0), "more", json_array());
        json_object_set_new(bucket(r, 0, 0), "more", json_null());
        json_object_set_new(param(r, 0, 0), "more", json_true());
    };
    EXPECT_EQ(BRG_OK, changed(more)) << brg_last_error();
}

TEST_F(LayoutJson, NotJson)
{
    std::string whole = document();
    for (size_t length = 0; length < whole.size(); length++)
        ASSERT_EQ(BRG_ERR_FORMAT, read(whole.substr(0, length))) << length;
    EXPECT_NE(std::string::npos, std::string(brg_last_error()).find("line 1"));
    EXPECT_EQ(BRG_ERR_FORMAT, read(whole + "x"));
    EXPECT_EQ(BRG_ERR_FORMAT, read(std::string("\0\0", 2)));
    EXPECT_EQ(BRG_ERR_FORMAT, read("{\"schema\":1,\"schema\":1}"));
    EXPECT_EQ(BRG_ERR_FORMAT, read(std::string(100000, '[')));
}

TEST_F(LayoutJson, DamagedDocumentsAreRefusedOrHoldTogether)
{
    auto rng = test_rng(8);
    const std::string whole = document(), alphabet = "0123456789-.,:{}[]\"alpw";
    int refusals = 0;
    for (int i = 0; i < 2000 * BRIGADE_TEST_STRESS; i++) {
        std::string text = whole;
        for (size_t n = 1 + rng() % 3; n > 0; n--)
            text[rng() % text.size()] = alphabet[rng() % alphabet.size()];
        brg_layout *layout = nullptr;
        brg_status status = brg_layout_from_json(text.data(), text.size(), params.data(),
                                                 (int)params.size(), &layout);
        if (status == BRG_OK)
            EXPECT_EQ(BRG_OK, brg_layout_check(layout)) << text;
        else
            EXPECT_EQ(BRG_ERR_FORMAT, status) << text;
        refusals += status != BRG_OK;
        brg_layout_destroy(layout);
    }
    EXPECT_GT(refusals, 1000);
}

TEST_F(LayoutJson, NullPointers)
{
    brg_layout *layout = nullptr;
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT,
              brg_layout_from_json(nullptr, 0, params.data(), (int)params.size(), &layout));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT,
              brg_layout_from_json("{}", 2, params.data(), (int)params.size(), nullptr));
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, brg_layout_from_json("{}", 2, nullptr, 3, &layout));
}

TEST_F(LayoutJson, EveryFieldIsNeededAndHasItsType)
{
    json_t *root = json_loads(document().c_str(), 0, nullptr);
    struct {
        const char *where;
        std::function<json_t *(json_t *)> find;
    } objects[] = {
        {"", [](json_t *r) { return r; }},
        {"buffers[1].", [](json_t *r) { return buffer(r, 1); }},
        {"buffers[1].buckets[1].", [](json_t *r) { return bucket(r, 1, 1); }},
        {"buffers[1].params[3].", [](json_t *r) { return param(r, 1, 3); }},
    };
    int fields = 0;
    for (auto &object : objects) {
        const char *key;
        json_t *value;
        json_object_foreach(object.find(root), key, value)
        {
            std::string field = key, path = object.where + field;
            refused([&](json_t *r) { json_object_del(object.find(r), field.c_str()); },
                    {path, "missing"});
            refused(
                [&](json_t *r) { json_object_set_new(object.find(r), field.c_str(), json_true()); },
                {path, "a truth value"});
            fields++;
        }
    }
    EXPECT_EQ(5 + 9 + 3 + 5, fields);
    json_decref(root);
}

TEST_F(LayoutJson, ElementsHaveTheirType)
{
    refused(
        [](json_t *r) { json_array_set_new(json_object_get(r, "buffers"), 0, json_integer(3)); },
        {"buffers[0]", "an object"});
    refused(
        [](json_t *r) {
            json_array_set_new(json_object_get(buffer(r, 0), "buckets"), 0, json_array());
        },
        {"buffers[0].buckets[0]", "an object"});
    refused(
        [](json_t *r) {
            json_array_set_new(json_object_get(buffer(r, 1), "params"), 2, json_string("a"));
        },
        {"buffers[1].params[2]", "an object"});
    EXPECT_EQ(BRG_ERR_FORMAT, read("[]"));
}

TEST_F(LayoutJson, HeadIsChecked)
{
    refused([](json_t *r) { set(r, "schema", 2); }, {"schema is 2"});
    refused([](json_t *r) { json_object_set_new(r, "algorithm", json_string("best")); },
            {"algorithm", "\"best\""});
    refused([](json_t *r) { json_object_set_new(r, "packing", json_string("")); }, {"packing"});
    refused([](json_t *r) { json_object_set_new(r, "packing", json_null()); }, {"packing", "null"});
    refused([](json_t *r) { set(r, "dp", 0); }, {"dp is 0"});
    refused([](json_t *r) { set(r, "dp", 1ll << 40); }, {"dp"});
    refused([](json_t *r) { set(r, "dp", 4); }, {"2 shards, expected 4"});
    refused([](json_t *r) { set(buffer(r, 0), "shards", 0); }, {"shards is 0"});
    for (const char *key : {"", "bf16", "bf16/fp32", "bf16/fp32/dense", "xx/fp32/dense/lw",
                            "bf16/fp32/dense/lw/", "bf16/fp32/other/lw", "//dense/std"})
        refused([&](json_t *r) { json_object_set_new(buffer(r, 0), "key", json_string(key)); },
                {"buffers[0].key", "expected"});
}

TEST_F(LayoutJson, ParametersMustBeThoseExpected)
{
    refused([](json_t *r) { json_object_set_new(param(r, 1, 0), "name", json_string("zz")); },
            {"no parameter \"zz\""});
    refused([](json_t *r) { json_object_set_new(param(r, 1, 0), "name", json_string("a")); },
            {"\"a\"", "second time"});
    refused([](json_t *r) { json_array_remove(json_object_get(buffer(r, 1), "params"), 1); },
            {"bucket 0 has 8192 unpadded elements, expected 4096"});
    refused(
        [](json_t *r) {
            json_array_remove(json_object_get(buffer(r, 0), "params"), 1);
            set(buffer(r, 0), "numel_unpadded", 64);
        },
        {"\"bias\" is in no buffer"});
    refused([](json_t *r) { json_array_remove(json_object_get(r, "buffers"), 0); },
            {"in no buffer"});
    refused(
        [](json_t *r) {
            json_object_set_new(buffer(r, 0), "key", json_string("fp32/fp32/dense/std"));
        },
        {"belongs in buffer bf16/fp32/dense/std"});
    refused(
        [](json_t *r) {
            json_object_set_new(buffer(r, 0), "key", json_string("bf16/fp32/dense/lw"));
        },
        {""});
    refused([](json_t *r) { json_array_append(json_object_get(r, "buffers"), buffer(r, 0)); },
            {"same key"});
    refused(
        [](json_t *r) {
            json_t *list = json_object_get(buffer(r, 1), "params");
            for (int i = 0; i < 3; i++)
                json_array_append(list, param(r, 1, 0));
        },
        {"7 parameters"});
}

TEST_F(LayoutJson, PlacesAreChecked)
{
    refused([](json_t *r) { set(param(r, 1, 1), "start", 4095); }, {"expected 4096 elements"});
    refused(
        [](json_t *r) {
            set(param(r, 1, 1), "start", 4032);
            set(param(r, 1, 1), "end", 8128);
        },
        {"\"c\"", "not inside shard 1 of bucket 0"});
    refused(
        [](json_t *r) {
            set(param(r, 1, 1), "start", 0);
            set(param(r, 1, 1), "end", 4096);
            set(param(r, 1, 1), "shard", 0);
        },
        {"\"c\"", "overlaps", "\"d\""});
    refused([](json_t *r) { set(param(r, 1, 0), "shard", 1); }, {"\"d\"", "not inside shard 1"});
    refused([](json_t *r) { set(param(r, 1, 0), "shard", 2); }, {"\"d\"", "shard 2"});
    refused([](json_t *r) { set(param(r, 1, 0), "shard", -1); }, {"\"d\"", "shard -1"});
    refused([](json_t *r) { set(param(r, 0, 0), "shard", 0); }, {"\"norm\"", "shard 0"});
    refused([](json_t *r) { set(param(r, 1, 3), "bucket", 2); }, {"bucket 2 of 2"});
    refused([](json_t *r) { set(param(r, 1, 3), "bucket", 0); }, {"not inside bucket 0"});
    refused(
        [](json_t *r) {
            set(param(r, 0, 0), "start", 32);
            set(param(r, 0, 0), "end", 96);
        },
        {"\"norm\"", "starts at 32", "multiple of 64"});
    refused(
        [](json_t *r) { // the later bucket's parameters first
            json_t *list = json_object_get(buffer(r, 1), "params");
            json_t *first = json_incref(json_array_get(list, 0));
            json_array_remove(list, 0);
            json_array_append_new(list, first);
        },
        {"listed behind"});
    refused(
        [](json_t *r) { // against backprop order
            json_object_set_new(param(r, 1, 0), "name", json_string("a"));
            json_object_set_new(param(r, 1, 2), "name", json_string("d"));
            json_object_set_new(param(r, 1, 3), "name", json_string("b"));
        },
        {"backprop order"});
}

TEST_F(LayoutJson, BucketsAreChecked)
{
    refused([](json_t *r) { set(bucket(r, 1, 1), "start", 8191); }, {"bucket 1 starts at 8191"});
    refused([](json_t *r) { set(bucket(r, 1, 1), "start", 8193); }, {"bucket 1 starts at 8193"});
    refused([](json_t *r) { set(bucket(r, 1, 1), "end", 16385); }, {"multiple of 2"});
    refused([](json_t *r) { set(bucket(r, 1, 1), "end", 100); }, {"ends at 100"});
    refused([](json_t *r) { set(bucket(r, 1, 1), "end", INT64_MAX); }, {"end"});
    refused([](json_t *r) { set(bucket(r, 1, 0), "numel_unpadded", 8191); }, {"8191 unpadded"});
    refused([](json_t *r) { set(bucket(r, 1, 0), "numel_unpadded", 8193); }, {"8193 unpadded"});
    refused([](json_t *r) { set(bucket(r, 0, 0), "numel_unpadded", 127); }, {"at least 128"});
    refused(
        [](json_t *r) {
            json_array_append_new(
                json_object_get(buffer(r, 1), "buckets"),
                json_pack("{s:i,s:i,s:i}", "start", 16384, "end", 16384, "numel_unpadded", 0));
        },
        {"bucket 2 has no parameter"});
}

TEST_F(LayoutJson, SumsAreChecked)
{
    for (const char *field : {"numel", "numel_unpadded", "padding"})
        refused([&](json_t *r) { set(buffer(r, 1), field, 12345); }, {field, "12345"});
    for (const char *field : {"overhead", "ns_ratio"})
        refused([&](json_t *r) { json_object_set_new(buffer(r, 1), field, json_real(1.5)); },
                {field, "1.5"});
}

TEST_F(LayoutJson, OtherAlgorithms)
{
    for (brg_algorithm algorithm : {BRG_FLAT, BRG_ELEMENTWISE}) {
        EXPECT_EQ(BRG_OK, changed([](json_t *) {}, algorithm)) << brg_last_error();
        EXPECT_NE(std::string::npos, document(algorithm).find("\"packing\":null"));
        refused([](json_t *r) { json_object_set_new(r, "algorithm", json_string("layerwise")); },
                {"packing"}, algorithm);
        refused(
            [](json_t *r) {
                json_object_set_new(r, "algorithm", json_string("layerwise"));
                json_object_set_new(r, "packing", json_string("lpt"));
            },
            {"belongs in buffer"}, algorithm);
    }
    refused([](json_t *r) { set(bucket(r, 0, 0), "numel_unpadded", 1); }, {"expected its length"},
            BRG_FLAT);
    refused( // a gap means padded starts, and then all of them are
        [](json_t *r) {
            json_t *last = param(r, 0, 5),
                   *end =
                       bucket(r, 0, json_array_size(json_object_get(buffer(r, 0), "buckets")) - 1);
            for (const char *field : {"start", "end"})
                set(last, field, json_integer_value(json_object_get(last, field)) + 1);
            for (const char *field : {"end", "numel_unpadded"})
                set(end, field, json_integer_value(json_object_get(end, field)) + 1);
        },
        {"multiple of 64"}, BRG_FLAT);
}

TEST_F(LayoutJson, BadParametersAreRefusedFirst)
{
    std::string text = document();
    params[1].shape[0] = -1;
    EXPECT_EQ(BRG_ERR_INVALID_ARGUMENT, read(text));
    params[1].shape[0] = 32; // other than in the document
    EXPECT_EQ(BRG_ERR_FORMAT, read(text));
    EXPECT_NE(std::string::npos, std::string(brg_last_error()).find("\"a\""));
}

} // namespace
