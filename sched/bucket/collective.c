/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, spans, and the plain collectives of a context. Every collective goes through
 * comm_stream: one communicator, one stream, one order. */
#include <stdlib.h>
#include <string.h>

#include "sched/bucket/context.h"

brg_status brg_context_follow_locked(brg_context *ctx, brg_stream stream, void *event)
{
    const brg_runtime *rt = ctx->device.rt;
    brg_status status;
    BRG_TRY(brg_context_rt(ctx, rt->event_record(event, stream), "event_record"), out);
    BRG_TRY(
        brg_context_rt(ctx, rt->stream_wait_event(ctx->comm_stream, event), "stream_wait_event"),
        out);
out:
    return status;
}

/* Streams */

static brg_status null_context(const char *function)
{
    return brg_fail(BRG_ERR_INVALID_ARGUMENT, "%s: the context is NULL", function);
}

brg_status brg_stream_create(brg_context *ctx, brg_stream *stream)
{
    if (!ctx)
        return null_context(__func__);
    if (!stream)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_stream_create: the output is NULL");
    *stream = NULL;
    BRG_ON_DEVICE(ctx);
    return brg_context_rt(ctx, ctx->device.rt->stream_create(stream, BRG_STREAM_NON_BLOCKING, 0),
                          "stream_create");
}

void brg_stream_destroy(brg_context *ctx, brg_stream stream)
{
    if (!ctx || !stream)
        return;
    BRG_ON_DEVICE(ctx);
    ctx->device.rt->stream_destroy(stream);
}

brg_status brg_stream_synchronize(brg_context *ctx, brg_stream stream)
{
    if (!ctx)
        return null_context(__func__);
    BRG_ON_DEVICE(ctx);
    brg_status status =
        brg_context_rt(ctx, ctx->device.rt->stream_synchronize(stream), "stream_synchronize");
    return status == BRG_OK ? brg_context_status(ctx) : status;
}

brg_status brg_stream_launch(brg_context *ctx, brg_stream stream, void (*fn)(void *arg), void *arg)
{
    if (!ctx)
        return null_context(__func__);
    if (!fn)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_stream_launch: the function is NULL");
    BRG_ON_DEVICE(ctx);
    brg_status status = brg_context_check(ctx);
    if (status != BRG_OK)
        return status;
    return brg_context_rt(ctx, ctx->device.rt->launch_host_func(stream, fn, arg),
                          "launch_host_func");
}

/* Spans */

brg_status brg_context_mark_begin(brg_context *ctx, brg_rec_kind kind, int flags, const char *name,
                                  brg_stream stream)
{
    if (!ctx->timeline)
        return BRG_OK;
    BRG_ON_DEVICE(ctx);
    brg_rec record = {.kind = (uint16_t)kind, .flags = (uint16_t)flags, .bucket = BRG_NO_BUCKET};
    record.aux = brg_ring_add_name(ctx->ring, name ? name : "");
    brg_timeline_open_span(ctx->timeline, &record, stream);
    return BRG_OK;
}

brg_status brg_context_mark_end(brg_context *ctx, brg_stream stream)
{
    if (!ctx->timeline)
        return BRG_OK;
    BRG_ON_DEVICE(ctx);
    if (!brg_timeline_close_span(ctx->timeline, stream))
        return brg_fail(BRG_ERR_STATE, "a span is ended on a stream on which none has begun");
    return BRG_OK;
}

brg_status brg_span_begin(brg_context *ctx, brg_span_kind kind, const char *name, brg_stream stream)
{
    if (!ctx)
        return null_context(__func__);
    if (kind < BRG_COMPUTE_FORWARD || kind > BRG_COMPUTE_OTHER)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_span_begin: unknown kind %d", (int)kind);
    return brg_context_mark_begin(ctx, BRG_REC_COMPUTE, kind, name, stream);
}

brg_status brg_span_end(brg_context *ctx, brg_stream stream)
{
    if (!ctx)
        return null_context(__func__);
    return brg_context_mark_end(ctx, stream);
}

/* Plain collectives */

typedef struct plain_call {
    enum { ALL_REDUCE, ALL_GATHER, BROADCAST } kind;
    const void *send;
    void *recv;
    size_t count;
    brg_dtype type;
    int op, root;
} plain_call;

/* Issues it on comm_stream. */
static int call_locked(brg_context *ctx, const plain_call *call)
{
    const brg_nccl *nccl = ctx->device.nccl;
    int dtype = brg_nccl_dtype(call->type), result = BRG_NCCL_INVALID_USAGE;
    void *comm = brg_context_hold_comm(ctx);
    if (comm && call->kind == ALL_REDUCE)
        result = nccl->all_reduce(call->send, call->recv, call->count, dtype, call->op, comm,
                                  ctx->comm_stream);
    else if (comm && call->kind == ALL_GATHER)
        result =
            nccl->all_gather(call->send, call->recv, call->count, dtype, comm, ctx->comm_stream);
    else if (comm)
        result = nccl->broadcast(call->send, call->recv, call->count, dtype, call->root, comm,
                                 ctx->comm_stream);
    brg_context_release_comm(ctx);
    return brg_context_count_op_locked(ctx, result);
}

/* Whether comm_stream has joined a capture, be it of a scheduler on another context. */
static bool is_captured(const brg_context *ctx)
{
    const brg_runtime *rt = ctx->device.rt;
    int capturing = 0;
    return rt->stream_is_capturing &&
           rt->stream_is_capturing(ctx->comm_stream, &capturing) == BRG_RT_OK && capturing;
}

/* `stream` -> comm_stream -> `stream`, which may be comm_stream itself. */
static brg_status relay(brg_context *ctx, const plain_call *call, brg_stream stream)
{
    const brg_runtime *rt = ctx->device.rt;
    bool hop = stream != ctx->comm_stream;
    void *done = NULL;
    brg_rec record = {.kind = BRG_REC_COLLECTIVE,
                      .func = call->kind == ALL_REDUCE ? BRG_FUNC_ALL_REDUCE : BRG_FUNC_BROADCAST,
                      .step = brg_timeline_step(ctx->timeline),
                      .bucket = BRG_NO_BUCKET,
                      .dtype = (uint8_t)call->type,
                      .bytes = call->count * brg_dtype_bytes(call->type),
                      .comm = ctx->comm_id,
                      .stream = ctx->comm_id + 1};
    BRG_ON_DEVICE(ctx);
    brg_status status = brg_context_check(ctx);
    if (status != BRG_OK)
        return status;
    pthread_mutex_lock(&ctx->issue_lock);
    if (hop)
        BRG_TRY(brg_context_follow_locked(ctx, stream, ctx->relay_event), unlock);
    int begin = brg_timeline_stamp(ctx->timeline, ctx->comm_stream);
    uint64_t issued_ns = ctx->timeline ? brg_now_ns() : 0;
    status = brg_context_nccl(ctx, call_locked(ctx, call), "collective");
    int end = brg_timeline_stamp(ctx->timeline, ctx->comm_stream);
    record.aux = issued_ns;
    brg_timeline_emit(ctx->timeline, &record, begin, end);
    if (status != BRG_OK)
        goto unlock;
    BRG_TRY(
        brg_context_rt(ctx, rt->event_record(ctx->relay_done, ctx->comm_stream), "event_record"),
        unlock);
    if (!is_captured(ctx)) /* events of a capture must not be asked for */
        brg_watch_issued(&ctx->relay_watch, ctx->num_ops, ctx->num_ops);
    done = hop ? ctx->relay_done : NULL;
unlock:
    pthread_mutex_unlock(&ctx->issue_lock);
    /* Outside of the lock: on the host's NULL stream this blocks. A later record of the same event,
     * by another thread, only makes the wait longer. */
    if (done) {
        int before = brg_timeline_stamp(ctx->timeline, stream);
        status = brg_context_rt(ctx, rt->stream_wait_event(stream, done), "stream_wait_event");
        record.kind = BRG_REC_WAIT;
        record.aux = 0;
        brg_timeline_emit(ctx->timeline, &record, before,
                          brg_timeline_stamp(ctx->timeline, stream));
    }
    return status;
}

brg_status brg_all_reduce(brg_context *ctx, const void *send, void *recv, size_t count,
                          brg_dtype dtype, brg_op op, brg_stream stream)
{
    if (!ctx)
        return null_context(__func__);
    if (!brg_dtype_bytes(dtype) || (unsigned)op > BRG_AVG || (count && (!send || !recv)))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_all_reduce: %zu elements of type %d, operator %d, buffers %p and %p",
                        count, (int)dtype, (int)op, send, recv);
    return relay(ctx,
                 &(plain_call){.kind = ALL_REDUCE,
                               .send = send,
                               .recv = recv,
                               .count = count,
                               .type = dtype,
                               .op = brg_nccl_op(op)},
                 stream);
}

brg_status brg_broadcast(brg_context *ctx, void *buffer, size_t count, brg_dtype dtype, int root,
                         brg_stream stream)
{
    if (!ctx)
        return null_context(__func__);
    if (!brg_dtype_bytes(dtype) || root < 0 || root >= ctx->world || (count && !buffer))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_broadcast: %zu elements of type %d at %p from rank %d of %d", count,
                        (int)dtype, buffer, root, ctx->world);
    return relay(ctx,
                 &(plain_call){.kind = BROADCAST,
                               .send = buffer,
                               .recv = buffer,
                               .count = count,
                               .type = dtype,
                               .root = root},
                 stream);
}

/* Small blocking exchanges, at start-up and when orders are agreed. */

static brg_status copy_sync(brg_context *ctx, void *dst, const void *src, size_t bytes, int kind)
{
    const brg_runtime *rt = ctx->device.rt;
    brg_status status;
    BRG_TRY(brg_context_rt(ctx, rt->memcpy_async(dst, src, bytes, kind, ctx->comm_stream),
                           "memcpy_async"),
            out);
    BRG_TRY(brg_context_rt(ctx, rt->stream_synchronize(ctx->comm_stream), "stream_synchronize"),
            out);
    BRG_TRY(brg_context_status(ctx), out);
out:
    return status;
}

static brg_status issue(brg_context *ctx, const plain_call *call)
{
    pthread_mutex_lock(&ctx->issue_lock);
    int result = call_locked(ctx, call);
    pthread_mutex_unlock(&ctx->issue_lock);
    return brg_context_nccl(ctx, result, call->kind == BROADCAST ? "broadcast" : "all_gather");
}

brg_status brg_context_exchange(brg_context *ctx, const uint64_t *mine, size_t count, uint64_t *all)
{
    BRG_ON_DEVICE(ctx);
    const brg_runtime *rt = ctx->device.rt;
    size_t bytes = count * sizeof *mine, world = (size_t)ctx->world;
    void *buffer = NULL;
    brg_status status;
    if (!count)
        return BRG_OK;
    BRG_TRY(brg_context_rt(ctx, rt->malloc_device(&buffer, bytes * world), "malloc_device"), out);
    char *slot = (char *)buffer + bytes * (size_t)ctx->rank;
    BRG_TRY(copy_sync(ctx, slot, mine, bytes, BRG_COPY_HOST_TO_DEVICE), out);
    BRG_TRY(issue(ctx, &(plain_call){.kind = ALL_GATHER,
                                     .send = slot,
                                     .recv = buffer,
                                     .count = count,
                                     .type = BRG_UINT64}),
            out);
    BRG_TRY(copy_sync(ctx, all, buffer, bytes * world, BRG_COPY_DEVICE_TO_HOST), out);
out:
    rt->free_device(buffer);
    return status;
}

brg_status brg_context_agree(brg_context *ctx, int *values, size_t count)
{
    BRG_ON_DEVICE(ctx);
    const brg_runtime *rt = ctx->device.rt;
    size_t bytes = count * sizeof *values;
    void *buffer = NULL;
    brg_status status;
    if (!count)
        return BRG_OK;
    BRG_TRY(brg_context_rt(ctx, rt->malloc_device(&buffer, bytes), "malloc_device"), out);
    BRG_TRY(copy_sync(ctx, buffer, values, bytes, BRG_COPY_HOST_TO_DEVICE), out);
    BRG_TRY(issue(ctx, &(plain_call){.kind = BROADCAST,
                                     .send = buffer,
                                     .recv = buffer,
                                     .count = count,
                                     .type = BRG_INT32}),
            out);
    BRG_TRY(copy_sync(ctx, values, buffer, bytes, BRG_COPY_DEVICE_TO_HOST), out);
out:
    rt->free_device(buffer);
    return status;
}

brg_status brg_barrier(brg_context *ctx)
{
    if (!ctx)
        return null_context(__func__);
    brg_status status = brg_context_check(ctx);
    if (status != BRG_OK)
        return status;
    /* A broadcast lets rank 0 go ahead; an exchange holds everybody. */
    uint64_t mine = 0, *all = calloc((size_t)ctx->world, sizeof *all);
    if (!all)
        return brg_fail(BRG_ERR_NO_MEMORY, "brg_barrier: no memory for %d ranks", ctx->world);
    status = brg_context_exchange(ctx, &mine, 1, all);
    free(all);
    return status;
}
