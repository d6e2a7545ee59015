// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sched/trace/reader.h"
#include "tests/seed.h"
#include "tests/trace/temp_dir.h"

namespace
{

brg_rec rec_of(uint64_t t0, uint32_t thread, uint64_t i)
{
    brg_rec rec{};
    rec.t0_ns = t0 + i;
    rec.t1_ns = t0 + 2 * i;
    rec.bytes = i * (thread + 1);
    rec.step = (uint32_t)i;
    rec.comm = thread;
    rec.bucket = (uint32_t)(i ^ thread);
    rec.stream = (uint32_t)(i + thread);
    rec.kind = BRG_REC_COMPUTE;
    rec.aux = i;
    return rec;
}

void expect_untorn(const brg_trace *trace, uint64_t t0)
{
    for (size_t k = 0; k < trace->nrecs; k++) {
        const brg_rec &rec = trace->recs[k];
        if (rec.kind != BRG_REC_COMPUTE)
            continue;
        uint64_t i = rec.aux;
        uint32_t thread = rec.comm;
        ASSERT_EQ(rec.t0_ns, t0 + i);
        ASSERT_EQ(rec.t1_ns, t0 + 2 * i);
        ASSERT_EQ(rec.bytes, i * (thread + 1));
        ASSERT_EQ(rec.step, (uint32_t)i);
        ASSERT_EQ(rec.bucket, (uint32_t)(i ^ thread));
        ASSERT_EQ(rec.stream, (uint32_t)(i + thread));
    }
}

struct Writers {
    Writers(brg_ring *ring, uint64_t t0, uint32_t count, uint64_t recs)
    {
        for (uint32_t t = 0; t < count; t++)
            threads.emplace_back([=] {
                for (uint64_t i = 0; i < recs; i++) {
                    brg_rec rec = rec_of(t0, t, i);
                    brg_ring_put(ring, &rec);
                }
            });
    }
    void join()
    {
        for (std::thread &thread : threads)
            thread.join();
    }
    std::vector<std::thread> threads;
};

TEST(RingThreads, NothingIsLostInALargeRing)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    brg_ring_options options{};
    options.world = 1;
    brg_ring *ring;
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK) << brg_last_error();
    uint64_t t0 = brg_now_ns();
    Writers writers(ring, t0, 8, 8000);
    writers.join();
    brg_ring_close(ring);
    brg_trace *trace;
    ASSERT_EQ(brg_trace_open(path.c_str(), &trace), BRG_OK) << brg_last_error();
    EXPECT_EQ(trace->nrecs, 64002u);
    EXPECT_EQ(brg_trace_lost(trace), 0u);
    expect_untorn(trace, t0);
    std::map<uint32_t, uint64_t> next; /* every thread's records are all there, in its order */
    for (size_t k = 0; k < trace->nrecs; k++)
        if (trace->recs[k].kind == BRG_REC_COMPUTE) {
            ASSERT_EQ(trace->recs[k].aux, next[trace->recs[k].comm]++);
        }
    for (uint32_t t = 0; t < 8; t++)
        EXPECT_EQ(next[t], 8000u);
    brg_trace_close(trace);
}

/* A ring so short that writers lap each other all the time, read while it is being written. */
TEST(RingThreads, LappingWritersNeverMixBytes)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    brg_ring_options options{};
    options.world = 1;
    options.nrec_log2 = 4;
    brg_ring *ring;
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK) << brg_last_error();
    uint64_t t0 = brg_now_ns();
    const uint64_t recs = 20000;
    Writers writers(ring, t0, 8, recs);
    for (int look = 0; look < 50; look++) {
        brg_trace *trace;
        ASSERT_EQ(brg_trace_open(path.c_str(), &trace), BRG_OK) << brg_last_error();
        expect_untorn(trace, t0);
        EXPECT_EQ(trace->nrecs + trace->torn + trace->overwritten + trace->invalid, trace->written);
        EXPECT_EQ(trace->invalid, 0u);
        brg_trace_close(trace);
    }
    writers.join();
    brg_ring_close(ring);
    brg_trace *trace;
    ASSERT_EQ(brg_trace_open(path.c_str(), &trace), BRG_OK) << brg_last_error();
    expect_untorn(trace, t0);
    EXPECT_EQ(trace->written, 8 * recs + 2);
    EXPECT_EQ(trace->nrecs + trace->torn, 16u);
    EXPECT_EQ(trace->overwritten, trace->written - 16);
    brg_trace_close(trace);
}

TEST(RingThreads, NamesAreInternedOnce)
{
    TempDir dir;
    std::string path = dir.path("rank-0.ring");
    brg_ring_options options{};
    options.world = 1;
    brg_ring *ring;
    ASSERT_EQ(brg_ring_create(path.c_str(), &options, &ring), BRG_OK) << brg_last_error();
    std::vector<std::vector<uint32_t>> ids(4, std::vector<uint32_t>(200));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 200; i++) {
                int which = t % 2 ? 199 - i : i;
                ids[t][which] = brg_ring_add_name(ring, ("n" + std::to_string(which)).c_str());
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    brg_ring_close(ring);
    brg_trace *trace;
    ASSERT_EQ(brg_trace_open(path.c_str(), &trace), BRG_OK) << brg_last_error();
    std::set<uint32_t> distinct(ids[0].begin(), ids[0].end());
    EXPECT_EQ(distinct.size(), 200u);
    EXPECT_EQ(distinct.count(0), 0u);
    for (int t = 0; t < 4; t++) {
        EXPECT_EQ(ids[t], ids[0]);
        for (int i = 0; i < 200; i++)
            EXPECT_EQ(brg_trace_name(trace, ids[t][i]), "n" + std::to_string(i));
    }
    brg_trace_close(trace);
}

} // namespace
