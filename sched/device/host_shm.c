/* SPDX-License-Identifier: Apache-2.0 */
/* The shared segment of a communicator: /dev/shm/brigade-<id>. The first rank to come creates it,
 * the last one to attach unlinks it, so in normal operation a name exists only while ranks are
 * arriving.
 *
 * Whoever uses a name holds a shared lock (flock) on the file. The kernel drops the lock when the
 * process ends, however it ends; so a segment whose exclusive lock can be had belongs to nobody
 * that lives, and the next start removes it. Because another start may do so between our open and
 * our lock, the link count is checked once the lock is held. */
#include "sched/device/host_comm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORY "/dev/shm"
#define PREFIX "brigade-"
#define PAGE ((size_t)4096)

static host_segment *segments; /* of this process, under host_segment_lock */

static size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

/* Fills in the parts' places; returns the size of what must be backed from the start. */
static size_t arrange(host_segment *s, int num_ranks)
{
    size_t n = (size_t)num_ranks;
    size_t ranks = round_up(sizeof(shm_header), HOST_LINE);
    size_t reach = ranks + n * sizeof(shm_rank);
    size_t mail = round_up(reach + n * n, HOST_LINE);
    size_t small = round_up(mail + n * n * sizeof(shm_mail), PAGE);
    s->stage_offset = small + n * 2 * HOST_INLINE_BYTES;
    s->bytes = s->stage_offset + n * 2 * HOST_STAGE_BYTES;
    if (s->base) {
        s->header = (shm_header *)(void *)s->base;
        s->ranks = (shm_rank *)(void *)(s->base + ranks);
        s->reach = (_Atomic uint8_t *)(s->base + reach);
        s->mail = (shm_mail *)(void *)(s->base + mail);
        s->small = s->base + small;
        s->stage = s->base + s->stage_offset;
    }
    return s->stage_offset;
}

/* Removes what nobody uses any more, but not `name`: if its ranks have died while it was being
 * made, that is for their peers to find out. */
static void sweep(const char *name)
{
    DIR *directory = opendir(DIRECTORY);
    if (!directory)
        return;
    const struct dirent *entry;
    while ((entry = readdir(directory))) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) ||
            !strcmp(entry->d_name + sizeof PREFIX - 1, name))
            continue;
        int fd =
            openat(dirfd(directory), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        struct stat status;
        if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
            !flock(fd, LOCK_EX | LOCK_NB))
            unlinkat(dirfd(directory), entry->d_name, 0);
        close(fd);
    }
    closedir(directory);
}

/* True when fd is locked and still has its name. */
static bool lock_and_check(int fd)
{
    struct stat status;
    while (flock(fd, LOCK_SH))
        if (errno != EINTR)
            return false;
    return !fstat(fd, &status) && status.st_nlink > 0;
}

static int map(host_segment *s, int num_ranks)
{
    void *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY,
                         "shared memory %s: cannot map %zu bytes: %s", s->name, s->bytes,
                         strerror(errno));
    s->base = base;
    arrange(s, num_ranks);
    return BRG_NCCL_OK;
}

static int create(host_segment *s, int num_ranks)
{
    size_t backed = arrange(s, num_ranks);
    int error = posix_fallocate(s->fd, 0, (off_t)backed);
    if (!error && ftruncate(s->fd, (off_t)s->bytes))
        error = errno;
    if (error)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY,
                         "shared memory %s: no room for %zu bytes in %s: %s", s->name, backed,
                         DIRECTORY, strerror(error));
    int result = map(s, num_ranks);
    if (result)
        return result;
    shm_process self;
    result = host_process_identify(&self);
    if (result)
        return result;
    s->header->version = SHM_VERSION;
    s->header->num_ranks = (uint32_t)num_ranks;
    s->header->bytes = s->bytes;
    s->header->creator_pid = self.pid;
    s->header->creator_start_time = self.start_time;
    atomic_store(&s->header->ready, SHM_READY);
    host_futex_wake(&s->header->ready, true);
    return BRG_NCCL_OK;
}

/* Waits for the creator to fill in the header. */
static int join(host_segment *s, int num_ranks, uint64_t deadline_ns)
{
    struct stat status;
    for (;;) {
        if (fstat(s->fd, &status))
            return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_IO, "shared memory %s: %s", s->name,
                             strerror(errno));
        if ((size_t)status.st_size >= round_up(sizeof(shm_header), PAGE))
            break;
        if (host_now_ns() > deadline_ns)
            return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_TIMEOUT,
                             "shared memory %s: its creator has not finished it", s->name);
        host_sleep_ns(1000000);
    }
    shm_header *header = mmap(NULL, sizeof *header, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (header == MAP_FAILED)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "shared memory %s: cannot map: %s",
                         s->name, strerror(errno));
    int result = BRG_NCCL_OK;
    uint32_t ready;
    while ((ready = atomic_load(&header->ready)) != SHM_READY && !result) {
        if (host_now_ns() > deadline_ns)
            result = host_fail(BRG_NCCL_SYSTEM, BRG_ERR_TIMEOUT,
                               "shared memory %s: its creator has not finished it", s->name);
        else
            host_futex_wait(&header->ready, ready, 10000000, true);
    }
    arrange(s, num_ranks);
    if (!result && header->version != SHM_VERSION)
        result =
            host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_MISMATCH,
                      "shared memory %s: made by another version of Brigade (format %u, here %u)",
                      s->name, header->version, SHM_VERSION);
    else if (!result && header->num_ranks != (uint32_t)num_ranks)
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_MISMATCH,
                           "communicator: this rank says %d ranks, another one says %u", num_ranks,
                           header->num_ranks);
    else if (!result && header->bytes != s->bytes)
        result = host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_MISMATCH,
                           "shared memory %s: %zu bytes expected, it has %llu", s->name, s->bytes,
                           (unsigned long long)header->bytes);
    munmap(header, sizeof *header);
    return result ? result : map(s, num_ranks);
}

static int open_locked(host_segment *s, int num_ranks, uint64_t deadline_ns)
{
    char path[128];
    snprintf(path, sizeof path, DIRECTORY "/" PREFIX "%s", s->name);
    for (;;) {
        bool created = true;
        s->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->fd < 0 && errno == EEXIST) {
            created = false;
            s->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
            if (s->fd < 0 && errno == ENOENT)
                continue; /* removed in between */
        }
        if (s->fd < 0)
            return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_IO, "shared memory %s: %s", path,
                             strerror(errno));
        if (lock_and_check(s->fd)) {
            int result = created ? create(s, num_ranks) : join(s, num_ranks, deadline_ns);
            if (result && created)
                unlink(path);
            return result;
        }
        close(s->fd); /* swept away before it was locked: start over */
        s->fd = -1;
    }
}

static void release(host_segment *s)
{
    if (s->base)
        munmap(s->base, s->bytes);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

int host_segment_open(const char *name, int num_ranks, uint64_t deadline_ns, host_segment **segment)
{
    int result = BRG_NCCL_OK;
    pthread_mutex_lock(&host_segment_lock);
    host_segment *s = segments;
    while (s && strcmp(s->name, name))
        s = s->next;
    if (s) {
        if (s->header->num_ranks != (uint32_t)num_ranks) {
            result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_MISMATCH,
                               "communicator: this rank says %d ranks, another one says %u",
                               num_ranks, s->header->num_ranks);
            s = NULL;
        } else {
            s->users++;
        }
    } else {
        sweep(name);
        s = calloc(1, sizeof *s);
        if (!s) {
            result = host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
        } else {
            s->fd = -1;
            snprintf(s->name, sizeof s->name, "%s", name);
            result = open_locked(s, num_ranks, deadline_ns);
            if (result) {
                release(s);
                s = NULL;
            } else {
                s->users = 1;
                s->next = segments;
                segments = s;
            }
        }
    }
    pthread_mutex_unlock(&host_segment_lock);
    *segment = s;
    return result;
}

void host_segment_unlink(host_segment *s)
{
    pthread_mutex_lock(&host_segment_lock);
    if (!s->unlinked) {
        s->unlinked = true;
        char path[128];
        struct stat named, ours;
        snprintf(path, sizeof path, DIRECTORY "/" PREFIX "%s", s->name);
        if (s->fd >= 0 && !stat(path, &named) && !fstat(s->fd, &ours) &&
            named.st_ino == ours.st_ino && named.st_dev == ours.st_dev)
            unlink(path);
    }
    pthread_mutex_unlock(&host_segment_lock);
}

void host_segment_close(host_segment *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&host_segment_lock);
    bool last = --s->users == 0;
    if (last) {
        host_segment **link = &segments;
        while (*link != s)
            link = &(*link)->next;
        *link = s->next;
    }
    pthread_mutex_unlock(&host_segment_lock);
    if (last)
        release(s);
}

int host_segment_reserve_stage(host_segment *s, int num_ranks, int rank)
{
    size_t bytes = 2 * HOST_STAGE_BYTES;
    int error =
        posix_fallocate(s->fd, (off_t)(s->stage_offset + (size_t)rank * bytes), (off_t)bytes);
    if (error)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY,
                         "rank %d of %d: no room for %zu bytes of staging in %s: %s", rank,
                         num_ranks, bytes, DIRECTORY, strerror(error));
    return BRG_NCCL_OK;
}

/* The child forgets the parent's segments; the parent alone unlinks them. */
void host_segment_fork_child(void)
{
    for (host_segment *s = segments; s; s = s->next) {
        if (s->fd >= 0)
            close(s->fd);
        s->fd = -1;
        s->unlinked = true;
    }
    segments = NULL;
}
