/* SPDX-License-Identifier: Apache-2.0 */
/* brigade version */
#include "brigade/status.h"
#include "tools/brigade/cli.h"

static bool json;

static const cli_option options[] = {
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "version",
    .summary = "Print the version.",
    .usage = "[--json]",
    .options = options,
};

static int version_run(int argc, char **argv)
{
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    if (json)
        printf("{\"schema\":1,\"version\":\"%s\"}\n", brg_version());
    else
        printf("brigade %s\n", brg_version());
    return cli_finish(&command, CLI_OK);
}

const cli_entry cli_version = {&command, version_run};
