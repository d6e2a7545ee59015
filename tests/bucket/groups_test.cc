// SPDX-License-Identifier: Apache-2.0
/* Groups of ranks: optimizer instances, expert-parallel parameters, and both, against sums in
 * float64 over the ranks that share each parameter. */
#include <cmath>

#include "brigade/optimizer.h"
#include "tests/bucket/harness.h"

namespace
{

/* Four ranks; what belongs together has the same number in `color`. */
struct Shape {
    const char *name;
    int instances;     /* of consecutive ranks */
    int expert_groups; /* of every n-th rank of an instance; 0: no expert context */
    bool all_reduce;
};

void PrintTo(const Shape &shape, std::ostream *out)
{
    *out << shape.name;
}

constexpr int kWorld = 4, kSteps = 3;

Model moe_model()
{
    Model m = small_model();
    m.add("expert.up", {40, 24}, BRG_PARAM_EXPERT_PARALLEL);
    m.add("expert.bias", {70}, BRG_PARAM_EXPERT_PARALLEL);
    return m;
}

bool is_expert(const Model &model, int p)
{
    return model.params[(size_t)p].flags & BRG_PARAM_EXPERT_PARALLEL;
}

/* One rank of the four, with its groups. */
struct Member {
    Shape shape;
    int rank, place, instance; /* place: rank in the instance */
    int ranks, expert_group = 0, expert_ranks;
    brg_context *world, *instance_ranks = nullptr, *experts = nullptr, *across = nullptr;
    Model model = moe_model();
    brg_layout *layout = nullptr;
    brg_scheduler *sched = nullptr;

    Member(brg_context *ctx, const Shape &s, brg_grad_scaling scaling, double large_norm = 0,
           brg_algorithm algorithm = BRG_ELEMENTWISE)
        : shape(s), rank(brg_context_rank(ctx)), world(ctx)
    {
        ranks = kWorld / s.instances;
        place = rank % ranks;
        instance = rank / ranks;
        expert_ranks = s.expert_groups ? ranks / s.expert_groups : ranks;
        EXPECT_OK(brg_context_split(world, instance, place, &instance_ranks));
        EXPECT_OK(brg_context_split(world, place, instance, &across));
        if (s.expert_groups) {
            expert_group = place % s.expert_groups;
            EXPECT_OK(brg_context_split(world, instance * s.expert_groups + expert_group, place,
                                        &experts));
        }
        brg_layout_options plan = {};
        plan.data_parallel_size = ranks;
        plan.expert_data_parallel_size = expert_ranks;
        plan.algorithm = algorithm;
        plan.bucket_size = 900;
        EXPECT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
        brg_scheduler_options options = {};
        options.overlap_grad_reduce = options.overlap_param_gather = 1;
        options.grad_scaling = scaling;
        options.all_reduce = s.all_reduce;
        options.check_grads = large_norm > 0;
        options.large_grad_norm = large_norm;
        options.expert_context = experts;
        options.instance_context = s.instances > 1 ? across : nullptr;
        EXPECT_OK(brg_scheduler_create(instance_ranks, layout, &options, &sched));
    }
    ~Member()
    {
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
        brg_context_close(experts);
        brg_context_close(across);
        brg_context_close(instance_ranks);
    }

    /* Sum over the ranks that share p, of the group of experts given. */
    double sum(int step, int p, int64_t i, int group) const
    {
        double total = 0;
        for (int r = 0; r < kWorld; r++)
            if (!is_expert(model, p) || !shape.expert_groups ||
                r % ranks % shape.expert_groups == group)
                total += contribution(r, step, p, i);
        return total;
    }
    void backward(int step)
    {
        ASSERT_OK(brg_zero_grad(sched, nullptr));
        for (int p = model.size() - 1; p >= 0; p--) {
            float *grad = (float *)brg_grad_data(sched, p);
            for (int64_t i = 0; i < model.numel(p); i++)
                grad[i] = contribution(rank, step, p, i);
            ASSERT_OK(brg_grad_ready(sched, p, nullptr));
        }
        ASSERT_OK(brg_finish_grad_sync(sched, nullptr));
    }
    void expect_reduced(int step, double factor) const
    {
        int64_t checked = 0;
        for (int b = 0; b < brg_scheduler_num_buckets(sched); b++) {
            const brg_bucket_view *view = brg_sched_view(sched, b);
            for (int s = 0; s < view->num_segments; s++) {
                const brg_segment &seg = view->segments[s];
                EXPECT_EQ(!!view->expert_parallel, is_expert(model, seg.param));
                for (int64_t i = 0; i < seg.numel; i++, checked++)
                    ASSERT_NEAR(((const float *)view->grad_base)[seg.offset + i],
                                factor * sum(step, seg.param, seg.param_start + i, expert_group),
                                4e-6)
                        << model.names[(size_t)seg.param] << " element " << seg.param_start + i;
            }
        }
        EXPECT_GT(checked, 0);
    }
    /* Each element of the model once, experts of all groups included. */
    double norm(int step, double factor) const
    {
        double squares = 0;
        for (int p = 0; p < model.size(); p++)
            for (int group = 0;
                 group < (is_expert(model, p) && shape.expert_groups ? shape.expert_groups : 1);
                 group++)
                for (int64_t i = 0; i < model.numel(p); i++)
                    squares += std::pow(factor * sum(step, p, i, group), 2);
        return std::sqrt(squares);
    }
    /* What an optimizer does for the norm. */
    double measured_norm() const
    {
        double sums[2] = {0, 0}; /* dense, expert */
        bool apart = brg_sched_sums_experts_apart(sched);
        for (int b = 0; b < brg_scheduler_num_buckets(sched); b++) {
            const brg_bucket_view *view = brg_sched_view(sched, b);
            for (int s = 0; s < view->num_segments; s++)
                for (int64_t i = 0; i < view->segments[s].numel; i++)
                    sums[apart && view->expert_parallel] += std::pow(
                        (double)((const float *)view->grad_base)[view->segments[s].offset + i], 2);
        }
        EXPECT_OK(brg_sched_sum_over_ranks(sched, &sums[0], 1, nullptr));
        if (apart)
            EXPECT_OK(brg_sched_sum_experts_over_ranks(sched, &sums[1], 1, nullptr));
        return std::sqrt(sums[0] + sums[1]);
    }
};

class Groups : public testing::TestWithParam<Shape>
{
};

TEST_P(Groups, SumsAndNormsAreThoseOfOneProcess)
{
    Shape shape = GetParam();
    for (brg_grad_scaling scaling : {BRG_SCALE_NONE, BRG_SCALE_AVERAGE, BRG_SCALE_PRE_DIVIDE})
        run_ranks(kWorld, [&](int, brg_context *ctx) {
            Member m(ctx, shape, scaling, 0,
                     scaling == BRG_SCALE_NONE ? BRG_ELEMENTWISE : BRG_LAYERWISE);
            double factor = scaling == BRG_SCALE_NONE ? 1.0 : 1.0 / kWorld;
            for (int step = 0; step < kSteps; step++) {
                m.backward(step);
                m.expect_reduced(step, factor);
                double want = m.norm(step, factor);
                EXPECT_NEAR(m.measured_norm(), want, 1e-6 * want) << shape.name;
            }
        });
}

TEST_P(Groups, AllRanksThatShareAParameterTrainItAlike)
{
    Shape shape = GetParam();
    run_ranks(kWorld, [&](int, brg_context *ctx) {
        Member m(ctx, shape, BRG_SCALE_AVERAGE);
        for (int p = 0; p < m.model.size(); p++)
            for (int64_t i = 0; i < m.model.numel(p); i++)
                ((float *)brg_param_data(m.sched, p))[i] =
                    contribution(m.rank, 99, p, i) + (float)m.expert_group;
        ASSERT_OK(brg_broadcast_params(m.sched, 0, nullptr));
        brg_sgd_options plan = {};
        plan.lr = 0.5;
        brg_optimizer *sgd = nullptr;
        ASSERT_OK(brg_sgd_create(m.sched, &plan, &sgd));
        for (int step = 0; step < kSteps; step++) {
            m.backward(step);
            ASSERT_OK(brg_step(sgd, nullptr));
            double norm = 0, want = m.norm(step, 1.0 / kWorld);
            ASSERT_OK(brg_grad_norm(sgd, &norm));
            EXPECT_NEAR(norm, want, 1e-6 * want);
        }
        ASSERT_OK(brg_finish_param_sync(m.sched, nullptr));
        ASSERT_OK(brg_stream_synchronize(m.instance_ranks, nullptr));
        for (int p = 0; p < m.model.size(); p++) {
            /* rank 0 of the first instance, or of its expert group */
            int first = is_expert(m.model, p) && shape.expert_groups ? m.expert_group : 0;
            for (int64_t i = 0; i < m.model.numel(p); i++) {
                double want = contribution(first, 99, p, i) + (float)first;
                for (int step = 0; step < kSteps; step++)
                    want -= 0.5 / kWorld * m.sum(step, p, i, m.expert_group);
                ASSERT_NEAR(((const float *)brg_param_data(m.sched, p))[i], want, 1e-5)
                    << m.model.names[(size_t)p];
            }
        }
        brg_optimizer_destroy(sgd);
    });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Groups,
    testing::Values(Shape{"one", 1, 0, false}, Shape{"instances", 2, 0, false},
                    Shape{"four_instances", 4, 0, false}, Shape{"experts", 1, 2, false},
                    Shape{"lone_experts", 1, 4, false}, Shape{"both", 2, 2, false},
                    Shape{"all_reduce_instances", 2, 0, true},
                    Shape{"all_reduce_experts", 1, 2, true}, Shape{"all_reduce_both", 2, 2, true}),
    [](const testing::TestParamInfo<Shape> &info) { return info.param.name; });

/* Experts over more ranks than the scheduler's context has. */
TEST(GroupsTest, ExpertsAroundTheContext)
{
    for (int all_reduce : {0, 1})
        run_ranks(kWorld, [&](int rank, brg_context *world) {
            Model model = moe_model();
            brg_context *pair = nullptr;
            ASSERT_OK(brg_context_split(world, rank / 2, rank, &pair));
            brg_layout_options plan = {};
            plan.data_parallel_size = 2;
            plan.expert_data_parallel_size = kWorld;
            plan.bucket_size = 900;
            brg_layout *layout = nullptr;
            ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
            brg_scheduler_options options = {};
            options.grad_scaling = BRG_SCALE_NONE;
            options.all_reduce = all_reduce;
            options.expert_context = world;
            brg_scheduler *sched = nullptr;
            ASSERT_OK(brg_scheduler_create(pair, layout, &options, &sched));
            for (int step = 0; step < 2; step++) {
                ASSERT_OK(brg_zero_grad(sched, nullptr));
                for (int p = model.size() - 1; p >= 0; p--) {
                    for (int64_t i = 0; i < model.numel(p); i++)
                        ((float *)brg_grad_data(sched, p))[i] = contribution(rank, step, p, i);
                    ASSERT_OK(brg_grad_ready(sched, p, nullptr));
                }
                ASSERT_OK(brg_finish_grad_sync(sched, nullptr));
                double sums[2] = {0, 0}, want = 0;
                for (int b = 0; b < brg_scheduler_num_buckets(sched); b++) {
                    const brg_bucket_view *view = brg_sched_view(sched, b);
                    for (int s = 0; s < view->num_segments; s++)
                        for (int64_t i = 0; i < view->segments[s].numel; i++)
                            sums[view->expert_parallel] += std::pow(
                                (double)((float *)view->grad_base)[view->segments[s].offset + i],
                                2);
                }
                EXPECT_EQ(brg_sched_sums_experts_apart(sched), !all_reduce);
                ASSERT_OK(brg_sched_sum_over_ranks(sched, &sums[0], 1, nullptr));
                ASSERT_OK(brg_sched_sum_experts_over_ranks(sched, &sums[1], 1, nullptr));
                for (int p = 0; p < model.size(); p++)
                    for (int64_t i = 0; i < model.numel(p); i++) {
                        double sum = 0;
                        for (int r = 0; r < kWorld; r++)
                            if (is_expert(model, p) || r / 2 == rank / 2)
                                sum += contribution(r, step, p, i);
                        want += sum * sum;
                    }
                EXPECT_NEAR(sums[0] + sums[1], want, 1e-6 * want);
            }
            brg_scheduler_destroy(sched);
            brg_layout_destroy(layout);
            brg_context_close(pair);
        });
}

TEST(GroupsTest, WrongSizesNameBufferShardsAndRanks)
{
    run_ranks(kWorld, [&](int rank, brg_context *world) {
        Model model = moe_model();
        brg_context *pair = nullptr;
        ASSERT_OK(brg_context_split(world, rank / 2, rank, &pair));
        brg_layout_options plan = {};
        plan.data_parallel_size = kWorld;
        plan.expert_data_parallel_size = kWorld;
        brg_layout *layout = nullptr;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
        brg_scheduler_options options = {};
        options.expert_context = pair;
        brg_scheduler *sched = nullptr;
        EXPECT_EQ(brg_scheduler_create(world, layout, &options, &sched), BRG_ERR_INVALID_ARGUMENT);
        std::string text = brg_last_error();
        EXPECT_NE(text.find("expert"), std::string::npos) << text;
        EXPECT_NE(text.find("4 shards"), std::string::npos) << text;
        EXPECT_NE(text.find("2 ranks in the expert context"), std::string::npos) << text;

        options = {};
        options.instance_context = world;
        EXPECT_EQ(brg_scheduler_create(world, layout, &options, &sched), BRG_ERR_INVALID_ARGUMENT);
        brg_layout_destroy(layout);
        brg_context_close(pair);
    });
}

/* A context over half of the ranks is no expert context of the other half's. */
TEST(GroupsTest, GroupsThatDoNotNestAreRefused)
{
    run_ranks(kWorld, [&](int rank, brg_context *world) {
        Model model = moe_model();
        brg_context *pair = nullptr, *crossing = nullptr;
        ASSERT_OK(brg_context_split(world, rank / 2, rank, &pair));
        ASSERT_OK(brg_context_split(world, rank == 0 || rank == 2, rank, &crossing));
        brg_layout_options plan = {};
        plan.data_parallel_size = 2;
        brg_layout *layout = nullptr;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
        brg_scheduler_options options = {};
        options.expert_context = crossing;
        brg_scheduler *sched = nullptr;
        EXPECT_EQ(brg_scheduler_create(pair, layout, &options, &sched), BRG_ERR_INVALID_ARGUMENT);
        std::string text = brg_last_error();
        EXPECT_NE(text.find("expert_context"), std::string::npos) << text;
        brg_layout_destroy(layout);
        brg_context_close(crossing);
        brg_context_close(pair);
    });
}

/* One instance's options differ: all ranks hear of it, none hangs. */
TEST(GroupsTest, InstancesThatDifferAreRefusedEverywhere)
{
    run_ranks(kWorld, [&](int rank, brg_context *world) {
        Model model = moe_model();
        brg_context *pair = nullptr, *across = nullptr;
        ASSERT_OK(brg_context_split(world, rank / 2, rank, &pair));
        ASSERT_OK(brg_context_split(world, rank % 2, rank, &across));
        brg_layout_options plan = {};
        plan.data_parallel_size = 2;
        brg_layout *layout = nullptr;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &plan, &layout));
        brg_scheduler_options options = {};
        options.instance_context = across;
        options.grad_scaling = rank == 3 ? BRG_SCALE_NONE : BRG_SCALE_AVERAGE;
        brg_scheduler *sched = nullptr;
        EXPECT_EQ(brg_scheduler_create(pair, layout, &options, &sched), BRG_ERR_MISMATCH);
        brg_layout_destroy(layout);
        brg_context_close(across);
        brg_context_close(pair);
    });
}

TEST(GroupsTest, ChecksLookAtExpertsToo)
{
    run_ranks(kWorld, [&](int rank, brg_context *ctx) {
        Member m(ctx, Shape{"both", 2, 2, false}, BRG_SCALE_AVERAGE, 1e9);
        ASSERT_OK(brg_zero_grad(m.sched, nullptr));
        for (int p = m.model.size() - 1; p >= 0; p--) {
            if (rank == 1 && m.model.names[(size_t)p] == "expert.up")
                ((float *)brg_grad_data(m.sched, p))[5] = NAN;
            ASSERT_OK(brg_grad_ready(m.sched, p, nullptr));
        }
        brg_status status = brg_finish_grad_sync(m.sched, nullptr);
        EXPECT_EQ(status, rank == 1 ? BRG_ERR_NON_FINITE : BRG_OK);
        if (rank == 1) {
            std::string text = brg_last_error();
            EXPECT_NE(text.find("NaN in the gradient of parameter \"expert.up\""),
                      std::string::npos)
                << text;
        }
    });
}

} // namespace
