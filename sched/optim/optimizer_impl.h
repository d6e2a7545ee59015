/* SPDX-License-Identifier: Apache-2.0 */
/* What optimizers have in common.
 *
 * An optimizer keeps one range for each of its buckets in which this rank's shard holds parameters,
 * and within the ranges one slot for each piece of a parameter. There are two ways to update them:
 *
 *   device without a kernel table (host): host functions go over the slots (host_step.c);
 *   device with a kernel table (cuda): kernels go over the ranges (kernel_step.c, kernel_state.c).
 *
 * State is touched on the step's stream only, one step at a time; steps on different streams are
 * ordered by the event `done`. The caller's thread reads it after waiting for that event.
 */
#ifndef BRIGADE_SCHED_OPTIM_OPTIMIZER_IMPL_H
#define BRIGADE_SCHED_OPTIM_OPTIMIZER_IMPL_H

#include <pthread.h>

#include "sched/bucket/view.h"
#include "sched/optim/kernels.h"

/* A stretch of one bucket's shard, from the first segment to the last. The paddings between
 * segments have zero parameters (so they were created) and zero gradients (brg_zero_grad() zeroes
 * whole buffers, reductions add zeros), add nothing to the norm, and stay zero in every update. */
typedef struct brg_optim_range {
    int bucket, group;
    bool expert_parallel;
    int64_t start; /* first element, within the buffer */
    brg_dtype param_dtype, grad_dtype;
    bool summed; /* kernel table: this step's sum of squares has been enqueued; issue_lock */
} brg_optim_range;

typedef struct brg_optim_slot {
    int param;
    int64_t param_start; /* first element of the piece, within the parameter */
    int range;
    brg_update_target target;
    void *states[2];
    int64_t steps; /* updates so far; device without a kernel table */
} brg_optim_slot;

/* One kind of optimizer. */
typedef struct brg_optim_class {
    const char *name; /* in the trace and in messages */
    /* Updates every slot. Runs on the stream: no blocking, no allocation, no failure. */
    void (*update)(brg_optimizer *optimizer, double lr, double grad_scale);
    /* With a kernel table. prepare: makes what launch needs and does not have yet; may block; NULL:
     * nothing. launch: puts the update of every range on the stream; `step` is the root's. */
    brg_status (*prepare)(brg_optimizer *optimizer);
    brg_status (*launch)(brg_optimizer *optimizer, const brg_step_state *step, brg_stream stream);
    /* Frees what the kind has added to the common part; NULL: nothing. */
    void (*destroy)(brg_optimizer *optimizer);
} brg_optim_class;

/* What an optimizer or a chain has on a device with a kernel table besides its ranges. */
typedef struct brg_kernel_state {
    void *memory;           /* device memory; into it point: */
    brg_step_state *step;   /* of the steps that this optimizer or chain is given */
    brg_hyper_state *hyper; /* not in a chain, like the next two */
    double *lr;             /* where a captured step reads its learning rate */
    double *partials;       /* BRG_NORM_PARTIALS for each range */
    const double **runs;    /* the partials of all members' ranges, in the order of summation: of
                               experts last, if their sum is apart; then the two parts of `apart` */
    int num_runs, num_expert_runs;
    double *apart;     /* two runs, each with a sum and zeros */
    void *host_memory; /* page-locked, written by prepare_step(): */
    brg_step_state *host_step;
    int64_t *host_steps; /* one for each member */
    double stored_lr;    /* last value put into *lr */

    brg_stream norm_stream; /* not in a chain: sums of squares while other groups are reduced */
    void *summed;           /* event behind them */
    /* Both under issue_lock. Sums on norm_stream that comm_stream has not waited for; any sums that
     * neither a step has taken nor zeroed gradients have followed. */
    bool sums_pending, sums_outstanding;
    void *prepared; /* event behind prepare_step() */
} brg_kernel_state;

typedef struct brg_step_job brg_step_job;

struct brg_optimizer {
    const brg_optim_class *class;
    brg_scheduler *sched;
    brg_context *ctx;
    const brg_device *device;
    brg_optimizer *chain; /* that it belongs to, or NULL */
    double lr;
    double weight_decay, beta1, beta2; /* for brg_prepare_args */

    int *groups; /* owned bucket groups, ascending */
    int num_groups, num_claimed;
    brg_optim_range *ranges;   /* by types, then by bucket */
    brg_update_range *updates; /* the same ranges, for kernels */
    int num_ranges;
    brg_optim_slot *slots; /* in order of range, then offset */
    int num_slots, num_states;
    bool precision_aware;
    void *memory; /* of all states and masters */
    bool masters_taken;
    brg_kernel_state kernel;

    void *done; /* event: this optimizer's last update, a chain's last step */
    brg_stream done_stream;
    bool done_recorded;
    bool done_captured; /* recorded into a graph: nothing outside of it can wait for it */
    brg_graph_hook graph_hook;

    /* Of the optimizer that is given to brg_step(): a chain, or one without a chain. */
    brg_optimizer **children; /* a chain's; an entry is NULL once it has been destroyed */
    int num_children;         /* 0: not a chain */
    double max_grad_norm, grad_scale;
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

/* What kinds of optimizers differ in. */
typedef struct brg_optim_traits {
    const brg_optim_class *class;
    const int *groups; /* to claim; NULL: all that are layer-wise, or all that are not */
    int num_groups;
    bool layerwise;
    int num_states; /* arrays of state beside the master */
    bool precision_aware;
} brg_optim_traits;

/* Fills the zeroed `optimizer`: claims groups, makes ranges and slots with states of zeros. On
 * failure brg_optimizer_destroy() frees what there is. */
brg_status brg_optim_init(brg_optimizer *optimizer, brg_scheduler *sched,
                          const brg_optim_traits *traits);
/* The part of the above that a chain needs too. */
brg_status brg_optim_init_common(brg_optimizer *optimizer, const brg_optim_class *class,
                                 brg_scheduler *sched);

/* state.c: ranges, slots and their memory, from the claimed groups. */
brg_status brg_optim_make_state(brg_optimizer *optimizer);
void brg_optim_free_state(brg_optimizer *optimizer);
/* Reads the float32 masters of parameters of other types. On the stream. */
void brg_optim_take_masters(brg_optimizer *optimizer);
bool brg_optim_owns_group(const brg_optimizer *optimizer, int group);
/* How many ranges from `first` on have the same types as it. */
int brg_optim_same_types(const brg_optimizer *optimizer, int first);

/* Orders `stream` after the optimizer's last work on another one; records its work on `stream`;
 * blocks until it is done. With graphs: a captured step neither waits for work outside of the
 * capture nor is it waited for. Whoever replays it orders replays, and calls brg_optim_record()
 * for the optimizer that is stepped behind each. */
brg_status brg_optim_follow(brg_optimizer *optimizer, brg_stream stream);
brg_status brg_optim_record(brg_optimizer *optimizer, brg_stream stream);
brg_status brg_optim_wait(brg_optimizer *optimizer);
bool brg_optim_capturing(const brg_optimizer *optimizer, brg_stream stream);

/* Around what updates a member on `stream`: the trace's marks; then the event and the gathers. */
brg_status brg_optim_begin_update(brg_optimizer *member, brg_stream stream);
brg_status brg_optim_end_update(brg_optimizer *member, brg_stream stream);

/* host_step.c: a step by host functions. begin fails without having put anything on a stream. */
brg_status brg_host_step_begin(brg_optimizer *root, brg_step_job **job);
void brg_host_step_cancel(brg_step_job *job);
brg_status brg_host_step_enqueue(brg_step_job *job, brg_stream stream);
brg_status brg_host_reload(brg_optimizer *member, brg_stream stream);
void brg_host_free_jobs(brg_optimizer *optimizer);

/* kernel_state.c, kernel_step.c: the same by kernels. */
brg_status brg_kernel_state_create(brg_optimizer *optimizer);
void brg_kernel_state_destroy(brg_optimizer *optimizer);
/* Whether the step may be taken, and is captured; then, if it is not, what it needs besides. Neither
 * puts anything on streams. */
brg_status brg_kernel_step_check(brg_optimizer *root, brg_stream stream, bool *captured);
brg_status brg_kernel_step_prepare(brg_optimizer *root);
brg_status brg_kernel_step_enqueue(brg_optimizer *root, brg_stream stream);
brg_status brg_kernel_take_masters(brg_optimizer *member, brg_stream stream);
/* Updates that `member` of `root` has had; after brg_optim_wait(root). */
int64_t brg_kernel_num_steps(brg_optimizer *root, const brg_optimizer *member);
extern const brg_grad_hooks brg_kernel_grad_hooks; /* with the optimizer as their argument */

/* `stream` waits for sums that are being made on a stream of their own. */
brg_status brg_kernel_join_sums(brg_optimizer *optimizer, brg_stream stream);

/* Stores learning rates that have changed where captured steps read them. Before each replay, on
 * its stream. */
brg_status brg_optim_refresh_lr(brg_optimizer *optimizer, brg_stream stream);

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
