/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "sched/trace/format.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* headers older than the kernel */
#endif

enum { WORDS = sizeof(brg_rec) / sizeof(uint64_t) };

/* Interned names, found by hash: open addressing, at most half full. id 0 marks a free place. */
typedef struct name_slot {
    uint32_t hash, id, offset; /* offset of the text in the table */
} name_slot;

struct brg_ring {
    brg_ring_hdr *hdr; /* the mapping starts here */
    uint8_t *strtab;
    uint64_t *words; /* the ring, as words: that is how they are stored, atomically */
    uint64_t mask;
    size_t map_bytes;
    pthread_mutex_t lock; /* guards everything below and the description table */
    name_slot *names;
    uint32_t names_capacity, names_count;
};

uint64_t brg_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t realtime_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* 16 bytes out of "d3b07384-d9a0-4c9b-8f3e-..."; all zero when the kernel does not tell. */
static void boot_id_read(uint8_t id[16])
{
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    int digits = 0;
    memset(id, 0, 16);
    for (ssize_t i = 0; i < got && digits < 32; i++) {
        const char *hex = "0123456789abcdef", *at = text[i] ? strchr(hex, text[i]) : NULL;
        if (at) {
            id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | (at - hex));
            digits++;
        }
    }
}

brg_status brg_ring_env_nrec_log2(int *nrec_log2)
{
    const char *text = getenv("BRIGADE_TRACE_RECORDS");
    char *end;
    *nrec_log2 = 0;
    if (!text || !*text)
        return BRG_OK;
    long records = strtol(text, &end, 10);
    if (*end || records < BRG_RING_RECORDS_MIN || records > BRG_RING_RECORDS_MAX)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "environment variable BRIGADE_TRACE_RECORDS is \"%s\", expected %d to %d",
                        text, BRG_RING_RECORDS_MIN, BRG_RING_RECORDS_MAX);
    while (1L << *nrec_log2 < records)
        ++*nrec_log2;
    return BRG_OK;
}

static brg_status options_check(const brg_ring_options *options, uint32_t *nrec_log2,
                                uint32_t *strtab)
{
    if (options->rank >= options->world)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "trace ring: rank %u in a world of %u",
                        options->rank, options->world);
    int log2 = options->nrec_log2 ? options->nrec_log2 : BRG_RING_NREC_LOG2_DEFAULT;
    if (log2 < BRG_RING_NREC_LOG2_MIN || log2 > BRG_RING_NREC_LOG2_MAX)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "trace ring: nrec_log2 is %d, expected %d to %d",
                        log2, BRG_RING_NREC_LOG2_MIN, BRG_RING_NREC_LOG2_MAX);
    uint32_t bytes = options->strtab_bytes ? options->strtab_bytes : BRG_RING_STRTAB_DEFAULT;
    if (bytes > BRG_RING_STRTAB_MAX)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "trace ring: strtab_bytes is %u, expected at most %u", bytes,
                        BRG_RING_STRTAB_MAX);
    *nrec_log2 = (uint32_t)log2;
    *strtab = (bytes + 4095u) & ~4095u;
    return BRG_OK;
}

/* Reserves the space now: a full disk must be an error here, not a SIGBUS in the middle of
 * training. */
static brg_status space_reserve(int fd, const char *path, size_t bytes)
{
    /* Growing past RLIMIT_FSIZE would raise SIGXFSZ, which ends the process by default. */
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return brg_fail(BRG_ERR_IO,
                        "%s: the trace needs %zu bytes, but the file size limit is %llu", path,
                        bytes, (unsigned long long)limit.rlim_cur);
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error)
        return brg_fail(BRG_ERR_IO, "%s: cannot allocate %zu bytes for the trace: %s", path, bytes,
                        strerror(error));
    return BRG_OK;
}

static void hdr_fill(brg_ring_hdr *hdr, const brg_ring_options *options, uint32_t nrec_log2,
                     uint32_t strtab_bytes)
{
    hdr->version = BRG_RING_VERSION;
    hdr->endian = BRG_RING_ENDIAN;
    hdr->hdr_bytes = BRG_RING_HDR_BYTES;
    hdr->rec_bytes = sizeof(brg_rec);
    hdr->nrec_log2 = nrec_log2;
    hdr->strtab_bytes = strtab_bytes;
    hdr->pid = (uint32_t)getpid();
    hdr->rank = options->rank;
    hdr->world = options->world;
    hdr->gpu = options->gpu;
    hdr->t0_mono_ns = brg_now_ns();
    hdr->t0_real_ns = realtime_ns();
    boot_id_read(hdr->boot_id);
}

static void clock_put(brg_ring *ring)
{
    const brg_rec rec = {.t0_ns = brg_now_ns(),
                         .t1_ns = realtime_ns(),
                         .bucket = BRG_NO_BUCKET,
                         .kind = BRG_REC_CLOCK};
    brg_ring_put(ring, &rec);
}

/* Page faults are to happen here and not in the steps that are being timed. MAP_POPULATE maps the
 * pages of a file for reading only: the first record in each would still fault, 2 to 3 us. Kernels
 * before 5.14 do not know this advice, and then it is so. */
static brg_status pages_make_writable(void *map, const char *path, size_t bytes)
{
    if (madvise(map, bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
        return brg_fail(BRG_ERR_IO, "%s: cannot make the %zu bytes of the trace writable: %s", path,
                        bytes, strerror(errno));
    return BRG_OK;
}

/* Makes the ring over an open, empty file; the caller removes the file on failure. */
static brg_status ring_map(int fd, const char *path, const brg_ring_options *options,
                           brg_ring **out)
{
    uint32_t nrec_log2 = 0, strtab_bytes = 0;
    brg_status status = options_check(options, &nrec_log2, &strtab_bytes);
    if (status != BRG_OK)
        return status;
    size_t bytes = BRG_RING_HDR_BYTES + (size_t)strtab_bytes + (sizeof(brg_rec) << nrec_log2);
    status = space_reserve(fd, path, bytes);
    if (status != BRG_OK)
        return status;
    brg_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for the trace writer", path);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED) {
        free(ring);
        return brg_fail(BRG_ERR_IO, "%s: cannot map %zu bytes: %s", path, bytes, strerror(errno));
    }
    status = pages_make_writable(map, path, bytes);
    if (status != BRG_OK) {
        munmap(map, bytes);
        free(ring);
        return status;
    }
    ring->hdr = map;
    ring->strtab = (uint8_t *)map + BRG_RING_HDR_BYTES;
    ring->words = (uint64_t *)(void *)(ring->strtab + strtab_bytes);
    ring->mask = (UINT64_C(1) << nrec_log2) - 1;
    ring->map_bytes = bytes;
    pthread_mutex_init(&ring->lock, NULL);
    hdr_fill(ring->hdr, options, nrec_log2, strtab_bytes);
    clock_put(ring);
    /* One store, last: the file becomes a trace. */
    uint64_t magic;
    memcpy(&magic, BRG_RING_MAGIC, sizeof magic);
    __atomic_store_n((uint64_t *)map, magic, __ATOMIC_RELEASE);
    *out = ring;
    return BRG_OK;
}

brg_status brg_ring_create(const char *path, const brg_ring_options *options, brg_ring **ring)
{
    *ring = NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return brg_fail(BRG_ERR_IO,
                        "%s: exists already; traces are never overwritten, move it or choose "
                        "another directory",
                        path);
    if (fd < 0)
        return brg_fail(BRG_ERR_IO, "%s: cannot create the trace: %s", path, strerror(errno));
    brg_status status = ring_map(fd, path, options, ring);
    close(fd);
    if (status != BRG_OK)
        unlink(path);
    return status;
}

void brg_ring_finish(brg_ring *ring)
{
    clock_put(ring);
    __atomic_fetch_or(&ring->hdr->flags, BRG_RING_CLOSED, __ATOMIC_RELEASE);
}

void brg_ring_close(brg_ring *ring)
{
    if (!ring)
        return;
    brg_ring_finish(ring);
    munmap(ring->hdr, ring->map_bytes);
    pthread_mutex_destroy(&ring->lock);
    free(ring->names);
    free(ring);
}

void brg_ring_abandon(brg_ring *ring)
{
    if (ring)
        munmap(ring->hdr, ring->map_bytes);
}

void brg_ring_put(brg_ring *ring, const brg_rec *rec)
{
    if (!ring)
        return;
    uint64_t ticket = __atomic_fetch_add(&ring->hdr->head, 1, __ATOMIC_RELAXED);
    uint64_t *slot = ring->words + (ticket & ring->mask) * WORDS;
    uint64_t seen = __atomic_load_n(slot, __ATOMIC_RELAXED);
    /* A writer a lap behind is still here, or one a lap ahead has been: the reader will miss this
     * ticket and count it as lost. Never wait. */
    if ((seen & BRG_RING_BUSY) || seen > ticket)
        return;
    if (!__atomic_compare_exchange_n(slot, &seen, BRG_RING_BUSY | (ticket + 1), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    uint64_t words[WORDS];
    memcpy(words, rec, sizeof words);
    /* Release on each word keeps the busy mark ahead of it: whoever reads new bytes will, if he
     * looks again, see that the slot has changed. Plain moves on x86. */
    for (int i = 1; i < WORDS; i++)
        __atomic_store_n(slot + i, words[i], __ATOMIC_RELEASE);
    __atomic_store_n(slot, ticket + 1, __ATOMIC_RELEASE);
}

void brg_ring_drop(brg_ring *ring, uint64_t records)
{
    if (ring)
        __atomic_fetch_add(&ring->hdr->drops, records, __ATOMIC_RELAXED);
}

/* Returns room for an entry's payload, NULL (counted) if the table is full. */
static uint8_t *entry_begin_locked(brg_ring *ring, brg_entry_type type, uint32_t id,
                                   size_t payload_bytes)
{
    size_t used = ring->hdr->strtab_used, room = ring->hdr->strtab_bytes - used;
    if (payload_bytes > room || sizeof(brg_ring_entry) + payload_bytes + 7 > room) {
        __atomic_fetch_add(&ring->hdr->strtab_drops, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    size_t bytes = (sizeof(brg_ring_entry) + payload_bytes + 7) & ~(size_t)7;
    const brg_ring_entry entry = {
        .bytes = (uint32_t)bytes, .payload_bytes = (uint32_t)payload_bytes, .type = type, .id = id};
    memcpy(ring->strtab + used, &entry, sizeof entry);
    return ring->strtab + used + sizeof entry;
}

/* Makes the entry begun last visible. */
static void entry_end_locked(brg_ring *ring)
{
    uint32_t used = ring->hdr->strtab_used;
    brg_ring_entry entry;
    memcpy(&entry, ring->strtab + used, sizeof entry);
    __atomic_store_n(&ring->hdr->strtab_used, used + entry.bytes, __ATOMIC_RELEASE);
}

void brg_ring_add_bucket(brg_ring *ring, uint32_t id, const brg_meta_bucket *bucket)
{
    if (!ring)
        return;
    brg_meta_bucket copy = *bucket;
    copy.name[sizeof copy.name - 1] = '\0';
    pthread_mutex_lock(&ring->lock);
    uint8_t *payload = entry_begin_locked(ring, BRG_ENTRY_BUCKET, id, sizeof copy);
    if (payload) {
        memcpy(payload, &copy, sizeof copy);
        entry_end_locked(ring);
    }
    pthread_mutex_unlock(&ring->lock);
}

static uint32_t text_hash(const char *text)
{
    uint32_t hash = 2166136261u;
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 16777619u;
    return hash;
}

/* The place where a name is, or where it would go. */
static name_slot *name_find_locked(brg_ring *ring, uint32_t hash, const char *name)
{
    uint32_t mask = ring->names_capacity - 1, at = hash & mask;
    for (;; at = (at + 1) & mask) {
        name_slot *slot = &ring->names[at];
        if (!slot->id ||
            (slot->hash == hash && !strcmp((const char *)ring->strtab + slot->offset, name)))
            return slot;
    }
}

static bool names_grow_locked(brg_ring *ring)
{
    if (2 * (ring->names_count + 1) <= ring->names_capacity)
        return true;
    uint32_t old_capacity = ring->names_capacity, capacity = old_capacity ? 2 * old_capacity : 64;
    name_slot *old = ring->names, *bigger = calloc(capacity, sizeof *bigger);
    if (!bigger)
        return false;
    for (uint32_t i = 0; i < old_capacity; i++) {
        uint32_t at = old[i].hash & (capacity - 1);
        while (old[i].id && bigger[at].id)
            at = (at + 1) & (capacity - 1);
        if (old[i].id)
            bigger[at] = old[i];
    }
    free(old);
    ring->names = bigger;
    ring->names_capacity = capacity;
    return true;
}

static uint32_t name_add_locked(brg_ring *ring, const char *name)
{
    if (!names_grow_locked(ring)) {
        __atomic_fetch_add(&ring->hdr->strtab_drops, 1, __ATOMIC_RELAXED);
        return 0;
    }
    uint32_t hash = text_hash(name);
    name_slot *slot = name_find_locked(ring, hash, name);
    if (slot->id)
        return slot->id;
    size_t bytes = strlen(name) + 1;
    uint32_t id = ring->names_count + 1;
    uint8_t *payload = entry_begin_locked(ring, BRG_ENTRY_NAME, id, bytes);
    if (!payload)
        return 0;
    memcpy(payload, name, bytes);
    *slot = (name_slot){.hash = hash, .id = id, .offset = (uint32_t)(payload - ring->strtab)};
    entry_end_locked(ring);
    ring->names_count = id;
    return id;
}

uint32_t brg_ring_add_name(brg_ring *ring, const char *name)
{
    if (!ring)
        return 0;
    pthread_mutex_lock(&ring->lock);
    uint32_t id = name_add_locked(ring, name);
    pthread_mutex_unlock(&ring->lock);
    return id;
}

void brg_ring_add_info(brg_ring *ring, const char *key, const char *value)
{
    if (!ring)
        return;
    size_t key_bytes = strlen(key) + 1, value_bytes = strlen(value) + 1;
    pthread_mutex_lock(&ring->lock);
    uint8_t *payload = entry_begin_locked(ring, BRG_ENTRY_INFO, 0, key_bytes + value_bytes);
    if (payload) {
        memcpy(payload, key, key_bytes);
        memcpy(payload + key_bytes, value, value_bytes);
        entry_end_locked(ring);
    }
    pthread_mutex_unlock(&ring->lock);
}
