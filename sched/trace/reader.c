/* SPDX-License-Identifier: Apache-2.0 */
/* The file is read with pread(), not mapped: a file that shrinks while it is being read must be an
 * error message, not a SIGBUS. */
#include "sched/trace/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sched/trace/format.h"

enum { CHUNK_RECS = 4096 };

/* Times further than this from the trace's beginning (104 days) are damage. */
#define SANE_NS (UINT64_C(1) << 53)

static brg_status bytes_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return brg_fail(BRG_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (got == 0)
            return brg_fail(BRG_ERR_FORMAT, "%s: cut off at byte %llu while it was being read",
                            path, (unsigned long long)(offset + done));
        done += (size_t)got;
    }
    return BRG_OK;
}

static brg_status magic_check(const char *path, const brg_ring_hdr *hdr, uint64_t file_bytes)
{
    static const char unfinished[8] = {0};
    if (file_bytes == 0)
        return brg_fail(BRG_ERR_FORMAT, "%s: the file is empty, expected a brigade trace", path);
    size_t have = file_bytes < sizeof hdr->magic ? (size_t)file_bytes : sizeof hdr->magic;
    if (have == sizeof hdr->magic && !memcmp(hdr->magic, unfinished, have))
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: not a brigade trace, or one whose creation was interrupted (it begins "
                        "with zeros)",
                        path);
    if (memcmp(hdr->magic, BRG_RING_MAGIC, have))
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: not a brigade trace (it does not begin with \"BRGRING\")", path);
    if (file_bytes < BRG_RING_HDR_BYTES)
        return brg_fail(BRG_ERR_FORMAT, "%s: cut off: %llu bytes, the header alone has %u", path,
                        (unsigned long long)file_bytes, BRG_RING_HDR_BYTES);
    return BRG_OK;
}

static brg_status sizes_check(const char *path, const brg_ring_hdr *hdr, uint64_t file_bytes)
{
    if (hdr->hdr_bytes != BRG_RING_HDR_BYTES || hdr->rec_bytes != sizeof(brg_rec))
        return brg_fail(
            BRG_ERR_FORMAT,
            "%s: damaged header: header of %u and records of %u bytes, expected %u and %zu", path,
            hdr->hdr_bytes, hdr->rec_bytes, BRG_RING_HDR_BYTES, sizeof(brg_rec));
    if (hdr->nrec_log2 < BRG_RING_NREC_LOG2_MIN || hdr->nrec_log2 > BRG_RING_NREC_LOG2_MAX ||
        hdr->strtab_bytes > BRG_RING_STRTAB_MAX || hdr->strtab_bytes % 4096)
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: damaged header: 2^%u records and %u bytes of descriptions", path,
                        hdr->nrec_log2, hdr->strtab_bytes);
    uint64_t expected =
        BRG_RING_HDR_BYTES + (uint64_t)hdr->strtab_bytes + (sizeof(brg_rec) << hdr->nrec_log2);
    if (file_bytes != expected)
        return brg_fail(BRG_ERR_FORMAT, "%s: %s: %llu bytes, its header says %llu", path,
                        file_bytes < expected ? "cut off" : "bytes after its end",
                        (unsigned long long)file_bytes, (unsigned long long)expected);
    return BRG_OK;
}

static brg_status hdr_check(const char *path, const brg_ring_hdr *hdr, uint64_t file_bytes)
{
    brg_status status = magic_check(path, hdr, file_bytes);
    if (status != BRG_OK)
        return status;
    if (hdr->endian == __builtin_bswap32(BRG_RING_ENDIAN))
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: written on a machine of the other byte order; read it there", path);
    if (hdr->version != BRG_RING_VERSION)
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: trace format version %u, this brigade reads version %u", path,
                        hdr->version, BRG_RING_VERSION);
    if (hdr->endian != BRG_RING_ENDIAN)
        return brg_fail(BRG_ERR_FORMAT, "%s: damaged header: byte order mark %08x", path,
                        hdr->endian);
    status = sizes_check(path, hdr, file_bytes);
    if (status != BRG_OK)
        return status;
    if (hdr->rank >= hdr->world)
        return brg_fail(BRG_ERR_FORMAT, "%s: damaged header: rank %u in a world of %u", path,
                        hdr->rank, hdr->world);
    if (hdr->strtab_used > hdr->strtab_bytes)
        return brg_fail(BRG_ERR_FORMAT,
                        "%s: damaged header: %u bytes of descriptions in a table of %u", path,
                        hdr->strtab_used, hdr->strtab_bytes);
    if (hdr->head >= BRG_RING_BUSY || hdr->t0_mono_ns >= UINT64_MAX / 4)
        return brg_fail(BRG_ERR_FORMAT, "%s: damaged header: %llu records since %llu ns", path,
                        (unsigned long long)hdr->head, (unsigned long long)hdr->t0_mono_ns);
    return BRG_OK;
}

static void hdr_copy(brg_trace *trace, const brg_ring_hdr *hdr)
{
    trace->pid = hdr->pid;
    trace->rank = hdr->rank;
    trace->world = hdr->world;
    trace->gpu = hdr->gpu;
    trace->t0_mono_ns = hdr->t0_mono_ns;
    trace->t0_real_ns = hdr->t0_real_ns;
    memcpy(trace->boot_id, hdr->boot_id, sizeof trace->boot_id);
    trace->closed = hdr->flags & BRG_RING_CLOSED;
    trace->written = hdr->head;
    trace->drops = hdr->drops;
    trace->description_drops = hdr->strtab_drops;
}

/* Room for one more element: capacities are powers of two, and the count says when one is full. */
static void *array_grow(void *array, size_t count, size_t element_bytes)
{
    if (count & (count - 1) || count == 1)
        return array;
    return reallocarray(array, count ? 2 * count : 2, element_bytes);
}

static brg_status no_memory(const brg_trace *trace)
{
    return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory to read it", trace->path);
}

static brg_status entry_damaged(const brg_trace *trace, const char *what)
{
    return brg_fail(BRG_ERR_FORMAT, "%s: damaged description of a %s", trace->path, what);
}

static brg_status bucket_take(brg_trace *trace, uint32_t id, const char *payload, size_t bytes)
{
    if (bytes != sizeof(brg_meta_bucket))
        return entry_damaged(trace, "bucket");
    brg_trace_bucket *grown = array_grow(trace->buckets, trace->nbuckets, sizeof *grown);
    if (!grown)
        return no_memory(trace);
    trace->buckets = grown;
    brg_trace_bucket *bucket = &grown[trace->nbuckets++];
    bucket->id = id;
    bucket->order = (uint32_t)(trace->nbuckets - 1);
    memcpy(&bucket->meta, payload, sizeof bucket->meta);
    bucket->meta.name[sizeof bucket->meta.name - 1] = '\0';
    return BRG_OK;
}

static brg_status name_take(brg_trace *trace, uint32_t id, const char *payload, size_t bytes)
{
    /* Ids are handed out in order, from 1; names[0] stays NULL. */
    if (!memchr(payload, '\0', bytes) || id != (trace->nnames ? trace->nnames : 1))
        return entry_damaged(trace, "name");
    while (trace->nnames <= id) {
        const char **grown = array_grow(trace->names, trace->nnames, sizeof *grown);
        if (!grown)
            return no_memory(trace);
        trace->names = grown;
        grown[trace->nnames++] = NULL;
    }
    trace->names[id] = payload;
    return BRG_OK;
}

static brg_status info_take(brg_trace *trace, const char *payload, size_t bytes)
{
    const char *key_end = memchr(payload, '\0', bytes);
    const char *value = key_end ? key_end + 1 : NULL;
    if (!value || !memchr(value, '\0', bytes - (size_t)(value - payload)))
        return entry_damaged(trace, "fact");
    brg_trace_info *grown = array_grow(trace->infos, trace->ninfos, sizeof *grown);
    if (!grown)
        return no_memory(trace);
    trace->infos = grown;
    grown[trace->ninfos++] = (brg_trace_info){.key = payload, .value = value};
    return BRG_OK;
}

static brg_status entry_take(brg_trace *trace, const brg_ring_entry *entry, const char *payload)
{
    switch (entry->type) {
    case BRG_ENTRY_BUCKET:
        return bucket_take(trace, entry->id, payload, entry->payload_bytes);
    case BRG_ENTRY_NAME:
        return name_take(trace, entry->id, payload, entry->payload_bytes);
    case BRG_ENTRY_INFO:
        return info_take(trace, payload, entry->payload_bytes);
    default:
        return entry_damaged(trace, "unknown kind");
    }
}

static int bucket_compare(const void *a, const void *b)
{
    const brg_trace_bucket *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Sorts by id; of several descriptions of one bucket the last stays. */
static void buckets_sort(brg_trace *trace)
{
    if (!trace->nbuckets)
        return;
    qsort(trace->buckets, trace->nbuckets, sizeof *trace->buckets, bucket_compare);
    size_t kept = 0;
    for (size_t i = 1; i < trace->nbuckets; i++) {
        if (trace->buckets[i].id != trace->buckets[kept].id)
            kept++;
        trace->buckets[kept] = trace->buckets[i];
    }
    trace->nbuckets = kept + 1;
}

static brg_status strtab_read(int fd, const brg_ring_hdr *hdr, brg_trace *trace)
{
    size_t used = hdr->strtab_used;
    if (!used)
        return BRG_OK;
    trace->strtab = malloc(used);
    if (!trace->strtab)
        return no_memory(trace);
    brg_status status = bytes_read(fd, trace->path, trace->strtab, used, BRG_RING_HDR_BYTES);
    for (size_t at = 0; status == BRG_OK && at < used;) {
        brg_ring_entry entry;
        if (used - at < sizeof entry)
            return brg_fail(BRG_ERR_FORMAT, "%s: damaged description table at byte %zu",
                            trace->path, at);
        memcpy(&entry, trace->strtab + at, sizeof entry);
        if (entry.bytes > used - at || entry.bytes < sizeof entry || entry.bytes % 8 ||
            entry.payload_bytes > entry.bytes - sizeof entry)
            return brg_fail(
                BRG_ERR_FORMAT,
                "%s: damaged description table: an entry of %u bytes, %u of them payload, "
                "%zu bytes before its end",
                trace->path, entry.bytes, entry.payload_bytes, used - at);
        status = entry_take(trace, &entry, trace->strtab + at + sizeof entry);
        at += entry.bytes;
    }
    buckets_sort(trace);
    return status;
}

static bool times_sane(const brg_trace *trace, const brg_rec *rec)
{
    if (rec->kind == BRG_REC_CLOCK)
        return true;
    uint64_t from = trace->t0_mono_ns > SANE_NS ? trace->t0_mono_ns - SANE_NS : 0;
    return rec->t0_ns >= from && rec->t0_ns <= rec->t1_ns &&
           rec->t1_ns <= trace->t0_mono_ns + SANE_NS;
}

/* Takes the records of `count` tickets from `ticket` on. `again` was read after `chunk`: a record
 * whose seq is the same in both was not touched in between. */
static brg_status chunk_take(brg_trace *trace, const brg_rec *chunk, const brg_rec *again,
                             uint64_t ticket, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t expected = ticket + i + 1, seq = again[i].seq;
        if (seq != expected || chunk[i].seq != expected) {
            if (!(seq & BRG_RING_BUSY) && seq > expected)
                trace->overwritten++;
            else
                trace->torn++;
        } else if (!times_sane(trace, &chunk[i])) {
            trace->invalid++;
        } else {
            brg_rec *grown = array_grow(trace->recs, trace->nrecs, sizeof *grown);
            if (!grown)
                return no_memory(trace);
            trace->recs = grown;
            grown[trace->nrecs++] = chunk[i];
        }
    }
    return BRG_OK;
}

static brg_status recs_read(int fd, const brg_ring_hdr *hdr, brg_trace *trace)
{
    brg_status status = BRG_OK;
    uint64_t nslots = UINT64_C(1) << hdr->nrec_log2;
    uint64_t ticket = hdr->head > nslots ? hdr->head - nslots : 0;
    trace->overwritten = ticket;
    brg_rec *chunk = malloc(2 * CHUNK_RECS * sizeof *chunk);
    if (!chunk)
        return no_memory(trace);
    while (ticket < hdr->head) {
        uint64_t slot = ticket & (nslots - 1);
        size_t count = CHUNK_RECS;
        if (count > hdr->head - ticket)
            count = (size_t)(hdr->head - ticket);
        if (count > nslots - slot)
            count = (size_t)(nslots - slot);
        uint64_t offset = hdr->hdr_bytes + (uint64_t)hdr->strtab_bytes + slot * sizeof *chunk;
        BRG_TRY(bytes_read(fd, trace->path, chunk, count * sizeof *chunk, offset), out);
        BRG_TRY(bytes_read(fd, trace->path, chunk + CHUNK_RECS, count * sizeof *chunk, offset),
                out);
        BRG_TRY(chunk_take(trace, chunk, chunk + CHUNK_RECS, ticket, count), out);
        ticket += count;
    }
out:
    free(chunk);
    return status;
}

static brg_status trace_read(int fd, brg_trace *trace)
{
    struct stat info;
    if (fstat(fd, &info))
        return brg_fail(BRG_ERR_IO, "%s: cannot be read: %s", trace->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return brg_fail(BRG_ERR_IO, "%s: not a regular file", trace->path);
    brg_ring_hdr hdr;
    memset(&hdr, 0, sizeof hdr);
    uint64_t file_bytes = (uint64_t)info.st_size;
    size_t have = file_bytes < sizeof hdr ? (size_t)file_bytes : sizeof hdr;
    brg_status status = BRG_OK;
    BRG_TRY(bytes_read(fd, trace->path, &hdr, have, 0), out);
    BRG_TRY(hdr_check(trace->path, &hdr, file_bytes), out);
    hdr_copy(trace, &hdr);
    BRG_TRY(strtab_read(fd, &hdr, trace), out);
    BRG_TRY(recs_read(fd, &hdr, trace), out);
out:
    return status;
}

brg_status brg_trace_open(const char *path, brg_trace **out)
{
    *out = NULL;
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return brg_fail(BRG_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    brg_trace *trace = calloc(1, sizeof *trace);
    if (trace)
        trace->path = strdup(path);
    brg_status status = trace && trace->path
                            ? trace_read(fd, trace)
                            : brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory to read it", path);
    close(fd);
    if (status == BRG_OK)
        *out = trace;
    else
        brg_trace_close(trace);
    return status;
}

void brg_trace_close(brg_trace *trace)
{
    if (!trace)
        return;
    free(trace->path);
    free(trace->recs);
    free(trace->buckets);
    free(trace->names);
    free(trace->infos);
    free(trace->strtab);
    free(trace);
}

void brg_trace_forget_records(brg_trace *trace)
{
    free(trace->recs);
    trace->recs = NULL;
    trace->nrecs = 0;
}

const char *brg_trace_name(const brg_trace *trace, uint64_t id)
{
    return id < trace->nnames && trace->names[id] ? trace->names[id] : "?";
}

const char *brg_trace_info_get(const brg_trace *trace, const char *key)
{
    for (size_t i = trace->ninfos; i-- > 0;)
        if (!strcmp(trace->infos[i].key, key))
            return trace->infos[i].value;
    return NULL;
}

const brg_meta_bucket *brg_trace_bucket_get(const brg_trace *trace, uint32_t id)
{
    size_t low = 0, high = trace->nbuckets;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (trace->buckets[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < trace->nbuckets && trace->buckets[low].id == id ? &trace->buckets[low].meta : NULL;
}

uint64_t brg_trace_lost(const brg_trace *trace)
{
    return trace->overwritten + trace->torn + trace->invalid + trace->drops;
}

typedef struct ring_file {
    uint64_t number;
    char *path;
} ring_file;

static int file_compare(const void *a, const void *b)
{
    const ring_file *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return strcmp(x->path, y->path);
}

/* "rank-12.ring" -> 12. */
static bool file_number(const char *name, uint64_t *number)
{
    if (strncmp(name, "rank-", 5) || name[5] < '0' || name[5] > '9')
        return false;
    char *end;
    *number = strtoull(name + 5, &end, 10);
    return !strcmp(end, ".ring");
}

static brg_status dir_list(DIR *dir, const char *path, ring_file **files, size_t *nfiles)
{
    struct dirent *entry;
    uint64_t number = 0;
    while ((entry = readdir(dir))) {
        if (!file_number(entry->d_name, &number))
            continue;
        ring_file *grown = array_grow(*files, *nfiles, sizeof *grown);
        if (grown)
            *files = grown;
        char *full = NULL;
        if (!grown || asprintf(&full, "%s/%s", path, entry->d_name) < 0)
            return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory to list it", path);
        grown[(*nfiles)++] = (ring_file){.number = number, .path = full};
    }
    if (!*nfiles)
        return brg_fail(BRG_ERR_NO_DATA, "%s: no trace here: no file is named rank-<number>.ring",
                        path);
    qsort(*files, *nfiles, sizeof **files, file_compare);
    return BRG_OK;
}

brg_status brg_trace_list(const char *path, char ***paths, size_t *npaths)
{
    *paths = NULL;
    *npaths = 0;
    ring_file *files = NULL;
    size_t nfiles = 0;
    brg_status status = BRG_OK;
    struct stat info;
    if (stat(path, &info))
        return brg_fail(BRG_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        DIR *dir = opendir(path);
        if (!dir)
            return brg_fail(BRG_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        status = dir_list(dir, path, &files, &nfiles);
        closedir(dir);
    } else {
        files = calloc(1, sizeof *files);
        if (files && (files->path = strdup(path)))
            nfiles = 1;
    }
    char **list = status == BRG_OK && nfiles ? calloc(nfiles, sizeof *list) : NULL;
    if (status == BRG_OK && !list)
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory to list it", path);
    for (size_t i = 0; i < nfiles; i++) {
        if (list)
            list[i] = files[i].path;
        else
            free(files[i].path);
    }
    free(files);
    *paths = list;
    *npaths = list ? nfiles : 0;
    return status;
}

void brg_trace_list_free(char **paths, size_t npaths)
{
    for (size_t i = 0; i < npaths; i++)
        free(paths[i]);
    free(paths);
}
