/* SPDX-License-Identifier: Apache-2.0 */
/* The device boundary: two tables of function pointers, shaped like the parts of the CUDA runtime
 * and of NCCL that Brigade uses. Above them the code is the same on CPU and GPU.
 *
 * Functions of brg_runtime return a cudaError_t value (0 success, 600 not ready), functions of
 * brg_nccl an ncclResult_t value (0 success, 1 unhandled CUDA error, 2 system error, 3 internal
 * error, 4 invalid argument, 5 invalid usage, 6 remote error, 7 in progress). None of them prints
 * or ends the process. Every function may be called from any thread; calls on one communicator must
 * come in the same order on every rank. "Asynchronous" means: puts work on the stream and returns.
 */
#ifndef BRIGADE_SCHED_DEVICE_H
#define BRIGADE_SCHED_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "brigade/context.h"
#include "sched/device/kernels.h"

enum { BRG_RT_OK = 0, BRG_RT_INVALID_VALUE = 1, BRG_RT_NO_MEMORY = 2, BRG_RT_NOT_READY = 600 };

enum {
    BRG_NCCL_OK = 0,
    BRG_NCCL_UNHANDLED_CUDA = 1,
    BRG_NCCL_SYSTEM = 2,
    BRG_NCCL_INTERNAL = 3,
    BRG_NCCL_INVALID_ARGUMENT = 4,
    BRG_NCCL_INVALID_USAGE = 5,
    BRG_NCCL_REMOTE = 6,
    BRG_NCCL_IN_PROGRESS = 7,
};

/* Values of cudaMemcpyKind; the host engine treats all alike. */
enum {
    BRG_COPY_HOST_TO_HOST = 0,
    BRG_COPY_HOST_TO_DEVICE = 1,
    BRG_COPY_DEVICE_TO_HOST = 2,
    BRG_COPY_DEVICE_TO_DEVICE = 3,
    BRG_COPY_DEFAULT = 4
};

/* Flags with the CUDA runtime's values. */
enum { BRG_STREAM_NON_BLOCKING = 1 };
enum { BRG_EVENT_DISABLE_TIMING = 2 };

/* ncclDataType_t values. */
enum {
    BRG_NCCL_INT8 = 0,
    BRG_NCCL_UINT8 = 1,
    BRG_NCCL_INT32 = 2,
    BRG_NCCL_UINT32 = 3,
    BRG_NCCL_INT64 = 4,
    BRG_NCCL_UINT64 = 5,
    BRG_NCCL_FLOAT16 = 6,
    BRG_NCCL_FLOAT32 = 7,
    BRG_NCCL_FLOAT64 = 8,
    BRG_NCCL_BFLOAT16 = 9
};

/* ncclRedOp_t values; operators made at run time are larger. */
enum {
    BRG_NCCL_SUM = 0,
    BRG_NCCL_PROD = 1,
    BRG_NCCL_MAX = 2,
    BRG_NCCL_MIN = 3,
    BRG_NCCL_AVG = 4,
    BRG_NCCL_NUM_OPS = 5
};

/* ncclScalarResidence_t: where the scalar of a pre-multiplied sum lives. */
enum { BRG_NCCL_SCALAR_DEVICE = 0, BRG_NCCL_SCALAR_HOST_IMMEDIATE = 1 };

typedef struct brg_runtime {
    const char *name; /* "host" or "cuda" */

    /* Devices. The current device belongs to the calling thread. */
    int (*get_device_count)(int *count);
    int (*set_device)(int device);
    int (*get_device)(int *device);
    int (*device_synchronize)(void); /* blocks until all streams of the current device are idle */

    /* Memory of the current device, at least 256-byte aligned, and page-locked host memory. May
     * block. free functions take NULL. */
    int (*malloc_device)(void **memory, size_t bytes);
    int (*free_device)(void *memory);
    int (*malloc_host)(void **memory, size_t bytes);
    int (*free_host)(void *memory);
    int (*mem_get_info)(size_t *free_bytes, size_t *total_bytes);
    int (*memcpy_async)(void *dst, const void *src, size_t bytes, int kind, void *stream);
    int (*memset_async)(void *dst, int value, size_t bytes, void *stream);

    /* Streams. A lower priority number is more urgent. stream_query and event_query return
     * BRG_RT_NOT_READY while work is outstanding and never block. stream_destroy waits for the work
     * in the stream. */
    int (*stream_priority_range)(int *least, int *greatest);
    int (*stream_create)(void **stream, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_query)(void *stream);
    int (*stream_wait_event)(void *stream,
                             void *event); /* asynchronous; a never recorded event is no
                                              wait; the event's last record counts */

    /* Events. event_record is asynchronous and may be repeated: the last record counts. An event
     * may be destroyed while streams still wait for it. event_elapsed fails with BRG_RT_NOT_READY
     * before both are done, with BRG_RT_INVALID_VALUE for events without timing. */
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);
    int (*event_elapsed)(float *milliseconds, void *start, void *end);

    /* Runs fn(arg) in stream order on a thread of the engine's. fn must not call this table. */
    int (*launch_host_func)(void *stream, void (*fn)(void *arg), void *arg);

    /* Graphs; NULL on a device that has none (host). Capture is in relaxed mode: other threads may
     * go on calling. stream_is_capturing sets *capturing to 0 or 1 and never fails because of a
     * capture elsewhere. graph_end makes an executable graph of what was captured. */
    int (*stream_is_capturing)(void *stream, int *capturing);
    int (*graph_begin)(void *stream);
    int (*graph_end)(void *stream, void **graph);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_destroy)(void *graph); /* NULL allowed */

    /* "0000:1b:00.0" and the like; NULL where devices are not on a bus (host). */
    int (*device_pci_bus_id)(char *text, int bytes, int device);
    /* A name for people, e.g. "NVIDIA H200"; NULL as above. */
    int (*device_name)(char *text, int bytes, int device);

    const char *(*error_string)(int error);
} brg_runtime;

typedef struct brg_nccl {
    int (*get_version)(int *version);
    int (*get_unique_id)(brg_unique_id *id);
    /* Block until all ranks have arrived, or the time given by the environment BRIGADE_INIT_TIMEOUT
     * (in seconds) is over; comm_split as well. */
    int (*comm_init_rank)(void **comm, int num_ranks, brg_unique_id id, int rank);
    int (*comm_init_all)(void **comms, int num_devices,
                         const int *devices); /* one thread, all ranks */
    /* A new communicator of the ranks that gave the same color, ordered by key, then rank. color
     * -1: none, *child = NULL. Collective over comm. */
    int (*comm_split)(void *comm, int color, int key, void **child);
    int (*comm_finalize)(void *comm); /* waits for outstanding work */
    int (*comm_destroy)(void *comm);  /* frees; does not wait for peers */
    int (*comm_abort)(void *comm);    /* unblocks outstanding work with an error, then frees */
    int (*comm_get_async_error)(void *comm, int *result); /* never blocks */
    /* How many collectives this rank has finished without an error on comm, send and recv not
     * counted. Never blocks. NULL where the library cannot tell (NCCL). */
    int (*comm_num_done)(void *comm, uint64_t *count);
    int (*comm_count)(void *comm, int *count);
    int (*comm_user_rank)(void *comm, int *rank);
    int (*comm_device)(void *comm, int *device);

    /* Collectives: asynchronous on `stream`, counts in elements, in place where NCCL allows it:
     * all_gather with send == recv + rank*count, reduce_scatter with recv == send + rank*count. */
    int (*all_reduce)(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      void *stream);
    int (*reduce_scatter)(const void *send, void *recv, size_t recv_count, int dtype, int op,
                          void *comm, void *stream);
    int (*all_gather)(const void *send, void *recv, size_t send_count, int dtype, void *comm,
                      void *stream);
    int (*broadcast)(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                     void *stream);
    int (*reduce)(const void *send, void *recv, size_t count, int dtype, int op, int root,
                  void *comm, void *stream);
    int (*all_to_all)(const void *send, void *recv, size_t count_per_rank, int dtype, void *comm,
                      void *stream);
    int (*send)(const void *send, size_t count, int dtype, int peer, void *comm, void *stream);
    int (*recv)(void *recv, size_t count, int dtype, int peer, void *comm, void *stream);
    int (*group_start)(void); /* nests; per thread */
    int (*group_end)(void);   /* the outermost one puts everything on the streams */

    /* op = scalar * (sum of inputs), scalar applied before the sum; dtype is that of the
     * collective. */
    int (*redop_create_premul_sum)(int *op, const void *scalar, int dtype, int residence,
                                   void *comm);
    int (*redop_destroy)(int op, void *comm);

    int (*mem_alloc)(void **memory, size_t bytes); /* memory that transports can use directly */
    int (*mem_free)(void *memory);

    const char *(*error_string)(int result);
    /* The calling thread's last error on `comm` or, after an asynchronous error, that error's text,
     * which names the ranks and calls involved. comm may be NULL. */
    const char *(*last_error)(void *comm);
} brg_nccl;

typedef struct brg_device {
    const brg_runtime *rt;
    const brg_nccl *nccl;
    const brg_kernels *kernels; /* NULL: the device `host`, whose arithmetic is host functions */
} brg_device;

/* Resolves BRG_DEVICE_AUTO by BRIGADE_DEVICE and fills the tables. They are static and never freed.
 * `auto` takes cuda when a GPU answers and NCCL and the kernels are there, else host; it says so
 * when a GPU answers and something else is missing. Any thread. */
brg_status brg_device_open(brg_device_kind kind, brg_device *device);

/* The host engine's tables (sched/device/host_*.c). */
const brg_runtime *brg_host_runtime(void);
const brg_nccl *brg_host_nccl(void);

/* Conversions at the border. */
int brg_nccl_dtype(brg_dtype dtype);
int brg_nccl_op(brg_op op);
/* Maps a table's result to a status and sets the message "<what>: <error text>". 0 gives BRG_OK. */
brg_status brg_rt_status(const brg_device *device, int error, const char *what);
brg_status brg_nccl_status(const brg_device *device, int result, void *comm, const char *what);

#endif
