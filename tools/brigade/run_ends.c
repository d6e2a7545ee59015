/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a failed job ended, left beside their traces: once the others have been ended,
 * all traces look alike. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/brigade/run.h"

run_end run_end_of(int rank, int status)
{
    return (run_end){.rank = (uint32_t)rank,
                     .exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                     .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

json_t *run_end_json(const run_end *end)
{
    return json_pack("{s:i,s:o,s:o,s:b,s:b}", "rank", (int)end->rank, "exit_status",
                     end->signal ? json_null() : json_integer(end->exit_status), "signal",
                     end->signal ? json_integer(end->signal) : json_null(), "first", end->first,
                     "ended_by_run", end->ended_by_run);
}

const char *run_end_how(const run_end *end, char text[64])
{
    const char *name = end->signal ? sigabbrev_np(end->signal) : NULL;
    if (end->signal)
        snprintf(text, 64, "killed by signal %d (SIG%s)", end->signal, name ? name : "?");
    else
        snprintf(text, 64, "exited with status %d", end->exit_status);
    return text;
}

/* A reader sees all of it or nothing. */
static bool write_whole(const char *dir, const json_t *root)
{
    char path[4096], partial[4200];
    snprintf(path, sizeof path, "%s/" RUN_ENDS_FILE, dir);
    snprintf(partial, sizeof partial, "%s.tmp", path);
    if (json_dump_file(root, partial, JSON_INDENT(2)) == 0 && rename(partial, path) == 0)
        return true;
    int error = errno;
    unlink(partial);
    errno = error;
    return false;
}

void run_ends_leave(const run_config *config, const run_end *ends)
{
    struct timespec now;
    bool failed = false;
    json_t *ranks = json_array();
    clock_gettime(CLOCK_REALTIME, &now);
    for (int r = 0; r < config->ranks; r++) {
        failed |= ends[r].first;
        if (ends[r].signal || ends[r].exit_status)
            json_array_append_new(ranks, run_end_json(&ends[r]));
    }
    json_t *root =
        json_pack("{s:i,s:I,s:o}", "schema", 1, "time_ns",
                  (json_int_t)now.tv_sec * 1000000000 + (json_int_t)now.tv_nsec, "ranks", ranks);
    if (failed && !write_whole(config->trace, root))
        cli_fail(config->command, 0, "cannot write '%s/" RUN_ENDS_FILE "': %s", config->trace_name,
                 strerror(errno));
    json_decref(root);
}

bool run_ends_remove(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/" RUN_ENDS_FILE, dir);
    return unlink(path) == 0 || errno == ENOENT;
}
