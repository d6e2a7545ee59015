/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * A context: one rank's device, communicator, streams and trace.
 *
 * A rank is a process or a thread; each rank opens its own context. Streams are first-in first-out
 * queues of asynchronous work, as in the CUDA runtime: on the device `cuda` a brg_stream is a
 * cudaStream_t, on the device `host` it is served by one worker thread. The NULL stream of the host
 * device is the calling thread itself: work put on it runs, and waits on it block, at once. On cuda
 * it is the legacy default stream of the context's device.
 */
#ifndef BRIGADE_CONTEXT_H
#define BRIGADE_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include "brigade/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_context brg_context;
typedef void *brg_stream;

/** Names one group of ranks; made on one rank and handed to the others. */
typedef struct brg_unique_id {
    char bytes[128];
} brg_unique_id;

typedef enum brg_device_kind {
    BRG_DEVICE_AUTO =
        0, /**< BRIGADE_DEVICE (auto, cuda, host); auto takes cuda when a GPU answers and NCCL and
                the kernels are there, else host */
    BRG_DEVICE_HOST = 1, /**< the CPU stand-in */
    BRG_DEVICE_CUDA = 2, /**< GPUs, through libcudart and libnccl as found at run time */
} brg_device_kind;

/** Zero means default everywhere. */
typedef struct brg_context_options {
    size_t size; /**< sizeof(brg_context_options); 0 means its size in version 1.0 */
    brg_device_kind device;
    int world_size; /**< number of ranks; 0: RANK, WORLD_SIZE and LOCAL_RANK from the
                         environment as torchrun sets them, one rank where they are unset */
    int rank;       /**< this rank, when world_size is set */
    int local_rank; /**< rank on this machine, when world_size is set */
    const brg_unique_id *unique_id; /**< the same on every rank; NULL: rank 0 makes one and hands it
                                         out at MASTER_ADDR:MASTER_PORT */
    const char *trace_dir;  /**< writes DIR/rank-N.ring; NULL: BRIGADE_TRACE; "" or neither: off */
    int trace_records_log2; /**< capacity of the trace ring, 8 to 26; 0: BRIGADE_TRACE_RECORDS,
                                 or else 16 (65536 records, 4 MiB) */
    double init_timeout_s;  /**< for all ranks to arrive; 0 means 60 */
    double
        collective_timeout_s; /**< a collective unfinished for this long is an error; 0 means 600 */
    void *
        nccl_comm; /**< ncclComm_t of the caller's: rank, world size and device are taken from it,
                      no ranks are waited for. Borrowed: it must outlive the context, which neither
                      finalises nor destroys it; it must be idle now, and nobody else may use
                      it meanwhile. It is
                      aborted, and so lost to the caller, once brg_context_status() is an error: by
                      brg_context_abort() or brg_context_close() at the latest. NULL: one is made */
    brg_stream comm_stream; /**< the caller's stream for all collectives of this context, on its
                               device. Borrowed: it must outlive the context. NULL: one of the
                               greatest priority is made */
} brg_context_options;

/** Makes an id for a group of ranks. @return BRG_ERR_IO if no randomness is to be had. */
BRG_API brg_status brg_unique_id_create(brg_device_kind device, brg_unique_id *id);

/** Opens a context; blocks until all ranks have arrived, unless nccl_comm is given. On the device
 * cuda a new communicator's device, number local_rank, stays the calling thread's current one;
 * every other call leaves the current device as it found it, whatever the context's is.
 * Where the ranks met at MASTER_ADDR:MASTER_PORT, that connection stays: a rank that dies, or whose
 * context fails, ends the other ranks' contexts too, with its name and message, and a time-out names
 * the late ranks. With unique_id or nccl_comm the device cuda has only NCCL's own errors and the
 * time-out for that.
 * @param options NULL means all defaults.
 * @param[out] ctx closed with brg_context_close(); NULL on failure.
 * @return BRG_ERR_TIMEOUT (message names the missing ranks), BRG_ERR_INVALID_ARGUMENT,
 *         BRG_ERR_DEVICE, BRG_ERR_IO, BRG_ERR_UNSUPPORTED. */
BRG_API brg_status brg_context_open(const brg_context_options *options, brg_context **ctx);

/** Makes a context of those ranks that give the same @p color, for groups of ranks: of
 * expert-parallel parameters, of optimizer instances, of the trainer's own. Collective over @p ctx;
 * blocks, also until the collectives of @p ctx are done. The new context has a communicator, a
 * communication stream and time-outs of its own and writes into the same trace. An asynchronous
 * error of a child is one of its parent's, too; aborting the parent aborts its children.
 * @param color 0 or more; -1: this rank is in no group.
 * @param key ranks are in the order of key, then of their rank in @p ctx.
 * @param[out] child closed before @p ctx, with brg_context_close(); NULL with color -1, on failure.
 */
BRG_API brg_status brg_context_split(brg_context *ctx, int color, int key, brg_context **child);

/** Waits for outstanding work of this context and frees it. NULL is allowed. Schedulers and
 * contexts that were split off it must have been destroyed. After an asynchronous error it does not
 * wait for peers. */
BRG_API void brg_context_close(brg_context *ctx);

BRG_API int brg_context_rank(const brg_context *ctx);
BRG_API int brg_context_world_size(const brg_context *ctx);
/** @return "host" or "cuda". */
BRG_API const char *brg_context_device(const brg_context *ctx);

/** Asks for asynchronous errors: lost peers, mismatched or stuck collectives, failed checks. Never
 * blocks. @return BRG_OK or the first such error, whose message names rank, bucket and collective.
 * Every other call on the context returns the same error once it has happened. Any thread. */
BRG_API brg_status brg_context_status(brg_context *ctx);

/** Gives up: unblocks this rank's collectives with an error, also calls that are blocked in the
 * communication library (after up to a second); peers get BRG_ERR_PEER_LOST. Any thread. */
BRG_API void brg_context_abort(brg_context *ctx);

/* Streams */

/** @param[out] stream destroyed with brg_stream_destroy(). */
BRG_API brg_status brg_stream_create(brg_context *ctx, brg_stream *stream);
/** Waits for the work in @p stream and frees it. NULL is allowed. */
BRG_API void brg_stream_destroy(brg_context *ctx, brg_stream stream);
/** Blocks until all work put on @p stream so far is done; then reports as brg_context_status(). */
BRG_API brg_status brg_stream_synchronize(brg_context *ctx, brg_stream stream);
/** Puts fn(arg) on @p stream. On the host device this is how a trainer computes asynchronously. @p
 * fn must not call Brigade on the same context. */
BRG_API brg_status brg_stream_launch(brg_context *ctx, brg_stream stream, void (*fn)(void *arg),
                                     void *arg);

/* Plain collectives over all ranks, asynchronous on @p stream. All ranks must make the same calls
 * in the same order, and between the same scheduler calls. */

/** Element-wise reduction of @p count elements of every rank's @p send into every rank's @p recv,
 * which may be the same. */
BRG_API brg_status brg_all_reduce(brg_context *ctx, const void *send, void *recv, size_t count,
                                  brg_dtype dtype, brg_op op, brg_stream stream);
/** Copies @p count elements of rank @p root's @p buffer to everybody's. */
BRG_API brg_status brg_broadcast(brg_context *ctx, void *buffer, size_t count, brg_dtype dtype,
                                 int root, brg_stream stream);
/** Blocks the caller until every rank has called it. */
BRG_API brg_status brg_barrier(brg_context *ctx);

/* Spans of the caller's own work, for the trace. Without a trace they cost one branch. */

typedef enum brg_span_kind {
    BRG_COMPUTE_FORWARD = 1,
    BRG_COMPUTE_BACKWARD = 2,
    BRG_COMPUTE_OTHER = 3,
} brg_span_kind;

/** Marks the beginning, on @p stream, of a stretch of compute. Spans of one stream do not nest.
 * @param name copied on first use; NULL allowed. */
BRG_API brg_status brg_span_begin(brg_context *ctx, brg_span_kind kind, const char *name,
                                  brg_stream stream);
/** Marks the end of the stretch begun last on @p stream. */
BRG_API brg_status brg_span_end(brg_context *ctx, brg_stream stream);

#ifdef __cplusplus
}
#endif
#endif
