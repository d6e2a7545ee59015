/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of optimizers: options, ownership of bucket groups, slots and their memory. */
#include "sched/optim/optimizer_impl.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/convert.h"

enum { ALIGN_FLOATS = 16 }; /* a cache line */

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
    brg_status status = brg_optim_follow(optimizer, stream);
    if (status == BRG_OK)
        optimizer->done_recorded = false;
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
    const brg_runtime *rt = optimizer->device->rt;
    if (strcmp(rt->name, "host") != 0)
        return brg_fail(BRG_ERR_UNSUPPORTED,
                        "%s: this build has no optimizer kernels for device %s", class->name,
                        rt->name);
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

static bool owns_group(const brg_optimizer *optimizer, int group)
{
    return optimizer->num_groups > 0 &&
           bsearch(&group, optimizer->groups, (size_t)optimizer->num_groups, sizeof group,
                   by_value);
}

static size_t padded(int64_t numel)
{
    return ((size_t)numel + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* Counts slots and floats of memory; with `memory` fills the slots as well. */
static brg_status lay_out_slots(brg_optimizer *optimizer, bool fill, int *num_slots,
                                size_t *num_floats)
{
    *num_slots = 0;
    *num_floats = 0;
    for (int b = 0; b < brg_scheduler_num_buckets(optimizer->sched); b++) {
        const brg_bucket_view *view = brg_sched_view(optimizer->sched, b);
        if (!owns_group(optimizer, view->group))
            continue;
        if (!brg_dtype_is_trainable(view->param_dtype) || !brg_dtype_is_trainable(view->grad_dtype))
            return brg_fail(
                BRG_ERR_UNSUPPORTED,
                "%s: bucket %d has %s parameters and %s gradients, expected fp32, fp16 or "
                "bf16",
                optimizer->class->name, b, brg_dtype_str(view->param_dtype),
                brg_dtype_str(view->grad_dtype));
        size_t param_bytes = brg_dtype_bytes(view->param_dtype);
        size_t grad_bytes = brg_dtype_bytes(view->grad_dtype);
        bool own_master = view->param_dtype != BRG_FLOAT32;
        for (int s = 0; s < view->num_segments; s++) {
            const brg_segment *segment = &view->segments[s];
            size_t stride = padded(segment->numel);
            if (fill) {
                brg_optim_slot *slot = &optimizer->slots[*num_slots];
                float *memory = optimizer->memory + *num_floats;
                slot->param = segment->param;
                slot->param_start = segment->param_start;
                slot->target.param =
                    (char *)view->param_base + (size_t)segment->offset * param_bytes;
                slot->target.grad =
                    (const char *)view->grad_base + (size_t)segment->offset * grad_bytes;
                slot->target.param_dtype = view->param_dtype;
                slot->target.grad_dtype = view->grad_dtype;
                slot->target.numel = (size_t)segment->numel;
                slot->target.master = own_master ? memory + (size_t)optimizer->num_states * stride
                                                 : slot->target.param;
                for (int i = 0; i < optimizer->num_states; i++)
                    slot->states[i] = memory + (size_t)i * stride;
            }
            if (*num_slots == INT_MAX ||
                __builtin_mul_overflow(stride, (size_t)(optimizer->num_states + own_master),
                                       &stride) ||
                __builtin_add_overflow(*num_floats, stride, num_floats))
                return brg_fail(BRG_ERR_NO_MEMORY, "%s: too much state", optimizer->class->name);
            (*num_slots)++;
        }
    }
    return BRG_OK;
}

static brg_status make_slots(brg_optimizer *optimizer)
{
    const char *name = optimizer->class->name;
    int num_slots = 0;
    size_t num_floats = 0, bytes = 0;
    brg_status status = lay_out_slots(optimizer, false, &num_slots, &num_floats);
    if (status != BRG_OK)
        return status;
    if (__builtin_mul_overflow(num_floats, sizeof(float), &bytes))
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: too much state", name);
    optimizer->slots = calloc((size_t)num_slots + 1, sizeof *optimizer->slots);
    optimizer->memory = bytes > 0 ? aligned_alloc(ALIGN_FLOATS * sizeof(float), bytes) : NULL;
    if (!optimizer->slots || (bytes > 0 && !optimizer->memory))
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu bytes of state", name, bytes);
    if (bytes > 0)
        memset(optimizer->memory, 0,
               bytes); /* also brings the pages in now, not in the first step */
    status = lay_out_slots(optimizer, true, &optimizer->num_slots, &num_floats);
    return status;
}

brg_status brg_optim_init(brg_optimizer *optimizer, const brg_optim_class *class,
                          brg_scheduler *sched, const int *groups, int num_groups, bool layerwise,
                          int num_states)
{
    brg_status status;
    optimizer->num_states = num_states;
    BRG_TRY(brg_optim_init_common(optimizer, class, sched), out);
    BRG_TRY(choose_groups(optimizer, groups, num_groups, layerwise), out);
    BRG_TRY(claim_groups(optimizer), out);
    BRG_TRY(make_slots(optimizer), out);
out:
    return status;
}

void brg_optim_take_masters(brg_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->num_slots; i++) {
        const brg_update_target *target = &optimizer->slots[i].target;
        if (target->param_dtype != BRG_FLOAT32)
            brg_load_f32(target->master, target->param, target->param_dtype, 0, target->numel);
    }
    optimizer->masters_taken = true;
}

brg_status brg_optim_follow(brg_optimizer *optimizer, brg_stream stream)
{
    if (!optimizer->done_recorded || optimizer->done_stream == stream)
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
    }
    return status;
}

brg_status brg_optim_wait(brg_optimizer *optimizer)
{
    if (!optimizer->done_recorded)
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
    if (optimizer->chain) /* against the documentation: the chain must not touch it again */
        wait_before_free(optimizer->chain);
    wait_before_free(optimizer);
    for (int i = 0; optimizer->chain && i < optimizer->chain->num_children; i++)
        if (optimizer->chain->children[i] == optimizer)
            optimizer->chain->children[i] = NULL;
    for (int i = 0; i < optimizer->num_children; i++)
        if (optimizer->children[i])
            optimizer->children[i]->chain = NULL;
    for (int i = 0; i < optimizer->num_claimed; i++)
        brg_sched_release_group(optimizer->sched, optimizer->groups[i], optimizer);
    brg_sched_remove_graph_hook(optimizer->sched, &optimizer->graph_hook);
    if (optimizer->class->destroy)
        optimizer->class->destroy(optimizer);
    brg_optim_free_jobs(optimizer);
    if (optimizer->done)
        optimizer->device->rt->event_destroy(optimizer->done);
    pthread_mutex_destroy(&optimizer->jobs_lock);
    free(optimizer->children);
    free(optimizer->groups);
    free(optimizer->slots);
    free(optimizer->memory);
    free(optimizer);
}
