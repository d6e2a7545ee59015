/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/scheduler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sched/options.h"

static brg_status check_options(const brg_scheduler_options *o)
{
    if ((unsigned)o->grad_scaling > BRG_SCALE_NONE)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "scheduler option grad_scaling is %d, expected 0 to %d",
                        (int)o->grad_scaling, BRG_SCALE_NONE);
    if (o->grad_scaling == BRG_SCALE_FACTOR && !isfinite(o->grad_scale_factor))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "scheduler option grad_scale_factor is %g, expected a finite number",
                        o->grad_scale_factor);
    if (o->buckets_per_group < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "scheduler option buckets_per_group is %d, expected 0 or more",
                        o->buckets_per_group);
    if (o->param_gather_prefetch < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "scheduler option param_gather_prefetch is %d, expected 0 or more",
                        o->param_gather_prefetch);
    if (!(o->large_grad_norm >= 0))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "scheduler option large_grad_norm is %g, expected 0 or more",
                        o->large_grad_norm);
    return BRG_OK;
}

static void describe_options(const brg_scheduler *sched)
{
    static const char *const scalings[] = {"average", "pre-divide", "factor", "none"};
    const brg_scheduler_options *o = &sched->options;
    brg_ring *ring = sched->ctx->ring;
    char number[32];
    brg_ring_add_info(ring, "overlap_grad_reduce", o->overlap_grad_reduce ? "1" : "0");
    brg_ring_add_info(ring, "overlap_param_gather", o->overlap_param_gather ? "1" : "0");
    brg_ring_add_info(ring, "all_reduce", o->all_reduce ? "1" : "0");
    brg_ring_add_info(ring, "grad_scaling", scalings[o->grad_scaling]);
    snprintf(number, sizeof number, "%d", o->buckets_per_group);
    brg_ring_add_info(ring, "buckets_per_group", number);
    snprintf(number, sizeof number, "%d", o->param_gather_prefetch);
    brg_ring_add_info(ring, "param_gather_prefetch", number);
}

brg_status brg_scheduler_create(brg_context *ctx, const brg_layout *layout,
                                const brg_scheduler_options *given, brg_scheduler **out)
{
    if (!ctx || !layout || !out)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_scheduler_create: context, layout or output is NULL");
    *out = NULL;
    brg_status status = brg_context_check(ctx);
    if (status != BRG_OK)
        return status;
    brg_scheduler *sched = calloc(1, sizeof *sched);
    if (!sched)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a scheduler");
    BRG_ON_DEVICE(ctx);
    sched->step_stamp = sched->end_stamp = BRG_NO_STAMP;
    sched->ctx = sched->expert_ctx = ctx;
    BRG_TRY(
        brg_options_copy("brg_scheduler_options", &sched->options, sizeof sched->options, given),
        fail);
    if (!sched->options.buckets_per_group)
        sched->options.buckets_per_group = 1;
    sched->layout = layout;
    sched->sharded = !sched->options.all_reduce;
    sched->learning = true;
    sched->learning_forward = true;
    sched->misread_param = -1;
    BRG_TRY(check_options(&sched->options), fail);
    BRG_TRY(brg_sched_take_groups(sched), fail);
    /* First of all what differs between ranks: everything after this may assume that it does not.
     */
    BRG_TRY(brg_sched_check_ranks(sched), fail);
    BRG_TRY(brg_sched_build(sched), fail);
    describe_options(sched);
    *out = sched;
    return BRG_OK;
fail:
    brg_scheduler_destroy(sched);
    return status;
}

/* The last step has no successor that would end it: the end of its optimizer step does. */
static void close_last_step(brg_scheduler *sched)
{
    brg_timeline *timeline = sched->ctx->timeline;
    brg_rec record = {.kind = BRG_REC_STEP,
                      .flags = sched->trace_replay ? BRG_REC_GRAPH : 0,
                      .step = sched->trace_step,
                      .bucket = BRG_NO_BUCKET};
    if (sched->step_stamp >= 0 && sched->end_stamp >= 0)
        brg_timeline_emit(timeline, &record, sched->step_stamp, sched->end_stamp);
    else {
        brg_timeline_unref(timeline, sched->step_stamp);
        brg_timeline_unref(timeline, sched->end_stamp);
    }
    brg_timeline_harvest(timeline, BRG_NO_STAMP);
}

static brg_status wait_for_streams(brg_scheduler *sched)
{
    brg_context *all[] = {sched->ctx, sched->expert_ctx, sched->instance_ctx};
    brg_status status = BRG_OK;
    for (int i = 0; i < 3; i++)
        if (all[i])
            BRG_TRY(brg_context_rt(all[i],
                                   all[i]->device.rt->stream_synchronize(all[i]->comm_stream),
                                   "stream_synchronize"),
                    out);
out:
    return status;
}

brg_status brg_sched_synchronize(brg_scheduler *sched)
{
    brg_context *all[] = {sched->ctx, sched->expert_ctx, sched->instance_ctx};
    brg_status status = wait_for_streams(sched);
    for (int i = 0; i < 3 && status == BRG_OK; i++)
        if (all[i])
            status = brg_context_status(all[i]);
    return status;
}

void brg_scheduler_destroy(brg_scheduler *sched)
{
    if (!sched)
        return;
    brg_context *all[] = {sched->ctx, sched->expert_ctx, sched->instance_ctx};
    BRG_ON_DEVICE(sched->ctx);
    bool failed = false;
    for (int i = 0; i < 3; i++)
        failed |= all[i] && atomic_load(&all[i]->failure) != BRG_OK;
    for (int i = 0; failed && i < 3; i++) /* nothing is left then that could block the streams */
        brg_context_abort(all[i]);
    wait_for_streams(sched);
    close_last_step(sched);
    brg_sched_free_parts(sched);
    free(sched);
}

/* Accessors */

brg_status brg_bad_param(const brg_scheduler *sched, int param, const char *function)
{
    if (!sched)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: the scheduler is NULL", function);
    return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: parameter %d of %d", function, param,
                    sched->num_params);
}

const char *brg_sched_param_name(const brg_scheduler *sched, int param)
{
    const brg_param *info = brg_layout_param_info(sched->layout, param);
    return info ? info->name : "?";
}

void *brg_param_data(const brg_scheduler *sched, int param)
{
    return brg_param_in_range(sched, param) ? sched->params[param].data : NULL;
}

void *brg_grad_data(const brg_scheduler *sched, int param)
{
    return brg_param_in_range(sched, param) ? sched->params[param].grad : NULL;
}

int brg_scheduler_num_buckets(const brg_scheduler *sched)
{
    return sched ? sched->num_buckets : 0;
}

int brg_scheduler_num_groups(const brg_scheduler *sched)
{
    return sched ? sched->num_groups : 0;
}

int brg_scheduler_bucket_of(const brg_scheduler *sched, int param)
{
    return brg_param_in_range(sched, param) ? sched->params[param].bucket : -1;
}

brg_status brg_scheduler_bucket(const brg_scheduler *sched, int bucket, brg_bucket_info *info)
{
    if (!sched || !info || bucket < 0 || bucket >= sched->num_buckets)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_scheduler_bucket: bucket %d of %d", bucket,
                        brg_scheduler_num_buckets(sched));
    const brg_bucket *b = &sched->buckets[bucket];
    size_t elems = (size_t)(b->end - b->start);
    *info = (brg_bucket_info){.buffer = b->buffer,
                              .bucket = b->index,
                              .group = b->view.group,
                              .grad_bytes = elems * brg_dtype_bytes(b->view.grad_dtype),
                              .param_bytes = elems * brg_dtype_bytes(b->view.param_dtype),
                              .reductions = atomic_load(&b->reductions),
                              .gathers = atomic_load(&b->gathers)};
    return BRG_OK;
}

brg_status brg_set_main_grad(brg_scheduler *sched, int param, const void *grad, brg_dtype dtype)
{
    if (!brg_param_in_range(sched, param))
        return brg_bad_param(sched, param, "brg_set_main_grad");
    brg_context *ctx = sched->ctx;
    if (dtype != BRG_FLOAT32 && dtype != BRG_FLOAT64 && dtype != BRG_FLOAT16 &&
        dtype != BRG_BFLOAT16)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_set_main_grad: parameter \"%s\": a gradient of type %s",
                        brg_sched_param_name(sched, param), brg_dtype_str(dtype));
    if (atomic_load(&sched->any_ready))
        return brg_fail(
            BRG_ERR_STATE,
            "brg_set_main_grad: parameter \"%s\": gradients of this step are being counted",
            brg_sched_param_name(sched, param));
    if (sched->capture)
        return brg_fail(BRG_ERR_STATE, "brg_set_main_grad: parameter \"%s\": in a capture",
                        brg_sched_param_name(sched, param));
    BRG_ON_DEVICE(ctx);
    /* The last step's copy may still be waiting for its turn. Of a replay no event of the group's
     * own tells. */
    void *done = sched->joined_event
                     ? sched->grads_event
                     : brg_group_reduced(&sched->groups[sched->params[param].group]);
    brg_status status;
    BRG_TRY(brg_context_rt(ctx, ctx->device.rt->event_synchronize(done), "event_synchronize"), out);
    sched->params[param].main_grad = grad;
    sched->params[param].main_dtype = dtype;
out:
    return status;
}

/* What optimizers see */

brg_context *brg_sched_context(const brg_scheduler *sched)
{
    return sched->ctx;
}

const brg_layout *brg_sched_layout(const brg_scheduler *sched)
{
    return sched->layout;
}

const brg_bucket_view *brg_sched_view(const brg_scheduler *sched, int bucket)
{
    return bucket >= 0 && bucket < sched->num_buckets ? &sched->buckets[bucket].view : NULL;
}

brg_status brg_sched_claim_group(brg_scheduler *sched, int group, const void *owner)
{
    if (group < 0 || group >= sched->num_groups)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "bucket group %d of %d", group,
                        sched->num_groups);
    if (sched->groups[group].owner)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "bucket group %d already belongs to %s optimizer",
                        group, sched->groups[group].owner == owner ? "this" : "another");
    sched->groups[group].owner = owner;
    return BRG_OK;
}

void brg_sched_release_group(brg_scheduler *sched, int group, const void *owner)
{
    if (group >= 0 && group < sched->num_groups && sched->groups[group].owner == owner)
        sched->groups[group].owner = NULL;
}

const void *brg_sched_group_owner(const brg_scheduler *sched, int group)
{
    return group >= 0 && group < sched->num_groups ? sched->groups[group].owner : NULL;
}

bool brg_sched_group_layerwise(const brg_scheduler *sched, int group)
{
    return group >= 0 && group < sched->num_groups && sched->groups[group].layerwise;
}

/* Instances hold copies of the same shards: their values are the same, and not added. */
brg_status brg_sched_sum_over_ranks(brg_scheduler *sched, double *values, int count,
                                    brg_stream stream)
{
    if (!sched->sharded || sched->ctx->world == 1)
        return BRG_OK;
    return brg_all_reduce(sched->ctx, values, values, (size_t)count, BRG_FLOAT64, BRG_SUM, stream);
}

bool brg_sched_sums_experts_apart(const brg_scheduler *sched)
{
    return sched->sharded ? sched->expert_place == BRG_EXPERT_AROUND
                          : sched->expert_place == BRG_EXPERT_INSIDE;
}

brg_status brg_sched_sum_experts_over_ranks(brg_scheduler *sched, double *values, int count,
                                            brg_stream stream)
{
    brg_context *ctx = sched->ctx;
    brg_status status = BRG_OK;
    if (!brg_sched_sums_experts_apart(sched))
        return brg_sched_sum_over_ranks(sched, values, count, stream);
    if (sched->sharded)
        return brg_all_reduce(sched->expert_ctx, values, values, (size_t)count, BRG_FLOAT64,
                              BRG_SUM, stream);
    /* Every rank of a group holds all of its experts' gradients: one speaks for them. */
    BRG_ON_DEVICE(ctx);
    if (sched->expert_ctx->rank != 0)
        BRG_TRY(brg_context_rt(
                    ctx,
                    ctx->device.rt->memset_async(values, 0, (size_t)count * sizeof *values, stream),
                    "memset_async"),
                out);
    status = brg_all_reduce(ctx, values, values, (size_t)count, BRG_FLOAT64, BRG_SUM, stream);
out:
    return status;
}

brg_stream brg_sched_lock(brg_scheduler *sched)
{
    brg_sched_lock_issue(sched);
    return sched->ctx->comm_stream;
}

void brg_sched_unlock(brg_scheduler *sched)
{
    brg_sched_unlock_issue(sched);
}

void brg_sched_set_grad_hooks(brg_scheduler *sched, int group, const brg_grad_hooks *hooks,
                              void *arg)
{
    brg_sched_lock(sched);
    sched->groups[group].hooks = hooks;
    sched->groups[group].hooks_arg = arg;
    brg_sched_unlock(sched);
}

brg_status brg_sched_follow_grads(brg_scheduler *sched, brg_stream stream)
{
    if (!sched->grads_recorded || sched->grads_stream == stream)
        return BRG_OK;
    return brg_context_rt(sched->ctx,
                          sched->ctx->device.rt->stream_wait_event(stream, sched->grads_event),
                          "stream_wait_event");
}

brg_status brg_sched_mark_grads(brg_scheduler *sched, brg_stream stream)
{
    brg_status status =
        brg_context_rt(sched->ctx, sched->ctx->device.rt->event_record(sched->grads_event, stream),
                       "event_record");
    if (status == BRG_OK) {
        sched->grads_recorded = true;
        sched->grads_stream = stream;
    }
    return status;
}

brg_status brg_sched_begin_step(brg_scheduler *sched, brg_stream stream)
{
    BRG_ON_DEVICE(sched->ctx);
    brg_status status = brg_sched_check(sched);
    if (status != BRG_OK)
        return status;
    status = brg_sched_check_stream(sched, stream, "brg_step");
    if (status != BRG_OK)
        return status;
    if (!sched->synced)
        return brg_fail(
            BRG_ERR_STATE,
            "brg_step: gradients are not synchronised; call brg_finish_grad_sync() first, and "
            "brg_step() once after it");
    status = brg_sched_follow_grads(sched, stream);
    if (status == BRG_OK)
        sched->synced = false;
    return status;
}

brg_status brg_sched_end_step(brg_scheduler *sched, brg_stream stream)
{
    BRG_ON_DEVICE(sched->ctx);
    return brg_sched_mark_grads(sched, stream);
}
