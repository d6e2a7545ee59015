// SPDX-License-Identifier: Apache-2.0
/* A steady step waits for nothing and allocates nothing: counted at libcudart's door. NCCL has a
 * libcudart of its own inside and is not counted. */
#include <dlfcn.h>

#include "tests/gpu/gpu_rank.h"

extern "C" {
#include "tests/gpu/counting_cudart.h"
}

namespace
{

struct Counts {
    long kinds[BRG_COUNT_KINDS] = {};
    explicit Counts(brg_counted_calls_fn calls)
    {
        for (int kind = 0; kind < BRG_COUNT_KINDS; kind++)
            kinds[kind] = calls((brg_count_kind)kind);
    }
};

void expect_quiet(const Counts &before, const Counts &after)
{
    EXPECT_EQ(after.kinds[BRG_COUNT_MEMORY], before.kinds[BRG_COUNT_MEMORY]) << "allocations";
    EXPECT_EQ(after.kinds[BRG_COUNT_SYNC], before.kinds[BRG_COUNT_SYNC]) << "waits";
    EXPECT_EQ(after.kinds[BRG_COUNT_SYNC_COPY], before.kinds[BRG_COUNT_SYNC_COPY])
        << "synchronous copies";
}

class Calls : public testing::TestWithParam<bool>
{
};

TEST_P(Calls, SteadyStepsNeitherWaitNorAllocate)
{
    auto calls = (brg_counted_calls_fn)dlsym(RTLD_DEFAULT, "brg_counted_calls");
    if (!calls)
        GTEST_SKIP() << "counting_cudart is not preloaded; run by meson test";
    SKIP_UNLESS_RUNS(1);
    bool captured = GetParam();
    run_gpu_ranks(1, [&](int, brg_context *ctx) {
        Plan plan;
        plan.layout.bucket_size = 500;
        plan.sched.overlap_grad_reduce = 1;
        plan.sched.overlap_param_gather = 1;
        GpuTrainer t(ctx, plan);
        t.make_optimizers(true);
        t.train_step();
        t.train_step();
        brg_graph *graph = nullptr;
        if (captured) {
            ASSERT_OK(brg_graph_capture_begin(t.sched, t.main));
            t.train_step();
            ASSERT_OK(brg_graph_capture_end(t.sched, t.main, &graph));
            ASSERT_OK(brg_graph_launch(graph, t.main));
        }
        Counts before(calls);
        for (int step = 3; step <= 10; step++) {
            if (captured) {
                ASSERT_OK(brg_graph_launch(graph, t.main));
            } else {
                t.train_step();
            }
        }
        Counts after(calls);
        expect_quiet(before, after);
        EXPECT_GT(after.kinds[BRG_COUNT_ASYNC], before.kinds[BRG_COUNT_ASYNC]); /* it does count */
        EXPECT_TRUE(captured || after.kinds[BRG_COUNT_KERNEL] > before.kinds[BRG_COUNT_KERNEL]);
        EXPECT_GT(after.kinds[BRG_COUNT_MEMORY], 0);
        ASSERT_OK(brg_stream_synchronize(ctx, t.main));
        EXPECT_GT(Counts(calls).kinds[BRG_COUNT_SYNC], after.kinds[BRG_COUNT_SYNC]);
        brg_graph_destroy(graph);
    });
}

INSTANTIATE_TEST_SUITE_P(Gpu, Calls, testing::Bool(), [](const testing::TestParamInfo<bool> &info) {
    return info.param ? "replayed" : "ordinary";
});

} // namespace
