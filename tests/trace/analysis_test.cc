// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/seed.h"
#include "tests/trace/trace_builder.h"

namespace
{

struct Report {
    explicit Report(TraceBuilder &builder, uint32_t warmup = 1)
    {
        brg_analysis_options options{};
        options.warmup_steps = warmup;
        status = brg_trace_analyze(builder.trace(), &options, &report);
    }
    ~Report()
    {
        brg_rank_report_free(&report);
    }
    const brg_rank_report *operator->() const
    {
        return &report;
    }
    const brg_bucket_report &bucket(uint32_t id) const
    {
        for (size_t i = 0; i < report.nbuckets; i++)
            if (report.buckets[i].id == id)
                return report.buckets[i];
        throw std::runtime_error("no bucket " + std::to_string(id));
    }
    brg_rank_report report;
    brg_status status;
};

#define EXPECT_STAT(stat, value, count)                                                            \
    do {                                                                                           \
        EXPECT_EQ((stat).n, (uint64_t)(count));                                                    \
        EXPECT_DOUBLE_EQ((stat).median, value);                                                    \
        EXPECT_DOUBLE_EQ((stat).p95, value);                                                       \
        EXPECT_DOUBLE_EQ((stat).min, value);                                                       \
        EXPECT_DOUBLE_EQ((stat).max, value);                                                       \
    } while (0)

#define EXPECT_COUNT(count, low, high)                                                             \
    do {                                                                                           \
        EXPECT_EQ((count).min, (uint64_t)(low));                                                   \
        EXPECT_EQ((count).max, (uint64_t)(high));                                                  \
    } while (0)

TEST(Analysis, TwoBucketsByHand)
{
    TraceBuilder t;
    t.bucket(0, "fp32/fp32/dense/std#0", 8000, 4);
    t.bucket(1, "fp32/fp32/dense/lw#0", 12000, 4);
    for (uint32_t s = 0; s < 6; s++)
        two_bucket_step(t, s, 100000 + 1000 * s);
    Report r(t);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_EQ(r->steps_recorded, 6u);
    EXPECT_EQ(r->steps_warmup, 1u);
    EXPECT_EQ(r->steps_incomplete, 0u);
    EXPECT_EQ(r->steps_used, 5u);
    EXPECT_TRUE(r->compute_recorded);
    EXPECT_TRUE(r->waits_recorded);
    EXPECT_STAT(r->step, 1000, 5);
    EXPECT_STAT(r->compute, 750, 5);
    EXPECT_STAT(r->communication, 450, 5);
    EXPECT_STAT(r->overlapped, 200, 5);
    EXPECT_STAT(r->exposed, 250, 5);
    EXPECT_STAT(r->idle, 0, 5);
    EXPECT_STAT(r->replay_error, 0, 5);
    EXPECT_STAT(r->exposed_all, 250, 5);
    EXPECT_EQ(r->typical.compute_ns, 750);
    ASSERT_EQ(r->nbuckets, 2u);
    const brg_bucket_report &b0 = r.bucket(0), &b1 = r.bucket(1);
    EXPECT_STREQ(b1.meta.name, "fp32/fp32/dense/lw#0");
    EXPECT_STAT(b0.ready, 500, 5);
    EXPECT_STAT(b0.reduce_issued, 490, 5);
    EXPECT_STAT(b0.reduce_start, 500, 5);
    EXPECT_STAT(b0.reduce_end, 600, 5);
    EXPECT_STAT(b0.reduce_wait, 0, 5);
    EXPECT_STAT(b0.gather_wait, 50, 5);
    EXPECT_STAT(b0.wait, 50, 5);
    EXPECT_STAT(b0.gather_issued, 990, 5);
    EXPECT_STAT(b0.gather_start, 1050, 5);
    EXPECT_STAT(b0.gather_end, 1150, 5);
    EXPECT_STAT(b0.gather_time, 100, 5);
    EXPECT_STAT(b0.exposed, 50, 5);
    EXPECT_STAT(b0.reduce_busbw, 8000 * 0.75 / 100, 5);
    EXPECT_STAT(b1.reduce_wait, 150, 5);
    EXPECT_STAT(b1.wait, 200, 5);
    EXPECT_STAT(b1.exposed, 200, 5);
    EXPECT_STAT(b1.reduce_busbw, 12000 * 0.75 / 150, 5);
    EXPECT_STAT(b1.gather_busbw, 12000 * 0.75 / 100, 5);
    for (const brg_bucket_report *b : {&b0, &b1}) {
        EXPECT_COUNT(b->reduce_scatters, 1, 1);
        EXPECT_COUNT(b->all_gathers, 1, 1);
        EXPECT_COUNT(b->all_reduces, 0, 0);
        EXPECT_EQ(b->all_gathers.total, 5u);
    }
    ASSERT_EQ(r->noptimizers, 2u);
    EXPECT_STREQ(r->optimizers[0].name, "Muon");
    EXPECT_STAT(r->optimizers[0].time, 80, 5);
    EXPECT_STREQ(r->optimizers[1].name, "AdamW");
    EXPECT_STAT(r->optimizers[1].time, 50, 5);
    EXPECT_STAT(r->norm, 20, 5);
    EXPECT_STAT(r->update_delay, 20, 5);
    EXPECT_STAT(r->other_collectives, 0, 5);
    ASSERT_EQ(r->ncomputes, 2u);
    EXPECT_STREQ(r->computes[0].name, "forward");
    EXPECT_STAT(r->computes[0].time, 300, 5);
    EXPECT_STREQ(r->computes[1].name, "backward");
    EXPECT_STAT(r->computes[1].time, 400, 5);
}

TEST(Analysis, WithoutComputeSpansComputeIsWhatIsNoWait)
{
    TraceBuilder t;
    for (uint32_t s = 0; s < 4; s++)
        two_bucket_step(t, s, 5000 + 1000 * s);
    t.recs_.erase(std::remove_if(t.recs_.begin(), t.recs_.end(),
                                 [](const brg_rec &r) { return r.kind == BRG_REC_COMPUTE; }),
                  t.recs_.end());
    Report r(t);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_FALSE(r->compute_recorded);
    EXPECT_STAT(r->compute, 750, 3);
    EXPECT_STAT(r->exposed, 250, 3);
    EXPECT_STAT(r->idle, 0, 3);
    EXPECT_EQ(r->ncomputes, 0u);
}

TEST(Analysis, MedianAndP95AreNearestRank)
{
    TraceBuilder t;
    uint64_t at = 1000;
    for (uint32_t s = 0; s < 40; s++) { /* lengths 100, 101, ..., in a scrambled order */
        uint64_t length = 100 + (s * 7) % 40;
        t.step(s, at, at + length);
        t.collective(s, BRG_FUNC_ALL_REDUCE, 0, at, at, at + 10, 1000);
        at += length;
    }
    Report r(t, 0);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_EQ(r->step.n, 40u);
    EXPECT_EQ(r->step.min, 100);
    EXPECT_EQ(r->step.max, 139);
    EXPECT_EQ(r->step.median, 119);
    EXPECT_EQ(r->step.p95, 137);         /* 38 of 40 are not above it */
    EXPECT_EQ(r->typical.step_ns, 119);  /* mean of 110 to 129, rounded down */
    EXPECT_EQ(r->typical.exposed_ns, 0); /* all of it is under what counts as compute */
    EXPECT_FALSE(r->waits_recorded);
    EXPECT_EQ(r.bucket(0).exposed.n, 0u);
    EXPECT_STAT(r.bucket(0).reduce_busbw, 1000 * 2 * 0.75 / 10, 40);
    EXPECT_COUNT(r.bucket(0).all_reduces, 1, 1);
}

TEST(Analysis, CountsThatChangeAreSeen)
{
    TraceBuilder t;
    for (uint32_t s = 0; s < 5; s++)
        two_bucket_step(t, s, 1000 + 1000 * s);
    t.collective(3, BRG_FUNC_ALL_GATHER, 0, 4980, 4990, 4995, 8000); /* once too often in step 3 */
    for (size_t i = 0; i < t.recs_.size(); i++)                      /* none in step 2 */
        if (t.recs_[i].kind == BRG_REC_COLLECTIVE && t.recs_[i].step == 2 &&
            t.recs_[i].bucket == 1 && t.recs_[i].func == BRG_FUNC_REDUCE_SCATTER)
            t.recs_.erase(t.recs_.begin() + (long)i--);
    Report r(t);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_COUNT(r.bucket(0).all_gathers, 1, 2);
    EXPECT_EQ(r.bucket(0).all_gathers.total, 5u);
    EXPECT_COUNT(r.bucket(0).reduce_scatters, 1, 1);
    EXPECT_COUNT(r.bucket(1).reduce_scatters, 0, 1);
    EXPECT_EQ(r.bucket(1).reduce_scatters.total, 3u);
}

TEST(Analysis, GroupedCollectivesShareTheirBandwidth)
{
    TraceBuilder t(2);
    for (uint32_t s = 0; s < 2; s++) {
        uint64_t b = 1000 + 1000 * s;
        t.step(s, b, b + 1000);
        t.collective(s, BRG_FUNC_REDUCE_SCATTER, 0, b, b + 100, b + 200, 3000, true);
        t.collective(s, BRG_FUNC_REDUCE_SCATTER, 1, b, b + 100, b + 200, 1000, true);
        t.wait(s, BRG_FUNC_REDUCE_SCATTER, 0, b + 100, b + 200);
    }
    Report r(t, 0);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_STAT(r.bucket(0).reduce_busbw, 4000 * 0.5 / 100, 2);
    EXPECT_STAT(r.bucket(1).reduce_busbw, 4000 * 0.5 / 100, 2);
    EXPECT_STAT(r.bucket(0).reduce_group, 2, 2);
    EXPECT_STAT(r.bucket(0).exposed, 75, 2); /* its share of the bytes */
    EXPECT_STAT(r.bucket(1).exposed, 25, 2);
    EXPECT_STAT(r->exposed_all, 100, 2);
}

TEST(Analysis, CollectivesWithoutBucket)
{
    TraceBuilder t;
    for (uint32_t s = 0; s < 4; s++) {
        two_bucket_step(t, s, 1000 + 1000 * s);
        t.collective(s, BRG_FUNC_ALL_REDUCE, BRG_NO_BUCKET, 0, 1300 + 1000 * s, 1330 + 1000 * s, 4);
        t.collective(s, BRG_FUNC_BROADCAST, BRG_NO_BUCKET, 0, 1340 + 1000 * s, 1345 + 1000 * s, 4);
    }
    Report r(t);
    ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
    EXPECT_STAT(r->other_collectives, 35, 3);
    EXPECT_STAT(r->communication, 485, 3);
    EXPECT_EQ(r->nbuckets, 2u);
}

TEST(Analysis, WhichStepsCount)
{
    auto steps = [](int n, bool closed, uint64_t overwritten, uint32_t warmup) {
        TraceBuilder t;
        for (uint32_t s = 0; s < (uint32_t)n; s++)
            two_bucket_step(t, s + 10, 1000 + 1000 * s);
        t.closed = closed;
        t.overwritten = overwritten;
        Report r(t, warmup);
        EXPECT_EQ(r.status, BRG_OK) << brg_last_error();
        EXPECT_EQ(r->steps_recorded, (uint32_t)n);
        EXPECT_EQ(r->steps_used + r->steps_warmup + r->steps_incomplete, (uint32_t)n);
        return std::vector<uint32_t>{r->steps_warmup, r->steps_incomplete, r->steps_used};
    };
    using V = std::vector<uint32_t>;
    EXPECT_EQ(steps(6, true, 0, 1), (V{1, 0, 5}));
    EXPECT_EQ(steps(6, true, 0, 0), (V{0, 0, 6}));
    EXPECT_EQ(steps(6, true, 0, 100), (V{5, 0, 1}));
    EXPECT_EQ(steps(1, true, 0, 1), (V{0, 0, 1}));
    EXPECT_EQ(steps(6, false, 0, 1), (V{1, 1, 4}));
    EXPECT_EQ(steps(2, false, 0, 1), (V{0, 1, 1}));
    EXPECT_EQ(steps(1, false, 0, 1), (V{0, 0, 1}));
    EXPECT_EQ(steps(6, true, 9, 1), (V{0, 2, 4}));
    EXPECT_EQ(steps(6, false, 9, 3), (V{0, 3, 3}));
}

TEST(Analysis, NothingToAnalyze)
{
    TraceBuilder empty;
    EXPECT_EQ(Report(empty).status, BRG_ERR_NO_DATA);
    EXPECT_NE(std::string(brg_last_error()).find("built.ring: no complete step"),
              std::string::npos);
    TraceBuilder quiet;
    quiet.step(0, 100, 200);
    quiet.compute(0, 100, 150);
    EXPECT_EQ(Report(quiet).status, BRG_ERR_NO_DATA);
    EXPECT_NE(std::string(brg_last_error()).find("no collectives"), std::string::npos);
    TraceBuilder short_ring;
    two_bucket_step(short_ring, 0, 1000);
    two_bucket_step(short_ring, 1, 2000);
    short_ring.overwritten = 1;
    EXPECT_EQ(Report(short_ring).status, BRG_ERR_NO_DATA);
    EXPECT_NE(std::string(brg_last_error()).find("ring is too short"), std::string::npos);
}

/* Random spans on a timeline of single units, against counting unit by unit. */
TEST(Analysis, PartitionAgainstCounting)
{
    auto rng = test_rng(2);
    for (int round = 0; round < 300 * BRIGADE_TEST_STRESS; round++) {
        const int length = 400;
        TraceBuilder t;
        bool with_compute = rng() % 4;
        std::vector<std::vector<char>> spans(4, std::vector<char>(length)), stops = spans;
        std::vector<char> comm(length), waits(length), unknown(length);
        std::vector<int> cuts = {0};
        while (cuts.back() < length)
            cuts.push_back(std::min<int>(length, cuts.back() + 20 + (int)(rng() % 100)));
        uint32_t step_stream = rng() % 2 ? 1 : 0;
        for (size_t i = 0; i + 1 < cuts.size(); i++)
            t.add(BRG_REC_STEP, 1000 + cuts[i], 1000 + cuts[i + 1], (uint32_t)i, step_stream);
        bool spans_seen = false;
        for (int i = 0, n = 1 + (int)(rng() % 40); i < n || !spans_seen; i++) {
            int from = (int)(rng() % length), to = std::min<int>(length, from + (int)(rng() % 60));
            uint32_t stream = (uint32_t)(rng() % 4); /* 0: unknown */
            static const brg_rec_kind kinds[] = {BRG_REC_COMPUTE, BRG_REC_OPTIMIZER, BRG_REC_NORM,
                                                 BRG_REC_WAIT, BRG_REC_COLLECTIVE};
            brg_rec_kind kind = i ? kinds[rng() % 5] : BRG_REC_COLLECTIVE;
            if (kind == BRG_REC_COMPUTE && !with_compute)
                kind = BRG_REC_OPTIMIZER;
            spans_seen |= kind == BRG_REC_COMPUTE || !with_compute;
            t.add(kind, 1000 + from, 1000 + to, 0, stream);
            for (int k = from; k < to; k++) {
                if (kind == BRG_REC_COLLECTIVE)
                    comm[k] = 1;
                else if (kind == BRG_REC_WAIT)
                    waits[k] = 1;
                else if (with_compute)
                    spans[stream][k] = 1;
                if (kind == BRG_REC_WAIT && !stream)
                    unknown[k] = 1;
                if ((kind == BRG_REC_COLLECTIVE || kind == BRG_REC_WAIT) && stream)
                    stops[stream][k] = 1;
            }
        }
        if (!with_compute)
            std::fill(spans[step_stream].begin(), spans[step_stream].end(), 1);
        std::vector<brg_partition> expected;
        for (size_t i = 0; i + 1 < cuts.size(); i++) {
            brg_partition p{};
            for (int k = cuts[i]; k < cuts[i + 1]; k++) {
                bool busy = spans[0][k] && !waits[k];
                for (int s = 1; s < 4; s++)
                    busy |= spans[s][k] && !stops[s][k] && !unknown[k];
                p.step_ns++;
                p.compute_ns += busy;
                p.communication_ns += comm[k];
                p.overlapped_ns += busy && comm[k];
                p.exposed_ns += !busy && comm[k];
                p.idle_ns += !busy && !comm[k];
            }
            expected.push_back(p);
        }
        Report r(t, 0);
        ASSERT_EQ(r.status, BRG_OK) << brg_last_error();
        auto check = [&](const brg_stat &stat, int64_t brg_partition::*part) {
            std::vector<int64_t> values;
            for (const brg_partition &p : expected)
                values.push_back(p.*part);
            std::sort(values.begin(), values.end());
            ASSERT_EQ(stat.n, values.size());
            ASSERT_EQ(stat.min, (double)values.front());
            ASSERT_EQ(stat.max, (double)values.back());
            ASSERT_EQ(stat.median, (double)values[(values.size() - 1) / 2]);
        };
        check(r->step, &brg_partition::step_ns);
        check(r->compute, &brg_partition::compute_ns);
        check(r->communication, &brg_partition::communication_ns);
        check(r->overlapped, &brg_partition::overlapped_ns);
        check(r->exposed, &brg_partition::exposed_ns);
        check(r->idle, &brg_partition::idle_ns);
        const brg_partition &p = r->typical;
        ASSERT_EQ(p.step_ns, p.compute_ns + p.exposed_ns + p.idle_ns);
        ASSERT_EQ(p.communication_ns, p.overlapped_ns + p.exposed_ns);
        double sum = 0; /* of the middle half */
        std::sort(expected.begin(), expected.end(),
                  [](auto &x, auto &y) { return x.step_ns < y.step_ns; });
        size_t cut = expected.size() / 4, middle = expected.size() - 2 * cut;
        for (size_t i = cut; i < cut + middle; i++)
            sum += (double)expected[i].step_ns;
        ASSERT_EQ(p.step_ns, (int64_t)(sum / (double)middle));
        if (HasFatalFailure())
            FAIL() << "round " << round;
    }
}

/* Records that the reader lets through but that make no sense must not upset anything. */
TEST(Analysis, NonsenseRecords)
{
    auto rng = test_rng(3);
    for (int round = 0; round < 300 * BRIGADE_TEST_STRESS; round++) {
        TraceBuilder t;
        const uint64_t middle = UINT64_C(1) << 60, far = UINT64_C(1) << 53;
        for (int i = 0, n = (int)(rng() % 200); i < n; i++) {
            uint64_t t0 = middle - far + rng() % (rng() % 2 ? far * 2 : 100);
            uint64_t t1 = t0 + rng() % (rng() % 2 ? middle + far - t0 + 1 : 100);
            brg_rec &rec = t.add((brg_rec_kind)(rng() % 9), t0, std::min(t1, middle + far),
                                 (uint32_t)(rng() % 4 ? rng() % 5 : rng()), (uint32_t)(rng() % 4));
            rec.bucket = (uint32_t)(rng() % 4 ? rng() % 3 : rng());
            rec.func = (uint8_t)(rng() % 4 ? rng() % 4 : rng());
            rec.bytes = rng() % 3 ? rng() % 1000 : rng();
            rec.flags = (uint16_t)rng();
            rec.aux = rng() % 2 ? t0 : rng();
            rec.comm = (uint32_t)(rng() % 2);
        }
        t.closed = rng() % 2;
        t.overwritten = rng() % 2;
        Report r(t, (uint32_t)(rng() % 3));
        if (r.status != BRG_OK) {
            ASSERT_EQ(r.status, BRG_ERR_NO_DATA);
            continue;
        }
        ASSERT_EQ(r->typical.step_ns,
                  r->typical.compute_ns + r->typical.exposed_ns + r->typical.idle_ns);
        for (size_t i = 0; i < r->nbuckets; i++)
            ASSERT_TRUE(std::isfinite(r->buckets[i].exposed.max));
    }
}

} // namespace
