// SPDX-License-Identifier: Apache-2.0
// What optimizers refuse, and that they name it.
#include "tests/optim/training.h"

namespace
{

using training::Job;
using training::Optimizers;

#define EXPECT_FAILS(expr, status, text)                                                           \
    do {                                                                                           \
        EXPECT_EQ((expr), status);                                                                 \
        EXPECT_NE(std::string(brg_last_error()).find(text), std::string::npos)                     \
            << "message: " << brg_last_error();                                                    \
    } while (0)

template <class Options, class Create>
void expect_refused(brg_scheduler *sched, Create create, const Options &options, const char *text)
{
    brg_optimizer *made = (brg_optimizer *)&options;
    EXPECT_FAILS(create(sched, &options, &made), BRG_ERR_INVALID_ARGUMENT, text);
    EXPECT_EQ(made, nullptr);
}

TEST(Options, OutOfRange)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        auto adamw = [&](auto set, const char *text) {
            brg_adamw_options o = {};
            set(o);
            expect_refused(job.sched, brg_adamw_create, o, text);
        };
        adamw([](auto &o) { o.lr = NAN; }, "lr");
        adamw([](auto &o) { o.lr = INFINITY; }, "lr");
        adamw([](auto &o) { o.beta1 = 1; }, "beta1");
        adamw([](auto &o) { o.beta2 = 1.5; }, "beta2");
        adamw([](auto &o) { o.eps = -1; }, "eps");
        adamw([](auto &o) { o.weight_decay = NAN; }, "weight_decay");
        adamw([](auto &o) { o.size = 3; }, "size is 3");
        brg_sgd_options so = {};
        so.momentum = 1;
        expect_refused(job.sched, brg_sgd_create, so, "momentum");
        auto muon = [&](auto set, const char *text) {
            brg_muon_options o = {};
            set(o);
            expect_refused(job.sched, brg_muon_create, o, text);
        };
        muon([](auto &o) { o.momentum = 2; }, "momentum");
        muon([](auto &o) { o.momentum_style = (brg_momentum_style)2; }, "momentum style 2");
        muon([](auto &o) { o.scale = (brg_muon_scale)-1; }, "scale -1");
        muon([](auto &o) { o.coefficients = (brg_ns_coefficients)99; }, "99");
        muon([](auto &o) { o.coefficients = BRG_NS_CUSTOM; }, "custom");
        muon([](auto &o) { o.num_steps = 1000; }, "1000");
        muon(
            [](auto &o) {
                o.coefficients = BRG_NS_CUBIC5;
                o.num_steps = 4;
            },
            "cubic5");
        brg_optimizer *made = nullptr;
        EXPECT_EQ(brg_adamw_create(nullptr, nullptr, &made), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_adamw_create(job.sched, nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        // Nothing of all that has kept a group.
        Optimizers all;
        EXPECT_NE(all.chain({all.muon(job.sched), all.adamw(job.sched)}), nullptr);
    });
}

/* Negative is zero: no momentum, and a learning rate that moves nothing. */
TEST(Options, NegativeMeansZero)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_muon_options mo = {};
        mo.lr = mo.momentum = mo.weight_decay = mo.eps = -1;
        brg_adamw_options ao = {};
        ao.lr = ao.beta1 = ao.beta2 = -1;
        brg_optimizer *chain = all.chain({all.muon(job.sched, mo), all.adamw(job.sched, ao)});
        ASSERT_NE(chain, nullptr);
        job.backward(0);
        ASSERT_OK(brg_step(chain, nullptr));
        for (int p = 0; p < job.model.size(); p++)
            for (int64_t i = 0; i < job.model.numel(p); i++)
                ASSERT_EQ(job.param(p, i), training::initial(p, i));
    });
}

TEST(Groups, OwnershipIsExclusive)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        std::vector<int> list = {job.groups(false)[0]};
        brg_adamw_options o = {};
        auto with = [&](std::vector<int> groups) {
            list = groups;
            o.groups = list.data();
            o.num_groups = (int)list.size();
        };
        int element = job.groups(false)[0], whole = job.groups(true)[0];
        with({element, whole, element});
        expect_refused(job.sched, brg_adamw_create, o, "twice");
        with({99});
        expect_refused(job.sched, brg_adamw_create, o, "99");
        with({-1});
        expect_refused(job.sched, brg_adamw_create, o, "-1");
        o.num_groups = -1;
        expect_refused(job.sched, brg_adamw_create, o, "-1");
        brg_muon_options mo = {};
        mo.groups = &element;
        mo.num_groups = 1;
        expect_refused(job.sched, brg_muon_create, mo, "not layer-wise");

        with({element});
        brg_optimizer *first = all.adamw(job.sched, o);
        ASSERT_NE(first, nullptr);
        brg_adamw_options rest = {};
        expect_refused(job.sched, brg_adamw_create, rest, "already belongs");
        // AdamW may own layer-wise groups when they are listed.
        with({whole});
        EXPECT_NE(all.adamw(job.sched, o), nullptr);
    });
}

TEST(Muon, RefusesPiecesOfMatrices)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Model model;
        model.add("piece", {8, 8});
        model.params[0].ns_row_multiplier = 2;
        Job job(ctx, model);
        brg_optimizer *made = nullptr;
        EXPECT_FAILS(brg_muon_create(job.sched, nullptr, &made), BRG_ERR_UNSUPPORTED, "piece");
        EXPECT_EQ(made, nullptr);
    });
}

TEST(Chain, RefusesWrongChildren)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model()), other(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_optimizer *foreign = all.adamw(other.sched);
        auto refused = [&](std::vector<brg_optimizer *> children, const char *text,
                           brg_chain_options o = {}) {
            brg_optimizer *made = muon;
            EXPECT_FAILS(brg_chain_create(children.data(), (int)children.size(), &o, &made),
                         BRG_ERR_INVALID_ARGUMENT, text);
            EXPECT_EQ(made, nullptr);
        };
        std::string missing = "group " + std::to_string(job.groups(false)[0]);
        refused({muon}, missing.c_str());
        refused({muon, nullptr}, "child 1");
        refused({muon, adamw, muon}, "0 and 2");
        refused({muon, adamw, foreign}, "child 2");
        refused({}, "at least one");
        brg_chain_options o = {};
        o.max_grad_norm = NAN;
        refused({muon, adamw}, "max_grad_norm", o);
        refused({foreign}, "no optimizer"); // its layer-wise groups
        brg_optimizer *chain = all.chain({muon, adamw});
        ASSERT_NE(chain, nullptr);
        refused({muon, adamw}, "another chain");
        refused({chain}, "chain itself");
        EXPECT_EQ(brg_chain_create(&muon, 1, nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
    });
}

TEST(Step, AtTheWrongTime)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        brg_optimizer *chain = all.chain({muon, adamw});
        double norm = 0;
        int64_t number = 0;
        EXPECT_FAILS(brg_grad_norm(chain, &norm), BRG_ERR_STATE, "no brg_step");
        EXPECT_OK(brg_skipped_steps(chain, &number));
        EXPECT_EQ(number, 0);
        EXPECT_FAILS(brg_step(chain, nullptr), BRG_ERR_STATE, "brg_finish_grad_sync");
        job.backward(0);
        EXPECT_FAILS(brg_step(muon, nullptr), BRG_ERR_STATE, "in a chain");
        EXPECT_OK(brg_step(chain, nullptr)); // the refusals have used nothing up
        EXPECT_EQ(brg_step(chain, nullptr), BRG_ERR_STATE);
        EXPECT_EQ(start_param_sync_for_bucket_group_subset(chain, nullptr), BRG_ERR_STATE);
        EXPECT_EQ(brg_step(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(start_param_sync_for_bucket_group_subset(nullptr, nullptr),
                  BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_optimizer_reload_params(nullptr, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_grad_norm(chain, nullptr), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_skipped_steps(nullptr, &number), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_FAILS(brg_param_step_count(chain, 99, &number), BRG_ERR_INVALID_ARGUMENT, "99");
        EXPECT_FAILS(brg_optimizer_set_lr(chain, 0.1), BRG_ERR_INVALID_ARGUMENT, "children");
        EXPECT_FAILS(brg_optimizer_set_lr(muon, -0.1), BRG_ERR_INVALID_ARGUMENT, "-0.1");
        EXPECT_EQ(brg_optimizer_set_lr(muon, NAN), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_EQ(brg_optimizer_set_lr(muon, INFINITY), BRG_ERR_INVALID_ARGUMENT);
        brg_optimizer_destroy(nullptr);
    });
}

TEST(Chain, SurvivesTheLossOfAChild)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        brg_optimizer *children[2] = {}, *chain = nullptr;
        ASSERT_OK(brg_muon_create(job.sched, nullptr, &children[0]));
        ASSERT_OK(brg_adamw_create(job.sched, nullptr, &children[1]));
        ASSERT_OK(brg_chain_create(children, 2, nullptr, &chain));
        brg_optimizer_destroy(children[0]);
        job.backward(0);
        EXPECT_FAILS(brg_step(chain, nullptr), BRG_ERR_STATE, "child 0");
        brg_optimizer_destroy(chain);
        brg_optimizer_destroy(children[1]);
        // Groups are free again.
        Optimizers all;
        EXPECT_NE(all.chain({all.muon(job.sched), all.adamw(job.sched)}), nullptr);
    });
}

TEST(RowSplit, Refusals)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        Optimizers all;
        brg_optimizer *muon = all.muon(job.sched), *adamw = all.adamw(job.sched);
        const int qkv = 2, embed = 0;
        const int64_t good[3] = {16, 16, 16}, zero[3] = {48, 0, 0},
                      huge[2] = {INT64_MAX, INT64_MAX};
        const auto bad = BRG_ERR_INVALID_ARGUMENT;
        EXPECT_OK(brg_muon_set_row_split(muon, qkv, 1, good, 3));
        EXPECT_FAILS(brg_muon_set_row_split(adamw, qkv, 1, good, 3), bad, "adamw");
        EXPECT_FAILS(brg_muon_set_row_split(nullptr, qkv, 1, good, 3), bad, "NULL");
        EXPECT_FAILS(brg_muon_set_row_split(muon, embed, 1, good, 3), bad, "embed");
        EXPECT_FAILS(brg_muon_set_row_split(muon, 999, 1, good, 3), bad, "999");
        EXPECT_FAILS(brg_muon_set_row_split(muon, -1, 1, good, 3), bad, "-1");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 2, good, 3), bad, "48");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 0, good, 3), bad, "at least one");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 1, good, 0), bad, "at least one");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 1, nullptr, 3), bad, "at least one");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 1, zero, 3), bad, "block 1");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, 1, huge, 2), bad, "block 1");
        EXPECT_FAILS(brg_muon_set_row_split(muon, qkv, INT64_MAX, good, 3), bad, "qkv");
    });
}

/* Sorting them by difference overflowed. */
TEST(Options, ExtremeGroupIdsAreOutOfRange)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Job job(ctx, small_model());
        int groups[] = {std::numeric_limits<int>::max(), 0, std::numeric_limits<int>::min()};
        brg_sgd_options options = {};
        options.groups = groups;
        options.num_groups = 3;
        expect_refused(job.sched, brg_sgd_create, options, "bucket group -2147483648");
    });
}

TEST(Options, MuonNeedsALayerwiseLayout)
{
    run_ranks(1, [&](int, brg_context *ctx) {
        Model model = small_model();
        brg_layout_options options = {};
        options.algorithm = BRG_ELEMENTWISE;
        brg_layout *layout = nullptr;
        brg_scheduler *sched = nullptr;
        brg_optimizer *muon = nullptr;
        ASSERT_OK(brg_layout_compute(model.data(), model.size(), &options, &layout));
        ASSERT_OK(brg_scheduler_create(ctx, layout, nullptr, &sched));
        EXPECT_EQ(brg_muon_create(sched, nullptr, &muon), BRG_ERR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(brg_last_error()).find("layer-wise layout"), std::string::npos)
            << brg_last_error();
        EXPECT_EQ(muon, nullptr);
        brg_scheduler_destroy(sched);
        brg_layout_destroy(layout);
    });
}

} // namespace
