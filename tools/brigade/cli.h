/* SPDX-License-Identifier: Apache-2.0 */
/* The command line's one source of truth: a table of options per subcommand. The same table parses,
 * makes --help, the man pages and the shell completions.
 *
 * Conventions: human text on stdout, diagnostics "brigade <command>: ..." on stderr, --json puts
 * one document on stdout and nothing else. Usage errors exit 2 and suggest the nearest option.
 */
#ifndef BRIGADE_TOOLS_CLI_H
#define BRIGADE_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    CLI_OK = 0,
    CLI_FINDING = 1, /* regression, failed check, infeasible plan */
    CLI_USAGE = 2,
    CLI_INPUT = 3, /* input unreadable, wrong version, truncated */
    CLI_NO_DATA = 4,
    CLI_OWN_FAILURE = 125, /* run: failed before the child started */
    CLI_NOT_EXECUTABLE = 126,
    CLI_NOT_FOUND = 127,
};

typedef enum cli_type {
    CLI_FLAG, /* bool *: set to true */
    CLI_INT,  /* int64_t *: decimal, within [min, max] */
    CLI_SIZE, /* int64_t *: bytes or elements with suffix K, M, G (powers of 1024), never negative,
                 within [min, max] */
    CLI_DOUBLE, /* double *: within [min, max] */
    CLI_STRING, /* const char **: points into argv */
    CLI_CHOICE, /* int *: index into `choices` */
} cli_type;

typedef struct cli_option {
    const char *name; /* long name without dashes; NULL ends a table */
    char short_name;  /* 0: none */
    cli_type type;
    void *dest;                 /* holds the default before parsing */
    const char *metavar;        /* "N", "FILE", ...; NULL for flags */
    const char *help;           /* one sentence; the default belongs in it */
    const char *const *choices; /* CLI_CHOICE: NULL-terminated */
    double min, max;            /* numbers: both 0 means no limits */
    bool *given;                /* set to true when the option is seen; NULL: not wanted */
} cli_option;

typedef struct cli_command {
    const char *name;    /* "plan", "bench collective" */
    const char *summary; /* one line for the overview */
    const char *usage;   /* what follows the name: "--params FILE --dp N [options]" */
    const char *details; /* paragraphs, apart by an empty line, for --help and the man page; lines
                            that begin with a space are kept as they are (examples); may be NULL */
    const cli_option *options;
    bool stop_at_positional; /* options end at the first word that is none (run) */
    const char *program;     /* NULL: "brigade"; programs of their own have an empty name */
} cli_command;

/* Parses argv[1..]. On success returns -1 and sets *first to the index of the first positional word
 * (argc if none; words are permuted to the end unless stop_at_positional). Otherwise returns the
 * exit code: 0 after --help, CLI_USAGE after printing what is wrong. */
int cli_parse(const cli_command *command, int argc, char **argv, int *first);

/* "brigade", or the command's own program. */
const char *cli_program(const cli_command *command);

/* "brigade <command>: <text>" on stderr; returns `code`. */
int cli_fail(const cli_command *command, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The options that every command has (--help, --color); ends with a NULL name. */
const cli_option *cli_common_options(void);

/* What --help prints. */
void cli_print_help(const cli_command *command, FILE *stream);

/* The word of the NULL-terminated list that is nearest to `word`, NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *list);

/* "N", "FILE", "auto|always|never": what stands for an option's value; NULL for flags. */
const char *cli_metavar(const cli_option *option, char *buffer, size_t size);

/* Output helpers. */
bool cli_use_color(FILE *stream); /* --color/NO_COLOR/tty */
bool cli_use_utf8(void);
int cli_width(void);                                  /* terminal columns, 100 when unknown */
const char *cli_bytes(char buffer[32], double bytes); /* "40.0 MiB" */
const char *cli_time_ns(char buffer[32], double ns);  /* "1.234 ms" */

/* `text`, which must not drive the terminal: '?' for what is not printable ASCII. What is too long
 * loses its beginning. */
const char *cli_label(char *buffer, size_t size, const char *text);

/* Flushes stdout; returns CLI_OWN_FAILURE-free exit code: `code`, or 3 with a message when what was
 * printed could not be written (EPIPE is quiet). Every subcommand returns through it. */
int cli_finish(const cli_command *command, int code);

/* Prints `text` wrapped at `width` columns, every line but the first indented by `indent`; the
 * first is taken to be there already. Ends the line. */
void cli_print_wrapped(FILE *stream, const char *text, int indent, int width);

/* The subcommands: each in its own file, each returns an exit code. */
typedef struct cli_entry {
    const cli_command *command;
    int (*run)(int argc, char **argv); /* argv[0] is the last word of the command's name */
} cli_entry;

/* `brigade` itself, and the NULL-terminated tables of main.c and cmd_bench.c. */
extern const cli_command cli_top;
extern const cli_entry *const cli_commands[];
extern const cli_entry *const cli_benchmarks[];

/* The entry whose last word is `name`, or NULL after a message that suggests the nearest. */
const cli_entry *cli_find(const cli_entry *const *table, const char *name,
                          const cli_command *parent);
const char *cli_last_word(const cli_command *command);
void cli_print_list(const cli_entry *const *table, FILE *stream);
void cli_print_overview(FILE *stream);

/* Whether SIGPIPE was ignored when the command was started; it is ignored in here. */
extern bool cli_sigpipe_ignored;

extern const cli_entry cli_plan, cli_report, cli_compare, cli_doctor, cli_run, cli_bench,
    cli_version, cli_completion, cli_help;
extern const cli_entry cli_bench_adamw, cli_bench_bucket, cli_bench_collective, cli_bench_shim,
    cli_bench_grad_ready, cli_bench_host_cost, cli_bench_newton_schulz, cli_bench_plan,
    cli_bench_step, cli_bench_trace;

#endif
