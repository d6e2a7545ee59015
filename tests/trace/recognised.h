/* SPDX-License-Identifier: Apache-2.0 */
/* What is recognised in a trace, against what it really is. */
#ifndef BRIGADE_TESTS_TRACE_RECOGNISED_H
#define BRIGADE_TESTS_TRACE_RECOGNISED_H

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sched/trace/recognise.h"
#include "tests/trace/shim_trace.h"

struct Recognised {
    explicit Recognised(ShimTrace &t, brg_recognise_options options = {}) : made(t)
    {
        status = brg_recognise(t.trace(), &options, &r);
        EXPECT_EQ(status, BRG_OK) << brg_last_error();
    }
    ~Recognised()
    {
        brg_recognition_free(&r);
    }
    Recognised(const Recognised &) = delete;
    const brg_recognition *operator->() const
    {
        return &r;
    }

    /* Every recognised step is one true step, whole; every bucket one true bucket. Returns the true
     * steps that were recognised. */
    std::set<int> expect_true() const
    {
        std::map<int, size_t> truly; /* operations of each true step that are in the trace */
        std::map<uint32_t, std::set<int>> to; /* recognised step -> true ones */
        std::map<uint32_t, size_t> ops;
        std::map<uint32_t, std::set<int>> buckets;
        std::map<int, std::set<uint32_t>> back;
        for (size_t i = 0; i < made.recs.size(); i++) {
            const brg_rec &rec = r.trace.recs[i];
            const Truth &truth = made.truths[i];
            if (rec.kind != BRG_REC_COLLECTIVE)
                continue;
            truly[truth.step]++;
            if (rec.step == UINT32_MAX || rec.comm != r.comm.comm || truth.step < 0) {
                EXPECT_EQ(rec.bucket, BRG_NO_BUCKET);
                continue;
            }
            to[rec.step].insert(truth.step);
            ops[rec.step]++;
            buckets[rec.bucket].insert(truth.bucket);
            back[truth.bucket].insert(rec.bucket);
        }
        std::set<int> found;
        for (const auto &[step, of] : to) {
            EXPECT_EQ(of.size(), 1u) << "recognised step " << step;
            EXPECT_EQ(ops[step], truly[*of.begin()]) << "true step " << *of.begin();
            EXPECT_TRUE(found.insert(*of.begin()).second);
        }
        EXPECT_EQ(found.size(), r.steps_whole);
        for (const auto &[bucket, of] : buckets)
            EXPECT_EQ(of.size(), 1u) << "bucket " << bucket;
        for (const auto &[bucket, of] : back)
            EXPECT_EQ(of.size(), 1u) << "true bucket " << bucket;
        return found;
    }

    const brg_waste *waste(brg_waste_kind kind, uint32_t bucket = BRG_NO_BUCKET) const
    {
        for (size_t i = 0; i < r.nwaste; i++)
            if (r.waste[i].kind == kind && r.waste[i].bucket == bucket)
                return &r.waste[i];
        return nullptr;
    }

    ShimTrace &made;
    brg_recognition r;
    brg_status status;
};

inline std::set<int> range(int from, int to)
{
    std::set<int> set;
    for (int i = from; i < to; i++)
        set.insert(i);
    return set;
}

#endif
