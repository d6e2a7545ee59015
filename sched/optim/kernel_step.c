/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer step on a device with a kernel table. Nothing of it comes to the host:
 *
 *     norm stream:  after each group's reduction, sums of squares of its buckets (256 partial sums
 *                   each), while other groups are still being reduced; those of the last group on
 *                   comm_stream itself, where they need not be waited for
 *     comm_stream:  all partial sums -> one sum -> sum over ranks -> norm, clip factor, skip or
 *                   not, step counts (prepare_step)
 *     the caller's: one wait; for each child: update of all its ranges, gather of its groups
 *
 * Partial sums, the order in which they are added and so the norm are the same in every run.
 * Learning rates travel by value with prepare_step, those of a captured step in device memory.
 */
#include "sched/optim/optimizer_impl.h"

static brg_status rt_status(const brg_optimizer *optimizer, int error, const char *what)
{
    return brg_rt_status(optimizer->device, error, what);
}

/* Sums of squares */

static brg_status sum_range(brg_optimizer *optimizer, int r, brg_stream stream)
{
    const brg_update_range *update = &optimizer->updates[r];
    return rt_status(optimizer,
                     optimizer->device->kernels->sum_squares(
                         update->grad, (int)optimizer->ranges[r].grad_dtype, update->numel,
                         optimizer->kernel.partials + (size_t)r * BRG_NORM_PARTIALS, stream),
                     "sum_squares");
}

/* comm_stream waits for the norm stream. issue_lock held. */
static brg_status join_sums_locked(brg_optimizer *optimizer, brg_stream comm_stream)
{
    brg_kernel_state *k = &optimizer->kernel;
    const brg_runtime *rt = optimizer->device->rt;
    brg_status status = BRG_OK;
    if (!k->sums_pending)
        return BRG_OK;
    BRG_TRY(rt_status(optimizer, rt->event_record(k->summed, k->norm_stream), "event_record"), out);
    BRG_TRY(
        rt_status(optimizer, rt->stream_wait_event(comm_stream, k->summed), "stream_wait_event"),
        out);
    k->sums_pending = false;
out:
    return status;
}

brg_status brg_kernel_join_sums(brg_optimizer *optimizer, brg_stream stream)
{
    brg_sched_lock(optimizer->sched);
    brg_status status = join_sums_locked(optimizer, stream);
    brg_sched_unlock(optimizer->sched);
    return status;
}

static brg_status group_reduced(void *arg, int group, const brg_reduced *reduced)
{
    brg_optimizer *optimizer = arg;
    brg_kernel_state *k = &optimizer->kernel;
    brg_stream stream = reduced->last ? reduced->comm_stream : k->norm_stream;
    bool ordered = reduced->last;
    brg_status status = BRG_OK;
    for (int r = 0; r < optimizer->num_ranges; r++) {
        if (optimizer->ranges[r].group != group)
            continue;
        if (!ordered)
            BRG_TRY(rt_status(optimizer,
                              optimizer->device->rt->stream_wait_event(stream, reduced->done),
                              "stream_wait_event"),
                    out);
        ordered = true;
        BRG_TRY(sum_range(optimizer, r, stream), out);
        optimizer->ranges[r].summed = true;
        k->sums_pending |= !reduced->last;
        k->sums_outstanding = true;
    }
out:
    return status;
}

/* Sums that no step has taken, of gradients that go without one, read them before they go. */
static brg_status grads_overwritten(void *arg, brg_stream stream)
{
    brg_optimizer *optimizer = arg;
    brg_kernel_state *k = &optimizer->kernel;
    const brg_runtime *rt = optimizer->device->rt;
    brg_status status = BRG_OK;
    brg_stream comm_stream = brg_sched_lock(optimizer->sched);
    bool outstanding = k->sums_outstanding;
    if (outstanding) {
        BRG_TRY(join_sums_locked(optimizer, comm_stream), unlock);
        BRG_TRY(rt_status(optimizer, rt->event_record(k->summed, comm_stream), "event_record"),
                unlock);
        for (int r = 0; r < optimizer->num_ranges; r++)
            optimizer->ranges[r].summed = false;
        k->sums_outstanding = false;
    }
unlock:
    brg_sched_unlock(optimizer->sched);
    if (outstanding && status == BRG_OK) /* not under the lock: it may block */
        status =
            rt_status(optimizer, rt->stream_wait_event(stream, k->summed), "stream_wait_event");
    return status;
}

const brg_grad_hooks brg_kernel_grad_hooks = {group_reduced, grads_overwritten};

/* Norm */

/* Ranges have no sum yet if the optimizer was created after their reduction. `stream` follows all
 * reductions. */
static brg_status sum_rest_locked(brg_optimizer *member, brg_stream comm_stream, brg_stream stream)
{
    const brg_runtime *rt = member->device->rt;
    brg_kernel_state *k = &member->kernel;
    bool ordered = false;
    brg_status status = BRG_OK;
    for (int r = 0; r < member->num_ranges; r++) {
        if (!member->ranges[r].summed && !ordered) {
            BRG_TRY(rt_status(member, rt->event_record(k->summed, stream), "event_record"), out);
            BRG_TRY(rt_status(member, rt->stream_wait_event(comm_stream, k->summed),
                              "stream_wait_event"),
                    out);
            ordered = true;
        }
        if (!member->ranges[r].summed)
            BRG_TRY(sum_range(member, r, comm_stream), out);
        member->ranges[r].summed = false;
    }
    k->sums_outstanding = false;
out:
    return status;
}

static brg_status add_runs(brg_optimizer *root, int first, int count, double *sum,
                           brg_stream comm_stream)
{
    return rt_status(
        root,
        root->device->kernels->sum_partials(root->kernel.runs + first, count, sum, comm_stream),
        "sum_partials");
}

/* All partial sums to the sum over all ranks, in step->sum_squares. */
static brg_status add_all_runs(brg_optimizer *root, brg_stream comm_stream)
{
    brg_kernel_state *k = &root->kernel;
    double *sum = &k->step->sum_squares, *experts = k->apart + BRG_NORM_PARTIALS;
    int dense = k->num_runs - k->num_expert_runs;
    brg_status status;
    if (!brg_sched_sums_experts_apart(root->sched)) {
        BRG_TRY(add_runs(root, 0, k->num_runs, sum, comm_stream), out);
        return brg_sched_sum_over_ranks(root->sched, sum, 1, comm_stream);
    }
    BRG_TRY(add_runs(root, 0, dense, k->apart, comm_stream), out);
    BRG_TRY(add_runs(root, dense, k->num_expert_runs, experts, comm_stream), out);
    BRG_TRY(brg_sched_sum_over_ranks(root->sched, k->apart, 1, comm_stream), out);
    BRG_TRY(brg_sched_sum_experts_over_ranks(root->sched, experts, 1, comm_stream), out);
    BRG_TRY(add_runs(root, k->num_runs, 2, sum, comm_stream), out);
out:
    return status;
}

static brg_status prepare(brg_optimizer *root, bool captured, brg_stream comm_stream)
{
    const brg_kernel_state *k = &root->kernel;
    brg_prepare_args args = {.state = k->step,
                             .grad_factor = root->grad_scale,
                             .max_grad_norm = root->max_grad_norm,
                             .apply_non_finite = root->apply_non_finite,
                             .num_children = brg_optim_num_members(root),
                             .host_state = k->host_step,
                             .host_steps = k->host_steps};
    for (int i = 0; i < args.num_children; i++) {
        const brg_optimizer *member = brg_optim_member(root, i);
        args.children[i].hyper = member->kernel.hyper;
        args.children[i].lr_memory = captured ? member->kernel.lr : NULL;
        args.children[i].lr = member->lr;
        args.children[i].weight_decay = member->weight_decay;
        args.children[i].beta1 = member->beta1;
        args.children[i].beta2 = member->beta2;
    }
    return rt_status(root, root->device->kernels->prepare_step(&args, comm_stream), "prepare_step");
}

/* The values that this step is about to overwrite are read by the last one's updates, on whatever
 * stream. A first step follows all members: they may have been stepped on their own. */
static brg_status follow_last_step(brg_optimizer *root, brg_stream comm_stream)
{
    brg_status status = brg_optim_follow(root, comm_stream);
    for (int i = 0; !root->stepped && status == BRG_OK && i < brg_optim_num_members(root); i++)
        status = brg_optim_follow(brg_optim_member(root, i), comm_stream);
    return status;
}

/* comm_stream waits for what the sums need. */
static brg_status gather_sums(brg_optimizer *root, brg_stream stream, brg_stream *comm_stream)
{
    brg_status status;
    *comm_stream = brg_sched_lock(root->sched);
    BRG_TRY(follow_last_step(root, *comm_stream), unlock);
    BRG_TRY(brg_context_mark_begin(root->ctx, BRG_REC_NORM, 0, "norm", *comm_stream), unlock);
    for (int i = 0; i < brg_optim_num_members(root); i++) {
        brg_optimizer *member = brg_optim_member(root, i);
        BRG_TRY(join_sums_locked(member, *comm_stream), unlock);
        BRG_TRY(sum_rest_locked(member, *comm_stream, stream), unlock);
    }
unlock:
    brg_sched_unlock(root->sched);
    return status;
}

static brg_status enqueue_norm(brg_optimizer *root, bool captured, brg_stream stream)
{
    const brg_runtime *rt = root->device->rt;
    void *prepared = root->kernel.prepared;
    brg_stream comm_stream = NULL;
    brg_status status;
    BRG_TRY(gather_sums(root, stream, &comm_stream), out);
    BRG_TRY(add_all_runs(root, comm_stream), out);
    BRG_TRY(prepare(root, captured, comm_stream), out);
    BRG_TRY(brg_context_mark_end(root->ctx, comm_stream), out);
    BRG_TRY(rt_status(root, rt->event_record(prepared, comm_stream), "event_record"), out);
    BRG_TRY(rt_status(root, rt->stream_wait_event(stream, prepared), "stream_wait_event"), out);
out:
    return status;
}

/* Updates */

brg_status brg_kernel_take_masters(brg_optimizer *member, brg_stream stream)
{
    const brg_device *device = member->device;
    brg_status status = BRG_OK;
    for (int r = 0; r < member->num_ranges && status == BRG_OK; r++) {
        const brg_update_range *update = &member->updates[r];
        if (update->low)
            status =
                rt_status(member,
                          device->rt->memset_async(
                              update->low, 0, (size_t)update->numel * sizeof *update->low, stream),
                          "memset_async");
        else if (update->master != update->param)
            status = rt_status(member,
                               device->kernels->convert(update->master, BRG_FLOAT32, update->param,
                                                        (int)member->ranges[r].param_dtype,
                                                        update->numel, stream),
                               "convert");
    }
    member->masters_taken |= status == BRG_OK;
    return status;
}

brg_status brg_kernel_step_check(brg_optimizer *root, brg_stream stream, bool *captured)
{
    *captured = brg_optim_capturing(root, stream);
    for (int i = 0; *captured && i < brg_optim_num_members(root); i++) {
        const brg_optimizer *member = brg_optim_member(root, i);
        if (!member->masters_taken)
            return brg_fail(BRG_ERR_STATE,
                            "brg_step: the first step of the %s optimizer cannot be captured",
                            member->class->name);
    }
    return BRG_OK;
}

brg_status brg_kernel_step_prepare(brg_optimizer *root)
{
    brg_status status = BRG_OK;
    for (int i = 0; i < brg_optim_num_members(root); i++) {
        brg_optimizer *member = brg_optim_member(root, i);
        if (member->class->prepare)
            BRG_TRY(member->class->prepare(member), out);
    }
out:
    return status;
}

brg_status brg_kernel_step_enqueue(brg_optimizer *root, brg_stream stream)
{
    brg_status status;
    BRG_TRY(enqueue_norm(root, brg_optim_capturing(root, stream), stream), out);
    for (int i = 0; i < brg_optim_num_members(root); i++) {
        brg_optimizer *member = brg_optim_member(root, i);
        BRG_TRY(brg_optim_begin_update(member, stream), out);
        if (!member->masters_taken)
            BRG_TRY(brg_kernel_take_masters(member, stream), out);
        BRG_TRY(member->class->launch(member, root->kernel.step, stream), out);
        BRG_TRY(brg_optim_end_update(member, stream), out);
    }
out:
    return status;
}

int64_t brg_kernel_num_steps(brg_optimizer *root, const brg_optimizer *member)
{
    int i = 0;
    while (brg_optim_member(root, i) != member)
        i++;
    return root->kernel.host_steps[i];
}

brg_status brg_optim_refresh_lr(brg_optimizer *optimizer, brg_stream stream)
{
    BRG_ON_DEVICE(optimizer->ctx);
    brg_status status = BRG_OK;
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        brg_optimizer *member = brg_optim_member(optimizer, i);
        brg_kernel_state *k = &member->kernel;
        if (k->stored_lr == member->lr)
            continue;
        BRG_TRY(rt_status(member, member->device->kernels->store_double(k->lr, member->lr, stream),
                          "store_double"),
                out);
        k->stored_lr = member->lr;
    }
out:
    return status;
}
