/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a group's gradients just before they are reduced: separate main gradients are
 * copied in, and on request every element is looked at. Both run as host functions on comm_stream.
 */
#include <math.h>
#include <string.h>

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

static void copy_in(void *arg)
{
    const brg_param_state *state = arg;
    size_t count = param_elems(state->sched, state->id);
    brg_dtype to = grad_dtype(&state->sched->groups[state->group]);
    if (state->main_dtype == to)
        memcpy(state->grad, state->main_grad, count * brg_dtype_bytes(to));
    else
        for (size_t j = 0; j < count; j++)
            store(state->grad, to, j, load(state->main_grad, state->main_dtype, j));
}

brg_status brg_sched_zero_unused_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = sched->ctx;
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
 * step has left in its main gradient. One function for each, because the next step may begin before
 * it runs. */
brg_status brg_sched_copy_in_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = sched->ctx;
    brg_status status = BRG_OK;
    for (int i = 0; i < group->num_params; i++) {
        brg_param_state *state = &sched->params[group->params[i]];
        if (state->main_grad && atomic_load(&state->touched))
            BRG_TRY(brg_context_rt(
                        ctx, ctx->device.rt->launch_host_func(ctx->comm_stream, copy_in, state),
                        "launch_host_func"),
                    out);
    }
out:
    return status;
}

/* Looks through one parameter. Returns its sum of squares; *bad is the first NaN or Inf, if any. */
static double scan(const void *grad, brg_dtype dtype, size_t count, const double **bad,
                   double *where)
{
    double sum = 0;
    for (size_t j = 0; j < count; j++) {
        double value = load(grad, dtype, j);
        if (!isfinite(value) && !*bad) {
            *where = value;
            *bad = where;
        }
        sum += value * value;
    }
    return sum;
}

static void check_grads(void *arg)
{
    brg_group *group = arg;
    brg_scheduler *sched = group->sched;
    brg_dtype dtype = grad_dtype(group);
    double limit = sched->options.large_grad_norm;
    for (int b = 0; b < group->num_buckets; b++) {
        int bucket = group->first_bucket + b, largest = -1;
        double sum = 0, most = -1;
        for (int i = 0; i < group->num_params; i++) {
            const brg_param_state *state = &sched->params[group->params[i]];
            if (state->bucket != bucket)
                continue;
            const double *bad = NULL;
            double value = 0;
            double squares =
                scan(state->grad, dtype, param_elems(sched, group->params[i]), &bad, &value);
            if (bad) {
                group->check = (brg_grad_check){
                    .found_param = group->params[i], .is_norm = false, .value = value};
                return;
            }
            sum += squares;
            if (squares > most) {
                most = squares;
                largest = group->params[i];
            }
        }
        if (limit > 0 && sqrt(sum) > limit) {
            group->check =
                (brg_grad_check){.found_param = largest, .is_norm = true, .value = sqrt(sum)};
            return;
        }
    }
}

brg_status brg_sched_check_grads_locked(brg_scheduler *sched, brg_group *group)
{
    brg_context *ctx = sched->ctx;
    return brg_context_rt(ctx,
                          ctx->device.rt->launch_host_func(ctx->comm_stream, check_grads, group),
                          "launch_host_func");
}

brg_status brg_sched_check_result(brg_scheduler *sched)
{
    for (int i = 0; i < sched->num_groups; i++) {
        const brg_group *group = &sched->groups[sched->order[i]];
        const brg_grad_check *check = &group->check;
        if (check->found_param < 0)
            continue;
        int param = check->found_param, bucket = sched->params[param].bucket;
        const char *name = brg_sched_param_name(sched, param);
        if (check->is_norm)
            return brg_fail(
                BRG_ERR_NON_FINITE,
                "rank %d: the gradient norm of bucket %d is %g in step %llu, more than %g; the "
                "largest part is parameter \"%s\"",
                sched->ctx->rank, bucket, check->value, (unsigned long long)sched->step,
                sched->options.large_grad_norm, name);
        return brg_fail(
            BRG_ERR_NON_FINITE,
            "rank %d: %s in the gradient of parameter \"%s\" (bucket %d) in step %llu, before "
            "its reduction",
            sched->ctx->rank, isnan(check->value) ? "NaN" : "Inf", name, bucket,
            (unsigned long long)sched->step);
    }
    return BRG_OK;
}
