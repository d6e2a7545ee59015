// SPDX-License-Identifier: Apache-2.0
/* brigade report as a user runs it, on traces whose numbers are known. */
#include <gtest/gtest.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/brigade/command.h"
#include "tests/brigade/json.h"
#include "tests/trace/trace_builder.h"

namespace
{

const uint64_t kUnit = 1000; /* a step of two_bucket_step() is 1 ms */

std::string ring_path(const TempDir &dir, uint32_t rank)
{
    return dir.path("rank-" + std::to_string(rank) + ".ring");
}

/* Four ranks of six steps. Rank 2 computes most: its backward goes on where others wait. */
void four_ranks(const TempDir &dir, std::function<void(TraceBuilder &, uint32_t)> change = {})
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        TraceBuilder t;
        t.bucket(0, "fp32/fp32/dense/std#0", 8000, 4, 0);
        t.bucket(1, "fp32/fp32/dense/lw#0", 12000, 4, 1);
        for (uint32_t s = 0; s < 6; s++)
            two_bucket_step(t, s, 1000 * kUnit * s, kUnit);
        if (rank == 2)
            for (brg_rec &rec : t.recs_)
                if (rec.kind == BRG_REC_WAIT && rec.func == BRG_FUNC_REDUCE_SCATTER &&
                    rec.bucket == 1)
                    rec.t0_ns += 50 * kUnit;
        if (rank == 2)
            for (uint32_t s = 0; s < 6; s++)
                t.compute(s, (1000 * s + 700) * kUnit, (1000 * s + 750) * kUnit, BRG_COMPUTE_OTHER);
        if (change)
            change(t, rank);
        t.write(ring_path(dir, rank), rank);
    }
}

TEST(Report, JsonOfKnownSteps)
{
    TempDir dir;
    four_ranks(dir);
    CommandResult result = brigade({"report", dir.path(), "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    Json json(result.out);
    EXPECT_EQ(integer(json.root, "schema"), 1);
    EXPECT_EQ(integer(json.root, "world"), 4);
    EXPECT_EQ(integer(json.root, "rank"), 2); /* computes most */
    for (const char *key : {"drops", "torn", "overwritten", "invalid"})
        EXPECT_EQ(integer(json.root, key), 0) << key;
    EXPECT_EQ(json_array_size(json["missing_ranks"]), 0u);
    EXPECT_EQ(json_array_size(json["warnings"]), 0u) << result.out;
    json_t *steps = json["steps"];
    EXPECT_EQ(integer(steps, "recorded"), 6);
    EXPECT_EQ(integer(steps, "warmup"), 1);
    EXPECT_EQ(integer(steps, "used"), 5);
    EXPECT_EQ(integer(steps, "graph_replays"), 0);
    EXPECT_EQ(integer(steps, "step_ns"), 1000000);
    EXPECT_EQ(integer(steps, "compute_ns"), 800000);
    EXPECT_EQ(integer(steps, "communication_ns"), 450000);
    EXPECT_EQ(integer(steps, "overlapped_ns"), 250000);
    EXPECT_EQ(integer(steps, "exposed_ns"), 200000);
    EXPECT_EQ(integer(steps, "idle_ns"), 0);
    json_t *median = json_object_get(json_object_get(steps, "distribution"), "step_ns");
    EXPECT_EQ(integer(median, "median"), 1000000);
    EXPECT_EQ(integer(median, "n"), 5);
    EXPECT_EQ(json_real_value(json_object_get(json["replay"], "error")), 0.0);
    EXPECT_EQ(integer(json["replay"], "exposed_ns"), 200000);

    json_t *buckets = json["buckets"];
    ASSERT_EQ(json_array_size(buckets), 2u);
    json_t *b0 = json_array_get(buckets, 0), *b1 = json_array_get(buckets, 1);
    EXPECT_EQ(integer(b0, "id"), 0);
    EXPECT_EQ(string(b1, "name"), "fp32/fp32/dense/lw#0");
    EXPECT_EQ(integer(b1, "group"), 1);
    EXPECT_EQ(integer(b1, "grad_bytes"), 12000);
    EXPECT_EQ(integer(b1, "param_bytes"), 12000);
    for (json_t *b : {b0, b1}) {
        EXPECT_EQ(integer(b, "reduce_scatters_per_step"), 1);
        EXPECT_EQ(integer(b, "all_gathers_per_step"), 1);
        EXPECT_EQ(integer(b, "all_reduces_per_step"), 0);
        EXPECT_TRUE(json_is_true(json_object_get(b, "counts_constant")));
    }
    EXPECT_EQ(integer(b0, "ready_ns"), 500000);
    EXPECT_EQ(integer(b0, "issued_ns"), 500000 - 10000);
    EXPECT_EQ(integer(b0, "start_ns"), 500000);
    EXPECT_EQ(integer(b0, "end_ns"), 600000);
    EXPECT_EQ(integer(b0, "gather_start_ns"), 1050000);
    EXPECT_EQ(integer(b0, "gather_end_ns"), 1150000);
    EXPECT_EQ(integer(b0, "wait_ns"), 50000);
    EXPECT_EQ(integer(b0, "exposed_ns"), 50000);
    EXPECT_EQ(integer(b1, "reduce_wait_ns"), 100000);
    EXPECT_EQ(integer(b1, "gather_wait_ns"), 50000);
    EXPECT_EQ(integer(b1, "exposed_ns"), 150000);
    EXPECT_NEAR(json_real_value(json_object_get(b1, "reduce_busbw_gbps")), 12000 * 0.75 / 150000,
                1e-9);

    json_t *optimizers = json["optimizers"];
    ASSERT_EQ(json_array_size(optimizers), 2u);
    EXPECT_EQ(string(json_array_get(optimizers, 0), "name"), "Muon");
    EXPECT_EQ(integer(json_array_get(optimizers, 0), "time_ns"), 80000);
    json_t *ranks = json["ranks"];
    ASSERT_EQ(json_array_size(ranks), 4u);
    for (size_t i = 0; i < 4; i++) {
        json_t *rank = json_array_get(ranks, i);
        EXPECT_EQ(integer(rank, "rank"), (int64_t)i);
        EXPECT_EQ(integer(json_object_get(rank, "steps"), "compute_ns"), i == 2 ? 800000 : 750000);
        EXPECT_TRUE(json_is_true(json_object_get(rank, "closed")));
    }
    EXPECT_EQ(integer(json["spread"], "slowest_rank"), 2);

    Json other(brigade({"report", dir.path(), "--json", "--rank", "1", "--skip", "3"}).out);
    EXPECT_EQ(integer(other.root, "rank"), 1);
    EXPECT_EQ(integer(other["steps"], "compute_ns"), 750000);
    EXPECT_EQ(integer(other["steps"], "used"), 3);
    EXPECT_EQ(integer(other["steps"], "warmup"), 3);
}

TEST(Report, TextOfKnownSteps)
{
    TempDir dir;
    four_ranks(dir);
    CommandResult result = brigade({"report", dir.path(), "--rank", "0"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    for (const char *word : {"4 of 4 ranks, 5 of 6 steps",
                             "step",
                             "1.000 ms",
                             "compute",
                             "75.0%",
                             "communication",
                             "45.0%",
                             "overlapped",
                             "20.0%",
                             "exposed",
                             "25.0%",
                             "idle",
                             "0.0%",
                             "0 dropped",
                             "error 0.0%",
                             "fp32/fp32/dense/lw#0",
                             "Muon 80.000 us",
                             "spread 6.7%",
                             "RS",
                             "AG"})
        EXPECT_HAS(result.out, word);
    EXPECT_EQ(result.out.find('\033'), std::string::npos);
    EXPECT_EQ(result.out.find("warning"), std::string::npos) << result.out;
    for (const std::string &line : lines_of(result.out))
        EXPECT_LE(line.size(), 100u) << line;
}

/* Which bucket comes first. */
std::string first_bucket(const std::string &out)
{
    auto lines = lines_of(out);
    for (size_t i = 0; i + 1 < lines.size(); i++)
        if (lines[i].compare(0, 6, "bucket") == 0)
            return lines[i + 1].substr(0, lines[i + 1].find(' '));
    return "";
}

TEST(Report, SortAndTop)
{
    TempDir dir;
    four_ranks(dir);
    const std::string b0 = "fp32/fp32/dense/std#0", b1 = "fp32/fp32/dense/lw#0";
    auto first = [&](const char *sort) {
        return first_bucket(brigade({"report", dir.path(), "--sort", sort}).out);
    };
    EXPECT_EQ(first("id"), b0);
    EXPECT_EQ(first("exposed"), b1);
    EXPECT_EQ(first("wait"), b1);
    EXPECT_EQ(first("size"), b1);
    EXPECT_EQ(first("ready"), b0);
    EXPECT_EQ(first("busbw"), b0);
    CommandResult top = brigade({"report", dir.path(), "--sort", "exposed", "--top", "1"});
    EXPECT_EQ(top.code, 0);
    EXPECT_EQ(top.out.find(b0), std::string::npos);
    EXPECT_HAS(top.out, "and 1 more");
    EXPECT_HAS(brigade({"report", dir.path(), "--top", "0"}).out, b0);
    Json json(brigade({"report", dir.path(), "--sort", "exposed", "--top", "1", "--json"}).out);
    EXPECT_EQ(json_array_size(json["buckets"]), 2u);
    EXPECT_EQ(integer(json_array_get(json["buckets"], 0), "id"), 1);
}

TEST(Report, Usage)
{
    TempDir dir;
    EXPECT_EQ(brigade({"report"}).code, 2);
    EXPECT_EQ(brigade({"report", dir.path(), "more"}).code, 2);
    EXPECT_EQ(brigade({"report", dir.path(), "--sort", "colour"}).code, 2);
    EXPECT_EQ(brigade({"report", dir.path(), "--skip", "-1"}).code, 2);
    EXPECT_EQ(brigade({"report", dir.path(), "--rank", "x"}).code, 2);
    EXPECT_EQ(brigade({"report", "--help"}).code, 0);
}

/* One clear line on stderr, nothing on stdout. */
void expect_error(const std::vector<std::string> &args, int code, const std::string &says)
{
    for (bool json : {false, true}) {
        std::vector<std::string> all = args;
        if (json)
            all.push_back("--json");
        CommandResult result = brigade(all);
        EXPECT_EQ(result.code, code) << result.err;
        EXPECT_EQ(result.out, "");
        EXPECT_EQ(lines_of(result.err).size(), 1u) << result.err;
        EXPECT_HAS(result.err, "brigade report: ");
        EXPECT_HAS(result.err, says);
    }
}

TEST(Report, SkippingAllStepsLeavesNothingToReport)
{
    TempDir dir;
    four_ranks(dir);
    Json all(brigade({"report", dir.path(), "--skip", "0", "--json"}).out);
    const std::string steps = std::to_string(integer(all["steps"], "recorded"));
    expect_error({"report", ring_path(dir, 1), "--skip", steps}, 4,
                 ": --skip " + steps + " leaves none of its " + steps + " steps");
    const std::string last = std::to_string(integer(all["steps"], "recorded") - 1);
    EXPECT_EQ(brigade({"report", ring_path(dir, 1), "--skip", last}).code, 0);
    CommandResult compared = brigade({"compare", dir.path(), dir.path(), "--skip", steps});
    EXPECT_EQ(compared.code, 4);
    EXPECT_EQ(compared.out, "");
    EXPECT_HAS(compared.err, ": --skip " + steps + " leaves none of its " + steps + " steps");
    EXPECT_EQ(brigade({"compare", dir.path(), dir.path(), "--skip", last}).code, 0);
    TempDir one; /* where nothing was asked for, the only step is not left out */
    TraceBuilder t(1);
    two_bucket_step(t, 0, 0, kUnit);
    t.write(ring_path(one, 0), 0);
    EXPECT_EQ(brigade({"report", one.path()}).code, 0);
    expect_error({"report", one.path(), "--skip", "1"}, 4, ": --skip 1 leaves none of its 1 steps");
}

TEST(Report, UnreadableInputIs3)
{
    TempDir dir;
    expect_error({"report", dir.path("nowhere")}, 3, dir.path("nowhere"));
    TempDir cut;
    four_ranks(cut);
    std::string path = ring_path(cut, 3);
    ASSERT_EQ(truncate(path.c_str(), 100000), 0);
    expect_error({"report", cut.path()}, 3, path + ": cut off");
    write_file(path, "{\"traceEvents\":[]}");
    expect_error({"report", cut.path()}, 3, path + ": not a brigade trace");
    expect_error({"report", path}, 3, "not a brigade trace");
    write_file(path, "");
    expect_error({"report", cut.path()}, 3, path + ": the file is empty");
    unlink(path.c_str());
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_error({"report", cut.path()}, 3, path + ": not a regular file");
    unlink(path.c_str());
    TraceBuilder same_rank;
    two_bucket_step(same_rank, 0, 0);
    same_rank.write(path, 1);
    expect_error({"report", cut.path()}, 3, "both of rank 1");
    unlink(path.c_str());
    TraceBuilder other_run(8);
    two_bucket_step(other_run, 0, 0);
    other_run.write(path, 3);
    expect_error({"report", cut.path()}, 3, "different runs");
}

TEST(Report, NothingToReportIs4)
{
    TempDir dir;
    expect_error({"report", dir.path()}, 4, "no file is named rank-<number>.ring");
    TraceBuilder empty;
    empty.write(ring_path(dir, 0), 0);
    expect_error({"report", dir.path()}, 4, "no complete step");
    TempDir quiet;
    TraceBuilder steps;
    steps.step(0, 0, 100);
    steps.compute(0, 0, 50);
    steps.write(ring_path(quiet, 0), 0);
    expect_error({"report", quiet.path()}, 4, "no collectives");
    TempDir some;
    four_ranks(some);
    expect_error({"report", some.path(), "--rank", "4"}, 4, "nothing is recorded of rank 4");
}

TEST(Report, MissingRanksAreWarnedOf)
{
    TempDir dir;
    four_ranks(dir);
    unlink(ring_path(dir, 1).c_str());
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 0);
    EXPECT_HAS(result.out, "warning: 1 of 4 ranks have no trace here: 1");
    unlink(ring_path(dir, 0).c_str());
    unlink(ring_path(dir, 3).c_str());
    Json json(brigade({"report", dir.path(), "--json"}).out);
    ASSERT_EQ(json_array_size(json["missing_ranks"]), 3u);
    EXPECT_EQ(json_integer_value(json_array_get(json["missing_ranks"], 2)), 3);
    ASSERT_EQ(json_array_size(json["warnings"]), 1u);
    EXPECT_HAS(std::string(json_string_value(json_array_get(json["warnings"], 0))), "0-1, 3");
}

TEST(Report, ReplaysOfAGraphAreStepsLikeOthers)
{
    TempDir dir;
    four_ranks(dir, [](TraceBuilder &t, uint32_t) {
        for (brg_rec &rec : t.recs_)
            if (rec.step >= 3) {
                rec.flags |= BRG_REC_GRAPH;
                if (rec.kind == BRG_REC_COLLECTIVE)
                    rec.aux = 0; /* when it was issued is not known */
            }
    });
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out,
               "5 of 6 steps (left out: 1 warm-up, 0 incomplete), 3 replays of a graph");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    EXPECT_EQ(integer(json["steps"], "graph_replays"), 3);
    EXPECT_EQ(integer(json["steps"], "compute_ns"), 800000);
    EXPECT_EQ(integer(json["steps"], "exposed_ns"), 200000);
    EXPECT_EQ(integer(json["replay"], "exposed_ns"), 200000);
}

TEST(Report, KilledAndLossyTraces)
{
    TempDir dir;
    TraceBuilder killed(1);
    for (uint32_t s = 0; s < 6; s++)
        two_bucket_step(killed, s, 1000 * kUnit * s, kUnit);
    killed.write(ring_path(dir, 0), 0, 0, false);
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "4 of 6 steps (left out: 1 warm-up, 1 incomplete)");
    EXPECT_HAS(result.out, "the trace has no end");

    TempDir wrapped;
    TraceBuilder longer(1);
    for (uint32_t s = 0; s < 100; s++)
        two_bucket_step(longer, s, 1000 * kUnit * s, kUnit);
    longer.write(ring_path(wrapped, 0), 0, 8);
    Json json(brigade({"report", wrapped.path(), "--json"}).out);
    EXPECT_EQ(integer(json.root, "overwritten"), (int64_t)longer.recs_.size() + 2 - 256);
    EXPECT_EQ(integer(json["steps"], "incomplete"), 2);
    EXPECT_EQ(integer(json["steps"], "warmup"), 0);
    for (size_t i = 0; i < 2; i++) {
        EXPECT_EQ(integer(json_array_get(json["buckets"], i), "reduce_scatters_per_step"), 1);
        EXPECT_EQ(integer(json_array_get(json["buckets"], i), "all_gathers_per_step"), 1);
    }
}

TEST(Report, CountsThatDifferAreFlagged)
{
    TempDir dir;
    four_ranks(dir, [](TraceBuilder &t,
                       uint32_t rank) { /* on one rank, in one step, one too many */
                                        if (rank == 3)
                                            t.collective(4, BRG_FUNC_ALL_GATHER, 0, 0, 4995 * kUnit,
                                                         4996 * kUnit, 8000);
    });
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 0);
    EXPECT_HAS(result.out, "all-gathers per step are not constant: 1 to 2 over 20 steps");
    EXPECT_HAS(result.out, "1-2");
    Json json(brigade({"report", dir.path(), "--json"}).out);
    json_t *b0 = json_array_get(json["buckets"], 0);
    EXPECT_TRUE(json_is_false(json_object_get(b0, "counts_constant")));
    EXPECT_DOUBLE_EQ(json_real_value(json_object_get(b0, "all_gathers_per_step")), 21.0 / 20);
    EXPECT_EQ(integer(b0, "all_gathers_min"), 1);
    EXPECT_EQ(integer(b0, "all_gathers_max"), 2);
    EXPECT_EQ(integer(b0, "reduce_scatters_per_step"), 1);
}

/* Names out of a file must neither drive the terminal nor break the JSON. */
TEST(Report, HostileNames)
{
    TempDir dir;
    TraceBuilder t(1);
    t.bucket(0, "\033[2Jx\n\xff\xfe", 8000, 1);
    for (uint32_t s = 0; s < 3; s++) {
        two_bucket_step(t, s, 1000 * kUnit * s, kUnit);
        t.optimizer(s, "\033[31mred\xff", 1000 * kUnit * s, 1000 * kUnit * s + 5);
    }
    t.write(ring_path(dir, 0), 0);
    CommandResult result = brigade({"report", dir.path()});
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out.find('\033'), std::string::npos);
    EXPECT_EQ(result.out.find('\xff'), std::string::npos);
    Json json(brigade({"report", dir.path(), "--json"}).out);
    EXPECT_TRUE(json_is_string(json_object_get(json_array_get(json["buckets"], 0), "name")));
    EXPECT_TRUE(json_is_null(json_object_get(json_array_get(json["buckets"], 1), "name")));
}

TEST(Report, BenchTrace)
{
    CommandResult result = brigade(
        {"bench", "trace", "--threads", "2", "--rounds", "3", "--records", "1000", "--json"});
    ASSERT_EQ(result.code, 0) << result.err;
    Json json(result.out);
    EXPECT_EQ(json_array_size(json["put"]), 2u);
    EXPECT_GT(json_real_value(json_object_get(json_array_get(json["put"], 0), "record_ns")), 0);
    EXPECT_EQ(brigade({"bench", "trace", "extra"}).code, 2);
    CommandOptions nowhere;
    nowhere.env["TMPDIR"] = "/nonexistent";
    EXPECT_EQ(brigade({"bench", "trace"}, nowhere).code, 1);
}

} // namespace
