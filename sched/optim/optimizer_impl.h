/* SPDX-License-Identifier: Apache-2.0 */
/* What optimizers have in common.
 *
 * An optimizer keeps one slot for each piece of a parameter in this rank's shards of its bucket
 * groups. Slots and their contents are touched by host functions on the step's stream only, one at
 * a time; steps on different streams are ordered by the event `done`. The caller's thread reads
 * them after waiting for that event.
 */
#ifndef BRIGADE_SCHED_OPTIM_OPTIMIZER_IMPL_H
#define BRIGADE_SCHED_OPTIM_OPTIMIZER_IMPL_H

#include <pthread.h>

#include "sched/bucket/view.h"
#include "sched/optim/kernels.h"

#define BRG_OPTIM_MAX_STATES 2

typedef struct brg_optim_slot {
    int param;
    int64_t param_start; /* first element of the piece, within the parameter */
    brg_update_target target;
    float *states[BRG_OPTIM_MAX_STATES];
    int64_t steps; /* updates so far */
} brg_optim_slot;

/* One kind of optimizer. */
typedef struct brg_optim_class {
    const char *name; /* in the trace and in messages */
    /* Updates every slot. Runs on the stream: no blocking, no allocation, no failure. */
    void (*update)(brg_optimizer *optimizer, double lr, double grad_scale);
    /* Frees what the kind has added to the common part; NULL: nothing. */
    void (*destroy)(brg_optimizer *optimizer);
} brg_optim_class;

typedef struct brg_step_job brg_step_job;

struct brg_optimizer {
    const brg_optim_class *class;
    brg_scheduler *sched;
    brg_context *ctx;
    const brg_device *device;
    brg_optimizer *chain; /* that it belongs to, or NULL */
    double lr;

    int *groups; /* owned bucket groups, ascending */
    int num_groups, num_claimed;
    brg_optim_slot *slots; /* in order of bucket, then offset */
    int num_slots, num_states;
    float *memory; /* of all states and masters */
    bool masters_taken;

    void *done; /* event: this optimizer's last update, a chain's last step */
    brg_stream done_stream;
    bool done_recorded;
    brg_graph_hook graph_hook;

    /* Of the optimizer that is given to brg_step(): a chain, or one without a chain. */
    brg_optimizer **children; /* a chain's; an entry is NULL once it has been destroyed */
    int num_children;         /* 0: not a chain */
    double max_grad_norm;
    bool apply_non_finite;
    bool stepped, broken; /* broken: a step could not be put on the stream completely */
    double norm;
    int64_t skipped;
    pthread_mutex_t jobs_lock; /* a leaf: nothing else is called under it */
    brg_step_job *free_jobs;
};

/* Options: 0 is the default, a negative value is zero; anything not in [lowest, limit) is an error
 * that names optimizer and option. */
brg_status brg_optim_option(const char *optimizer, const char *option, double *value,
                            double fallback, double lowest, double limit);

/* Fills the zeroed `optimizer`: claims groups (NULL: all that are layer-wise, or all that are not),
 * makes slots with num_states states of zeros each. On failure brg_optimizer_destroy() frees what
 * there is. */
brg_status brg_optim_init(brg_optimizer *optimizer, const brg_optim_class *class,
                          brg_scheduler *sched, const int *groups, int num_groups, bool layerwise,
                          int num_states);
/* The parts of the above that a chain needs too. */
brg_status brg_optim_init_common(brg_optimizer *optimizer, const brg_optim_class *class,
                                 brg_scheduler *sched);

/* Reads the float32 masters of parameters of other types. On the stream. */
void brg_optim_take_masters(brg_optimizer *optimizer);

/* Orders `stream` after the optimizer's last work on another one; records its work on `stream`;
 * blocks until it is done. */
brg_status brg_optim_follow(brg_optimizer *optimizer, brg_stream stream);
brg_status brg_optim_record(brg_optimizer *optimizer, brg_stream stream);
brg_status brg_optim_wait(brg_optimizer *optimizer);

void brg_optim_free_jobs(brg_optimizer *optimizer);

/* Iterates over a chain's children, or over the optimizer itself. */
static inline int brg_optim_num_members(const brg_optimizer *optimizer)
{
    return optimizer->children ? optimizer->num_children : 1;
}
static inline brg_optimizer *brg_optim_member(brg_optimizer *optimizer, int i)
{
    return optimizer->children ? optimizer->children[i] : optimizer;
}

#endif
