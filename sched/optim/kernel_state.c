/* SPDX-License-Identifier: Apache-2.0 */
/* What an optimizer or a chain needs on a device with a kernel table, all made when it is created:
 * a step allocates nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/optimizer_impl.h"

enum { ALIGN_BYTES = 256 };

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return at;
}

static bool is_apart(const brg_optimizer *optimizer, const brg_optim_range *range)
{
    return range->expert_parallel && brg_sched_sums_experts_apart(optimizer->sched);
}

static void count_runs(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        const brg_optimizer *member = brg_optim_member(optimizer, i);
        k->num_runs += member->num_ranges;
        for (int r = 0; r < member->num_ranges; r++)
            k->num_expert_runs += is_apart(optimizer, &member->ranges[r]);
    }
}

static brg_status place(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    const brg_device *device = optimizer->device;
    size_t used = 0, partial_bytes = BRG_NORM_PARTIALS * sizeof(double);
    size_t step = take(&used, sizeof *k->step), hyper = take(&used, sizeof *k->hyper);
    size_t lr = take(&used, sizeof *k->lr);
    size_t partials = take(&used, (size_t)optimizer->num_ranges * partial_bytes);
    size_t apart = take(&used, 2 * partial_bytes);
    size_t runs = take(&used, ((size_t)k->num_runs + 2) * sizeof *k->runs);
    brg_status status;
    BRG_TRY(brg_rt_status(device, device->rt->malloc_device(&k->memory, used), "malloc_device"),
            out);
    BRG_TRY(
        brg_rt_status(device, device->rt->memset_async(k->memory, 0, used, NULL), "memset_async"),
        out);
    char *memory = k->memory;
    k->step = (brg_step_state *)(memory + step);
    k->hyper = (brg_hyper_state *)(memory + hyper);
    k->lr = (double *)(memory + lr);
    k->partials = (double *)(memory + partials);
    k->apart = (double *)(memory + apart);
    k->runs = (const double **)(memory + runs);

    size_t host_bytes =
        sizeof *k->host_step + (size_t)brg_optim_num_members(optimizer) * sizeof *k->host_steps;
    BRG_TRY(
        brg_rt_status(device, device->rt->malloc_host(&k->host_memory, host_bytes), "malloc_host"),
        out);
    memset(k->host_memory, 0, host_bytes);
    k->host_step = k->host_memory;
    k->host_steps = (int64_t *)(k->host_step + 1);
out:
    return status;
}

/* Tells the device where the members' partial sums are. */
static brg_status write_runs(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    const brg_device *device = optimizer->device;
    const double **runs = calloc((size_t)k->num_runs + 2, sizeof *runs);
    if (!runs)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %d buckets", optimizer->class->name,
                        k->num_runs);
    int dense = 0, expert = k->num_runs - k->num_expert_runs;
    for (int i = 0; i < brg_optim_num_members(optimizer); i++) {
        const brg_optimizer *member = brg_optim_member(optimizer, i);
        for (int r = 0; r < member->num_ranges; r++)
            runs[is_apart(optimizer, &member->ranges[r]) ? expert++ : dense++] =
                member->kernel.partials + (size_t)r * BRG_NORM_PARTIALS;
    }
    runs[k->num_runs] = k->apart;
    runs[k->num_runs + 1] = k->apart + BRG_NORM_PARTIALS;
    brg_status status;
    BRG_TRY(brg_rt_status(device,
                          device->rt->memcpy_async(k->runs, runs,
                                                   ((size_t)k->num_runs + 2) * sizeof *runs,
                                                   BRG_COPY_HOST_TO_DEVICE, NULL),
                          "memcpy_async"),
            out);
    BRG_TRY(brg_rt_status(device, device->rt->stream_synchronize(NULL), "stream_synchronize"), out);
out:
    free(runs);
    return status;
}

static brg_status start_sums(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    const brg_device *device = optimizer->device;
    brg_status status;
    BRG_TRY(brg_rt_status(device,
                          device->rt->stream_create(&k->norm_stream, BRG_STREAM_NON_BLOCKING, 0),
                          "stream_create"),
            out);
    BRG_TRY(brg_rt_status(device, device->rt->event_create(&k->summed, BRG_EVENT_DISABLE_TIMING),
                          "event_create"),
            out);
    for (int i = 0; i < optimizer->num_groups; i++)
        brg_sched_set_grad_hooks(optimizer->sched, optimizer->groups[i], &brg_kernel_grad_hooks,
                                 optimizer);
out:
    return status;
}

brg_status brg_kernel_state_create(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    const brg_device *device = optimizer->device;
    int members = brg_optim_num_members(optimizer);
    brg_status status;
    if (members > BRG_MAX_CHILDREN)
        return brg_fail(BRG_ERR_UNSUPPORTED, "chain: %d children, device %s takes %d", members,
                        device->rt->name, BRG_MAX_CHILDREN);
    BRG_ON_DEVICE(optimizer->ctx);
    count_runs(optimizer);
    k->stored_lr = NAN; /* differs from every value */
    BRG_TRY(place(optimizer), out);
    BRG_TRY(write_runs(optimizer), out);
    BRG_TRY(brg_rt_status(device, device->rt->event_create(&k->prepared, BRG_EVENT_DISABLE_TIMING),
                          "event_create"),
            out);
    if (!optimizer->children)
        BRG_TRY(start_sums(optimizer), out);
    for (int i = 0; optimizer->children && i < members; i++) {
        brg_optimizer *child = optimizer->children[i]; /* may have been stepped without a chain */
        BRG_TRY(brg_optim_wait(child), out);
        k->host_steps[i] = child->kernel.host_steps[0];
    }
out:
    return status;
}

/* Sums that no step has taken may still be on their way. */
static void wait_for_sums(brg_optimizer *optimizer)
{
    const brg_runtime *rt = optimizer->device->rt;
    brg_stream comm_stream = brg_sched_lock(optimizer->sched);
    bool outstanding = optimizer->kernel.sums_outstanding;
    brg_sched_unlock(optimizer->sched);
    rt->stream_synchronize(optimizer->kernel.norm_stream);
    if (outstanding)
        rt->stream_synchronize(comm_stream);
}

void brg_kernel_state_destroy(brg_optimizer *optimizer)
{
    brg_kernel_state *k = &optimizer->kernel;
    if (!k->memory)
        return;
    const brg_runtime *rt = optimizer->device->rt;
    if (k->norm_stream) {
        for (int i = 0; i < optimizer->num_groups; i++)
            brg_sched_set_grad_hooks(optimizer->sched, optimizer->groups[i], NULL, NULL);
        wait_for_sums(optimizer);
        rt->stream_destroy(k->norm_stream);
    }
    for (int i = 0; optimizer->stepped && i < optimizer->num_children; i++)
        if (optimizer->children[i])
            optimizer->children[i]->kernel.host_steps[0] = k->host_steps[i];
    if (k->summed)
        rt->event_destroy(k->summed);
    if (k->prepared)
        rt->event_destroy(k->prepared);
    rt->free_device(k->memory);
    rt->free_host(k->host_memory);
}
