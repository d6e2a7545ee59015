/* SPDX-License-Identifier: Apache-2.0 */
/* The command: finds the subcommand and hands over. A new subcommand is one line in cli_commands
 * and one in meson.build. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tools/brigade/cli.h"

/* clang-format off */
const cli_entry *const cli_commands[] = {
    &cli_run,
    &cli_bench,
    &cli_plan,
    &cli_report,
    &cli_compare,
    &cli_doctor,
    &cli_version,
    &cli_completion,
    &cli_help,
    NULL,
};
/* clang-format on */

static bool version_wanted;

static const cli_option top_options[] = {
    {.name = "version",
     .short_name = 'V',
     .type = CLI_FLAG,
     .dest = &version_wanted,
     .help = "Print the version and exit."},
    {.name = NULL},
};

const cli_command cli_top = {
    .name = "",
    .summary = "Schedules, times and speeds up the data-parallel communication of training jobs.",
    .usage = "COMMAND [options]",
    .options = top_options,
    .stop_at_positional = true,
};

/* A file opened later must not land on a standard descriptor that the caller closed: opened the
 * wrong way round, they give the error that a closed one would. */
static void guard_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    int first = 0;
    guard_standard_fds();
    cli_sigpipe_ignored = signal(SIGPIPE, SIG_IGN) == SIG_IGN;
    if (argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
        cli_print_overview(stdout);
        return cli_finish(&cli_top, CLI_OK);
    }
    int code = cli_parse(&cli_top, argc, argv, &first);
    if (code >= 0)
        return code;
    if (version_wanted)
        return cli_version.run(1, (char *[]){"version", NULL});
    if (first >= argc) {
        cli_print_overview(stderr);
        return CLI_USAGE;
    }
    const cli_entry *entry = cli_find(cli_commands, argv[first], &cli_top);
    return entry ? entry->run(argc - first, argv + first) : CLI_USAGE;
}
