/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of a device share: a context and its tables, a stream with two events around
 * what is timed, random data. */
#ifndef BRIGADE_TOOLS_BENCH_SESSION_H
#define BRIGADE_TOOLS_BENCH_SESSION_H

#include "brigade/brigade.h"
#include "sched/device/device.h"
#include "tools/brigade/cli.h"

/* Values of --device, in the order of brg_device_kind. */
extern const char *const bench_device_words[];
#define BENCH_DEVICE_OPTION(variable)                                                              \
    {                                                                                              \
        .name = "device", .type = CLI_CHOICE, .dest = (variable), .choices = bench_device_words,   \
        .help = "Where to run (default auto: cuda where a GPU answers, else host)."                \
    }
#define BENCH_JSON_OPTION(variable)                                                                \
    {                                                                                              \
        .name = "json", .type = CLI_FLAG, .dest = (variable), .help = "Print one JSON document."   \
    }

typedef struct bench_session {
    const cli_command *command;
    brg_context *ctx;
    const brg_device *device;
    brg_stream stream;
    void *begin, *end; /* events around what is timed */
    void *random[2];   /* device memory, see bench_fill(); by bytes of an element: 4, 2 */
    char device_name[128];
    int rank, world;
} bench_session;

/* Opens `session`. ranks: all that the environment names, as torchrun sets it; else one alone.
 * Returns CLI_OK, or an exit code after a message. Close it in any case. */
int bench_open(bench_session *session, const cli_command *command, int kind, bool ranks,
               const char *trace_dir);
void bench_close(bench_session *session);

/* A message with the thread's last error; ends the context, so that no other rank is left waiting.
 * Returns the exit code. */
int bench_fail(bench_session *session, brg_status status);

/* Device memory, freed with bench_free(). */
brg_status bench_alloc(bench_session *session, size_t bytes, void **memory);
void bench_free(bench_session *session, void *memory);

/* Normally distributed values with standard deviation 0.02, on the stream. They repeat every few
 * million elements. float32, float16 or bfloat16. */
brg_status bench_fill(bench_session *session, void *memory, brg_dtype dtype, size_t numel);
/* Nearly normally distributed values (the sum of four uniform ones), mean 0, variance 1. */
void bench_random(float *values, size_t numel, uint64_t seed);

/* Device time of what is put on the stream between the two, which find the device idle and leave it
 * so. With several ranks start after brg_barrier(). */
brg_status bench_time_begin(bench_session *session);
brg_status bench_time_end(bench_session *session, double *us);

/* Every value becomes the largest over the ranks. */
brg_status bench_max_over_ranks(bench_session *session, double *values, int count);

/* The tables' results as a status. */
brg_status bench_rt(const bench_session *session, int error, const char *what);

/* Prints the document that --json asked for and frees it; returns the exit code. */
int bench_print_json(const cli_command *command, void *root);

#endif
