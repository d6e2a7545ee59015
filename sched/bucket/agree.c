/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks must have in common: layout and options at start-up, orders after the learning
 * step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "sched/bucket/scheduler.h"

/* The fields are compared in this order, so that a message names a cause before its consequences.
 * From F_FIRST_CAUSE to F_LAYOUT they matter only if the layouts differ: a layout that was read
 * from a file does not know all the options that it was computed with. */
enum {
    F_FORMAT,
    F_NUM_PARAMS,
    F_PARAMS,
    F_ALGORITHM,
    F_PACKING,
    F_DP,
    F_BUCKET_SIZE,
    F_GRAD_DTYPE,
    F_LAYOUT,
    F_ALL_REDUCE,
    F_SCALING,
    F_FACTOR,
    F_GROUP_SIZE,
    F_OVERLAP_GRAD,
    F_OVERLAP_PARAM,
    F_PREFETCH,
    F_EXPERT_RANKS,
    F_INSTANCES,
    F_COUNT,
    F_FIRST_CAUSE = F_ALGORITHM
};

static const char *const field_names[F_COUNT] = {
    [F_FORMAT] = "library version",
    [F_NUM_PARAMS] = "number of parameters",
    [F_PARAMS] = "parameters",
    [F_ALGORITHM] = "layout algorithm",
    [F_PACKING] = "packing",
    [F_DP] = "data-parallel size",
    [F_BUCKET_SIZE] = "bucket size",
    [F_GRAD_DTYPE] = "gradient dtype",
    [F_LAYOUT] = "hash of the layout",
    [F_ALL_REDUCE] = "all_reduce",
    [F_SCALING] = "grad_scaling",
    [F_FACTOR] = "grad_scale_factor",
    [F_GROUP_SIZE] = "buckets_per_group",
    [F_OVERLAP_GRAD] = "overlap_grad_reduce",
    [F_OVERLAP_PARAM] = "overlap_param_gather",
    [F_PREFETCH] = "param_gather_prefetch",
    [F_EXPERT_RANKS] = "number of ranks in expert_context",
    [F_INSTANCES] = "number of ranks in instance_context",
};

static uint64_t hash_param(const brg_param *p, bool with_name)
{
    uint64_t hash = XXH3_64bits(p->name, with_name ? strlen(p->name) : 0);
    hash = XXH3_64bits_withSeed(p->shape, sizeof p->shape[0] * (size_t)p->num_dims, hash);
    uint64_t rest[] = {(uint64_t)p->num_dims, (uint64_t)p->dtype, p->flags,
                       (uint64_t)p->ns_row_multiplier};
    return XXH3_64bits_withSeed(rest, sizeof rest, hash);
}

static uint64_t hash_layout(const brg_layout *layout)
{
    uint64_t hash = 0;
    for (int i = 0; i < brg_layout_num_buffers(layout); i++) {
        const brg_layout_buffer *b = brg_layout_get_buffer(layout, i);
        hash = XXH3_64bits_withSeed(b->name, strlen(b->name), hash);
        for (int j = 0; j < b->num_buckets; j++) {
            int64_t row[] = {b->buckets[j].start, b->buckets[j].end};
            hash = XXH3_64bits_withSeed(row, sizeof row, hash);
        }
        for (int j = 0; j < b->num_params; j++) {
            int64_t row[] = {b->params[j].param, b->params[j].start, b->params[j].bucket};
            hash = XXH3_64bits_withSeed(row, sizeof row, hash);
        }
    }
    return hash;
}

static void fill_fields(const brg_scheduler *sched, const uint64_t *param_hashes, uint64_t *fields)
{
    const brg_layout_options *l = brg_layout_get_options(sched->layout);
    const brg_scheduler_options *o = &sched->options;
    fields[F_FORMAT] = XXH3_64bits(BRIGADE_VERSION, strlen(BRIGADE_VERSION));
    fields[F_NUM_PARAMS] = (uint64_t)sched->num_params;
    fields[F_PARAMS] = XXH3_64bits(param_hashes, sizeof *param_hashes * (size_t)sched->num_params);
    fields[F_ALGORITHM] = (uint64_t)l->algorithm;
    fields[F_PACKING] = l->algorithm == BRG_LAYERWISE ? (uint64_t)l->packing : 0;
    fields[F_DP] = (uint64_t)l->data_parallel_size;
    fields[F_BUCKET_SIZE] = (uint64_t)l->bucket_size;
    fields[F_GRAD_DTYPE] = (uint64_t)l->grad_dtype;
    fields[F_LAYOUT] = hash_layout(sched->layout);
    fields[F_ALL_REDUCE] = o->all_reduce != 0;
    fields[F_SCALING] = (uint64_t)o->grad_scaling;
    memcpy(&fields[F_FACTOR], &o->grad_scale_factor, sizeof fields[F_FACTOR]);
    fields[F_GROUP_SIZE] = (uint64_t)o->buckets_per_group;
    fields[F_OVERLAP_GRAD] = o->overlap_grad_reduce != 0;
    fields[F_OVERLAP_PARAM] = o->overlap_param_gather != 0;
    fields[F_PREFETCH] = (uint64_t)o->param_gather_prefetch;
    fields[F_EXPERT_RANKS] = (uint64_t)sched->expert_ctx->world;
    fields[F_INSTANCES] = sched->instance_ctx ? (uint64_t)sched->instance_ctx->world : 1;
}

/* Which parameter differs: all ranks exchange one hash per parameter. */
static brg_status name_param(brg_scheduler *sched, brg_context *ctx, const uint64_t *mine,
                             int other)
{
    size_t count = (size_t)sched->num_params;
    uint64_t *all = malloc(sizeof *all * count * (size_t)ctx->world);
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to compare %zu parameters", count);
    brg_status status;
    BRG_TRY(brg_context_exchange(ctx, mine, count, all), out);
    const uint64_t *theirs = all + count * (size_t)other;
    for (size_t p = 0; p < count; p++)
        if (theirs[p] != all[p]) {
            status = brg_fail(
                BRG_ERR_MISMATCH,
                "rank %d and rank 0 disagree about parameter %zu (\"%s\" on rank %d): name, "
                "shape, dtype or flags differ",
                other, p, brg_sched_param_name(sched, (int)p), ctx->rank);
            goto out;
        }
    status = brg_fail(BRG_ERR_MISMATCH, "rank %d and rank 0 disagree about the parameters", other);
out:
    free(all);
    return status;
}

static brg_status name_difference(brg_scheduler *sched, brg_context *ctx, const uint64_t *hashes,
                                  const uint64_t *all)
{
    for (int f = 0; f < F_COUNT; f++)
        for (int r = 1; r < ctx->world; r++) {
            uint64_t theirs = all[r * F_COUNT + f], first = all[f];
            bool layouts_equal = all[r * F_COUNT + F_LAYOUT] == all[F_LAYOUT];
            if (theirs == first || (layouts_equal && f >= F_FIRST_CAUSE && f < F_LAYOUT))
                continue;
            if (f == F_PARAMS)
                return name_param(sched, ctx, hashes, r);
            if (f == F_FACTOR) {
                double a, b;
                memcpy(&a, &theirs, sizeof a);
                memcpy(&b, &first, sizeof b);
                return brg_fail(BRG_ERR_MISMATCH, "%s is %g on rank %d, %g on rank 0",
                                field_names[f], a, r, b);
            }
            if (f == F_FORMAT || f == F_LAYOUT)
                return brg_fail(BRG_ERR_MISMATCH,
                                "%s differs: %016llx on rank %d, %016llx on rank 0", field_names[f],
                                (unsigned long long)theirs, r, (unsigned long long)first);
            return brg_fail(BRG_ERR_MISMATCH, "%s is %lld on rank %d, %lld on rank 0",
                            field_names[f], (long long)theirs, r, (long long)first);
        }
    return BRG_OK;
}

/* Expert-parallel parameters of different groups have the same shapes, but may have other names. */
brg_status brg_sched_compare_ranks(brg_scheduler *sched, brg_context *ctx)
{
    size_t world = (size_t)ctx->world;
    bool one_group = ctx != sched->ctx || sched->expert_ctx == ctx;
    int params = brg_layout_num_params(sched->layout);
    uint64_t mine[F_COUNT];
    uint64_t *all = malloc(sizeof *all * world * F_COUNT);
    uint64_t *hashes = calloc((size_t)params + 1, sizeof *hashes);
    brg_status status;
    if (!all || !hashes) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory to compare %zu ranks", world);
        goto out;
    }
    sched->num_params = params;
    for (int p = 0; p < params; p++) {
        const brg_param *info = brg_layout_param_info(sched->layout, p);
        hashes[p] = hash_param(info, one_group || !(info->flags & BRG_PARAM_EXPERT_PARALLEL));
    }
    fill_fields(sched, hashes, mine);
    BRG_TRY(brg_context_exchange(ctx, mine, F_COUNT, all), out);
    BRG_TRY(name_difference(sched, ctx, hashes, all), out);
out:
    free(all);
    free(hashes);
    return status;
}

/* Orders */

typedef struct keyed_group {
    int64_t key;
    int group;
} keyed_group;

static int by_key(const void *a, const void *b)
{
    const keyed_group *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->group - y->group;
}

/* The first parameter of a group in registration order: the last one in backprop order. */
static int64_t first_param(const brg_group *group)
{
    return group->num_params ? group->params[0] : INT32_MAX;
}

static void order_by(keyed_group *keyed, int count, int *order)
{
    qsort(keyed, (size_t)count, sizeof *keyed, by_key);
    for (int i = 0; i < count; i++)
        order[i] = keyed[i].group;
}

static void invert_forward(brg_scheduler *sched)
{
    for (int i = 0; i < sched->num_groups; i++)
        sched->forward_position[sched->forward_order[i]] = i;
}

/* Before anything is learned: gradients in backprop order, parameters in registration order. */
void brg_sched_default_orders(brg_scheduler *sched)
{
    int count = sched->num_groups;
    for (int i = 0; i < count; i++)
        sched->order[i] = sched->forward_order[i] = i;
    keyed_group *keyed = calloc((size_t)count + 1, sizeof *keyed);
    if (keyed) { /* without memory any order that is equal on all ranks will do */
        for (int i = 0; i < count; i++)
            keyed[i] = (keyed_group){-first_param(&sched->groups[i]), i};
        order_by(keyed, count, sched->order);
        for (int i = 0; i < count; i++)
            keyed[i] = (keyed_group){first_param(&sched->groups[i]), i};
        order_by(keyed, count, sched->forward_order);
        free(keyed);
    }
    invert_forward(sched);
}

/* Rank 0's order of completion: by the ticket of each group's last contribution; groups without one
 * come last, in backprop order. */
static void observed_order(const brg_scheduler *sched, keyed_group *keyed, int *order)
{
    for (int i = 0; i < sched->num_groups; i++) {
        const brg_group *group = &sched->groups[i];
        int ticket = atomic_load(&group->last_ready);
        int64_t key = ticket >= 0 ? ticket : (int64_t)2 * INT32_MAX - first_param(group);
        keyed[i] = (keyed_group){key, i};
    }
    order_by(keyed, sched->num_groups, order);
}

/* Rank 0's order of first waits; groups that nobody waited for follow in the order so far. */
static void observed_forward(const brg_scheduler *sched, int *order)
{
    int count = atomic_load(&sched->num_seen);
    memcpy(order, sched->forward_seen, sizeof *order * (size_t)count);
    for (int i = 0; i < sched->num_groups; i++) {
        int group = sched->forward_order[i];
        if (!atomic_load(&sched->groups[group].seen))
            order[count++] = group;
    }
}

brg_status brg_sched_agree_orders(brg_scheduler *sched)
{
    size_t count = (size_t)sched->num_groups;
    int *orders = calloc(2 * count + 1, sizeof *orders);
    keyed_group *keyed = calloc(count + 1, sizeof *keyed);
    brg_status status;
    if (!orders || !keyed) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for the order of %zu bucket groups", count);
        goto out;
    }
    observed_order(sched, keyed, orders);
    observed_forward(sched, orders + count);
    /* From one rank to the same rank of all instances, and from there to everybody in each. */
    if (sched->instance_ctx)
        BRG_TRY(brg_context_agree(sched->instance_ctx, orders, 2 * count), out);
    BRG_TRY(
        brg_context_agree(sched->expert_place == BRG_EXPERT_AROUND ? sched->expert_ctx : sched->ctx,
                          orders, 2 * count),
        out);
    memcpy(sched->order, orders, sizeof *orders * count);
    memcpy(sched->forward_order, orders + count, sizeof *orders * count);
    invert_forward(sched);
out:
    free(orders);
    free(keyed);
    return status;
}
