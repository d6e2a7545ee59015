/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/blas.h"
#include "tools/train/trainer.h"

#define MAX_EVAL_WINDOWS 512

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != BRG_OK)                                                                      \
            goto out;                                                                              \
    } while (0)

int trainer_fail(trainer *t, brg_status status)
{
    fflush(stdout);
    if (t->ctx)
        fprintf(stderr, "brigade-train: rank %d: %s: %s\n", t->rank, brg_status_str(status),
                brg_last_error());
    else
        fprintf(stderr, "brigade-train: %s: %s\n", brg_status_str(status), brg_last_error());
    if (t->ctx)
        brg_context_abort(t->ctx);
    return 1;
}

/* What all ranks find wrong alike is said once. The others wait for that, since a launcher ends
 * rank 0 as soon as one of them is gone. */
static int refuse(trainer *t, const char *message)
{
    if (t->rank == 0)
        cli_fail(&train_command, CLI_USAGE, "%s", message);
    brg_barrier(t->ctx);
    return CLI_USAGE;
}

static int load_data(trainer *t)
{
    char path[PATH_MAX], message[PATH_MAX + 512];
    const char *file = t->options.data;
    if (!file) {
        if (data_find(path, sizeof path, message, sizeof message))
            return cli_fail(&train_command, CLI_INPUT, "%s", message);
        file = path;
    }
    if (data_load(file, (int)t->options.seq_len, &t->data, message, sizeof message))
        return cli_fail(&train_command, CLI_INPUT, "%s", message);
    t->eval_windows = data_held_out_count(&t->data, MAX_EVAL_WINDOWS);
    return -1;
}

/* The model computes on the CPU, wherever a GPU might answer; who asks for another device by name
 * gets the library's word on it. */
static brg_status open_context(trainer *t)
{
    const char *device = getenv("BRIGADE_DEVICE");
    bool any = !device || !*device || !strcmp(device, "auto");
    brg_context_options options = {.size = sizeof options,
                                   .device = any ? BRG_DEVICE_HOST : BRG_DEVICE_AUTO};
    brg_status status = brg_context_open(&options, &t->ctx);
    if (status != BRG_OK)
        return status;
    t->rank = brg_context_rank(t->ctx);
    t->ranks = brg_context_world_size(t->ctx);
    const char *local = getenv("LOCAL_WORLD_SIZE");
    int local_ranks = local ? atoi(local) : 0;
    blas_share_cores(local_ranks > 0 ? local_ranks : t->ranks);
    return BRG_OK;
}

static brg_status make_buffers(trainer *t)
{
    static const brg_algorithm algorithms[] = {[ALGORITHM_FLAT] = BRG_FLAT,
                                               [ALGORITHM_ELEMENTWISE] = BRG_ELEMENTWISE,
                                               [ALGORITHM_LAYERWISE] = BRG_LAYERWISE};
    static const brg_packing packings[] = {BRG_PACKING_DEFAULT, BRG_PACKING_LPT, BRG_PACKING_ABSORB,
                                           BRG_PACKING_NS_BALANCED};
    const train_options *o = &t->options;
    brg_layout_options layout = {
        .size = sizeof layout,
        .algorithm = algorithms[o->algorithm],
        .packing = packings[o->packing],
        .data_parallel_size = t->ranks,
        .bucket_size = o->bucket_size,
    };
    brg_scheduler_options sched = {
        .size = sizeof sched,
        .overlap_grad_reduce = o->overlap == OVERLAP_GRAD || o->overlap == OVERLAP_BOTH,
        .overlap_param_gather = o->overlap == OVERLAP_PARAM || o->overlap == OVERLAP_BOTH,
        .grad_scaling = BRG_SCALE_AVERAGE,
    };
    brg_status status;
    TRY(brg_layout_compute(t->m->params, t->m->num_params, &layout, &t->layout));
    TRY(brg_scheduler_create(t->ctx, t->layout, &sched, &t->sched));
    for (int i = 0; i < t->m->num_params; i++)
        model_bind(t->m, i, brg_param_data(t->sched, i), brg_grad_data(t->sched, i));
    model_init(t->m, (uint64_t)o->seed);
    TRY(brg_broadcast_params(t->sched, 0, t->stream)); /* whatever their libm, all start alike */
    TRY(brg_stream_synchronize(t->ctx, t->stream));
out:
    return status;
}

/* Whether the buckets of `group` hold whole matrices for Muon. */
static bool group_is_layerwise(const trainer *t, int group)
{
    brg_bucket_info info;
    for (int i = 0; i < brg_scheduler_num_buckets(t->sched); i++)
        if (brg_scheduler_bucket(t->sched, i, &info) == BRG_OK && info.group == group)
            return brg_layout_get_buffer(t->layout, info.buffer)->key.layerwise;
    return false;
}

enum { MUON, ADAMW, SGD };

static brg_status add_child(trainer *t, int kind, const int *groups, int num_groups)
{
    const train_options *o = &t->options;
    /* In options zero asks for the default; none at all is a negative value. */
    const double decay = o->weight_decay > 0 ? o->weight_decay : -1;
    brg_optimizer **child = &t->children[t->num_children];
    double *lr = &t->peak_lr[t->num_children++];
    if (kind == MUON) {
        *lr = o->muon_lr;
        return brg_muon_create(t->sched,
                               &(brg_muon_options){.size = sizeof(brg_muon_options),
                                                   .extra_scale = 0.2, /* AdamW's size of update */
                                                   .weight_decay = decay,
                                                   .groups = groups,
                                                   .num_groups = num_groups},
                               child);
    }
    if (kind == ADAMW) {
        *lr = o->lr;
        return brg_adamw_create(t->sched,
                                &(brg_adamw_options){.size = sizeof(brg_adamw_options),
                                                     .beta2 = 0.99,
                                                     .weight_decay = decay,
                                                     .groups = groups,
                                                     .num_groups = num_groups},
                                child);
    }
    *lr = o->sgd_lr;
    return brg_sgd_create(t->sched,
                          &(brg_sgd_options){.size = sizeof(brg_sgd_options),
                                             .momentum = 0.9,
                                             .groups = groups,
                                             .num_groups = num_groups},
                          child);
}

static brg_status split_qkv(trainer *t)
{
    const int64_t dim = t->options.dim;
    const int64_t rows[3] = {dim, dim, dim};
    brg_status status = BRG_OK;
    for (int layer = 0; layer < t->options.layers && status == BRG_OK; layer++)
        status = brg_muon_set_row_split(t->children[t->num_children - 1],
                                        model_block_param(layer, QKV_WEIGHT), 1, rows, 3);
    return status;
}

/* Deals the bucket groups out: Muon gets the layer-wise ones, SGD (in a chain of three) the last of
 * the others, AdamW what is between. Returns -1, or an exit code after printing why. */
static int make_optimizers(trainer *t)
{
    const int groups = brg_scheduler_num_groups(t->sched), wanted = (int)t->options.chain;
    const bool muon = t->options.optimizer == OPTIMIZER_MUON_ADAMW;
    int *ids = calloc((size_t)groups + 1, sizeof *ids);
    int first = 0, used = 0, code = -1;
    brg_status status = BRG_OK;
    if (!ids) {
        fprintf(stderr, "brigade-train: rank %d: out of memory\n", t->rank);
        return 1;
    }
    for (int pass = muon ? 1 : 0; pass >= 0;
         pass--) { /* layer-wise ones in front, if they matter */
        for (int g = 0; g < groups; g++)
            if (!muon || group_is_layerwise(t, g) == (pass == 1))
                ids[used++] = g;
        if (pass == 1)
            first = used;
    }
    int others = groups - first, rest = wanted - (muon ? 1 : 0);
    if (others < rest) {
        char message[256];
        snprintf(
            message, sizeof message,
            "--chain %d needs %d bucket groups%s, there are %d; choose a smaller --bucket-size",
            wanted, rest, muon ? " besides Muon's" : "", others);
        code = refuse(t, message);
        goto out;
    }
    for (int last = groups; rest > 0; rest--) {
        /* One group for SGD, the half of what is left for one of two AdamW, all for the last. */
        const bool sgd = wanted == 3 && t->num_children == 0 && rest > 1;
        const int count = sgd ? 1 : rest == 2 ? (last - first) / 2 : last - first;
        last -= count;
        TRY(add_child(t, sgd ? SGD : ADAMW, ids + last, count));
    }
    /* The slowest update comes last: the others' gathers run under it. */
    if (muon) {
        TRY(add_child(t, MUON, ids, first));
        TRY(split_qkv(t));
    }
    brg_chain_options chain = {.size = sizeof chain, .max_grad_norm = t->options.clip};
    TRY(brg_chain_create(t->children, t->num_children, &chain, &t->chain));
out:
    free(ids);
    return status == BRG_OK ? code : trainer_fail(t, status);
}

int trainer_open(trainer *t, const train_options *options)
{
    char message[256];
    brg_status status;
    *t = (trainer){.options = *options};
    int code = load_data(t);
    if (code >= 0)
        return code;
    TRY(open_context(t));
    code = options_check_ranks(options, t->ranks, message, sizeof message);
    if (code >= 0)
        return refuse(t, message);
    t->micro_batch = (int)(options->global_batch / t->ranks / options->grad_accumulation);
    const model_config config = {
        .vocab = t->data.vocab,
        .seq_len = (int)options->seq_len,
        .dim = (int)options->dim,
        .heads = (int)options->heads,
        .layers = (int)options->layers,
        .max_batch = t->micro_batch,
        .tied = options->tied,
    };
    t->m = model_create(&config);
    if (!t->m || !trainer_make_jobs(t)) {
        fprintf(stderr, "brigade-train: rank %d: no memory for this model and batch\n", t->rank);
        brg_context_abort(t->ctx);
        return 1;
    }
    TRY(brg_stream_create(t->ctx, &t->stream));
    TRY(make_buffers(t));
    return make_optimizers(t);
out:
    return trainer_fail(t, status);
}

void trainer_close(trainer *t)
{
    brg_optimizer_destroy(t->chain);
    for (int i = 0; i < t->num_children; i++)
        brg_optimizer_destroy(t->children[i]);
    if (t->ctx)
        brg_stream_destroy(t->ctx, t->stream);
    brg_scheduler_destroy(t->sched);
    brg_layout_destroy(t->layout);
    brg_context_close(t->ctx);
    model_destroy(t->m);
    data_free(&t->data);
    free(t->batches);
    free(t->tokens);
    free(t->losses);
    free(t->jobs);
}
