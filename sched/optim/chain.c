/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/optimizer_impl.h"
#include "sched/options.h"

static const brg_optim_class chain_class = {.name = "chain"};

static brg_status check_children(brg_optimizer *const *children, int num_children)
{
    if (!children || num_children < 1)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: %d children given, expected at least one",
                        children ? num_children : 0);
    for (int i = 0; i < num_children; i++) {
        const brg_optimizer *child = children[i];
        if (!child)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: child %d is NULL", i);
        if (child->children)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: child %d is a chain itself", i);
        for (int j = 0; j < i; j++)
            if (children[j] == child)
                return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                                "chain: children %d and %d are the same optimizer", j, i);
        if (child->sched != children[0]->sched)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "chain: child %d (%s) is of another scheduler than child 0", i,
                            child->class->name);
        if (child->chain)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: child %d (%s) is in another chain", i,
                            child->class->name);
    }
    return BRG_OK;
}

/* The scheduler lets nobody own a group twice, so that each owned by a child is owned by exactly
 * one. */
static brg_status check_groups(brg_optimizer *const *children, int num_children)
{
    brg_scheduler *sched = children[0]->sched;
    for (int g = 0; g < brg_scheduler_num_groups(sched); g++) {
        const void *owner = brg_sched_group_owner(sched, g);
        int child = 0;
        while (child < num_children && children[child] != owner)
            child++;
        if (child == num_children)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: bucket group %d (%s) is owned by %s",
                            g, brg_sched_group_layerwise(sched, g) ? "layer-wise" : "element-wise",
                            owner ? "an optimizer that is not among the children" : "no optimizer");
    }
    return BRG_OK;
}

brg_status brg_chain_create(brg_optimizer *const *children, int num_children,
                            const brg_chain_options *options, brg_optimizer **chain)
{
    brg_status status;
    brg_optimizer *made = NULL;
    if (!chain)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "chain: no place for the chain");
    *chain = NULL;
    brg_chain_options o = {0};
    BRG_TRY(brg_options_copy("chain", &o, sizeof o, options), fail);
    BRG_TRY(brg_optim_option("chain", "max_grad_norm", &o.max_grad_norm, 0, 0, INFINITY), fail);
    BRG_TRY(brg_optim_option("chain", "grad_scale", &o.grad_scale, 1, 1e-300, INFINITY), fail);
    BRG_TRY(check_children(children, num_children), fail);
    BRG_TRY(check_groups(children, num_children), fail);
    made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "chain: no memory");
    BRG_TRY(brg_optim_init_common(made, &chain_class, children[0]->sched), fail);
    made->max_grad_norm = o.max_grad_norm;
    made->grad_scale = o.grad_scale;
    made->apply_non_finite = o.apply_non_finite != 0;
    made->children = calloc((size_t)num_children, sizeof *made->children);
    if (!made->children) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "chain: no memory for %d children", num_children);
        goto fail;
    }
    memcpy(made->children, children, (size_t)num_children * sizeof *children);
    made->num_children = num_children;
    if (made->device->kernels)
        BRG_TRY(brg_kernel_state_create(made), fail);
    for (int i = 0; i < num_children; i++)
        made->children[i]->chain = made;
    *chain = made;
    return BRG_OK;
fail:
    if (made)
        brg_optimizer_destroy(made);
    return status;
}
