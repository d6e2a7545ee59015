/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives get the times of the kernels that they launched: on two streams at once, with
 * CUPTI's clock off and numbers of streams of its own. */
#include <gtest/gtest.h>

#include "sched/trace/analysis.h"
#include "sched/trace/recognise.h"
#include "tests/trace/shim_trace.h"

namespace
{

enum { STEPS = 12, BUCKETS = 6, LAYERS = 15 };

struct Made {
    ShimTrace trace;
    std::map<size_t, std::pair<uint64_t, uint64_t>> truth; /* by record: its kernels' times */
    std::mt19937_64 rng{7};

    uint64_t random(uint64_t from, uint64_t to)
    {
        return std::uniform_int_distribution<uint64_t>(from, to)(rng);
    }
    void kernel(uint32_t stream, uint64_t t0, uint64_t t1)
    {
        trace.kernel(t0, t1);
        trace.recs.back().kind = BRG_REC_NCCL_KERNEL;
        trace.recs.back().stream = stream;
    }
    /* One launch: events around `kernels` kernels, whose clock is behind. Returns its end. */
    uint64_t launch(uint32_t comm, uint64_t bytes, uint64_t address, uint64_t t0, uint64_t length,
                    int kernels, uint64_t behind)
    {
        uint64_t k0 = t0 + random(2000, 9000), k1 = k0 + length, t1 = k1 + random(500, 1500);
        size_t index = trace.recs.size();
        trace.put(comm, BRG_FUNC_ALL_REDUCE, bytes, address, {-1, -1}, t0, t1, 0, BRG_FLOAT32);
        for (int i = 0; i < kernels; i++)
            kernel(10020 + comm, k0 + length * i / kernels - behind,
                   k0 + length * (i + 1) / kernels - behind);
        if (kernels)
            truth[index] = {k0 - behind, k1 - behind};
        else
            truth[index] = {t0, t1};
        return t1;
    }
};

/* Buckets on stream 1, one of them tiny, one in two kernels, one without any (a copy engine's);
 * layers' reductions on stream 2 all the while. */
void make(Made &m, uint64_t behind)
{
    m.trace.comm(1, 4, 0xabc);
    m.trace.comm(2, 2, 0xdef);
    uint64_t now = 1000000000;
    for (int step = 0; step < STEPS; step++) {
        uint64_t at = now, other = now + 10000;
        for (int b = 0; b < BUCKETS; b++) {
            uint64_t length = b == 1 ? m.random(8000, 12000) : m.random(150000, 600000);
            at = m.launch(1, (4 << 20) + 4096 * b, 0x10000000 * (b + 1), at + m.random(0, 50000),
                          length,
                          b == 2   ? 2
                          : b == 3 ? 0
                                   : 1,
                          behind);
        }
        for (int l = 0; l < LAYERS; l++)
            other = m.launch(2, 1 << 16, 0x5000, other + m.random(20000, 60000),
                             m.random(30000, 90000), 1, behind);
        now = std::max(at, other) + 2000000;
    }
}

void expect_truth(uint64_t behind)
{
    Made m;
    make(m, behind);
    const brg_trace *trace = m.trace.trace();
    brg_recognise_options options{};
    brg_recognition r;
    ASSERT_EQ(brg_recognise(trace, &options, &r), BRG_OK) << brg_last_error();
    uint64_t timed = 0;
    for (const auto &entry : m.truth) {
        const brg_rec &rec = r.trace.recs[entry.first];
        EXPECT_EQ(rec.t0_ns, entry.second.first) << entry.first;
        EXPECT_EQ(rec.t1_ns, entry.second.second) << entry.first;
        timed += trace->recs[entry.first].t0_ns != entry.second.first;
    }
    EXPECT_EQ(r.timed_by_kernels, timed);
    EXPECT_EQ(timed, STEPS * (BUCKETS - 1 + LAYERS));
    EXPECT_EQ(r.comm.comm, 1u);
    EXPECT_EQ(r.steps_whole, STEPS - 1u);
    brg_recognition_free(&r);
}

TEST(RecogniseKernels, OnOneClock)
{
    expect_truth(0);
}

TEST(RecogniseKernels, WithAClockThatIsBehind)
{
    expect_truth(25000);
}

/* A step began with its first collective's event: the kernel, by a clock that is behind, was before
 * it, and was not counted. Seen on two ranks that shared a GPU. */
TEST(RecogniseKernels, AStepBeginsWithItsFirstKernel)
{
    for (uint64_t behind : {0, 20000, 60000}) {
        Made m;
        make(m, behind);
        brg_analysis_options options{};
        brg_rank_report report;
        ASSERT_EQ(brg_trace_analyze(m.trace.trace(), &options, &report), BRG_OK)
            << brg_last_error();
        ASSERT_EQ(report.nbuckets, (size_t)BUCKETS);
        for (size_t b = 0; b < report.nbuckets; b++) {
            EXPECT_EQ(report.buckets[b].all_reduces.min, 1u) << "bucket " << b << ", " << behind;
            EXPECT_EQ(report.buckets[b].all_reduces.max, 1u) << "bucket " << b << ", " << behind;
        }
        brg_rank_report_free(&report);
    }
}

TEST(RecogniseKernels, WithoutKernelsEventsStay)
{
    ShimTrace t;
    ddp(t, {});
    brg_recognise_options options{};
    brg_recognition r;
    const brg_trace *trace = t.trace();
    ASSERT_EQ(brg_recognise(trace, &options, &r), BRG_OK);
    EXPECT_EQ(r.timed_by_kernels, 0u);
    for (size_t i = 0; i < trace->nrecs; i++)
        EXPECT_EQ(r.trace.recs[i].t0_ns, trace->recs[i].t0_ns);
    brg_recognition_free(&r);
}

/* Kernels of launches that were not recorded. */
TEST(RecogniseKernels, ThatFitNothingChangeNothing)
{
    Made m;
    make(m, 1000000000);
    brg_recognise_options options{};
    brg_recognition r;
    const brg_trace *trace = m.trace.trace();
    ASSERT_EQ(brg_recognise(trace, &options, &r), BRG_OK);
    EXPECT_EQ(r.timed_by_kernels, 0u);
    brg_recognition_free(&r);
}

} // namespace
