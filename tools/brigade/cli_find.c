/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up commands, and listing them. */
#include <string.h>

#include "tools/brigade/cli.h"

bool cli_sigpipe_ignored;

/* "collective" of "bench collective". */
const char *cli_last_word(const cli_command *command)
{
    const char *space = strrchr(command->name, ' ');
    return space ? space + 1 : command->name;
}

const cli_entry *cli_find(const cli_entry *const *table, const char *name,
                          const cli_command *parent)
{
    enum { MAX_COMMANDS = 63 };
    const char *names[MAX_COMMANDS + 1];
    int count = 0;
    for (; *table; table++) {
        const char *word = cli_last_word((*table)->command);
        if (!strcmp(word, name))
            return *table;
        if (count < MAX_COMMANDS)
            names[count++] = word;
    }
    names[count] = NULL;
    const char *nearest = cli_nearest(name, names);
    cli_fail(parent, CLI_USAGE, "unknown %s '%s'%s%s%s (see 'brigade %s')",
             parent->name[0] ? "benchmark" : "command", name, nearest ? "; did you mean '" : "",
             nearest ? nearest : "", nearest ? "'?" : "",
             parent->name[0] ? "help bench" : "--help");
    return NULL;
}

void cli_print_list(const cli_entry *const *table, FILE *stream)
{
    enum { SUMMARY_COLUMN = 16 };
    int width = cli_width() < 100 ? cli_width() : 100;
    for (; *table; table++) {
        fprintf(stream, "  %-*s", SUMMARY_COLUMN - 2, cli_last_word((*table)->command));
        cli_print_wrapped(stream, (*table)->command->summary, SUMMARY_COLUMN, width);
    }
}

void cli_print_overview(FILE *stream)
{
    cli_print_help(&cli_top, stream);
    fprintf(stream, "\nCommands:\n");
    cli_print_list(cli_commands, stream);
    if (cli_benchmarks[0]) {
        fprintf(stream, "\nBenchmarks (brigade bench BENCHMARK):\n");
        cli_print_list(cli_benchmarks, stream);
    }
    fprintf(stream, "\n'brigade help COMMAND' explains a command.\n");
}
