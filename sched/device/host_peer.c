/* SPDX-License-Identifier: Apache-2.0 */
/* The processes behind the ranks: how to read their memory, and whether they live. */
#include "sched/device/host_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
    bool known;
    uint32_t generation;
    uint64_t start_time, pid_namespace;
} self; /* under host_engine_lock */

static uint8_t cookie[16]; /* written once per process, then read by peers */
static host_peer *peers;   /* under host_engine_lock */

/* Start time in clock ticks since boot, and the state letter. 0 if there is no such process. */
static uint64_t process_start_time(uint64_t pid, char *state)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    char *at = strrchr(text, ')'); /* the command before it may hold anything */
    unsigned long long start;
    if (!at ||
        sscanf(at + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               state, &start) != 2)
        return 0;
    return start;
}

static int identify_locked(void)
{
    uint32_t generation = atomic_load(&host_generation);
    if (self.known && self.generation == generation)
        return BRG_NCCL_OK;
    char state;
    struct stat status;
    if (getrandom(cookie, sizeof cookie, 0) != (ssize_t)sizeof cookie)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_IO, "no random numbers: %s", strerror(errno));
    self.start_time = process_start_time((uint64_t)getpid(), &state);
    self.pid_namespace = stat("/proc/self/ns/pid", &status) ? 0 : status.st_ino;
    self.generation = generation;
    self.known = true;
    return BRG_NCCL_OK;
}

int host_process_identify(shm_process *id)
{
    host_fork_prepare();
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&host_engine_lock);
    int result = identify_locked();
    if (!result) {
        id->pid = (uint64_t)getpid();
        id->start_time = self.start_time;
        id->pid_namespace = self.pid_namespace;
        memcpy(id->cookie, cookie, sizeof cookie);
        id->cookie_address = (uint64_t)(uintptr_t)cookie;
    }
    pthread_mutex_unlock(&host_engine_lock);
    if (!result)
        host_arena_identify(&id->arena);
    return result;
}

static void map_arena(host_peer *peer)
{
    const host_arena_id *arena = &peer->id.arena;
    if (arena->fd < 0 || !arena->bytes)
        return;
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)peer->id.pid, arena->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    struct stat status;
    if (!fstat(fd, &status) && status.st_dev == arena->device && status.st_ino == arena->inode &&
        (uint64_t)status.st_size == arena->bytes) {
        void *base = mmap(NULL, arena->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (base != MAP_FAILED) {
            madvise(base, arena->bytes, MADV_DONTDUMP);
            madvise(base, arena->bytes, MADV_DONTFORK);
            peer->arena = base;
            peer->reach |= HOST_REACH_ARENA;
        }
    }
    close(fd);
}

static void probe_copy(host_peer *peer)
{
    uint8_t found[sizeof cookie];
    struct iovec local = {.iov_base = found, .iov_len = sizeof found};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)peer->id.cookie_address,
                           .iov_len = sizeof found};
    if (process_vm_readv((pid_t)peer->id.pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof found &&
        !memcmp(found, peer->id.cookie, sizeof found))
        peer->reach |= HOST_REACH_COPY;
}

static host_peer *peer_new_locked(const shm_process *id)
{
    host_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->id = *id;
    peer->pidfd = -1;
    peer->users = 1;
    char state;
    if (!memcmp(id->cookie, cookie, sizeof cookie)) {
        peer->reach = HOST_REACH_SAME | HOST_REACH_ARENA | HOST_REACH_COPY;
    } else if (id->pid_namespace == self.pid_namespace) {
        peer->visible = true;
        peer->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)id->pid, 0);
        peer->dead_at_open = process_start_time(id->pid, &state) != id->start_time;
        if (!peer->dead_at_open) {
            map_arena(peer);
            probe_copy(peer);
        }
    }
    peer->next = peers;
    peers = peer;
    return peer;
}

int host_peer_open(const shm_process *id, host_peer **out)
{
    pthread_mutex_lock(&host_engine_lock);
    host_peer *peer = peers;
    while (peer && memcmp(peer->id.cookie, id->cookie, sizeof id->cookie))
        peer = peer->next;
    if (peer)
        peer->users++;
    else
        peer = peer_new_locked(id);
    pthread_mutex_unlock(&host_engine_lock);
    *out = peer;
    return peer ? BRG_NCCL_OK : host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
}

void host_peer_close(host_peer *peer)
{
    if (!peer)
        return;
    pthread_mutex_lock(&host_engine_lock);
    if (--peer->users == 0) {
        host_peer **link = &peers;
        while (*link != peer)
            link = &(*link)->next;
        *link = peer->next;
        if (peer->arena)
            munmap(peer->arena, peer->id.arena.bytes);
        if (peer->pidfd >= 0)
            close(peer->pidfd);
        free(peer);
    }
    pthread_mutex_unlock(&host_engine_lock);
}

/* A process that has ended but was not yet waited for counts as dead: its pidfd is readable, its
 * state is Z. */
bool host_peer_dead(const host_peer *peer)
{
    if (peer->reach & HOST_REACH_SAME || !peer->visible)
        return false;
    if (peer->dead_at_open)
        return true;
    if (peer->pidfd >= 0) {
        struct pollfd poll_fd = {.fd = peer->pidfd, .events = POLLIN};
        return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLIN);
    }
    char state;
    uint64_t start = process_start_time(peer->id.pid, &state);
    return start != peer->id.start_time || state == 'Z' || state == 'X';
}

void host_peer_fork_child(void)
{
    for (host_peer *peer = peers; peer; peer = peer->next)
        if (peer->pidfd >= 0)
            close(peer->pidfd);
    peers = NULL;
}
