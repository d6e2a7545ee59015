/* SPDX-License-Identifier: Apache-2.0 */
/* brigade run --kernels on real GPUs, with the real CUPTI: kernels of known number, name, length
 * and time; NCCL's own where its collectives are; the same results as without. */
#include <jansson.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "gpu.h"
#include "interpose.h"

extern "C" {
#include "sched/status.h"
}

namespace
{

enum { STEPS = 20, BUCKETS = 4, SPIN_NS = 500000, CLOCK_ERROR_NS = 100000 };

CommandResult train(int ranks, const TempDir &dir, const std::vector<std::string> &how)
{
    CommandOptions options;
    options.env["NCCL_ID_FILE"] = dir.path("id");
    for (const char *name : {"LD_LIBRARY_PATH", "CUDA_HOME", "BRIGADE_CUPTI"})
        if (const char *value = getenv(name))
            options.env[name] = value;
    std::vector<std::string> args = {
        "run", "-q", "-n", std::to_string(ranks), "-o", dir.path("trace")};
    args.insert(args.end(), how.begin(), how.end());
    args.insert(args.end(), {"--", GPU_KERNELS, std::to_string(STEPS)});
    return brigade(args, options);
}

std::string sum_of(const std::string &out)
{
    size_t at = out.find("sum ");
    return at == std::string::npos ? "" : out.substr(at, out.find('\n', at) - at);
}

struct Step {
    uint64_t t0 = 0, t1 = 0; /* on the host */
};

std::vector<Step> steps_of(const std::string &out, int wanted)
{
    std::vector<Step> steps(STEPS);
    for (const std::string &line : lines_of(out)) {
        size_t at = line.find("step ");
        int rank = -1, number = -1;
        Step step;
        if (at == std::string::npos)
            continue;
        std::istringstream(line.substr(at + 5)) >> rank >> number >> step.t0 >> step.t1;
        if (rank == wanted && number >= 0 && number < STEPS)
            steps[(size_t)number] = step;
    }
    return steps;
}

/* Every step has its kernels, within its time on the host. */
void expect_spins(const std::vector<brg_rec> &spins, const std::vector<Step> &steps)
{
    ASSERT_EQ(spins.size(), (size_t)STEPS * BUCKETS);
    for (size_t i = 0; i < spins.size(); i++) {
        const Step &step = steps[i / BUCKETS];
        EXPECT_EQ(spins[i].bytes, 1u) << "longer than what is joined";
        EXPECT_GT(spins[i].t0_ns + CLOCK_ERROR_NS, step.t0) << i;
        EXPECT_LT(spins[i].t1_ns, step.t1 + CLOCK_ERROR_NS) << i;
        EXPECT_GT(spins[i].t1_ns - spins[i].t0_ns, SPIN_NS * 9u / 10) << i;
        EXPECT_LT(spins[i].t1_ns - spins[i].t0_ns, SPIN_NS * 2u) << i;
        uint64_t before = i ? spins[i - 1].t1_ns : 0;
        EXPECT_GE(spins[i].t0_ns, before) << i;
    }
}

/* Each collective has its kernel: events and CUPTI agree on when it was. */
void expect_nccl(const std::vector<brg_rec> &nccl, std::vector<brg_rec> collectives)
{
    ASSERT_EQ(nccl.size(), collectives.size());
    double late = 0, longer = 0;
    std::sort(collectives.begin(), collectives.end(),
              [](const brg_rec &a, const brg_rec &b) { return a.step < b.step; });
    for (size_t i = 0; i < nccl.size(); i++) {
        const brg_rec &c = collectives[i], &k = nccl[i];
        EXPECT_LT(c.t0_ns, k.t0_ns + CLOCK_ERROR_NS) << i;
        EXPECT_GT(c.t1_ns + CLOCK_ERROR_NS, k.t1_ns) << i;
        late += ((double)k.t1_ns - (double)c.t1_ns) / (double)nccl.size();
        longer += ((double)(c.t1_ns - c.t0_ns) - (double)(k.t1_ns - k.t0_ns)) / (double)nccl.size();
    }
    std::cout << "on average CUPTI's ends are " << late / 1000
              << " us after those by events, and intervals by events " << longer / 1000
              << " us longer\n";
}

TEST(ShimGpuKernels, AreThoseThatWereLaunched)
{
    int ranks = std::min(gpu_count(), 2);
    if (!ranks)
        GTEST_SKIP() << "no GPU answers: " << brg_last_error();
    TempDir with, without;
    CommandResult a = train(ranks, with, {"--kernels"});
    CommandResult b = train(ranks, without, {"--shim", "off"});
    ASSERT_EQ(a.code, 0) << a.err;
    EXPECT_NE(sum_of(a.out), "");
    EXPECT_EQ(sum_of(a.out), sum_of(b.out));
    for (int rank = 0; rank < ranks; rank++) {
        Trace trace(with.path("trace/rank-" + std::to_string(rank) + ".ring"));
        ASSERT_TRUE(trace.there && trace.closed);
        std::cout << "kernels: " << trace.info("kernels") << "\n";
        const std::string missing = trace.info("kernels_missing");
        if (missing.rfind("no libcupti", 0) == 0)
            GTEST_SKIP() << missing;
        ASSERT_EQ(missing, "");
        EXPECT_EQ(trace.drops, 0u);
        EXPECT_EQ(trace.collectives.size(), (size_t)STEPS * BUCKETS);
        std::vector<brg_rec> spins, nccl;
        for (const brg_rec &rec : trace.kernels)
            if (rec.kind == BRG_REC_NCCL_KERNEL)
                nccl.push_back(rec);
            else if (trace.names[rec.aux].find("spin") != std::string::npos)
                spins.push_back(rec);
        for (std::vector<brg_rec> *list : {&spins, &nccl})
            std::sort(list->begin(), list->end(),
                      [](const brg_rec &x, const brg_rec &y) { return x.t0_ns < y.t0_ns; });
        expect_spins(spins, steps_of(a.out, rank));
        if (ranks > 1) /* one rank alone has nothing to move */
            expect_nccl(nccl, trace.collectives);
    }
    CommandResult json = brigade({"report", with.path("trace"), "--json"});
    ASSERT_EQ(json.code, 0) << json.err;
    json_t *root = json_loads(json.out.c_str(), 0, nullptr);
    EXPECT_STREQ(json_string_value(json_object_get(root, "exposed_from")), "kernels");
    json_t *buckets = json_object_get(root, "buckets");
    EXPECT_EQ(json_array_size(buckets), (size_t)BUCKETS);
    for (size_t i = 0; i < json_array_size(buckets); i++)
        EXPECT_TRUE(json_is_number(json_object_get(json_array_get(buckets, i), "exposed_ns")));
    json_t *recognition = json_object_get(root, "recognition");
    EXPECT_EQ(json_integer_value(json_object_get(recognition, "timed_by_kernels")),
              ranks > 1 ? STEPS * BUCKETS : 0);
    json_decref(root);
    std::cout << brigade({"report", with.path("trace")}).out;
}

} // namespace
