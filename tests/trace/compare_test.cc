// SPDX-License-Identifier: Apache-2.0
/* brigade compare as a user runs it, on traces whose numbers are known. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

#include "sched/trace/series.h"
#include "tests/brigade/command.h"
#include "tests/brigade/json.h"
#include "tests/trace/trace_builder.h"

namespace
{
const uint64_t kUnit = 1000; /* a step of two_bucket_step() is 1 ms */

/* Steps of 1 ms whose lengths wobble by 0.1% each, all times as long as `factor` says. */
void run_write(const TempDir &dir, const std::string &name, double factor, int steps = 30,
               const std::string &second_bucket = "fp32/fp32/dense/lw#0")
{
    mkdir(dir.path(name).c_str(), 0777);
    for (uint32_t rank = 0; rank < 2; rank++) {
        TraceBuilder t(2);
        t.bucket(0, "fp32/fp32/dense/std#0", 8000, 2);
        t.bucket(1, second_bucket, 12000, 2);
        uint64_t begin = 0;
        for (int s = 0; s < steps; s++) {
            uint64_t unit = (uint64_t)((double)kUnit * factor) + (uint64_t)(s * 7 % 11) - 5;
            two_bucket_step(t, (uint32_t)s, begin, unit);
            begin += 1000 * unit;
        }
        t.write(dir.path(name + "/rank-" + std::to_string(rank) + ".ring"), rank);
    }
}

struct Runs {
    TempDir dir;
    Runs()
    {
        run_write(dir, "a", 1);
        run_write(dir, "same", 1);
        run_write(dir, "slow", 1.1);
        run_write(dir, "slower", 1.02);
    }
    CommandResult compare(std::vector<std::string> names, std::vector<std::string> options = {})
    {
        std::vector<std::string> args = {"compare"};
        for (auto &name : names)
            args.push_back(dir.path(name));
        args.insert(args.end(), options.begin(), options.end());
        return brigade(args);
    }
};

json_t *at(json_t *root, std::vector<std::string> path)
{
    for (auto &key : path)
        root = isdigit((unsigned char)key[0]) ? json_array_get(root, std::stoul(key))
                                              : json_object_get(root, key.c_str());
    return root;
}
} // namespace

TEST(Compare, RegressionsAndTheirThreshold)
{
    Runs runs;
    auto r = runs.compare({"a", "same"});
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    EXPECT_EQ(r.err, "");
    EXPECT_HAS(r.out, "no difference detectable");
    EXPECT_HAS(r.out, "no regression of step_ns by more than 3%");

    r = runs.compare({"a", "slow"});
    EXPECT_EQ(r.code, 1);
    EXPECT_HAS(r.out, "+10.0");
    EXPECT_HAS(r.out, "REGRESSION");
    EXPECT_EQ(runs.compare({"slow", "a"}).code, 0);
    EXPECT_HAS(runs.compare({"slow", "a"}).out, "less");

    EXPECT_EQ(runs.compare({"a", "slower"}).code, 0);
    EXPECT_EQ(runs.compare({"a", "slower"}, {"--threshold", "1.5%"}).code, 1);
    EXPECT_EQ(runs.compare({"a", "slow"}, {"-t", "11"}).code, 0);
    EXPECT_EQ(runs.compare({"a", "same", "slow"}).code, 1);
    EXPECT_EQ(runs.compare({"a", "same"}, {"-t", "0"}).code, 0);
}

TEST(Compare, Json)
{
    Runs runs;
    auto r =
        runs.compare({"a", "slow", "same"}, {"--json", "--metric", "exposed_ns", "--rank", "1"});
    EXPECT_EQ(r.code, 1);
    EXPECT_EQ(r.err, "");
    json_t *root = json_loads(r.out.c_str(), JSON_REJECT_DUPLICATES, nullptr);
    ASSERT_NE(root, nullptr) << r.out;
    EXPECT_EQ(json_integer_value(at(root, {"schema"})), 1);
    EXPECT_STREQ(json_string_value(at(root, {"metric"})), "exposed_ns");
    EXPECT_TRUE(json_is_true(at(root, {"regression"})));
    EXPECT_EQ(json_array_size(at(root, {"runs"})), 3u);
    EXPECT_EQ(json_integer_value(at(root, {"runs", "0", "rank"})), 1);
    EXPECT_EQ(json_integer_value(at(root, {"runs", "0", "steps"})), 29);
    EXPECT_STREQ(json_string_value(at(root, {"rows", "0", "name"})), "exposed_ns");
    EXPECT_TRUE(json_is_true(at(root, {"rows", "0", "judged"})));
    EXPECT_TRUE(json_is_false(at(root, {"rows", "1", "judged"})));
    EXPECT_STREQ(json_string_value(at(root, {"rows", "1", "name"})), "step_ns");
    EXPECT_EQ(json_array_size(at(root, {"rows"})), 6u);
    json_t *base = at(root, {"rows", "0", "runs", "0"}),
           *slow = at(root, {"rows", "0", "runs", "1"});
    EXPECT_STREQ(json_string_value(at(base, {"verdict"})), "baseline");
    EXPECT_STREQ(json_string_value(at(slow, {"verdict"})), "more");
    EXPECT_NEAR(json_number_value(at(base, {"median_ns"})), 250 * 1000, 1500);
    EXPECT_NEAR(json_number_value(at(slow, {"difference_percent"})), 10, 0.2);
    EXPECT_LT(json_number_value(at(slow, {"low_percent"})), 10);
    EXPECT_GT(json_number_value(at(slow, {"high_percent"})), 10);
    EXPECT_STREQ(json_string_value(at(root, {"rows", "0", "runs", "2", "verdict"})),
                 "no difference detectable");
    json_decref(root);
}

TEST(Compare, ByBucket)
{
    Runs runs;
    auto r = runs.compare({"a", "slow"}, {"--by", "bucket"});
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    EXPECT_HAS(r.out, "comm_ns of buckets");
    EXPECT_HAS(r.out, "fp32/fp32/dense/std#0");
    EXPECT_EQ(count_of(r.out, ": REGRESSION"), 2);
    for (const char *metric : {"wait_ns", "exposed_ns"})
        EXPECT_EQ(runs.compare({"a", "slow"}, {"--by", "bucket", "--metric", metric}).code, 1);

    run_write(runs.dir, "renamed", 1, 30, "other");
    r = runs.compare({"a", "renamed"}, {"--by", "bucket"});
    EXPECT_EQ(r.code, 0);
    EXPECT_HAS(r.out, "2 buckets left out");
    EXPECT_EQ(r.out.find("lw#0"), std::string::npos);
}

TEST(Compare, TooFewStepsAreNoJudgement)
{
    Runs runs;
    run_write(runs.dir, "short", 1, 3);
    run_write(runs.dir, "short-slow", 2, 3);
    auto r = runs.compare({"short", "short-slow"});
    EXPECT_EQ(r.code, 0);
    EXPECT_HAS(r.out, "too few steps");
}

TEST(Compare, WhatCannotBeCompared)
{
    Runs runs;
    auto r = runs.compare({"a", "missing"});
    EXPECT_EQ(r.code, 3);
    EXPECT_EQ(r.out, "");
    EXPECT_HAS(r.err, "missing: cannot be opened");
    mkdir(runs.dir.path("empty").c_str(), 0777);
    EXPECT_EQ(runs.compare({"a", "empty"}).code, 4);
    TraceBuilder nothing(2);
    mkdir(runs.dir.path("nothing").c_str(), 0777);
    nothing.write(runs.dir.path("nothing/rank-0.ring"), 0);
    EXPECT_EQ(runs.compare({"nothing", "a"}).code, 4);
    write_file(runs.dir.path("text"), "no trace\n");
    EXPECT_EQ(runs.compare({"a", "text"}).code, 3);
    EXPECT_EQ(runs.compare({"a", "slow"}, {"--rank", "7"}).code, 4);
    EXPECT_EQ(runs.compare({"a"}).code, 2);
    EXPECT_EQ(runs.compare({}).code, 2);
    for (std::vector<std::string> bad : {std::vector<std::string>{"--threshold", "much"},
                                         {"--threshold", "-1"},
                                         {"--threshold", "3%%"},
                                         {"--metric", "wait_ns"},
                                         {"--metric", "nonsense"},
                                         {"--by", "bucket", "--metric", "step_ns"}})
        EXPECT_EQ(runs.compare({"a", "slow"}, bad).code, 2) << bad[1];
}

TEST(Series, ValuesAreThoseOfTheSteps)
{
    TraceBuilder t;
    t.bucket(0, "zero", 8000, 4);
    t.bucket(1, "one", 12000, 4);
    for (uint32_t s = 0; s < 5; s++)
        two_bucket_step(t, s, 1000 * s);
    brg_analysis_options how{};
    how.warmup_steps = 2;
    brg_series series;
    ASSERT_EQ(brg_trace_series(t.trace(), &how, &series), BRG_OK) << brg_last_error();
    ASSERT_EQ(series.nsteps, 3u);
    const double expected[] = {1000, 750, 450, 250, 0, 150};
    for (int m = 0; m < BRG_SERIES_METRICS; m++)
        for (size_t s = 0; s < series.nsteps; s++)
            EXPECT_EQ(series.values[m][s], expected[m]) << m << " " << s;
    ASSERT_EQ(series.nbuckets, 2u);
    const double of_buckets[2][BRG_BUCKET_METRICS] = {{200, 50, 50}, {250, 200, 200}};
    for (size_t b = 0; b < 2; b++)
        for (int m = 0; m < BRG_BUCKET_METRICS; m++)
            EXPECT_EQ(series.buckets[b].values[m][1], of_buckets[b][m]) << b << " " << m;
    brg_series_free(&series);
}
