// SPDX-License-Identifier: Apache-2.0
/* Which rank died first, from what brigade run leaves beside the traces. */
#include <gtest/gtest.h>

#include <list>
#include <string>

#include "tests/brigade/command.h"
#include "tests/brigade/json.h"
#include "tests/trace/trace_builder.h"

namespace
{

constexpr const char *LATER = "9000000000000000000"; /* than any trace */

std::string end_of(int rank, int sig, int exit_status, bool first)
{
    auto number = [](int value) { return value ? std::to_string(value) : "null"; };
    return "{\"rank\":" + std::to_string(rank) + ",\"signal\":" + number(sig) +
           ",\"exit_status\":" + number(exit_status) + ",\"first\":" + (first ? "true" : "false") +
           ",\"ended_by_run\":" + (first ? "false" : "true") + "}";
}

/* Traces of three ranks without an end. */
class ReportEnds : public testing::Test
{
  protected:
    void traces(uint32_t steps)
    {
        for (uint32_t rank = 0; rank < 3; rank++) {
            TraceBuilder &t = builders.emplace_back(3);
            for (uint32_t s = 0; s < steps; s++)
                two_bucket_step(t, s, 1000000 * s, 1000);
            t.write(dir.path("rank-" + std::to_string(rank) + ".ring"), rank, 0, false);
        }
    }
    void leave(const std::string &ranks, const std::string &time_ns = LATER)
    {
        write_file(dir.path("run.json"),
                   "{\"schema\":1,\"time_ns\":" + time_ns + ",\"ranks\":[" + ranks + "]}");
    }
    CommandResult report(const std::string &option = "--top=0")
    {
        return brigade({"report", dir.path(), option});
    }
    TempDir dir;
    std::list<TraceBuilder> builders; /* which close their traces in the end */
};

TEST_F(ReportEnds, OneDiedAndTheOthersWereEnded)
{
    traces(6);
    leave(end_of(0, 15, 0, false) + "," + end_of(1, 0, 3, true) + "," + end_of(2, 9, 0, false));
    CommandResult result = report();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_HAS(result.out,
               "rank 1 died first: exited with status 3; brigade run then ended the others\n");
    EXPECT_HAS(result.out, "rank 0: the trace has no end (ended by brigade run)");
    EXPECT_HAS(result.out, "rank 1: the trace has no end (exited with status 3)");
    Json json(report("--json").out);
    ASSERT_EQ(json_array_size(json["ends"]), 3u);
    json_t *first = json_array_get(json["ends"], 1), *last = json_array_get(json["ends"], 2);
    EXPECT_EQ(integer(first, "exit_status"), 3);
    EXPECT_TRUE(json_is_null(json_object_get(first, "signal")));
    EXPECT_EQ(integer(last, "signal"), 9);
    EXPECT_TRUE(json_is_true(json_object_get(last, "ended_by_run")));
}

TEST_F(ReportEnds, SeveralAtOnceHaveNoOrder)
{
    traces(6);
    leave(end_of(0, 11, 0, true) + "," + end_of(1, 0, 1, true) + "," + end_of(2, 0, 2, true));
    EXPECT_HAS(report().out, "rank 0 (killed by signal 11 (SIGSEGV)), rank 1 (exited with status "
                             "1) and rank 2 (exited with status 2) died first, in an order that "
                             "nobody saw\n");
    std::string many;
    for (int rank = 0; rank < 60; rank++)
        many += (rank ? "," : "") + end_of(rank, 0, 7, true);
    leave(many);
    EXPECT_HAS(report().out, "rank 3 (exited with status 7) and 56 more died first, in an order");
}

TEST_F(ReportEnds, AlsoWhereNoStepIsWhole)
{
    traces(0);
    leave(end_of(2, 9, 0, true));
    CommandResult result = report();
    EXPECT_EQ(result.code, 4);
    EXPECT_HAS(result.err, "; rank 2 died first: killed by signal 9 (SIGKILL)\n");
}

TEST_F(ReportEnds, NothingIsKnownWithoutOrOfAnEarlierRun)
{
    traces(6);
    for (bool earlier : {false, true}) {
        if (earlier)
            leave(end_of(1, 9, 0, true), "1000");
        CommandResult result = report();
        EXPECT_EQ(result.out.find("died first"), std::string::npos) << result.out;
        EXPECT_HAS(result.out, "rank 1: the trace has no end (killed, or still running)");
        EXPECT_EQ(json_array_size(Json(report("--json").out)["ends"]), 0u);
    }
}

TEST_F(ReportEnds, WhatIsNotUnderstoodIsAWarning)
{
    traces(6);
    const std::string good = end_of(1, 9, 0, true), head = "{\"time_ns\":" + std::string(LATER);
    for (const std::string &bad :
         {std::string(), std::string("{"), std::string("[]"), head + "}", head + ",\"ranks\":[]}",
          head + ",\"ranks\":{}}", head + ",\"ranks\":[1," + good + "]}",
          head + ",\"ranks\":[" + good + "," + end_of(0, 9, 3, true) + "]}",
          head + ",\"ranks\":[" + end_of(-1, 9, 0, true) + "]}", "{\"ranks\":[" + good + "]}"}) {
        write_file(dir.path("run.json"), bad);
        CommandResult result = report();
        EXPECT_EQ(result.code, 0) << bad << result.err;
        EXPECT_HAS(result.out, "run.json: ");
        EXPECT_HAS(result.out, "which rank died first is not known");
        EXPECT_EQ(json_array_size(Json(report("--json").out)["ends"]), 0u) << bad;
    }
}

} // namespace
