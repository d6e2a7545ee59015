/* SPDX-License-Identifier: Apache-2.0 */
/* The same measurement in Python: a script of tools/torch runs beside ours and measures whenever it
 * is asked to, so that both are interleaved in one run.
 *
 * Protocol, one line of text each: the script says {"peers": ["name", ...]} when it is ready, or
 * {"unavailable": "why"}. For each line with a number, an item of the benchmark, it measures once
 * and answers {"us": [time or null, ...]}, one for each peer. It ends with its standard input.
 */
#ifndef BRIGADE_TOOLS_BENCH_PEER_H
#define BRIGADE_TOOLS_BENCH_PEER_H

#include "tools/brigade/cli.h"

enum { BENCH_MAX_PEERS = 4, BENCH_PEER_NAME = 64 };

typedef struct bench_peer {
    const cli_command *command;
    int pid, to, from; /* pid 0: there is none */
    int timeout_s;
    int count; /* of peers; 0 without a process */
    char names[BENCH_MAX_PEERS][BENCH_PEER_NAME];
    char *line; /* being read */
    size_t used, capacity;
} bench_peer;

/* The options of a benchmark that has a peer. */
typedef struct bench_peer_options {
    const char *python;
    bool none;
    int64_t timeout_s; /* of an answer; 0: DEFAULT_TIMEOUT_S */
} bench_peer_options;

#define BENCH_PEER_OPTIONS(variable)                                                               \
    {.name = "python",                                                                             \
     .type = CLI_STRING,                                                                           \
     .dest = &(variable).python,                                                                   \
     .metavar = "PROGRAM",                                                                         \
     .help = "The Python that has torch, for the peer (default: python3)."},                       \
        {.name = "peer-timeout",                                                                   \
         .type = CLI_INT,                                                                          \
         .dest = &(variable).timeout_s,                                                            \
         .metavar = "SECONDS",                                                                     \
         .help =                                                                                   \
             "Go on without a peer that does not answer for so long (default 900: Triton takes "   \
             "minutes to compile what it tunes).",                                                 \
         .min = 1,                                                                                 \
         .max = 86400},                                                                            \
    {                                                                                              \
        .name = "no-peer", .type = CLI_FLAG, .dest = &(variable).none,                             \
        .help = "Leave out the peer."                                                              \
    }

/* Starts `python SCRIPT args...` (NULL-terminated). Does not wait for it: bench_peer_ready() does.
 * A peer that cannot be had is one line on standard error, and a count of 0. */
void bench_peer_start(bench_peer *peer, const cli_command *command,
                      const bench_peer_options *options, const char *script,
                      const char *const *args);
void bench_peer_ready(bench_peer *peer);

/* One measurement of `item` by every peer; NaN where there is none. */
void bench_peer_measure(bench_peer *peer, int item, double us[BENCH_MAX_PEERS]);

void bench_peer_stop(bench_peer *peer);

#endif
