/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/bootstrap.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sched/status.h"
#include "sched/trace/ring.h"

#define HELLO_MAGIC 0x62726764656c6c31ull
#define RETRY_MS 50
#define PATIENCE_S 5 /* then rank 0 says on stderr whom it waits for */

/* Both messages have a fixed size, native endian: ranks of one job run one architecture, and
 * another byte order shows as a wrong magic. */
typedef struct hello {
    uint64_t magic;
    int32_t world, rank;
} hello;

typedef struct reply {
    uint64_t magic;
    int32_t status;
    char text[256];
    brg_unique_id id;
} reply;

typedef struct server {
    struct event_base *base;
    int world;
    int arrived;                /* with rank 0 itself */
    struct bufferevent **peers; /* by rank; NULL: not here yet */
    struct bufferevent **all;   /* every accepted connection */
    int num_all, cap_all;
    brg_status status;
    char text[256];
    reply answer;
} server;

static void server_fail(server *s, brg_status status, const char *text)
{
    if (s->status == BRG_OK) {
        s->status = status;
        snprintf(s->text, sizeof s->text, "%s", text);
    }
    event_base_loopbreak(s->base);
}

static void on_hello(struct bufferevent *bev, void *arg)
{
    server *s = arg;
    struct evbuffer *input = bufferevent_get_input(bev);
    if (evbuffer_get_length(input) < sizeof(hello))
        return;
    hello h;
    evbuffer_remove(input, &h, sizeof h);
    bufferevent_disable(bev, EV_READ);
    char text[256];
    if (h.magic != HELLO_MAGIC)
        return; /* somebody else's client; it gets no answer */
    if (h.world != s->world) {
        snprintf(text, sizeof text, "rank %d was started for %d ranks, rank 0 for %d", h.rank,
                 h.world, s->world);
        s->peers[0] = bev; /* told too */
        server_fail(s, BRG_ERR_MISMATCH, text);
    } else if (h.rank < 1 || h.rank >= s->world) {
        snprintf(text, sizeof text, "a process calls itself rank %d of %d", h.rank, s->world);
        server_fail(s, BRG_ERR_MISMATCH, text);
    } else if (s->peers[h.rank]) {
        snprintf(text, sizeof text, "two processes call themselves rank %d", h.rank);
        server_fail(s, BRG_ERR_MISMATCH, text);
    } else {
        s->peers[h.rank] = bev;
        if (++s->arrived == s->world)
            event_base_loopbreak(s->base);
    }
}

static void on_gone(struct bufferevent *bev, short what, void *arg)
{
    (void)what;
    server *s = arg;
    for (int r = 1; r < s->world; r++)
        if (s->peers[r] == bev) {
            char text[256];
            snprintf(text, sizeof text, "rank %d left during start-up", r);
            server_fail(s, BRG_ERR_PEER_LOST, text);
        }
    bufferevent_disable(bev, EV_READ | EV_WRITE);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int length, void *arg)
{
    (void)listener, (void)address, (void)length;
    server *s = arg;
    struct bufferevent *bev = NULL;
    if (s->num_all < s->cap_all)
        bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) {
        evutil_closesocket(fd);
        return;
    }
    s->all[s->num_all++] = bev;
    bufferevent_setcb(bev, on_hello, NULL, on_gone, s);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}

/* "<head> 1 4 7": the ranks that have not arrived, as many as fit. */
static void name_missing(const server *s, const char *head, char text[256])
{
    int at = snprintf(text, 256, "%d of %d ranks %s", s->arrived, s->world, head);
    for (int r = 1; r < s->world && at < 256 - 16; r++)
        if (!s->peers[r])
            at += snprintf(text + at, 256 - (size_t)at, " %d", r);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    server *s = arg;
    char text[256];
    name_missing(s, "arrived in time; missing:", text);
    server_fail(s, BRG_ERR_TIMEOUT, text);
}

static void on_long_wait(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    char text[256];
    name_missing(arg, "have arrived; waiting for rank", text);
    brg_log(BRG_LOG_WARN, "%s", text);
}

/* Writes the answer to everybody and gives the writes a moment to leave. */
static void answer_all(server *s, const brg_unique_id *id)
{
    s->answer.magic = HELLO_MAGIC;
    s->answer.status = s->status;
    memcpy(s->answer.text, s->text, sizeof s->answer.text);
    s->answer.id = *id;
    for (int i = 0; i < s->num_all; i++) {
        bufferevent_setcb(s->all[i], NULL, NULL, NULL, NULL);
        bufferevent_write(s->all[i], &s->answer, sizeof s->answer);
    }
    uint64_t until = brg_now_ns() + 2000000000ull;
    for (;;) {
        size_t left = 0;
        for (int i = 0; i < s->num_all; i++)
            left += evbuffer_get_length(bufferevent_get_output(s->all[i]));
        if (!left || brg_now_ns() > until)
            break;
        struct timeval pause = {.tv_usec = 5000};
        event_base_loopexit(s->base, &pause);
        event_base_dispatch(s->base);
    }
}

static brg_status resolve(const char *address, int port, int flags, struct addrinfo **list)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    int error = getaddrinfo(address, service, &hints, list);
    if (error)
        return brg_fail(BRG_ERR_IO, "MASTER_ADDR %s: %s", address, gai_strerror(error));
    return BRG_OK;
}

/* Duplicates: libevent closes its own. */
static brg_status keep_all(const server *s, int **kept)
{
    int *fds = malloc((size_t)s->world * sizeof *fds);
    bool failed = !fds;
    for (int r = 0; fds && r < s->world; r++) {
        fds[r] = r && !failed ? fcntl(bufferevent_getfd(s->peers[r]), F_DUPFD_CLOEXEC, 3) : -1;
        failed |= r && fds[r] < 0;
    }
    if (!failed) {
        *kept = fds;
        return BRG_OK;
    }
    brg_status status = brg_fail(BRG_ERR_IO, "rank 0 cannot keep the connections to %d ranks: %s",
                                 s->world, strerror(errno));
    for (int r = 1; fds && r < s->world; r++)
        if (fds[r] >= 0)
            close(fds[r]);
    free(fds);
    return status;
}

static brg_status serve(const char *address, int port, int world, double timeout_s,
                        const brg_unique_id *id, int **kept)
{
    struct addrinfo *list = NULL;
    struct evconnlistener *listener = NULL;
    struct event *timer = NULL;
    server s = {.world = world, .arrived = 1, .cap_all = world + 64};
    brg_status status = resolve(address, port, AI_PASSIVE, &list);
    if (status != BRG_OK)
        return status;
    s.base = event_base_new();
    s.peers = calloc((size_t)world, sizeof *s.peers);
    s.all = calloc((size_t)s.cap_all, sizeof *s.all);
    if (!s.base || !s.peers || !s.all) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for start-up of %d ranks", world);
        goto out;
    }
    listener = evconnlistener_new_bind(
        s.base, on_accept, &s, LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC,
        -1, list->ai_addr, (int)list->ai_addrlen);
    if (!listener) {
        status = brg_fail(BRG_ERR_IO,
                          "rank 0 cannot listen at MASTER_ADDR:MASTER_PORT %s:%d: %s; set "
                          "BRIGADE_MASTER_PORT to a free port, or pass a unique id",
                          address, port, strerror(errno));
        goto out;
    }
    timer = event_new(s.base, -1, 0, on_timeout, &s);
    struct timeval limit = {.tv_sec = (time_t)timeout_s,
                            .tv_usec =
                                (suseconds_t)((timeout_s - (double)(time_t)timeout_s) * 1e6)};
    if (!timer || event_add(timer, &limit) != 0) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for start-up of %d ranks", world);
        goto out;
    }
    struct timeval patience = {.tv_sec = PATIENCE_S};
    event_base_once(s.base, -1, EV_TIMEOUT, on_long_wait, &s, &patience);
    event_base_dispatch(s.base);
    event_del(timer);
    answer_all(&s, id);
    if (s.status != BRG_OK)
        status = brg_fail(s.status, "%s", s.text);
    else if (kept)
        status = keep_all(&s, kept);
out:
    for (int i = 0; i < s.num_all; i++)
        bufferevent_free(s.all[i]);
    if (timer)
        event_free(timer);
    if (listener)
        evconnlistener_free(listener);
    if (s.base)
        event_base_free(s.base);
    free(s.peers);
    free(s.all);
    freeaddrinfo(list);
    return status;
}

/* Connects, retrying while rank 0 does not listen yet. Returns the socket or -1. */
static int connect_by(const struct addrinfo *list, uint64_t deadline_ns)
{
    do {
        for (const struct addrinfo *a = list; a; a = a->ai_next) {
            int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
            if (fd < 0)
                continue;
            if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
                return fd;
            close(fd);
        }
        poll(NULL, 0, RETRY_MS);
    } while (brg_now_ns() < deadline_ns);
    return -1;
}

/* Reads exactly `bytes`; 0 on success, 1 on time-out, 2 when the other side has closed or failed.
 */
static int read_by(int fd, void *buffer, size_t bytes, uint64_t deadline_ns)
{
    size_t have = 0;
    while (have < bytes) {
        uint64_t now = brg_now_ns();
        if (now >= deadline_ns)
            return 1;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, (int)((deadline_ns - now) / 1000000ull) + 1);
        if (ready < 0 && errno != EINTR)
            return 2;
        if (ready <= 0)
            continue;
        ssize_t n = recv(fd, (char *)buffer + have, bytes - have, 0);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return 2;
        if (n > 0)
            have += (size_t)n;
    }
    return 0;
}

/* What rank 0 answers, on a connection to it. */
static brg_status read_reply(int fd, const char *address, int port, int rank, double timeout_s,
                             uint64_t deadline, int world, brg_unique_id *id)
{
    hello h = {.magic = HELLO_MAGIC, .world = world, .rank = rank};
    reply r = {0};
    int failed = send(fd, &h, sizeof h, MSG_NOSIGNAL) == (ssize_t)sizeof h
                     ? read_by(fd, &r, sizeof r, deadline)
                     : 2;
    if (failed == 1)
        return brg_fail(BRG_ERR_TIMEOUT, "rank %d: no word from rank 0 at %s:%d within %.0f s",
                        rank, address, port, timeout_s);
    if (failed)
        return brg_fail(BRG_ERR_PEER_LOST, "rank %d: rank 0 at %s:%d closed the connection", rank,
                        address, port);
    if (r.magic != HELLO_MAGIC)
        return brg_fail(BRG_ERR_IO, "rank %d: what answers at %s:%d is not a Brigade rank 0", rank,
                        address, port);
    if (r.status != BRG_OK) {
        r.text[sizeof r.text - 1] = 0;
        return brg_fail((brg_status)r.status, "%s", r.text);
    }
    *id = r.id;
    return BRG_OK;
}

static brg_status join(const char *address, int port, int rank, int world, double timeout_s,
                       brg_unique_id *id, int **kept)
{
    struct addrinfo *list = NULL;
    brg_status status = resolve(address, port, 0, &list);
    if (status != BRG_OK)
        return status;
    /* Rank 0 gives up first, so that it is rank 0's message that everybody gets. */
    uint64_t deadline = brg_now_ns() + (uint64_t)((timeout_s + 2) * 1e9);
    int fd = connect_by(list, deadline);
    freeaddrinfo(list);
    if (fd < 0)
        return brg_fail(BRG_ERR_TIMEOUT, "rank %d: rank 0 does not answer at %s:%d (%s)", rank,
                        address, port, strerror(errno));
    status = read_reply(fd, address, port, rank, timeout_s, deadline, world, id);
    if (status == BRG_OK && kept && !(*kept = malloc(sizeof **kept)))
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for a connection");
    if (status == BRG_OK && kept)
        **kept = fd;
    else
        close(fd);
    return status;
}

brg_status brg_bootstrap_run(const char *address, int port, int rank, int world, double timeout_s,
                             brg_unique_id *id, int **kept)
{
    if (kept)
        *kept = NULL;
    return rank == 0 ? serve(address, port, world, timeout_s, id, kept)
                     : join(address, port, rank, world, timeout_s, id, kept);
}
