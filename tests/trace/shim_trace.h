/* SPDX-License-Identifier: Apache-2.0 */
/* Traces as the shim leaves them under trainers of known structure: one generator per kind of
 * trainer, which also notes to which step and bucket every operation really belongs. */
#ifndef BRIGADE_TESTS_TRACE_SHIM_TRACE_H
#define BRIGADE_TESTS_TRACE_SHIM_TRACE_H

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "brigade/dtype.h"
#include "sched/trace/reader.h"

/* What an operation really is. */
struct Truth {
    int step;   /* -1: of no training step */
    int bucket; /* -1: of none */
};

/* One rank's trace. Operations are issued in order; `now` is the device's time. */
class ShimTrace
{
  public:
    explicit ShimTrace(uint64_t seed = 1, uint32_t rank = 0, uint32_t world = 4)
        : rng(seed), rank(rank), world(world)
    {
    }
    ShimTrace(ShimTrace &&) = default;

    void comm(uint32_t id, uint32_t size, uint64_t hash, uint32_t comm_rank = 0)
    {
        char text[160];
        snprintf(text, sizeof text,
                 "hash=%llx size=%u rank=%u device=0 parent=0 how=init blocking=1",
                 (unsigned long long)hash, size, comm_rank);
        infos.emplace_back("comm " + std::to_string(id), text);
    }
    /* Idle, or computing: nobody can tell. */
    void pass(double us)
    {
        now += (uint64_t)(1000 * us * factor());
    }
    /* One that runs alone, after `gap_us`. */
    void op(uint32_t comm, brg_func func, uint64_t bytes, uint64_t address, Truth truth,
            double gap_us = 5, uint16_t flags = 0, brg_dtype dtype = BRG_BFLOAT16)
    {
        pass(gap_us);
        uint64_t length = (uint64_t)((8000 + (double)bytes / 200) * factor());
        flags |= clock();
        put(comm, func, bytes, address, truth, now, now + length, flags, dtype);
        now += length;
    }
    /* What is put with BRG_REC_GROUPED from here on belongs to another group. */
    void group_begin()
    {
        groups_++;
    }
    /* Several in one group: they carry the same times. */
    void group(uint32_t comm, brg_func func, const std::vector<uint64_t> &bytes,
               const std::vector<uint64_t> &addresses, const std::vector<Truth> &truths)
    {
        group_begin();
        uint64_t total = 0;
        for (uint64_t b : bytes)
            total += b;
        pass(5);
        uint64_t length = (uint64_t)((8000 + (double)total / 200) * factor());
        const uint16_t flags = BRG_REC_GROUPED | clock();
        for (size_t i = 0; i < bytes.size(); i++)
            put(comm, func, bytes[i], addresses[i], truths[i], now, now + length, flags,
                BRG_BFLOAT16);
        now += length;
    }
    void put(uint32_t comm, brg_func func, uint64_t bytes, uint64_t address, Truth truth,
             uint64_t t0, uint64_t t1, uint16_t flags, brg_dtype dtype)
    {
        brg_rec rec{};
        if ((flags & BRG_REC_UNTIMED) && host_ahead) {
            t0 -= host_ahead;
            t1 = t0 + 3000;
        }
        rec.kind = BRG_REC_COLLECTIVE;
        rec.t0_ns = t0;
        rec.t1_ns = t1;
        rec.bytes = bytes;
        rec.step = numbers_[comm]++;
        rec.comm = comm;
        rec.bucket = BRG_NO_BUCKET;
        rec.stream = comm;
        rec.flags = flags;
        rec.dtype = (uint8_t)dtype;
        rec.func = (uint8_t)func;
        rec.aux = address;
        if (flags & BRG_REC_GROUPED) {
            rec.channel_first = (uint8_t)groups_;
            rec.channel_count = (uint8_t)(groups_ >> 8);
        }
        if (drop > 0 && std::uniform_real_distribution<>(0, 1)(rng) < drop) {
            dropped++;
            return;
        }
        recs.push_back(rec);
        truths.push_back(truth);
        if (flags & BRG_REC_UNTIMED)
            return;
        rec.kind = BRG_REC_CALL;
        rec.t1_ns = t0 - 1000;
        rec.t0_ns = t0 - 3000;
        recs.push_back(rec);
        truths.push_back({-1, -1});
    }
    void kernel(uint64_t t0, uint64_t t1)
    {
        brg_rec rec{};
        rec.kind = BRG_REC_COMPUTE;
        rec.t0_ns = t0;
        rec.t1_ns = t1;
        rec.bucket = BRG_NO_BUCKET;
        rec.stream = 99;
        recs.push_back(rec);
        truths.push_back({-1, -1});
    }

    /* Points into this object. */
    const brg_trace *trace()
    {
        static char path[] = "made.ring";
        for (size_t i = 0; i < recs.size(); i++)
            recs[i].seq = i + 1;
        infos_.assign(1, {"source", "shim"});
        for (const auto &info : infos)
            infos_.push_back({info.first.c_str(), info.second.c_str()});
        trace_ = brg_trace{};
        trace_.path = path;
        trace_.rank = rank;
        trace_.world = world;
        trace_.closed = true;
        trace_.drops = dropped;
        trace_.recs = recs.data();
        trace_.nrecs = trace_.written = recs.size();
        trace_.infos = infos_.data();
        trace_.ninfos = infos_.size();
        return &trace_;
    }

    void write(const std::string &path) const
    {
        brg_ring_options options{};
        options.rank = rank;
        options.world = world;
        brg_ring *ring;
        if (brg_ring_create(path.c_str(), &options, &ring) != BRG_OK)
            throw std::runtime_error(brg_last_error());
        brg_ring_add_info(ring, "source", "shim");
        for (const auto &info : infos)
            brg_ring_add_info(ring, info.first.c_str(), info.second.c_str());
        for (const brg_rec &rec : recs)
            brg_ring_put(ring, &rec);
        brg_ring_drop(ring, dropped);
        brg_ring_close(ring);
    }

    std::mt19937_64 rng;
    std::function<bool()> untimed; /* asked for every launch: has it no device times? */
    uint64_t host_ahead = 0;       /* how much earlier than on the device a call then is, ns */
    double jitter = 0;             /* relative, of every time */
    double drop = 0;               /* share of the operations that are lost */
    uint64_t dropped = 0;
    uint64_t now = 10000000000;
    uint32_t rank, world;
    std::vector<brg_rec> recs;
    std::vector<Truth> truths;
    std::vector<std::pair<std::string, std::string>> infos;

  private:
    uint16_t clock() const
    {
        return untimed && untimed() ? BRG_REC_UNTIMED : 0;
    }
    double factor()
    {
        return 1 + jitter * std::uniform_real_distribution<>(-1, 1)(rng);
    }
    std::map<uint32_t, uint32_t> numbers_;
    uint32_t groups_ = 0;
    std::vector<brg_trace_info> infos_;
    brg_trace trace_{};
};

/* ---- Trainers ---- */

struct DdpShape {
    int steps = 12, buckets = 36;
    bool rebucketing = true; /* the first step reduces everything at once */
    int evaluate_every = 0;  /* 0: never; gathers of results */
    int log_every = 0;       /* 0: never; a tiny all-reduce */
    bool uniform = false;    /* all buckets of one size */
};

inline void ddp(ShimTrace &t, const DdpShape &shape)
{
    const uint64_t base = 0x7f0000000000;
    std::mt19937_64 sizes(shape.buckets);
    std::vector<uint64_t> bytes, address;
    uint64_t at = base;
    for (int b = 0; b < shape.buckets; b++) {
        bytes.push_back(shape.uniform ? 25 << 20 : 2 * (500000 + sizes() % 12000000));
        address.push_back(at);
        at += (bytes.back() + 511) / 512 * 512;
    }
    t.comm(1, t.world, 0xabc);
    for (int i = 0; i < 4; i++) /* parameters and buffers from rank 0 */
        t.op(1, BRG_FUNC_BROADCAST, 4096, 0x100000 + 4096u * i, {-1, -1});
    for (int s = 0; s < shape.steps; s++) {
        t.pass(30000);
        if (!s && shape.rebucketing)
            t.op(1, BRG_FUNC_ALL_REDUCE, at - base, 0x7e0000000000, {-1, -1});
        else
            for (int b = 0; b < shape.buckets; b++)
                t.op(1, BRG_FUNC_ALL_REDUCE, bytes[b], address[b], {s, b}, 200);
        t.pass(3000);
        if (shape.log_every && s % shape.log_every == 0)
            t.op(1, BRG_FUNC_ALL_REDUCE, 4, 0x200000, {-1, -1}, 5, 0, BRG_FLOAT32);
        if (shape.evaluate_every && s % shape.evaluate_every == shape.evaluate_every - 1)
            for (int i = 0; i < 7; i++)
                t.op(1, BRG_FUNC_ALL_GATHER, 4096u * (i + 1), 0x300000, {-1, -1}, 2000);
    }
}

struct FsdpShape {
    int steps = 10, layers = 12;
    bool uniform = true;
    bool staging = true;    /* reduce-scatters read one of two buffers, gathers write one of two */
    int evaluate_every = 0; /* forward only */
    bool staging_goes_on = false; /* the next step begins with the buffer that is next */
};

/* FSDP2: the root gathers first and is not freed, layers are gathered in forward and in backward:
 * layers + 1 reduce-scatters, 2 * layers + 1 gathers. Buckets: layer l is layers - 1 - l, the root
 * the last. */
inline void fsdp(ShimTrace &t, const FsdpShape &shape)
{
    std::vector<uint64_t> bytes;
    std::mt19937_64 sizes(shape.layers);
    for (int l = 0; l < shape.layers; l++)
        bytes.push_back(shape.uniform ? 100 << 20 : 2 * (1000000 + sizes() % 40000000));
    const uint64_t root = 300 << 20, gathered = 0x7f0000000000, reduced = 0x7e0000000000;
    int gathers = 0, reductions = 0;
    auto gather = [&](int layer, int step, double gap) {
        uint64_t where = shape.staging ? gathered + (uint64_t)(gathers++ % 2) * (1u << 30)
                                       : gathered + (uint64_t)(layer + 1) * (1u << 30);
        t.op(1, BRG_FUNC_ALL_GATHER, layer < 0 ? root : bytes[layer], where,
             {step, step < 0    ? -1
                    : layer < 0 ? shape.layers
                                : shape.layers - 1 - layer},
             gap);
    };
    auto reduce = [&](int layer, int step) {
        uint64_t where = shape.staging ? reduced + (uint64_t)(reductions++ % 2) * (1u << 30)
                                       : reduced + (uint64_t)(layer + 1) * (1u << 30);
        t.op(1, BRG_FUNC_REDUCE_SCATTER, layer < 0 ? root : bytes[layer], where,
             {step, layer < 0 ? shape.layers : shape.layers - 1 - layer}, 50);
    };
    t.comm(1, t.world, 0xf5d9);
    for (int s = 0; s < shape.steps; s++) {
        if (!shape.staging_goes_on)
            gathers = reductions = 0;
        gather(-1, s, 100);
        for (int l = 0; l < shape.layers; l++)
            gather(l, s, 900);
        t.pass(500);
        gather(shape.layers - 1, s, 100);
        for (int l = shape.layers - 1; l >= 0; l--) {
            if (l)
                gather(l - 1, s, 100);
            t.pass(800);
            reduce(l, s);
        }
        reduce(-1, s);
        t.pass(4000);
        if (shape.evaluate_every && s % shape.evaluate_every == shape.evaluate_every - 1)
            for (int batch = 0; batch < 3; batch++) {
                gathers = shape.staging_goes_on ? gathers : 0;
                gather(-1, -1, 100);
                for (int l = 0; l < shape.layers; l++)
                    gather(l, -1, 500);
            }
    }
}

struct ZeroShape {
    int steps = 10, buckets = 6, micro_steps = 1;
    bool grouped = false;
    bool in_place = false; /* parameters are gathered over the gradients */
    int evaluate_every = 0;
};

/* ZeRO-1: reduce-scatters, and after the optimizer gathers in the opposite order. */
inline void zero(ShimTrace &t, const ZeroShape &shape)
{
    std::mt19937_64 sizes(shape.buckets);
    std::vector<uint64_t> bytes, grads, params;
    uint64_t g = 0x7e0000000000, p = 0x7f0000000000;
    for (int b = 0; b < shape.buckets; b++) {
        bytes.push_back(b % 2 ? 80 << 20 : 2 * (1000000 + sizes() % 40000000));
        grads.push_back(g);
        params.push_back(shape.in_place ? g : p);
        g += bytes.back();
        p += bytes.back();
    }
    t.comm(3, t.world, 0x2e20);
    for (int b = 0; b < shape.buckets; b++)
        t.op(3, BRG_FUNC_BROADCAST, bytes[b], params[b], {-1, -1});
    for (int s = 0; s < shape.steps; s++) {
        for (int m = 0; m < shape.micro_steps; m++) {
            t.pass(20000);
            if (shape.grouped) {
                std::vector<Truth> truths;
                for (int b = 0; b < shape.buckets; b++)
                    truths.push_back({s, b});
                t.group(3, BRG_FUNC_REDUCE_SCATTER, bytes, grads, truths);
            } else {
                for (int b = 0; b < shape.buckets; b++)
                    t.op(3, BRG_FUNC_REDUCE_SCATTER, bytes[b], grads[b], {s, b}, 500);
            }
        }
        t.pass(3000);
        for (int b = shape.buckets - 1; b >= 0; b--)
            t.op(3, BRG_FUNC_ALL_GATHER, bytes[b], params[b], {s, b}, 20);
        if (shape.evaluate_every && s % shape.evaluate_every == shape.evaluate_every - 1)
            for (int i = 0; i < 5; i++)
                t.op(3, BRG_FUNC_ALL_GATHER, 40 << 20, 0x300000, {-1, -1}, 2000);
    }
}

/* Tensor-parallel all-reduces in every layer, data-parallel ones in backward, pipeline messages. */
inline void mixed(ShimTrace &t, int steps, int micro_steps, int layers)
{
    t.comm(1, 2, 0x77);
    t.comm(2, 4, 0xdd);
    t.comm(3, 2, 0x99);
    for (int s = 0; s < steps; s++) {
        for (int m = 0; m < micro_steps; m++) {
            for (int l = 0; l < 2 * layers; l++) {
                t.op(1, BRG_FUNC_ALL_REDUCE, 8 << 20, 0x400000 + 4096u * (l % 3), {-1, -1}, 300);
                if (l >= layers && m == micro_steps - 1)
                    t.op(2, BRG_FUNC_ALL_REDUCE, (40 << 20) + 1024u * l,
                         0x7f0000000000 + ((uint64_t)l << 28), {s, l - layers}, 20);
            }
            t.op(3, BRG_FUNC_SEND, 1 << 20, 0x500000, {-1, -1});
            t.op(3, BRG_FUNC_RECV, 1 << 20, 0x600000, {-1, -1});
        }
        t.op(1, BRG_FUNC_ALL_REDUCE, 4, 0x700000, {-1, -1});
        t.pass(5000);
    }
}

#endif
