/* SPDX-License-Identifier: Apache-2.0 */
/* State of optimizers: ranges of this rank's shards, the pieces of parameters in them, and one
 * stretch of memory for all states and masters. */
#include <stdlib.h>
#include <string.h>

#include "sched/optim/convert.h"
#include "sched/optim/optimizer_impl.h"

enum { ALIGN_BYTES = 256 };

static brg_status check_types(const brg_optimizer *optimizer, const brg_bucket_view *view)
{
    const char *name = optimizer->class->name;
    if (!brg_dtype_is_trainable(view->param_dtype) || !brg_dtype_is_trainable(view->grad_dtype))
        return brg_fail(BRG_ERR_UNSUPPORTED,
                        "%s: bucket %d has %s parameters and %s gradients, expected fp32, fp16 or "
                        "bf16",
                        name, view->bucket, brg_dtype_str(view->param_dtype),
                        brg_dtype_str(view->grad_dtype));
    if (optimizer->precision_aware && view->param_dtype != BRG_BFLOAT16)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "%s: option precision_aware needs bf16 parameters, bucket %d has %s", name,
                        view->bucket, brg_dtype_str(view->param_dtype));
    return BRG_OK;
}

static int by_types(const void *a, const void *b)
{
    const brg_optim_range *x = a, *y = b;
    if (x->param_dtype != y->param_dtype)
        return x->param_dtype < y->param_dtype ? -1 : 1;
    if (x->grad_dtype != y->grad_dtype)
        return x->grad_dtype < y->grad_dtype ? -1 : 1;
    return (x->bucket > y->bucket) - (x->bucket < y->bucket);
}

/* Counts ranges and slots; where there is memory for ranges, fills those. */
static brg_status find_ranges(brg_optimizer *optimizer)
{
    optimizer->num_ranges = optimizer->num_slots = 0;
    for (int b = 0; b < brg_scheduler_num_buckets(optimizer->sched); b++) {
        const brg_bucket_view *view = brg_sched_view(optimizer->sched, b);
        if (!brg_optim_owns_group(optimizer, view->group))
            continue;
        brg_status status = check_types(optimizer, view);
        if (status != BRG_OK)
            return status;
        if (view->num_segments == 0)
            continue;
        if (optimizer->ranges)
            optimizer->ranges[optimizer->num_ranges] =
                (brg_optim_range){.bucket = b,
                                  .group = view->group,
                                  .expert_parallel = view->expert_parallel != 0,
                                  .start = view->segments[0].offset,
                                  .param_dtype = view->param_dtype,
                                  .grad_dtype = view->grad_dtype};
        optimizer->num_ranges++;
        optimizer->num_slots += view->num_segments;
    }
    return BRG_OK;
}

/* The next `numel` elements of the memory; NULL while it is only measured. */
static void *take(char *memory, size_t *used, int64_t numel, size_t elem_bytes)
{
    char *at = memory ? memory + *used : NULL;
    size_t bytes = (size_t)numel * elem_bytes; /* buffers of that many elements exist already */
    *used += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return at;
}

/* Returns how much memory states and masters take. */
static size_t place_ranges(brg_optimizer *optimizer, char *memory)
{
    size_t used = 0, state_bytes = optimizer->precision_aware ? sizeof(uint16_t) : sizeof(float);
    for (int r = 0; r < optimizer->num_ranges; r++) {
        const brg_optim_range *range = &optimizer->ranges[r];
        const brg_bucket_view *view = brg_sched_view(optimizer->sched, range->bucket);
        const brg_segment *last = &view->segments[view->num_segments - 1];
        int64_t numel = last->offset + last->numel - range->start;
        size_t start = (size_t)range->start;
        brg_update_range *update = &optimizer->updates[r];
        update->numel = numel;
        update->param = (char *)view->param_base + start * brg_dtype_bytes(view->param_dtype);
        update->grad = (const char *)view->grad_base + start * brg_dtype_bytes(view->grad_dtype);
        if (optimizer->num_states > 0)
            update->state0 = take(memory, &used, numel, state_bytes);
        if (optimizer->num_states > 1)
            update->state1 = take(memory, &used, numel, state_bytes);
        if (optimizer->precision_aware)
            update->low = take(memory, &used, numel, sizeof(uint16_t));
        else if (range->param_dtype == BRG_FLOAT32)
            update->master = update->param;
        else
            update->master = take(memory, &used, numel, sizeof(float));
    }
    return used;
}

static void *offset(void *base, int64_t elems, size_t elem_bytes)
{
    return base ? (char *)base + (size_t)elems * elem_bytes : NULL;
}

static void fill_slots(brg_optimizer *optimizer)
{
    brg_optim_slot *slot = optimizer->slots;
    size_t state_bytes = optimizer->precision_aware ? sizeof(uint16_t) : sizeof(float);
    for (int r = 0; r < optimizer->num_ranges; r++) {
        const brg_optim_range *range = &optimizer->ranges[r];
        const brg_update_range *update = &optimizer->updates[r];
        const brg_bucket_view *view = brg_sched_view(optimizer->sched, range->bucket);
        for (int s = 0; s < view->num_segments; s++, slot++) {
            const brg_segment *segment = &view->segments[s];
            int64_t at = segment->offset - range->start;
            slot->param = segment->param;
            slot->param_start = segment->param_start;
            slot->range = r;
            slot->states[0] = offset(update->state0, at, state_bytes);
            slot->states[1] = offset(update->state1, at, state_bytes);
            slot->target = (brg_update_target){
                .master = offset(update->master, at, sizeof(float)),
                .param = offset(update->param, at, brg_dtype_bytes(range->param_dtype)),
                .low = offset(update->low, at, sizeof(uint16_t)),
                .grad =
                    (const char *)update->grad + (size_t)at * brg_dtype_bytes(range->grad_dtype),
                .param_dtype = range->param_dtype,
                .grad_dtype = range->grad_dtype,
                .numel = (size_t)segment->numel};
        }
    }
}

/* Zeroed memory. The host's is written here, so that its pages are there before the first step. */
static brg_status allocate(brg_optimizer *optimizer, size_t bytes)
{
    const brg_device *device = optimizer->device;
    const char *name = optimizer->class->name;
    brg_status status = BRG_OK;
    if (bytes == 0)
        return BRG_OK;
    if (!device->kernels) {
        optimizer->memory = aligned_alloc(ALIGN_BYTES, bytes);
        if (!optimizer->memory)
            return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for %zu bytes of state", name, bytes);
        memset(optimizer->memory, 0, bytes);
        return BRG_OK;
    }
    BRG_ON_DEVICE(optimizer->ctx);
    if (brg_rt_status(device, device->rt->malloc_device(&optimizer->memory, bytes),
                      "malloc_device") != BRG_OK)
        return brg_fail_prefix(BRG_ERR_NO_MEMORY, "%s: %zu bytes of state: ", name, bytes);
    BRG_TRY(brg_rt_status(device, device->rt->memset_async(optimizer->memory, 0, bytes, NULL),
                          "memset_async"),
            out);
    BRG_TRY(brg_rt_status(device, device->rt->stream_synchronize(NULL), "stream_synchronize"), out);
out:
    return status;
}

brg_status brg_optim_make_state(brg_optimizer *optimizer)
{
    brg_status status = find_ranges(optimizer);
    if (status != BRG_OK)
        return status;
    size_t ranges = (size_t)optimizer->num_ranges + 1, slots = (size_t)optimizer->num_slots + 1;
    optimizer->ranges = calloc(ranges, sizeof *optimizer->ranges); /* + 1: never zero bytes */
    optimizer->updates = calloc(ranges, sizeof *optimizer->updates);
    optimizer->slots = calloc(slots, sizeof *optimizer->slots);
    if (!optimizer->ranges || !optimizer->updates || !optimizer->slots)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for the state of %d buckets",
                        optimizer->class->name, optimizer->num_ranges);
    BRG_TRY(find_ranges(optimizer), out);
    qsort(optimizer->ranges, (size_t)optimizer->num_ranges, sizeof *optimizer->ranges, by_types);
    BRG_TRY(allocate(optimizer, place_ranges(optimizer, NULL)), out);
    place_ranges(optimizer, optimizer->memory);
    fill_slots(optimizer);
out:
    return status;
}

void brg_optim_free_state(brg_optimizer *optimizer)
{
    free(optimizer->ranges);
    free(optimizer->updates);
    free(optimizer->slots);
    if (!optimizer->device || !optimizer->device->kernels)
        free(optimizer->memory);
    else
        optimizer->device->rt->free_device(optimizer->memory);
}

int brg_optim_same_types(const brg_optimizer *optimizer, int first)
{
    const brg_optim_range *ranges = optimizer->ranges;
    int end = first + 1;
    while (end < optimizer->num_ranges && ranges[end].param_dtype == ranges[first].param_dtype &&
           ranges[end].grad_dtype == ranges[first].grad_dtype)
        end++;
    return end - first;
}

void brg_optim_take_masters(brg_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->num_slots; i++) {
        const brg_update_target *target = &optimizer->slots[i].target;
        if (target->low)
            memset(target->low, 0, target->numel * sizeof *target->low);
        else if (target->param_dtype != BRG_FLOAT32)
            brg_load_f32(target->master, target->param, target->param_dtype, 0, target->numel);
    }
    optimizer->masters_taken = true;
}
