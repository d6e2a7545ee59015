/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/lifeline.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sched/trace/ring.h"

enum {
    PROGRESS_EVERY_NS = 1000000000,
    ANSWER_MS = 1000,
    NAMED_RANKS = 8,
};

typedef enum message_kind {
    MESSAGE_PROGRESS = 1, /* to rank 0 */
    MESSAGE_WHO_IS_LATE,  /* to rank 0, which answers with the same kind */
    MESSAGE_NEWS,
    MESSAGE_BYE,
} message_kind;

/* All messages have one size, so that a part of one is never taken for a whole. */
typedef struct message {
    uint32_t kind;
    int32_t status, rank;
    uint32_t pad;
    uint64_t num_ops;
    char text[480];
} message;
static_assert(sizeof(((message *)0)->text) == sizeof(((brg_lifeline_news *)0)->text),
              "news fits a message");

struct brg_lifeline {
    int rank, count;      /* of connections: on rank 0 all ranks', elsewhere one */
    struct pollfd *peers; /* rank 0: by rank; fd -1: said goodbye, or gone */
    uint64_t *num_ops;    /* rank 0: what ranks have said last, by rank */
    uint64_t told_ops, told_ns;
    bool told;
    bool has_news, has_late; /* what has come while something else was awaited */
    brg_lifeline_news news;
    char late[256];
};

/* A host that is switched off closes nothing. */
static void keep_alive(int fd)
{
    const int on = 1, idle_s = 10, interval_s = 5, probes = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

brg_status brg_lifeline_create(int rank, int world, const int *fds, brg_lifeline **out)
{
    const int count = rank == 0 ? world : 1;
    *out = NULL;
    brg_lifeline *l = calloc(1, sizeof *l);
    if (l) {
        l->peers = calloc((size_t)count, sizeof *l->peers);
        l->num_ops = calloc((size_t)count, sizeof *l->num_ops);
    }
    if (!l || !l->peers || !l->num_ops) {
        for (int i = 0; i < count; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        if (l) {
            free(l->peers);
            free(l->num_ops);
        }
        free(l);
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the connections of %d ranks", count);
    }
    l->rank = rank;
    l->count = count;
    for (int i = 0; i < count; i++) {
        l->peers[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        if (fds[i] >= 0)
            keep_alive(fds[i]);
    }
    *out = l;
    return BRG_OK;
}

static void hang_up(brg_lifeline *l, int peer)
{
    if (l->peers[peer].fd >= 0)
        close(l->peers[peer].fd);
    l->peers[peer].fd = -1;
    l->peers[peer].revents = 0;
}

/* Never waits: with room for hundreds of messages, whose peer reads none is as good as gone. */
static void put(brg_lifeline *l, int peer, const message *m)
{
    if (l->peers[peer].fd >= 0)
        (void)!send(l->peers[peer].fd, m, sizeof *m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void put_all_but(brg_lifeline *l, int but, const message *m)
{
    for (int i = 0; i < l->count; i++)
        if (l->rank != 0 || i != but)
            put(l, i, m);
}

/* The first counts: what follows it is its consequence. */
static void take_news(brg_lifeline *l, const message *m)
{
    if (!l->has_news) {
        l->has_news = true;
        l->news.status = (brg_status)m->status;
        l->news.rank = m->rank;
        memcpy(l->news.text, m->text, sizeof l->news.text);
        l->news.text[sizeof l->news.text - 1] = '\0';
    }
    if (l->rank == 0)
        put_all_but(l, m->rank, m);
}

static void lose(brg_lifeline *l, int peer)
{
    message m = {
        .kind = MESSAGE_NEWS, .status = BRG_ERR_PEER_LOST, .rank = l->rank == 0 ? peer : 0};
    hang_up(l, peer);
    snprintf(m.text, sizeof m.text, "rank %d has ended without closing its context", m.rank);
    take_news(l, &m);
}

/* Rank 0: by what the others have said last, which is news of a second ago. */
static void describe_late(brg_lifeline *l, uint64_t num_ops, char text[256])
{
    uint64_t most = num_ops;
    int at = 0, late = 0;
    l->num_ops[0] = num_ops;
    for (int r = 0; r < l->count; r++)
        most = l->num_ops[r] > most ? l->num_ops[r] : most;
    text[0] = '\0';
    for (int r = 0; r < l->count && at < 256; r++) {
        if (l->num_ops[r] == most || late++ >= NAMED_RANKS)
            continue;
        at += snprintf(text + at, 256 - (size_t)at, "%srank %d has issued %llu collectives",
                       late > 1 ? ", " : "", r, (unsigned long long)l->num_ops[r]);
    }
    if (late > NAMED_RANKS && at < 256)
        at += snprintf(text + at, 256 - (size_t)at, ", and %d others", late - NAMED_RANKS);
    if (at < 256)
        snprintf(text + at, 256 - (size_t)at,
                 late ? ", others %llu" : "all ranks have issued %llu collectives",
                 (unsigned long long)most);
}

static void answer(brg_lifeline *l, int peer, uint64_t num_ops)
{
    message m = {.kind = MESSAGE_WHO_IS_LATE};
    describe_late(l, num_ops, m.text);
    put(l, peer, &m);
}

static void take(brg_lifeline *l, int peer, const message *m, uint64_t num_ops)
{
    switch (m->kind) {
    case MESSAGE_PROGRESS:
        if (l->rank == 0)
            l->num_ops[peer] = m->num_ops;
        break;
    case MESSAGE_WHO_IS_LATE:
        if (l->rank == 0) {
            l->num_ops[peer] = m->num_ops;
            answer(l, peer, num_ops);
        } else {
            l->has_late = true;
            memcpy(l->late, m->text, sizeof l->late);
            l->late[sizeof l->late - 1] = '\0';
        }
        break;
    case MESSAGE_NEWS:
        take_news(l, m);
        break;
    default: /* goodbye, or nothing that we speak */
        hang_up(l, peer);
        break;
    }
}

/* All whole messages of one connection. */
static void receive(brg_lifeline *l, int peer, uint64_t num_ops)
{
    while (l->peers[peer].fd >= 0) {
        message m;
        ssize_t n = recv(l->peers[peer].fd, &m, sizeof m, MSG_DONTWAIT | MSG_PEEK);
        if (n == (ssize_t)sizeof m) {
            (void)!recv(l->peers[peer].fd, &m, sizeof m, MSG_DONTWAIT);
            take(l, peer, &m, num_ops);
        } else if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            lose(l, peer);
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            return;
        }
    }
}

/* Takes what has come; where nothing has, waits for it until then. */
static void listen_until(brg_lifeline *l, uint64_t num_ops, uint64_t until_ns)
{
    uint64_t now = brg_now_ns();
    int wait_ms = now < until_ns ? (int)((until_ns - now + 999999) / 1000000) : 0;
    if (poll(l->peers, (nfds_t)l->count, wait_ms) <= 0)
        return;
    for (int i = 0; i < l->count; i++)
        if (l->peers[i].fd >= 0 && l->peers[i].revents)
            receive(l, i, num_ops);
}

static void tell_progress(brg_lifeline *l, uint64_t num_ops)
{
    uint64_t now = brg_now_ns();
    if (l->rank == 0 || num_ops == l->told_ops || now < l->told_ns + PROGRESS_EVERY_NS)
        return;
    l->told_ops = num_ops;
    l->told_ns = now;
    put(l, 0, &(message){.kind = MESSAGE_PROGRESS, .rank = l->rank, .num_ops = num_ops});
}

bool brg_lifeline_look(brg_lifeline *l, uint64_t num_ops, int wait_ms, brg_lifeline_news *news)
{
    tell_progress(l, num_ops);
    uint64_t until = brg_now_ns() + (uint64_t)wait_ms * 1000000;
    do
        listen_until(l, num_ops, until);
    while (!l->has_news && brg_now_ns() < until);
    bool any = l->has_news;
    if (any)
        *news = l->news;
    l->has_news = false;
    return any;
}

void brg_lifeline_tell(brg_lifeline *l, brg_status status, const char *text)
{
    if (l->told)
        return;
    l->told = true;
    message m = {.kind = MESSAGE_NEWS, .status = (int32_t)status, .rank = l->rank};
    snprintf(m.text, sizeof m.text, "%s", text);
    put_all_but(l, 0, &m);
}

void brg_lifeline_name_late(brg_lifeline *l, uint64_t num_ops, char text[256])
{
    text[0] = '\0';
    if (l->rank == 0) {
        listen_until(l, num_ops, 0);
        describe_late(l, num_ops, text);
        return;
    }
    l->has_late = false;
    put(l, 0, &(message){.kind = MESSAGE_WHO_IS_LATE, .rank = l->rank, .num_ops = num_ops});
    uint64_t until = brg_now_ns() + ANSWER_MS * 1000000ull;
    while (!l->has_late && !l->has_news && l->peers[0].fd >= 0 && brg_now_ns() < until)
        listen_until(l, num_ops, until);
    if (l->has_late)
        memcpy(text, l->late, sizeof l->late);
}

void brg_lifeline_destroy(brg_lifeline *l)
{
    if (!l)
        return;
    put_all_but(l, 0, &(message){.kind = MESSAGE_BYE, .rank = l->rank});
    for (int i = 0; i < l->count; i++)
        hang_up(l, i);
    free(l->peers);
    free(l->num_ops);
    free(l);
}
