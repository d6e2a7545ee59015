/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/layout/plan.h"

#include <stdlib.h>

#include "sched/status.h"

brg_status brg_plan_init(brg_plan *plan, int num_items)
{
    *plan = (brg_plan){0};
    if (num_items == 0)
        return BRG_OK;
    plan->params = calloc((size_t)num_items, sizeof *plan->params);
    plan->buckets = calloc((size_t)num_items, sizeof *plan->buckets);
    if (!plan->params || !plan->buckets) {
        brg_plan_free(plan);
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to place %d parameters", num_items);
    }
    return BRG_OK;
}

void brg_plan_free(brg_plan *plan)
{
    free(plan->params);
    free(plan->buckets);
    *plan = (brg_plan){0};
}

void brg_plan_place(brg_plan *plan, const brg_plan_item *item, int64_t start, int shard)
{
    plan->params[plan->num_params++] = (brg_layout_param){
        .param = item->param,
        .bucket = plan->num_buckets,
        .shard = shard,
        .start = start,
        .end = start + item->numel,
    };
}

void brg_plan_close(brg_plan *plan, int64_t end, int64_t numel_unpadded)
{
    int64_t start = brg_plan_end(plan);
    plan->buckets[plan->num_buckets++] = (brg_layout_bucket){
        .start = start,
        .end = end,
        .numel_unpadded = numel_unpadded,
    };
}

int64_t brg_plan_end(const brg_plan *plan)
{
    return plan->num_buckets ? plan->buckets[plan->num_buckets - 1].end : 0;
}

brg_status brg_plan_check_end(__int128 end, const brg_plan_item *item, int num_shards)
{
    if (end <= BRG_PLAN_MAX_ELEMS)
        return BRG_OK;
    return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                    "parameter \"%s\" (%lld elements) over %d shards takes its buffer past %lld "
                    "elements with padding",
                    item->name, (long long)item->numel, num_shards, (long long)BRG_PLAN_MAX_ELEMS);
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t lcm(int64_t a, int64_t b)
{
    return a / gcd(a, b) * b;
}

int64_t brg_plan_bucket_divisor(int num_shards, bool pad_for_high_bus_bandwidth)
{
    /* 2^16 is itself a multiple of 128. */
    return lcm(num_shards, pad_for_high_bus_bandwidth ? 65536 : 128);
}

int64_t brg_plan_shard_divisor(int num_shards, bool pad_for_high_bus_bandwidth)
{
    int64_t bucket = brg_plan_bucket_divisor(num_shards, pad_for_high_bus_bandwidth);
    return lcm(BRG_PLAN_ALIGN, bucket / num_shards);
}
