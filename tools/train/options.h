/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of brigade-train. */
#ifndef BRIGADE_TOOLS_TRAIN_OPTIONS_H
#define BRIGADE_TOOLS_TRAIN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/brigade/cli.h"

enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON_ADAMW };
enum { OVERLAP_NONE, OVERLAP_GRAD, OVERLAP_PARAM, OVERLAP_BOTH };
enum { ALGORITHM_AUTO, ALGORITHM_FLAT, ALGORITHM_ELEMENTWISE, ALGORITHM_LAYERWISE };

#define TRAIN_MAX_CHILDREN 3

typedef struct train_options {
    int64_t steps, seed, global_batch, grad_accumulation;
    int64_t layers, dim, heads, seq_len;
    int64_t bucket_size; /* elements */
    int64_t chain;       /* children; 0: as many as the optimizer needs */
    int64_t log_every, eval_every, warmup;
    int optimizer, overlap, algorithm, packing;
    double lr, muon_lr, sgd_lr, weight_decay, clip;
    const char *data, *json;
    bool tied, quiet;
} train_options;

extern const cli_command train_command;

/* Returns -1 or an exit code, after saying why. Also checks what does not depend on the ranks. */
int options_parse(int argc, char **argv, train_options *options);

/* Checks the batch against the number of ranks. Returns -1 or CLI_USAGE with one line in message.
 */
int options_check_ranks(const train_options *options, int ranks, char *message, size_t bytes);

#endif
