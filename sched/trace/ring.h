/* SPDX-License-Identifier: Apache-2.0 */
/* The trace file of one rank: a header page, an append-only table of descriptions, and a ring of
 * fixed-size records, all memory-mapped. Writers never format, never make a system call, never
 * block; what they wrote survives SIGKILL, because the kernel keeps the mapping. When the ring is
 * full the oldest records are overwritten; readers can tell how many were lost.
 *
 * All times are CLOCK_MONOTONIC nanoseconds of this machine.
 */
#ifndef BRIGADE_SCHED_TRACE_RING_H
#define BRIGADE_SCHED_TRACE_RING_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "sched/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BRG_RING_MAGIC "BRGRING\0"
#define BRG_RING_VERSION 1u
#define BRG_NO_BUCKET UINT32_MAX

typedef enum brg_rec_kind {
    BRG_REC_STEP = 1,    /* one step on the compute stream: brg_zero_grad to the next one */
    BRG_REC_COMPUTE = 2, /* the trainer's compute; flags = brg_span_kind, aux = name id; the shim's:
                            bytes = how many kernels */
    BRG_REC_READY = 3, /* t0: first gradient of the bucket ready (host call), t1: last one ready on
                          the compute stream. With func ALL_GATHER (optional): t1 = its parameters
                          were updated on the compute stream, the gather may begin */
    BRG_REC_COLLECTIVE =
        4,            /* func; bytes = whole bucket; t0, t1 on the comm stream; aux = issue time */
    BRG_REC_WAIT = 5, /* a consumer stream stood still for bucket; func of what it waited for */
    BRG_REC_OPTIMIZER = 6, /* one optimizer's update on the compute stream; aux = name id */
    BRG_REC_NORM = 7,      /* gradient norm and clip factor on the compute stream */
    BRG_REC_CLOCK = 8, /* t0 = CLOCK_MONOTONIC, t1 = CLOCK_REALTIME, aux = device clock (or 0) */
    BRG_REC_CALL = 9,  /* host side of a collective that the shim saw, see shim/interpose/shim.h */
    BRG_REC_NCCL_KERNEL = 10, /* a kernel of NCCL's that the shim saw; aux = name id */
} brg_rec_kind;

typedef enum brg_func {
    BRG_FUNC_NONE = 0,
    BRG_FUNC_ALL_REDUCE = 1,
    BRG_FUNC_REDUCE_SCATTER = 2,
    BRG_FUNC_ALL_GATHER = 3,
    BRG_FUNC_BROADCAST = 4,
    BRG_FUNC_REDUCE = 5,
    BRG_FUNC_SEND = 6,
    BRG_FUNC_RECV = 7,
    BRG_FUNC_ALL_TO_ALL = 8,
    BRG_FUNC_GATHER = 9,
    BRG_FUNC_SCATTER = 10,
    BRG_FUNC_PUT = 11, /* one-sided, into a peer's window */
} brg_func;

/* Flags of BRG_REC_COLLECTIVE. */
enum {
    BRG_REC_GROUPED = 1,  /* issued in one group call with others that carry the same times */
    BRG_REC_UNTIMED = 2,  /* no device time: t0, t1 are those of the call on the host */
    BRG_REC_CAPTURED = 4, /* went into a CUDA graph: this call ran nothing, replays are not seen */
    BRG_REC_USER_OP = 8,  /* reduced with an operator of the trainer's own */
};

/* A flag of every kind: happened in the replay of a CUDA graph. Times are the device's own; what
 * only the host knows (the first gradient of a bucket, when a collective was issued) is missing. */
enum { BRG_REC_GRAPH = 0x8000 };

typedef struct brg_rec {
    uint64_t seq; /* in the file: ticket + 1 when complete, see format.h; callers leave it alone */
    uint64_t t0_ns, t1_ns;
    uint64_t bytes;
    uint32_t step;   /* the step that the span belongs to (a gather: the step that started it) */
    uint32_t comm;   /* communicator id; 0 is the context's own */
    uint32_t bucket; /* id given to brg_ring_add_bucket(), or BRG_NO_BUCKET */
    uint32_t stream; /* small id, 0 = unknown */
    uint16_t kind, flags;
    uint8_t channel_first, channel_count, dtype /* brg_dtype */, func;
    uint64_t aux;
} brg_rec;
static_assert(sizeof(brg_rec) == 64, "one record is one cache line");

/* What a bucket id means. */
typedef struct brg_meta_bucket {
    uint64_t grad_bytes, param_bytes; /* whole bucket, all shards */
    uint64_t numel, numel_unpadded;
    uint32_t num_shards, group, num_params;
    uint8_t grad_dtype, param_dtype, layerwise, expert_parallel;
    char name[64]; /* "fp32/fp32/dense/lw#3": buffer name and bucket within the buffer */
} brg_meta_bucket;

typedef struct brg_ring brg_ring;

enum { BRG_RING_RECORDS_MIN = 1 << 8, BRG_RING_RECORDS_MAX = 1 << 26 };

/* BRIGADE_TRACE_RECORDS, a number of records, as the smallest nrec_log2 that holds them; 0 where it
 * is not set, or after a failure. */
brg_status brg_ring_env_nrec_log2(int *nrec_log2);

typedef struct brg_ring_options {
    uint32_t rank, world, gpu;
    int nrec_log2;         /* 0: 16; 4 to 26 */
    uint32_t strtab_bytes; /* space for descriptions; 0: 1 MiB */
} brg_ring_options;

/* Creates `path` (O_EXCL, 0600, space allocated up front, so that a full disk fails here).
 * BRG_ERR_IO names the path and says when it exists already. */
brg_status brg_ring_create(const char *path, const brg_ring_options *options, brg_ring **ring);

/* Writes a last clock record, marks the file as closed and unmaps; NULL allowed. The file stays. No
 * other thread may be using the ring. */
void brg_ring_close(brg_ring *ring);

/* Writes a last clock record and marks the file as closed; the ring can still be written. */
void brg_ring_finish(brg_ring *ring);

/* For a child after fork: unmaps the parent's ring and leaves the file as it is. The few bytes of
 * the handle stay allocated, since the allocator may be in any state. NULL allowed. */
void brg_ring_abandon(brg_ring *ring);

/* Appends a record; rec->seq is ignored. Any thread, wait-free, no system call. NULL ring: no-op.
 */
void brg_ring_put(brg_ring *ring, const brg_rec *rec);

/* Counts records that their maker had to give up (empty pools). */
void brg_ring_drop(brg_ring *ring, uint64_t records);

/* Descriptions; any thread, takes a lock. When the table is full they are dropped and counted, and
 * names become id 0 ("?"). add_name returns the id; the same text gives the same id. */
void brg_ring_add_bucket(brg_ring *ring, uint32_t id, const brg_meta_bucket *bucket);
uint32_t brg_ring_add_name(brg_ring *ring, const char *name);
/* Free-form facts for the report: "device", "host"; "overlap_grad_reduce", "1"; ... */
void brg_ring_add_info(brg_ring *ring, const char *key, const char *value);

uint64_t brg_now_ns(void); /* CLOCK_MONOTONIC */

#ifdef __cplusplus
}
#endif

#endif
