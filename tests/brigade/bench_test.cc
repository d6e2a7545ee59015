/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks of a device, tiny, on the host device. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <sys/stat.h>

#include "tests/brigade/command.h"
#include "tests/brigade/json.h"

namespace
{
using Args = std::vector<std::string>;

double number_of(json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

std::string string_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

CommandResult bench(Args args, CommandOptions options = {})
{
    args.insert(args.begin(), "bench");
    args.insert(args.end(), {"--device", "host"});
    return brigade(args, options);
}

/* A peer in place of Python: any program that speaks the protocol. */
std::string fake_python(const TempDir &dir, const std::string &body)
{
    std::string path = dir.path("python");
    write_file(path, "#!/bin/sh\n" + body);
    chmod(path.c_str(), 0755);
    return path;
}

const char *const adamw[] = {"adamw", "-N", "4096", "--params", "4", "-n", "2", "--form", "fp32"};
Args adamw_with(const Args &more)
{
    Args args(std::begin(adamw), std::end(adamw));
    args.insert(args.end(), more.begin(), more.end());
    return args;
}
} // namespace

TEST(Bench, Bucket)
{
    auto r = bench({"bucket", "-b", "16K", "-e", "64K", "-n", "2", "--buckets", "3", "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    Json json(r.out);
    EXPECT_EQ(number_of(json.root, "ranks"), 1);
    ASSERT_EQ(json_array_size(json["results"]), 4u);
    size_t i;
    json_t *row;
    json_array_foreach(json["results"], i, row)
    {
        EXPECT_EQ(string_of(row, "op"), i % 2 ? "all-gather" : "reduce-scatter");
        EXPECT_EQ(number_of(row, "bytes"), i < 2 ? 16384 : 65536);
        EXPECT_EQ(number_of(row, "buckets"), 3);
        EXPECT_GT(number_of(row, "scheduler_us"), 0);
        EXPECT_GT(number_of(row, "bare_us"), 0);
    }
}

TEST(Bench, BucketOnTwoRanksIsPrintedByOne)
{
    auto args = brigade_args({"bench", "bucket", "--device", "host", "-b", "16K", "-e", "16K", "-n",
                              "2", "--buckets", "2"});
    Args command = {"run", "-n", "2", "--"};
    command.insert(command.end(), args.begin(), args.end());
    auto r = brigade(command);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(count_of(r.out, "reduce-scatter"), 1) << r.out;
    EXPECT_EQ(count_of(r.out, "2 rank(s)"), 1) << r.out;
}

TEST(Bench, HostCost)
{
    auto r = bench({"host-cost", "--params", "10", "-n", "3", "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    Json json(r.out);
    EXPECT_EQ(number_of(json.root, "params"), 10);
    EXPECT_EQ(json_array_size(json["calls"]), 5u);
    EXPECT_GT(number_of(json.root, "cpu_us"), 0);
    EXPECT_NE(bench({"host-cost", "-n", "1"}).out.find("brg_finish_grad_sync"), std::string::npos);
}

TEST(Bench, AdamwWithoutPeer)
{
    auto r = bench(adamw_with({"--no-peer", "--json"}));
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    Json json(r.out);
    ASSERT_EQ(json_array_size(json["results"]), 2u);
    json_t *step = json_array_get(json["results"], 0);
    EXPECT_EQ(string_of(step, "what"), "step");
    EXPECT_EQ(number_of(step, "bytes"), 34 * 4096);
    EXPECT_GT(number_of(step, "ratio_to_copy"), 0);
    EXPECT_EQ(string_of(json_array_get(json["results"], 1), "what"), "copy");
}

TEST(Bench, PeerIsAskedOncePerMeasurement)
{
    TempDir dir;
    std::string python =
        fake_python(dir, "echo '{\"peers\": [\"fake\"]}'\n"
                         "while read item; do echo \"$item\" >> '" +
                             dir.path("asked") + "'; echo '{\"us\": [1e6]}'; done\n");
    auto r = bench(adamw_with({"--python", python, "--json"}));
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    Json json(r.out);
    json_t *step = json_array_get(json["results"], 0), *peer = json_array_get(json["results"], 2);
    EXPECT_EQ(string_of(peer, "what"), "fake");
    EXPECT_EQ(number_of(peer, "us"), 1e6);
    EXPECT_NEAR(number_of(step, "speedup") * number_of(step, "us"), 1e6, 1);
    EXPECT_EQ(read_file(dir.path("asked")), "0\n0\n0\n0\n0\n") << "3 to warm up, 2 that count";
}

TEST(Bench, APeerThatIsMissingOrBrokenIsOneLine)
{
    TempDir dir;
    auto expect = [](const CommandResult &r, const std::string &why) {
        EXPECT_EQ(r.code, 0);
        EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
        EXPECT_NE(r.err.find("no peer: " + why), std::string::npos) << r.err;
        EXPECT_NE(r.out.find("copy"), std::string::npos) << r.out;
    };
    expect(bench(adamw_with({"--python", "/nonexistent/python"})), "cannot run /nonexistent");
    expect(bench(adamw_with({"--python", "/bin/false"})), "the script ended");
    expect(bench(adamw_with({"--python", fake_python(dir, "echo '{\"unavailable\": \"no torch\"}'\n"
                                                          "cat > /dev/null\n")})),
           "no torch");
    expect(bench(adamw_with({"--python", fake_python(dir, "echo hello\n")})), "the script said");
    expect(bench(adamw_with({"--python", fake_python(dir, "echo '{\"peers\": [\"x\"]}'\n"
                                                          "read item\n")})),
           "the script ended");
}

TEST(Bench, NewtonSchulz)
{
    TempDir dir;
    std::string python = fake_python(dir, "echo '{\"peers\": [\"one\", \"two\"]}'\n"
                                          "while read item; do echo '{\"us\": [null, 5]}'; done\n");
    auto r = bench({"newton-schulz", "--shape", "96x64,64x80x2", "-n", "2", "--check", "--json",
                    "--python", python});
    ASSERT_EQ(r.code, 0) << r.err;
    Json json(r.out);
    ASSERT_EQ(json_array_size(json["results"]), 2u);
    size_t i;
    json_t *row;
    json_array_foreach(json["results"], i, row)
    {
        EXPECT_EQ(number_of(row, "batch"), i + 1);
        EXPECT_LT(number_of(row, "error"), 1e-5);
        double flops = i == 0 ? 5 * (4. * 64 * 64 * 96 + 2. * 64 * 64 * 64)
                              : 2 * 5 * (4. * 64 * 64 * 80 + 2. * 64 * 64 * 64);
        EXPECT_NEAR(number_of(row, "tflops") * number_of(row, "us") * 1e6 / flops, 1, 1e-3);
        json_t *peers = json_object_get(row, "peers");
        ASSERT_EQ(json_array_size(peers), 2u) << "of two processes the first is not measured";
        EXPECT_EQ(string_of(json_array_get(peers, 0), "name"), "two");
    }
    r = bench({"newton-schulz", "--shape", "32x32", "-n", "1", "--json", "--peer", "torch",
               "--python", python});
    ASSERT_EQ(r.code, 0) << r.err;
    Json one(r.out);
    EXPECT_EQ(json_array_size(json_object_get(json_array_get(one["results"], 0), "peers")), 1u);
    r = bench({"newton-schulz", "--shape", "32x32", "-n", "1", "--peer-timeout", "1", "--python",
               fake_python(dir, "echo '{\"peers\": [\"slow\"]}'\nsleep 3\n")});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("more than 1 s"), std::string::npos) << r.err;
    EXPECT_NE(r.out.find("32x32"), std::string::npos) << r.out;
}

TEST(Bench, StepOfAKnownModelAndItsTrace)
{
    TempDir dir;
    auto r = bench({"step", "-t", "4", "-n", "4", "--bucket-size", "100000", "--json", "-o",
                    dir.path("trace")});
    ASSERT_EQ(r.code, 0) << r.err;
    Json json(r.out);
    EXPECT_EQ(number_of(json.root, "steps"), 4);
    EXPECT_GT(number_of(json.root, "step_us"), 0);
    EXPECT_GT(number_of(json.root, "ratio"), 0);
    EXPECT_GE(number_of(json.root, "buckets"), 2);
    EXPECT_EQ(json_array_size(json["exposed"]), (size_t)number_of(json.root, "buckets"));
    EXPECT_EQ(brigade({"report", dir.path("trace")}).code, 0);
}

TEST(Bench, StepOfAFileOnTwoRanks)
{
    TempDir dir;
    write_file(dir.path("model"),
               R"([{"name": "e", "shape": [64, 32], "dtype": "bf16", "embedding_or_output": true},
                   {"name": "w", "shape": [32, 32], "dtype": "bf16"},
                   {"name": "b", "shape": [32], "dtype": "fp32"}])");
    std::string python = fake_python(dir, "echo \"$*\" > '" + dir.path("args") +
                                              "'\necho '{\"peers\": [\"fake\"]}'\n"
                                              "while read item; do echo '{\"us\": [4e9]}'; done\n");
    auto args = brigade_args({"bench", "step", "--device", "host", "-m", dir.path("model"), "-t",
                              "4", "-n", "4", "--python", python});
    Args command = {"run", "-n", "2", "--"};
    command.insert(command.end(), args.begin(), args.end());
    auto r = brigade(command);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(count_of(r.out, "without communication"), 1) << r.out;
    EXPECT_EQ(count_of(r.out, "3 parameters, 3104 elements"), 1) << r.out;
    EXPECT_EQ(count_of(r.out, "4000000.000 ms"), 1) << r.out;
    EXPECT_NE(read_file(dir.path("args")).find("cpu 4 4 64x32e,32x32m,32\n"), std::string::npos);
}

TEST(Bench, BadOptionsAreUsageErrors)
{
    for (const Args &bad : std::vector<Args>{{"bucket", "-b", "2M", "-e", "1M"},
                                             {"bucket", "-d", "int4"},
                                             {"bucket", "surplus"},
                                             {"adamw", "-N", "1"},
                                             {"adamw", "--form", "fp8"},
                                             {"host-cost", "--params", "1"},
                                             {"newton-schulz", "--shape", "64"},
                                             {"newton-schulz", "--shape", "64x64x"},
                                             {"newton-schulz", "--shape", "64x64x0"},
                                             {"newton-schulz", "--shape", "64x64,,32x32"},
                                             {"newton-schulz", "--shape", ""},
                                             {"step", "-t", "0"},
                                             {"step", "--dtype", "bf16"},
                                             {"step", "--overlap", "maybe"}}) {
        auto r = bench(bad);
        EXPECT_EQ(r.code, 2) << bad[0] << " " << bad.back() << ": " << r.err;
        EXPECT_NE(r.err.find("brigade bench " + bad[0]), std::string::npos) << r.err;
    }
}

TEST(Bench, InputsThatCannotBeReadAreNamed)
{
    TempDir dir;
    EXPECT_EQ(bench({"step", "-m", dir.path("missing")}).code, 3);
    write_file(dir.path("model"), R"([{"name": "w", "shape": [4, 4], "dtype": "i8"}])");
    auto r = bench({"step", "-m", dir.path("model")});
    EXPECT_EQ(r.code, 3);
    EXPECT_NE(r.err.find("\"w\" is i8"), std::string::npos) << r.err;
    write_file(dir.path("model"), "[]");
    EXPECT_EQ(bench({"step", "-m", dir.path("model")}).code, 3);
}

TEST(Bench, Shim)
{
    auto r = brigade({"bench", "shim", "-n", "1", "--pairs", "2", "--json", "--no-peer"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    Json json(r.out);
    EXPECT_GT(number_of(json.root, "untimed_ns"), number_of(json.root, "direct_ns"));
    EXPECT_GT(number_of(json.root, "step_ms"), 0);
    EXPECT_GT(number_of(json.root, "traced_step_ms"), 0);
    EXPECT_LE(number_of(json.root, "step_ratio_low"), number_of(json.root, "step_ratio"));
    EXPECT_GE(number_of(json.root, "step_ratio_high"), number_of(json.root, "step_ratio"));
    r = brigade({"bench", "shim", "-n", "1", "--pairs", "0"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.out.find("DDP"), std::string::npos) << r.out;
}

TEST(Bench, ShimBesideAJobWithoutIt)
{
    TempDir dir;
    auto shim = [&](const std::string &jobs) {
        return brigade({"bench", "shim", "-n", "2", "--pairs", "3", "--json", "--python",
                        fake_python(dir, "echo '{\"peers\": [\"fake\"]}'\n" + jobs)});
    };
    const std::string asked = dir.path("asked");
    auto r = shim("if [ -n \"$BRIGADE_TRACE\" ]; then echo > \"$BRIGADE_TRACE/rank-0.ring\"; us=3; "
                  "else us=2; fi\nwhile read steps; do echo $us:$steps >> '" +
                  asked + "'; echo \"{\\\"us\\\": [$us]}\"; done\n");
    ASSERT_EQ(r.code, 0) << r.err;
    Json json(r.out);
    EXPECT_GT(number_of(json.root, "step_ratio"), 0);
    EXPECT_EQ(number_of(json.root, "torch_step_ms"), 0.002);
    EXPECT_EQ(number_of(json.root, "torch_traced_step_ms"), 0.003);
    EXPECT_EQ(number_of(json.root, "torch_step_ratio"), 1.5);
    EXPECT_EQ(read_file(asked), "2:4\n3:4\n3:4\n2:4\n2:4\n3:4\n") << "3 pairs in changing order";
    r = shim("while read steps; do echo '{\"us\": [1]}'; done\n");
    EXPECT_EQ(r.code, 1);
    EXPECT_NE(r.err.find("the shim recorded nothing"), std::string::npos) << r.err;
    r = shim(
        "[ -z \"$BRIGADE_TRACE\" ] || exit\nwhile read steps; do echo '{\"us\": [1]}'; done\n");
    EXPECT_EQ(r.code, 1) << "the job with the shim ends";
    r = brigade({"bench", "shim", "-n", "2", "--pairs", "1", "--json", "--python", "/bin/false"});
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(lines_of(r.err).size(), 1u) << r.err;
    EXPECT_EQ(r.out.find("torch"), std::string::npos) << r.out;
}
