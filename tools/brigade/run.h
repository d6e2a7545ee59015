/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of brigade run. */
#ifndef BRIGADE_TOOLS_RUN_H
#define BRIGADE_TOOLS_RUN_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/brigade/cli.h"

struct event_base;

/* What one rank's environment gets on top of ours: "NAME=value". */
typedef struct run_env {
    char *items[12];
    int count;
} run_env;

typedef struct run_config {
    const cli_command *command; /* for messages */
    int ranks;
    bool set_env;           /* -n was given: RANK and its kin are ours to set */
    bool prefix;            /* "[rank] " in front of every line */
    bool quiet;             /* no summary */
    const char *trace;      /* absolute; NULL: none */
    const char *trace_name; /* as the user wrote it */
    const char *preload;    /* LD_PRELOAD; NULL: left alone */
    bool shim_off;          /* as the user wanted */
    bool kernels;           /* the shim records them */
    int64_t records;        /* that a rank's trace keeps; 0: left alone */
    int port;
    int threads; /* of BLAS and OpenMP in each rank */
    double timeout_s, grace_s;
    char **argv;
} run_config;

/* run_env.c: facts of the machine and the environment of the ranks. */

/* Cores that this process may use: affinity, cpuset and CPU quota considered; at least 1. */
int run_cores(void);

/* Checks that `wanted` is free, or finds a free port for 0; 0 after a message in `error`. */
int run_free_port(int wanted, char *error, size_t error_bytes);

bool run_env_build(const run_config *config, int rank, run_env *env);
void run_env_free(run_env *env);

/* Environment and command of every rank, in a form that a shell takes. */
void run_print(const run_config *config);

/* run_trace.c: the directory of the trace. */

/* Makes the directory, refuses or (with `force`) removes rings of an earlier run; only that of rank
 * `only` unless that is negative. *path is the absolute name, to be freed. Returns an exit code. */
int run_trace_prepare(const cli_command *command, const char *dir, bool force, int only,
                      char **path, bool *created);
int run_trace_count(const char *dir); /* rings in it */
/* The name that the directory has, or would have, to a process in any other; to be freed. */
char *run_trace_absolute(const char *dir);

/* run_ends.c: how the ranks ended, for the report. */
#define RUN_ENDS_FILE "run.json"

typedef struct run_end {
    uint32_t rank;
    int exit_status, signal; /* signal 0: it exited, or has not ended yet */
    bool first;              /* failed by itself before any other, or not known to be after */
    bool ended_by_run;       /* after the job's end had begun */
} run_end;

run_end run_end_of(int rank, int status); /* as from waitpid() */
/* Of all ranks, beside their traces, if one has failed by itself. */
void run_ends_leave(const run_config *config, const run_end *ends);
bool run_ends_remove(const char *dir); /* false with errno */
json_t *run_end_json(const run_end *end);
/* "killed by signal 9 (SIGKILL)", "exited with status 3". */
const char *run_end_how(const run_end *end, char text[64]);

/* run_shim.c: libbrigade-shim under the program. */
typedef enum run_shim { RUN_SHIM_AUTO, RUN_SHIM_ON, RUN_SHIM_OFF } run_shim;

#define RUN_SHIM_FILE "libbrigade-shim.so.1"

/* The absolute name of a library that came with the command, to be freed; NULL: not there. */
char *run_library_find(const char *file);

/* LD_PRELOAD for the ranks: the shim by its absolute name, then the user's own; to be freed. NULL:
 * nothing to set. Returns an exit code. */
int run_shim_preload(const cli_command *command, run_shim wanted, char **preload);

/* Why a program that ended well is likely to have left no trace: "" or ": reason". */
void run_shim_blame(const run_config *config, char *text, size_t bytes);

/* `text` quoted for a shell where that is needed; to be freed. */
char *run_quote(const char *text);

/* run_spawn.c: processes. */

/* Blocks the signals that a job acts on or passes on, and returns a descriptor that they come
 * through, which tells who sent them; -1 with errno. Those that we were started with ignored
 * (nohup) stay so, here and in the ranks. */
int run_signals_catch(sigset_t *old_mask);

/* What a rank's standard streams are, and our ends of them; -1: none, inherited. */
typedef struct run_child_fds {
    int in, out[2], err[2]; /* pipes: [0] ours */
    int feed;               /* our end of rank 0's input, when we relay the terminal's */
} run_child_fds;

/* 0 or an errno; either way they are to be closed. Who keeps one sets it to -1. */
int run_child_fds_open(const run_config *config, int rank, run_child_fds *fds);
void run_child_fds_close(run_child_fds *fds);

/* The guard: a process that kills the watched process groups when we are gone without having said
 * so, as after SIGKILL. PR_SET_PDEATHSIG alone would leave grandchildren running. */
typedef struct run_guard {
    int fd;
    pid_t pid;
} run_guard;

typedef struct run_spawn {
    char **argv;
    const run_env *env;
    int fds[3];     /* become 0, 1, 2; -1: inherited */
    bool own_group; /* a process group of its own */
    const sigset_t *mask;
    const run_guard *guard; /* told of the group before the program runs; NULL: not told */
} run_spawn;

/* Starts a process that dies with us. Returns 0 or an errno; *in_exec tells that the program itself
 * could not be executed. */
int run_spawn_process(const run_spawn *request, pid_t *pid, bool *in_exec);

/* The exit code for a program that exec refused with `error`, and why it did, in words. */
int run_exec_code(const char *program, int error, const char **why);

int run_guard_start(run_guard *guard); /* 0 or an errno */
void run_guard_watch(const run_guard *guard, pid_t group);
void run_guard_forget(const run_guard *guard, pid_t group);
void run_guard_stop(run_guard *guard);

/* run_output.c: from the ranks' pipes to our stdout and stderr, without ever blocking. */

typedef struct run_sink run_sink;
typedef struct run_stream run_stream;

run_sink *run_sink_create(struct event_base *base, int fd);
void run_sink_destroy(run_sink *sink);
void run_sink_put(run_sink *sink, const char *text, size_t bytes);
bool run_sink_idle(const run_sink *sink); /* all is written, or cannot be */
int run_sink_error(const run_sink *sink); /* errno of the write that failed, or 0 */

/* Takes over `fd`. `closed(arg)` is called when the stream has ended and may not be used any more.
 */
run_stream *run_stream_create(struct event_base *base, int fd, run_sink *sink, int rank,
                              void (*closed)(void *arg), void *arg);
void run_stream_destroy(run_stream *stream); /* what was read is passed on first */

/* run_input.c: the terminal's input to rank 0, which is in another process group and may not read
 * it. */
typedef struct run_input run_input;
run_input *run_input_create(struct event_base *base, int terminal, int pipe);
void run_input_destroy(run_input *input);

/* run_job.c: starts the ranks, sees them through, returns the exit code. */
int run_job(const run_config *config);

#endif
