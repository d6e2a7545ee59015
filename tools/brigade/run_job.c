/* SPDX-License-Identifier: Apache-2.0 */
/* One job: ranks are started, watched, signalled and ended.
 *
 *   running --(a rank fails, a timeout, SIGTERM, a second SIGINT)--> ending --(grace)--> killing
 *   any of them --(every rank has exited)--> leftovers --(groups and pipes empty)--> finished
 *
 * Everything is an event of one loop, nothing blocks. With several ranks each is the leader of a
 * process group of its own, so that what it starts ends with it; the terminal's signals then reach
 * us alone, and are passed on. A single rank stays in our group and keeps the terminal.
 */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/brigade/run.h"

enum {
    TIMED_OUT = 124,
    LEFTOVER_GRACE_MS = 1000, /* for what a rank leaves behind to end by itself */
    TICK_MS = 20,
};

typedef struct job job;
typedef struct rank rank;

typedef struct closed_arg {
    job *job;
    rank *rank;
    int which;
} closed_arg;

struct rank {
    pid_t pid;        /* 0: never started */
    bool running;     /* not reaped */
    bool group_alive; /* its process group may still have members */
    int status;
    run_stream *streams[2];
    closed_arg closed_args[2];
};

struct job {
    const run_config *config;
    struct event_base *base;
    run_sink *out, *err;
    run_input *input;
    run_guard guard;
    rank *ranks;
    run_end *ends;
    int num_running, num_streams;
    bool own_groups;
    int signal_fd;
    sigset_t old_mask;
    struct event *signal_event, *grace_timer, *timeout_timer, *tick_timer;
    bool ending, killed, finished, summarized, give_up;
    int interrupts;
    int code; /* of the first failure; 0: none */
    uint64_t start_ms, exited_ms;
};

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static struct timeval seconds(double s)
{
    struct timeval time = {.tv_sec = (time_t)s};
    time.tv_usec = (suseconds_t)((s - (double)time.tv_sec) * 1e6);
    return time;
}

/* A line of our own on stderr, in order with those of the ranks. */
__attribute__((format(printf, 2, 3))) static void say(job *j, const char *format, ...)
{
    char text[2048] = "brigade run: ";
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, sizeof text - used - 1, format, args);
    va_end(args);
    used += n < 0 ? 0 : (size_t)n < sizeof text - used - 1 ? (size_t)n : sizeof text - used - 2;
    text[used++] = '\n';
    run_sink_put(j->err, text, used);
}

static void signal_ranks(job *j, int sig)
{
    for (int r = 0; r < j->config->ranks; r++) {
        rank *k = &j->ranks[r];
        if (j->own_groups ? k->group_alive : k->running)
            kill(j->own_groups ? -k->pid : k->pid, sig);
    }
}

static void begin_ending(job *j, int sig)
{
    signal_ranks(j, sig);
    signal_ranks(j, SIGCONT); /* a stopped process would not act on it */
    if (j->ending)
        return;
    j->ending = true;
    struct timeval grace = seconds(j->config->grace_s);
    event_add(j->grace_timer, &grace);
}

static void on_grace_over(evutil_socket_t fd, short what, void *arg)
{
    job *j = arg;
    if (!j->num_running)
        return; /* on_tick sees to leftovers */
    say(j, "%d rank%s did not end within %g s; killed", j->num_running,
        j->num_running == 1 ? "" : "s", j->config->grace_s);
    j->killed = true;
    signal_ranks(j, SIGKILL);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    job *j = arg;
    if (j->ending || !j->num_running)
        return;
    say(j, "not finished after %g s; ending %d rank%s", j->config->timeout_s, j->num_running,
        j->num_running == 1 ? "" : "s");
    j->code = TIMED_OUT;
    begin_ending(j, SIGTERM);
}

static void summarize(job *j)
{
    const run_config *c = j->config;
    const char *inside = c->set_env ? NULL : getenv("RANK"); /* one line per job, not per rank */
    if (c->quiet || j->summarized || (inside && strcmp(inside, "0")) ||
        run_sink_error(j->out) == EPIPE)
        return;
    j->summarized = true;
    char what[64], trace[1024] = "";
    if (c->set_env)
        snprintf(what, sizeof what, "%d rank%s ", c->ranks, c->ranks == 1 ? "" : "s");
    else
        snprintf(what, sizeof what, "program ");
    if (c->trace && run_trace_count(c->trace)) {
        char *quoted = run_quote(c->trace_name);
        snprintf(trace, sizeof trace, "; trace in %s; next: brigade report %s", c->trace_name,
                 quoted ? quoted : c->trace_name);
        free(quoted);
    } else if (c->trace) {
        char why[512] = "";
        if (!j->code)
            run_shim_blame(c, why, sizeof why);
        snprintf(trace, sizeof trace, "; no trace was written to %s%s", c->trace_name, why);
    }
    double elapsed = (double)(now_ms() - j->start_ms) / 1e3;
    if (j->code)
        say(j, "%sended with status %d after %.1f s%s", what, j->code, elapsed, trace);
    else
        say(j, "%sfinished in %.1f s%s", what, elapsed, trace);
}

static void finish_if_done(job *j)
{
    bool groups = false;
    if (j->num_running || j->finished)
        return;
    for (int r = 0; r < j->config->ranks; r++)
        groups |= j->own_groups && j->ranks[r].group_alive;
    if (groups || j->num_streams) {
        event_add(j->tick_timer, &(struct timeval){.tv_usec = TICK_MS * 1000});
        return;
    }
    summarize(j);
    if (j->give_up || (run_sink_idle(j->out) && run_sink_idle(j->err))) {
        j->finished = true;
        event_base_loopbreak(j->base);
    } else {
        event_add(j->tick_timer, &(struct timeval){.tv_usec = TICK_MS * 1000});
    }
}

static void close_streams(job *j)
{
    for (int r = 0; r < j->config->ranks; r++)
        for (int i = 0; i < 2; i++)
            if (j->ranks[r].streams[i]) {
                run_stream_destroy(j->ranks[r].streams[i]);
                j->ranks[r].streams[i] = NULL;
                j->num_streams--;
            }
}

/* All ranks have exited: sees to processes that they left in their groups, and to pipes that such
 * processes hold open. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    job *j = arg;
    uint64_t waited = now_ms() - j->exited_ms;
    uint64_t grace = (uint64_t)(j->config->grace_s * 1e3);
    bool blocked = !run_sink_idle(j->out) || !run_sink_idle(j->err); /* a slow reader: no hurry */
    for (int r = 0; r < j->config->ranks; r++) {
        rank *k = &j->ranks[r];
        if (k->group_alive && kill(-k->pid, 0)) {
            k->group_alive = false;
            run_guard_forget(&j->guard, k->pid);
        }
    }
    if (waited >= LEFTOVER_GRACE_MS && !blocked)
        begin_ending(j, SIGTERM);
    if (waited >= LEFTOVER_GRACE_MS + grace)
        signal_ranks(j, SIGKILL);
    bool groups = false;
    for (int r = 0; r < j->config->ranks; r++)
        groups |= j->ranks[r].group_alive;
    if ((!groups && waited >= LEFTOVER_GRACE_MS && !blocked) || j->give_up ||
        waited >= 2 * LEFTOVER_GRACE_MS + grace)
        close_streams(j); /* held by something that has left the group on purpose: a daemon */
    finish_if_done(j);
}

static void on_stream_closed(void *arg)
{
    closed_arg *closed = arg;
    closed->rank->streams[closed->which] = NULL;
    closed->job->num_streams--;
    finish_if_done(closed->job);
}

/* Exit code of a rank as a shell would give it. */
static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void report_failure(job *j, const rank *k)
{
    char how[64], rest[64] = "";
    int r = (int)(k - j->ranks);
    if (j->num_running)
        snprintf(rest, sizeof rest, "; ending the other %d", j->num_running);
    say(j, "rank %d (process %d) %s%s%s%s", r, (int)k->pid, WIFSIGNALED(k->status) ? "was " : "",
        run_end_how(&j->ends[r], how),
        WIFSIGNALED(k->status) && WCOREDUMP(k->status) ? ", core dumped" : "", rest);
}

/* Reaps all there is. Of several that failed since the last look, one that was killed is likelier
 * the cause than one that exited: its peers exit because they have lost it. */
static void reap(job *j)
{
    rank *failed = NULL;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == j->guard.pid)
            j->guard.pid = 0;
        for (int r = 0; r < j->config->ranks; r++) {
            rank *k = &j->ranks[r];
            if (!k->running || k->pid != pid)
                continue;
            k->running = false;
            k->status = status;
            j->ends[r] = run_end_of(r, status);
            j->ends[r].first = status && !j->ending && !j->code && !j->interrupts;
            j->ends[r].ended_by_run = j->ending;
            j->num_running--;
            if (status && (!failed || (WIFSIGNALED(status) && !WIFSIGNALED(failed->status))))
                failed = k;
        }
    }
    for (int r = 0; r < j->config->ranks; r++) {
        rank *k = &j->ranks[r];
        if (k->group_alive && !k->running && kill(-k->pid, 0)) {
            k->group_alive = false; /* its number may be given to others now */
            run_guard_forget(&j->guard, k->pid);
        }
    }
    if (failed && !j->code) {
        bool broken_pipe = run_sink_error(j->out) == EPIPE && WIFSIGNALED(failed->status) &&
                           WTERMSIG(failed->status) == SIGPIPE;
        j->code = code_of(failed->status);
        if (!j->ending && !broken_pipe)
            report_failure(j, failed);
    }
    if (failed && !j->ending && j->num_running)
        begin_ending(j, SIGTERM);
    if (!j->num_running && !j->exited_ms) {
        j->exited_ms = now_ms();
        finish_if_done(j);
    }
}

static void on_interrupt(job *j)
{
    signal_ranks(j, SIGINT);
    if (++j->interrupts == 1) {
        if (j->own_groups && !j->config->quiet)
            say(j, "interrupt passed on; a second one ends the ranks");
        return;
    }
    begin_ending(j, SIGTERM);
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    job *j = arg;
    struct signalfd_siginfo info;
    if (read(j->signal_fd, &info, sizeof info) != sizeof info)
        return;
    int sig = (int)info.ssi_signo;
    /* the terminal has signalled the whole group: a rank in ours has it already */
    bool pass_on = j->own_groups || info.ssi_code != SI_KERNEL;
    switch (sig) {
    case SIGCHLD:
        reap(j);
        break;
    case SIGTSTP:
        if (pass_on)
            signal_ranks(j, SIGTSTP);
        kill(getpid(), SIGSTOP);
        break;
    case SIGINT:
        if (pass_on)
            on_interrupt(j);
        break;
    case SIGTERM:
    case SIGHUP:
        if (!j->ending)
            say(j, "SIG%s received; ending %d rank%s", sigabbrev_np(sig), j->num_running,
                j->num_running == 1 ? "" : "s");
        begin_ending(j, sig);
        break;
    default:
        if (pass_on)
            signal_ranks(j, sig);
        break;
    }
    if (!j->num_running && (sig == SIGINT || sig == SIGTERM || sig == SIGHUP)) {
        j->give_up = true; /* waiting for a reader of the output, or for leftovers */
        on_tick(-1, 0, j);
    }
}

static bool open_job(job *j)
{
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    j->own_groups = j->config->ranks > 1 || tty < 0;
    if (tty >= 0)
        close(tty);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans of the ranks are reaped here, wherever we run */
    j->signal_fd = run_signals_catch(&j->old_mask);
    if (j->signal_fd < 0 || run_guard_start(&j->guard))
        return false;
    struct event_config *options = event_config_new();
    if (options) {
        event_config_set_flag(options, EVENT_BASE_FLAG_IGNORE_ENV);
        j->base = event_base_new_with_config(options);
        event_config_free(options);
    }
    if (!j->base)
        return false;
    j->out = run_sink_create(j->base, STDOUT_FILENO);
    j->err = run_sink_create(j->base, STDERR_FILENO);
    j->signal_event = event_new(j->base, j->signal_fd, EV_READ | EV_PERSIST, on_signal, j);
    j->grace_timer = evtimer_new(j->base, on_grace_over, j);
    j->timeout_timer = evtimer_new(j->base, on_timeout, j);
    j->tick_timer = evtimer_new(j->base, on_tick, j);
    j->ranks = calloc((size_t)j->config->ranks, sizeof *j->ranks);
    j->ends = calloc((size_t)j->config->ranks, sizeof *j->ends);
    if (!j->out || !j->err || !j->signal_event || !j->grace_timer || !j->timeout_timer ||
        !j->tick_timer || !j->ranks || !j->ends || event_add(j->signal_event, NULL))
        return false;
    if (j->config->timeout_s > 0) {
        struct timeval time = seconds(j->config->timeout_s);
        event_add(j->timeout_timer, &time);
    }
    return true;
}

static void close_job(job *j)
{
    struct event *events[] = {j->signal_event, j->grace_timer, j->timeout_timer, j->tick_timer};
    run_input_destroy(j->input);
    if (j->ranks)
        close_streams(j);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    run_sink_destroy(j->out);
    run_sink_destroy(j->err);
    if (j->base)
        event_base_free(j->base);
    run_guard_stop(&j->guard);
    if (j->signal_fd >= 0)
        close(j->signal_fd);
    free(j->ranks);
    free(j->ends);
}

static bool add_stream(job *j, rank *k, int which, int *fd)
{
    k->closed_args[which] = (closed_arg){j, k, which};
    k->streams[which] =
        run_stream_create(j->base, *fd, which ? j->err : j->out, (int)(k - j->ranks),
                          on_stream_closed, &k->closed_args[which]);
    if (!k->streams[which])
        return false;
    *fd = -1;
    j->num_streams++;
    return true;
}

/* Returns 0, or the job's exit code after a message. */
static int start_rank(job *j, int rank_id)
{
    rank *k = &j->ranks[rank_id];
    run_env env = {.count = 0};
    run_child_fds fds;
    bool in_exec = false;
    int error = run_child_fds_open(j->config, rank_id, &fds);
    if (!error && !run_env_build(j->config, rank_id, &env))
        error = ENOMEM;
    if (!error) {
        run_spawn request = {.argv = j->config->argv,
                             .env = &env,
                             .fds = {fds.in, fds.out[1], fds.err[1]},
                             .own_group = j->own_groups,
                             .mask = &j->old_mask,
                             .guard = &j->guard};
        error = run_spawn_process(&request, &k->pid, &in_exec);
        if (error && k->pid > 0 && j->own_groups)
            run_guard_forget(&j->guard, k->pid);
    }
    if (!error) {
        k->running = true;
        k->group_alive = j->own_groups;
        j->num_running++;
        if (j->config->prefix &&
            (!add_stream(j, k, 0, &fds.out[0]) || !add_stream(j, k, 1, &fds.err[0])))
            error = ENOMEM;
    }
    if (!error && fds.feed >= 0) {
        j->input = run_input_create(j->base, STDIN_FILENO, fds.feed);
        if (j->input)
            fds.feed = -1;
    }
    run_child_fds_close(&fds);
    run_env_free(&env);
    if (!error)
        return 0;
    if (in_exec) {
        const char *why, *program = j->config->argv[0];
        int code = run_exec_code(program, error, &why);
        say(j, "cannot run '%s': %s", program, why);
        return code;
    }
    say(j, "cannot start rank %d: %s", rank_id, strerror(error));
    return CLI_OWN_FAILURE;
}

int run_job(const run_config *config)
{
    job j = {.config = config, .signal_fd = -1, .guard = {.fd = -1}};
    j.start_ms = now_ms();
    if (!open_job(&j)) {
        int code = cli_fail(config->command, CLI_OWN_FAILURE, "cannot set up: %s", strerror(errno));
        close_job(&j);
        return code;
    }
    for (int r = 0; r < config->ranks && !j.code; r++)
        j.code = start_rank(&j, r);
    if (j.code) {
        j.summarized = true; /* all has been said */
        if (j.num_running)
            begin_ending(&j, SIGTERM);
        else
            j.exited_ms = now_ms();
        finish_if_done(&j);
    }
    while (!j.finished && event_base_dispatch(j.base) == 0)
        ;
    if (config->trace && config->set_env)
        run_ends_leave(config, j.ends);
    int code = j.code;
    int error = run_sink_error(j.out);
    if (error && error != EPIPE) {
        cli_fail(config->command, 0, "cannot write the ranks' output: %s", strerror(error));
        code = code ? code : CLI_OWN_FAILURE;
    }
    close_job(&j);
    return code;
}
