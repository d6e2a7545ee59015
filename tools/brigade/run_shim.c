/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/brigade/elf_file.h"
#include "tools/brigade/run.h"

#define SHIM_NAME "libbrigade-shim.so"

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
        (users && strstr(users, SHIM_NAME)))
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

/* The file that exec finds under the name. */
static bool program_find(const char *name, char *path, size_t bytes)
{
    const char *places = getenv("PATH");
    if (strchr(name, '/') || !places)
        return (size_t)snprintf(path, bytes, "%s", name) < bytes;
    for (; *places; places += *places == ':') {
        int length = (int)strcspn(places, ":");
        snprintf(path, bytes, "%.*s/%s", length, places, name);
        if (length && !access(path, X_OK))
            return true;
        places += length;
    }
    return false;
}

void run_shim_blame(const run_config *config, char *text, size_t bytes)
{
    char path[PATH_MAX];
    elf_file file = {.kind = ELF_OTHER};
    const char *users = getenv("LD_PRELOAD"), *program = config->argv[0];
    bool under = config->preload || (users && strstr(users, SHIM_NAME));
    if (program_find(program, path, sizeof path))
        elf_look(path, &file);
    if (under && file.kind == ELF_STATIC)
        snprintf(text, bytes, ": %s is linked statically, and nothing can be put under it",
                 program);
    else if (under)
        snprintf(text, bytes,
                 ": no communicator of NCCL was made, or NCCL is linked into the program, where "
                 "the shim does not see it (brigade doctor -- %s)",
                 program);
    else if (file.shim_late)
        snprintf(text, bytes,
                 ": %s names %s before libbrigade-shim, which thus sees nothing; link with "
                 "-lbrigade-shim first",
                 program, file.nccl);
    else if (file.shim)
        snprintf(text, bytes, ": no communicator of NCCL was made");
    else
        snprintf(text, bytes, ": the shim was %s, and the program does not use libbrigade",
                 config->shim_off ? "off" : "not put under it");
}
