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

static json_t *end_json(int rank, const run_end *end)
{
    const bool killed = WIFSIGNALED(end->status);
    return json_pack("{s:i,s:o,s:o,s:b,s:b}", "rank", rank, "exit_status",
                     killed ? json_null() : json_integer(WEXITSTATUS(end->status)), "signal",
                     killed ? json_integer(WTERMSIG(end->status)) : json_null(), "first",
                     end->first, "ended_by_run", end->ended_by_run);
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
        if (ends[r].status)
            json_array_append_new(ranks, end_json(r, &ends[r]));
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
