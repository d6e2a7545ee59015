// SPDX-License-Identifier: Apache-2.0
/* brigade report on traces as the shim leaves them: steps and buckets are recognised. */
#include "tests/trace/report_shim.h"

namespace
{

TEST(ReportShim, Ddp)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) { ddp(t, {}); });
    CommandResult result = brigade({"report", dir.path(), "--skip", "0"});
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char *word :
         {"2 of 2 ranks, 10 of 10 steps", "exposed    not known: no compute records",
          "36 buckets of communicator 1 (2 ranks) by address and size", "not known", "r0", "AR",
          "and 20 more", "1 reduction before the first whole step", "error 0 ns", "transfer"})
        EXPECT_HAS(result.out, word);
    expect_fits(result.out);
    Json json(brigade({"report", dir.path(), "--skip", "0", "--json"}).out);
    json_t *steps = json["steps"];
    EXPECT_EQ(integer(steps, "used"), 10);
    EXPECT_GT(integer(steps, "step_ns"), 0);
    EXPECT_GT(integer(steps, "communication_ns"), 0);
    for (const char *key : {"compute_ns", "overlapped_ns", "exposed_ns", "idle_ns"})
        EXPECT_TRUE(json_is_null(json_object_get(steps, key))) << key;
    EXPECT_EQ(string(json.root, "exposed_from"), "unknown");
    EXPECT_TRUE(json_is_null(json["spread"]));
    json_t *recognition = json["recognition"];
    EXPECT_EQ(integer(recognition, "reductions_before"), 1);
    EXPECT_EQ(integer(recognition, "comm_size"), 2);
    ASSERT_EQ(json_array_size(json["buckets"]), 36u);
    double busy = 0;
    for (size_t i = 0; i < 36; i++) {
        json_t *bucket = json_array_get(json["buckets"], i);
        EXPECT_EQ(string(bucket, "name"), "r" + std::to_string(i));
        EXPECT_EQ(integer(bucket, "all_reduces_per_step"), 1);
        EXPECT_TRUE(json_is_null(json_object_get(bucket, "exposed_ns")));
        double bytes = (double)integer(bucket, "grad_bytes");
        EXPECT_EQ(integer(bucket, "numel"), (int64_t)bytes / 2);
        EXPECT_NEAR((double)integer(bucket, "reduce_ns"), 8000 + bytes / 200, 1);
        EXPECT_NEAR(json_real_value(json_object_get(bucket, "reduce_busbw_gbps")),
                    bytes / (8000 + bytes / 200), 0.1);
        EXPECT_EQ(integer(bucket, "start_ns") - integer(bucket, "issued_ns"), 3000);
        busy += (double)integer(bucket, "reduce_ns");
    }
    EXPECT_NEAR((double)integer(steps, "communication_ns"), busy, 40);
}

/* The step begins with its first collective on the device, which the host had asked for before. */
TEST(ReportShim, IssuedBeforeTheStepIsNegative)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { ddp(t, {}); });
    Json json(brigade({"report", dir.path(), "--json"}).out);
    json_t *first = json_array_get(json["buckets"], 0);
    EXPECT_EQ(integer(first, "start_ns"), 0);
    EXPECT_EQ(integer(first, "issued_ns"), -3000);
    json_t *second = json_array_get(json["buckets"], 1);
    EXPECT_GT(integer(second, "issued_ns"), 0);
    std::string help;
    for (const std::string &line : lines_of(brigade({"report", "--help"}).out))
        if (line.find_first_not_of(' ') != std::string::npos)
            help += line.substr(line.find_first_not_of(' ')) + " ";
    EXPECT_HAS(help, "before the step has begun: issued is then negative");
    EXPECT_HAS(help, "that one was issued before, so its time of issue is negative");
}

/* One group of a reduce-scatter of 6 MB, an all-reduce of 2 MB and another of 1 MB, which all carry
 * its times; then an all-reduce alone. Kernels hide the second half of the group. */
TEST(ReportShim, GroupsHaveOneBandwidthAndAreMarked)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) {
        t.comm(1, 4, 1);
        for (int s = 0; s < 6; s++) {
            t.pass(20000);
            uint64_t t0 = t.now, t1 = t.now + 100000;
            t.group_begin();
            t.put(1, BRG_FUNC_ALL_REDUCE, 2000000, 0x2000000, {s, 0}, t0, t1, BRG_REC_GROUPED,
                  BRG_BFLOAT16);
            t.put(1, BRG_FUNC_REDUCE_SCATTER, 6000000, 0x1000000, {s, 1}, t0, t1, BRG_REC_GROUPED,
                  BRG_BFLOAT16);
            t.put(1, BRG_FUNC_ALL_REDUCE, 1000000, 0x3000000, {s, 2}, t0, t1, BRG_REC_GROUPED,
                  BRG_BFLOAT16);
            t.kernel(t0 + 50000, t1);
            t.now = t1;
            t.op(1, BRG_FUNC_ALL_REDUCE, 4000000, 0x4000000, {s, 3});
        }
    });
    Json json(brigade({"report", dir.path(), "--json"}).out);
    ASSERT_EQ(json_array_size(json["buckets"]), 4u);
    const double share = 3 / 4.0, exposed[] = {2 / 9.0, 6 / 9.0, 1 / 9.0};
    for (size_t i = 0; i < 3; i++) {
        json_t *bucket = json_array_get(json["buckets"], i);
        EXPECT_EQ(integer(bucket, "reduce_group"), 3);
        EXPECT_EQ(integer(bucket, "reduce_ns"), 100000);
        EXPECT_NEAR(json_real_value(json_object_get(bucket, "reduce_busbw_gbps")),
                    share * (6e6 + 2 * 3e6) / 1e5, 1e-6);
        EXPECT_NEAR((double)integer(bucket, "exposed_ns"), 50000 * exposed[i], 1);
    }
    json_t *alone = json_array_get(json["buckets"], 3);
    EXPECT_EQ(integer(alone, "reduce_group"), 1);
    EXPECT_NEAR(json_real_value(json_object_get(alone, "reduce_busbw_gbps")),
                2 * share * 4e6 / (8000 + 4e6 / 200), 1e-6);
    EXPECT_TRUE(json_is_null(json_object_get(alone, "gather_group")));
    /* Both kinds together take as long as the group and the one behind it. */
    json_t *comm = json_object_get(json_array_get(json["comms"], 0), "time_ns");
    EXPECT_NEAR((double)integer(comm, "median"), 100000 + 28000, 1);
    for (size_t i = 0; i < 2; i++) { /* each its share by bytes */
        json_t *kind = json_array_get(json["funcs"], i);
        bool scatters =
            json_string_value(json_object_get(kind, "func")) == std::string("reduce-scatter");
        EXPECT_NEAR((double)integer(json_object_get(kind, "time_ns"), "median"),
                    scatters ? 100000 * 6 / 9.0 : 100000 * 3 / 9.0 + 28000, 1);
    }

    CommandResult result =
        brigade({"report", dir.path(), "--csv", dir.path("buckets.csv"), "--sort", "id"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "MiB*RS ");
    EXPECT_HAS(result.out, "MiB*AR ");
    EXPECT_HAS(result.out, "MiB AR ");
    EXPECT_HAS(result.out, "* in a group call with others: times and busbw are the whole group's");
    expect_fits(result.out);
    auto csv = lines_of(read_file(dir.path("buckets.csv")));
    EXPECT_HAS(csv[0], ",reduce_group,gather_group");
    EXPECT_HAS(csv[1], ",90,90,");
    EXPECT_HAS(csv[1], ",3,");
    EXPECT_EQ(brigade({"report", dir.path(), "--sort", "busbw", "--top", "1"})
                      .out.find("in a group call") != std::string::npos,
              false);
}

TEST(ReportShim, FsdpCountsAndDesign)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) { fsdp(t, {}); });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "by design  12 buckets gathered 2x a step (reshard after forward)");
    expect_fits(result.out);
    CommandResult by = brigade({"report", dir.path(), "--by", "func"});
    EXPECT_HAS(by.out, "all-gather                        25");
    EXPECT_HAS(by.out, "reduce-scatter                    13");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    ASSERT_EQ(json_array_size(json["buckets"]), 13u);
    EXPECT_EQ(integer(json_array_get(json["buckets"], 0), "all_gathers_per_step"), 2);
    EXPECT_EQ(integer(json_array_get(json["buckets"], 12), "all_gathers_per_step"), 1);
    EXPECT_EQ(json_array_size(json_object_get(json["recognition"], "waste")), 12u);
}

/* torch's allocator gives the same memory to one flattened bucket after another: which of these are
 * the same gradients nobody sees. */
TEST(ReportShim, ReducedAgainIsWasteUnlessMemoryWasUsedAgain)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) {
        t.comm(1, 2, 1);
        for (int s = 0; s < 12; s++) {
            t.pass(10000);
            for (uint64_t b : {0, 1, 2, 1, 2, 3})
                t.op(1, BRG_FUNC_ALL_REDUCE, b % 3 ? 4000000 : 1000000, (b + 1) << 24, {s, (int)b});
        }
    });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "waste      2 buckets reduced 2x a step");
    EXPECT_HAS(result.out,
               "           unless memory was freed and used again for others in between\n");
    expect_fits(result.out);
}

/* Evaluation every 10th step averages its losses one by one. */
TEST(ReportShim, ScalarsOfEvaluationCouldBeOne)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) {
        t.comm(1, 2, 1);
        for (int s = 0; s < 41; s++) {
            t.pass(10000);
            for (uint64_t b = 0; b < 2; b++)
                t.op(1, BRG_FUNC_ALL_REDUCE, 4000000, (b + 1) << 24, {s, (int)b});
            for (uint64_t i = 0; s % 10 == 9 && i < 3; i++)
                t.op(1, BRG_FUNC_ALL_REDUCE, 4, 0x100 + i, {s, -1}, 5, 0, BRG_FLOAT32);
        }
    });
    CommandResult result = brigade({"report", dir.path(), "--skip", "0"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "3 small all-reduces of communicator 1 in a row could be 1: 12 B, ");
    EXPECT_HAS(result.out, "in the 4 of 40 steps that have some");
    expect_fits(result.out);
    Json json(brigade({"report", dir.path(), "--skip", "0", "--json"}).out);
    json_t *waste = json_array_get(json_object_get(json["recognition"], "waste"), 0);
    EXPECT_EQ(integer(waste, "steps"), 4);
    EXPECT_DOUBLE_EQ(json_real_value(json_object_get(waste, "could_be")), 1);
}

/* A kernel hides the first half of every collective. */
TEST(ReportShim, ExposedFromKernels)
{
    TempDir dir;
    fleet(
        dir, 1, [](ShimTrace &t) { ddp(t, {}); },
        [](ShimTrace &t) {
            for (const brg_rec &rec : std::vector<brg_rec>(t.recs))
                if (rec.kind == BRG_REC_COLLECTIVE)
                    t.kernel(rec.t0_ns, rec.t0_ns + (rec.t1_ns - rec.t0_ns) / 2);
        });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "exposed    from kernel intervals");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    EXPECT_EQ(string(json.root, "exposed_from"), "kernels");
    json_t *bucket = json_array_get(json["buckets"], 5);
    EXPECT_NEAR((double)integer(bucket, "exposed_ns"), (double)integer(bucket, "reduce_ns") / 2, 1);
    json_t *steps = json["steps"];
    EXPECT_EQ(integer(steps, "compute_ns"), integer(steps, "overlapped_ns"));
}

TEST(ReportShim, LateRankBySkewedClocks)
{
    TempDir dir;
    const double offsets[] = {0, 40e6, -20e6, 5e6};
    fleet(
        dir, 4,
        [](ShimTrace &t) {
            ddp(t, {20, 4, false});
        },
        [&](ShimTrace &t) {
            for (brg_rec &rec : t.recs) {
                /* the others come early to the first bucket, and wait for rank 3 */
                if (rec.kind == BRG_REC_COLLECTIVE && rec.aux == 0x7f0000000000 && t.rank != 3)
                    rec.t0_ns -= 5000000;
                rec.t0_ns += (uint64_t)(int64_t)offsets[t.rank];
                rec.t1_ns += (uint64_t)(int64_t)offsets[t.rank];
            }
        });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "late       rank 3 came last");
    EXPECT_HAS(result.out, "by 5.000 ms");
    EXPECT_HAS(result.out, "late r3");
    expect_fits(result.out);
    Json json(brigade({"report", dir.path(), "--json"}).out);
    json_t *arrivals = json["arrivals"];
    json_t *bucket = json_array_get(json_object_get(arrivals, "buckets"), 0);
    EXPECT_EQ(string(bucket, "reason"), "late peer");
    EXPECT_EQ(integer(bucket, "last_rank"), 3);
    EXPECT_NEAR((double)integer(json_object_get(bucket, "spread_ns"), "median"), 5e6, 2);
    json_t *rank = json_array_get(json_object_get(arrivals, "ranks"), 1);
    EXPECT_NEAR((double)integer(rank, "clock_offset_ns"), 40e6, 2);
    CommandResult by = brigade({"report", dir.path(), "--by", "rank"});
    EXPECT_EQ(by.code, 0);
    EXPECT_HAS(by.out, "clock error");
    expect_fits(by.out);
}

TEST(ReportShim, CommunicatorsAndChoice)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { mixed(t, 12, 2, 6); });
    CommandResult by = brigade({"report", dir.path(), "--by", "comm"});
    ASSERT_EQ(by.code, 0) << by.err;
    EXPECT_HAS(by.out, "2, 4 ranks, steps");
    EXPECT_HAS(by.out, "1, 2 ranks ");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    ASSERT_EQ(json_array_size(json["comms"]), 3u);
    json_t *tensor = json_array_get(json["comms"], 0);
    EXPECT_EQ(integer(tensor, "comm"), 1);
    EXPECT_EQ(integer(json_object_get(tensor, "count"), "median"), 25);
    Json other(brigade({"report", dir.path(), "--json", "--comm", "1"}).out);
    EXPECT_EQ(integer(other["recognition"], "comm"), 1);
    EXPECT_EQ(brigade({"report", dir.path(), "--comm", "9"}).code, 4);
}

TEST(ReportShim, Csv)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) { zero(t, {}); });
    for (std::string by : {"bucket", "comm", "rank", "func"}) {
        std::string path = dir.path(by + ".csv");
        CommandResult result = brigade({"report", dir.path(), "--by", by, "--csv", path});
        ASSERT_EQ(result.code, 0) << result.err;
        auto lines = lines_of(read_file(path));
        auto commas = [](const std::string &line) {
            return std::count(line.begin(), line.end(), ',');
        };
        ASSERT_GT(lines.size(), 1u);
        for (const std::string &line : lines)
            EXPECT_EQ(commas(line), commas(lines[0])) << by << ": " << line;
        EXPECT_EQ(lines.size(), by == "bucket" ? 7u : by == "comm" ? 2u : 3u);
    }
    CommandResult result = brigade({"report", dir.path(), "--csv", dir.path("no/where")});
    EXPECT_EQ(result.code, 3);
    EXPECT_HAS(result.err, "cannot write");
}

TEST(ReportShim, BucketMap)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) {
        t.comm(1, 2, 1);
        for (int s = 0; s < 5; s++) {
            t.pass(20000);
            t.op(1, BRG_FUNC_ALL_REDUCE, 2000000, 0x1000000, {s, 0});
            t.op(1, BRG_FUNC_ALL_REDUCE, 4000000, 0x2000000, {s, 1});
            t.op(1, BRG_FUNC_ALL_REDUCE, 2000000, 0x3000000, {s, 2});
            t.op(1, BRG_FUNC_ALL_REDUCE, 6000000, 0x4000000, {s, 3});
        }
    });
    std::string map = dir.path("plan.json");
    write_file(map, R"({"schema":1,"buffers":[
        {"key":"a","buckets":[{"start":0,"end":1000000},{"start":1000000,"end":2000000}]},
        {"key":"b","buckets":[{"start":0,"end":2000000}]}]})");
    Json json(brigade({"report", dir.path(), "--json", "--bucket-map", map}).out);
    const char *names[] = {"a#0", "b#0", "a#1", "r3"};
    ASSERT_EQ(json_array_size(json["buckets"]), 4u);
    for (size_t i = 0; i < 4; i++)
        EXPECT_EQ(string(json_array_get(json["buckets"], i), "name"), names[i]);
    EXPECT_HAS(brigade({"report", dir.path(), "--bucket-map", map}).out,
               "1 of 4 buckets are not in");
    for (const char *bad : {"{", "[]", R"({"buffers":[{"key":"a"}]})",
                            R"({"buffers":[{"key":"a","buckets":[{"start":0}]}]})"}) {
        write_file(map, bad);
        CommandResult result = brigade({"report", dir.path(), "--bucket-map", map});
        EXPECT_EQ(result.code, 3) << bad;
        EXPECT_EQ(result.out, "");
        EXPECT_HAS(result.err, map);
    }
    EXPECT_EQ(brigade({"report", dir.path(), "--bucket-map", dir.path("none")}).code, 3);
}

TEST(ReportShim, UntimedSaysNothingOfTimes)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) {
        t.comm(1, 2, 1);
        for (int s = 0; s < 6; s++) {
            t.pass(20000);
            for (uint64_t b = 0; b < 3; b++)
                t.op(1, BRG_FUNC_ALL_REDUCE, 2000000, (b + 1) << 24, {s, (int)b}, 5,
                     BRG_REC_UNTIMED);
        }
    });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "18 collectives have no device times");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    EXPECT_TRUE(json_is_null(json_object_get(json["steps"], "communication_ns")));
    EXPECT_TRUE(json_is_null(json["arrivals"]));
    json_t *bucket = json_array_get(json["buckets"], 0);
    for (const char *key : {"start_ns", "end_ns", "reduce_ns", "reduce_busbw_gbps", "exposed_ns"})
        EXPECT_TRUE(json_is_null(json_object_get(bucket, key))) << key;
    EXPECT_EQ(integer(bucket, "issued_ns"), 0);
    EXPECT_EQ(integer(bucket, "all_reduces_per_step"), 1);
}

/* The steps of a host far ahead of the device were shown, with lengths of nothing. */
TEST(ReportShim, StepsWithTheTimesOfCallsAreLeftOut)
{
    size_t asked = 0, untimed_from = 0, untimed_each = 1;
    auto train = [&](ShimTrace &t) {
        asked = 0;
        t.host_ahead = 400000000;
        t.untimed = [&] { return ++asked > untimed_from && asked % untimed_each == 0; };
        ddp(t, {20, 6});
    };
    TempDir some, one, all;
    untimed_from = 60;
    fleet(some, 2, train);
    Json json(brigade({"report", some.path(), "--json"}).out);
    EXPECT_EQ(integer(json["recognition"], "steps"), 9);
    EXPECT_EQ(integer(json["recognition"], "steps_untimed"), 9);
    EXPECT_EQ(integer(json["recognition"], "steps_lossy"), 0);
    EXPECT_NEAR((double)integer(json["steps"], "step_ns"), 34.8e6, 0.1e6);
    EXPECT_HAS(brigade({"report", some.path()}).out,
               "rank 0: 9 steps of which device times are missing are left out");
    untimed_from = 5 + 5 * 6;
    untimed_each = 1000;
    fleet(one, 2, [&](ShimTrace &t) {
        train(t);
        t.recs[40].flags = BRG_REC_UNTIMED;
    });
    EXPECT_HAS(brigade({"report", one.path()}).out,
               "rank 0: 1 step of which device times are missing is left out");
    untimed_from = 0;
    untimed_each = 4;
    fleet(all, 2, train);
    CommandResult result = brigade({"report", all.path()});
    EXPECT_EQ(result.code, 4);
    EXPECT_HAS(result.err, "no step can be used: the device times of some collectives are missing "
                           "in each of 18 whole steps");
}

TEST(ReportShim, NothingRecursIs4)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) {
        for (uint64_t i = 0; i < 20; i++)
            t.op(1, BRG_FUNC_ALL_REDUCE, 1000000 + i * i * 512, 0x1000000, {-1, -1});
    });
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 4);
    EXPECT_HAS(result.err, "no steps could be recognised");
}

TEST(ReportShim, LostRecordsAreSaid)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) {
        t.drop = t.rank ? 0 : 0.01;
        ddp(t, {30, 10, true, 10});
    });
    CommandResult result = brigade({"report", dir.path(), "--rank", "0"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "records are lost");
    EXPECT_HAS(result.out, "of which records are missing are left out");
    EXPECT_HAS(result.out, "(evaluation) is left out");
    EXPECT_HAS(result.out, "are in no recognised step");
}

} // namespace
