/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory. It lies in one sparse memory file per process, the arena, so that one descriptor
 * is enough for a peer to map all of it and read any of it directly. The file has its full size
 * from the start and pages come on first touch: a peer that reads memory which its owner has just
 * freed reads zeros, it does not fault. Where no arena is to be had (address space limits), or it
 * is full, memory comes from malloc and peers take another way. */
#include "sched/device/host_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ARENA_MAX_BYTES ((size_t)1 << 40)
#define ARENA_MIN_BYTES ((size_t)64 << 20)

typedef struct block { /* blocks tile the arena in address order */
    size_t offset, bytes;
    bool used;
    struct block *previous, *next;
} block;

static struct {
    char *base; /* NULL: none */
    size_t bytes;
    int fd;
    bool tried;
    uint64_t device, inode;
    block *blocks;
} arena = {.fd = -1}; /* under host_engine_lock */

/* Memory that a forked child has from its parent cannot be given back there: it is no block of the
 * child's arena and none of its malloc's. */
static struct {
    char *base;
    size_t bytes;
} inherited[8];

static size_t physical_bytes(size_t *available)
{
    size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/meminfo", "re"); /* knows what caches would give back */
    if (!file)
        return total;
    char line[128];
    unsigned long long kib;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            *available = (size_t)kib << 10;
    fclose(file);
    return total;
}

static void arena_open_locked(void)
{
    if (arena.tried)
        return;
    arena.tried = true;
    size_t available, bytes = 4 * physical_bytes(&available);
    if (bytes > ARENA_MAX_BYTES)
        bytes = ARENA_MAX_BYTES;
    bytes &= ~(PAGE - 1);
    int fd = memfd_create("brigade-arena", MFD_CLOEXEC);
    block *whole = calloc(1, sizeof *whole);
    void *base = MAP_FAILED;
    if (fd < 0 || !whole)
        goto fail;
    for (; bytes >= ARENA_MIN_BYTES && base == MAP_FAILED; bytes /= 2) {
        if (ftruncate(fd, (off_t)bytes))
            continue;
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (base != MAP_FAILED)
            break;
    }
    struct stat status;
    if (base == MAP_FAILED || fstat(fd, &status)) {
        if (base != MAP_FAILED)
            munmap(base, bytes);
        goto fail;
    }
    madvise(base, bytes, MADV_DONTDUMP);
    whole->bytes = bytes;
    arena.base = base;
    arena.bytes = bytes;
    arena.fd = fd;
    arena.device = status.st_dev;
    arena.inode = status.st_ino;
    arena.blocks = whole;
    return;
fail:
    free(whole);
    if (fd >= 0)
        close(fd);
}

/* The child keeps the contents at the same addresses, but its writes are its own from here on. */
void host_arena_fork_child(void)
{
    size_t slot = 0;
    while (slot + 1 < sizeof inherited / sizeof inherited[0] && inherited[slot].base)
        slot++;
    if (arena.base) {
        inherited[slot].base = arena.base;
        inherited[slot].bytes = arena.bytes;
        mmap(arena.base, arena.bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, arena.fd, 0);
    }
    if (arena.fd >= 0)
        close(arena.fd);
    memset(&arena, 0, sizeof arena);
    arena.fd = -1;
}

void host_arena_identify(host_arena_id *id)
{
    pthread_mutex_lock(&host_engine_lock);
    arena_open_locked();
    *id = (host_arena_id){.fd = arena.fd,
                          .device = arena.device,
                          .inode = arena.inode,
                          .base = (uint64_t)(uintptr_t)arena.base,
                          .bytes = arena.bytes};
    pthread_mutex_unlock(&host_engine_lock);
}

uint64_t host_arena_offset(const void *memory, size_t bytes)
{
    pthread_mutex_lock(&host_engine_lock);
    uintptr_t base = (uintptr_t)arena.base, at = (uintptr_t)memory;
    bool inside =
        base && at >= base && at - base <= arena.bytes && bytes <= arena.bytes - (at - base);
    pthread_mutex_unlock(&host_engine_lock);
    return inside ? at - base : UINT64_MAX;
}

static void *arena_take_locked(size_t bytes)
{
    for (block *b = arena.blocks; b; b = b->next) {
        if (b->used || b->bytes < bytes)
            continue;
        if (b->bytes > bytes) {
            block *rest = calloc(1, sizeof *rest);
            if (!rest)
                return NULL;
            rest->offset = b->offset + bytes;
            rest->bytes = b->bytes - bytes;
            rest->previous = b;
            rest->next = b->next;
            if (b->next)
                b->next->previous = rest;
            b->next = rest;
            b->bytes = bytes;
        }
        b->used = true;
        return arena.base + b->offset;
    }
    return NULL;
}

static void merge_next_locked(block *b)
{
    block *gone = b->next;
    b->bytes += gone->bytes;
    b->next = gone->next;
    if (gone->next)
        gone->next->previous = b;
    free(gone);
}

static int arena_give_locked(const void *memory)
{
    size_t offset = (size_t)((const char *)memory - arena.base);
    block *b = arena.blocks;
    while (b && b->offset != offset)
        b = b->next;
    if (!b || !b->used)
        return BRG_RT_INVALID_VALUE;
    fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset,
              (off_t)b->bytes);
    b->used = false;
    if (b->next && !b->next->used)
        merge_next_locked(b);
    if (b->previous && !b->previous->used)
        merge_next_locked(b->previous);
    return BRG_RT_OK;
}

int host_malloc_device(void **memory, size_t bytes)
{
    if (!memory)
        return BRG_RT_INVALID_VALUE;
    *memory = NULL;
    if (!bytes)
        return BRG_RT_OK;
    size_t available, total = physical_bytes(&available);
    if (bytes > available || bytes > total - PAGE)
        return BRG_RT_NO_MEMORY;
    bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
    host_fork_prepare();
    pthread_mutex_lock(&host_engine_lock);
    arena_open_locked();
    *memory = arena_take_locked(bytes);
    pthread_mutex_unlock(&host_engine_lock);
    if (!*memory && posix_memalign(memory, PAGE, bytes)) {
        *memory = NULL;
        return BRG_RT_NO_MEMORY;
    }
    return BRG_RT_OK;
}

int host_free_device(void *memory)
{
    if (!memory)
        return BRG_RT_OK;
    int error = BRG_RT_OK;
    bool foreign = true;
    pthread_mutex_lock(&host_engine_lock);
    const char *at = memory;
    if (arena.base && at >= arena.base && at < arena.base + arena.bytes) {
        error = arena_give_locked(memory);
        foreign = false;
    }
    for (size_t i = 0; i < sizeof inherited / sizeof inherited[0]; i++)
        if (inherited[i].base && at >= inherited[i].base &&
            at < inherited[i].base + inherited[i].bytes)
            foreign = false;
    pthread_mutex_unlock(&host_engine_lock);
    if (foreign)
        free(memory);
    return error;
}

int host_malloc_host(void **memory, size_t bytes)
{
    if (!memory)
        return BRG_RT_INVALID_VALUE;
    *memory = NULL;
    if (!bytes)
        return BRG_RT_OK;
    if (posix_memalign(memory, PAGE, bytes)) {
        *memory = NULL;
        return BRG_RT_NO_MEMORY;
    }
    return BRG_RT_OK;
}

int host_free_host(void *memory)
{
    free(memory);
    return BRG_RT_OK;
}

int host_mem_get_info(size_t *free_bytes, size_t *total_bytes)
{
    if (!free_bytes || !total_bytes)
        return BRG_RT_INVALID_VALUE;
    *total_bytes = physical_bytes(free_bytes);
    return BRG_RT_OK;
}
