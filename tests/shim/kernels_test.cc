/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run --kernels on a fake CUPTI: what a trainer says it computed must come out of the
 * trace, and every way in which CUPTI can refuse must leave the trainer as it was. */
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "interpose.h"

namespace
{

using Env = std::map<std::string, std::string>;

enum { STEPS = 12, BUCKETS = 3, PER_STEP = 4 * 5, GAP_NS = 2000, RUN_NS = 100000 };

struct Span {
    uint64_t t0, t1;
};

struct Kernels {
    TempDir dir;
    CommandResult result;
    std::vector<Span> computed[2], reduced[2]; /* by rank, as the trainer says */

    void train(const Env &env = {}, const std::vector<std::string> &more = {"--kernels"})
    {
        CommandOptions options;
        options.env["NCCL_ID_FILE"] = dir.path("id");
        options.env["BRIGADE_CUPTI"] = FAKE_CUPTI;
        for (const auto &entry : env)
            options.env[entry.first] = entry.second;
        std::vector<std::string> args = {"run", "-q", "--no-prefix",    "-n",
                                         "2",   "-o", dir.path("trace")};
        args.insert(args.end(), more.begin(), more.end());
        args.insert(args.end(), {"--", KERNEL_TRAINER, std::to_string(STEPS)});
        result = brigade(args, options);
        EXPECT_EQ(result.code, 0) << result.err;
        for (const std::string &line : lines_of(result.out)) {
            std::istringstream in(line);
            std::string word, name;
            unsigned rank = 0, stream = 0;
            Span span{};
            in >> word >> rank >> stream >> span.t0 >> span.t1 >> name;
            if (word == "kernel" && rank < 2)
                (name.find("nccl") == std::string::npos ? computed : reduced)[rank].push_back(span);
        }
    }
    Trace trace(unsigned rank = 0) const
    {
        return Trace(dir.path("trace/rank-" + std::to_string(rank) + ".ring"));
    }
    json_t *report() const
    {
        CommandResult r = brigade({"report", dir.path("trace"), "--skip", "0", "--json"});
        EXPECT_EQ(r.code, 0) << r.err;
        return json_loads(r.out.c_str(), 0, nullptr);
    }
};

class ShimKernels : public testing::Test
{
  protected:
    Kernels run;
    void SetUp() override
    {
#ifdef __SANITIZE_ADDRESS__
        GTEST_SKIP() << "built with the address sanitizer";
#endif
    }
    void expect_none(const std::string &why)
    {
        Trace trace = run.trace();
        EXPECT_EQ(trace.kernels.size(), 0u);
        EXPECT_EQ(trace.collectives.size(), (size_t)STEPS * BUCKETS);
        EXPECT_NE(trace.info("kernels_missing").find(why), std::string::npos)
            << trace.info("kernels_missing");
        EXPECT_EQ(count_of(run.result.err, "no kernels are recorded: "), 2) << run.result.err;
        json_t *root = run.report();
        EXPECT_STREQ(json_string_value(json_object_get(root, "exposed_from")), "unknown");
        json_decref(root);
        CommandResult text = brigade({"report", run.dir.path("trace")});
        EXPECT_NE((text.out + text.err).find("rank 0: no kernels are recorded: "),
                  std::string::npos)
            << text.out;
    }
};

/* What the shim's joining makes of the trainer's kernels, which are in order. */
std::vector<Span> joined(const std::vector<Span> &kernels)
{
    std::vector<Span> out;
    for (const Span &k : kernels)
        if (!out.empty() && k.t0 <= out.back().t1 + GAP_NS && k.t1 - out.back().t0 <= RUN_NS)
            out.back().t1 = k.t1;
        else
            out.push_back(k);
    return out;
}

/* Nanoseconds of [t0, t1) in none of the spans, which are in order and apart. */
double uncovered(const std::vector<Span> &spans, uint64_t t0, uint64_t t1)
{
    double left = (double)(t1 - t0);
    for (const Span &s : spans) {
        uint64_t from = std::max(s.t0, t0), to = std::min(s.t1, t1);
        left -= to > from ? (double)(to - from) : 0;
    }
    return left;
}

TEST_F(ShimKernels, ArriveWithTheirTimesNamesAndNumbers)
{
    run.train();
    for (unsigned rank : {0u, 1u}) {
        Trace trace = run.trace(rank);
        ASSERT_EQ(run.computed[rank].size(), (size_t)STEPS * PER_STEP);
        const std::vector<Span> expected = joined(run.computed[rank]);
        std::vector<brg_rec> kernels, nccl;
        uint64_t count = 0;
        for (const brg_rec &rec : trace.kernels)
            (rec.kind == BRG_REC_COMPUTE ? kernels : nccl).push_back(rec);
        ASSERT_EQ(kernels.size(), expected.size());
        std::sort(kernels.begin(), kernels.end(),
                  [](const brg_rec &a, const brg_rec &b) { return a.t0_ns < b.t0_ns; });
        for (size_t i = 0; i < kernels.size(); i++) {
            /* The fake's clock is read between two looks at ours. */
            EXPECT_NEAR((double)(int64_t)(kernels[i].t0_ns - expected[i].t0), 0, 100000);
            EXPECT_EQ(kernels[i].t1_ns - kernels[i].t0_ns, expected[i].t1 - expected[i].t0);
            EXPECT_EQ(kernels[i].stream, 10007u);
            EXPECT_EQ(trace.names[kernels[i].aux], i % 2 ? "net::scale" : "net::gemm");
            count += kernels[i].bytes;
        }
        EXPECT_EQ(count, (uint64_t)STEPS * PER_STEP);
        ASSERT_EQ(nccl.size(), (size_t)STEPS);
        EXPECT_EQ(nccl[0].kind, BRG_REC_NCCL_KERNEL);
        EXPECT_EQ(nccl[0].stream, 10013u);
        EXPECT_EQ(trace.names[nccl[0].aux], "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
        EXPECT_EQ(trace.drops, 0u);
        EXPECT_EQ(trace.info("kernels"), std::string("cupti 130001 ") + FAKE_CUPTI);
    }
    EXPECT_EQ(run.result.err, "");
}

/* Per bucket: the median over the steps of what no kernel covers. */
TEST_F(ShimKernels, ExposedTimeIsThatOfBruteForce)
{
    run.train();
    json_t *root = run.report();
    Trace trace = run.trace((unsigned)json_integer_value(json_object_get(root, "rank")));
    EXPECT_STREQ(json_string_value(json_object_get(root, "exposed_from")), "kernels");
    std::vector<Span> kernels;
    for (const brg_rec &rec : trace.kernels)
        if (rec.kind == BRG_REC_COMPUTE)
            kernels.push_back({rec.t0_ns, rec.t1_ns});
    std::sort(kernels.begin(), kernels.end(),
              [](const Span &a, const Span &b) { return a.t0 < b.t0; });
    json_t *buckets = json_object_get(root, "buckets");
    ASSERT_EQ(json_array_size(buckets), (size_t)BUCKETS);
    for (size_t i = 0; i < BUCKETS; i++) {
        json_t *bucket = json_array_get(buckets, i);
        uint64_t bytes = (uint64_t)json_integer_value(json_object_get(bucket, "grad_bytes"));
        std::vector<double> exposed;
        for (const brg_rec &rec : trace.collectives)
            if (rec.bytes == bytes && rec.step / BUCKETS < STEPS - 1)
                exposed.push_back(uncovered(kernels, rec.t0_ns, rec.t1_ns));
        ASSERT_EQ(exposed.size(), (size_t)STEPS - 1) << bytes;
        std::sort(exposed.begin(), exposed.end());
        double median = exposed[(exposed.size() - 1) / 2];
        EXPECT_NEAR(json_number_value(json_object_get(bucket, "exposed_ns")), median, 1.0);
    }
    json_decref(root);
    CommandResult text =
        brigade({"report", run.dir.path("trace"), "--chrome", run.dir.path("t.json"), "--perfetto",
                 run.dir.path("t.pftrace"), "--html", run.dir.path("t.html")});
    EXPECT_NE(text.out.find("exposed    from kernel intervals"), std::string::npos) << text.out;
    for (const char *file : {"t.json", "t.pftrace", "t.html"})
        EXPECT_NE(read_file(run.dir.path(file)).find("net::gemm"), std::string::npos) << file;
}

TEST_F(ShimKernels, OnlyWhenAskedFor)
{
    run.train({}, {});
    EXPECT_EQ(run.trace().kernels.size(), 0u);
    EXPECT_EQ(run.trace().info("kernels"), "");
    EXPECT_EQ(run.trace().info("kernels_missing"), "");
    EXPECT_EQ(run.result.err, "");
}

TEST_F(ShimKernels, RecordsOfCuda12)
{
    run.train({{"FAKE_CUPTI_VERSION", "22"}});
    EXPECT_EQ(run.trace().info("kernels"), std::string("cupti 22 ") + FAKE_CUPTI);
    EXPECT_EQ(run.trace().kernels.size(), joined(run.computed[0]).size() + STEPS);
}

TEST_F(ShimKernels, AVersionThatIsNotKnown)
{
    run.train({{"FAKE_CUPTI_VERSION", "140000"}});
    expect_none("is CUPTI 140000, of which the records are not known");
}

TEST_F(ShimKernels, AVersionThatIsTooOld)
{
    run.train({{"FAKE_CUPTI_VERSION", "9"}});
    expect_none("is CUPTI 9, ");
}

TEST_F(ShimKernels, NoLibrary)
{
    run.train({{"BRIGADE_CUPTI", "/nowhere/libcupti.so.13"}});
    expect_none("BRIGADE_CUPTI=/nowhere/libcupti.so.13: ");
}

TEST_F(ShimKernels, ALibraryOfSomethingElse)
{
    run.train({{"BRIGADE_CUPTI", SHIM}});
    expect_none(" has no cuptiGetVersion");
}

TEST_F(ShimKernels, NoPrivileges)
{
    run.train({{"FAKE_CUPTI_FAILS", "cuptiActivityEnable=35"}});
    expect_none("cuptiActivityEnable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)");
}

TEST_F(ShimKernels, RefusedCallbacks)
{
    run.train({{"FAKE_CUPTI_FAILS", "cuptiActivityRegisterCallbacks=1"}});
    expect_none("cuptiActivityRegisterCallbacks: ");
}

TEST_F(ShimKernels, NoClock)
{
    run.train({{"FAKE_CUPTI_FAILS", "cuptiGetTimestamp=999"}});
    expect_none("cuptiGetTimestamp fails");
}

TEST_F(ShimKernels, NoneDelivered)
{
    run.train({{"FAKE_CUPTI_TAKEN", "0"}});
    expect_none("CUPTI delivered none; a profiler in the program may have them");
}

/* A profiler that registers in the middle of the run: later steps have no kernels, and must not
 * look as if all of their communication were exposed. */
TEST_F(ShimKernels, AProfilerThatTakesOver)
{
    enum { KNOWN = 6 };
    run.train({{"FAKE_CUPTI_TAKEN", std::to_string(KNOWN * (PER_STEP + 1))}});
    json_t *root = run.report();
    EXPECT_STREQ(json_string_value(json_object_get(root, "exposed_from")), "kernels");
    json_t *steps = json_object_get(root, "steps");
    EXPECT_EQ(json_integer_value(json_object_get(steps, "used")), STEPS - 1);
    json_t *compute = json_object_get(json_object_get(steps, "distribution"), "compute_ns");
    EXPECT_EQ(json_integer_value(json_object_get(compute, "n")), KNOWN);
    json_decref(root);
    CommandResult text = brigade({"report", run.dir.path("trace"), "--skip", "0"});
    EXPECT_NE((text.out + text.err).find(" steps have no kernels"), std::string::npos) << text.out;
    text = brigade({"compare", run.dir.path("trace"), run.dir.path("trace")});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_NE(text.out.find("not measured"), std::string::npos) << text.out;
}

TEST_F(ShimKernels, DroppedRecordsAreCounted)
{
    run.train({{"FAKE_CUPTI_DROPS", "17"}});
    EXPECT_EQ(run.trace().drops, 17u);
}

TEST_F(ShimKernels, ForeignBuffersAndUnfinishedRecords)
{
    run.train({{"FAKE_CUPTI_FOREIGN", "1"}});
    EXPECT_EQ(run.trace().drops, 1u);
    EXPECT_EQ(run.trace().kernels.size(), joined(run.computed[0]).size() + STEPS);
}

/* Without BRIGADE_CUPTI: in CUDA_HOME, and by name. */
TEST_F(ShimKernels, FoundInAToolkitAndByName)
{
    TempDir home;
    std::string place = home.path();
    for (const char *part : {"/extras", "/CUPTI", "/lib64"})
        ASSERT_EQ(mkdir((place += part).c_str(), 0700), 0);
    place += "/libcupti.so.13";
    ASSERT_EQ(symlink(FAKE_CUPTI, place.c_str()), 0);
    run.train({{"BRIGADE_CUPTI", ""}, {"CUDA_HOME", home.path()}});
    EXPECT_EQ(run.trace().info("kernels"), "cupti 130001 " + place);
    Kernels by_name;
    by_name.train({{"BRIGADE_CUPTI", ""}, {"LD_LIBRARY_PATH", home.path("extras/CUPTI/lib64")}});
    EXPECT_EQ(by_name.trace().info("kernels"), "cupti 130001 " + place);
}

/* Programs on a fake NCCL and a fake CUDA runtime, beside which the fake CUPTI lies. They check
 * themselves what they must not notice: errors left behind, captures broken. */
class ShimKernelsProbe : public ShimKernels
{
  protected:
    Trace probe(const std::string &scenario, const std::string &kernels = "cupti")
    {
        CommandOptions options;
        options.env["LD_PRELOAD"] = SHIM;
        options.env["BRIGADE_TRACE"] = run.dir.path();
        options.env["RANK"] = "0";
        options.env["WORLD_SIZE"] = "4";
        options.env["BRIGADE_SHIM_KERNELS"] = kernels;
        run.result = Command({PROBE, scenario}, options).wait();
        EXPECT_EQ(run.result.code, 0) << run.result.err;
        Trace trace(run.dir.path("rank-0.ring"));
        remove(run.dir.path("rank-0.ring").c_str());
        return trace;
    }
};

TEST_F(ShimKernelsProbe, FoundBesideTheRuntime)
{
    Trace trace = probe("plain");
    EXPECT_EQ(trace.info("kernels"), std::string("cupti 130001 ") + FAKE_CUPTI);
    EXPECT_EQ(trace.collectives.size(), 4u);
    EXPECT_EQ(trace.info("kernels_missing"),
              "CUPTI delivered none; a profiler in the program may have them");
}

TEST_F(ShimKernelsProbe, ProgramsNoticeNothing)
{
    for (const char *scenario : {"internal_calls", "nested_groups", "non_blocking", "capture",
                                 "cuda_errors", "lineage", "after_fork", "threads"}) {
        Trace trace = probe(scenario);
        EXPECT_TRUE(trace.there && trace.closed) << scenario;
        EXPECT_EQ(trace.drops, 0u) << scenario;
        EXPECT_EQ(count_of(run.result.err, "no kernels are recorded"), 1) << run.result.err;
    }
    EXPECT_FALSE(probe("version_only").there);
    EXPECT_EQ(run.result.err, "");
}

TEST_F(ShimKernelsProbe, AValueThatMeansNothing)
{
    Trace trace = probe("plain", "perhaps");
    EXPECT_EQ(trace.info("kernels"), "");
    EXPECT_NE(run.result.err.find("BRIGADE_SHIM_KERNELS=perhaps: expected cupti or none"),
              std::string::npos);
    probe("plain", "none");
    EXPECT_EQ(run.result.err, "");
}

TEST(RunKernels, TheOption)
{
    CommandResult r = brigade({"run", "--kernels", "--", "true"});
    EXPECT_EQ(r.code, 2);
    EXPECT_NE(r.err.find("--kernels has no meaning without --output"), std::string::npos);
    r = brigade({"run", "--kernels", "-o", "x", "--shim", "off", "--", "true"});
    EXPECT_EQ(r.code, 2);
    r = brigade({"run", "--kernels", "-o", "x", "--dry-run", "--", "true"});
    EXPECT_EQ(r.code, 0);
    EXPECT_NE(r.out.find("BRIGADE_SHIM_KERNELS=cupti "), std::string::npos) << r.out;
}

} // namespace
