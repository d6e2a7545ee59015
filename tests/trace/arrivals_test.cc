// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/seed.h"
#include "tests/trace/shim_trace.h"

namespace
{

struct Clock {
    double offset_ns, drift;
};

/* Ranks that run the same steps of `buckets` all-reduces. Rank `late` comes `late_us` after the
 * others to bucket `late_bucket`; the ends differ by up to `end_noise_us`. */
struct Fleet {
    int ranks = 4, steps = 30, buckets = 5, late = 2, late_bucket = 1;
    double late_us = 0, start_noise_us = 2, end_noise_us = 1, transfer_us = 400;
    uint64_t hash = 0xabc;

    std::vector<ShimTrace> make(std::mt19937_64 &rng, const std::vector<Clock> &clocks) const
    {
        std::vector<ShimTrace> traces;
        std::uniform_real_distribution<> unit(0, 1);
        for (int r = 0; r < ranks; r++) {
            traces.emplace_back(rng(), r, ranks);
            traces.back().comm(1, ranks, hash, r);
        }
        double now = 1e9;
        for (int s = 0; s < steps; s++) {
            now += 20e6 * (0.9 + 0.2 * unit(rng));
            for (int b = 0; b < buckets; b++) {
                std::vector<double> start(ranks);
                double last = 0;
                for (int r = 0; r < ranks; r++) {
                    start[r] = now + 1000 * start_noise_us * unit(rng);
                    if (r == late && b == late_bucket)
                        start[r] += 1000 * late_us;
                    last = std::max(last, start[r]);
                }
                for (int r = 0; r < ranks; r++) {
                    double end = last + 1000 * (transfer_us + end_noise_us * unit(rng));
                    auto stamp = [&](double t) {
                        return (uint64_t)(t + clocks[r].offset_ns + clocks[r].drift * t);
                    };
                    traces[r].put(1, BRG_FUNC_ALL_REDUCE, (40u << 20) + 1024u * b,
                                  0x7f0000000000 + ((uint64_t)b << 28), {s, b}, stamp(start[r]),
                                  stamp(end), 0, BRG_BFLOAT16);
                }
                now = last + 1000 * transfer_us + 50000;
            }
        }
        return traces;
    }
};

struct Compared {
    explicit Compared(std::vector<ShimTrace> &traces)
    {
        lists.resize(traces.size());
        for (size_t i = 0; i < traces.size(); i++) {
            brg_rank_report report;
            brg_analysis_options options{};
            EXPECT_EQ(brg_trace_analyze(traces[i].trace(), &options, &report), BRG_OK)
                << brg_last_error();
            EXPECT_EQ(brg_arrival_list_make(traces[i].trace(), &report, &lists[i]), BRG_OK);
            brg_rank_report_free(&report);
        }
        EXPECT_EQ(brg_arrivals_compare(lists.data(), lists.size(), &a), BRG_OK);
    }
    ~Compared()
    {
        for (brg_arrival_list &list : lists)
            brg_arrival_list_free(&list);
        brg_arrivals_free(&a);
    }
    Compared(const Compared &) = delete;
    std::vector<brg_arrival_list> lists;
    brg_arrivals a;
};

TEST(Arrivals, LateRankBehindSkewAndDrift)
{
    auto rng = test_rng(7);
    std::uniform_real_distribution<> unit(-1, 1);
    for (int round = 0; round < 20 * BRIGADE_TEST_STRESS; round++) {
        Fleet fleet;
        fleet.ranks = 2 + (int)(rng() % 7);
        fleet.late = (int)(rng() % fleet.ranks);
        fleet.late_us = 3000;
        std::vector<Clock> clocks(fleet.ranks);
        for (Clock &clock : clocks) /* 50 ms, and as much again in the course of the run */
            clock = {50e6 * unit(rng), 50e6 / 0.7e9 * unit(rng) * 0.1};
        SCOPED_TRACE("round " + std::to_string(round));
        auto traces = fleet.make(rng, clocks);
        Compared c(traces);
        EXPECT_EQ(c.a.matched, (uint64_t)fleet.steps * fleet.buckets);
        EXPECT_EQ(c.a.unlike, 0u);
        /* Ends differ by up to 1 us on each side. */
        EXPECT_LT(c.a.error_ns, 2000);
        ASSERT_EQ(c.a.nranks, (size_t)fleet.ranks);
        for (size_t r = 0; r < c.a.nranks; r++)
            EXPECT_EQ(c.a.ranks[r].shared, c.a.matched);
        ASSERT_EQ(c.a.nbuckets, (size_t)fleet.buckets);
        for (int b = 0; b < fleet.buckets; b++) {
            const brg_bucket_arrivals &bucket = c.a.buckets[b];
            double late = b == fleet.late_bucket ? 3e6 : 0;
            EXPECT_EQ(bucket.reason, late > 0 ? BRG_REASON_LATE_PEER : BRG_REASON_TRANSFER) << b;
            /* starts by 2 us, the clocks by the error on each side, and drift stretches */
            double tolerance = 2000 + 4 * c.a.error_ns + 0.01 * late;
            EXPECT_NEAR(bucket.spread.median, late, tolerance) << b;
            EXPECT_NEAR(bucket.transfer.median, 400e3, tolerance + 4000) << b;
            if (late > 0) {
                EXPECT_EQ(bucket.last_rank, (uint32_t)fleet.late);
                EXPECT_EQ(bucket.last_share, 1);
            }
        }
        const brg_rank_arrivals &late = c.a.ranks[fleet.late];
        EXPECT_GE(late.last, (uint64_t)fleet.steps - 1);
        EXPECT_NEAR(late.late.max, 3e6, 40e3);
    }
}

TEST(Arrivals, SlowTransferIsNoLatePeer)
{
    auto rng = test_rng(8);
    Fleet fleet;
    fleet.transfer_us = 5000;
    fleet.late_us = 1000;
    auto traces = fleet.make(rng, std::vector<Clock>(4, {0, 0}));
    Compared c(traces);
    for (size_t b = 0; b < c.a.nbuckets; b++)
        EXPECT_EQ(c.a.buckets[b].reason, BRG_REASON_TRANSFER);
    EXPECT_NEAR(c.a.buckets[1].spread.median, 1e6, 4000);
}

TEST(Arrivals, ClocksThatAreTooBadSayNothing)
{
    auto rng = test_rng(12);
    Fleet fleet;
    fleet.late_us = 1000;
    fleet.end_noise_us = 3000;
    auto traces = fleet.make(rng, std::vector<Clock>(4, {0, 0}));
    Compared c(traces);
    EXPECT_GT(c.a.error_ns, 1e6);
    EXPECT_EQ(c.a.buckets[0].reason, BRG_REASON_UNCLEAR);
}

TEST(Arrivals, LostRecordsAreNotMatchedWithOthers)
{
    auto rng = test_rng(9);
    Fleet fleet;
    fleet.late_us = 2000;
    auto traces = fleet.make(rng, {{0, 0}, {20e6, 0}, {-30e6, 0}, {1e6, 0}});
    traces[1].recs.erase(traces[1].recs.begin() + 40, traces[1].recs.begin() + 44);
    traces[3].recs.erase(traces[3].recs.begin() + 100, traces[3].recs.begin() + 101);
    Compared c(traces);
    EXPECT_EQ(c.a.matched, 150u - 3);
    EXPECT_EQ(c.a.buckets[1].reason, BRG_REASON_LATE_PEER);
    EXPECT_LT(c.a.error_ns, 2000);
}

TEST(Arrivals, NothingInCommon)
{
    auto rng = test_rng(10);
    Fleet one, other;
    one.ranks = other.ranks = 1;
    other.hash = 0xdef;
    auto a = one.make(rng, {{0, 0}}), b = other.make(rng, {{0, 0}});
    a.push_back(std::move(b[0]));
    a[1].rank = 1;
    Compared c(a);
    EXPECT_EQ(c.a.matched, 0u);
    EXPECT_EQ(c.a.nbuckets, 0u);
}

/* Ranks that meet only through others: a ring of pairs. */
TEST(Arrivals, ClocksAreFittedThroughOtherRanks)
{
    auto rng = test_rng(11);
    std::vector<ShimTrace> traces;
    const double offsets[] = {0, 10e6, -20e6, 45e6};
    for (uint32_t r = 0; r < 4; r++) {
        traces.emplace_back(rng(), r, 4);
        traces[r].comm(1, 2, 0x100 + r / 2);           /* 0-1, 2-3 */
        traces[r].comm(2, 2, 0x200 + (r + 1) / 2 % 2); /* 1-2, 3-0 */
    }
    for (int s = 0; s < 20; s++)
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t comm = 1; comm <= 2; comm++) {
                double t = 1e9 + 10e6 * s + 1e6 * comm + offsets[r];
                traces[r].put(comm, BRG_FUNC_ALL_REDUCE, comm << 20, comm << 24, {s, 0},
                              (uint64_t)t, (uint64_t)t + 300000, 0, BRG_BFLOAT16);
            }
    Compared c(traces);
    for (uint32_t r = 1; r < 4; r++) {
        EXPECT_NEAR(c.a.ranks[r].offset_ns, offsets[r], 1);
        EXPECT_GT(c.a.ranks[r].shared, 0u);
    }
    EXPECT_LT(c.a.error_ns, 1);
}

} // namespace
