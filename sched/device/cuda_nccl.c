/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL-shaped table over NCCL: errors, collectives, memory. Communicators: cuda_comm.c. */
#include "sched/device/cuda_internal.h"

#include <stdarg.h>
#include <string.h>

static _Thread_local thread_error failure;

int cuda_nccl_fail(int result, brg_status cause, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    thread_error_set(&failure, cause, format, args);
    va_end(args);
    return result;
}

int cuda_nccl_done(int result)
{
    if (!result || result == BRG_NCCL_IN_PROGRESS)
        return result;
    const char *more = cuda_nccl.ncclGetLastError ? cuda_nccl.ncclGetLastError(NULL) : NULL;
    if (result == BRG_NCCL_UNHANDLED_CUDA)
        cuda_rt.cudaGetLastError(); /* NCCL made it on our behalf */
    bool said = more && *more;
    return cuda_nccl_fail(result, BRG_OK, "%s%s%s", cuda_nccl.ncclGetErrorString(result),
                          said ? ": " : "", said ? more : "");
}

const char *cuda_nccl_text(void)
{
    return failure.text;
}

brg_status brg_cuda_last_cause(void)
{
    return failure.cause;
}

static int get_version(int *version)
{
    return cuda_nccl_done(cuda_nccl.ncclGetVersion(version));
}

static int get_unique_id(brg_unique_id *id)
{
    return cuda_nccl_done(cuda_nccl.ncclGetUniqueId(id));
}

static int comm_count(void *comm, int *count)
{
    return cuda_nccl_done(cuda_nccl.ncclCommCount(comm, count));
}

static int comm_user_rank(void *comm, int *rank)
{
    return cuda_nccl_done(cuda_nccl.ncclCommUserRank(comm, rank));
}

static int comm_device(void *comm, int *device)
{
    return cuda_nccl_done(cuda_nccl.ncclCommCuDevice(comm, device));
}

/* Collectives */

static int all_reduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclAllReduce(send, recv, count, dtype, op, comm, stream));
}

static int reduce_scatter(const void *send, void *recv, size_t recv_count, int dtype, int op,
                          void *comm, void *stream)
{
    return cuda_nccl_done(
        cuda_nccl.ncclReduceScatter(send, recv, recv_count, dtype, op, comm, stream));
}

static int all_gather(const void *send, void *recv, size_t send_count, int dtype, void *comm,
                      void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclAllGather(send, recv, send_count, dtype, comm, stream));
}

static int broadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                     void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclBroadcast(send, recv, count, dtype, root, comm, stream));
}

static int reduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
                  void *comm, void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclReduce(send, recv, count, dtype, op, root, comm, stream));
}

static int send_to(const void *send, size_t count, int dtype, int peer, void *comm, void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclSend(send, count, dtype, peer, comm, stream));
}

static int recv_from(void *recv, size_t count, int dtype, int peer, void *comm, void *stream)
{
    return cuda_nccl_done(cuda_nccl.ncclRecv(recv, count, dtype, peer, comm, stream));
}

static size_t element_bytes(int dtype)
{
    switch (dtype) {
    case BRG_NCCL_INT8:
    case BRG_NCCL_UINT8:
        return 1;
    case BRG_NCCL_FLOAT16:
    case BRG_NCCL_BFLOAT16:
        return 2;
    case BRG_NCCL_INT32:
    case BRG_NCCL_UINT32:
    case BRG_NCCL_FLOAT32:
        return 4;
    case BRG_NCCL_INT64:
    case BRG_NCCL_UINT64:
    case BRG_NCCL_FLOAT64:
        return 8;
    default:
        return 0;
    }
}

/* Before NCCL 2.28: one group of sends and receives. */
static int all_to_all_by_peers(const void *send, void *recv, size_t count, int dtype, void *comm,
                               void *stream)
{
    size_t bytes = count * element_bytes(dtype);
    int num_ranks = 0, result = comm_count(comm, &num_ranks);
    if (!result && !element_bytes(dtype))
        result = cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                                "all_to_all: unknown data type %d", dtype);
    if (result)
        return result;
    result = cuda_group_start();
    if (result)
        return result;
    for (int peer = 0; peer < num_ranks && !result; peer++) {
        result =
            send_to((const char *)send + (size_t)peer * bytes, count, dtype, peer, comm, stream);
        if (!result)
            result =
                recv_from((char *)recv + (size_t)peer * bytes, count, dtype, peer, comm, stream);
    }
    if (!result)
        return cuda_group_end();
    char text[THREAD_ERROR_BYTES]; /* ending the group may fail with a poorer text */
    memcpy(text, failure.text, sizeof text);
    cuda_group_end();
    return cuda_nccl_fail(result, BRG_OK, "%s", text);
}

static int all_to_all(const void *send, void *recv, size_t count, int dtype, void *comm,
                      void *stream)
{
    if (!cuda_nccl.ncclAlltoAll)
        return all_to_all_by_peers(send, recv, count, dtype, comm, stream);
    return cuda_nccl_done(cuda_nccl.ncclAlltoAll(send, recv, count, dtype, comm, stream));
}

static int redop_create(int *op, const void *scalar, int dtype, int residence, void *comm)
{
    return cuda_nccl_done(
        cuda_nccl.ncclRedOpCreatePreMulSum(op, (void *)scalar, dtype, residence, comm));
}

static int redop_destroy(int op, void *comm)
{
    return cuda_nccl_done(cuda_nccl.ncclRedOpDestroy(op, comm));
}

/* Memory */

static int mem_alloc(void **memory, size_t bytes)
{
    if (!memory)
        return cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                              "mem_alloc: memory is NULL");
    *memory = NULL;
    if (cuda_buffers_are_nccl)
        return cuda_nccl_done(cuda_nccl.ncclMemAlloc(memory, bytes));
    const brg_runtime *rt = brg_cuda_runtime();
    int error = rt->malloc_device(memory, bytes);
    if (!error)
        return BRG_NCCL_OK;
    return cuda_nccl_fail(BRG_NCCL_UNHANDLED_CUDA,
                          error == BRG_RT_NO_MEMORY ? BRG_ERR_NO_MEMORY : BRG_ERR_DEVICE,
                          "mem_alloc of %zu bytes: %s", bytes, rt->error_string(error));
}

static int mem_free(void *memory)
{
    if (!memory)
        return BRG_NCCL_OK;
    if (cuda_buffers_are_nccl)
        return cuda_nccl_done(cuda_nccl.ncclMemFree(memory));
    const brg_runtime *rt = brg_cuda_runtime();
    int error = rt->free_device(memory);
    return error ? cuda_nccl_fail(BRG_NCCL_UNHANDLED_CUDA, BRG_ERR_DEVICE, "mem_free: %s",
                                  rt->error_string(error))
                 : BRG_NCCL_OK;
}

static const char *error_string(int result)
{
    return cuda_nccl.ncclGetErrorString(result);
}

static const char *last_error(void *comm)
{
    return failure.text; /* NCCL keeps one text for all communicators and threads */
}

const brg_nccl *brg_cuda_nccl(void)
{
    static const brg_nccl table = {
        .get_version = get_version,
        .get_unique_id = get_unique_id,
        .comm_init_rank = cuda_comm_init_rank,
        .comm_init_all = cuda_comm_init_all,
        .comm_split = cuda_comm_split,
        .comm_finalize = cuda_comm_finalize,
        .comm_destroy = cuda_comm_destroy,
        .comm_abort = cuda_comm_abort,
        .comm_get_async_error = cuda_comm_get_async_error,
        .comm_count = comm_count,
        .comm_user_rank = comm_user_rank,
        .comm_device = comm_device,
        .all_reduce = all_reduce,
        .reduce_scatter = reduce_scatter,
        .all_gather = all_gather,
        .broadcast = broadcast,
        .reduce = reduce,
        .all_to_all = all_to_all,
        .send = send_to,
        .recv = recv_from,
        .group_start = cuda_group_start,
        .group_end = cuda_group_end,
        .redop_create_premul_sum = redop_create,
        .redop_destroy = redop_destroy,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .error_string = error_string,
        .last_error = last_error,
    };
    return &table;
}
