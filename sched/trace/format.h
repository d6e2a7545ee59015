/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a trace file, for its writer and its reader.
 *
 *   offset 0             header, one page
 *   hdr_bytes            description table: entries of brg_ring_entry, the first strtab_used bytes
 *   + strtab_bytes       2^nrec_log2 records of 64 bytes; ticket k lives in slot k mod 2^nrec_log2
 *
 * Everything is in the byte order of the machine that wrote it. `magic` is written last when a file
 * is created, so that a file whose maker died half way is never taken for a trace.
 *
 * A slot's seq goes 0 (never used) -> BUSY | ticket+1 -> ticket+1 -> BUSY | later ticket+1 -> ...
 * A writer whose slot is busy or already holds a later ticket gives its record up; the reader finds
 * the ticket missing and counts it. Thus two writers a lap apart never mix their bytes.
 */
#ifndef BRIGADE_SCHED_TRACE_FORMAT_H
#define BRIGADE_SCHED_TRACE_FORMAT_H

#include "sched/trace/ring.h"

#define BRG_RING_HDR_BYTES 4096u
#define BRG_RING_ENDIAN 0x01020304u
#define BRG_RING_CLOSED 1u /* in flags: brg_ring_close() was reached */
#define BRG_RING_BUSY (UINT64_C(1) << 63)

enum { BRG_RING_NREC_LOG2_MIN = 4, BRG_RING_NREC_LOG2_MAX = 26, BRG_RING_NREC_LOG2_DEFAULT = 16 };
#define BRG_RING_STRTAB_DEFAULT (1u << 20)
#define BRG_RING_STRTAB_MAX (1u << 30)

typedef struct brg_ring_hdr {
    char magic[8];
    uint32_t version, endian;
    uint32_t hdr_bytes, rec_bytes, nrec_log2, strtab_bytes;
    uint32_t pid, rank, world, gpu;
    uint64_t t0_mono_ns, t0_real_ns;
    uint8_t boot_id[16]; /* zero when unknown; monotonic times compare only within one boot */
    uint8_t pad0[128 - 80];
    /* Written at run time, each on a cache line of its own. */
    uint64_t head; /* next ticket */
    uint8_t pad1[56];
    uint64_t drops; /* records that their makers gave up before they had a ticket */
    uint8_t pad2[56];
    uint32_t strtab_used, strtab_drops, flags;
} brg_ring_hdr;
static_assert(sizeof(brg_ring_hdr) <= BRG_RING_HDR_BYTES, "the header is one page");

typedef enum brg_entry_type {
    BRG_ENTRY_BUCKET = 1, /* payload: brg_meta_bucket of bucket `id`; a later entry replaces it */
    BRG_ENTRY_NAME = 2,   /* payload: text with its NUL */
    BRG_ENTRY_INFO = 3,   /* payload: key with its NUL, value with its NUL */
} brg_entry_type;

typedef struct brg_ring_entry {
    uint32_t bytes; /* this head and the payload, rounded up to 8 */
    uint32_t payload_bytes;
    uint32_t type, id;
} brg_ring_entry;

#endif
