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
    CLI_FLAG,   /* bool *: set to true */
    CLI_INT,    /* int64_t *: decimal, within [min, max] */
    CLI_SIZE,   /* int64_t *: bytes or elements with suffix K, M, G (powers of 1024), within [min,
                   max] */
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
    const char *details; /* paragraphs for --help and the man page; may be NULL */
    const cli_option *options;
    bool stop_at_positional; /* options end at the first word that is none (run) */
} cli_command;

/* Parses argv[1..]. On success returns -1 and sets *first to the index of the first positional word
 * (argc if none; words are permuted to the end unless stop_at_positional). Otherwise returns the
 * exit code: 0 after --help, CLI_USAGE after printing what is wrong. */
int cli_parse(const cli_command *command, int argc, char **argv, int *first);

/* "brigade <command>: <text>" on stderr; returns `code`. */
int cli_fail(const cli_command *command, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Output helpers. */
bool cli_use_color(FILE *stream); /* --color/NO_COLOR/tty */
bool cli_use_utf8(void);
int cli_width(void);                                  /* terminal columns, 100 when unknown */
const char *cli_bytes(char buffer[32], double bytes); /* "40.0 MiB" */
const char *cli_time_ns(char buffer[32], double ns);  /* "1.234 ms" */

/* Flushes stdout; returns CLI_OWN_FAILURE-free exit code: `code`, or 3 with a message when what was
 * printed could not be written (EPIPE is quiet). Every subcommand returns through it. */
int cli_finish(const cli_command *command, int code);

/* The subcommands: each in its own file, each returns an exit code. */
typedef struct cli_entry {
    const cli_command *command;
    int (*run)(int argc, char **argv); /* argv[0] is the last word of the command's name */
} cli_entry;

#endif
