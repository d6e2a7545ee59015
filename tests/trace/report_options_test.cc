// SPDX-License-Identifier: Apache-2.0
/* Options of brigade report on traces as the shim leaves them. */
#include "tests/trace/report_shim.h"

namespace
{

/* The first words of the rows of a list, in the table and in a file. */
void expect_order(const TempDir &dir, const std::string &by, const std::vector<std::string> &sort,
                  const std::vector<std::string> &rows)
{
    std::vector<std::string> args = {"report", dir.path(),          "--by", by, "-f",
                                     "--csv",  dir.path("list.csv")};
    args.insert(args.end(), sort.begin(), sort.end());
    CommandResult result = brigade(args);
    ASSERT_EQ(result.code, 0) << result.err;
    auto lines = lines_of(result.out), csv = lines_of(read_file(dir.path("list.csv")));
    const std::string title = by == "comm"   ? "communicator "
                              : by == "func" ? "collective "
                                             : "rank ";
    size_t at = 0;
    while (at < lines.size() &&
           (lines[at].compare(0, title.size(), title) || lines[at].find("  ") == std::string::npos))
        at++;
    ASSERT_LE(at + rows.size(), lines.size());
    ASSERT_EQ(csv.size(), rows.size() + 1);
    for (size_t i = 0; i < rows.size(); i++) {
        EXPECT_EQ(lines[at + 1 + i].substr(0, lines[at + 1 + i].find_first_of(" ,")), rows[i]);
        EXPECT_EQ(csv[1 + i].substr(0, csv[1 + i].find(',')), rows[i]);
    }
}

TEST(ReportOptions, SortSortsEveryList)
{
    TempDir dir;
    for (uint32_t rank = 0; rank < 3; rank++) {
        ShimTrace t(1, rank, 3);
        t.comm(1, 3, 1);
        t.comm(2, 3, 2);
        for (int s = 0; s < 6; s++) {
            t.pass(rank == 1 ? 30000 : 10000);
            t.op(1, BRG_FUNC_ALL_REDUCE, 8000000, 0x1000000, {s, 0});
            for (int i = 0; i < 8; i++) /* fewer bytes, more time */
                t.op(2, BRG_FUNC_BROADCAST, 100000, 0x2000000, {s, -1});
        }
        t.write(ring_path(dir, rank));
    }
    expect_order(dir, "comm", {}, {"2", "1"});
    expect_order(dir, "comm", {"--sort", "time"}, {"2", "1"});
    expect_order(dir, "comm", {"--sort", "size"}, {"1", "2"});
    expect_order(dir, "comm", {"--sort", "id"}, {"1", "2"});
    expect_order(dir, "func", {"--sort", "time"}, {"broadcast", "all-reduce"});
    expect_order(dir, "func", {"--sort", "size"}, {"all-reduce", "broadcast"});
    expect_order(dir, "rank", {}, {"0", "1", "2"});
    expect_order(dir, "rank", {"--sort", "time"}, {"1", "0", "2"});
    Json json(brigade({"report", dir.path(), "--by", "comm", "--sort", "size", "--json"}).out);
    EXPECT_EQ(integer(json_array_get(json["comms"], 0), "comm"), 1);
    Json ranks(brigade({"report", dir.path(), "--by", "rank", "--sort", "time", "--json"}).out);
    EXPECT_EQ(integer(json_array_get(ranks["ranks"], 0), "rank"), 1);
}

TEST(ReportOptions, SortByWhatTheListLacksIsAnError)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { ddp(t, {}); });
    const struct {
        const char *by, *sort, *valid;
    } bad[] = {{"comm", "wait", "id, size, time"},
               {"func", "busbw", "id, size, time"},
               {"rank", "size", "id, exposed, time"}};
    for (const auto &b : bad) {
        CommandResult result = brigade({"report", dir.path(), "--by", b.by, "--sort", b.sort});
        EXPECT_EQ(result.code, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_HAS(result.err, std::string("--sort ") + b.sort + ": ");
        EXPECT_HAS(result.err, std::string("--by ") + b.by);
        EXPECT_HAS(result.err, b.valid);
    }
}

/* Gradient accumulation: the buckets are reduced in every round. */
void accumulate(ShimTrace &t, int steps, int rounds)
{
    t.comm(1, t.world, 1);
    for (int s = 0; s < steps; s++) {
        for (int k = 0; k < rounds; k++) {
            t.pass(10000);
            for (uint64_t b = 0; b < 3; b++)
                t.op(1, BRG_FUNC_ALL_REDUCE, 4000000 + 100000 * b, (b + 1) << 24, {s, (int)b});
        }
        t.pass(2000); /* the optimizer */
    }
}

TEST(ReportOptions, RepeatsMakeRoundsOneStep)
{
    TempDir dir;
    fleet(dir, 2, [](ShimTrace &t) { accumulate(t, 12, 4); });
    const std::string hint = "each round of them is taken for a step; where K rounds make one: "
                             "--repeats K";
    CommandResult rounds = brigade({"report", dir.path(), "--skip", "0"});
    ASSERT_EQ(rounds.code, 0) << rounds.err;
    EXPECT_HAS(rounds.out, "47 of 47 steps");
    EXPECT_HAS(rounds.out, hint);
    expect_fits(rounds.out);
    CommandResult steps = brigade({"report", dir.path(), "--skip", "0", "--repeats", "4"});
    ASSERT_EQ(steps.code, 0) << steps.err;
    EXPECT_HAS(steps.out, "11 of 11 steps");
    EXPECT_HAS(steps.out, "by address and size, 4 micro-steps a step");
    EXPECT_EQ(steps.out.find(hint), std::string::npos);
    EXPECT_EQ(steps.out.find("warning"), std::string::npos) << steps.out;
    Json json(brigade({"report", dir.path(), "--json", "--repeats", "4"}).out);
    json_t *recognition = json["recognition"];
    EXPECT_EQ(integer(recognition, "micro_steps"), 4);
    EXPECT_TRUE(json_is_true(json_object_get(recognition, "micro_steps_known")));
    ASSERT_EQ(json_array_size(json["buckets"]), 3u);
    for (size_t i = 0; i < 3; i++) {
        json_t *bucket = json_array_get(json["buckets"], i);
        EXPECT_EQ(integer(bucket, "all_reduces_per_step"), 4);
        EXPECT_TRUE(json_is_true(json_object_get(bucket, "counts_constant")));
    }
    Json unknown(brigade({"report", dir.path(), "--json"}).out);
    EXPECT_TRUE(json_is_false(json_object_get(unknown["recognition"], "micro_steps_known")));
    CommandResult compared =
        brigade({"compare", dir.path(), dir.path(), "--repeats", "4", "--skip", "0", "--json"});
    EXPECT_EQ(compared.code, 0) << compared.err;
    Json runs(compared.out);
    EXPECT_EQ(integer(json_array_get(runs["runs"], 0), "steps"), 11);
}

TEST(ReportOptions, RepeatsAreNotAskedForWhereGathersTell)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { zero(t, {10, 6, 2}); });
    CommandResult result = brigade({"report", dir.path()});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out, "2 micro-steps a step");
    EXPECT_EQ(result.out.find("--repeats"), std::string::npos);
}

/* What was given, and what was expected in its place. */
TEST(ReportOptions, BadValuesAreNamed)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { ddp(t, {}); });
    const std::string whole = "is not a whole number of 0 to 4294967295",
                      plan = "expected a file that brigade plan --json has written";
    write_file(dir.path("bad.json"), "{\"buffers\": 1}");
    write_file(dir.path("bad.txt"), "buckets");
    write_file(dir.path("half.json"), R"({"buffers":[{"key":"a","buckets":[{"start":0}]}]})");
    write_file(dir.path("none.json"), R"({"buffers":[{"buckets":[]}]})");
    const struct {
        std::string option, value, says;
        int code;
    } bad[] = {
        {"--skip", "-1", whole, 2},
        {"--skip", "two", whole, 2},
        {"--skip", "1.5", whole, 2},
        {"--skip", "", whole, 2},
        {"--skip", "99999999999999999999", whole, 2},
        {"--skip", "400", "leaves none of its", 4},
        {"--top", "-1", whole, 2},
        {"--top", "all", whole, 2},
        {"--top", "5000000000", whole, 2},
        {"--repeats", "0", "is not a whole number of 1 to 65536", 2},
        {"--bucket-map", "", plan, 3},
        {"--bucket-map", dir.path("gone"), plan, 3},
        {"--bucket-map", dir.path("."), plan, 3},
        {"--bucket-map", dir.path("bad.json"), plan, 3},
        {"--bucket-map", dir.path("bad.txt"), plan, 3},
        {"--bucket-map", dir.path("half.json"), plan, 3},
        {"--bucket-map", dir.path("none.json"), plan, 3},
    };
    for (const auto &b : bad) {
        CommandResult result = brigade({"report", dir.path(), b.option, b.value});
        SCOPED_TRACE(b.option + " '" + b.value + "'");
        EXPECT_EQ(result.code, b.code);
        EXPECT_EQ(result.out, "");
        EXPECT_EQ(lines_of(result.err).size(), 1u) << result.err;
        EXPECT_HAS(result.err, b.option);
        EXPECT_HAS(result.err, b.code == 4 ? b.value : "'" + b.value + "'");
        EXPECT_HAS(result.err, b.says);
    }
}

TEST(ReportOptions, RepeatsBeyondTheTrace)
{
    TempDir dir;
    fleet(dir, 1, [](ShimTrace &t) { accumulate(t, 5, 2); });
    CommandResult result = brigade({"report", dir.path(), "--repeats", "50"});
    EXPECT_EQ(result.code, 4);
    EXPECT_HAS(result.err, "reduced 50 times in a row");
    EXPECT_EQ(brigade({"report", dir.path(), "--repeats", "0"}).code, 2);
}

} // namespace
