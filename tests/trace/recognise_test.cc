// SPDX-License-Identifier: Apache-2.0
#include "sched/trace/recognise.h"

#include <gtest/gtest.h>

#include "sched/trace/analysis.h"
#include "tests/seed.h"
#include "tests/trace/recognised.h"

namespace
{

TEST(Recognise, OnlyTracesOfTheShimWithoutSteps)
{
    ShimTrace t;
    ddp(t, {});
    EXPECT_TRUE(brg_recognise_needed(t.trace()));
    t.recs[0].kind = BRG_REC_STEP;
    EXPECT_FALSE(brg_recognise_needed(t.trace()));
    t.recs.erase(t.recs.begin());
    brg_trace other = *t.trace();
    other.ninfos = 0;
    EXPECT_FALSE(brg_recognise_needed(&other));
}

TEST(Recognise, CommInfo)
{
    ShimTrace t;
    t.comm(7, 8, 0xdeadbeef, 3);
    t.infos.emplace_back("comm 8", "hash=0 size=-1 rank=-1");
    brg_comm_info info = brg_comm_info_get(t.trace(), 7);
    EXPECT_EQ(info.size, 8u);
    EXPECT_EQ(info.rank, 3u);
    EXPECT_EQ(info.hash, 0xdeadbeefu);
    for (uint32_t comm : {8u, 9u}) {
        info = brg_comm_info_get(t.trace(), comm);
        EXPECT_EQ(info.size, UINT32_MAX);
        EXPECT_EQ(info.rank, UINT32_MAX);
        EXPECT_EQ(info.hash, 0u);
    }
}

/* The first step reduces all at once; of the last one nobody knows the end. */
TEST(Recognise, DdpMakesItsBucketsAnew)
{
    ShimTrace t;
    ddp(t, {});
    Recognised r(t);
    EXPECT_EQ(r.expect_true(), range(1, 11));
    EXPECT_EQ(r->trace.nbuckets, 36u);
    EXPECT_EQ(r->early, 1u);
    EXPECT_TRUE(r->by_address);
    EXPECT_FALSE(r->gathers_first);
    EXPECT_EQ(r->steps_lossy, 0u);
    EXPECT_EQ(r->unfinished, 36u);
    EXPECT_EQ(r->recognised, 10u * 36);
    EXPECT_EQ(r->collectives, 4u + 1 + 11 * 36);
    EXPECT_EQ(r->steps_unlike, 0u);
    EXPECT_EQ(r->nwaste, 0u);
    EXPECT_EQ(r->comm.size, 4u);
    EXPECT_STREQ(r->trace.buckets[3].meta.name, "r3");
    EXPECT_EQ(r->trace.buckets[3].meta.num_shards, 4u);
}

TEST(Recognise, DdpWithBucketsOfOneSize)
{
    ShimTrace t;
    DdpShape shape;
    shape.uniform = true;
    ddp(t, shape);
    Recognised r(t);
    EXPECT_EQ(r.expect_true(), range(1, 11));
    EXPECT_EQ(r->trace.nbuckets, 36u);
}

TEST(Recognise, DdpEvaluates)
{
    ShimTrace t;
    DdpShape shape;
    shape.steps = 31;
    shape.evaluate_every = 10;
    shape.log_every = 5;
    ddp(t, shape);
    Recognised r(t);
    std::set<int> expected = range(1, 30);
    for (int s : {9, 19, 29}) /* in them was evaluated */
        expected.erase(s);
    EXPECT_EQ(r.expect_true(), expected);
    EXPECT_EQ(r->steps_unlike, 3u);
    EXPECT_EQ(r->micro_steps, 1u);
}

TEST(Recognise, FsdpOfOneLayerSize)
{
    for (bool staging : {true, false}) {
        ShimTrace t;
        FsdpShape shape;
        shape.staging = staging;
        fsdp(t, shape);
        Recognised r(t);
        EXPECT_EQ(r.expect_true(), range(0, 9)) << staging;
        EXPECT_EQ(r->trace.nbuckets, 13u);
        EXPECT_TRUE(r->gathers_first);
        ASSERT_EQ(r->nwaste, 12u);
        const brg_waste *w = r.waste(BRG_WASTE_GATHERED, 0);
        ASSERT_TRUE(w);
        EXPECT_TRUE(w->by_design);
        EXPECT_DOUBLE_EQ(w->count, 2);
        EXPECT_DOUBLE_EQ(w->bytes, 100 << 20);
        EXPECT_GT(w->time_ns, 0);
    }
}

/* 13 reduce-scatters from two buffers in turn: by address only every other step is the same. */
TEST(Recognise, FsdpWhoseBuffersChangePlaces)
{
    for (int layers : {11, 12}) {
        ShimTrace t;
        FsdpShape shape;
        shape.layers = layers;
        shape.staging_goes_on = true;
        fsdp(t, shape);
        Recognised r(t);
        EXPECT_EQ(r.expect_true(), range(0, 9)) << layers;
        EXPECT_EQ(r->trace.nbuckets, (size_t)layers + 1);
    }
}

TEST(Recognise, FsdpEvaluates)
{
    ShimTrace t;
    FsdpShape shape;
    shape.steps = 20;
    shape.evaluate_every = 4;
    shape.uniform = false;
    fsdp(t, shape);
    Recognised r(t);
    std::set<int> expected = range(0, 20); /* the last is followed by gathers: its end is known */
    for (int s : {4, 8, 12, 16})
        expected.erase(s);
    EXPECT_EQ(r.expect_true(), expected);
    EXPECT_EQ(r->steps_unlike, 4u);
}

TEST(Recognise, ZeroOneByOneGroupedAndAccumulating)
{
    for (bool grouped : {false, true})
        for (bool in_place : {false, true})
            for (int micro : {1, 4}) {
                ShimTrace t;
                ZeroShape shape;
                shape.grouped = grouped;
                shape.in_place = in_place;
                shape.micro_steps = micro;
                zero(t, shape);
                Recognised r(t);
                EXPECT_EQ(r.expect_true(), range(0, 9)) << grouped << in_place << micro;
                EXPECT_EQ(r->trace.nbuckets, 6u);
                EXPECT_EQ(r->micro_steps, (uint32_t)micro);
                EXPECT_FALSE(r->gathers_first);
                EXPECT_EQ(r->nwaste, 0u);
            }
}

/* The same buckets several times a step and no mark: the user says how often. The first step may
 * have other buckets in its first round, records may be missing, pauses differ. */
TEST(Recognise, RoundsOfAStepAsTheUserSays)
{
    for (int rounds : {2, 3, 8})
        for (bool rebucketing : {false, true})
            for (double drop : {0.0, 0.004}) {
                ShimTrace t(7);
                t.jitter = 0.05;
                t.comm(1, 4, 1);
                t.drop = drop;
                for (int s = 0; s < 40; s++) {
                    for (int k = 0; k < rounds; k++) {
                        t.pass(10000);
                        if (!s && !k && rebucketing)
                            t.op(1, BRG_FUNC_ALL_REDUCE, 90 << 20, 0x70000000, {-1, -1});
                        else
                            for (uint64_t b = 0; b < 10; b++)
                                t.op(1, BRG_FUNC_ALL_REDUCE, (b + 1) << 20, (b + 1) << 28,
                                     {s, (int)b}, 200);
                    }
                    t.pass(6000);
                }
                brg_recognise_options options{};
                options.repeats = (uint32_t)rounds;
                Recognised r(t, options);
                SCOPED_TRACE(rounds * 100 + rebucketing * 10 + (drop > 0));
                EXPECT_EQ(r->micro_steps, (uint32_t)rounds);
                EXPECT_TRUE(r->micro_steps_known);
                EXPECT_EQ(r->trace.nbuckets, 10u);
                if (drop > 0)
                    EXPECT_GT(r->steps_whole, 8u);
                else
                    EXPECT_EQ(r->steps_whole, rebucketing ? 38u : 39u);
                EXPECT_EQ(drop > 0, r->steps_lossy > 0);
                EXPECT_EQ(r->nwaste, 0u);
                r.expect_true();
            }
}

TEST(Recognise, TensorDataAndPipelineParallel)
{
    for (int micro : {1, 3}) {
        ShimTrace t;
        mixed(t, 10, micro, 8);
        Recognised r(t);
        EXPECT_EQ(r->comm.comm, 2u);
        EXPECT_EQ(r->comm.size, 4u);
        EXPECT_EQ(r.expect_true(), range(0, 9)) << micro;
        EXPECT_EQ(r->trace.nbuckets, 8u);
    }
}

TEST(Recognise, CommunicatorByChoice)
{
    ShimTrace t;
    mixed(t, 10, 1, 8);
    brg_recognise_options options{};
    options.comm_given = true;
    options.comm = 1;
    Recognised r(t, options);
    EXPECT_EQ(r->comm.comm, 1u);
    EXPECT_TRUE(r->found);
}

TEST(Recognise, ReducedTwiceAndTinyOnes)
{
    ShimTrace t;
    t.comm(1, 4, 1);
    for (int s = 0; s < 6; s++) {
        t.pass(10000);
        t.op(1, BRG_FUNC_ALL_REDUCE, 20 << 20, 0x1000000, {s, 0});
        t.op(1, BRG_FUNC_ALL_REDUCE, 30 << 20, 0x4000000, {s, 1});
        t.op(1, BRG_FUNC_ALL_REDUCE, 20 << 20, 0x1000000, {s, 0});
        for (uint64_t i = 0; i < 5; i++)
            t.op(1, BRG_FUNC_ALL_REDUCE, 1024, 0x100 + i, {s, -1});
        t.op(1, BRG_FUNC_ALL_REDUCE, 1024, 0x100, {s, -1}, 500); /* had to wait for something */
    }
    Recognised r(t);
    EXPECT_EQ(r->steps_whole, 5u);
    EXPECT_EQ(r->trace.nbuckets, 2u);
    const brg_waste *again = r.waste(BRG_WASTE_REDUCED, 0);
    ASSERT_TRUE(again);
    EXPECT_DOUBLE_EQ(again->count, 2);
    EXPECT_DOUBLE_EQ(again->bytes, 20 << 20);
    EXPECT_FALSE(again->by_design);
    const brg_waste *tiny = r.waste(BRG_WASTE_TINY);
    ASSERT_TRUE(tiny);
    EXPECT_NEAR(tiny->count, 5, 1e-9);
    EXPECT_NEAR(tiny->runs, 1, 1e-9);
    EXPECT_NEAR(tiny->bytes, 5 * 1024, 1e-6);
    EXPECT_NEAR(tiny->time_ns, 5 * 8005, 1e-6);
}

/* Those of one group call carry its time: what is wasted is that time once. */
TEST(Recognise, GatheredTwiceInGroupsWastesTheTimeOfOne)
{
    ShimTrace t;
    t.comm(1, 4, 1);
    const std::vector<uint64_t> bytes = {20 << 20, 30 << 20, 50 << 20};
    const std::vector<uint64_t> params = {0x1000000, 0x4000000, 0x8000000};
    for (int s = 0; s < 6; s++) {
        const std::vector<Truth> truths = {{s, 0}, {s, 1}, {s, 2}};
        t.pass(10000);
        t.group(1, BRG_FUNC_REDUCE_SCATTER, bytes, params, truths);
        t.pass(1000);
        t.group(1, BRG_FUNC_ALL_GATHER, bytes, params, truths);
        t.group(1, BRG_FUNC_ALL_GATHER, bytes, params, truths);
    }
    Recognised r(t);
    EXPECT_EQ(r->steps_whole, 5u);
    double time = 0;
    for (uint32_t b = 0; b < 3; b++) {
        const brg_waste *w = r.waste(BRG_WASTE_GATHERED, b);
        ASSERT_TRUE(w);
        EXPECT_DOUBLE_EQ(w->count, 2);
        time += w->time_ns;
    }
    EXPECT_NEAR(time, 8000 + (100 << 20) / 200, 1);
    EXPECT_NEAR(r.waste(BRG_WASTE_GATHERED, 2)->time_ns, time / 2, 1);
}

/* Scalars that a trainer reduces every tenth step: means are of the steps that have them. */
TEST(Recognise, TinyOnesOfFewStepsCouldBeAtLeastOne)
{
    ShimTrace t;
    t.comm(1, 4, 1);
    for (int s = 0; s < 31; s++) {
        t.pass(10000);
        t.op(1, BRG_FUNC_ALL_REDUCE, 20 << 20, 0x1000000, {s, 0});
        for (uint64_t i = 0; s % 10 == 0 && i < (s ? 2 : 5); i++)
            t.op(1, BRG_FUNC_ALL_REDUCE, 4, 0x100 + i, {s, -1}, 5, 0, BRG_FLOAT32);
        for (uint64_t i = 0; s == 20 && i < 2; i++) /* a second row in one step */
            t.op(1, BRG_FUNC_ALL_REDUCE, 4, 0x100 + i, {s, -1}, i ? 5 : 500, 0, BRG_FLOAT32);
    }
    Recognised r(t);
    EXPECT_EQ(r->steps_whole, 30u);
    const brg_waste *tiny = r.waste(BRG_WASTE_TINY);
    ASSERT_TRUE(tiny);
    EXPECT_EQ(tiny->steps, 3u);
    EXPECT_DOUBLE_EQ(tiny->count, (5 + 2 + 4) / 3.0);
    EXPECT_DOUBLE_EQ(tiny->runs, 4 / 3.0);
    EXPECT_DOUBLE_EQ(tiny->bytes, 4 * 11 / 3.0);
}

TEST(Recognise, NothingRecurs)
{
    ShimTrace t;
    t.comm(1, 4, 1);
    for (uint64_t i = 0; i < 40; i++)
        t.op(1, BRG_FUNC_ALL_REDUCE, (1 << 20) + i * i * 1024, 0x1000000, {-1, -1});
    Recognised r(t);
    EXPECT_EQ(r->steps_whole, 0u);
    ShimTrace empty;
    Recognised nothing(empty);
    EXPECT_FALSE(nothing->found);
    ShimTrace gathers;
    gathers.op(1, BRG_FUNC_ALL_GATHER, 1 << 20, 0x1000000, {-1, -1});
    Recognised none(gathers);
    EXPECT_FALSE(none->found);
}

TEST(Recognise, UntimedAndCapturedAreCounted)
{
    ShimTrace t;
    t.comm(1, 4, 1);
    for (int s = 0; s < 6; s++) {
        t.pass(10000);
        for (uint64_t b = 0; b < 3; b++)
            t.op(1, BRG_FUNC_ALL_REDUCE, 20 << 20, 0x1000000 << b, {s, (int)b}, 5, BRG_REC_UNTIMED);
    }
    t.op(1, BRG_FUNC_ALL_REDUCE, 20 << 20, 0x1000000, {-1, -1}, 5,
         BRG_REC_UNTIMED | BRG_REC_CAPTURED);
    Recognised r(t);
    EXPECT_EQ(r.expect_true(), range(0, 5));
    EXPECT_EQ(r->untimed, 18u);
    EXPECT_EQ(r->captured, 1u);
}

/* The real thing: shapes at random, jitter, lost records. What is recognised must be true; without
 * losses it must be everything. */
TEST(Recognise, RandomTrainers)
{
    auto rng = test_rng(41);
    for (int round = 0; round < 60 * BRIGADE_TEST_STRESS; round++) {
        ShimTrace t(rng());
        t.jitter = (double)(rng() % 20) / 100;
        bool lossy = rng() % 3 == 0;
        t.drop = lossy ? 0.005 : 0;
        int steps = (lossy ? 25 : 6) + (int)(rng() % 40), least = steps - 2;
        int evaluate = rng() % 2 ? 4 + (int)(rng() % 6) : 0;
        int kind = (int)(rng() % 4);
        SCOPED_TRACE("round " + std::to_string(round) + " kind " + std::to_string(kind) +
                     " steps " + std::to_string(steps) + " evaluate " + std::to_string(evaluate) +
                     " lossy " + std::to_string(lossy));
        if (kind == 0)
            ddp(t, {steps, 1 + (int)(rng() % 50), rng() % 2 == 0, evaluate, (int)(rng() % 4),
                    rng() % 2 == 0});
        else if (kind == 1)
            fsdp(t, {steps, 3 + (int)(rng() % 30), rng() % 2 == 0, rng() % 2 == 0, evaluate,
                     rng() % 2 == 0});
        else if (kind == 2)
            zero(t, {steps, 2 + (int)(rng() % 12), 1 + (int)(rng() % 4), rng() % 2 == 0,
                     rng() % 2 == 0, evaluate});
        else
            mixed(t, steps, 1 + (int)(rng() % 4), 2 + (int)(rng() % 16));
        Recognised r(t);
        std::set<int> found = r.expect_true();
        if (evaluate)
            least -= steps / evaluate;
        if (!lossy) {
            EXPECT_GE((int)found.size(), least);
            EXPECT_EQ(r->steps_lossy, 0u);
        } else {
            EXPECT_GE((int)found.size(), 2);
        }
        if (HasFailure())
            return;
    }
}

/* Nothing in the records can be trusted. */
TEST(Recognise, Garbage)
{
    auto rng = test_rng(43);
    for (int round = 0; round < 200 * BRIGADE_TEST_STRESS; round++) {
        ShimTrace t(rng());
        t.comm(1, 4, 5);
        for (int i = 0; i < (int)(rng() % 300); i++) {
            brg_rec rec{};
            rec.kind = rng() % 4 ? (uint16_t)BRG_REC_COLLECTIVE : (uint16_t)(rng() % 12);
            rec.t0_ns = rng() % 8 ? rng() % 100000 : rng() >> 1;
            rec.t1_ns = rec.t0_ns + rng() % 100000;
            rec.bytes = rng() % 8 ? (rng() % 4) << 20 : rng();
            rec.step = rng() % 8 ? (uint32_t)i : (uint32_t)rng();
            rec.comm = (uint32_t)(rng() % 3);
            rec.bucket = rng() % 2 ? BRG_NO_BUCKET : (uint32_t)rng();
            rec.stream = (uint32_t)(rng() % 3);
            rec.flags = (uint16_t)(rng() % 16);
            rec.dtype = (uint8_t)rng();
            rec.func = (uint8_t)(rng() % 4 ? 1 + rng() % 3 : rng());
            rec.aux = rng() % 3;
            t.recs.push_back(rec);
        }
        brg_recognise_options options{};
        options.repeats = (uint32_t)(rng() % 4);
        brg_recognition r;
        ASSERT_EQ(brg_recognise(t.trace(), &options, &r), BRG_OK);
        EXPECT_LE(r.recognised, r.collectives);
        brg_recognition_free(&r);
        brg_analysis_options how{};
        how.recognise = options;
        brg_rank_report report;
        brg_status status = brg_trace_analyze(t.trace(), &how, &report);
        EXPECT_TRUE(status == BRG_OK || status == BRG_ERR_NO_DATA);
        brg_rank_report_free(&report);
    }
}

} // namespace
