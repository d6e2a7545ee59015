/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "sched/optim/optimizer_impl.h"
#include "sched/options.h"

typedef struct sgd {
    brg_optimizer base;
    brg_sgd_hyper hyper;
} sgd;

static void update(brg_optimizer *optimizer, double lr, double grad_scale)
{
    brg_sgd_hyper hyper = ((const sgd *)optimizer)->hyper;
    hyper.lr = lr;
    for (int i = 0; i < optimizer->num_slots; i++) {
        brg_optim_slot *slot = &optimizer->slots[i];
        brg_sgd_host(&slot->target, slot->states[0], grad_scale, &hyper);
        slot->steps++;
    }
}

static brg_status launch(brg_optimizer *optimizer, const brg_step_state *step, brg_stream stream)
{
    const brg_sgd_hyper *hyper = &((const sgd *)optimizer)->hyper;
    const brg_device *device = optimizer->device;
    brg_status status = BRG_OK;
    for (int i = 0, count; i < optimizer->num_ranges && status == BRG_OK; i += count) {
        count = brg_optim_same_types(optimizer, i);
        const brg_sgd_args args = {
            .state = step,
            .hyper = optimizer->kernel.hyper,
            .momentum = (float)hyper->momentum,
            .weight_decay = (float)hyper->weight_decay,
            .param_dtype = (int32_t)optimizer->ranges[i].param_dtype,
            .grad_dtype = (int32_t)optimizer->ranges[i].grad_dtype,
            .num_ranges = count,
            .ranges = &optimizer->updates[i],
        };
        status = brg_rt_status(device, device->kernels->sgd(&args, stream), "sgd");
    }
    return status;
}

static const brg_optim_class sgd_class = {.name = "sgd", .update = update, .launch = launch};

static brg_status read_options(const brg_sgd_options *from, brg_sgd_options *o)
{
    brg_status status;
    BRG_TRY(brg_options_copy("sgd", o, sizeof *o, from), out);
    BRG_TRY(brg_optim_option("sgd", "lr", &o->lr, 1e-3, 0, INFINITY), out);
    BRG_TRY(brg_optim_option("sgd", "momentum", &o->momentum, 0, 0, 1), out);
    BRG_TRY(brg_optim_option("sgd", "weight_decay", &o->weight_decay, 0, 0, INFINITY), out);
out:
    return status;
}

brg_status brg_sgd_create(brg_scheduler *sched, const brg_sgd_options *options,
                          brg_optimizer **optimizer)
{
    if (!optimizer)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "sgd: no place for the optimizer");
    *optimizer = NULL;
    if (!sched)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "sgd: scheduler is NULL");
    brg_sgd_options o = {0};
    brg_status status = read_options(options, &o);
    if (status != BRG_OK)
        return status;
    sgd *made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "sgd: no memory");
    made->hyper = (brg_sgd_hyper){o.lr, o.momentum, o.weight_decay};
    made->base.lr = o.lr;
    made->base.weight_decay = o.weight_decay;
    status = brg_optim_init(&made->base, sched,
                            &(brg_optim_traits){.class = &sgd_class,
                                                .groups = o.groups,
                                                .num_groups = o.num_groups,
                                                .num_states = o.momentum > 0 ? 1 : 0});
    if (status != BRG_OK) {
        brg_optimizer_destroy(&made->base);
        return status;
    }
    *optimizer = &made->base;
    return BRG_OK;
}
