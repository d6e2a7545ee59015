/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of brigade doctor. Every check looks at this process: its environment, what the loader
 * finds, its limits. For a command of the user's, doctor_observe.c first makes this process like
 * the command's. */
#ifndef BRIGADE_TOOLS_DOCTOR_H
#define BRIGADE_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/brigade/cli.h"

typedef enum doctor_state {
    DOCTOR_PASS,
    DOCTOR_WARN,   /* works, but slower or less safe than it could */
    DOCTOR_FAIL,   /* will not work */
    DOCTOR_ABSENT, /* not there, so nothing to check */
} doctor_state;

typedef struct doctor_finding {
    const char *check;
    doctor_state state;
    char *text;
    const char *fix; /* one line; NULL: nothing to do */
} doctor_finding;

/* A library file with NCCL in it. */
typedef struct doctor_nccl_copy {
    char *path;
    int version;   /* 22809 is 2.28.9; 0: unknown */
    bool embedded; /* linked into something else */
    bool host;     /* libbrigade-host under its own name or NCCL's */
} doctor_nccl_copy;

/* A variable that one of NCCL's files sets. */
typedef struct doctor_setting {
    char *name, *value;
    char *where; /* "/etc/nccl.conf, line 3" */
} doctor_setting;

typedef struct doctor {
    doctor_finding *findings;
    size_t count;
    char **mapped; /* files that the user's command had mapped; NULL: no command was observed */
    size_t nmapped;
    doctor_nccl_copy *copies;
    size_t ncopies;
    doctor_setting *settings; /* those that count first, first */
    size_t nsettings;
    bool no_memory;
} doctor;

/* Notes a finding; `fix` is a constant or NULL. */
void doctor_note(doctor *d, const char *check, doctor_state state, const char *fix,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
void doctor_free(doctor *d);

/* doctor_observe.c: runs the command to its end under observation, its output going to stderr, then
 * starts this program anew with `argv`, the command's environment and the list of the files that it
 * had mapped. Returns only when it fails, after a message: an exit code. */
int doctor_observe(const cli_command *command, char **target, char **argv);
/* In the program started anew: takes over the list, if there is one. */
void doctor_observed_take(doctor *d);

/* The checks. */
void doctor_nccl(doctor *d, const char *binary); /* doctor_nccl.c: fills d->copies */
void doctor_plugins(doctor *d);                  /* doctor_plugins.c: of the first copy */
void doctor_variables(doctor *d);                /* doctor_variables.c: BRIGADE_* */
void doctor_nccl_files(doctor *d);               /* doctor_nccl_files.c: fills d->settings */
void doctor_nccl_values(doctor *d);              /* doctor_nccl_values.c: what NCCL refuses */
void doctor_nccl_variables(doctor *d);           /* doctor_nccl_env.c: what costs speed */
void doctor_ranks(doctor *d);                    /* doctor_ranks.c: RANK and its kin */
void doctor_machine(doctor *d);                  /* doctor_machine.c */
void doctor_gpus(doctor *d);                     /* doctor_gpus.c */

/* The version in the file, by the text that NCCL carries for this purpose; 0: none. */
int doctor_nccl_version(const char *path);

/* What NCCL finds under this name, in the environment or else in its files, and where that is;
 * NULL: nothing. */
const char *doctor_nccl_value(const doctor *d, const char *name, const char **where);

/* doctor_output.c */
void doctor_text(const doctor *d);
bool doctor_json(const doctor *d); /* false: no memory */
size_t doctor_count(const doctor *d, doctor_state state);

#endif
