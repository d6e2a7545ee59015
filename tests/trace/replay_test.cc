// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/seed.h"
#include "tests/trace/trace_builder.h"

namespace
{

class Replay
{
  public:
    Replay(const TraceBuilder &t, std::vector<brg_replay_window> windows) : count_(windows.size())
    {
        if (brg_replay_create(t.recs_.data(), t.recs_.size(), TraceBuilder::kCompute,
                              windows.data(), count_, &replay_) != BRG_OK)
            throw std::runtime_error(brg_last_error());
    }
    ~Replay()
    {
        brg_replay_destroy(replay_);
    }
    Replay(const Replay &) = delete;
    std::vector<double> run(brg_replay_free what = BRG_REPLAY_NOTHING, uint32_t bucket = 0)
    {
        std::vector<double> lengths(count_);
        brg_replay_run(replay_, what, bucket, lengths.data());
        return lengths;
    }

  private:
    brg_replay *replay_;
    size_t count_;
};

using Lengths = std::vector<double>;

TEST(Replay, HiddenBucketIsFree)
{
    TraceBuilder t;
    t.compute(0, 1000, 2000);
    t.ready(0, 0, 1200);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 0, 1150, 1200, 1500, 100);
    t.wait(0, BRG_FUNC_REDUCE_SCATTER, 0, 1900, 1900);
    Replay replay(t, {{1000, 2000}});
    EXPECT_EQ(replay.run(), (Lengths{1000}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{1000}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{1000}));
}

TEST(Replay, LastBucketIsExposedWhole)
{
    TraceBuilder t;
    t.ready(0, 0, 1800);
    t.collective(0, BRG_FUNC_ALL_REDUCE, 0, 1790, 1800, 2100, 100);
    t.wait(0, BRG_FUNC_ALL_REDUCE, 0, 1800, 2100);
    Replay replay(t, {{1000, 2200}});
    EXPECT_EQ(replay.run(), (Lengths{1200}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{900}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 1), (Lengths{1200}));
}

/* No overlap: everything is issued at the end and waited for; each costs what it takes. */
TEST(Replay, SerialBucketsAddUp)
{
    TraceBuilder t;
    const uint64_t durations[] = {100, 50, 200};
    uint64_t at = 1500;
    for (uint32_t b = 0; b < 3; b++) {
        t.ready(0, b, 1100 + 100 * b);
        t.collective(0, BRG_FUNC_REDUCE_SCATTER, b, 1500, at, at + durations[b], 100);
        at += durations[b];
    }
    for (uint32_t b = 0; b < 3; b++)
        t.wait(0, BRG_FUNC_REDUCE_SCATTER, b, b ? 1500 + (b == 1 ? 100 : 150) : 1500,
               b == 0   ? 1600
               : b == 1 ? 1650
                        : 1850);
    Replay replay(t, {{1000, 1900}});
    EXPECT_EQ(replay.run(), (Lengths{900}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{800}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 1), (Lengths{850}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 2), (Lengths{700}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{550}));
}

/* The host ran ahead: issued early, ready early, but held back until backward had ended. */
TEST(Replay, HeldBackIsNotReleasedByReadiness)
{
    const uint64_t u = 1000000;
    TraceBuilder t;
    t.collective(0, BRG_FUNC_ALL_GATHER, 1, 0, 900 * u, 1000 * u, 100); /* of the step before */
    for (uint32_t b = 0; b < 2; b++)
        t.ready(0, b, (1100 + 100 * b) * u);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 0, 1001 * u, 1500 * u, 1600 * u, 100);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 1, 1001 * u, 1600 * u, 1800 * u, 100);
    t.wait(0, BRG_FUNC_REDUCE_SCATTER, 0, 1500 * u, 1600 * u);
    t.wait(0, BRG_FUNC_REDUCE_SCATTER, 1, 1600 * u, 1800 * u);
    Replay replay(t, {{1000 * u, 2000 * u}});
    EXPECT_EQ(replay.run(), (Lengths{1000.0 * u}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{900.0 * u}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 1), (Lengths{800.0 * u}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{700.0 * u}));
}

/* A bucket nobody waits for long, but behind which the last one queues, is exposed through it. */
TEST(Replay, QueueingCounts)
{
    TraceBuilder t;
    t.ready(0, 0, 1400);
    t.ready(0, 1, 1500);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 0, 0, 1400, 1900, 100);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 1, 0, 1900, 2000, 100);
    t.wait(0, BRG_FUNC_REDUCE_SCATTER, 1, 1500, 2000);
    Replay replay(t, {{1000, 2000}});
    EXPECT_EQ(replay.run(), (Lengths{1000}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{600})); /* 1 runs 1500 to 1600 */
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 1), (Lengths{900}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{500}));
}

/* Issued by the host after the compute stream had come to the wait. */
TEST(Replay, IssuedInsideTheWait)
{
    TraceBuilder t;
    t.ready(0, 0, 1400);
    t.collective(0, BRG_FUNC_REDUCE_SCATTER, 0, 1520, 1520, 1700, 100);
    t.wait(0, BRG_FUNC_REDUCE_SCATTER, 0, 1500, 1700);
    Replay replay(t, {{1000, 2000}});
    EXPECT_EQ(replay.run(), (Lengths{1000}));
    EXPECT_EQ(replay.run(BRG_REPLAY_BUCKET, 0), (Lengths{820}));
}

TEST(Replay, CollectivesOnTheComputeStreamAreWork)
{
    TraceBuilder t;
    t.collective(0, BRG_FUNC_ALL_REDUCE, 0, 1100, 1100, 1300, 100);
    t.recs_.back().stream = TraceBuilder::kCompute;
    t.wait(0, BRG_FUNC_ALL_REDUCE, 0, 1100, 1300);
    Replay replay(t, {{1000, 2000}});
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{1000}));
}

/* A loss that is averaged between the buckets: nobody's bucket, so it stays when all are free. */
TEST(Replay, CollectivesWithoutBucketStay)
{
    TraceBuilder t;
    t.ready(0, 0, 1400);
    t.collective(0, BRG_FUNC_ALL_REDUCE, BRG_NO_BUCKET, 1400, 1400, 1600, 100);
    t.collective(0, BRG_FUNC_ALL_REDUCE, 0, 1400, 1600, 1700, 100);
    t.wait(0, BRG_FUNC_ALL_REDUCE, 0, 1500, 1700);
    Replay replay(t, {{1000, 2000}});
    EXPECT_EQ(replay.run(), (Lengths{1000}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{900}));
}

TEST(Replay, NothingRecorded)
{
    TraceBuilder t;
    Replay replay(t, {{1000, 2000}, {2000, 2500}});
    EXPECT_EQ(replay.run(), (Lengths{1000, 500}));
    EXPECT_EQ(replay.run(BRG_REPLAY_ALL), (Lengths{1000, 500}));
    Replay none(t, {});
    EXPECT_EQ(none.run(), (Lengths{}));
}

/* A made-up training run, executed as a program: its own little simulator, which knows nothing of
 * records. What the replay makes of the records of one execution must be what the program does when
 * a bucket is free. */
struct Program {
    struct Item {
        enum Kind { kWork, kIssue, kWait, kUpdate, kStep } kind;
        uint32_t bucket = 0;
        brg_func func = BRG_FUNC_NONE;
        uint64_t work = 0;
    };
    std::vector<Item> items;
    std::map<std::pair<uint32_t, int>, uint64_t> durations; /* (bucket, func) */

    /* Step lengths with `free` free (-1: none, -2: all); writes records if `t`. */
    Lengths execute(int64_t free, TraceBuilder *t = nullptr) const
    {
        uint64_t now = 1000000, lane_end = 0, began = now;
        uint32_t step = 0;
        Lengths lengths;
        std::map<std::pair<uint32_t, int>, uint64_t> ends;
        for (const Item &item : items) {
            auto key = std::make_pair(item.bucket, (int)item.func);
            switch (item.kind) {
            case Item::kWork:
                now += item.work;
                break;
            case Item::kUpdate:
                if (t)
                    t->optimizer(step, "u", now, now + item.work);
                now += item.work;
                break;
            case Item::kIssue: {
                uint64_t start = std::max(now, lane_end);
                bool is_free = free == -2 || free == (int64_t)item.bucket;
                lane_end = start + (is_free ? 0 : durations.at(key));
                ends[key] = lane_end;
                if (t) {
                    t->ready(step, item.bucket, now,
                             item.func == BRG_FUNC_ALL_GATHER ? item.func : BRG_FUNC_NONE);
                    t->collective(step, item.func, item.bucket, now - 5, start, lane_end, 100);
                }
                break;
            }
            case Item::kWait: {
                uint64_t end = std::max(now, ends.count(key) ? ends.at(key) : 0);
                if (t)
                    t->wait(step, item.func, item.bucket, now, end);
                now = end;
                break;
            }
            case Item::kStep:
                lengths.push_back((double)(now - began));
                if (t)
                    t->step(step, began, now);
                began = now;
                step++;
                break;
            }
        }
        return lengths;
    }
};

template <class Rng> Program random_program(Rng &rng, uint32_t nbuckets)
{
    Program p;
    bool all_reduce = rng() % 4 == 0, overlap_grad = rng() % 3, overlap_param = rng() % 3;
    brg_func reduce = all_reduce ? BRG_FUNC_ALL_REDUCE : BRG_FUNC_REDUCE_SCATTER;
    for (uint32_t b = 0; b < nbuckets; b++) {
        p.durations[{b, reduce}] = 1 + rng() % 300;
        p.durations[{b, BRG_FUNC_ALL_GATHER}] = 1 + rng() % 300;
    }
    using Item = Program::Item;
    auto work = [&] { p.items.push_back({Item::kWork, 0, BRG_FUNC_NONE, rng() % 200}); };
    uint32_t split = (uint32_t)(rng() % (nbuckets + 1)); /* two optimizers */
    for (int step = 0; step < 6; step++) {
        for (uint32_t b = nbuckets; b-- > 0;) { /* forward */
            if (!all_reduce && overlap_param)
                p.items.push_back({Item::kWait, b, BRG_FUNC_ALL_GATHER, 0});
            work();
        }
        for (uint32_t b = 0; b < nbuckets; b++) { /* backward */
            work();
            if (overlap_grad)
                p.items.push_back({Item::kIssue, b, reduce, 0});
        }
        for (uint32_t b = 0; b < nbuckets && !overlap_grad; b++)
            p.items.push_back({Item::kIssue, b, reduce, 0});
        for (uint32_t b = 0; b < nbuckets; b++)
            p.items.push_back({Item::kWait, b, reduce, 0});
        for (uint32_t half = 0; half < 2; half++) {
            p.items.push_back({Item::kUpdate, 0, BRG_FUNC_NONE, rng() % 200});
            uint32_t from = half ? split : 0, to = half ? nbuckets : split;
            for (uint32_t b = to; b-- > from && !all_reduce;)
                p.items.push_back({Item::kIssue, b, BRG_FUNC_ALL_GATHER, 0});
            for (uint32_t b = to; b-- > from && !all_reduce && !overlap_param;)
                p.items.push_back({Item::kWait, b, BRG_FUNC_ALL_GATHER, 0});
        }
        p.items.push_back({Item::kStep});
    }
    return p;
}

TEST(Replay, RandomProgramsAgainstTheirExecution)
{
    auto rng = test_rng(4);
    for (int round = 0; round < 200 * BRIGADE_TEST_STRESS; round++) {
        uint32_t nbuckets = 1 + (uint32_t)(rng() % 6);
        Program program = random_program(rng, nbuckets);
        TraceBuilder t;
        Lengths recorded = program.execute(-1, &t);
        std::vector<brg_replay_window> windows;
        for (const brg_rec &rec : t.recs_)
            if (rec.kind == BRG_REC_STEP)
                windows.push_back({rec.t0_ns, rec.t1_ns});
        std::shuffle(t.recs_.begin(), t.recs_.end(), rng); /* order must not matter */
        Replay replay(t, windows);
        ASSERT_EQ(replay.run(), recorded) << "round " << round;
        ASSERT_EQ(replay.run(BRG_REPLAY_ALL), program.execute(-2)) << "round " << round;
        for (uint32_t b = 0; b < nbuckets; b++)
            ASSERT_EQ(replay.run(BRG_REPLAY_BUCKET, b), program.execute(b))
                << "round " << round << " bucket " << b;
    }
}

} // namespace
