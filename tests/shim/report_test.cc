/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run and brigade report around trainers that know nothing of Brigade. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/brigade/command.h"
#include "tests/brigade/json.h"

namespace
{

enum { STEPS = 30, LAYERS = 4, BUCKETS = 2 };

CommandResult train(const std::string &trainer, int ranks, const TempDir &dir,
                    const std::string &timing = "")
{
    CommandOptions options;
    options.env["NCCL_ID_FILE"] = dir.path("id");
    if (!timing.empty())
        options.env["BRIGADE_SHIM_TIMING"] = timing;
    return brigade({"run", "-q", "--no-prefix", "-n", std::to_string(ranks), "-o",
                    dir.path("trace"), "--", trainer, std::to_string(STEPS)},
                   options);
}

/* The report as JSON; NULL after a failure. */
json_t *report(const TempDir &dir)
{
    CommandResult result = brigade({"report", dir.path("trace"), "--skip", "0", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return json_loads(result.out.c_str(), 0, nullptr);
}

/* The trainers are built like the rest: with the address sanitizer, nothing can go under them. */
class ShimReport : public testing::Test
{
  protected:
    void SetUp() override
    {
#ifdef __SANITIZE_ADDRESS__
        GTEST_SKIP() << "built with the address sanitizer";
#endif
    }
};

/* Of the last step nobody knows the end. */
void expect_steps(json_t *root, int64_t buckets, int64_t per_step, const char *func)
{
    json_t *recognition = json_object_get(root, "recognition");
    EXPECT_EQ(integer(json_object_get(root, "steps"), "used"), STEPS - 1);
    EXPECT_EQ(integer(recognition, "steps_lossy"), 0);
    EXPECT_EQ(integer(recognition, "steps_unlike"), 0);
    EXPECT_EQ(integer(recognition, "collectives"), STEPS * per_step);
    EXPECT_EQ(integer(recognition, "recognised"), (STEPS - 1) * per_step);
    ASSERT_EQ((int64_t)json_array_size(json_object_get(root, "buckets")), buckets);
    for (int64_t i = 0; i < buckets; i++) {
        json_t *bucket = json_array_get(json_object_get(root, "buckets"), (size_t)i);
        EXPECT_EQ(integer(bucket, func), 1);
        EXPECT_TRUE(json_is_true(json_object_get(bucket, "counts_constant")));
        EXPECT_TRUE(json_is_null(json_object_get(bucket, "exposed_ns")));
    }
}

TEST_F(ShimReport, BucketsOfUnmodifiedTrainers)
{
    for (int ranks : {2, 4}) {
        TempDir ddp, zero;
        ASSERT_EQ(train(DDP_TRAINER, ranks, ddp).code, 0);
        json_t *root = report(ddp);
        expect_steps(root, LAYERS, LAYERS, "all_reduces_per_step");
        json_t *arrivals = json_object_get(root, "arrivals");
        EXPECT_EQ(integer(arrivals, "matched"), STEPS * LAYERS);
        EXPECT_EQ(integer(arrivals, "unlike"), 0);
        EXPECT_EQ((int)json_array_size(json_object_get(arrivals, "ranks")), ranks);
        json_decref(root);
        ASSERT_EQ(train(ZERO_TRAINER, ranks, zero).code, 0);
        root = report(zero);
        expect_steps(root, BUCKETS, 2 * BUCKETS, "reduce_scatters_per_step");
        expect_steps(root, BUCKETS, 2 * BUCKETS, "all_gathers_per_step");
        json_t *grouped = json_array_get(json_object_get(root, "buckets"), 0);
        EXPECT_EQ(integer(grouped, "reduce_group"), BUCKETS);
        EXPECT_EQ(integer(grouped, "gather_group"), BUCKETS);
        json_decref(root);
    }
}

/* The page divided by the number of recorded steps, of which such a trace has none; compare and the
 * time lines did not look for what had been recognised. */
TEST_F(ShimReport, RecognisedStepsReachExportsAndCompare)
{
    TempDir dir;
    ASSERT_EQ(train(DDP_TRAINER, 2, dir).code, 0);
    const std::string trace = dir.path("trace"), chrome = dir.path("t.json");
    CommandResult result = brigade({"report", trace, "--html", dir.path("t.html"), "--chrome",
                                    chrome, "--perfetto", dir.path("t.pftrace")});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_GT(read_file(dir.path("t.html")).size(), 10000u);
    EXPECT_GT(read_file(dir.path("t.pftrace")).size(), 1000u);
    EXPECT_EQ(count_of(read_file(chrome), "ProfilerStep#"), 2 * (STEPS - 1));
    result = brigade({"compare", trace, trace});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("no difference detectable"), std::string::npos) << result.out;
}

TEST_F(ShimReport, CsvReplacesNothingUnasked)
{
    TempDir dir;
    ASSERT_EQ(train(DDP_TRAINER, 2, dir).code, 0);
    const std::string trace = dir.path("trace"), ring = trace + "/rank-0.ring";
    const std::string before = read_file(ring);
    EXPECT_EQ(brigade({"report", trace, "--csv", ring}).code, 3);
    EXPECT_EQ(read_file(ring), before);
    write_file(dir.path("x.csv"), "old");
    EXPECT_EQ(brigade({"report", trace, "--csv", dir.path("x.csv"), "--force"}).code, 0);
    EXPECT_NE(read_file(dir.path("x.csv")), "old");
}

TEST_F(ShimReport, WithoutDeviceTimesOnlyCounts)
{
    TempDir dir;
    ASSERT_EQ(train(DDP_TRAINER, 2, dir, "none").code, 0);
    json_t *root = report(dir);
    expect_steps(root, LAYERS, LAYERS, "all_reduces_per_step");
    json_t *bucket = json_array_get(json_object_get(root, "buckets"), 0);
    EXPECT_TRUE(json_is_null(json_object_get(bucket, "reduce_ns")));
    EXPECT_TRUE(json_is_null(json_object_get(root, "arrivals")));
    EXPECT_EQ(integer(json_object_get(root, "recognition"), "untimed"), STEPS * LAYERS);
    json_decref(root);
}

/* Every rank's shell leaves its process id in a file and becomes the trainer. */
TEST_F(ShimReport, SaysWhoDied)
{
    TempDir dir;
    CommandOptions options;
    options.env["NCCL_ID_FILE"] = dir.path("id");
    Command command(
        brigade_args({"run", "-q", "-n", "2", "-o", dir.path("trace"), "--grace", "2", "--",
                      "/bin/sh", "-c",
                      "echo $$ > " + dir.path("pid") + "-$RANK; exec " DDP_TRAINER " 1000000"}),
        options);
    pid_t victim = 0;
    CommandResult result;
    for (int i = 0; i < 1000; i++) {
        usleep(10000);
        result = brigade({"report", dir.path("trace")});
        if (result.code == 0)
            break;
    }
    EXPECT_EQ(result.code, 0) << "a live trace can be read: " << result.err;
    std::ifstream(dir.path("pid-1")) >> victim;
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    EXPECT_EQ(command.wait().code, 128 + SIGKILL);
    result = brigade({"report", dir.path("trace")});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "warning: rank 1 died first: killed by signal 9 (SIGKILL); brigade run "
                           "then ended the other\n");
    EXPECT_HAS(result.out, "rank 0: the trace has no end (ended by brigade run)");
    EXPECT_HAS(result.out, "rank 1: the trace has no end (killed by signal 9 (SIGKILL))");
    json_t *root = report(dir), *ends = json_object_get(root, "ends");
    ASSERT_EQ(json_array_size(ends), 2u);
    json_t *other = json_array_get(ends, 0), *first = json_array_get(ends, 1);
    EXPECT_EQ(integer(first, "rank"), 1);
    EXPECT_EQ(integer(first, "signal"), SIGKILL);
    EXPECT_TRUE(json_is_true(json_object_get(first, "first")));
    EXPECT_TRUE(json_is_true(json_object_get(other, "ended_by_run")));
    EXPECT_TRUE(json_is_false(json_object_get(other, "first")));
    json_decref(root);
}

} // namespace
