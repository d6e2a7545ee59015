/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "sched/optim/optimizer_impl.h"
#include "sched/options.h"

typedef struct adamw {
    brg_optimizer base;
    brg_adamw_hyper hyper;
} adamw;

static void update(brg_optimizer *optimizer, double lr, double grad_scale)
{
    brg_adamw_hyper hyper = ((const adamw *)optimizer)->hyper;
    hyper.lr = lr;
    for (int i = 0; i < optimizer->num_slots; i++) {
        brg_optim_slot *slot = &optimizer->slots[i];
        brg_adamw_host(&slot->target, slot->states[0], slot->states[1], ++slot->steps, grad_scale,
                       &hyper);
    }
}

static brg_status launch(brg_optimizer *optimizer, const brg_step_state *step, brg_stream stream)
{
    const brg_adamw_hyper *hyper = &((const adamw *)optimizer)->hyper;
    const brg_device *device = optimizer->device;
    brg_status status = BRG_OK;
    for (int i = 0, count; i < optimizer->num_ranges && status == BRG_OK; i += count) {
        count = brg_optim_same_types(optimizer, i);
        const brg_adamw_args args = {
            .state = step,
            .hyper = optimizer->kernel.hyper,
            .beta1 = (float)hyper->beta1,
            .beta2 = (float)hyper->beta2,
            .eps = (float)hyper->eps,
            .one_minus_beta1 = (float)(1.0 - hyper->beta1),
            .one_minus_beta2 = (float)(1.0 - hyper->beta2),
            .param_dtype = (int32_t)optimizer->ranges[i].param_dtype,
            .grad_dtype = (int32_t)optimizer->ranges[i].grad_dtype,
            .precision_aware = optimizer->precision_aware,
            .num_ranges = count,
            .ranges = &optimizer->updates[i],
        };
        status = brg_rt_status(device, device->kernels->adamw(&args, stream), "adamw");
    }
    return status;
}

static const brg_optim_class adamw_class = {.name = "adamw", .update = update, .launch = launch};

static brg_status read_options(const brg_adamw_options *from, brg_adamw_options *o)
{
    brg_status status;
    BRG_TRY(brg_options_copy("adamw", o, sizeof *o, from), out);
    BRG_TRY(brg_optim_option("adamw", "lr", &o->lr, 1e-3, 0, INFINITY), out);
    BRG_TRY(brg_optim_option("adamw", "beta1", &o->beta1, 0.9, 0, 1), out);
    BRG_TRY(brg_optim_option("adamw", "beta2", &o->beta2, 0.999, 0, 1), out);
    /* Zero would be 0/0 where a gradient has always been zero. */
    BRG_TRY(brg_optim_option("adamw", "eps", &o->eps, 1e-8, 1e-300, INFINITY), out);
    BRG_TRY(brg_optim_option("adamw", "weight_decay", &o->weight_decay, 0, 0, INFINITY), out);
out:
    return status;
}

brg_status brg_adamw_create(brg_scheduler *sched, const brg_adamw_options *options,
                            brg_optimizer **optimizer)
{
    if (!optimizer)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "adamw: no place for the optimizer");
    *optimizer = NULL;
    if (!sched)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "adamw: scheduler is NULL");
    brg_adamw_options o = {0};
    brg_status status = read_options(options, &o);
    if (status != BRG_OK)
        return status;
    adamw *made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "adamw: no memory");
    made->hyper = (brg_adamw_hyper){o.lr, o.beta1, o.beta2, o.eps, o.weight_decay};
    made->base.lr = o.lr;
    made->base.weight_decay = o.weight_decay;
    made->base.beta1 = o.beta1;
    made->base.beta2 = o.beta2;
    status = brg_optim_init(&made->base, sched,
                            &(brg_optim_traits){.class = &adamw_class,
                                                .groups = o.groups,
                                                .num_groups = o.num_groups,
                                                .num_states = 2,
                                                .precision_aware = o.precision_aware != 0});
    if (status != BRG_OK) {
        brg_optimizer_destroy(&made->base);
        return status;
    }
    *optimizer = &made->base;
    return BRG_OK;
}
