/* SPDX-License-Identifier: Apache-2.0 */
/* Reads trace files, whole or live, and trusts nothing in them. */
#ifndef BRIGADE_SCHED_TRACE_READER_H
#define BRIGADE_SCHED_TRACE_READER_H

#include <stddef.h>

#include "sched/trace/ring.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_trace_bucket {
    uint32_t id;
    uint32_t order; /* place among the descriptions in the file */
    brg_meta_bucket meta;
} brg_trace_bucket;

typedef struct brg_trace_info {
    const char *key, *value;
} brg_trace_info;

/* One rank's trace, copied out of its file. */
typedef struct brg_trace {
    char *path;
    uint32_t pid, rank, world, gpu;
    uint64_t t0_mono_ns, t0_real_ns;
    uint8_t boot_id[16];
    bool closed; /* false: the process was killed, or is still running */

    brg_rec *recs; /* complete records, in the order in which they were put */
    size_t nrecs;
    uint64_t written;     /* tickets given out */
    uint64_t overwritten; /* older than the ring is long */
    uint64_t torn;        /* in the ring, but unfinished */
    uint64_t invalid;     /* complete, but their times make no sense */
    uint64_t drops;       /* given up by their makers */
    uint32_t description_drops;

    brg_trace_bucket *buckets; /* by rising id, each id once */
    size_t nbuckets;
    const char **names; /* by id; NULL where there is none */
    size_t nnames;
    brg_trace_info *infos; /* in the order in which they were added */
    size_t ninfos;
    char *strtab; /* what names and infos point into */
} brg_trace;

/* Opens one file. BRG_ERR_IO: cannot be read, or is not a regular file. BRG_ERR_FORMAT: is no
 * trace, of another version, cut off, or damaged. The message names the file and the reason. A
 * trace without records is no error. */
brg_status brg_trace_open(const char *path, brg_trace **trace);
void brg_trace_close(brg_trace *trace);

/* Frees the records and keeps the rest. */
void brg_trace_forget_records(brg_trace *trace);

/* "?" when there is no such name. */
const char *brg_trace_name(const brg_trace *trace, uint64_t id);
/* The last value given to the key, or NULL. */
const char *brg_trace_info_get(const brg_trace *trace, const char *key);
/* NULL when the bucket was never described. */
const brg_meta_bucket *brg_trace_bucket_get(const brg_trace *trace, uint32_t id);
/* Everything that is known to be missing. */
uint64_t brg_trace_lost(const brg_trace *trace);

/* The files of a run: those named rank-<number>.ring in the directory `path`, by rising number; or
 * `path` itself when it is a file. BRG_ERR_NO_DATA: a directory without such files; BRG_ERR_IO:
 * `path` cannot be read. */
brg_status brg_trace_list(const char *path, char ***paths, size_t *npaths);
void brg_trace_list_free(char **paths, size_t npaths);

#ifdef __cplusplus
}
#endif
#endif
