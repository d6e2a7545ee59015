/* SPDX-License-Identifier: Apache-2.0 */
/* brg_step() and what else callers do with an optimizer; how a step is put on streams depends on
 * the device: host_step.c, kernel_step.c. */
#include <math.h>
#include <stdio.h>

#include "sched/optim/optimizer_impl.h"

brg_status brg_optim_begin_update(brg_optimizer *member, brg_stream stream)
{
    return brg_context_mark_begin(member->ctx, BRG_REC_OPTIMIZER, 0, member->class->name, stream);
}

brg_status brg_optim_end_update(brg_optimizer *member, brg_stream stream)
{
    brg_status status;
    BRG_TRY(brg_context_mark_end(member->ctx, stream), out);
    BRG_TRY(brg_optim_record(member, stream), out);
    BRG_TRY(start_param_sync_for_bucket_group_subset(member, stream), out);
out:
    return status;
}

/* What an earlier call has put on another stream, for any member (a reload, a step before it joined
 * the chain), comes first. */
static brg_status follow_all(brg_optimizer *root, brg_stream stream)
{
    brg_status status;
    BRG_TRY(brg_optim_follow(root, stream), out);
    for (int i = 0; i < brg_optim_num_members(root); i++)
        BRG_TRY(brg_optim_follow(brg_optim_member(root, i), stream), out);
out:
    return status;
}

static brg_status check_usable(const brg_optimizer *optimizer, const char *call)
{
    if (!optimizer)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: optimizer is NULL", call);
    for (int i = 0; i < optimizer->num_children; i++)
        if (!optimizer->children[i])
            return brg_fail(BRG_ERR_STATE, "%s: child %d of the chain has been destroyed", call, i);
    return BRG_OK;
}

/* The other ranks are waiting, or will be, for what this one does not do: aborted, their context
 * ends too. The last error stays. */
static brg_status give_up(brg_optimizer *root, brg_status status)
{
    char text[512];
    snprintf(text, sizeof text, "%s", brg_last_error());
    brg_context_fail(root->ctx, status, "brg_step: %s", text);
    brg_context_abort(root->ctx);
    return brg_fail(status, "%s", text);
}

/* What may fail without harm, on all ranks alike, comes before anything is put on a stream. That an
 * optimizer cannot be prepared may be one rank's alone. */
static brg_status begin(brg_optimizer *root, brg_step_job **job, brg_stream stream)
{
    brg_status status;
    if (root->device->kernels) {
        bool captured;
        BRG_TRY(brg_kernel_step_check(root, stream, &captured), out);
        status = captured ? BRG_OK : brg_kernel_step_prepare(root);
        if (status != BRG_OK)
            return give_up(root, status);
        BRG_TRY(brg_sched_begin_step(root->sched, stream), out);
        return BRG_OK;
    }
    BRG_TRY(brg_host_step_begin(root, job), out);
    status = brg_sched_begin_step(root->sched, stream);
    if (status != BRG_OK)
        brg_host_step_cancel(*job);
out:
    return status;
}

brg_status brg_step(brg_optimizer *optimizer, brg_stream stream)
{
    brg_step_job *job = NULL;
    brg_status status = check_usable(optimizer, "brg_step");
    if (status != BRG_OK)
        return status;
    if (optimizer->chain)
        return brg_fail(BRG_ERR_STATE, "brg_step: the %s optimizer is in a chain; step the chain",
                        optimizer->class->name);
    BRG_ON_DEVICE(optimizer->ctx);
    status = begin(optimizer, &job, stream);
    if (status != BRG_OK)
        return status;
    BRG_TRY(follow_all(optimizer, stream), fail);
    if (job)
        BRG_TRY(brg_host_step_enqueue(job, stream), fail);
    else
        BRG_TRY(brg_kernel_step_enqueue(optimizer, stream), fail);
    BRG_TRY(brg_optim_record(optimizer, stream), fail);
    BRG_TRY(brg_sched_end_step(optimizer->sched, stream), fail);
    optimizer->stepped = true;
    return BRG_OK;
fail: /* a step that is half on the stream cannot be taken back */
    optimizer->broken = true;
    return give_up(optimizer, status);
}

brg_status start_param_sync_for_bucket_group_subset(brg_optimizer *optimizer, brg_stream stream)
{
    brg_status status = check_usable(optimizer, "start_param_sync_for_bucket_group_subset");
    if (status != BRG_OK)
        return status;
    for (int i = 0; i < brg_optim_num_members(optimizer) && status == BRG_OK; i++) {
        const brg_optimizer *member = brg_optim_member(optimizer, i);
        status =
            brg_sched_start_param_sync(member->sched, member->groups, member->num_groups, stream);
    }
    return status;
}

brg_status brg_optimizer_set_lr(brg_optimizer *optimizer, double lr)
{
    brg_status status = check_usable(optimizer, "brg_optimizer_set_lr");
    if (status != BRG_OK)
        return status;
    if (optimizer->children)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_optimizer_set_lr: a chain has no learning rate; set its children's");
    if (!(lr >= 0) || isinf(lr))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_optimizer_set_lr: %g, expected a finite value of at least 0", lr);
    optimizer->lr = lr;
    return BRG_OK;
}

/* Waits for the last step of the optimizer or, for a chain's child, of the chain. */
static brg_status wait_for_root(brg_optimizer *optimizer, const char *call, brg_optimizer **root)
{
    brg_status status = check_usable(optimizer, call);
    if (status != BRG_OK)
        return status;
    BRG_TRY(brg_sched_refuse_in_capture(optimizer->sched, call), out);
    *root = optimizer->chain ? optimizer->chain : optimizer;
    BRG_TRY(brg_optim_wait(*root), out);
    BRG_TRY(brg_context_status(optimizer->ctx), out);
out:
    return status;
}

brg_status brg_grad_norm(brg_optimizer *optimizer, double *norm)
{
    brg_optimizer *root = NULL;
    if (!norm)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_grad_norm: no place for the norm");
    brg_status status = wait_for_root(optimizer, "brg_grad_norm", &root);
    if (status != BRG_OK)
        return status;
    if (!root->stepped)
        return brg_fail(BRG_ERR_STATE, "brg_grad_norm: there has been no brg_step() yet");
    *norm = root->device->kernels ? root->kernel.host_step->norm : root->norm;
    return BRG_OK;
}

brg_status brg_skipped_steps(brg_optimizer *optimizer, int64_t *steps)
{
    brg_optimizer *root = NULL;
    if (!steps)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_skipped_steps: no place for the number");
    brg_status status = wait_for_root(optimizer, "brg_skipped_steps", &root);
    if (status == BRG_OK)
        *steps = root->device->kernels ? root->kernel.host_step->skipped : root->skipped;
    return status;
}

brg_status brg_param_step_count(brg_optimizer *optimizer, int param, int64_t *steps)
{
    brg_optimizer *root = NULL;
    if (!steps)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_param_step_count: no place for the number");
    brg_status status = wait_for_root(optimizer, "brg_param_step_count", &root);
    if (status != BRG_OK)
        return status;
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        brg_optimizer *member = brg_optim_member(optimizer, i);
        for (int s = 0; s < member->num_slots; s++)
            if (member->slots[s].param == param) {
                *steps = root->device->kernels ? brg_kernel_num_steps(root, member)
                                               : member->slots[s].steps;
                return BRG_OK;
            }
    }
    return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                    "brg_param_step_count: no part of parameter %d is in this rank's shards of the "
                    "optimizer",
                    param);
}

brg_status brg_optimizer_reload_params(brg_optimizer *optimizer, brg_stream stream)
{
    brg_status status = check_usable(optimizer, "brg_optimizer_reload_params");
    if (status != BRG_OK)
        return status;
    BRG_ON_DEVICE(optimizer->ctx);
    /* Current are the parameters once the gathers of the last step have written them. */
    BRG_TRY(brg_finish_param_sync(optimizer->sched, stream), out);
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        brg_optimizer *member = brg_optim_member(optimizer, i);
        BRG_TRY(brg_optim_follow(member, stream), out);
        if (member->device->kernels)
            BRG_TRY(brg_kernel_take_masters(member, stream), out);
        else
            BRG_TRY(brg_host_reload(member, stream), out);
        BRG_TRY(brg_optim_record(member, stream), out);
    }
out:
    return status;
}
