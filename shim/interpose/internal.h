/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of libbrigade-shim.
 *
 *   forward.c   the generated wrappers          wrap.c     communicators and groups
 *   real.c      finds NCCL's own functions      state.c    the ring: opened, dropped after fork
 *   comms.c     table of communicators          record.c   from calls to records
 *   runtime.c   the CUDA that is loaded         timing.c   events and the thread that reads them
 *   cupti.c     finds CUPTI                     kernels.c  records of its activities
 *
 * A call goes: wrapper -> shim_route_of (which NCCL) -> shim_op_begin -> NCCL -> shim_op_end. In
 * the steady state nothing in it allocates, locks or enters the kernel. Locks (slow paths only) are
 * leaves: none is held while another is taken, or across a call of NCCL, CUDA or the loader.
 */
#ifndef BRIGADE_SHIM_INTERPOSE_INTERNAL_H
#define BRIGADE_SHIM_INTERPOSE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "sched/trace/ring.h"
#include "shim/interpose/nccl_api.h"
#include "shim/interpose/shim.h"

enum {
    SHIM_COPIES = 8,      /* NCCLs in one process */
    SHIM_GROUP_OPS = 4096 /* operations in one group that can be recorded */
};

/* One NCCL. Immutable once it can be found. */
typedef struct shim_real {
    struct {
#define F(kind, result, name, params, args, what) result(*name) params;
        BRG_NCCL_ALL(F)
#undef F
    } fn; /* NULL: this NCCL does not have it */
    const void *base;
    int index, version;
    char path[512];
} shim_real;

typedef struct shim_route {
    const shim_real *real; /* NULL: none found, and that has been said */
    bool inner;            /* NCCL itself is calling */
} shim_route;

/* real.c */
shim_route shim_route_of(const void *caller);
const shim_real *shim_real_at(int index); /* NULL beyond the last */
/* Says once per name that this NCCL lacks it; ncclInvalidUsage, or ncclSystemError for no NCCL. */
ncclResult_t shim_missing(const shim_real *real, const char *name);
void shim_real_after_fork(void);

/* state.c */
typedef enum shim_status { SHIM_UNSET, SHIM_ON, SHIM_OFF } shim_status;
extern _Atomic int shim_state;
extern brg_ring *shim_ring; /* while shim_state is SHIM_ON */

/* True if records are wanted and the ring is open; the first call opens it. rank and ranks: of the
 * first communicator, for a process that no launcher has numbered. */
bool shim_open(int rank, int ranks);
/* A copy of NCCL turned up. */
void shim_found(const shim_real *real);
/* Logs the first failure of the shim's own. */
void shim_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline bool shim_on(void)
{
    return atomic_load_explicit(&shim_state, memory_order_acquire) == SHIM_ON;
}

/* comms.c */
typedef struct shim_comm {
    uint32_t id;
    int size, rank, device; /* -1: not known yet */
    _Atomic bool blocking;
    uint64_t hash;
    uint32_t parent;
    const char *how;
    _Atomic uint32_t next_collective, next_p2p, children;
    _Atomic bool described;
} shim_comm;

/* The communicator behind a handle; one never seen is taken in. NULL: the table is full. */
shim_comm *shim_comm_of(const shim_real *real, ncclComm_t handle);
shim_comm *shim_comm_find(ncclComm_t handle); /* NULL: not seen */
/* Takes a new communicator in; `made` is copied, its id assigned. Replaces what the handle meant
 * before. */
void shim_comm_add(const shim_real *real, ncclComm_t handle, const shim_comm *made, bool complete);
void shim_comm_retire(ncclComm_t handle, const char *how);
uint64_t shim_hash(uint64_t seed, const void *bytes, size_t count);

/* record.c */
typedef struct shim_op {
    int func;
    const void *address;
    size_t count;
    int per_rank, type, op;
    ncclComm_t handle;
    cudaStream_t stream;
} shim_op;

/* One call under way. */
typedef struct shim_call {
    bool active;
    shim_comm *comm;
    uint64_t t0_ns;
    int pair; /* of events, -1: none */
    bool captured;
} shim_call;

void shim_op_begin(const shim_real *real, const shim_op *op, shim_call *call);
void shim_op_end(const shim_real *real, const shim_op *op, const shim_call *call,
                 ncclResult_t result);

extern _Thread_local int shim_inside __attribute__((tls_model("initial-exec")));

/* Groups of this thread, per copy of NCCL. */
int shim_group_depth(const shim_real *real);
void shim_group_started(const shim_real *real);
/* Around ncclGroupEnd. */
void shim_group_end_begin(const shim_real *real);
void shim_group_end(const shim_real *real, ncclResult_t result);
void shim_group_simulated(const shim_real *real);

/* runtime.c: CUDA's functions, by the runtime's names or the driver's. */
typedef struct shim_runtime {
    int (*get_device)(int *device);
    int (*set_device)(int device);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_elapsed)(float *milliseconds, void *start, void *end);
    int (*stream_create)(void **stream, unsigned flags);
    int (*is_capturing)(void *stream, int *state);
    int (*exchange_capture_mode)(int *mode);
    int (*last_error)(void); /* NULL with the driver, which keeps none */
    int (*peek_error)(void);
} shim_runtime;
extern shim_runtime shim_rt; /* once shim_rt_ready */
extern _Atomic bool shim_rt_ready;
bool shim_runtime_load(bool insisted); /* complains if there is none */
/* The file of a loaded library whose name begins so. */
bool shim_mapped_find(const char *prefix, char *path, size_t path_bytes);

/* timing.c */
/* Reads BRIGADE_SHIM_TIMING and looks for CUDA, which may come with a later communicator. */
void shim_timing_open(void);
/* Marks the beginning of work in a stream of `device` (-1: the current one). Returns a pair of
 * events, or -1; *captured: the stream is being captured. */
int shim_timing_begin(int device, void *stream, bool *captured);
/* Marks the end; false: there is no device time. */
bool shim_timing_end(int pair, void *stream);
void shim_timing_cancel(int pair);
/* Adds a record to the launch: *head is -1 at first. False: no room, the record is the caller's. */
bool shim_timing_add(int *head, const brg_rec *untimed);
void shim_timing_submit(int pair, int head);
/* Writes what has finished, if nobody is at it. */
void shim_timing_harvest(void);

/* kernels.c */
bool shim_kernels_wanted(void); /* as the environment says */
/* Begins to record kernels if they are wanted and CUDA is there; says why not, once. */
void shim_kernels_open(void);
/* Has CUPTI hand over what it has, if that was long ago. */
void shim_kernels_flush(void);

#endif
