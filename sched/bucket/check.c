/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a group's gradients just before they are reduced: separate main gradients are
 * copied in, and on request every element is looked at. Both run on the group's communication
 * stream, as host functions where the device has no kernels. */
#include <math.h>

#include "sched/bucket/scheduler.h"
#include "sched/half.h"

static double load(const void *base, brg_dtype dtype, size_t index)
{
    switch (dtype) {
    case BRG_FLOAT64:
        return ((const double *)base)[index];
    case BRG_FLOAT16:
        return brg_float_from_fp16(((const uint16_t *)base)[index]);
    case BRG_BFLOAT16:
        return brg_float_from_bf16(((const uint16_t *)base)[index]);
    default:
        return ((const float *)base)[index];
    }
}

static void store(void *base, brg_dtype dtype, size_t index, double value)
{
    switch (dtype) {
    case BRG_FLOAT64:
        ((double *)base)[index] = value;
        break;
    case BRG_FLOAT16:
        ((uint16_t *)base)[index] = brg_fp16_from_float((float)value);
        break;
    case BRG_BFLOAT16:
        ((uint16_t *)base)[index] = brg_bf16_from_float((float)value);
        break;
    default:
        ((float *)base)[index] = (float)value;
        break;
    }
}

static size_t param_elems(const brg_scheduler *sched, int param)
{
    return (size_t)brg_param_numel(brg_layout_param_info(sched->layout, param));
}

static brg_dtype grad_dtype(const brg_group *group)
{
    return group->sched->buckets[group->first_bucket].view.grad_dtype;
}

static void convert_in(void *arg)
{
    const brg_param_state *state = arg;
    size_t count = param_elems(state->sched, state->id);
    brg_dtype to = grad_dtype(&state->sched->groups[state->group]);
    for (size_t j = 0; j < count; j++)
        store(state->grad, to, j, load(state->main_grad, state->main_dtype, j));
}

static brg_status copy_in(brg_scheduler *sched, const brg_group *group, brg_param_state *state)
{
    brg_context *ctx = group->ctx;
    const brg_kernels *kernels = ctx->device.kernels;
    size_t count = param_elems(sched, state->id);
    brg_dtype to = grad_dtype(group);
    if (state->main_dtype == to)
        return brg_context_rt(
            ctx,
            ctx->device.rt->memcpy_async(state->grad, state->main_grad, count * brg_dtype_bytes(to),
                                         BRG_COPY_DEVICE_TO_DEVICE, ctx->comm_stream),
            "memcpy_async");
    if (kernels)
        return brg_context_rt(ctx,
                              kernels->convert(state->grad, (int)to, state->main_grad,
                                               (int)state->main_dtype, (int64_t)count,
                                               ctx->comm_stream),
                              "convert");
    return brg_context_rt(ctx,
                          ctx->device.rt->launch_host_func(ctx->comm_stream, convert_in, state),
                          "launch_host_func");
}

brg_status brg_sched_zero_unused_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = group->ctx;
    size_t elem = brg_dtype_bytes(grad_dtype(group));
    brg_status status = BRG_OK;
    for (int i = 0; i < group->num_params; i++) {
        const brg_param_state *state = &sched->params[group->params[i]];
        if (!atomic_load(&state->touched))
            BRG_TRY(brg_context_rt(
                        ctx,
                        ctx->device.rt->memset_async(
                            state->grad, 0, param_elems(sched, state->id) * elem, ctx->comm_stream),
                        "memset_async"),
                    out);
    }
out:
    return status;
}

/* Only what was contributed in this step: an unused parameter's zeros stay, whatever an earlier
 * step has left in its main gradient. One call for each, because the next step may begin before it
 * runs. */
brg_status brg_sched_copy_in_locked(brg_scheduler *sched, brg_group *group)
{
    brg_status status = BRG_OK;
    for (int i = 0; i < group->num_params; i++) {
        brg_param_state *state = &sched->params[group->params[i]];
        if (state->main_grad && atomic_load(&state->touched))
            BRG_TRY(copy_in(sched, group, state), out);
    }
out:
    return status;
}

static void scan(void *arg)
{
    const brg_group *group = arg;
    const brg_scheduler *sched = group->sched;
    for (int i = 0; i < group->num_params; i++) {
        const brg_param_state *state = &sched->params[group->params[i]];
        size_t count = param_elems(sched, state->id);
        brg_grad_check check = {.first = -1};
        for (size_t j = 0; j < count; j++) {
            double value = load(state->grad, grad_dtype(group), j);
            if (!isfinite(value) && check.first < 0)
                check.first = (int64_t)j;
            check.sum_squares += value * value;
        }
        sched->checks[state->id] = check;
    }
}

brg_status brg_sched_check_grads_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = group->ctx;
    const brg_kernels *kernels = ctx->device.kernels;
    brg_status status = BRG_OK;
    if (!kernels)
        return brg_context_rt(ctx, ctx->device.rt->launch_host_func(ctx->comm_stream, scan, group),
                              "launch_host_func");
    for (int i = 0; i < group->num_params; i++) {
        int param = group->params[i];
        brg_grad_check *check = &sched->checks[param];
        BRG_TRY(brg_context_rt(
                    ctx,
                    kernels->check_values(
                        sched->params[param].grad, (int)grad_dtype(group),
                        (int64_t)param_elems(sched, param), &check->first, &check->sum_squares,
                        sched->check_partials + (size_t)2 * BRG_NORM_PARTIALS * (size_t)group->id,
                        ctx->comm_stream),
                    "check_values"),
                out);
    }
out:
    return status;
}

static brg_status bad_norm(const brg_scheduler *sched, int bucket, double norm, int param)
{
    return brg_fail(BRG_ERR_NON_FINITE,
                    "rank %d: the gradient norm of bucket %d is %g in step %llu, more than %g; the "
                    "largest part is parameter \"%s\"",
                    sched->ctx->rank, bucket, norm, (unsigned long long)sched->step,
                    sched->options.large_grad_norm, brg_sched_param_name(sched, param));
}

static brg_status bad_value(const brg_scheduler *sched, int param)
{
    return brg_fail(BRG_ERR_NON_FINITE,
                    "rank %d: %s in the gradient of parameter \"%s\" (bucket %d) in step %llu, "
                    "before its reduction",
                    sched->ctx->rank, isnan(sched->checks[param].sum_squares) ? "NaN" : "Inf",
                    brg_sched_param_name(sched, param), sched->params[param].bucket,
                    (unsigned long long)sched->step);
}

static brg_status check_bucket(const brg_scheduler *sched, const brg_group *group, int bucket)
{
    double limit = sched->options.large_grad_norm, sum = 0, most = -1;
    int largest = -1;
    for (int i = 0; i < group->num_params; i++) {
        int param = group->params[i];
        const brg_grad_check *check = &sched->checks[param];
        if (sched->params[param].bucket != bucket)
            continue;
        if (check->first >= 0)
            return bad_value(sched, param);
        sum += check->sum_squares;
        if (check->sum_squares > most) {
            most = check->sum_squares;
            largest = param;
        }
    }
    return limit > 0 && sqrt(sum) > limit ? bad_norm(sched, bucket, sqrt(sum), largest) : BRG_OK;
}

brg_status brg_sched_check_result(brg_scheduler *sched)
{
    brg_status status = BRG_OK;
    for (int i = 0; i < sched->num_groups; i++) {
        const brg_group *group = &sched->groups[sched->order[i]];
        for (int b = 0; b < group->num_buckets; b++)
            BRG_TRY(check_bucket(sched, group, group->first_bucket + b), out);
    }
out:
    return status;
}
