/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sched/optim/optimizer_impl.h"
#include "sched/options.h"

/* Shape and row split of a slot's matrix. */
typedef struct matrix {
    int64_t rows, cols;
    brg_row_split split; /* num_blocks 0: none; block_rows is owned */
} matrix;

typedef struct muon {
    brg_optimizer base;
    brg_muon_hyper hyper;
    brg_ns_schedule schedule;
    brg_ns_workspace workspace; /* one for all: matrices are updated one after another */
    matrix *matrices;           /* one per slot */

    /* With a kernel table. */
    int precision, algorithm;
    int32_t restarts[BRG_NS_MAX_STEPS];
    int num_restarts;    /* -1: chosen by the plan */
    brg_muon_plan *plan; /* NULL: to be made by the next step */
} muon;

static void update(brg_optimizer *optimizer, double lr, double grad_scale)
{
    muon *self = (muon *)optimizer;
    brg_muon_hyper hyper = self->hyper;
    hyper.lr = lr;
    for (int i = 0; i < optimizer->num_slots; i++) {
        brg_optim_slot *slot = &optimizer->slots[i];
        const matrix *m = &self->matrices[i];
        brg_muon_host(&slot->target, slot->states[0], m->rows, m->cols,
                      m->split.num_blocks > 0 ? &m->split : NULL, grad_scale, &hyper,
                      &self->schedule, &self->workspace);
        slot->steps++;
    }
}

/* The matrices of one slot: itself, or one for each block of its rows. Returns their number. */
static int slot_matrices(const muon *self, int index, brg_muon_matrix *out)
{
    const brg_optim_slot *slot = &self->base.slots[index];
    const matrix *m = &self->matrices[index];
    const int64_t whole = m->rows;
    const brg_row_split one = {1, 1, &whole};
    const brg_row_split *split = m->split.num_blocks > 0 ? &m->split : &one;
    size_t param_bytes = brg_dtype_bytes(slot->target.param_dtype);
    size_t grad_bytes = brg_dtype_bytes(slot->target.grad_dtype);
    size_t first = 0; /* element */
    for (int b = 0; out && b < split->num_blocks; b++) {
        out[b] = (brg_muon_matrix){
            .param = (char *)slot->target.param + first * param_bytes,
            .grad = (const char *)slot->target.grad + first * grad_bytes,
            .master = slot->target.master + first,
            .momentum = (float *)slot->states[0] + first,
            .rows = split->block_rows[b] * split->num_groups,
            .cols = m->cols,
            .num_pieces = split->num_groups,
            .piece_stride = m->rows / split->num_groups * m->cols,
            .param_dtype = (int32_t)slot->target.param_dtype,
            .grad_dtype = (int32_t)slot->target.grad_dtype,
        };
        first += (size_t)split->block_rows[b] * (size_t)m->cols;
    }
    return split->num_blocks;
}

static brg_status make_plan(muon *self, const char *cache_file)
{
    const brg_kernels *kernels = self->base.device->kernels;
    char message[256] = "";
    int count = 0;
    for (int i = 0; i < self->base.num_slots; i++)
        count += slot_matrices(self, i, NULL);
    brg_muon_matrix *matrices = calloc((size_t)count + 1, sizeof *matrices);
    if (!matrices)
        return brg_fail(BRG_ERR_NO_MEMORY, "muon: no memory for %d matrices", count);
    for (int i = 0, at = 0; i < self->base.num_slots; i++)
        at += slot_matrices(self, i, matrices + at);
    const brg_muon_config config = {
        .num_steps = self->schedule.num_steps,
        .tuples = (const double(*)[3])self->schedule.tuples,
        .precision = self->precision,
        .algorithm = self->algorithm,
        .restarts = self->restarts,
        .num_restarts = self->num_restarts,
        .nesterov = self->hyper.nesterov,
        .accumulate = self->hyper.style == BRG_MOMENTUM_ACCUMULATE,
        .scale = (int32_t)self->hyper.scale,
        .momentum = self->hyper.momentum,
        .eps = self->hyper.eps,
        .extra_scale = self->hyper.extra_scale,
        .cache_file = cache_file,
    };
    int error =
        kernels->muon_create(matrices, count, &config, &self->plan, message, sizeof message);
    free(matrices);
    if (error == BRG_RT_OK)
        return BRG_OK;
    self->plan = NULL;
    brg_status status = brg_rt_status(self->base.device, error, "muon");
    return message[0] ? brg_fail(status, "muon: %s", message) : status;
}

/* Where autotuned choices are kept: the file that BRIGADE_TUNE_CACHE names, "" for none, else one
 * in the user's cache directory, which is made. Returns NULL for none. */
static const char *cache_path(char *path, size_t bytes)
{
    const char *chosen = getenv("BRIGADE_TUNE_CACHE"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (chosen)
        return chosen[0] ? chosen : NULL;
    int length = -1;
    if (cache && cache[0])
        length = snprintf(path, bytes, "%s/brigade/tune", cache);
    else if (home && home[0])
        length = snprintf(path, bytes, "%s/.cache/brigade/tune", home);
    if (length < 0 || (size_t)length >= bytes)
        return NULL;
    char *slash = strrchr(path, '/'), *parent = slash;
    *slash = '\0';
    if (mkdir(path, 0777) != 0 && errno == ENOENT && (parent = strrchr(path, '/'))) {
        *parent = '\0'; /* the cache directory itself is missing */
        mkdir(path, 0700);
        *parent = '/';
        mkdir(path, 0777);
    }
    *slash = '/';
    return path; /* a file that cannot be written is the plan's to ignore */
}

static brg_status prepare(brg_optimizer *optimizer)
{
    muon *self = (muon *)optimizer;
    char path[512];
    return self->plan ? BRG_OK : make_plan(self, cache_path(path, sizeof path));
}

static brg_status launch(brg_optimizer *optimizer, const brg_step_state *step, brg_stream stream)
{
    const brg_device *device = optimizer->device;
    return brg_rt_status(device,
                         device->kernels->muon_update(((muon *)optimizer)->plan, step,
                                                      optimizer->kernel.hyper, stream),
                         "muon");
}

static void drop_plan(muon *self)
{
    if (self->plan)
        self->base.device->kernels->muon_destroy(self->plan);
    self->plan = NULL;
}

static void destroy(brg_optimizer *optimizer)
{
    muon *self = (muon *)optimizer;
    for (int i = 0; self->matrices && i < optimizer->num_slots; i++)
        free((void *)self->matrices[i].split.block_rows);
    free(self->matrices);
    drop_plan(self);
    brg_ns_workspace_destroy(&self->workspace);
}

static const brg_optim_class muon_class = {
    .name = "muon", .update = update, .prepare = prepare, .launch = launch, .destroy = destroy};

static brg_status read_options(const brg_muon_options *from, brg_muon_options *o)
{
    brg_status status;
    BRG_TRY(brg_options_copy("muon", o, sizeof *o, from), out);
    BRG_TRY(brg_optim_option("muon", "lr", &o->lr, 0.02, 0, INFINITY), out);
    BRG_TRY(brg_optim_option("muon", "momentum", &o->momentum, 0.95, 0, 1), out);
    BRG_TRY(brg_optim_option("muon", "extra_scale", &o->extra_scale, 1, 0, INFINITY), out);
    BRG_TRY(brg_optim_option("muon", "weight_decay", &o->weight_decay, 0, 0, INFINITY), out);
    BRG_TRY(brg_optim_option("muon", "eps", &o->eps, 1e-15, 0, INFINITY), out);
    if ((unsigned)o->momentum_style > BRG_MOMENTUM_ACCUMULATE)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: unknown momentum style %d",
                        (int)o->momentum_style);
    if ((unsigned)o->scale > BRG_SCALE_SHAPE_SCALING)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: unknown scale %d", (int)o->scale);
    if ((unsigned)o->ns_precision > BRG_NS_FP32)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: unknown ns_precision %d",
                        (int)o->ns_precision);
    if ((unsigned)o->ns_algorithm > BRG_NS_GRAM)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: unknown ns_algorithm %d",
                        (int)o->ns_algorithm);
    if (o->ns_algorithm == BRG_NS_GRAM && o->ns_precision == BRG_NS_BF16)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "muon: ns_algorithm gram needs ns_precision fp16 or fp32, not bf16");
out:
    return status;
}

static brg_status read_restarts(muon *self, const brg_muon_options *o)
{
    self->num_restarts = o->ns_restarts ? o->num_ns_restarts : -1;
    if (o->ns_restarts && o->num_ns_restarts < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: a list of %d ns_restarts",
                        o->num_ns_restarts);
    for (int i = 0; i < self->num_restarts; i++) {
        int least = i > 0 ? o->ns_restarts[i - 1] + 1 : 1, most = self->schedule.num_steps - 1;
        if (o->ns_restarts[i] < least || o->ns_restarts[i] > most)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "muon: ns_restarts[%d] is %d, expected ascending steps from 1 to %d", i,
                            o->ns_restarts[i], most);
        self->restarts[i] = o->ns_restarts[i]; /* ascending, so there is room for all */
    }
    return BRG_OK;
}

/* Every matrix of a layer-wise group lies whole in one shard, so that a rank has all of it or
 * nothing. */
static brg_status read_matrices(muon *self)
{
    const brg_layout *layout = brg_sched_layout(self->base.sched);
    int num_slots = self->base.num_slots;
    int64_t max_elems = 0, max_side = 0;
    for (int i = 0; i < self->base.num_groups; i++)
        if (!brg_sched_group_layerwise(self->base.sched, self->base.groups[i]))
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "muon: bucket group %d is not layer-wise; its shards may cut matrices",
                            self->base.groups[i]);
    self->matrices = calloc((size_t)num_slots + 1, sizeof *self->matrices);
    if (!self->matrices)
        return brg_fail(BRG_ERR_NO_MEMORY, "muon: no memory for %d matrices", num_slots);
    for (int i = 0; i < num_slots; i++) {
        const brg_optim_slot *slot = &self->base.slots[i];
        const brg_param *param = brg_layout_param_info(layout, slot->param);
        int64_t rows = param->shape[0], cols = param->shape[1];
        if (param->num_dims != 2 || slot->param_start != 0 ||
            (int64_t)slot->target.numel != rows * cols)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "muon: parameter %s is not a whole matrix (%d dimensions, %zu elements "
                            "from %lld on)",
                            param->name, param->num_dims, slot->target.numel,
                            (long long)slot->param_start);
        if (param->ns_row_multiplier > 1)
            return brg_fail(
                BRG_ERR_UNSUPPORTED,
                "muon: parameter %s is one of %lld row pieces of a matrix; Newton-Schulz "
                "over several ranks is not available",
                param->name, (long long)param->ns_row_multiplier);
        if (rows > INT_MAX || cols > INT_MAX)
            return brg_fail(BRG_ERR_UNSUPPORTED,
                            "muon: parameter %s is %lld x %lld, too large for BLAS", param->name,
                            (long long)rows, (long long)cols);
        int64_t side = rows < cols ? rows : cols;
        max_elems = rows * cols > max_elems ? rows * cols : max_elems;
        max_side = side > max_side ? side : max_side;
        self->matrices[i].rows = rows;
        self->matrices[i].cols = cols;
    }
    if (self->base.device->kernels)
        return BRG_OK; /* the plan has its own */
    return brg_ns_workspace_create(max_elems, max_side, self->schedule.steep, &self->workspace);
}

brg_status brg_muon_create(brg_scheduler *sched, const brg_muon_options *options,
                           brg_optimizer **optimizer)
{
    brg_status status;
    muon *made = NULL;
    if (!optimizer)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: no place for the optimizer");
    *optimizer = NULL;
    if (!sched)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "muon: scheduler is NULL");
    brg_muon_options o = {0};
    brg_ns_schedule schedule;
    BRG_TRY(read_options(options, &o), fail);
    BRG_TRY(brg_ns_schedule_make(o.coefficients, o.num_steps, o.custom, o.num_custom, &schedule),
            fail);
    made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "muon: no memory");
    made->schedule = schedule;
    made->precision = (int)o.ns_precision;
    made->algorithm = (int)o.ns_algorithm;
    made->hyper = (brg_muon_hyper){.lr = o.lr,
                                   .momentum = o.momentum,
                                   .weight_decay = o.weight_decay,
                                   .eps = o.eps,
                                   .extra_scale = o.extra_scale,
                                   .style = o.momentum_style,
                                   .scale = o.scale,
                                   .nesterov = !o.no_nesterov};
    made->base.lr = o.lr;
    made->base.weight_decay = o.weight_decay;
    BRG_TRY(brg_optim_init(&made->base, sched,
                           &(brg_optim_traits){.class = &muon_class,
                                               .groups = o.groups,
                                               .num_groups = o.num_groups,
                                               .layerwise = true,
                                               .num_states = 1}),
            fail);
    BRG_TRY(read_restarts(made, &o), fail);
    BRG_TRY(read_matrices(made), fail);
    *optimizer = &made->base;
    return BRG_OK;
fail:
    if (made)
        brg_optimizer_destroy(&made->base);
    return status;
}

/* Checked against the layout, not against this rank's slots: every rank gives the same answer. */
static brg_status check_row_split(const muon *self, int param, int64_t num_row_groups,
                                  const int64_t *block_rows, int num_blocks)
{
    const brg_param *info = brg_layout_param_info(brg_sched_layout(self->base.sched), param);
    if (!info)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "row split: there is no parameter %d", param);
    brg_bucket_info bucket;
    brg_status status = brg_scheduler_bucket(
        self->base.sched, brg_scheduler_bucket_of(self->base.sched, param), &bucket);
    if (status != BRG_OK)
        return status;
    if (brg_sched_group_owner(self->base.sched, bucket.group) != &self->base)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "row split: parameter %s is not owned by this optimizer", info->name);
    if (num_row_groups < 1 || num_blocks < 1 || !block_rows)
        return brg_fail(
            BRG_ERR_INVALID_ARGUMENT,
            "row split of parameter %s: %lld row groups of %d blocks, expected at least one",
            info->name, (long long)num_row_groups, num_blocks);
    int64_t sum = 0, rows = 0;
    for (int i = 0; i < num_blocks; i++)
        if (block_rows[i] < 1 || __builtin_add_overflow(sum, block_rows[i], &sum))
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "row split of parameter %s: block %d has %lld rows", info->name, i,
                            (long long)block_rows[i]);
    if (__builtin_mul_overflow(num_row_groups, sum, &rows) || rows != info->shape[0])
        return brg_fail(
            BRG_ERR_INVALID_ARGUMENT,
            "row split of parameter %s: %lld groups of %lld rows given, the matrix has %lld "
            "rows",
            info->name, (long long)num_row_groups, (long long)sum, (long long)info->shape[0]);
    return BRG_OK;
}

brg_status brg_muon_set_row_split(brg_optimizer *optimizer, int param, int64_t num_row_groups,
                                  const int64_t *block_rows, int num_blocks)
{
    brg_status status;
    if (!optimizer || optimizer->class != &muon_class)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "row split: the optimizer is %s, expected a muon",
                        optimizer ? optimizer->class->name : "NULL");
    muon *self = (muon *)optimizer;
    BRG_ON_DEVICE(optimizer->ctx);
    BRG_TRY(check_row_split(self, param, num_row_groups, block_rows, num_blocks), out);
    if (optimizer->device->kernels) /* whether or not this rank has a plan */
        BRG_TRY(brg_sched_refuse_with_graphs(optimizer->sched, "row split"), out);
    BRG_TRY(brg_optim_wait(optimizer), out); /* no update may be reading it */
    for (int i = 0; i < optimizer->num_slots; i++) {
        if (optimizer->slots[i].param != param)
            continue;
        size_t bytes = (size_t)num_blocks * sizeof *block_rows;
        int64_t *copy = malloc(bytes);
        if (!copy)
            return brg_fail(BRG_ERR_NO_MEMORY, "row split: no memory for %d blocks", num_blocks);
        memcpy(copy, block_rows, bytes);
        brg_row_split *split = &self->matrices[i].split;
        free((void *)split->block_rows);
        *split = (brg_row_split){num_row_groups, num_blocks, copy};
        drop_plan(self);
    }
out:
    return status;
}
