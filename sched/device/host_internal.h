/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the host engine; not for others.
 *
 * Locks, in the order in which they may be taken: host_segment_lock, a communicator's lock, the
 * engine lock, a stream's lock, the marker pool's lock. No lock is held while a rank sleeps for
 * another rank, except the segment lock while a rank waits for the creator of a segment.
 */
#ifndef BRIGADE_SCHED_DEVICE_HOST_INTERNAL_H
#define BRIGADE_SCHED_DEVICE_HOST_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/device/device.h"
#include "sched/device/host.h"
#include "sched/device/thread_error.h"
#include "sched/status.h"

/* cudaErrorInitializationError (its text is the thread's last error), cudaErrorInvalidDevice */
enum { BRG_RT_INITIALIZATION = 3, BRG_RT_INVALID_DEVICE = 101 };

#define HOST_LINE 64 /* bytes of a cache line */
#define HOST_INLINE_BYTES ((size_t)8 << 10)
#define HOST_STAGE_BYTES ((size_t)256 << 10) /* one of a rank's two staging buffers */
#define HOST_MAX_RANKS 1024
#define HOST_MAX_DEVICES 1024
#define HOST_CHECK_NS 200000000ull /* a sleeping rank looks after its peers this often */

typedef struct host_stream host_stream;
typedef struct host_marker host_marker;
typedef struct host_comm host_comm;
typedef struct host_batch host_batch;

/* Errors of the calling thread (host_error.c). */

/* Keeps code, cause and text for last_error and returns `code`. */
int host_fail(int code, brg_status cause, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *host_thread_error(void);

/* Time and sleep (host_error.c). */
uint64_t host_now_ns(void);
/* Sleeps while *word == value, at most timeout_ns (0: for ever). Spurious returns are possible.
 * `shared`: the word is in memory shared between processes. */
void host_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns, bool shared);
void host_futex_wake(_Atomic uint32_t *word, bool shared);
void host_sleep_ns(uint64_t ns);
/* Reads a number from the environment. Unset or empty gives `fallback`. */
int host_env_number(const char *name, double fallback, double min, double max, double *value);

/* Processes (host_fork.c). The generation counts the forks between the first process and this one:
 * what carries another generation belongs to an ancestor and must not be used. */
extern _Atomic uint32_t host_generation;
extern pthread_mutex_t host_engine_lock; /* stream list, arena, peer processes */
extern pthread_mutex_t host_pool_lock;   /* free markers */
extern pthread_mutex_t host_segment_lock;
void host_fork_prepare(void); /* idempotent: installs the fork handlers */

/* Streams (host_stream.c) and events (host_event.c). */

struct host_marker {        /* one record of an event: the point in a stream that waits refer to */
    _Atomic uint32_t state; /* HOST_MARK_* */
    _Atomic uint32_t refs;
    uint64_t time_ns;          /* valid once done */
    const host_stream *stream; /* identity only */
    host_marker *next;         /* in the pool */
};

enum { HOST_MARK_PENDING, HOST_MARK_AWAITED, HOST_MARK_DONE };

host_marker *host_marker_new(const host_stream *stream);
void host_marker_ref(host_marker *marker);
void host_marker_unref(host_marker *marker);
void host_marker_finish(host_marker *marker);
void host_marker_wait(host_marker *marker);

typedef enum host_kind {
    HOST_ALL_REDUCE = 1,
    HOST_REDUCE_SCATTER,
    HOST_ALL_GATHER,
    HOST_BROADCAST,
    HOST_REDUCE,
    HOST_ALL_TO_ALL,
    HOST_SPLIT, /* internal all-gather of colors and keys */
    HOST_SEND,
    HOST_RECV,
} host_kind;

enum { HOST_OP_PREMUL_SUM = BRG_NCCL_NUM_OPS };

typedef struct host_call { /* one collective, send or receive, as the user asked for it */
    host_kind kind;
    int dtype;
    int op;   /* BRG_NCCL_SUM.. or HOST_OP_PREMUL_SUM; 0 where there is none */
    int peer; /* root, or the other rank of a send or receive; -1 where there is none */
    size_t count;
    const void *send;
    void *recv;
    uint8_t scalar[8];          /* of the pre-multiplied sum */
    const void *scalar_pointer; /* read at execution; NULL: scalar holds it */
} host_call;

typedef enum host_op_kind {
    HOST_OP_COPY,
    HOST_OP_SET,
    HOST_OP_FUNC,
    HOST_OP_RECORD,
    HOST_OP_WAIT,
    HOST_OP_COLLECTIVE,
    HOST_OP_BATCH,
} host_op_kind;

typedef struct host_op { /* one entry of a stream's queue */
    host_op_kind kind;
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
            int value;
        } copy;
        struct {
            void (*fn)(void *arg);
            void *arg;
        } func;
        host_marker *marker;
        struct {
            host_comm *comm;
            uint64_t ticket;
            uint64_t seq;
            host_call call;
        } collective;
        struct {
            host_comm *comm;
            uint64_t ticket;
            host_batch *batch;
        } batch;
    };
} host_op;

int host_stream_create(void **stream, unsigned flags, int priority);
int host_stream_destroy(void *stream);
int host_stream_synchronize(void *stream);
int host_stream_query(void *stream);
int host_device_synchronize(void);
int host_launch_host_func(void *stream, void (*fn)(void *arg), void *arg);
int host_memcpy_async(void *dst, const void *src, size_t bytes, int kind, void *stream);
int host_memset_async(void *dst, int value, size_t bytes, void *stream);
/* Puts a copy of *op on the stream; a NULL stream runs it at once. If `skip_idle`, and the stream
 * is idle, does nothing and sets *skipped. */
int host_stream_push(host_stream *stream, const host_op *op, bool skip_idle, bool *skipped);
/* True unless the handle comes from before a fork. */
bool host_stream_valid(const host_stream *stream);
int host_stream_device(const host_stream *stream);
void host_stream_fork_child(void);
void host_op_run(host_op *op);

int host_event_create(void **event, unsigned flags);
int host_event_destroy(void *event);
int host_event_record(void *event, void *stream);
int host_event_query(void *event);
int host_event_synchronize(void *event);
int host_event_elapsed(float *milliseconds, void *start, void *end);
int host_stream_wait_event(void *stream, void *event);

/* Devices (host_runtime.c). */
int host_get_device_count(int *count);
int host_get_device(int *device);
int host_set_device(int device);

/* Memory (host_memory.c). Device memory lies in the arena: one memory file per process, which peers
 * map to read each other's memory directly. */
typedef struct host_arena_id {
    int32_t fd; /* in the owner's process; -1: no arena */
    uint64_t device, inode;
    uint64_t base; /* address in the owner's process */
    uint64_t bytes;
} host_arena_id;

int host_malloc_device(void **memory, size_t bytes);
int host_free_device(void *memory);
int host_malloc_host(void **memory, size_t bytes);
int host_free_host(void *memory);
int host_mem_get_info(size_t *free_bytes, size_t *total_bytes);
void host_arena_identify(host_arena_id *id); /* makes the arena if there is none */
/* Offset of [memory, memory+bytes) in the arena, UINT64_MAX if it is not wholly inside. */
uint64_t host_arena_offset(const void *memory, size_t bytes);
void host_arena_fork_child(void);

#endif
