/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of ranks that a scheduler works with besides its context's own: of expert-parallel
 * parameters, and of optimizer instances. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "sched/bucket/scheduler.h"

static brg_status check_device(const brg_scheduler *sched, const brg_context *ctx, const char *name)
{
    if (ctx->device.rt == sched->ctx->device.rt && ctx->device_index == sched->ctx->device_index)
        return BRG_OK;
    return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                    "scheduler option %s is on device %s %d, the scheduler's context on %s %d",
                    name, ctx->device.rt->name, ctx->device_index, sched->ctx->device.rt->name,
                    sched->ctx->device_index);
}

brg_status brg_sched_take_groups(brg_scheduler *sched)
{
    brg_context *expert = sched->options.expert_context;
    brg_context *instance = sched->options.instance_context;
    brg_status status = BRG_OK;
    if (expert)
        sched->expert_ctx = expert;
    if (instance && (instance == sched->ctx || instance == sched->expert_ctx)) {
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                          "scheduler option instance_context is the scheduler's context or its "
                          "expert_context");
        goto out;
    }
    if (instance && instance->world > 1)
        sched->instance_ctx = instance;
    BRG_TRY(check_device(sched, sched->expert_ctx, "expert_context"), out);
    if (instance)
        BRG_TRY(check_device(sched, instance, "instance_context"), out);
out:
    return status;
}

/* A number that only the ranks of `ctx` get: rank 0's. */
static brg_status make_id(brg_context *ctx, uint64_t *id)
{
    uint64_t *all = calloc((size_t)ctx->world, sizeof *all);
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d ranks", ctx->world);
    uint64_t mine = 0;
    brg_status status;
    if (getrandom(&mine, sizeof mine, 0) != (ssize_t)sizeof mine)
        mine = brg_now_ns(); /* no reason to keep this rank out of the exchange */
    BRG_TRY(brg_context_exchange(ctx, &mine, 1, all), out);
    *id = all[0];
out:
    free(all);
    return status;
}

/* Whether every group that any rank of `ctx` belongs to, by its id, has `size` ranks in there. */
static brg_status all_complete(brg_context *ctx, uint64_t id, int size, bool *complete)
{
    uint64_t *all = calloc((size_t)ctx->world, sizeof *all);
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d ranks", ctx->world);
    brg_status status;
    BRG_TRY(brg_context_exchange(ctx, &id, 1, all), out);
    *complete = true;
    for (int r = 0; r < ctx->world; r++) {
        int count = 0;
        for (int other = 0; other < ctx->world; other++)
            count += all[other] == all[r];
        *complete &= count == size;
    }
out:
    free(all);
    return status;
}

static brg_status place_experts(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx, *expert = sched->expert_ctx;
    uint64_t id = 0, expert_id = 0;
    bool inside = false, around = false;
    brg_status status;
    BRG_TRY(make_id(ctx, &id), out);
    BRG_TRY(make_id(expert, &expert_id), out);
    BRG_TRY(all_complete(ctx, expert_id, expert->world, &inside), out);
    BRG_TRY(all_complete(expert, id, ctx->world, &around), out);
    if (inside && around)
        sched->expert_place = BRG_EXPERT_SAME;
    else if (inside)
        sched->expert_place = BRG_EXPERT_INSIDE;
    else if (around)
        sched->expert_place = BRG_EXPERT_AROUND;
    else
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                          "scheduler option expert_context: its %d ranks are neither a part of the "
                          "%d ranks of the scheduler's context nor do they contain them",
                          expert->world, ctx->world);
out:
    return status;
}

/* Instances are combined shard by shard: all must mean the same shard. */
static brg_status check_instances(brg_scheduler *sched)
{
    brg_context *instances = sched->instance_ctx;
    uint64_t mine[] = {(uint64_t)sched->ctx->rank, (uint64_t)sched->expert_ctx->rank};
    uint64_t *all = calloc((size_t)instances->world, sizeof mine);
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d ranks", instances->world);
    brg_status status;
    BRG_TRY(brg_context_exchange(instances, mine, 2, all), out);
    for (int r = 0; r < instances->world; r++)
        if (all[2 * r] != mine[0] || all[2 * r + 1] != mine[1]) {
            status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                              "scheduler option instance_context joins rank %d of one instance "
                              "(rank %d of its experts) and rank %d of another (rank %d)",
                              sched->ctx->rank, sched->expert_ctx->rank, (int)all[2 * r],
                              (int)all[2 * r + 1]);
            break;
        }
out:
    free(all);
    return status;
}

/* Sets *any if it is set on any rank of `ctx`. */
static brg_status spread(brg_context *ctx, bool *any)
{
    uint64_t *all = calloc((size_t)ctx->world, sizeof *all), mine = *any;
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d ranks", ctx->world);
    brg_status status = brg_context_exchange(ctx, &mine, 1, all);
    for (int r = 0; r < ctx->world && status == BRG_OK; r++)
        *any |= all[r] != 0;
    free(all);
    return status;
}

/* Keeps the first failure and its message, and goes on: others wait in what comes next. */
typedef struct verdict {
    brg_status status;
    char text[512];
} verdict;

static void note(verdict *v, brg_status status)
{
    if (status == BRG_OK || v->status != BRG_OK)
        return;
    v->status = status;
    snprintf(v->text, sizeof v->text, "%s", brg_last_error());
}

/* Whether all ranks of the scheduler's context have been given the same kinds of groups. */
static bool same_kinds(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx;
    uint64_t mine = (sched->expert_ctx != ctx) + 2 * (sched->instance_ctx != NULL);
    uint64_t *all = calloc((size_t)ctx->world, sizeof *all);
    bool same = all && brg_context_exchange(ctx, &mine, 1, all) == BRG_OK;
    for (int r = 0; r < ctx->world && same; r++)
        same = all[r] == mine;
    free(all);
    return same;
}

static brg_status compare_in(brg_scheduler *sched, brg_context *ctx, const char *name)
{
    brg_status status = brg_sched_compare_ranks(sched, ctx);
    return status == BRG_OK ? status : brg_fail_prefix(status, "in %s: ", name);
}

brg_status brg_sched_check_ranks(brg_scheduler *sched)
{
    bool has_experts = sched->expert_ctx != sched->ctx;
    verdict v = {.status = BRG_OK};
    note(&v, brg_sched_compare_ranks(sched, sched->ctx));
    /* All ranks of this context know that it has failed, but those of others may not. */
    if (v.status != BRG_OK && !same_kinds(sched))
        return brg_fail(v.status, "%s", v.text);
    if (!has_experts && !sched->instance_ctx)
        return v.status;
    if (has_experts) {
        note(&v, compare_in(sched, sched->expert_ctx, "expert_context"));
        note(&v, place_experts(sched));
    }
    if (sched->instance_ctx) {
        note(&v, compare_in(sched, sched->instance_ctx, "instance_context"));
        note(&v, check_instances(sched));
    }
    bool any = v.status != BRG_OK;
    note(&v, spread(sched->ctx, &any));
    if (sched->instance_ctx)
        note(&v, spread(sched->instance_ctx, &any));
    if (has_experts)
        note(&v, spread(sched->expert_ctx, &any));
    if (v.status != BRG_OK)
        return brg_fail(v.status, "%s", v.text);
    if (any)
        return brg_fail(BRG_ERR_MISMATCH,
                        "brg_scheduler_create: another rank has found a difference between ranks "
                        "in its groups; see its message");
    return BRG_OK;
}
