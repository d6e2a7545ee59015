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

static const brg_optim_class adamw_class = {.name = "adamw", .update = update};

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
    status = brg_optim_init(&made->base, &adamw_class, sched, o.groups, o.num_groups, false, 2);
    if (status != BRG_OK) {
        brg_optimizer_destroy(&made->base);
        return status;
    }
    *optimizer = &made->base;
    return BRG_OK;
}
