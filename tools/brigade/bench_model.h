/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes that `brigade bench step` computes with: those of a file, or of a model it knows. */
#ifndef BRIGADE_TOOLS_BENCH_MODEL_H
#define BRIGADE_TOOLS_BENCH_MODEL_H

#include "brigade/param.h"
#include "tools/brigade/params.h"

typedef struct bench_model {
    const char *name;
    brg_param *params; /* in forward order */
    int count;
    char (*names)[48]; /* of a known model */
    params_list list;  /* of a file */
} bench_model;

/* `name` is that of a known model, else a file. Floating-point parameters become `dtype`. Returns
 * an exit code, after a message. Free it in any case. */
int bench_model_load(const cli_command *command, const char *name, brg_dtype dtype,
                     bench_model *model);
void bench_model_free(bench_model *model);

#endif
