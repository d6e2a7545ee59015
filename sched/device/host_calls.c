/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the NCCL-shaped table that moves data: arguments are checked here, on the caller's
 * thread, and the call goes to its stream or its group. */
#include "sched/device/host_comm_api.h"
#include "sched/device/host_group.h"

#include <stdlib.h>
#include <string.h>

static int invalid(const char *what, const char *why)
{
    return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT, "%s: %s", what, why);
}

/* Replaces the number of a user's operator by its meaning. */
static int resolve_op(host_comm *c, host_call *call, const char *what)
{
    int index = call->op - BRG_NCCL_NUM_OPS;
    if (index < 0)
        return call->op < 0 ? host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                                        "%s: unknown operator %d", what, call->op)
                            : BRG_NCCL_OK;
    int result = BRG_NCCL_OK;
    pthread_mutex_lock(&c->lock);
    const host_redop *redop = index < c->num_redops ? &c->redops[index] : NULL;
    if (!redop || !redop->used)
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           "%s: unknown operator %d", what, call->op);
    else if (redop->dtype != call->dtype)
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           "%s of %s: operator %d was made for %s", what,
                           host_dtype_text(call->dtype), call->op, host_dtype_text(redop->dtype));
    if (!result) {
        call->op = HOST_OP_PREMUL_SUM;
        memcpy(call->scalar, redop->scalar, sizeof call->scalar);
        call->scalar_pointer = redop->pointer;
    }
    pthread_mutex_unlock(&c->lock);
    return result;
}

static bool overlap(const void *a, const void *b, size_t bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return bytes && (x < y ? y - x : x - y) < bytes;
}

static int check_call(host_comm *c, const host_call *call, const char *what)
{
    size_t elem_bytes = host_dtype_bytes(call->dtype), n = (size_t)c->num_ranks;
    if (!elem_bytes)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: unknown element type %d", what, call->dtype);
    if (call->count > SIZE_MAX / 2 / n / elem_bytes)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: %zu %s are more than memory can hold", what, call->count,
                         host_dtype_text(call->dtype));
    bool has_root = call->kind == HOST_BROADCAST || call->kind == HOST_REDUCE;
    bool is_p2p = call->kind == HOST_SEND || call->kind == HOST_RECV;
    if ((has_root || is_p2p) && (call->peer < 0 || call->peer >= c->num_ranks))
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: there is no rank %d among %d ranks", what, call->peer, c->num_ranks);
    if (!call->count)
        return BRG_NCCL_OK;
    bool sends =
        call->kind != HOST_RECV && !(call->kind == HOST_BROADCAST && call->peer != c->rank);
    bool receives =
        call->kind != HOST_SEND && !(call->kind == HOST_REDUCE && call->peer != c->rank);
    if (sends && !call->send)
        return invalid(what, "the send buffer is NULL");
    if (receives && !call->recv)
        return invalid(what, "the receive buffer is NULL");
    if (call->kind == HOST_ALL_TO_ALL &&
        overlap(call->send, call->recv, call->count * elem_bytes * n))
        return invalid(what, "send and receive buffer overlap");
    if ((sends && (uintptr_t)call->send % elem_bytes) ||
        (receives && (uintptr_t)call->recv % elem_bytes))
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s of %s: a buffer is not aligned to %zu bytes", what,
                         host_dtype_text(call->dtype), elem_bytes);
    return BRG_NCCL_OK;
}

static int submit(host_call *call, void *comm, void *stream, const char *what)
{
    int result = host_comm_check(comm, what);
    if (!result)
        result = check_call(comm, call, what);
    if (!result && !host_stream_valid(stream))
        result = invalid(what, "the stream belongs to the process that this one was forked from");
    if (!result)
        result = resolve_op(comm, call, what);
    if (!result)
        result = host_group_call(call, comm, stream);
    return result ? host_group_error(result) : BRG_NCCL_OK;
}

static int all_reduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      void *stream)
{
    host_call call = {.kind = HOST_ALL_REDUCE,
                      .dtype = dtype,
                      .op = op,
                      .peer = -1,
                      .count = count,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "all-reduce");
}

static int reduce_scatter(const void *send, void *recv, size_t recv_count, int dtype, int op,
                          void *comm, void *stream)
{
    host_call call = {.kind = HOST_REDUCE_SCATTER,
                      .dtype = dtype,
                      .op = op,
                      .peer = -1,
                      .count = recv_count,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "reduce-scatter");
}

static int all_gather(const void *send, void *recv, size_t send_count, int dtype, void *comm,
                      void *stream)
{
    host_call call = {.kind = HOST_ALL_GATHER,
                      .dtype = dtype,
                      .peer = -1,
                      .count = send_count,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "all-gather");
}

static int broadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                     void *stream)
{
    host_call call = {.kind = HOST_BROADCAST,
                      .dtype = dtype,
                      .peer = root,
                      .count = count,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "broadcast");
}

static int reduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
                  void *comm, void *stream)
{
    host_call call = {.kind = HOST_REDUCE,
                      .dtype = dtype,
                      .op = op,
                      .peer = root,
                      .count = count,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "reduce");
}

static int all_to_all(const void *send, void *recv, size_t count_per_rank, int dtype, void *comm,
                      void *stream)
{
    host_call call = {.kind = HOST_ALL_TO_ALL,
                      .dtype = dtype,
                      .peer = -1,
                      .count = count_per_rank,
                      .send = send,
                      .recv = recv};
    return submit(&call, comm, stream, "all-to-all");
}

static int send_to(const void *send, size_t count, int dtype, int peer, void *comm, void *stream)
{
    host_call call = {
        .kind = HOST_SEND, .dtype = dtype, .peer = peer, .count = count, .send = send};
    return submit(&call, comm, stream, "send");
}

static int recv_from(void *recv, size_t count, int dtype, int peer, void *comm, void *stream)
{
    host_call call = {
        .kind = HOST_RECV, .dtype = dtype, .peer = peer, .count = count, .recv = recv};
    return submit(&call, comm, stream, "receive");
}

static int redop_create_premul_sum(int *op, const void *scalar, int dtype, int residence,
                                   void *comm)
{
    static const char what[] = "redop_create_premul_sum";
    int result = host_comm_check(comm, what);
    if (result)
        return result;
    host_comm *c = comm;
    if (!op || !scalar)
        return invalid(what, op ? "the scalar is NULL" : "op is NULL");
    if (!host_dtype_bytes(dtype))
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: unknown element type %d", what, dtype);
    if (residence != BRG_NCCL_SCALAR_DEVICE && residence != BRG_NCCL_SCALAR_HOST_IMMEDIATE)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: unknown scalar residence %d", what, residence);
    pthread_mutex_lock(&c->lock);
    int index = 0;
    while (index < c->num_redops && c->redops[index].used)
        index++;
    if (index == c->num_redops) {
        int room = c->num_redops ? 2 * c->num_redops : 8;
        host_redop *grown = realloc(c->redops, (size_t)room * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&c->lock);
            return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
        }
        memset(grown + c->num_redops, 0, (size_t)(room - c->num_redops) * sizeof *grown);
        c->redops = grown;
        c->num_redops = room;
    }
    host_redop *redop = &c->redops[index];
    *redop = (host_redop){.used = true, .dtype = dtype};
    if (residence == BRG_NCCL_SCALAR_DEVICE)
        redop->pointer = scalar;
    else
        memcpy(redop->scalar, scalar, host_dtype_bytes(dtype));
    pthread_mutex_unlock(&c->lock);
    *op = BRG_NCCL_NUM_OPS + index;
    return BRG_NCCL_OK;
}

static int redop_destroy(int op, void *comm)
{
    int result = host_comm_check(comm, "redop_destroy");
    if (result)
        return result;
    host_comm *c = comm;
    int index = op - BRG_NCCL_NUM_OPS;
    pthread_mutex_lock(&c->lock);
    if (index >= 0 && index < c->num_redops && c->redops[index].used)
        c->redops[index].used = false;
    else
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           "redop_destroy: %d is no operator of this communicator", op);
    pthread_mutex_unlock(&c->lock);
    return result;
}

static int from_runtime(int error, const char *what, size_t bytes)
{
    if (!error)
        return BRG_NCCL_OK;
    return host_fail(error == BRG_RT_INVALID_VALUE ? BRG_NCCL_INVALID_ARGUMENT
                                                   : BRG_NCCL_UNHANDLED_CUDA,
                     error == BRG_RT_INVALID_VALUE ? BRG_ERR_INVALID_ARGUMENT : BRG_ERR_NO_MEMORY,
                     "%s: %s (%zu bytes)", what,
                     error == BRG_RT_INVALID_VALUE ? "invalid address" : "out of memory", bytes);
}

static int mem_alloc(void **memory, size_t bytes)
{
    return from_runtime(host_malloc_device(memory, bytes), "mem_alloc", bytes);
}

static int mem_free(void *memory)
{
    return from_runtime(host_free_device(memory), "mem_free", 0);
}

const brg_nccl *brg_host_nccl(void)
{
    static const brg_nccl table = {
        .get_version = host_get_version,
        .get_unique_id = host_get_unique_id,
        .comm_init_rank = host_comm_init_rank,
        .comm_init_all = host_comm_init_all,
        .comm_split = host_comm_split,
        .comm_finalize = host_comm_finalize,
        .comm_destroy = host_comm_destroy,
        .comm_abort = host_comm_abort,
        .comm_get_async_error = host_comm_get_async_error,
        .comm_num_done = host_comm_num_done,
        .comm_count = host_comm_count,
        .comm_user_rank = host_comm_user_rank,
        .comm_device = host_comm_device,
        .all_reduce = all_reduce,
        .reduce_scatter = reduce_scatter,
        .all_gather = all_gather,
        .broadcast = broadcast,
        .reduce = reduce,
        .all_to_all = all_to_all,
        .send = send_to,
        .recv = recv_from,
        .group_start = host_group_start,
        .group_end = host_group_end,
        .redop_create_premul_sum = redop_create_premul_sum,
        .redop_destroy = redop_destroy,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .error_string = host_nccl_error_string,
        .last_error = host_last_error,
    };
    return &table;
}
