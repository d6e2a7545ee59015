/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/brigade/run.h"

int run_exec_code(const char *program, int error, const char **why)
{
    struct stat info;
    bool named = strchr(program, '/') && !stat(program, &info); /* not looked for in PATH */
    *why = strerror(error);
    if (named && S_ISDIR(info.st_mode))
        *why = "it is a directory";
    else if (named && error == ENOENT)
        *why = "the interpreter that the file names does not exist";
    else if (error == ENOENT || error == ENOTDIR)
        return CLI_NOT_FOUND;
    return CLI_NOT_EXECUTABLE;
}

int run_signals_catch(sigset_t *old_mask)
{
    static const int caught[] = {SIGCHLD, SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                 SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH};
    sigset_t mask;
    sigemptyset(&mask);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would lose exit codes */
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
        struct sigaction old;
        if (!sigaction(caught[i], NULL, &old) && old.sa_handler == SIG_IGN)
            continue;
        sigaddset(&mask, caught[i]);
    }
    sigprocmask(SIG_BLOCK, &mask, old_mask);
    return signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

int run_child_fds_open(const run_config *config, int rank, run_child_fds *fds)
{
    *fds = (run_child_fds){-1, {-1, -1}, {-1, -1}, -1};
    int in[2];
    if (rank > 0) {
        fds->in = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fds->in < 0)
            return errno;
    } else if (config->ranks > 1 && isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
        if (pipe2(in, O_CLOEXEC))
            return errno;
        fds->in = in[0];
        fds->feed = in[1];
    }
    if (config->prefix && (pipe2(fds->out, O_CLOEXEC) || pipe2(fds->err, O_CLOEXEC)))
        return errno;
    return 0;
}

void run_child_fds_close(run_child_fds *fds)
{
    const int all[] = {fds->in, fds->out[0], fds->out[1], fds->err[0], fds->err[1], fds->feed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] >= 0)
            close(all[i]);
}

static ssize_t read_all(int fd, void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = read(fd, (char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static ssize_t write_quietly(int fd, const void *data, size_t bytes)
{
    ssize_t n;
    do
        n = write(fd, data, bytes);
    while (n < 0 && errno == EINTR);
    return n;
}

static void guard_tell(const run_guard *guard, int32_t word)
{
    if (guard->fd >= 0)
        write_quietly(guard->fd, &word, sizeof word);
}

void run_guard_watch(const run_guard *guard, pid_t group)
{
    guard_tell(guard, group);
}

void run_guard_forget(const run_guard *guard, pid_t group)
{
    guard_tell(guard, -group);
}

/* Runs in the child; returns only when exec fails. */
static int become(const run_spawn *request, pid_t parent)
{
    if (request->own_group)
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_OWN_FAILURE); /* died before the line above */
    if (request->own_group &&
        request->guard) /* not from the parent: it may die before it comes to it */
        run_guard_watch(request->guard, getpid());
    for (int i = 0; i < 3; i++)
        if (request->fds[i] >= 0 && dup2(request->fds[i], i) < 0)
            return errno;
    for (int i = 0; i < request->env->count; i++)
        if (putenv(request->env->items[i]))
            return errno;
    if (!cli_sigpipe_ignored)
        signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, request->mask, NULL);
    execvp(request->argv[0], request->argv);
    return errno;
}

int run_spawn_process(const run_spawn *request, pid_t *pid, bool *in_exec)
{
    int report[2]; /* closed by a successful exec */
    *in_exec = false;
    if (pipe2(report, O_CLOEXEC))
        return errno;
    pid_t parent = getpid();
    *pid = fork();
    if (*pid == 0) {
        int error = become(request, parent);
        write_quietly(report[1], &error, sizeof error);
        _exit(CLI_OWN_FAILURE); /* the report is what counts */
    }
    int error = *pid < 0 ? errno : 0;
    close(report[1]);
    if (!error) {
        if (request->own_group)
            setpgid(*pid, *pid); /* whoever comes first; fails harmlessly after exec */
        if (read_all(report[0], &error, sizeof error) == sizeof error) {
            *in_exec = true;
            while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
                ;
        } else {
            error = 0;
        }
    }
    close(report[0]);
    return error;
}

/* The guard's protocol: a positive number is a group to watch, a negative one to forget, 0 the end
 * of its duty. The end of the pipe without a 0 means that the launcher is dead. */
static void guard_main(int fd)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid(); /* out of reach of the terminal, and of signals to the launcher's group */
    prctl(PR_SET_NAME, "brigade-guard");
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3 && null >= 0; i++)
        dup2(null, i); /* must hold nobody's pipes open */
    if (fd != 3)
        dup2(fd, 3);
    close_range(4, ~0U, 0);
    if (chdir("/"))
        _exit(0);
    pid_t *groups = NULL;
    size_t count = 0;
    int32_t word;
    while (read_all(3, &word, sizeof word) == sizeof word) {
        if (word == 0)
            _exit(0);
        if (word < 0) {
            for (size_t i = 0; i < count; i++)
                if (groups[i] == -word)
                    groups[i] = groups[--count];
            continue;
        }
        pid_t *more = realloc(groups, (count + 1) * sizeof *groups);
        if (!more)
            continue;
        groups = more;
        groups[count++] = word;
    }
    for (size_t i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
    _exit(0);
}

int run_guard_start(run_guard *guard)
{
    int fds[2];
    guard->fd = -1;
    guard->pid = 0;
    if (pipe2(fds, O_CLOEXEC))
        return errno;
    guard->pid = fork();
    if (guard->pid < 0) {
        int error = errno;
        guard->pid = 0;
        close(fds[0]);
        close(fds[1]);
        return error;
    }
    if (guard->pid == 0) {
        close(fds[1]);
        guard_main(fds[0]);
    }
    close(fds[0]);
    guard->fd = fds[1];
    return 0;
}

void run_guard_stop(run_guard *guard)
{
    if (guard->fd < 0)
        return;
    guard_tell(guard, 0);
    close(guard->fd);
    guard->fd = -1;
    while (guard->pid > 0 && waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    guard->pid = 0;
}
