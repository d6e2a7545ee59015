/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/options.h"

#define UNLIMITED 9e18

static train_options chosen = {
    .steps = 250,
    .seed = 1,
    .global_batch = 16,
    .grad_accumulation = 1,
    .layers = 4,
    .dim = 128,
    .heads = 4,
    .seq_len = 128,
    .bucket_size = 16384,
    .log_every = 20,
    .warmup = -1,
    .optimizer = OPTIMIZER_MUON_ADAMW,
    .overlap = OVERLAP_BOTH,
    .lr = 3e-3,
    .muon_lr = 0.01,
    .sgd_lr = 0.1,
    .weight_decay = 0.01,
    .clip = 1.0,
};

static const char *const optimizer_names[] = {"adamw", "muon+adamw", NULL};
static const char *const overlap_names[] = {"none", "grad", "param", "both", NULL};
static const char *const algorithm_names[] = {"auto", "flat", "elementwise", "layerwise", NULL};
static const char *const packing_names[] = {"default", "lpt", "absorb", "ns-balanced", NULL};

static const cli_option table[] = {
    {"steps", 0, CLI_INT, &chosen.steps, "N", "Optimizer steps (250).", NULL, 1, 1e9, NULL},
    {"seed", 0, CLI_INT, &chosen.seed, "S", "Seed of initial values and samples (1).", NULL, 0,
     UNLIMITED, NULL},
    {"optimizer", 0, CLI_CHOICE, &chosen.optimizer, NULL,
     "What updates the parameters (muon+adamw: Muon for the blocks' matrices, AdamW for the rest).",
     optimizer_names, 0, 0, NULL},
    {"overlap", 0, CLI_CHOICE, &chosen.overlap, NULL,
     "What runs under compute: gradient reductions, parameter gathers, both (the default) or none.",
     overlap_names, 0, 0, NULL},
    {"global-batch", 0, CLI_INT, &chosen.global_batch, "N",
     "Samples a step over all ranks (16); a multiple of ranks times --grad-accumulation.", NULL, 1,
     65536, NULL},
    {"grad-accumulation", 0, CLI_INT, &chosen.grad_accumulation, "N",
     "Passes a step on each rank, gradients summed locally (1).", NULL, 1, 65536, NULL},
    {"bucket-size", 0, CLI_SIZE, &chosen.bucket_size, "N",
     "Elements at which a bucket is closed (16K).", NULL, 1, UNLIMITED, NULL},
    {"algorithm", 0, CLI_CHOICE, &chosen.algorithm, NULL,
     "Layout; auto takes layerwise with Muon and elementwise without.", algorithm_names, 0, 0,
     NULL},
    {"packing", 0, CLI_CHOICE, &chosen.packing, NULL, "Packing of a layerwise layout.",
     packing_names, 0, 0, NULL},
    {"chain", 0, CLI_INT, &chosen.chain, "N",
     "Optimizers chained on disjoint buckets, 1 to 3: 3 adds SGD with momentum for the last ones.",
     NULL, 1, TRAIN_MAX_CHILDREN, NULL},
    {"lr", 0, CLI_DOUBLE, &chosen.lr, "X", "Peak learning rate of AdamW (3e-3).", NULL, 0, 1e3,
     NULL},
    {"muon-lr", 0, CLI_DOUBLE, &chosen.muon_lr, "X", "Peak learning rate of Muon (0.01).", NULL, 0,
     1e3, NULL},
    {"sgd-lr", 0, CLI_DOUBLE, &chosen.sgd_lr, "X", "Peak learning rate of SGD (0.1).", NULL, 0, 1e3,
     NULL},
    {"warmup", 0, CLI_INT, &chosen.warmup, "N",
     "Steps of linear warm-up before the cosine to a tenth (a tenth of the steps).", NULL, 0, 1e9,
     NULL},
    {"weight-decay", 0, CLI_DOUBLE, &chosen.weight_decay, "X", "Decoupled weight decay (0.01).",
     NULL, 0, 1e3, NULL},
    {"clip", 0, CLI_DOUBLE, &chosen.clip, "X", "Largest gradient norm (1); 0 does not clip.", NULL,
     0, 1e9, NULL},
    {"layers", 0, CLI_INT, &chosen.layers, "N", "Blocks of the model (4).", NULL, 1, 256, NULL},
    {"dim", 0, CLI_INT, &chosen.dim, "N", "Width of the model (128), a multiple of --heads.", NULL,
     1, 8192, NULL},
    {"heads", 0, CLI_INT, &chosen.heads, "N", "Attention heads (4).", NULL, 1, 256, NULL},
    {"seq-len", 0, CLI_INT, &chosen.seq_len, "N", "Characters of a sample (128).", NULL, 1, 8192,
     NULL},
    {"tied", 0, CLI_FLAG, &chosen.tied, NULL, "Use the token embedding as output matrix too.", NULL,
     0, 0, NULL},
    {"data", 0, CLI_STRING, &chosen.data, "FILE",
     "Text to train on (BRIGADE_TRAIN_DATA, else Pride and Prejudice, which comes along).", NULL, 0,
     0, NULL},
    {"json", 0, CLI_STRING, &chosen.json, "FILE",
     "Rank 0 writes one line a step: {\"step\":..,\"loss\":..,\"grad_norm\":..}.", NULL, 0, 0,
     NULL},
    {"log-every", 0, CLI_INT, &chosen.log_every, "N",
     "Steps from one progress line to the next (20).", NULL, 1, 1e9, NULL},
    {"eval-every", 0, CLI_INT, &chosen.eval_every, "N",
     "Steps from one evaluation on held-out text to the next; 0 (the default): only at the end.",
     NULL, 0, 1e9, NULL},
    {"quiet", 'q', CLI_FLAG, &chosen.quiet, NULL, "Print nothing but errors.", NULL, 0, 0, NULL},
    {.name = NULL},
};

const cli_command train_command = {
    .name = "",
    .program = "brigade-train",
    .summary = "Train a small GPT on a text: an example of a trainer that uses Brigade.",
    .usage = "[options]",
    .details = "Trains a character-level GPT on the CPU with data-parallel ranks. The ranks come "
               "from RANK, "
               "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as `brigade run` and torchrun "
               "set them; "
               "without them it is one rank.\n\n"
               "  brigade run -n 4 -- brigade-train --steps 200 --json curve.jsonl\n\n"
               "The loss is the mean over the characters of the global batch, in nats. It does not "
               "depend on "
               "the number of ranks but for the order of float32 sums.",
    .options = table,
};

int options_parse(int argc, char **argv, train_options *options)
{
    int first = argc;
    int code = cli_parse(&train_command, argc, argv, &first);
    if (code >= 0)
        return code;
    const train_options *o = &chosen;
    if (first < argc)
        return cli_fail(&train_command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    if (o->dim % o->heads)
        return cli_fail(&train_command, CLI_USAGE, "--dim %lld is not a multiple of --heads %lld",
                        (long long)o->dim, (long long)o->heads);
    if (o->optimizer == OPTIMIZER_MUON_ADAMW && o->chain == 1)
        return cli_fail(&train_command, CLI_USAGE, "muon+adamw is a chain of at least 2, not 1");
    if (o->optimizer == OPTIMIZER_MUON_ADAMW && o->algorithm != ALGORITHM_AUTO &&
        o->algorithm != ALGORITHM_LAYERWISE)
        return cli_fail(&train_command, CLI_USAGE,
                        "Muon needs whole matrices: --algorithm %s does not go with muon+adamw",
                        algorithm_names[o->algorithm]);
    *options = *o;
    if (options->chain == 0)
        options->chain = o->optimizer == OPTIMIZER_MUON_ADAMW ? 2 : 1;
    if (options->algorithm == ALGORITHM_AUTO)
        options->algorithm =
            o->optimizer == OPTIMIZER_MUON_ADAMW ? ALGORITHM_LAYERWISE : ALGORITHM_ELEMENTWISE;
    if (options->warmup < 0)
        options->warmup = o->steps / 10;
    return -1;
}

int options_check_ranks(const train_options *options, int ranks, char *message, size_t bytes)
{
    const int64_t passes = ranks * options->grad_accumulation;
    if (options->global_batch % passes == 0)
        return -1;
    if (options->grad_accumulation == 1)
        snprintf(message, bytes, "--global-batch %lld is not a multiple of the %d ranks",
                 (long long)options->global_batch, ranks);
    else
        snprintf(
            message, bytes,
            "--global-batch %lld is not a multiple of %d ranks x --grad-accumulation %lld = %lld",
            (long long)options->global_batch, ranks, (long long)options->grad_accumulation,
            (long long)passes);
    return CLI_USAGE;
}
