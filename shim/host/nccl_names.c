/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's names over the host engine.
 *
 * Communicators are always blocking, whatever ncclConfig_t says: that is allowed, since a call on a
 * non-blocking communicator may be done at once. What the host engine has no counterpart of
 * (windows, shrinking, revoking) is ncclInvalidUsage; registration is an accepted no-op. */
#include <nccl.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "sched/device/device.h"
#include "shim/host/host_names.h"

#define PASTE(a, b) a##b
/* Defines name() and its second name pname(). */
#define FUNCTION(name, params, args, body)                                                         \
    BRG_HOST_NAME ncclResult_t PASTE(p, name) params{body} BRG_NCCL_NAME ncclResult_t name params  \
    {                                                                                              \
        return PASTE(p, name) args;                                                                \
    }

_Static_assert(sizeof(ncclUniqueId) == sizeof(brg_unique_id), "unique ids have one size");

static const brg_nccl *table(void)
{
    return brg_host_nccl();
}

static _Thread_local char own_error[160];

static ncclResult_t done(int result)
{
    own_error[0] = 0;
    return (ncclResult_t)result;
}

static ncclResult_t refuse(const char *what)
{
    snprintf(own_error, sizeof own_error, "%s is not available on the host engine", what);
    return ncclInvalidUsage;
}

/* clang-format off */
FUNCTION(ncclMemAlloc, (void **memory, size_t bytes), (memory, bytes),
         { return done(table()->mem_alloc(memory, bytes)); })
FUNCTION(ncclMemFree, (void *memory), (memory), { return done(table()->mem_free(memory)); })
FUNCTION(ncclGetVersion, (int *version), (version), { return done(table()->get_version(version)); })
FUNCTION(ncclGetUniqueId, (ncclUniqueId *id), (id), {
    brg_unique_id made;
    if (!id)
        return done(ncclInvalidArgument);
    int result = table()->get_unique_id(&made);
    memcpy(id, &made, sizeof made);
    return done(result);
})

/* Communicators */

FUNCTION(ncclCommInitRank, (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank),
         (comm, nranks, id, rank), {
    void *made = NULL;
    brg_unique_id own;
    if (!comm)
        return done(ncclInvalidArgument);
    memcpy(&own, &id, sizeof own);
    int result = table()->comm_init_rank(&made, nranks, own, rank);
    *comm = made;
    return done(result);
})
FUNCTION(ncclCommInitRankConfig,
         (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config),
         (comm, nranks, id, rank, config),
         { return pncclCommInitRank(comm, nranks, id, rank); })
FUNCTION(ncclCommInitRankScalable,
         (ncclComm_t *comm, int nranks, int rank, int num_ids, ncclUniqueId *ids,
          ncclConfig_t *config),
         (comm, nranks, rank, num_ids, ids, config), {
    if (num_ids < 1 || !ids)
        return done(ncclInvalidArgument);
    return pncclCommInitRank(comm, nranks, ids[0], rank);
})
FUNCTION(ncclCommInitAll, (ncclComm_t *comms, int count, const int *devices),
         (comms, count, devices), {
    return done(table()->comm_init_all((void **)comms, count, devices));
})
FUNCTION(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *child,
                         ncclConfig_t *config),
         (comm, color, key, child, config), {
    void *made = NULL;
    if (!child)
        return done(ncclInvalidArgument);
    int result = table()->comm_split(comm, color, key, &made);
    *child = made;
    return done(result);
})
FUNCTION(ncclCommShrink,
         (ncclComm_t comm, int *excluded, int num_excluded, ncclComm_t *child, ncclConfig_t *config,
          int flags),
         (comm, excluded, num_excluded, child, config, flags), { return refuse("ncclCommShrink"); })
FUNCTION(ncclCommFinalize, (ncclComm_t comm), (comm), { return done(table()->comm_finalize(comm)); })
FUNCTION(ncclCommDestroy, (ncclComm_t comm), (comm), { return done(table()->comm_destroy(comm)); })
FUNCTION(ncclCommAbort, (ncclComm_t comm), (comm), { return done(table()->comm_abort(comm)); })
FUNCTION(ncclCommRevoke, (ncclComm_t comm, int flags), (comm, flags),
         { return refuse("ncclCommRevoke"); })
FUNCTION(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), (comm, error), {
    int found = 0;
    int result = table()->comm_get_async_error(comm, &found);
    if (!error)
        return done(ncclInvalidArgument);
    *error = (ncclResult_t)found;
    return done(result);
})
FUNCTION(ncclCommCount, (const ncclComm_t comm, int *count), (comm, count),
         { return done(table()->comm_count(comm, count)); })
FUNCTION(ncclCommCuDevice, (const ncclComm_t comm, int *device), (comm, device),
         { return done(table()->comm_device(comm, device)); })
FUNCTION(ncclCommUserRank, (const ncclComm_t comm, int *rank), (comm, rank),
         { return done(table()->comm_user_rank(comm, rank)); })
FUNCTION(ncclCommRegister, (const ncclComm_t comm, void *buffer, size_t bytes, void **handle),
         (comm, buffer, bytes, handle), {
    if (!comm || !handle)
        return done(ncclInvalidArgument);
    *handle = buffer;
    return done(ncclSuccess);
})
FUNCTION(ncclCommDeregister, (const ncclComm_t comm, void *handle), (comm, handle),
         { return done(comm ? ncclSuccess : ncclInvalidArgument); })
FUNCTION(ncclCommWindowRegister,
         (ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags),
         (comm, buffer, bytes, window, flags), { return refuse("ncclCommWindowRegister"); })
FUNCTION(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window),
         { return refuse("ncclCommWindowDeregister"); })

/* Operators */

FUNCTION(ncclRedOpCreatePreMulSum,
         (ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,
          ncclComm_t comm),
         (op, scalar, type, residence, comm), {
    int made = 0;
    if (!op)
        return done(ncclInvalidArgument);
    int result = table()->redop_create_premul_sum(&made, scalar, (int)type, (int)residence, comm);
    *op = (ncclRedOp_t)made;
    return done(result);
})
FUNCTION(ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm),
         { return done(table()->redop_destroy((int)op, comm)); })

/* Data */

FUNCTION(ncclReduce,
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
          ncclComm_t comm, cudaStream_t stream),
         (send, recv, count, type, op, root, comm, stream), {
    return done(table()->reduce(send, recv, count, (int)type, (int)op, root, comm, stream));
})
FUNCTION(ncclBcast,
         (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (buffer, count, type, root, comm, stream), {
    return done(table()->broadcast(buffer, buffer, count, (int)type, root, comm, stream));
})
FUNCTION(ncclBroadcast,
         (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (send, recv, count, type, root, comm, stream),
         { return done(table()->broadcast(send, recv, count, (int)type, root, comm, stream)); })
FUNCTION(ncclAllReduce,
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
          ncclComm_t comm, cudaStream_t stream),
         (send, recv, count, type, op, comm, stream),
         { return done(table()->all_reduce(send, recv, count, (int)type, (int)op, comm, stream)); })
FUNCTION(ncclReduceScatter,
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
          ncclComm_t comm, cudaStream_t stream),
         (send, recv, count, type, op, comm, stream), {
    return done(table()->reduce_scatter(send, recv, count, (int)type, (int)op, comm, stream));
})
FUNCTION(ncclAllGather,
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
          cudaStream_t stream),
         (send, recv, count, type, comm, stream),
         { return done(table()->all_gather(send, recv, count, (int)type, comm, stream)); })
FUNCTION(ncclAlltoAll,
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
          cudaStream_t stream),
         (send, recv, count, type, comm, stream),
         { return done(table()->all_to_all(send, recv, count, (int)type, comm, stream)); })
FUNCTION(ncclSend,
         (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream),
         (send, count, type, peer, comm, stream),
         { return done(table()->send(send, count, (int)type, peer, comm, stream)); })
FUNCTION(ncclRecv,
         (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
          cudaStream_t stream),
         (recv, count, type, peer, comm, stream),
         { return done(table()->recv(recv, count, (int)type, peer, comm, stream)); })
/* clang-format on */

/* Bytes of one element; 0: unknown. */
static size_t type_bytes(ncclDataType_t type)
{
    static const unsigned char bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < ncclNumTypes ? bytes[type] : 0;
}

/* Gather and scatter are grouped sends and receives; the root's own part is one of them. */
static int rooted(bool gather, const void *send, void *recv, size_t count, ncclDataType_t type,
                  int root, ncclComm_t comm, cudaStream_t stream)
{
    int rank = 0, ranks = 0, ended;
    size_t bytes = count * type_bytes(type);
    int result = table()->comm_user_rank(comm, &rank);
    if (!result)
        result = table()->comm_count(comm, &ranks);
    if (!result && (root < 0 || root >= ranks || !type_bytes(type)))
        result = ncclInvalidArgument;
    if (result)
        return result;
    table()->group_start();
    if (gather)
        result = table()->send(send, count, (int)type, root, comm, stream);
    else
        result = table()->recv(recv, count, (int)type, root, comm, stream);
    for (int peer = 0; rank == root && peer < ranks && !result; peer++) {
        size_t offset = (size_t)peer * bytes;
        if (gather)
            result = table()->recv((char *)recv + offset, count, (int)type, peer, comm, stream);
        else
            result =
                table()->send((const char *)send + offset, count, (int)type, peer, comm, stream);
    }
    ended = table()->group_end();
    return result ? result : ended;
}

/* clang-format off */
FUNCTION(ncclGather,
         (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (send, recv, count, type, root, comm, stream),
         { return done(rooted(true, send, recv, count, type, root, comm, stream)); })
FUNCTION(ncclScatter,
         (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
          cudaStream_t stream),
         (send, recv, count, type, root, comm, stream),
         { return done(rooted(false, send, recv, count, type, root, comm, stream)); })
FUNCTION(ncclGroupStart, (void), (), { return done(table()->group_start()); })
FUNCTION(ncclGroupEnd, (void), (), { return done(table()->group_end()); })
FUNCTION(ncclGroupSimulateEnd, (ncclSimInfo_t * info), (info),
         { return refuse("ncclGroupSimulateEnd"); })
/* clang-format on */

/* Errors */

BRG_HOST_NAME const char *pncclGetErrorString(ncclResult_t result)
{
    return table()->error_string((int)result);
}

BRG_NCCL_NAME const char *ncclGetErrorString(ncclResult_t result)
{
    return pncclGetErrorString(result);
}

BRG_HOST_NAME const char *pncclGetLastError(ncclComm_t comm)
{
    return own_error[0] ? own_error : table()->last_error(comm);
}

BRG_NCCL_NAME const char *ncclGetLastError(ncclComm_t comm)
{
    return pncclGetLastError(comm);
}
