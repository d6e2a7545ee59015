/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a model: a JSON list of parameters in model-definition order, as `brigade plan` and
 * `brigade bench step` take it. */
#ifndef BRIGADE_TOOLS_PARAMS_H
#define BRIGADE_TOOLS_PARAMS_H

#include <jansson.h>

#include "brigade/param.h"
#include "tools/brigade/cli.h"

typedef struct params_list {
    const cli_command *command; /* for messages, as is the file's name */
    const char *file;
    json_t *root; /* owns the names */
    brg_param *params;
    int count;
} params_list;

/* Return an exit code, after a message if it is not CLI_OK; then there is nothing to free. The file
 * "-" is standard input. */
int params_load(const cli_command *command, const char *file, params_list *list);
int params_load_json(const cli_command *command, const char *file, json_t **root);
void params_free(params_list *list);

#endif
