/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer step on a device without a kernel table, by host functions:
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
    double sums[2];    /* of squares: all of them, or those of experts apart in [1] */
    double grad_scale; /* what updates multiply gradients with */
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

void brg_host_free_jobs(brg_optimizer *optimizer)
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
    double norm = sqrt(job->sums[0] + job->sums[1]) * root->grad_scale;
    job->apply = isfinite(norm) || root->apply_non_finite;
    job->grad_scale = root->grad_scale;
    if (root->max_grad_norm > 0) {
        double clip = root->max_grad_norm / (norm + 1e-6);
        if (clip < 1.0)
            job->grad_scale *= clip;
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
    optimizer->class->update(optimizer, update->lr, update->job->grad_scale);
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

brg_status brg_host_step_begin(brg_optimizer *root, brg_step_job **job)
{
    *job = acquire_job(root);
    return *job ? BRG_OK : brg_fail(BRG_ERR_NO_MEMORY, "brg_step: no memory");
}

void brg_host_step_cancel(brg_step_job *job)
{
    release_job(job);
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

brg_status brg_host_step_enqueue(brg_step_job *job, brg_stream stream)
{
    brg_status status;
    brg_optimizer *root = job->root;
    BRG_TRY(enqueue_norm(root, job, stream), out);
    for (int i = 0; i < job->num_updates; i++) {
        brg_optimizer *member = job->updates[i].optimizer;
        BRG_TRY(brg_optim_begin_update(member, stream), out);
        BRG_TRY(launch(member, stream, run_update, &job->updates[i]), out);
        BRG_TRY(brg_optim_end_update(member, stream), out);
    }
    BRG_TRY(launch(root, stream, release_job, job), out);
out:
    return status;
}

brg_status brg_host_reload(brg_optimizer *member, brg_stream stream)
{
    return launch(member, stream, run_reload, member);
}
