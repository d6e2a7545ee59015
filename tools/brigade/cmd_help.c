/* SPDX-License-Identifier: Apache-2.0 */
/* brigade help: the same text as --help, and the man pages, from the option tables. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/cli.h"

static bool man;

static const cli_option options[] = {
    {.name = "man",
     .type = CLI_FLAG,
     .dest = &man,
     .help = "Print the manual page in troff format, for 'man -l -'."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "help",
    .summary = "Explain a command, or list them all.",
    .usage = "[--man] [COMMAND [BENCHMARK]]",
    .options = options,
};

/* Text with troff's own characters made harmless. */
static void put_escaped(const char *text, int length)
{
    for (int i = 0; i < length; i++) {
        if ((i == 0 || text[i - 1] == '\n') && (text[i] == '.' || text[i] == '\''))
            fputs("\\&", stdout);
        if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '-')
            fputs("\\-", stdout);
        else
            putchar(text[i]);
    }
}

static void put_text(const char *text)
{
    put_escaped(text, (int)strlen(text));
}

static void put_details(const char *details)
{
    bool example = false;
    while (*details) {
        const char *end = strchr(details, '\n');
        int length = end ? (int)(end - details) : (int)strlen(details);
        bool kept = *details == ' ';
        if (kept != example)
            printf(kept ? ".PP\n.nf\n" : ".fi\n");
        example = kept;
        if (!length)
            puts(".PP");
        else {
            put_escaped(details, length);
            putchar('\n');
        }
        if (!end)
            break;
        details = end + 1;
    }
    if (example)
        puts(".fi");
}

static void put_options(const cli_option *table, const cli_option *hidden_by)
{
    for (; table && table->name; table++) {
        bool hidden = false;
        for (const cli_option *o = hidden_by; o && o->name; o++)
            hidden |= !strcmp(o->name, table->name);
        if (hidden)
            continue;
        char buffer[96];
        const char *metavar = cli_metavar(table, buffer, sizeof buffer);
        puts(".TP");
        if (table->short_name)
            printf("\\fB\\-%c\\fR, ", table->short_name);
        printf("\\fB\\-\\-");
        put_text(table->name);
        printf("\\fR");
        if (metavar) {
            printf(" \\fI");
            put_text(metavar);
            printf("\\fR");
        }
        putchar('\n');
        put_text(table->help ? table->help : "");
        putchar('\n');
    }
}

static void put_list(const char *title, const cli_entry *const *table)
{
    if (!table[0])
        return;
    printf(".SH %s\n", title);
    for (; *table; table++) {
        printf(".TP\n\\fBbrigade ");
        put_text((*table)->command->name);
        printf("\\fR\n");
        put_text((*table)->command->summary);
        putchar('\n');
    }
}

/* "BRIGADE-BENCH-PLAN": dashes for the spaces. */
static void put_page_name(const cli_command *page, bool upper)
{
    fputs(upper ? "BRIGADE" : "brigade", stdout);
    if (page->name[0])
        fputs("\\-", stdout);
    for (const char *c = page->name; *c; c++) {
        if (*c == ' ' || *c == '-')
            fputs("\\-", stdout);
        else
            putchar(upper ? toupper((unsigned char)*c) : *c);
    }
}

static void print_man(const cli_command *page)
{
    printf(".\\\" Generated from the option table by 'brigade help --man'.\n.TH ");
    put_page_name(page, true);
    printf(" 1 \"\" \"brigade " BRIGADE_VERSION "\" \"User Commands\"\n.SH NAME\n");
    put_page_name(page, false);
    printf(" \\- ");
    put_text(page->summary);
    printf("\n.SH SYNOPSIS\n\\fBbrigade%s", page->name[0] ? " " : "");
    put_text(page->name);
    printf("\\fR ");
    put_text(page->usage);
    putchar('\n');
    if (page->details) {
        puts(".SH DESCRIPTION");
        put_details(page->details);
    }
    if (page == &cli_top)
        put_list("COMMANDS", cli_commands);
    if (page == &cli_top || page == cli_bench.command)
        put_list("BENCHMARKS", cli_benchmarks);
    puts(".SH OPTIONS");
    put_options(page->options, NULL);
    put_options(cli_common_options(), page->options);
    puts(".SH EXIT STATUS\n"
         "0: success. 1: a finding, such as a failed check. 2: wrong usage. 3: input that cannot "
         "be\n"
         "read, or output that cannot be written. 4: input that holds no data.");
    if (page == cli_run.command)
        puts("Otherwise the status of the first rank that failed, 128+n when signal n killed it; "
             "124\n"
             "after a timeout; 125 when brigade itself failed, 126 when the program cannot be\n"
             "executed, 127 when it is not found.");
    if (page != &cli_top)
        puts(".SH SEE ALSO\n\\fBbrigade\\fR(1)");
}

static int help_run(int argc, char **argv)
{
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    const cli_command *page = &cli_top;
    if (first < argc) {
        const cli_entry *entry = cli_find(cli_commands, argv[first], &cli_top);
        if (!entry)
            return CLI_USAGE;
        page = entry->command;
        first++;
        if (entry == &cli_bench && first < argc) {
            entry = cli_find(cli_benchmarks, argv[first], page);
            if (!entry)
                return CLI_USAGE;
            page = entry->command;
            first++;
        }
    }
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    if (man)
        print_man(page);
    else if (page == &cli_top)
        cli_print_overview(stdout);
    else
        cli_print_help(page, stdout);
    if (!man && page == cli_bench.command && cli_benchmarks[0]) {
        puts("\nBenchmarks:");
        cli_print_list(cli_benchmarks, stdout);
    }
    return cli_finish(&command, CLI_OK);
}

const cli_entry cli_help = {&command, help_run};
