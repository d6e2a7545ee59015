/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_ARGS = 32,
    DEFAULT_TIMEOUT_S = 900,
};

extern char **environ;

/* Beside the program: in the build directory, then as installed; then where it was to go. */
static bool find_script(const char *script, char path[PATH_MAX])
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    static const char *const formats[] = {"%s/../torch/%s", "%s/../share/brigade/torch/%s"};
    for (int i = 0; i < 3; i++) {
        int n = i < 2 ? snprintf(path, PATH_MAX, formats[i], program, script)
                      : snprintf(path, PATH_MAX, "%s/%s", BRIGADE_TORCH_DIR, script);
        if (n > 0 && n < PATH_MAX && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* Ends the process, if there is one. */
static void drop(bench_peer *peer)
{
    peer->count = 0;
    if (peer->to >= 0)
        close(peer->to);
    if (peer->from >= 0)
        close(peer->from);
    peer->to = peer->from = -1;
    if (peer->pid > 0) {
        int waited = 0;
        for (; waited < 50 && waitpid(peer->pid, NULL, WNOHANG) == 0; waited++)
            usleep(100000); /* it ends with its standard input */
        if (waited == 50) {
            kill(peer->pid, SIGKILL);
            waitpid(peer->pid, NULL, 0);
        }
    }
    peer->pid = 0;
}

static void __attribute__((format(printf, 2, 3))) give_up(bench_peer *peer, const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    cli_fail(peer->command, CLI_OK, "no peer: %s", why);
    drop(peer);
}

static int spawn(bench_peer *peer, char **argv)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC))
        return errno;
    if (pipe2(out, O_CLOEXEC)) {
        close(in[0]);
        close(in[1]);
        return errno;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE); /* which we ignore */
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    pid_t pid = 0;
    int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(in[0]);
    close(out[1]);
    peer->to = in[1];
    peer->from = out[0];
    peer->pid = error ? 0 : pid;
    return error;
}

void bench_peer_start(bench_peer *peer, const cli_command *command,
                      const bench_peer_options *options, const char *script,
                      const char *const *args)
{
    char path[PATH_MAX];
    char *argv[MAX_ARGS + 3];
    int argc = 0;
    *peer = (bench_peer){.command = command, .to = -1, .from = -1};
    peer->timeout_s = options->timeout_s ? (int)options->timeout_s : DEFAULT_TIMEOUT_S;
    if (options->none)
        return;
    if (!find_script(script, path)) {
        give_up(peer, "%s is not where it was installed", script);
        return;
    }
    argv[argc++] = (char *)(options->python ? options->python : "python3");
    argv[argc++] = path;
    while (*args && argc < MAX_ARGS + 2)
        argv[argc++] = (char *)*args++;
    argv[argc] = NULL;
    int error = spawn(peer, argv);
    if (error)
        give_up(peer, "cannot run %s: %s", argv[0], strerror(error));
}

/* The next line, without its end; valid until the next call. NULL: end of file, or too late. */
static char *read_line(bench_peer *peer)
{
    char *end;
    while (!(end = peer->used ? memchr(peer->line, '\n', peer->used) : NULL)) {
        if (peer->used == peer->capacity) {
            size_t capacity = peer->capacity ? 2 * peer->capacity : 1024;
            char *line = realloc(peer->line, capacity);
            if (!line)
                return NULL;
            peer->line = line;
            peer->capacity = capacity;
        }
        struct pollfd fd = {.fd = peer->from, .events = POLLIN};
        int ready = poll(&fd, 1, peer->timeout_s * 1000);
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n =
            ready > 0 ? read(peer->from, peer->line + peer->used, peer->capacity - peer->used) : 0;
        if (n <= 0)
            return NULL;
        peer->used += (size_t)n;
    }
    *end = '\0';
    return peer->line;
}

/* Reads one line of JSON; NULL after giving up. */
static json_t *read_answer(bench_peer *peer)
{
    char *line = read_line(peer);
    if (!line) {
        give_up(peer, "the script ended, or took more than %d s", peer->timeout_s);
        return NULL;
    }
    json_error_t error;
    json_t *answer = json_loads(line, 0, &error);
    if (!json_is_object(answer)) {
        give_up(peer, "the script said \"%.200s\", expected a JSON object", line);
        json_decref(answer);
        return NULL;
    }
    size_t length = strlen(line) + 1;
    memmove(peer->line, peer->line + length, peer->used - length);
    peer->used -= length;
    return answer;
}

void bench_peer_ready(bench_peer *peer)
{
    json_t *answer = peer->pid ? read_answer(peer) : NULL;
    if (!answer)
        return;
    const char *why = json_string_value(json_object_get(answer, "unavailable"));
    const json_t *names = json_object_get(answer, "peers");
    size_t count = json_array_size(names);
    for (size_t i = 0; i < count && i < BENCH_MAX_PEERS; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        snprintf(peer->names[peer->count++], BENCH_PEER_NAME, "%s", name ? name : "?");
    }
    if (!peer->count)
        give_up(peer, "%s", why ? why : "the script names none");
    json_decref(answer);
}

void bench_peer_measure(bench_peer *peer, int item, double us[BENCH_MAX_PEERS])
{
    for (int i = 0; i < BENCH_MAX_PEERS; i++)
        us[i] = NAN;
    if (!peer->count)
        return;
    char request[32];
    int length = snprintf(request, sizeof request, "%d\n", item);
    if (write(peer->to, request, (size_t)length) != length) {
        give_up(peer, "the script has ended");
        return;
    }
    json_t *answer = read_answer(peer);
    const json_t *times = json_object_get(answer, "us");
    for (int i = 0; answer && i < peer->count; i++) {
        const json_t *value = json_array_get(times, (size_t)i);
        if (json_is_number(value))
            us[i] = json_number_value(value);
    }
    json_decref(answer);
}

void bench_peer_stop(bench_peer *peer)
{
    drop(peer);
    free(peer->line);
    peer->line = NULL;
}
