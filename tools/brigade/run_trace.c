/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/brigade/run.h"

/* The N of "rank-N.ring", or -1. */
static int ring_rank(const char *name)
{
    if (strncmp(name, "rank-", 5) || !isdigit((unsigned char)name[5]))
        return -1;
    char *end;
    errno = 0;
    long rank = strtol(name + 5, &end, 10);
    return !errno && rank <= INT32_MAX && !strcmp(end, ".ring") ? (int)rank : -1;
}

int run_trace_count(const char *dir)
{
    int count = 0;
    DIR *stream = opendir(dir);
    if (!stream)
        return 0;
    for (struct dirent *entry; (entry = readdir(stream));)
        count += ring_rank(entry->d_name) >= 0;
    closedir(stream);
    return count;
}

/* mkdir -p; *created tells whether the last part is new. */
static int make_dirs(const char *dir, bool *created)
{
    char *path = strdup(dir);
    int error = path ? 0 : ENOMEM;
    for (char *slash = path; !error && slash && (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        if (*path && mkdir(path, 0777) && errno != EEXIST)
            error = errno;
        *slash = '/';
    }
    *created = false;
    if (!error && !mkdir(path, 0777))
        *created = true;
    else if (!error && errno != EEXIST)
        error = errno;
    free(path);
    return error;
}

/* And what is said of how the ranks of an earlier run ended. */
static int clear_rings(const cli_command *command, const char *dir, bool force, int only)
{
    DIR *stream = opendir(dir);
    if (!stream)
        return cli_fail(command, CLI_OWN_FAILURE, "cannot read directory '%s': %s", dir,
                        strerror(errno));
    int code = CLI_OK;
    for (struct dirent *entry; code == CLI_OK && (entry = readdir(stream));) {
        int rank = ring_rank(entry->d_name);
        if (rank < 0 || (only >= 0 && rank != only))
            continue;
        if (!force)
            code = cli_fail(command, CLI_OWN_FAILURE,
                            "'%s' holds the trace of an earlier run (%s); name another directory "
                            "or replace it with --force",
                            dir, entry->d_name);
        else if (unlinkat(dirfd(stream), entry->d_name, 0) && errno != ENOENT)
            code = cli_fail(command, CLI_OWN_FAILURE, "cannot remove '%s/%s': %s", dir,
                            entry->d_name, strerror(errno));
    }
    closedir(stream);
    if (code == CLI_OK && !run_ends_remove(dir))
        code = cli_fail(command, CLI_OWN_FAILURE, "cannot remove '%s/" RUN_ENDS_FILE "': %s", dir,
                        strerror(errno));
    return code;
}

char *run_trace_absolute(const char *dir)
{
    char *path = realpath(dir, NULL), *here = NULL;
    if (path || *dir == '/')
        return path ? path : strdup(dir);
    here = getcwd(NULL, 0);
    if (here && asprintf(&path, "%s/%s", here, dir) < 0)
        path = NULL;
    free(here);
    return path;
}

int run_trace_prepare(const cli_command *command, const char *dir, bool force, int only,
                      char **path, bool *created)
{
    *path = NULL;
    *created = false;
    int error = make_dirs(dir, created);
    if (error)
        return cli_fail(command, CLI_OWN_FAILURE, "cannot create directory '%s': %s", dir,
                        strerror(error));
    int code = clear_rings(command, dir, force, only);
    if (code == CLI_OK && access(dir, W_OK | X_OK))
        code = cli_fail(command, CLI_OWN_FAILURE, "cannot write to directory '%s': %s", dir,
                        strerror(errno));
    if (code == CLI_OK && !(*path = realpath(dir, NULL)))
        code = cli_fail(command, CLI_OWN_FAILURE, "cannot resolve directory '%s': %s", dir,
                        strerror(errno));
    return code;
}
