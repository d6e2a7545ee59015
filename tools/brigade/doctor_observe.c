/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a command from outside: it is traced only for its forks, execs and ends, runs at full
 * speed otherwise, and is never preloaded. When one of its processes is about to end, its memory is
 * still there, and /proc tells which files were mapped and which environment it was given.
 *
 * Then this program starts itself anew in that environment: what the loader finds, what variables
 * say, is then what the command has. The list of mapped files goes along in a memory file. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/brigade/doctor.h"
#include "tools/brigade/elf_file.h"

#define VARIABLE "BRIGADE_DOCTOR_OBSERVED" /* between the two programs only */

typedef struct observed {
    int list;      /* memory file: paths, each with its NUL */
    char **mapped; /* the same */
    size_t nmapped;
    char *environment; /* "NAME=value", each with its NUL */
    size_t environment_bytes;
    bool has_nccl; /* the environment is that of a process with NCCL */
    bool started;  /* the command is what runs, not yet our copy that is to become it */
} observed;

static bool is_known(const observed *o, const char *path)
{
    for (size_t i = 0; i < o->nmapped; i++)
        if (!strcmp(o->mapped[i], path))
            return true;
    return false;
}

/* Adds the files that the process has mapped; tells whether NCCL is among them. */
static bool maps_read(observed *o, pid_t pid)
{
    char name[64], *line = NULL;
    size_t size = 0;
    bool nccl = false;
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(name, "re");
    while (maps && getline(&line, &size, maps) >= 0) {
        char *path = strchr(line, '/');
        if (!path)
            continue;
        path[strcspn(path, "\n")] = 0;
        nccl |= elf_is_nccl(path);
        char **grown =
            is_known(o, path) ? NULL : reallocarray(o->mapped, o->nmapped + 1, sizeof *grown);
        if (!grown)
            continue;
        o->mapped = grown;
        grown[o->nmapped] = strdup(path);
        o->nmapped += grown[o->nmapped] != NULL;
    }
    free(line);
    if (maps)
        fclose(maps);
    return nccl;
}

static char *environment_read(pid_t pid, size_t *bytes)
{
    char name[64], *text = NULL;
    size_t capacity = 0;
    snprintf(name, sizeof name, "/proc/%d/environ", (int)pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    *bytes = 0;
    for (ssize_t n = 1; fd >= 0 && n > 0;) {
        if (*bytes + 2 > capacity) {
            char *grown = realloc(text, capacity = 2 * capacity + 65536);
            if (!grown)
                break;
            text = grown;
        }
        n = read(fd, text + *bytes, capacity - *bytes - 1);
        *bytes += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[*bytes] = 0;
    return text;
}

/* The environment kept is that of the first process with NCCL, else of the command itself. */
static void process_look(observed *o, pid_t pid, bool is_root)
{
    bool nccl = maps_read(o, pid);
    if (o->has_nccl || !(nccl || is_root))
        return;
    size_t bytes;
    char *environment = environment_read(pid, &bytes);
    if (!environment)
        return;
    free(o->environment);
    o->environment = environment;
    o->environment_bytes = bytes;
    o->has_nccl = nccl;
}

/* Its standard output must not mix with our findings. */
static void target_become(char **argv)
{
    if (!cli_sigpipe_ignored)
        signal(SIGPIPE, SIG_DFL);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        _exit(CLI_OWN_FAILURE);
    raise(SIGSTOP);
    execvp(argv[0], argv);
    fprintf(stderr, "brigade doctor: cannot run '%s': %s\n", argv[0], strerror(errno));
    _exit(CLI_NOT_FOUND);
}

/* Follows the command and what it starts until all have ended; the status of the command. */
static int target_follow(observed *o, pid_t root)
{
    int status, root_status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (pid <= 0)
            continue;
        if (!WIFSTOPPED(status)) {
            if (pid == root)
                root_status = status;
            continue;
        }
        int event = status >> 16, sig = WSTOPSIG(status);
        o->started |= event == PTRACE_EVENT_EXEC;
        if (event == PTRACE_EVENT_EXIT && o->started)
            process_look(o, pid, pid == root);
        /* Stops that tracing makes are no signals; SIGSTOP is how new processes begin. */
        if (event || sig == SIGTRAP || sig == SIGSTOP)
            sig = 0;
        ptrace(PTRACE_CONT, pid, NULL, (void *)(intptr_t)sig);
    }
    return root_status;
}

static int target_run(const cli_command *command, observed *o, char **argv)
{
    int status;
    pid_t root = fork();
    if (root == 0)
        target_become(argv);
    if (root < 0)
        return cli_fail(command, CLI_INPUT, "cannot start a process: %s", strerror(errno));
    const long what = PTRACE_O_EXITKILL | PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK |
                      PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    if (waitpid(root, &status, 0) != root || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, root, NULL, (void *)what)) {
        kill(root, SIGKILL);
        waitpid(root, NULL, 0);
        return cli_fail(command, CLI_INPUT,
                        "the system does not let '%s' be observed (ptrace); run brigade doctor "
                        "without it, in the same environment",
                        argv[0]);
    }
    ptrace(PTRACE_CONT, root, NULL, NULL);
    status = target_follow(o, root);
    if (!o->started)
        return CLI_INPUT; /* it has said why */
    if (status)
        fprintf(stderr, "brigade doctor: note: '%s' ended with %s %d\n", argv[0],
                WIFEXITED(status) ? "status" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return CLI_OK;
}

/* What is preloaded into the command has nothing to do in here; the list of files tells of it. */
static bool is_wanted(const char *entry)
{
    static const char *const left_out[] = {"LD_PRELOAD=", "LD_AUDIT=", NULL};
    for (const char *const *name = left_out; *name; name++)
        if (!strncmp(entry, *name, strlen(*name)))
            return false;
    return *entry;
}

/* The observed environment with the number of the list's descriptor; NULL: no memory. */
static char **environment_make(const observed *o)
{
    size_t n = 0;
    char **list = calloc(o->environment_bytes + 2, sizeof *list);
    for (size_t at = 0; list && at < o->environment_bytes; at += strlen(o->environment + at) + 1)
        if (is_wanted(o->environment + at))
            list[n++] = o->environment + at;
    if (list && asprintf(&list[n], VARIABLE "=%d", o->list) < 0)
        list = NULL;
    return list;
}

static bool list_write(observed *o)
{
    o->list = memfd_create("brigade-doctor", 0); /* stays open in the next program */
    for (size_t i = 0; o->list >= 0 && i < o->nmapped; i++)
        if (write(o->list, o->mapped[i], strlen(o->mapped[i]) + 1) < 0)
            return false;
    return o->list >= 0;
}

int doctor_observe(const cli_command *command, char **target, char **argv)
{
    observed o = {.list = -1};
    int code = target_run(command, &o, target);
    if (code == CLI_OK && !o.environment)
        code = cli_fail(command, CLI_INPUT, "'%s' ended before it could be looked at", target[0]);
    char **environment = code == CLI_OK && list_write(&o) ? environment_make(&o) : NULL;
    if (environment) {
        if (!cli_sigpipe_ignored)
            signal(SIGPIPE, SIG_DFL);
        execve("/proc/self/exe", argv, environment);
        signal(SIGPIPE, SIG_IGN);
    }
    if (code == CLI_OK)
        code = cli_fail(command, CLI_INPUT, "cannot start anew in the environment of '%s': %s",
                        target[0], strerror(errno));
    return code;
}

void doctor_observed_take(doctor *d)
{
    const char *text = getenv(VARIABLE);
    FILE *list = text ? fdopen(atoi(text), "r+") : NULL;
    char *path = NULL;
    size_t size = 0;
    if (!list)
        return;
    unsetenv(VARIABLE);
    rewind(list);
    d->mapped = calloc(1, sizeof *d->mapped);
    while (d->mapped && getdelim(&path, &size, 0, list) > 0) {
        char **grown = reallocarray(d->mapped, d->nmapped + 1, sizeof *grown);
        if (!grown)
            break;
        d->mapped = grown;
        grown[d->nmapped++] = path;
        path = NULL;
        size = 0;
    }
    free(path);
    fclose(list);
}
