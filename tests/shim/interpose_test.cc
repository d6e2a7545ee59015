/* SPDX-License-Identifier: Apache-2.0 */
/* libbrigade-shim under programs on a fake NCCL: each test is a trap. What the program itself must
 * see is checked in scenarios.c; here it is what the trace must say. */
#include "interpose.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace
{

using Env = std::map<std::string, std::string>;

struct ShimRun {
    TempDir dir;
    CommandResult result;
    std::string ring() const
    {
        return dir.path("rank-0.ring");
    }
    void start(std::vector<std::string> args, const Env &env = {}, bool preload = true)
    {
        CommandOptions options;
        if (preload)
            options.env["LD_PRELOAD"] = SHIM;
        options.env["BRIGADE_TRACE"] = dir.path();
        options.env["RANK"] = "0";
        options.env["WORLD_SIZE"] = "4";
        for (const auto &entry : env)
            options.env[entry.first] = entry.second;
        result = Command(args, options).wait();
    }
    Trace trace() const
    {
        return Trace(ring());
    }
};

/* The ways in which a program comes by its NCCL. */
struct Way {
    const char *name;
    std::vector<std::string> args;
    bool preload;
};

void PrintTo(const Way &way, std::ostream *out)
{
    *out << way.name;
}

class Shim : public testing::TestWithParam<Way>
{
  protected:
    ShimRun run;
    Trace scenario(const char *name, const Env &env = {})
    {
        std::vector<std::string> args = GetParam().args;
        args.push_back(name);
        run.start(args, env, GetParam().preload);
        EXPECT_EQ(run.result.code, 0) << run.result.err;
        return run.trace();
    }
};

INSTANTIATE_TEST_SUITE_P(
    Ways, Shim,
    testing::Values(Way{"Preloaded", {PROBE}, true}, Way{"LinkedBeforeNccl", {PROBE_LINKED}, false},
                    Way{"NcclInsideTheProgram", {PROBE_STATIC}, false},
                    Way{"ExtensionOpenedLocallyAsPyTorch", {PROBE_EXT, "run", EXTENSION}, true}),
    [](const auto &info) { return std::string(info.param.name); });

TEST_P(Shim, RecordsWhatTheProgramDoes)
{
    Trace trace = scenario("plain");
    ASSERT_TRUE(trace.there);
    EXPECT_TRUE(trace.closed);
    EXPECT_EQ(run.result.err, "");
    EXPECT_EQ(trace.info("source"), "shim");
    EXPECT_EQ(trace.info("timing"), "events");
    EXPECT_NE(trace.info("nccl").find("23004 "), std::string::npos);
    EXPECT_NE(trace.info("comm 1").find("size=4 rank=1 device=0 parent=0 how=init blocking=1"),
              std::string::npos)
        << trace.info("comm 1");
    EXPECT_EQ(trace.info("comm 1 end"), "destroy");
    ASSERT_EQ(trace.collectives.size(), 4u);
    EXPECT_EQ(trace.calls.size(), 4u);
    const brg_rec *reduce = trace.of_bytes(40), *scatter = trace.of_bytes(80);
    const brg_rec *send = trace.of_bytes(24);
    ASSERT_TRUE(reduce && scatter && send);
    EXPECT_EQ(reduce->func, BRG_FUNC_ALL_REDUCE);
    EXPECT_EQ(reduce->dtype, 0);
    EXPECT_EQ(reduce->flags, 0);
    EXPECT_EQ(reduce->bucket, BRG_NO_BUCKET);
    EXPECT_NE(reduce->aux, 0u);
    EXPECT_EQ(scatter->func, BRG_FUNC_REDUCE_SCATTER);
    EXPECT_EQ(scatter->aux, reduce->aux);
    EXPECT_EQ(scatter->step, 1u);
    EXPECT_EQ(scatter->stream, reduce->stream);
    EXPECT_EQ(send->func, BRG_FUNC_SEND);
    EXPECT_EQ(send->step, 0u) << "point to point is counted apart";
    EXPECT_NE(send->stream, reduce->stream);
    std::set<unsigned> dtypes;
    for (const brg_rec &rec : trace.collectives)
        dtypes.insert(rec.dtype);
    EXPECT_TRUE(dtypes.count(255)) << "an 8-bit float";
    for (const brg_rec &rec : trace.collectives)
        for (const brg_rec &call : trace.calls)
            if (call.comm == rec.comm && call.step == rec.step && call.func == rec.func) {
                EXPECT_LT(rec.t0_ns > call.t0_ns ? rec.t0_ns - call.t0_ns : call.t0_ns - rec.t0_ns,
                          100000000u)
                    << "device times and host times are on one clock";
            }
}

TEST_P(Shim, NcclCallsItselfByName)
{
    Trace trace = scenario("internal_calls");
    ASSERT_EQ(trace.collectives.size(), 1u);
    EXPECT_EQ(trace.collectives[0].func, BRG_FUNC_BROADCAST);
    EXPECT_EQ(trace.collectives[0].bytes, 16u);
}

TEST_P(Shim, NestedGroupsOfSeveralCommunicatorsAndStreams)
{
    Trace trace = scenario("nested_groups");
    ASSERT_EQ(trace.collectives.size(), 4u);
    const brg_rec *a = trace.of_bytes(4), *b = trace.of_bytes(8), *c = trace.of_bytes(12);
    const brg_rec *after = trace.of_bytes(16);
    ASSERT_TRUE(a && b && c && after);
    for (const brg_rec *rec : {a, b, c}) {
        EXPECT_EQ(rec->flags, BRG_REC_GROUPED);
        EXPECT_EQ(rec->channel_first, 1) << "the number of the group";
    }
    EXPECT_EQ(a->t0_ns, c->t0_ns);
    EXPECT_EQ(a->t1_ns, c->t1_ns);
    EXPECT_EQ(a->comm, c->comm);
    EXPECT_NE(a->comm, b->comm);
    EXPECT_NE(a->stream, b->stream);
    EXPECT_EQ(a->step, 0u);
    EXPECT_EQ(c->step, 1u);
    EXPECT_EQ(after->flags, 0);
    EXPECT_EQ(after->channel_first, 0);
}

TEST_P(Shim, GroupSimulateEndRunsNothing)
{
    Trace trace = scenario("group_simulate_end");
    ASSERT_EQ(trace.collectives.size(), 2u);
    EXPECT_FALSE(trace.of_bytes(4));
    EXPECT_EQ(trace.of_bytes(8)->step, 0u) << "what was simulated is not counted";
    EXPECT_EQ(trace.of_bytes(12)->flags, 0) << "alone in its group";
    EXPECT_EQ(trace.of_bytes(12)->channel_first, 1);
}

TEST_P(Shim, NonBlockingCommunicatorsAreNotTimed)
{
    Trace trace = scenario("non_blocking");
    ASSERT_EQ(trace.collectives.size(), 2u);
    for (const brg_rec &rec : trace.collectives)
        EXPECT_EQ(rec.flags, BRG_REC_UNTIMED);
    EXPECT_NE(trace.info("comm 1").find("blocking=0"), std::string::npos);
}

TEST_P(Shim, GraphCaptureIsNotDisturbed)
{
    Trace trace = scenario("capture");
    ASSERT_EQ(trace.collectives.size(), 6u);
    const int captured = BRG_REC_UNTIMED | BRG_REC_CAPTURED;
    EXPECT_EQ(trace.of_bytes(4)->flags, 0);
    EXPECT_EQ(trace.of_bytes(8)->flags, captured);
    EXPECT_EQ(trace.of_bytes(12)->flags, captured);
    EXPECT_EQ(trace.of_bytes(16)->flags, 0) << "another stream";
    EXPECT_EQ(trace.of_bytes(20)->flags, captured) << "the legacy stream cannot be asked";
    EXPECT_EQ(trace.of_bytes(24)->flags, 0);
}

TEST_P(Shim, CudaErrorsOfTheProgramStayAndOursGo)
{
    Trace trace = scenario("cuda_errors");
    ASSERT_EQ(trace.collectives.size(), 3u);
    EXPECT_EQ(trace.of_bytes(4)->flags, BRG_REC_UNTIMED);
    EXPECT_EQ(trace.of_bytes(8)->flags, BRG_REC_UNTIMED);
    EXPECT_EQ(trace.of_bytes(12)->flags, 0);
}

/* As many launches as there are events for have device times, and those that follow when they have
 * ended. */
TEST_P(Shim, AHostFarAheadHasTheTimesOfItsCallsMeanwhile)
{
    enum { CALLS = 6000, AHEAD = 4096 };
    Trace trace = scenario("host_ahead");
    ASSERT_EQ(trace.collectives.size(), CALLS + 1u);
    EXPECT_EQ(trace.drops, 0u);
    const uint64_t behind = 9000000000, call = trace.of_bytes(4 * CALLS)->t0_ns;
    for (uint64_t i = 1; i <= CALLS; i++) {
        const brg_rec *rec = trace.of_bytes(4 * i);
        ASSERT_TRUE(rec);
        ASSERT_EQ(rec->flags & BRG_REC_UNTIMED, i <= AHEAD ? 0 : BRG_REC_UNTIMED) << i;
        ASSERT_EQ(rec->t0_ns > call + behind, i <= AHEAD) << i;
    }
    EXPECT_EQ(trace.of_bytes(4 * (CALLS + 1))->flags & BRG_REC_UNTIMED, 0);
    EXPECT_EQ(count_of(run.result.err, "4096 collectives are under way on device 0"), 1)
        << run.result.err;
}

TEST_P(Shim, SplitShrinkAbortDestroyAndReusedPointers)
{
    Trace trace = scenario("lineage");
    ASSERT_EQ(trace.collectives.size(), 4u);
    EXPECT_EQ(trace.of_bytes(4)->comm, 2u);
    EXPECT_EQ(trace.of_bytes(8)->comm, 3u);
    EXPECT_EQ(trace.of_bytes(12)->comm, 4u) << "the pointer of 2, another communicator";
    EXPECT_EQ(trace.of_bytes(16)->comm, 5u) << "and once more";
    EXPECT_NE(trace.info("comm 2").find("size=2 rank=0 device=0 parent=1 how=split"),
              std::string::npos)
        << trace.info("comm 2");
    EXPECT_NE(trace.info("comm 3").find("size=3 rank=1 device=0 parent=1 how=shrink"),
              std::string::npos);
    EXPECT_NE(trace.info("comm 4").find("size=8 rank=5"), std::string::npos);
    EXPECT_EQ(trace.info("comm 2 end"), "abort");
    EXPECT_EQ(trace.info("comm 4 end"), "destroy");
    std::set<std::string> hashes;
    for (int id = 1; id <= 3; id++)
        hashes.insert(trace.info("comm " + std::to_string(id)).substr(0, 21));
    EXPECT_EQ(hashes.size(), 3u);
}

TEST_P(Shim, AChildAfterForkRecordsNothing)
{
    Trace trace = scenario("after_fork");
    ASSERT_EQ(trace.collectives.size(), 2u);
    EXPECT_EQ(trace.drops, 0u);
    EXPECT_TRUE(trace.of_bytes(4) && trace.of_bytes(8));
    EXPECT_EQ(trace.info("comm 1 end"), "");
}

TEST_P(Shim, ThreadsWithCommunicatorsOfTheirOwn)
{
    Trace trace = scenario("threads");
    EXPECT_EQ(trace.collectives.size(), 8u * 500 * 3);
    EXPECT_EQ(trace.drops, 0u);
    std::map<uint32_t, std::set<uint32_t>> numbers;
    for (const brg_rec &rec : trace.collectives)
        numbers[rec.comm].insert(rec.step);
    EXPECT_EQ(numbers.size(), 8u);
    for (const auto &entry : numbers)
        EXPECT_EQ(entry.second.size(), 1500u);
}

TEST_P(Shim, OperatorsOfTheProgram)
{
    Trace trace = scenario("user_redops");
    ASSERT_EQ(trace.collectives.size(), 2u);
    EXPECT_EQ(trace.of_bytes(4)->flags, BRG_REC_USER_OP);
    EXPECT_EQ(trace.of_bytes(8)->flags, 0);
}

TEST_P(Shim, WindowsAndRegistrationsPassThrough)
{
    Trace trace = scenario("windows");
    EXPECT_EQ(trace.collectives.size(), 0u);
}

TEST_P(Shim, WhatFailsIsNotRecorded)
{
    Trace trace = scenario("failing_call", {{"FAKE_FAILS", "ncclAllReduce"}});
    ASSERT_EQ(trace.collectives.size(), 1u);
    EXPECT_EQ(trace.collectives[0].func, BRG_FUNC_ALL_GATHER);
    EXPECT_EQ(trace.collectives[0].step, 0u);
}

TEST_P(Shim, WithoutCommunicatorsNothingIsOpened)
{
    EXPECT_FALSE(scenario("version_only").there);
    EXPECT_NE(run.result.out.find("version 23004"), std::string::npos);
    EXPECT_FALSE(scenario("nothing").there);
}

TEST_P(Shim, UnderLibbrigadeItIsSilent)
{
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "a program without the address sanitizer cannot load a library that has it";
#endif
    EXPECT_FALSE(scenario("with_libbrigade", {{"LIBBRIGADE", LIBBRIGADE}}).there);
}

TEST_P(Shim, TimingCanBeLeftOut)
{
    Trace trace = scenario("plain", {{"BRIGADE_SHIM_TIMING", "none"}});
    ASSERT_EQ(trace.collectives.size(), 4u);
    for (const brg_rec &rec : trace.collectives)
        EXPECT_EQ(rec.flags, BRG_REC_UNTIMED);
    EXPECT_EQ(trace.info("timing"), "none");
    remove(run.ring().c_str());
    scenario("plain", {{"BRIGADE_SHIM_TIMING", "perhaps"}});
    EXPECT_NE(run.result.err.find("BRIGADE_SHIM_TIMING=perhaps: expected auto, events or none"),
              std::string::npos);
}

TEST_P(Shim, WithoutATraceDirectoryItOnlyPassesThrough)
{
    EXPECT_FALSE(scenario("plain", {{"BRIGADE_TRACE", ""}}).there);
    EXPECT_EQ(run.result.err, "");
}

TEST_P(Shim, ATraceThatCannotBeWrittenIsSaidOnce)
{
    scenario("threads", {{"BRIGADE_TRACE", run.dir.path("missing")}});
    EXPECT_EQ(count_of(run.result.err, "brigade: warning: shim: "), 1) << run.result.err;
    std::ofstream(run.ring()) << "something";
    scenario("plain");
    EXPECT_NE(run.result.err.find("exists already"), std::string::npos) << run.result.err;
}

TEST_P(Shim, RanksOfOtherLaunchers)
{
    for (const Env &env :
         std::vector<Env>{{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
                          {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
                          {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}}) {
        Env all = env;
        all["RANK"] = all["WORLD_SIZE"] = "";
        scenario("plain", all);
        Trace trace(run.dir.path("rank-2.ring"));
        EXPECT_TRUE(trace.there);
        remove(run.dir.path("rank-2.ring").c_str());
    }
    scenario("plain", {{"RANK", ""}, {"WORLD_SIZE", ""}});
    EXPECT_TRUE(Trace(run.dir.path("rank-1.ring")).there) << "as the first communicator says";
}

TEST(ShimOldNccl, FunctionsThatItLacksAreInvalidUsageSaidOnce)
{
    ShimRun run;
    std::string old = FAKE_OLD;
    run.start({PROBE, "old_nccl"}, {{"LD_LIBRARY_PATH", old.substr(0, old.rfind('/'))}});
    EXPECT_EQ(run.result.code, 0) << run.result.err;
    EXPECT_EQ(count_of(run.result.err, "ncclCommRevoke is not in NCCL 21903"), 1) << run.result.err;
    EXPECT_EQ(count_of(run.result.err, "ncclCommShrink is not in NCCL 21903"), 1);
    ASSERT_EQ(run.trace().collectives.size(), 1u);
}

/* The program's calls do not come by; NCCL's own, by name, do, and must find their way back. */
TEST(ShimDlsym, NcclOpenedLocallyAndAskedForItsFunctions)
{
    ShimRun run;
    run.start({PROBE_EXT, "dlsym", FAKE_NEW});
    EXPECT_EQ(run.result.code, 0) << run.result.err;
    EXPECT_EQ(run.result.err, "");
    EXPECT_FALSE(run.trace().there);
}

TEST(ShimCopies, TwoNcclsInOneProcessHaveGroupsOfTheirOwn)
{
    ShimRun run;
    run.start({PROBE_EXT, "two", COPY_NEW, COPY_OTHER});
    EXPECT_EQ(run.result.code, 0) << run.result.err;
    Trace trace = run.trace();
    ASSERT_EQ(trace.collectives.size(), 4u);
    EXPECT_EQ(std::count_if(trace.infos.begin(), trace.infos.end(),
                            [](const auto &entry) { return entry.first == "nccl"; }),
              2);
    int grouped = 0;
    for (const brg_rec &rec : trace.collectives)
        grouped += rec.channel_first != 0;
    EXPECT_EQ(grouped, 1) << "only the first operation of the first copy";
}

TEST(ShimResolve, TheFileThatTheUserNames)
{
    ShimRun run;
    run.start({PROBE, "version_only"}, {{"BRIGADE_NCCL_LIB", FAKE_OTHER}});
    EXPECT_NE(run.result.out.find("version 22809"), std::string::npos) << run.result.err;
    run.start({PROBE, "no_nccl"}, {{"BRIGADE_NCCL_LIB", "/nowhere/libnccl.so.2"}});
    EXPECT_EQ(run.result.code, 0) << run.result.err;
    EXPECT_EQ(count_of(run.result.err, "BRIGADE_NCCL_LIB=/nowhere/libnccl.so.2"), 1);
    run.start({PROBE, "no_nccl"}, {{"BRIGADE_NCCL_LIB", "libnccl.so.2"}});
    EXPECT_NE(run.result.err.find("expected an absolute path"), std::string::npos);
}

TEST(ShimResolve, ALinkerThatLeftNcclOut)
{
    ShimRun run;
    std::string file = FAKE_NEW;
    run.start({PROBE_ONLY}, {{"LD_LIBRARY_PATH", file.substr(0, file.rfind('/'))}}, false);
    EXPECT_EQ(run.result.out, "result 0 version 23004\n") << run.result.err;
}

TEST(ShimUntouched, AProcessWithoutNccl)
{
    ShimRun run;
    run.start({PROBE_EXT, "threads"});
    EXPECT_EQ(run.result.out, "threads 1\n");
    EXPECT_EQ(run.result.err, "");
    EXPECT_FALSE(run.trace().there);
}

TEST(ShimDriver, ARuntimeThatIsLinkedInIsTimedThroughTheDriver)
{
    ShimRun run;
    run.start({PROBE_DRIVER, "plain"}, {{"LD_PRELOAD", SHIM ":" FAKE_DRIVER}});
    EXPECT_EQ(run.result.code, 0) << run.result.err;
    Trace trace = run.trace();
    EXPECT_EQ(trace.info("timing"), "events");
    ASSERT_EQ(trace.collectives.size(), 4u);
    EXPECT_EQ(trace.calls.size(), 4u);
    for (const brg_rec &rec : trace.collectives)
        EXPECT_EQ(rec.flags, 0);
}

TEST(ShimExports, NcclsNamesAndNoOthers)
{
    CommandResult r = Command({"/usr/bin/env", "nm", "-D", "--defined-only", SHIM}).wait();
    ASSERT_EQ(r.code, 0) << r.err;
    int count = 0;
    for (const std::string &line : lines_of(r.out)) {
        std::string name = line.substr(line.rfind(' ') + 1);
        EXPECT_EQ(name.rfind("nccl", 0), 0u) << name;
        count++;
    }
    EXPECT_GE(count, 80);
    r = Command({"/usr/bin/env", "nm", "-D", "--undefined-only", SHIM}).wait();
    EXPECT_EQ(r.out.find(" cu"), std::string::npos) << "nothing of CUDA";
    EXPECT_EQ(r.out.find("nccl"), std::string::npos);
}

} // namespace
