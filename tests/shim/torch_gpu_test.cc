/* SPDX-License-Identifier: Apache-2.0 */
/* The shim under unmodified PyTorch: DDP, FSDP2 and a captured step of tools/torch/check_shim.py,
 * which knows nothing of Brigade. Results are those without the shim; the trace holds what torch's
 * profiler saw in the same run, collective by collective; the times agree.
 *
 * Two ranks: on two GPUs, or on one GPU that they share. There, their kernels take turns, and a
 * kernel begins up to a turn (milliseconds) after the event before it: times are printed and only
 * their order of magnitude is checked. */
#include <jansson.h>
#include <stdio.h>

#include <algorithm>

#include "gpu.h"
#include "interpose.h"

extern "C" {
#include "sched/status.h"
}

namespace
{

enum { RANKS = 2, FIRST_STEP = 2 /* DDP changes its buckets after the first step */ };
constexpr double TOLERANCE = 0.03, TOLERANCE_SHARED = 3.0;
/* An event and a kernel's start are some microseconds apart: below this that is above 3%. */
constexpr double MEASURABLE_MS = 0.2;

std::string ring(const TempDir &dir, int rank)
{
    return dir.path("trace/rank-" + std::to_string(rank) + ".ring");
}

std::string python()
{
    const char *given = getenv("BRIGADE_TEST_PYTHON");
    return given && *given ? given : "python3";
}

/* Why torch cannot be used; empty if it can. */
std::string torch_missing()
{
    CommandOptions options;
    options.env = gpu_environment();
    CommandResult result = Command({"/usr/bin/env", python(), "-c",
                                    "import torch, torch.distributed as d\n"
                                    "assert torch.cuda.is_available() and d.is_nccl_available()"},
                                   options)
                               .wait(120000);
    std::vector<std::string> lines = lines_of(result.err);
    return result.code == 0 ? "" : python() + ": " + (lines.empty() ? "failed" : lines.back());
}

/* What one rank printed. */
struct Printed {
    std::string hash, losses;
    std::vector<std::pair<int, std::string>> issued; /* step and kind */
    std::vector<std::pair<std::string, double>> kernels;
    int64_t captured = 0, warmup_steps = 0;
};

std::map<int, Printed> parse(const std::string &out)
{
    std::map<int, Printed> ranks;
    for (const std::string &line : lines_of(out)) {
        json_t *root = json_loads(line.c_str(), 0, nullptr);
        if (!root)
            continue; /* some library's */
        Printed &p = ranks[(int)json_integer_value(json_object_get(root, "rank"))];
        p.hash = json_string_value(json_object_get(root, "hash"));
        char *losses = json_dumps(json_object_get(root, "losses"), 0);
        p.losses = losses;
        free(losses);
        p.captured = json_integer_value(json_object_get(root, "captured"));
        p.warmup_steps = json_integer_value(json_object_get(root, "warmup_steps"));
        size_t i;
        json_t *item;
        json_array_foreach(json_object_get(root, "issued"), i, item)
            p.issued.emplace_back(json_integer_value(json_array_get(item, 0)),
                                  json_string_value(json_array_get(item, 1)));
        json_array_foreach(json_object_get(root, "kernels"), i, item) p.kernels.emplace_back(
            json_string_value(json_array_get(item, 0)), json_number_value(json_array_get(item, 1)));
        printf("%.300s\n", line.c_str());
        json_decref(root);
    }
    return ranks;
}

const char *kind_of(const brg_rec &rec)
{
    switch (rec.func) {
    case BRG_FUNC_ALL_REDUCE:
        return "all_reduce";
    case BRG_FUNC_REDUCE_SCATTER:
        return "reduce_scatter";
    case BRG_FUNC_ALL_GATHER:
        return "all_gather";
    case BRG_FUNC_BROADCAST:
        return "broadcast";
    default:
        return "other";
    }
}

/* In the order of issue: the programs have one communicator. */
std::vector<brg_rec> in_order(const Trace &trace)
{
    std::vector<brg_rec> records = trace.collectives;
    for (const brg_rec &rec : records)
        EXPECT_EQ(rec.comm, records[0].comm);
    std::sort(records.begin(), records.end(),
              [](const brg_rec &a, const brg_rec &b) { return a.step < b.step; });
    return records;
}

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

class ShimTorch : public testing::Test
{
  protected:
    void SetUp() override
    {
        gpus = gpu_count();
        if (!gpus)
            GTEST_SKIP() << "no GPU answers: " << brg_last_error();
        static const std::string missing = torch_missing();
        if (!missing.empty())
            GTEST_SKIP() << "no torch with CUDA and NCCL: " << missing;
        printf("two ranks, %s\n", shared() ? "sharing one GPU" : "one GPU each");
    }
    bool shared() const
    {
        return gpus < RANKS;
    }
    /* Both ranks' lines; nothing after a failure. */
    std::map<int, Printed> run(const std::string &mode, std::vector<std::string> flags,
                               const TempDir *trace)
    {
        CommandOptions options;
        options.env = gpu_environment();
        std::vector<std::string> args = {"run", "-q", "--no-prefix", "-n", std::to_string(RANKS)};
        if (trace)
            args.insert(args.end(), {"-o", trace->path("trace")});
        args.insert(args.end(), {"--", python(), CHECK_SHIM, "--mode", mode});
        if (shared()) /* few bytes, since they go over sockets */
            args.insert(args.end(), {"--share-gpu", "--width", "256", "--bucket-mb", "1"});
        else
            args.insert(args.end(), {"--width", "2048", "--bucket-mb", "100"});
        args.insert(args.end(), flags.begin(), flags.end());
        Command command(brigade_args(args), options);
        CommandResult result = command.wait(90000);
        if (result.code == 999) {
            command.signal(SIGTERM); /* so that it ends its ranks */
            result = command.wait(15000);
            ADD_FAILURE() << mode << " took too long";
        }
        EXPECT_EQ(result.code, 0) << result.err;
        std::map<int, Printed> ranks = parse(result.out);
        EXPECT_EQ(ranks.size(), (size_t)RANKS) << result.out << result.err;
        return result.code == 0 ? ranks : std::map<int, Printed>();
    }
    void expect_same_results(std::map<int, Printed> &plain, std::map<int, Printed> &recorded)
    {
        for (int rank = 0; rank < RANKS; rank++) {
            EXPECT_EQ(plain[rank].hash.size(), 64u);
            EXPECT_EQ(plain[rank].hash, recorded[rank].hash) << "parameters of rank " << rank;
            EXPECT_EQ(plain[rank].losses, recorded[rank].losses) << "of rank " << rank;
        }
    }
    void expect_times(const std::vector<brg_rec> &records, const Printed &torch, int rank);
    void expect_report(const TempDir &dir, const Printed &torch);
    void expect_recorded(const std::string &mode);

    int gpus = 0;
};

/* By the place in the step: median over the steps of the shim's time and of the kernel's. */
void ShimTorch::expect_times(const std::vector<brg_rec> &records, const Printed &torch, int rank)
{
    struct Place {
        std::string kind;
        uint64_t bytes;
        std::vector<double> shim, kernel;
    };
    std::vector<Place> places;
    double shim_ms = 0, kernel_ms = 0;
    size_t place = 0;
    for (size_t i = 0; i < records.size(); i++) {
        int step = torch.issued[i].first;
        place = i && torch.issued[i - 1].first == step ? place + 1 : 0;
        EXPECT_EQ(records[i].flags & BRG_REC_UNTIMED, 0) << "collective " << i;
        if (step < FIRST_STEP)
            continue;
        if (place == places.size())
            places.push_back({kind_of(records[i]), records[i].bytes, {}, {}});
        ASSERT_LT(place, places.size());
        EXPECT_EQ(places[place].bytes, records[i].bytes) << "the steps are alike";
        places[place].shim.push_back((double)(records[i].t1_ns - records[i].t0_ns) / 1e6);
        places[place].kernel.push_back(torch.kernels[i].second);
        shim_ms += places[place].shim.back();
        kernel_ms += places[place].kernel.back();
    }
    printf("rank %d: medians over steps, ms\n%3s %-15s %10s %9s %9s %7s\n", rank, "", "kind",
           "bytes", "shim", "kernel", "ratio");
    for (size_t i = 0; i < places.size(); i++) {
        double shim = median(places[i].shim), kernel = median(places[i].kernel);
        printf("%3zu %-15s %10lu %9.3f %9.3f %7.3f\n", i, places[i].kind.c_str(),
               (unsigned long)places[i].bytes, shim, kernel, shim / kernel);
        if (!shared() && kernel >= MEASURABLE_MS) {
            EXPECT_NEAR(shim / kernel, 1, TOLERANCE) << "collective " << i << " of a step";
        }
    }
    printf("sum over all steps: shim %.3f ms, kernels %.3f ms\n", shim_ms, kernel_ms);
    EXPECT_LT(shim_ms, kernel_ms * (shared() ? TOLERANCE_SHARED : 1 + TOLERANCE));
    EXPECT_GT(shim_ms, kernel_ms / (shared() ? TOLERANCE_SHARED : 1 + TOLERANCE));
}

/* The report finds the steps, and in each of them as many collectives as torch issued. */
void ShimTorch::expect_report(const TempDir &dir, const Printed &torch)
{
    CommandResult text = brigade({"report", dir.path("trace")});
    EXPECT_EQ(text.code, 0) << text.err;
    printf("%s\n", text.out.c_str());
    CommandResult result = brigade({"report", dir.path("trace"), "--json"});
    json_t *root = json_loads(result.out.c_str(), 0, nullptr);
    ASSERT_NE(root, nullptr) << result.err;
    json_t *buckets = json_object_get(root, "buckets"), *bucket;
    EXPECT_GT(json_array_size(buckets), 0u);
    for (std::string kind : {"all_reduce", "reduce_scatter", "all_gather"}) {
        double reported = 0;
        long issued = std::count(torch.issued.begin(), torch.issued.end(),
                                 std::pair<int, std::string>(FIRST_STEP, kind));
        size_t i;
        json_array_foreach(buckets, i, bucket) reported +=
            json_number_value(json_object_get(bucket, (kind + "s_per_step").c_str()));
        EXPECT_EQ(reported, (double)issued) << kind << "s per step in all buckets";
    }
    json_decref(root);
}

void ShimTorch::expect_recorded(const std::string &mode)
{
    TempDir dir;
    std::map<int, Printed> plain = run(mode, {}, nullptr);
    std::map<int, Printed> recorded = run(mode, {"--profile"}, &dir);
    ASSERT_TRUE(plain.size() == RANKS && recorded.size() == RANKS);
    expect_same_results(plain, recorded);
    for (int rank = 0; rank < RANKS; rank++) {
        const Printed &torch = recorded[rank];
        Trace trace(ring(dir, rank));
        ASSERT_TRUE(trace.there);
        EXPECT_TRUE(trace.closed);
        EXPECT_EQ(trace.drops, 0u);
        EXPECT_EQ(trace.info("timing"), "events");
        const std::vector<brg_rec> records = in_order(trace);
        std::vector<std::string> shim, issued, launched;
        std::map<int, std::map<std::string, int>> counts;
        for (const brg_rec &rec : records)
            shim.push_back(kind_of(rec));
        for (const auto &[step, kind] : torch.issued) {
            issued.push_back(kind);
            counts[step][kind]++;
        }
        for (const auto &[kind, ms] : torch.kernels)
            launched.push_back(kind);
        printf("rank %d: %zu collectives recorded, %zu issued, %zu kernels\n", rank, shim.size(),
               issued.size(), launched.size());
        for (const auto &[step, kinds] : counts)
            for (const auto &[kind, count] : kinds)
                printf("  step %d: %d %s\n", step, count, kind.c_str());
        ASSERT_FALSE(issued.empty()) << "torch.profiler saw no collectives";
        ASSERT_EQ(shim, issued) << "the shim's records, and what torch issued, in order";
        ASSERT_EQ(shim, launched) << "the shim's records, and NCCL's kernels, in order";
        expect_times(records, torch, rank);
    }
    expect_report(dir, recorded[0]);
}

TEST_F(ShimTorch, Ddp)
{
    expect_recorded("ddp");
}

TEST_F(ShimTorch, Fsdp2)
{
    expect_recorded("fsdp2");
}

TEST_F(ShimTorch, CapturedStep)
{
    TempDir dir;
    std::map<int, Printed> plain = run("graph", {}, nullptr), recorded = run("graph", {}, &dir);
    ASSERT_TRUE(plain.size() == RANKS && recorded.size() == RANKS);
    expect_same_results(plain, recorded);
    for (int rank = 0; rank < RANKS; rank++) {
        const Printed &torch = recorded[rank];
        Trace trace(ring(dir, rank));
        ASSERT_TRUE(trace.there);
        EXPECT_TRUE(trace.closed);
        EXPECT_GT(torch.captured, 0);
        int64_t captured = 0, eager = 0;
        for (const brg_rec &rec : trace.collectives) {
            EXPECT_STREQ(kind_of(rec), "all_reduce");
            (rec.flags & BRG_REC_CAPTURED ? captured : eager)++;
        }
        EXPECT_EQ(captured, torch.captured) << "all-reduces of the graph";
        EXPECT_EQ(eager, torch.captured * torch.warmup_steps) << "all-reduces before the capture";
    }
    CommandResult text = brigade({"report", dir.path("trace")});
    printf("%s%s\n", text.out.c_str(), text.err.c_str());
}

} // namespace
