/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer step, all of it put on the stream without waiting:
 *
 *     sum of squares of this rank's gradients -> sum over ranks -> norm, clip factor, skip or not
 *     for each child: update -> gather of its bucket groups
 *
 * Every step has a job that holds what its host functions share: the values captured when
 * brg_step() was called and the clip factor computed on the way. So steps may be put on the stream
 * faster than they run. The last host function gives the job back.
 */
#include <math.h>
#include <stdlib.h>

#include "sched/optim/optimizer_impl.h"

typedef struct child_update {
    brg_step_job *job;
    brg_optimizer *optimizer;
    double lr; /* when brg_step() was called */
} child_update;

struct brg_step_job {
    brg_step_job *next;
    brg_optimizer *root;
    double sums[2]; /* of squares: all of them, or those of experts apart in [1] */
    double clip;
    bool apply;
    int num_updates;
    child_update updates[];
};

static brg_step_job *acquire_job(brg_optimizer *root)
{
    pthread_mutex_lock(&root->jobs_lock);
    brg_step_job *job = root->free_jobs;
    if (job)
        root->free_jobs = job->next;
    pthread_mutex_unlock(&root->jobs_lock);
    int members = brg_optim_num_members(root);
    if (!job)
        job = calloc(1, sizeof *job + (size_t)members * sizeof job->updates[0]);
    if (!job)
        return NULL;
    job->root = root;
    job->num_updates = members;
    for (int i = 0; i < members; i++) {
        brg_optimizer *optimizer = brg_optim_member(root, i);
        job->updates[i] = (child_update){job, optimizer, optimizer->lr};
    }
    return job;
}

static void release_job(void *arg)
{
    brg_step_job *job = arg;
    brg_optimizer *root = job->root;
    pthread_mutex_lock(&root->jobs_lock);
    job->next = root->free_jobs;
    root->free_jobs = job;
    pthread_mutex_unlock(&root->jobs_lock);
}

void brg_optim_free_jobs(brg_optimizer *optimizer)
{
    while (optimizer->free_jobs) {
        brg_step_job *job = optimizer->free_jobs;
        optimizer->free_jobs = job->next;
        free(job);
    }
}

/* Host functions: run on the stream, in this order. */

static bool is_expert(const brg_scheduler *sched, int param)
{
    return brg_layout_param_info(brg_sched_layout(sched), param)->flags & BRG_PARAM_EXPERT_PARALLEL;
}

static void sum_squares(void *arg)
{
    brg_step_job *job = arg;
    const brg_scheduler *sched = job->root->sched;
    bool apart = brg_sched_sums_experts_apart(sched);
    job->sums[0] = job->sums[1] = 0;
    for (int i = 0; i < job->num_updates; i++) {
        const brg_optimizer *optimizer = job->updates[i].optimizer;
        for (int s = 0; s < optimizer->num_slots; s++) {
            const brg_update_target *target = &optimizer->slots[s].target;
            job->sums[apart && is_expert(sched, optimizer->slots[s].param)] +=
                brg_sum_of_squares_host(target->grad, target->grad_dtype, target->numel);
        }
    }
}

static void choose_clip(void *arg)
{
    brg_step_job *job = arg;
    brg_optimizer *root = job->root;
    double norm = sqrt(job->sums[0] + job->sums[1]);
    job->apply = isfinite(norm) || root->apply_non_finite;
    job->clip = 1.0;
    if (root->max_grad_norm > 0) {
        double clip = root->max_grad_norm / (norm + 1e-6);
        if (clip < 1.0)
            job->clip = clip;
    }
    root->norm = norm;
    if (!job->apply)
        root->skipped++;
}

static void run_update(void *arg)
{
    const child_update *update = arg;
    brg_optimizer *optimizer = update->optimizer;
    if (!update->job->apply)
        return;
    if (!optimizer->masters_taken)
        brg_optim_take_masters(optimizer);
    optimizer->class->update(optimizer, update->lr, update->job->clip);
}

static void run_reload(void *arg)
{
    brg_optim_take_masters(arg);
}

static brg_status launch(brg_optimizer *optimizer, brg_stream stream, void (*fn)(void *), void *arg)
{
    return brg_rt_status(optimizer->device,
                         optimizer->device->rt->launch_host_func(stream, fn, arg),
                         "optimizer: launch_host_func");
}

static brg_status enqueue_norm(brg_optimizer *root, brg_step_job *job, brg_stream stream)
{
    brg_status status;
    BRG_TRY(brg_context_mark_begin(root->ctx, BRG_REC_NORM, 0, "norm", stream), out);
    BRG_TRY(launch(root, stream, sum_squares, job), out);
    BRG_TRY(brg_sched_sum_over_ranks(root->sched, &job->sums[0], 1, stream), out);
    if (brg_sched_sums_experts_apart(root->sched))
        BRG_TRY(brg_sched_sum_experts_over_ranks(root->sched, &job->sums[1], 1, stream), out);
    BRG_TRY(launch(root, stream, choose_clip, job), out);
    BRG_TRY(brg_context_mark_end(root->ctx, stream), out);
out:
    return status;
}

static brg_status enqueue_update(child_update *update, brg_stream stream)
{
    brg_status status;
    brg_optimizer *optimizer = update->optimizer;
    brg_context *ctx = optimizer->ctx;
    BRG_TRY(brg_context_mark_begin(ctx, BRG_REC_OPTIMIZER, 0, optimizer->class->name, stream), out);
    BRG_TRY(launch(optimizer, stream, run_update, update), out);
    BRG_TRY(brg_context_mark_end(ctx, stream), out);
    BRG_TRY(brg_optim_record(optimizer, stream), out);
    BRG_TRY(start_param_sync_for_bucket_group_subset(optimizer, stream), out);
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

/* A step that is half on the stream cannot be taken back, and the other ranks may be waiting for
 * its other half: the context ends. */
static brg_status give_up(brg_optimizer *root, brg_status status)
{
    root->broken = true;
    return brg_context_fail(root->ctx, status, "brg_step: %s", brg_last_error());
}

brg_status brg_step(brg_optimizer *optimizer, brg_stream stream)
{
    brg_status status = check_usable(optimizer, "brg_step");
    if (status != BRG_OK)
        return status;
    if (optimizer->chain)
        return brg_fail(BRG_ERR_STATE, "brg_step: the %s optimizer is in a chain; step the chain",
                        optimizer->class->name);
    brg_step_job *job = acquire_job(optimizer);
    if (!job)
        return brg_fail(BRG_ERR_NO_MEMORY, "brg_step: no memory");
    status = brg_sched_begin_step(optimizer->sched, stream);
    if (status != BRG_OK) {
        release_job(job);
        return status;
    }
    int num_updates = job->num_updates;
    BRG_TRY(follow_all(optimizer, stream), fail);
    BRG_TRY(enqueue_norm(optimizer, job, stream), fail);
    for (int i = 0; i < num_updates; i++)
        BRG_TRY(enqueue_update(&job->updates[i], stream), fail);
    BRG_TRY(launch(optimizer, stream, release_job, job), fail); /* job is not ours any more */
    BRG_TRY(brg_optim_record(optimizer, stream), fail);
    BRG_TRY(brg_sched_end_step(optimizer->sched, stream), fail);
    optimizer->stepped = true;
    return BRG_OK;
fail:
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
    *norm = root->norm;
    return BRG_OK;
}

brg_status brg_skipped_steps(brg_optimizer *optimizer, int64_t *steps)
{
    brg_optimizer *root = NULL;
    if (!steps)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_skipped_steps: no place for the number");
    brg_status status = wait_for_root(optimizer, "brg_skipped_steps", &root);
    if (status == BRG_OK)
        *steps = root->skipped;
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
        const brg_optimizer *member = brg_optim_member(optimizer, i);
        for (int s = 0; s < member->num_slots; s++)
            if (member->slots[s].param == param) {
                *steps = member->slots[s].steps;
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
    /* Current are the parameters once the gathers of the last step have written them. */
    BRG_TRY(brg_finish_param_sync(optimizer->sched, stream), out);
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        brg_optimizer *member = brg_optim_member(optimizer, i);
        BRG_TRY(brg_optim_follow(member, stream), out);
        BRG_TRY(launch(member, stream, run_reload, member), out);
        BRG_TRY(brg_optim_record(member, stream), out);
    }
out:
    return status;
}
