/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of optimizers: options, ownership of bucket groups, order on streams. */
#include "sched/optim/optimizer_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

brg_status brg_optim_option(const char *optimizer, const char *option, double *value,
                            double fallback, double lowest, double limit)
{
    double given = *value == 0 ? fallback : *value < 0 ? 0 : *value;
    if (!(given >= lowest && given < limit))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "%s: option %s is %g, expected %s%g and less than %g", optimizer, option,
                        *value, lowest > 0 ? "at least " : "", lowest, limit);
    *value = given;
    return BRG_OK;
}

/* Around captures and replays; see brg_graph_hook. */
static brg_status join_graph(void *owner, brg_stream stream)
{
    brg_optimizer *optimizer = owner;
    brg_status status;
    BRG_TRY(brg_optim_follow(optimizer, stream), out);
    optimizer->done_recorded = false;
    if (!optimizer->device->kernels)
        return BRG_OK;
    BRG_TRY(brg_kernel_join_sums(optimizer, stream), out);
    if (!optimizer->children && !brg_optim_capturing(optimizer, stream))
        BRG_TRY(brg_optim_refresh_lr(optimizer, stream), out);
out:
    return status;
}

static brg_status leave_graph(void *owner, brg_stream stream)
{
    return brg_optim_record(owner, stream);
}

brg_status brg_optim_init_common(brg_optimizer *optimizer, const brg_optim_class *class,
                                 brg_scheduler *sched)
{
    optimizer->class = class;
    optimizer->sched = sched;
    optimizer->ctx = brg_sched_context(sched);
    optimizer->device = brg_context_device_tables(optimizer->ctx);
    pthread_mutex_init(&optimizer->jobs_lock, NULL);
    optimizer->graph_hook =
        (brg_graph_hook){.join = join_graph, .leave = leave_graph, .owner = optimizer};
    brg_sched_add_graph_hook(sched, &optimizer->graph_hook);
    optimizer->grad_scale = 1;
    BRG_ON_DEVICE(optimizer->ctx);
    const brg_runtime *rt = optimizer->device->rt;
    if (strcmp(rt->name, "host") != 0 && !optimizer->device->kernels)
        return brg_fail(BRG_ERR_UNSUPPORTED, "%s: there are no optimizer kernels for device %s",
                        class->name, rt->name);
    return brg_rt_status(optimizer->device,
                         rt->event_create(&optimizer->done, BRG_EVENT_DISABLE_TIMING),
                         "optimizer: event_create");
}

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b; /* the caller's: a difference may overflow */
    return (x > y) - (x < y);
}

static brg_status choose_groups(brg_optimizer *optimizer, const int *groups, int num_groups,
                                bool layerwise)
{
    int all = brg_scheduler_num_groups(optimizer->sched);
    const char *name = optimizer->class->name;
    if (groups && num_groups < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: a list of %d bucket groups", name,
                        num_groups);
    size_t room = (size_t)(groups ? num_groups : all) + 1; /* + 1: never zero bytes */
    optimizer->groups = calloc(room, sizeof *optimizer->groups);
    if (!optimizer->groups)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu bucket groups", name, room);
    if (!groups) {
        if (layerwise &&
            brg_layout_get_options(brg_sched_layout(optimizer->sched))->algorithm != BRG_LAYERWISE)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "%s: needs whole matrices, which only a layer-wise layout has", name);
        for (int g = 0; g < all; g++)
            if (brg_sched_group_layerwise(optimizer->sched, g) == layerwise)
                optimizer->groups[optimizer->num_groups++] = g;
        return BRG_OK;
    }
    memcpy(optimizer->groups, groups, (size_t)num_groups * sizeof *groups);
    optimizer->num_groups = num_groups;
    qsort(optimizer->groups, (size_t)num_groups, sizeof *groups, by_value);
    for (int i = 1; i < num_groups; i++)
        if (optimizer->groups[i] == optimizer->groups[i - 1])
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: bucket group %d is listed twice", name,
                            optimizer->groups[i]);
    return BRG_OK;
}

static brg_status claim_groups(brg_optimizer *optimizer)
{
    for (; optimizer->num_claimed < optimizer->num_groups; optimizer->num_claimed++) {
        brg_status status = brg_sched_claim_group(
            optimizer->sched, optimizer->groups[optimizer->num_claimed], optimizer);
        if (status != BRG_OK)
            return brg_fail_prefix(status, "%s: ", optimizer->class->name);
    }
    return BRG_OK;
}

bool brg_optim_owns_group(const brg_optimizer *optimizer, int group)
{
    return optimizer->num_groups > 0 &&
           bsearch(&group, optimizer->groups, (size_t)optimizer->num_groups, sizeof group,
                   by_value);
}

brg_status brg_optim_init(brg_optimizer *optimizer, brg_scheduler *sched,
                          const brg_optim_traits *traits)
{
    brg_status status;
    optimizer->num_states = traits->num_states;
    optimizer->precision_aware = traits->precision_aware;
    BRG_TRY(brg_optim_init_common(optimizer, traits->class, sched), out);
    BRG_TRY(choose_groups(optimizer, traits->groups, traits->num_groups, traits->layerwise), out);
    BRG_TRY(claim_groups(optimizer), out);
    BRG_TRY(brg_optim_make_state(optimizer), out);
    if (optimizer->device->kernels)
        BRG_TRY(brg_kernel_state_create(optimizer), out);
out:
    return status;
}

bool brg_optim_capturing(const brg_optimizer *optimizer, brg_stream stream)
{
    const brg_runtime *rt = optimizer->device->rt;
    int capturing = 0;
    return rt->stream_is_capturing && rt->stream_is_capturing(stream, &capturing) == BRG_RT_OK &&
           capturing;
}

brg_status brg_optim_follow(brg_optimizer *optimizer, brg_stream stream)
{
    if (!optimizer->done_recorded || optimizer->done_stream == stream ||
        optimizer->done_captured != brg_optim_capturing(optimizer, stream))
        return BRG_OK;
    return brg_rt_status(optimizer->device,
                         optimizer->device->rt->stream_wait_event(stream, optimizer->done),
                         "optimizer: stream_wait_event");
}

brg_status brg_optim_record(brg_optimizer *optimizer, brg_stream stream)
{
    brg_status status = brg_rt_status(optimizer->device,
                                      optimizer->device->rt->event_record(optimizer->done, stream),
                                      "optimizer: event_record");
    if (status == BRG_OK) {
        optimizer->done_recorded = true;
        optimizer->done_stream = stream;
        optimizer->done_captured = brg_optim_capturing(optimizer, stream);
    }
    return status;
}

brg_status brg_optim_wait(brg_optimizer *optimizer)
{
    if (!optimizer->done_recorded || optimizer->done_captured)
        return BRG_OK;
    return brg_rt_status(optimizer->device,
                         optimizer->device->rt->event_synchronize(optimizer->done),
                         "optimizer: event_synchronize");
}

/* Nothing of a step may still be running when its memory goes. */
static void wait_before_free(brg_optimizer *optimizer)
{
    if (optimizer->broken || brg_optim_wait(optimizer) != BRG_OK)
        optimizer->device->rt->device_synchronize();
}

void brg_optimizer_destroy(brg_optimizer *optimizer)
{
    if (!optimizer)
        return;
    BRG_ON_DEVICE(optimizer->ctx);
    if (optimizer->chain) /* against the documentation: the chain must not touch it again */
        wait_before_free(optimizer->chain);
    wait_before_free(optimizer);
    for (int i = 0; optimizer->chain && i < optimizer->chain->num_children; i++)
        if (optimizer->chain->children[i] == optimizer)
            optimizer->chain->children[i] = NULL;
    for (int i = 0; i < optimizer->num_children; i++)
        if (optimizer->children[i])
            optimizer->children[i]->chain = NULL;
    brg_kernel_state_destroy(optimizer); /* before the groups go: it is called with them */
    for (int i = 0; i < optimizer->num_claimed; i++)
        brg_sched_release_group(optimizer->sched, optimizer->groups[i], optimizer);
    brg_sched_remove_graph_hook(optimizer->sched, &optimizer->graph_hook);
    if (optimizer->class->destroy)
        optimizer->class->destroy(optimizer);
    brg_host_free_jobs(optimizer);
    brg_optim_free_state(optimizer);
    if (optimizer->done)
        optimizer->device->rt->event_destroy(optimizer->done);
    pthread_mutex_destroy(&optimizer->jobs_lock);
    free(optimizer->children);
    free(optimizer->groups);
    free(optimizer);
}
