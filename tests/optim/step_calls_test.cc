// SPDX-License-Identifier: Apache-2.0
/* What a step asks of the device's tables: each call costs the thread that trains about a
 * microsecond on CUDA, a collective several. Counted on the model of 'brigade bench host-cost',
 * with smaller matrices in as many buckets. */
#include <array>
#include <atomic>
#include <iterator>

#include "tests/optim/training.h"

namespace
{

using training::Optimizers;

enum Kind { RECORD, WAIT, LAUNCH, COLLECTIVE, KERNEL, FILL, QUERY, KINDS };
/* launches: of collectives, alone or as a group; queries: of the current device and of captures */
const char *const kind_names[KINDS] = {"event_record", "stream_wait_event", "launches",
                                       "collectives",  "kernel calls",      "memset_async",
                                       "queries"};
using Counts = std::array<int, KINDS>;

std::array<std::atomic<int>, KINDS> total;
thread_local bool in_group;

Counts counts_now()
{
    Counts counts;
    for (int kind = 0; kind < KINDS; kind++)
        counts[(size_t)kind] = total[(size_t)kind];
    const HostKernelCounts &k = host_kernel_counts();
    counts[KERNEL] = k.sum_squares + k.sum_partials + k.prepare_step + k.adamw + k.muon_update +
                     k.store_double + k.convert;
    return counts;
}

void count_collective()
{
    total[COLLECTIVE]++;
    total[LAUNCH] += !in_group;
}

/* The host engine and its kernels, counted. */
const brg_device *counting_device()
{
    static brg_runtime rt = *brg_host_runtime();
    static brg_nccl nccl = *brg_host_nccl();
    static const brg_device device = {&rt, &nccl, host_kernel_device()->kernels};
    rt.event_record = [](void *event, void *stream) {
        total[RECORD]++;
        return brg_host_runtime()->event_record(event, stream);
    };
    rt.stream_wait_event = [](void *stream, void *event) {
        total[WAIT]++;
        return brg_host_runtime()->stream_wait_event(stream, event);
    };
    rt.stream_is_capturing = [](void *, int *capturing) {
        total[QUERY]++;
        *capturing = 0;
        return (int)BRG_RT_OK;
    };
    rt.get_device = [](int *ordinal) {
        total[QUERY]++;
        return brg_host_runtime()->get_device(ordinal);
    };
    rt.memset_async = [](void *dst, int value, size_t bytes, void *stream) {
        total[FILL]++;
        return brg_host_runtime()->memset_async(dst, value, bytes, stream);
    };
    nccl.all_reduce = [](const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                         void *stream) {
        count_collective();
        return brg_host_nccl()->all_reduce(send, recv, count, dtype, op, comm, stream);
    };
    nccl.reduce_scatter = [](const void *send, void *recv, size_t count, int dtype, int op,
                             void *comm, void *stream) {
        count_collective();
        return brg_host_nccl()->reduce_scatter(send, recv, count, dtype, op, comm, stream);
    };
    nccl.all_gather = [](const void *send, void *recv, size_t count, int dtype, void *comm,
                         void *stream) {
        count_collective();
        return brg_host_nccl()->all_gather(send, recv, count, dtype, comm, stream);
    };
    nccl.group_start = [] {
        in_group = true;
        return brg_host_nccl()->group_start();
    };
    nccl.group_end = [] {
        in_group = false;
        total[LAUNCH]++;
        return brg_host_nccl()->group_end();
    };
    return &device;
}

constexpr int SIDE = 40; /* with which the vectors fill one bucket */

Model bench_model()
{
    Model model;
    for (int p = 0; p < 200; p++)
        model.add("p" + std::to_string(p),
                  p % 2 ? std::vector<int64_t>{8} : std::vector<int64_t>{SIDE, SIDE}, 0,
                  BRG_BFLOAT16);
    return model;
}

struct Phase {
    const char *name;
    Counts most;
};

/* With 17 buckets of matrices, 1 of vectors, one rank. Each number has its reason: */
const Phase phases[] = {
    /* the gradients of two buffers */
    {"brg_zero_grad", {0, 0, 0, 0, 0, 2, 2}},
    /* each bucket's gather is waited for where it is needed */
    {"brg_param_wait", {0, 18, 0, 0, 0, 0, 36}},
    /* each bucket: gradients -> reduction -> sum of squares, all but the last on a third stream */
    {"brg_grad_ready", {36, 35, 18, 18, 18, 0, 36}},
    /* the last reduction; the gradients have been used */
    {"brg_finish_grad_sync", {1, 1, 0, 0, 0, 0, 2}},
    /* Events: each gather; sums, update and end of each optimizer; norm; end of the chain's and of
     * the scheduler's step. Waits: the last step, sums of both optimizers, norm, both updates.
     * Launches: one for each optimizer's gathers, which are small. Kernels: total, decision and
     * both updates. */
    {"brg_step", {27, 6, 2, 18, 4, 0, 12}},
};
constexpr size_t PHASES = std::size(phases);

/* One step; calls[i]: of phases[i]. */
void step(const training::Job &job, brg_optimizer *chain, brg_stream stream, Counts *calls)
{
    auto phase = [&](auto body) {
        Counts before = counts_now();
        body();
        *calls = counts_now();
        for (size_t kind = 0; kind < KINDS; kind++)
            (*calls)[kind] -= before[kind];
        calls++;
    };
    phase([&] { ASSERT_OK(brg_zero_grad(job.sched, stream)); });
    phase([&] {
        for (int p = 0; p < job.model.size(); p++)
            ASSERT_OK(brg_param_wait(job.sched, p, stream));
    });
    phase([&] {
        for (int p = job.model.size() - 1; p >= 0; p--)
            ASSERT_OK(brg_grad_ready(job.sched, p, stream));
    });
    phase([&] { ASSERT_OK(brg_finish_grad_sync(job.sched, stream)); });
    phase([&] { ASSERT_OK(brg_step(chain, stream)); });
}

void expect_few(const Counts *calls)
{
    for (size_t i = 0; i < PHASES; i++)
        for (size_t kind = 0; kind < KINDS; kind++)
            EXPECT_LE(calls[i][kind], phases[i].most[kind])
                << phases[i].name << ": " << kind_names[kind];
}

TEST(StepCalls, AreFew)
{
    run_ranks(
        1,
        [&](int, brg_context *ctx) {
            brg_layout_options lo = {};
            lo.bucket_size = 5 * SIDE * SIDE + 1;
            brg_scheduler_options so = {};
            so.overlap_grad_reduce = so.overlap_param_gather = 1;
            training::Job job(ctx, bench_model(), lo, so);
            Optimizers all;
            brg_optimizer *chain = all.chain({all.muon(job.sched), all.adamw(job.sched)});
            ASSERT_NE(chain, nullptr);
            ASSERT_EQ(brg_scheduler_num_buckets(job.sched), 18);
            brg_stream stream;
            ASSERT_OK(brg_stream_create(ctx, &stream));
            Counts calls[PHASES];
            for (int i = 0; i < 4; i++) /* the first one learns */
                step(job, chain, stream, calls);
            expect_few(calls);
            ASSERT_OK(brg_finish_param_sync(job.sched, stream));
            ASSERT_OK(brg_stream_synchronize(ctx, stream));
            brg_stream_destroy(ctx, stream);
        },
        {}, counting_device());
}

/* Launches of gathers in a step of AdamW on `buckets` parameters that each fill a bucket. */
int gather_launches(int buckets, int64_t kilobytes, int prefetch = 0)
{
    int launches = 0;
    run_ranks(
        1,
        [&](int, brg_context *ctx) {
            Model model;
            for (int p = 0; p < buckets; p++)
                model.add("p" + std::to_string(p), {kilobytes * 1024 / 4});
            brg_layout_options lo = {};
            lo.algorithm = BRG_ELEMENTWISE;
            lo.bucket_size = 1;
            brg_scheduler_options so = {};
            so.overlap_param_gather = 1;
            so.param_gather_prefetch = prefetch;
            training::Job job(ctx, model, lo, so);
            ASSERT_EQ(brg_scheduler_num_buckets(job.sched), buckets);
            Optimizers all;
            brg_optimizer *adamw = all.adamw(job.sched);
            job.backward(0);
            Counts before = counts_now();
            ASSERT_OK(brg_step(adamw, nullptr));
            ASSERT_OK(brg_finish_param_sync(job.sched, nullptr));
            launches = counts_now()[LAUNCH] - before[LAUNCH];
            for (int b = 0; b < buckets; b++) {
                brg_bucket_info info;
                ASSERT_OK(brg_scheduler_bucket(job.sched, b, &info));
                EXPECT_EQ(info.gathers, 1u);
            }
        },
        {}, counting_device());
    return launches;
}

TEST(StepCalls, SmallGathersGoOutTogether)
{
    EXPECT_EQ(gather_launches(5, 300), 2);    /* 900 and 600 kB */
    EXPECT_EQ(gather_launches(3, 600), 3);    /* none fits with another */
    EXPECT_EQ(gather_launches(5, 300, 2), 2); /* two ahead; the rest at the end */
    EXPECT_EQ(gather_launches(4, 10), 1);
}

} // namespace
