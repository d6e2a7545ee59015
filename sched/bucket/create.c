/* SPDX-License-Identifier: Apache-2.0 */
/* From a layout to buffers, buckets, bucket groups, and the pieces that this rank owns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/bucket/scheduler.h"
#include "sched/half.h"

/* Buffers */

static brg_status make_op(brg_scheduler *sched, brg_buffer *buffer, brg_dtype dtype)
{
    const brg_scheduler_options *o = &sched->options;
    brg_context *ctx = buffer->ctx;
    int ranks = sched->ctx->world, instances = sched->instance_ctx ? sched->instance_ctx->world : 1;
    double factor = o->grad_scale_factor;
    if (o->grad_scaling == BRG_SCALE_NONE ||
        (o->grad_scaling == BRG_SCALE_AVERAGE && ctx->world == ranks)) {
        /* over one rank NCCL multiplies by one for an average, and does nothing for a sum */
        bool average = o->grad_scaling == BRG_SCALE_AVERAGE && ranks > 1;
        buffer->reduce_op = average ? BRG_NCCL_AVG : BRG_NCCL_SUM;
        return BRG_OK;
    }
    if (o->grad_scaling == BRG_SCALE_AVERAGE) /* experts; the average over instances follows */
        factor = 1.0 / ranks;
    else if (o->grad_scaling == BRG_SCALE_PRE_DIVIDE)
        factor = 1.0 / ((double)ranks * instances);
    union {
        double f64;
        float f32;
        uint16_t half;
    } scalar;
    switch (dtype) {
    case BRG_FLOAT64:
        scalar.f64 = factor;
        break;
    case BRG_FLOAT32:
        scalar.f32 = (float)factor;
        break;
    case BRG_FLOAT16:
        scalar.half = brg_fp16_from_float((float)factor);
        break;
    default:
        scalar.half = brg_bf16_from_float((float)factor);
        break;
    }
    void *comm = brg_context_hold_comm(ctx);
    int result = comm ? ctx->device.nccl->redop_create_premul_sum(
                            &buffer->reduce_op, &scalar, buffer->nccl_grad_dtype,
                            BRG_NCCL_SCALAR_HOST_IMMEDIATE, comm)
                      : BRG_NCCL_INVALID_USAGE;
    brg_context_release_comm(ctx);
    brg_status status = brg_context_nccl(ctx, result, "redop_create_premul_sum");
    buffer->own_op = status == BRG_OK;
    return status;
}

static bool is_float(brg_dtype dtype)
{
    return dtype == BRG_FLOAT32 || dtype == BRG_FLOAT64 || dtype == BRG_FLOAT16 ||
           dtype == BRG_BFLOAT16;
}

static brg_status make_buffer(brg_scheduler *sched, int index)
{
    const brg_layout_buffer *from = brg_layout_get_buffer(sched->layout, index);
    brg_buffer *buffer = &sched->buffers[index];
    brg_context *ctx = from->key.expert_parallel ? sched->expert_ctx : sched->ctx;
    const brg_runtime *rt = ctx->device.rt;
    brg_status status;
    buffer->ctx = ctx;
    if (!is_float(from->key.grad_dtype))
        return brg_fail(BRG_ERR_UNSUPPORTED, "buffer %s: gradients of type %s cannot be reduced",
                        from->name, brg_dtype_str(from->key.grad_dtype));
    if (from->num_shards != ctx->world)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "buffer %s of the layout has %d shards, but there are %d ranks%s",
                        from->name, from->num_shards, ctx->world,
                        ctx != sched->ctx ? " in the expert context" : "");
    for (int b = 0; sched->sharded && b < from->num_buckets; b++)
        if ((from->buckets[b].end - from->buckets[b].start) % ctx->world)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "bucket %d of buffer %s has %lld elements, which %d ranks cannot share "
                            "equally; a flat layout needs all_reduce",
                            b, from->name,
                            (long long)(from->buckets[b].end - from->buckets[b].start), ctx->world);
    buffer->grad_bytes = (size_t)from->numel * brg_dtype_bytes(from->key.grad_dtype);
    buffer->param_bytes = (size_t)from->numel * brg_dtype_bytes(from->key.param_dtype);
    buffer->nccl_grad_dtype = brg_nccl_dtype(from->key.grad_dtype);
    const brg_nccl *nccl = ctx->device.nccl;
    BRG_TRY(brg_context_nccl(ctx, nccl->mem_alloc(&buffer->grad, buffer->grad_bytes + 256),
                             "mem_alloc"),
            out);
    BRG_TRY(brg_context_nccl(ctx, nccl->mem_alloc(&buffer->param, buffer->param_bytes + 256),
                             "mem_alloc"),
            out);
    BRG_TRY(brg_context_rt(ctx,
                           rt->memset_async(buffer->grad, 0, buffer->grad_bytes, ctx->comm_stream),
                           "memset_async"),
            out);
    BRG_TRY(brg_context_rt(
                ctx, rt->memset_async(buffer->param, 0, buffer->param_bytes, ctx->comm_stream),
                "memset_async"),
            out);
    BRG_TRY(make_op(sched, buffer, from->key.grad_dtype), out);
out:
    return status;
}

/* Buckets */

/* The piece of [a, b) inside [lo, hi), appended to the view. */
static void add_segment(brg_bucket_view *view, brg_segment *storage, const brg_layout_param *p,
                        int64_t lo, int64_t hi)
{
    int64_t a = p->start > lo ? p->start : lo, b = p->end < hi ? p->end : hi;
    if (a >= b)
        return;
    storage[view->num_segments++] =
        (brg_segment){.param = p->param, .param_start = a - p->start, .offset = a, .numel = b - a};
}

/* Segments of one bucket; `at` walks over the buffer's parameters, `used` over the storage. */
static void make_bucket(brg_scheduler *sched, int id, int buffer, int index, int *at, int *used)
{
    const brg_layout_buffer *from = brg_layout_get_buffer(sched->layout, buffer);
    const brg_layout_bucket *range = &from->buckets[index];
    brg_bucket *bucket = &sched->buckets[id];
    int ranks = sched->sharded ? sched->buffers[buffer].ctx->world : 1;
    int mine = sched->sharded ? sched->buffers[buffer].ctx->rank : 0;
    bucket->buffer = buffer;
    bucket->index = index;
    bucket->start = range->start;
    bucket->end = range->end;
    bucket->shard_elems = (range->end - range->start) / ranks;
    bucket->view = (brg_bucket_view){.bucket = id,
                                     .layerwise = from->key.layerwise,
                                     .expert_parallel = from->key.expert_parallel,
                                     .param_dtype = from->key.param_dtype,
                                     .grad_dtype = from->key.grad_dtype,
                                     .param_base = sched->buffers[buffer].param,
                                     .grad_base = sched->buffers[buffer].grad,
                                     .segments = sched->segments + *used};
    int64_t lo = range->start + bucket->shard_elems * mine, hi = lo + bucket->shard_elems;
    for (; *at < from->num_params && from->params[*at].bucket == index; ++*at) {
        const brg_layout_param *p = &from->params[*at];
        bucket->num_params++;
        brg_param_state *state = &sched->params[p->param];
        state->bucket = id;
        state->data = (char *)sched->buffers[buffer].param +
                      (size_t)p->start * brg_dtype_bytes(from->key.param_dtype);
        state->grad = (char *)sched->buffers[buffer].grad +
                      (size_t)p->start * brg_dtype_bytes(from->key.grad_dtype);
        add_segment(&bucket->view, sched->segments + *used, p, lo, hi);
    }
    *used += bucket->view.num_segments;
}

static void describe_bucket(brg_scheduler *sched, brg_bucket *bucket)
{
    brg_context *ctx = sched->ctx;
    const brg_layout_buffer *from = brg_layout_get_buffer(sched->layout, bucket->buffer);
    const brg_layout_bucket *range = &from->buckets[bucket->index];
    brg_meta_bucket meta = {
        .grad_bytes = (size_t)(range->end - range->start) * brg_dtype_bytes(from->key.grad_dtype),
        .param_bytes = (size_t)(range->end - range->start) * brg_dtype_bytes(from->key.param_dtype),
        .numel = (uint64_t)(range->end - range->start),
        .numel_unpadded = (uint64_t)range->numel_unpadded,
        .num_shards = (uint32_t)from->num_shards,
        .group = (uint32_t)bucket->view.group,
        .grad_dtype = (uint8_t)from->key.grad_dtype,
        .param_dtype = (uint8_t)from->key.param_dtype,
        .layerwise = (uint8_t)from->key.layerwise,
        .expert_parallel = (uint8_t)from->key.expert_parallel,
        .num_params = (uint32_t)bucket->num_params,
    };
    snprintf(meta.name, sizeof meta.name, "%s#%d", from->name, bucket->index);
    bucket->trace_id = atomic_fetch_add(&ctx->root->next_bucket_id, 1);
    brg_ring_add_bucket(ctx->ring, bucket->trace_id, &meta);
}

static void make_buckets(brg_scheduler *sched)
{
    int id = 0, used = 0;
    for (int buffer = 0; buffer < sched->num_buffers; buffer++) {
        const brg_layout_buffer *from = brg_layout_get_buffer(sched->layout, buffer);
        int at = 0;
        for (int index = 0; index < from->num_buckets; index++)
            make_bucket(sched, id++, buffer, index, &at, &used);
    }
}

/* Groups */

static brg_status make_group_events(brg_group *group)
{
    brg_context *ctx = group->ctx, *instances = group->sched->instance_ctx;
    const brg_runtime *rt = ctx->device.rt;
    void **events[] = {&group->reduce_done, &group->updated, &group->own_gather_done,
                       &group->combine_done};
    brg_status status = BRG_OK;
    for (size_t i = 0; i < (instances ? 4 : 3); i++)
        BRG_TRY(brg_context_rt(ctx, rt->event_create(events[i], BRG_EVENT_DISABLE_TIMING),
                               "event_create"),
                out);
    for (int i = 0; i < MAX_STREAMS; i++)
        BRG_TRY(brg_context_rt(ctx,
                               rt->event_create(&group->ready_events[i], BRG_EVENT_DISABLE_TIMING),
                               "event_create"),
                out);
    const brg_bucket *first = &group->sched->buckets[group->first_bucket];
    const char *buffer = brg_layout_get_buffer(group->sched->layout, group->buffer)->name;
    char range[112];
    if (group->num_buckets == 1)
        snprintf(range, sizeof range, "bucket %d (%s#%d)", group->first_bucket, buffer,
                 first->index);
    else
        snprintf(range, sizeof range, "buckets %d to %d (%s#%d to %d)", group->first_bucket,
                 group->first_bucket + group->num_buckets - 1, buffer, first->index,
                 first->index + group->num_buckets - 1);
    snprintf(group->reduce_watch.label, sizeof group->reduce_watch.label, "%s of %.112s",
             group->sched->sharded ? "reduce-scatter" : "all-reduce", range);
    snprintf(group->gather_watch.label, sizeof group->gather_watch.label, "all-gather of %.112s",
             range);
    group->reduce_watch.event = group->reduce_done;
    group->gather_done = group->own_gather_done;
    group->gather_watch.event = group->own_gather_done;
    brg_watchdog_add(ctx->watchdog, &group->reduce_watch);
    brg_watchdog_add(ctx->watchdog, &group->gather_watch);
    if (instances) {
        snprintf(group->combine_watch.label, sizeof group->combine_watch.label,
                 "all-reduce over instances of %.112s", range);
        group->combine_watch.event = group->combine_done;
        brg_watchdog_add(instances->watchdog, &group->combine_watch);
    }
out:
    return status;
}

static brg_status make_groups(brg_scheduler *sched)
{
    int per_group = sched->options.buckets_per_group;
    for (int bucket = 0; bucket < sched->num_buckets;) {
        int buffer = sched->buckets[bucket].buffer;
        brg_group *group = &sched->groups[sched->num_groups];
        group->sched = sched;
        group->id = sched->num_groups++;
        group->buffer = buffer;
        group->ctx = sched->buffers[buffer].ctx;
        group->first_bucket = bucket;
        group->layerwise = sched->buckets[bucket].view.layerwise;
        atomic_store(&group->last_ready, -1);
        for (; bucket < sched->num_buckets && sched->buckets[bucket].buffer == buffer &&
               group->num_buckets < per_group;
             bucket++, group->num_buckets++)
            sched->buckets[bucket].view.group = group->id;
        brg_streams_clear(group->streams);
        brg_streams_clear(group->waited);
        brg_status status = make_group_events(group);
        if (status != BRG_OK)
            return status;
    }
    /* Parameters by group, in registration order. */
    int *at = sched->group_params;
    for (int p = 0; p < sched->num_params; p++) {
        sched->params[p].sched = sched;
        sched->params[p].id = p;
        sched->params[p].group = sched->buckets[sched->params[p].bucket].view.group;
        sched->groups[sched->params[p].group].num_params++;
    }
    for (int g = 0; g < sched->num_groups; g++) {
        sched->groups[g].params = at;
        at += sched->groups[g].num_params;
        sched->groups[g].num_params = 0;
    }
    for (int p = 0; p < sched->num_params; p++) {
        brg_group *group = &sched->groups[sched->params[p].group];
        sched->group_params[(group->params - sched->group_params) + group->num_params++] = p;
    }
    return BRG_OK;
}

/* Nothing is allocated in a step. */
static brg_status make_checks(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx;
    const brg_runtime *rt = ctx->device.rt;
    size_t params = (size_t)sched->num_params + 1, groups = (size_t)sched->num_groups + 1;
    void *checks = NULL, *partials = NULL;
    brg_status status;
    BRG_TRY(brg_context_rt(ctx, rt->malloc_host(&checks, params * sizeof *sched->checks),
                           "malloc_host"),
            out);
    sched->checks = checks;
    if (!ctx->device.kernels)
        goto out;
    BRG_TRY(brg_context_rt(
                ctx, rt->malloc_device(&partials, groups * 2 * BRG_NORM_PARTIALS * sizeof(double)),
                "malloc_device"),
            out);
    sched->check_partials = partials;
out:
    return status;
}

static void *allocate(int count, size_t bytes, bool *failed)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, bytes);
    *failed |= !memory;
    return memory;
}

brg_status brg_sched_build(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx;
    bool failed = false;
    sched->num_params = brg_layout_num_params(sched->layout);
    sched->num_buffers = brg_layout_num_buffers(sched->layout);
    sched->num_buckets = brg_layout_num_buckets(sched->layout);
    int params = sched->num_params, buckets = sched->num_buckets;
    sched->buffers = allocate(sched->num_buffers, sizeof *sched->buffers, &failed);
    sched->buckets = allocate(buckets, sizeof *sched->buckets, &failed);
    sched->groups = allocate(buckets, sizeof *sched->groups, &failed);
    sched->params = allocate(params, sizeof *sched->params, &failed);
    sched->group_params = allocate(params, sizeof *sched->group_params, &failed);
    sched->segments = allocate(params, sizeof *sched->segments, &failed);
    sched->order = allocate(buckets, sizeof *sched->order, &failed);
    sched->forward_order = allocate(buckets, sizeof *sched->forward_order, &failed);
    sched->forward_position = allocate(buckets, sizeof *sched->forward_position, &failed);
    sched->forward_seen = allocate(buckets, sizeof *sched->forward_seen, &failed);
    sched->queue = allocate(buckets, sizeof *sched->queue, &failed);
    if (failed)
        return brg_fail(BRG_ERR_NO_MEMORY,
                        "no memory for a scheduler of %d parameters in %d buckets", params,
                        buckets);
    brg_status status;
    BRG_TRY(brg_context_rt(
                ctx, ctx->device.rt->event_create(&sched->grads_event, BRG_EVENT_DISABLE_TIMING),
                "event_create"),
            out);
    for (int i = 0; i < sched->num_buffers; i++)
        BRG_TRY(make_buffer(sched, i), out);
    make_buckets(sched);
    BRG_TRY(make_groups(sched), out);
    for (int b = 0; b < buckets; b++)
        describe_bucket(sched, &sched->buckets[b]);
    brg_sched_default_orders(sched);
    if (sched->options.check_grads)
        BRG_TRY(make_checks(sched), out);
    BRG_TRY(brg_sched_synchronize(sched), out);
out:
    return status;
}

static void free_group(brg_group *group)
{
    brg_context *ctx = group->ctx;
    const brg_runtime *rt = ctx->device.rt;
    brg_watchdog_remove(ctx->watchdog, &group->reduce_watch);
    brg_watchdog_remove(ctx->watchdog, &group->gather_watch);
    if (group->sched->instance_ctx)
        brg_watchdog_remove(group->sched->instance_ctx->watchdog, &group->combine_watch);
    void *events[] = {group->reduce_done, group->updated, group->own_gather_done,
                      group->combine_done};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            rt->event_destroy(events[i]);
    for (int i = 0; i < MAX_STREAMS; i++)
        if (group->ready_events[i])
            rt->event_destroy(group->ready_events[i]);
}

static void free_op(const brg_buffer *buffer)
{
    void *comm = brg_context_hold_comm(buffer->ctx);
    if (comm)
        buffer->ctx->device.nccl->redop_destroy(buffer->reduce_op, comm);
    brg_context_release_comm(buffer->ctx);
}

void brg_sched_free_parts(brg_scheduler *sched)
{
    brg_context *ctx = sched->ctx;
    for (int i = 0; sched->groups && i < sched->num_groups; i++)
        free_group(&sched->groups[i]);
    for (int i = 0; sched->buffers && i < sched->num_buffers; i++) {
        brg_buffer *buffer = &sched->buffers[i];
        if (buffer->own_op)
            free_op(buffer);
        ctx->device.nccl->mem_free(buffer->grad);
        ctx->device.nccl->mem_free(buffer->param);
    }
    if (sched->grads_event)
        ctx->device.rt->event_destroy(sched->grads_event);
    if (sched->joined_event) {
        brg_watchdog_remove(ctx->watchdog, &sched->replay_watch);
        ctx->device.rt->event_destroy(sched->joined_event);
    }
    ctx->device.rt->free_host(sched->checks);
    ctx->device.rt->free_device(sched->check_partials);
    free(sched->buffers);
    free(sched->buckets);
    free(sched->groups);
    free(sched->params);
    free(sched->group_params);
    free(sched->segments);
    free(sched->order);
    free(sched->forward_order);
    free(sched->forward_position);
    free(sched->forward_seen);
    free(sched->queue);
}
