/* SPDX-License-Identifier: Apache-2.0 */
/* Traces made by hand: in memory, or written to a file with the real writer. */
#ifndef BRIGADE_TESTS_TRACE_TRACE_BUILDER_H
#define BRIGADE_TESTS_TRACE_TRACE_BUILDER_H

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "brigade/context.h"
#include "sched/trace/reader.h"

class TraceBuilder
{
  public:
    enum Stream : uint32_t { kCompute = 1, kComm = 2 };

    explicit TraceBuilder(uint32_t world = 4) : world_(world)
    {
    }

    brg_rec &add(brg_rec_kind kind, uint64_t t0, uint64_t t1, uint32_t step, uint32_t stream)
    {
        brg_rec rec{};
        rec.kind = (uint16_t)kind;
        rec.t0_ns = t0;
        rec.t1_ns = t1;
        rec.step = step;
        rec.stream = stream;
        rec.bucket = BRG_NO_BUCKET;
        rec.seq = recs_.size() + 1;
        recs_.push_back(rec);
        return recs_.back();
    }
    void step(uint32_t number, uint64_t t0, uint64_t t1)
    {
        add(BRG_REC_STEP, t0, t1, number, kCompute);
    }
    void compute(uint32_t number, uint64_t t0, uint64_t t1, int kind = BRG_COMPUTE_FORWARD,
                 uint32_t stream = kCompute)
    {
        add(BRG_REC_COMPUTE, t0, t1, number, stream).flags = (uint16_t)kind;
    }
    void ready(uint32_t number, uint32_t bucket, uint64_t t, brg_func func = BRG_FUNC_NONE)
    {
        brg_rec &rec = add(BRG_REC_READY, t, t, number, kCompute);
        rec.bucket = bucket;
        rec.func = (uint8_t)func;
    }
    void collective(uint32_t number, brg_func func, uint32_t bucket, uint64_t issued, uint64_t t0,
                    uint64_t t1, uint64_t bytes, bool grouped = false)
    {
        brg_rec &rec = add(BRG_REC_COLLECTIVE, t0, t1, number, kComm);
        rec.bucket = bucket;
        rec.func = (uint8_t)func;
        rec.bytes = bytes;
        rec.aux = issued;
        rec.flags = grouped ? BRG_REC_GROUPED : 0;
    }
    void wait(uint32_t number, brg_func func, uint32_t bucket, uint64_t t0, uint64_t t1)
    {
        brg_rec &rec = add(BRG_REC_WAIT, t0, t1, number, kCompute);
        rec.bucket = bucket;
        rec.func = (uint8_t)func;
    }
    void optimizer(uint32_t number, const std::string &name, uint64_t t0, uint64_t t1)
    {
        uint64_t id = this->name(name);
        add(BRG_REC_OPTIMIZER, t0, t1, number, kCompute).aux = id;
    }
    void norm(uint32_t number, uint64_t t0, uint64_t t1)
    {
        add(BRG_REC_NORM, t0, t1, number, kCompute);
    }
    void bucket(uint32_t id, const std::string &name, uint64_t bytes, uint32_t shards,
                uint32_t group = 0)
    {
        brg_trace_bucket bucket{};
        bucket.id = id;
        bucket.meta.grad_bytes = bucket.meta.param_bytes = bytes;
        bucket.meta.num_shards = shards;
        bucket.meta.group = group;
        strncpy(bucket.meta.name, name.c_str(), sizeof bucket.meta.name - 1);
        buckets_.push_back(bucket);
    }
    uint64_t name(const std::string &name)
    {
        for (size_t i = 0; i < names_.size(); i++)
            if (names_[i] == name)
                return i + 1;
        names_.push_back(name);
        return names_.size();
    }

    /* Points into this builder. Buckets must have been added by rising id. */
    const brg_trace *trace()
    {
        name_pointers_.assign(1, nullptr);
        for (const std::string &name : names_)
            name_pointers_.push_back(name.c_str());
        trace_ = brg_trace{};
        static char path[] = "built.ring";
        trace_.path = path;
        trace_.world = world_;
        trace_.closed = closed;
        trace_.overwritten = overwritten;
        trace_.recs = recs_.data();
        trace_.nrecs = trace_.written = recs_.size();
        trace_.buckets = buckets_.data();
        trace_.nbuckets = buckets_.size();
        trace_.names = name_pointers_.data();
        trace_.nnames = name_pointers_.size();
        return &trace_;
    }

    /* Times are taken as offsets from now. */
    void write(const std::string &path, uint32_t rank, int nrec_log2 = 0, bool close = true) const
    {
        brg_ring_options options{};
        options.rank = rank;
        options.world = world_;
        options.nrec_log2 = nrec_log2;
        brg_ring *ring;
        if (brg_ring_create(path.c_str(), &options, &ring) != BRG_OK)
            throw std::runtime_error(brg_last_error());
        for (const std::string &name : names_)
            brg_ring_add_name(ring, name.c_str());
        for (const brg_trace_bucket &bucket : buckets_)
            brg_ring_add_bucket(ring, bucket.id, &bucket.meta);
        uint64_t now = brg_now_ns();
        for (brg_rec rec : recs_) {
            rec.t0_ns += now;
            rec.t1_ns += now;
            if (rec.kind == BRG_REC_COLLECTIVE && rec.aux)
                rec.aux += now;
            brg_ring_put(ring, &rec);
        }
        if (close)
            brg_ring_close(ring);
        else
            abandoned_.push_back(ring); /* as a killed process leaves it */
    }
    ~TraceBuilder()
    {
        for (brg_ring *ring : abandoned_)
            brg_ring_close(ring);
    }
    TraceBuilder(const TraceBuilder &) = delete;

    bool closed = true;
    uint64_t overwritten = 0;
    std::vector<brg_rec> recs_;

  private:
    uint32_t world_;
    std::vector<std::string> names_;
    std::vector<const char *> name_pointers_;
    std::vector<brg_trace_bucket> buckets_;
    brg_trace trace_{};
    mutable std::vector<brg_ring *> abandoned_;
};

/* One step of 1000 units from `b` on, two buckets, gathers of the step before at its beginning:
 *
 *   compute  w1 w1 w1|forward 50|w0|forward 150|backward 400          |w1 150|norm 20|muon 80|adam
 * 50 0       50        100 150          300                 700    850     870    950   1000 comm
 * ag1     |ag0 50..150               |rs0 500..600       |rs1   |            |ag1 950..
 *
 * By hand: compute 750, communication 450, overlapped 200, exposed 250, idle 0. Without bucket 0 a
 * step takes 950, without bucket 1 800, without both 750. */
inline void two_bucket_step(TraceBuilder &t, uint32_t number, uint64_t b, uint64_t u = 1)
{
    t.step(number, b, b + 1000 * u);
    t.compute(number, b, b + 300 * u, BRG_COMPUTE_FORWARD);
    if (number) {
        t.wait(number, BRG_FUNC_ALL_GATHER, 1, b, b + 50 * u);
        t.wait(number, BRG_FUNC_ALL_GATHER, 0, b + 100 * u, b + 150 * u);
    }
    t.compute(number, b + 300 * u, b + 700 * u, BRG_COMPUTE_BACKWARD);
    t.ready(number, 0, b + 500 * u);
    t.collective(number, BRG_FUNC_REDUCE_SCATTER, 0, b + 490 * u, b + 500 * u, b + 600 * u, 8000);
    t.ready(number, 1, b + 700 * u);
    t.collective(number, BRG_FUNC_REDUCE_SCATTER, 1, b + 690 * u, b + 700 * u, b + 850 * u, 12000);
    t.wait(number, BRG_FUNC_REDUCE_SCATTER, 0, b + 700 * u, b + 700 * u);
    t.wait(number, BRG_FUNC_REDUCE_SCATTER, 1, b + 700 * u, b + 850 * u);
    t.norm(number, b + 850 * u, b + 870 * u);
    t.optimizer(number, "Muon", b + 870 * u, b + 950 * u);
    t.collective(number, BRG_FUNC_ALL_GATHER, 1, b + 940 * u, b + 950 * u, b + 1050 * u, 12000);
    t.optimizer(number, "AdamW", b + 950 * u, b + 1000 * u);
    t.collective(number, BRG_FUNC_ALL_GATHER, 0, b + 990 * u, b + 1050 * u, b + 1150 * u, 8000);
}

#endif
