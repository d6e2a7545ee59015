// SPDX-License-Identifier: Apache-2.0
// The command `brigade plan`, run as a user runs it.
#include <gtest/gtest.h>

#include <jansson.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/layout/golden.h"

namespace
{

struct Outcome {
    int code;
    std::string out, err;
};

class PlanCommand : public testing::Test
{
  protected:
    std::string dir;

    void SetUp() override
    {
        char name[] = "/tmp/brigade-plan-XXXXXX";
        ASSERT_NE(nullptr, mkdtemp(name));
        dir = name;
    }

    void TearDown() override
    {
        for (const char *file : {"params", "layout", "out", "err"})
            unlink((dir + "/" + file).c_str());
        rmdir(dir.c_str());
    }

    std::string file(const std::string &name, const std::string &text)
    {
        std::ofstream(dir + "/" + name) << text;
        return dir + "/" + name;
    }

    static std::string slurp(const std::string &path)
    {
        std::ifstream in(path);
        return std::string(std::istreambuf_iterator<char>(in), {});
    }

    Outcome run(const std::string &arguments)
    {
        std::string line =
            std::string(BRIGADE_COMMAND) + " " + arguments + " >" + dir + "/out 2>" + dir + "/err";
        int status = std::system(line.c_str());
        return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(dir + "/out"),
                slurp(dir + "/err")};
    }

    // One clear line on stderr that has `word`, nothing on stdout.
    void fails(const std::string &arguments, int code, const std::string &word)
    {
        Outcome got = run(arguments);
        EXPECT_EQ(code, got.code) << arguments << "\n" << got.err;
        EXPECT_EQ("", got.out) << arguments;
        EXPECT_NE(std::string::npos, got.err.find(word)) << arguments << "\n" << got.err;
        EXPECT_EQ(0u, got.err.find("brigade plan: ")) << got.err;
        if (code == 3) {
            EXPECT_EQ(got.err.size() - 1, got.err.find('\n')) << got.err;
        }
    }

    void input_fails(const std::string &params, const std::string &word)
    {
        fails("plan --dp 2 --params " + file("params", params), 3, word);
    }

    std::string good()
    {
        return file("params",
                    R"([{"name":"embed","shape":[100,8],"dtype":"bf16","embedding_or_output":true},
                        {"name":"w1","shape":[64,64],"dtype":"bf16","layerwise":false},
                        {"name":"w2","shape":[64,32],"dtype":"bf16","use_muon":false},
                        {"name":"e1","shape":[64,32],"dtype":"bf16","expert_parallel":true},
                        {"name":"s","shape":[],"dtype":"fp32","use_muon":null},
                        {"name":"q","shape":[0,4],"dtype":"bf16","quantized":true,
                         "gtp_remat_size":2,"shared_embedding":true}])");
    }
};

// What a golden model file of the tests looks like to the command.
std::string params_json(golden::Model &model)
{
    json_t *list = json_array();
    for (const brg_param &p : model.params.get()) {
        json_t *shape = json_array();
        for (int i = 0; i < p.num_dims; i++)
            json_array_append_new(shape, json_integer(p.shape[i]));
        json_t *item = json_pack("{s:s, s:o, s:s, s:b, s:b, s:b}", "name", p.name, "shape", shape,
                                 "dtype", brg_dtype_str(p.dtype), "shared_embedding",
                                 (int)(p.flags & BRG_PARAM_SHARED_EMBEDDING), "expert_parallel",
                                 (int)(p.flags & BRG_PARAM_EXPERT_PARALLEL), "embedding_or_output",
                                 (int)(p.flags & BRG_PARAM_EMBEDDING_OR_OUTPUT));
        if (p.flags & BRG_PARAM_NO_MUON)
            json_object_set_new(item, "use_muon", json_false());
        if (p.flags & BRG_PARAM_QUANTIZED)
            json_object_set_new(item, "quantized", json_true());
        if (p.ns_row_multiplier)
            json_object_set_new(item, "gtp_remat_size", json_integer(p.ns_row_multiplier));
        json_array_append_new(list, item);
    }
    char *text = json_dumps(list, 0);
    std::string copy = text;
    free(text);
    json_decref(list);
    return copy;
}

std::string digest_of(json_t *buffer)
{
    std::string lines;
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(buffer, "params"), i, item)
    {
        lines += json_string_value(json_object_get(item, "name"));
        for (const char *field : {"start", "end", "bucket"})
            lines += " " + std::to_string(json_integer_value(json_object_get(item, field)));
        lines += "\n";
    }
    return golden::sha256(lines);
}

std::string arguments_of(const golden::Case &c)
{
    std::string text = " --dp " + std::to_string(c.dp) + " --expert-dp " +
                       std::to_string(c.expert_dp) + (c.pad ? " --pad-bus-bandwidth" : "");
    if (c.num_buckets)
        text += " --num-buckets " + std::to_string(c.num_buckets);
    else
        text += " --bucket-size " + (c.bucket_size < 0 ? "none" : std::to_string(c.bucket_size));
    if (c.algorithm == "default")
        return text + " --algorithm flat";
    if (c.algorithm == "distopt")
        return text + " --algorithm elementwise";
    std::string packing = c.algorithm == "lpt_v1"   ? "lpt"
                          : c.algorithm == "absorb" ? "absorb"
                                                    : "ns-balanced";
    return text + " --packing " + packing;
}

TEST_F(PlanCommand, PrintsTheRecordedLayouts)
{
    for (const char *name : {"synth_02", "mamba_hybrid_odd", "moe_dsv3_small"}) {
        golden::Model model = golden::load_model(name);
        std::string params = file("params", params_json(model));
        for (size_t i = 0; i < model.cases.size(); i += 23) {
            const golden::Case &c = model.cases[i];
            std::string arguments = "plan --json --params " + params + arguments_of(c);
            SCOPED_TRACE(std::string(name) + ": " + arguments);
            Outcome got = run(arguments);
            ASSERT_EQ(0, got.code) << got.err;
            EXPECT_EQ("", got.err);
            json_t *root = json_loads(got.out.c_str(), 0, nullptr);
            ASSERT_TRUE(root);
            EXPECT_EQ(c.dp, json_integer_value(json_object_get(root, "dp")));
            std::map<std::string, std::string> digests;
            size_t b;
            json_t *buffer;
            json_array_foreach(json_object_get(root, "buffers"), b, buffer)
            {
                digests[json_string_value(json_object_get(buffer, "key"))] = digest_of(buffer);
            }
            for (int record : c.records) {
                const golden::Record &want = model.records[record];
                EXPECT_EQ(want.sha256, digests[want.key]) << want.key;
            }
            json_decref(root);
        }
    }
}

TEST_F(PlanCommand, PrintsATable)
{
    Outcome got = run("plan --dp 4 --expert-dp 2 --num-buckets 2 --params " + good());
    EXPECT_EQ(0, got.code) << got.err;
    EXPECT_EQ("", got.err);
    for (const char *word : {"layerwise, packing ns-balanced, dp 4, expert dp 2", "padding %",
                             "NS ratio", "bf16/fp32/dense/lw", "bf16/fp32/expert/lw",
                             "fp32/fp32/dense/std", "u8/fp32/dense/lw", "4,096", "total"})
        EXPECT_NE(std::string::npos, got.out.find(word)) << word << "\n" << got.out;
}

TEST_F(PlanCommand, ReadsStandardInput)
{
    std::string params = good();
    Outcome piped = run("plan --json --dp 2 --params - <" + params);
    EXPECT_EQ(0, piped.code) << piped.err;
    EXPECT_EQ(run("plan --json --dp 2 --params " + params).out, piped.out);
}

TEST_F(PlanCommand, AnEmptyListIsALayout)
{
    Outcome got = run("plan --json --dp 2 --params " + file("params", "[]"));
    EXPECT_EQ(0, got.code);
    EXPECT_EQ("{\"schema\":1,\"algorithm\":\"layerwise\",\"packing\":\"ns-balanced\",\"dp\":2,"
              "\"buffers\":[]}\n",
              got.out);
    EXPECT_EQ(0, run("plan --dp 2 --params " + file("params", "[]")).code);
}

TEST_F(PlanCommand, ChecksALayout)
{
    std::string params = good();
    for (const char *algorithm : {"layerwise", "elementwise", "flat", "flat --pad-param-starts"}) {
        Outcome made =
            run("plan --json --dp 4 --algorithm " + std::string(algorithm) + " --params " + params);
        std::string layout = file("layout", made.out);
        Outcome got = run("plan --params " + params + " --check " + layout);
        EXPECT_EQ(0, got.code) << got.err;
        EXPECT_EQ(layout + ": valid\n", got.out);
        EXPECT_EQ("{\"schema\":1,\"valid\":true,\"problem\":null}\n",
                  run("plan --json --params " + params + " --check " + layout).out);
    }
    std::string text = slurp(dir + "/layout"), from = "\"name\":\"w1\"";
    text.replace(text.find(from), from.size(), "\"name\":\"w9\"");
    std::string layout = file("layout", text);
    fails("plan --params " + params + " --check " + layout, 1, "no parameter \"w9\"");
    Outcome got = run("plan --json --params " + params + " --check " + layout);
    EXPECT_EQ(1, got.code);
    EXPECT_NE(std::string::npos, got.out.find("\"valid\":false"));
    fails("plan --params " + params + " --check " + file("layout", "{\"schema\":2}"), 3,
          "schema 1");
    fails("plan --params " + params + " --check " + file("layout", "{"), 3, "line 1");
    fails("plan --params " + params + " --check " + dir + "/none", 3, "cannot open");
    fails("plan --params " + params + " --check " + layout + " --dp 2", 2, "--check");
    fails("plan --params - --check -", 2, "standard input");
}

TEST_F(PlanCommand, BadOptions)
{
    std::string params = " --params " + good() + " ";
    fails("plan --dp 2", 2, "--params");
    fails("plan" + params, 2, "--dp");
    fails("plan --dp 0" + params, 2, "dp");
    fails("plan --dp -1" + params, 2, "dp");
    fails("plan --dp two" + params, 2, "dp");
    fails("plan --dp 4294967296" + params, 2, "dp");
    fails("plan --dp 2 --expert-dp 0" + params, 2, "expert-dp");
    fails("plan --dp 2 --num-buckets 0" + params, 2, "num-buckets");
    fails("plan --dp 2 --bucket-size 100 --num-buckets 2" + params, 2, "expected one");
    fails("plan --dp 2 --bucket-size none --num-buckets 2" + params, 2, "expected one");
    for (const char *size : {"-1", "''", "many", "10x", "1e3", "99999999999999999999"})
        fails("plan --dp 2 --bucket-size=" + std::string(size) + params, 2, "bucket-size");
    fails("plan --dp 2 --algorithm best" + params, 2, "algorithm");
    fails("plan --dp 2 --packing dense" + params, 2, "packing");
    fails("plan --dp 2 --pad-bus-bandwith" + params, 2, "pad-bus-bandwidth");
    fails("plan --dp 2 extra" + params, 2, "extra");
}

TEST_F(PlanCommand, BadInput)
{
    fails("plan --dp 2 --params " + dir + "/none", 3, "cannot open");
    fails("plan --dp 2 --params " + dir, 3, dir);
    input_fails("", "line");
    input_fails("[\n\n{\"name\" 3}]", "line 3");
    input_fails("{}", "not an array");
    input_fails("[3]", "parameter 0");
    input_fails(R"([{"shape":[1],"dtype":"bf16"}])", "name is missing");
    input_fails(R"([{"name":4,"shape":[1],"dtype":"bf16"}])", "name is not a string");
    input_fails(R"([{"name":"","shape":[1],"dtype":"bf16"}])", "no name");
    input_fails(R"([{"name":"w","dtype":"bf16"}])", "shape is missing");
    input_fails(R"([{"name":"w","shape":7,"dtype":"bf16"}])", "shape is not an array");
    input_fails(R"([{"name":"w","shape":[1.5],"dtype":"bf16"}])", "not an integer");
    input_fails(R"([{"name":"w","shape":["1"],"dtype":"bf16"}])", "not an integer");
    input_fails(R"([{"name":"w","shape":[-1],"dtype":"bf16"}])", "\"w\": dimension 0 is -1");
    input_fails(R"([{"name":"w","shape":[1,1,1,1,1,1,1,1,1],"dtype":"bf16"}])", "dimensions");
    input_fails(R"([{"name":"w","shape":[1]}])", "dtype is missing");
    input_fails(R"([{"name":"w","shape":[1],"dtype":3}])", "dtype is not a string");
    input_fails(R"([{"name":"w","shape":[1],"dtype":"bf17"}])", "dtype is not known");
    input_fails(R"([{"name":"w","shape":[1],"dtype":"bf16","use_muon":1}])", "use_muon");
    input_fails(R"([{"name":"w","shape":[1],"dtype":"bf16","quantized":"yes"}])", "quantized");
    input_fails(R"([{"name":"w","shape":[1],"dtype":"bf16","gtp_remat_size":0}])",
                "gtp_remat_size");
    input_fails(
        R"([{"name":"w","shape":[1],"dtype":"bf16"},{"name":"w","shape":[],"dtype":"bf16"}])",
        "both named \"w\"");
    input_fails(R"([{"name":"w","name":"v","shape":[1],"dtype":"bf16"}])", "duplicate");
    input_fails(R"([{"name":"w","shape":[9223372036854775807,2],"dtype":"bf16"}])", "\"w\"");
    input_fails(R"([{"name":"w","shape":[92233720368547758070],"dtype":"bf16"}])", "line 1");
    input_fails(std::string(100000, '['), "line 1");
}

TEST_F(PlanCommand, HelpGoesToStandardOutput)
{
    Outcome got = run("plan --help");
    EXPECT_EQ(0, got.code);
    EXPECT_EQ("", got.err);
    for (const char *word : {"--params", "--bucket-size", "--packing", "--check", "ns-balanced"})
        EXPECT_NE(std::string::npos, got.out.find(word)) << word;
}

} // namespace
