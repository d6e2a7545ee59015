// SPDX-License-Identifier: Apache-2.0
/* A host far ahead of the device uses up what the shim measures device times with: the collectives
 * that follow have the times of their calls. */
#include <gtest/gtest.h>

#include <map>

#include "tests/seed.h"
#include "tests/trace/recognised.h"

namespace
{

struct Span {
    uint64_t t0, t1;
    bool operator==(const Span &other) const
    {
        return t0 == other.t0 && t1 == other.t1;
    }
};

/* What was recognised, by true step. */
std::map<int, Span> spans(const Recognised &r)
{
    std::map<uint32_t, int> truth;
    std::map<int, Span> found;
    for (size_t i = 0; i < r.made.recs.size(); i++)
        if (r->trace.recs[i].step != UINT32_MAX && r.made.truths[i].step >= 0)
            truth[r->trace.recs[i].step] = r.made.truths[i].step;
    for (size_t i = 0; i < r->trace.nrecs; i++)
        if (r->trace.recs[i].kind == BRG_REC_STEP)
            found[truth[r->trace.recs[i].step]] = {r->trace.recs[i].t0_ns, r->trace.recs[i].t1_ns};
    return found;
}

/* For each step the numbers of its collectives, that at which it ends included, by the trace in
 * which all have device times. */
std::map<int, std::pair<size_t, size_t>> ranges(const Recognised &r)
{
    std::map<int, std::pair<size_t, size_t>> found;
    for (auto [step, span] : spans(r)) {
        size_t number = 0;
        found[step] = {SIZE_MAX, 0};
        for (const brg_rec &rec : r.made.recs) {
            if (rec.kind != BRG_REC_COLLECTIVE)
                continue;
            if (rec.t0_ns >= span.t0 && rec.t0_ns <= span.t1) {
                found[step].first = std::min(found[step].first, number);
                found[step].second = number + 1;
            }
            number++;
        }
    }
    return found;
}

struct Trainer {
    int kind, steps, size, micro, evaluate;
    bool uniform;

    void train(ShimTrace &t) const
    {
        if (kind == 0)
            ddp(t, {steps, size, true, evaluate, 3, uniform});
        else if (kind == 1)
            fsdp(t, {steps, size, uniform, true, evaluate, false});
        else
            zero(t, {steps, size, micro, uniform, false, evaluate});
    }
};

/* Steps of which any time is the host's are left out, and the others are what they are when
 * everything has device times. */
TEST(RecogniseClocks, StepsWithTheTimesOfCallsAreLeftOut)
{
    auto rng = test_rng(47);
    for (int round = 0; round < 60 * BRIGADE_TEST_STRESS; round++) {
        Trainer trainer = {(int)(rng() % 3),     20 + (int)(rng() % 30), 3 + (int)(rng() % 12),
                           1 + (int)(rng() % 3), rng() % 2 ? 5 : 0,      rng() % 2 == 0};
        ShimTrace timed(5), holes(5);
        trainer.train(timed);
        const size_t first = 60 + rng() % 200, period = 40 + rng() % 200, length = rng() % period;
        size_t asked = 0;
        std::vector<bool> hole; /* by launch */
        holes.host_ahead = 1000000 * (1 + rng() % 5000);
        holes.untimed = [&] {
            hole.push_back(asked >= first && (asked - first) % period < length);
            asked++;
            return hole.back();
        };
        trainer.train(holes);
        SCOPED_TRACE("round " + std::to_string(round) + " kind " + std::to_string(trainer.kind) +
                     " steps " + std::to_string(trainer.steps) + " first " + std::to_string(first) +
                     " period " + std::to_string(period) + " length " + std::to_string(length));
        Recognised all(timed), some(holes);
        all.expect_true();
        std::set<int> found = some.expect_true();
        auto whole = spans(all), left = spans(some);
        std::vector<bool> untimed; /* by collective */
        for (const brg_rec &rec : holes.recs)
            if (rec.kind == BRG_REC_COLLECTIVE)
                untimed.push_back(rec.flags & BRG_REC_UNTIMED);
        size_t usable = 0;
        for (auto [step, range] : ranges(all)) {
            bool timed_all = true;
            for (size_t i = range.first; i < range.second; i++)
                timed_all = timed_all && !untimed[i];
            if (!timed_all)
                continue;
            usable++;
            EXPECT_TRUE(found.count(step)) << "step " << step;
            EXPECT_EQ(left[step].t0, whole[step].t0) << "step " << step;
            EXPECT_EQ(left[step].t1, whole[step].t1) << "step " << step;
        }
        if (usable) {
            EXPECT_EQ(found.size(), usable);
            EXPECT_EQ(some->steps_lossy, 0u);
            EXPECT_GE(some->steps_untimed + found.size() + some->steps_unlike, whole.size());
        }
        if (HasFailure())
            return;
    }
}

/* Where no step has device times throughout, steps that have none at all are used: the times of
 * their calls are all there is. */
TEST(RecogniseClocks, WithoutAStepOfTheDeviceThoseOfTheHostAreUsed)
{
    ShimTrace t;
    size_t asked = 0;
    t.host_ahead = 500000000;
    t.untimed = [&] { return asked++ >= 4 + 1 + 18; }; /* in the midst of the first whole step */
    ddp(t, {});
    Recognised r(t);
    EXPECT_EQ(r.expect_true(), range(2, 11));
    EXPECT_EQ(r->steps_untimed, 1u);
    for (auto [step, span] : spans(r)) {
        EXPECT_GT(span.t1, span.t0 + 30000000) << step;
        EXPECT_LT(span.t1, span.t0 + 60000000) << step;
    }
}

/* No step is left when each has both. */
TEST(RecogniseClocks, AllStepsMixed)
{
    ShimTrace t;
    size_t asked = 0;
    t.host_ahead = 500000000;
    t.untimed = [&] { return asked++ % 7 < 3; };
    ddp(t, {});
    Recognised r(t);
    EXPECT_FALSE(r->found);
    EXPECT_EQ(r->steps_whole, 0u);
    EXPECT_EQ(r->steps_untimed, 10u);
}

/* Rounds begin after the longest pause, which the host's clock does not show. */
TEST(RecogniseClocks, RoundsAsTheUserSays)
{
    ShimTrace t(3);
    size_t asked = 0;
    t.host_ahead = 3000000000;
    t.untimed = [&] { return asked++ % 97 >= 60; };
    t.comm(1, 4, 1);
    for (int s = 0; s < 60; s++) {
        for (int k = 0; k < 2; k++) {
            t.pass(10000);
            for (uint64_t b = 0; b < 5; b++)
                t.op(1, BRG_FUNC_ALL_REDUCE, (b + 1) << 20, (b + 1) << 28, {s, (int)b}, 200);
        }
        t.pass(6000);
    }
    brg_recognise_options options{};
    options.repeats = 2;
    Recognised r(t, options);
    std::set<int> found = r.expect_true();
    EXPECT_GT(found.size(), 20u);
    EXPECT_EQ(found.size() + r->steps_untimed, 59u);
    for (auto [step, span] : spans(r))
        EXPECT_NEAR((double)(span.t1 - span.t0), 28.2e6, 0.2e6) << step;
}

} // namespace
