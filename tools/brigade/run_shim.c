/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/brigade/run.h"

char *run_library_find(const char *file)
{
    /* Seen from the command's directory: beside it, installed, built. */
    static const char *const places[] = {"", "../" BRIGADE_LIBDIR "/", "../lib/",
                                         "../../shim/interpose/", "../../shim/host/"};
    char self[PATH_MAX], path[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return NULL;
    self[length] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return NULL;
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s/%s%s", self, places[i], file);
        if (!access(path, R_OK))
            return realpath(path, NULL);
    }
    return NULL;
}

/* A program with the address sanitizer inside refuses libraries in front of it; where this command
 * is such a program, so are those that it is tried on. */
#ifdef __SANITIZE_ADDRESS__
static const bool auto_is_on = false;
#else
static const bool auto_is_on = true;
#endif

int run_shim_preload(const cli_command *command, run_shim wanted, char **preload)
{
    const char *users = getenv("LD_PRELOAD");
    *preload = NULL;
    if (wanted == RUN_SHIM_OFF || (wanted == RUN_SHIM_AUTO && !auto_is_on) ||
        (users && strstr(users, "libbrigade-shim.so")))
        return CLI_OK;
    char *path = run_library_find(RUN_SHIM_FILE);
    const char *why = !path ? "is not beside the command"
                      : strpbrk(path, " :;")
                          ? "lies in a directory whose name LD_PRELOAD cannot hold"
                          : NULL;
    int code = CLI_OK;
    if (why && wanted == RUN_SHIM_ON)
        code = cli_fail(command, CLI_OWN_FAILURE, "--shim=on: " RUN_SHIM_FILE " %s", why);
    else if (!why &&
             asprintf(preload, "%s%s%s", path, users && *users ? ":" : "", users ? users : "") < 0)
        code = cli_fail(command, CLI_OWN_FAILURE, "no memory");
    free(path);
    return code;
}
