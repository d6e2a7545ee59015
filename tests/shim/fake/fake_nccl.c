/* SPDX-License-Identifier: Apache-2.0 */
/* A libnccl.so.2 that moves no data, counts calls, and does what the shim has to live with: it
 * calls its own public functions through their names, reuses the memory of communicators at once,
 * and has non-blocking communicators. FAKE_VERSION: what it says it is. FAKE_OLD: without what came
 * after 2.19. The functions that are not here are in fake_nccl_rest.c. */
#include "tests/shim/fake/fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/interpose/nccl_api.h"

#define EXPORT __attribute__((visibility("default")))

struct ncclComm {
    int live, size, rank, blocking, ops;
};
enum { COMMS = 64, NAMES = 128 };
static struct ncclComm comms[COMMS];
static struct {
    const char *name;
    int calls;
} names[NAMES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int depth, queued, later;
static int launched;

/* The public name, through the PLT. */
ncclResult_t ncclBroadcast(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclGetUniqueId(ncclUniqueId *);

EXPORT void fake_nccl_note(const char *name)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < NAMES - 1 && names[i].name && strcmp(names[i].name, name) != 0)
        i++;
    names[i].name = name;
    names[i].calls++;
    pthread_mutex_unlock(&lock);
}

EXPORT int fake_nccl_calls(const char *name)
{
    for (int i = 0; i < NAMES && names[i].name; i++)
        if (!strcmp(names[i].name, name))
            return names[i].calls;
    return 0;
}

EXPORT int fake_nccl_launched(void)
{
    return launched;
}

/* The lowest free place: memory is reused at once. */
static ncclComm_t comm_make(int size, int rank, int blocking)
{
    pthread_mutex_lock(&lock);
    ncclComm_t made = NULL;
    for (int i = 0; i < COMMS && !made; i++)
        if (!comms[i].live)
            made = &comms[i];
    *made = (struct ncclComm){.live = 1, .size = size, .rank = rank, .blocking = blocking};
    pthread_mutex_unlock(&lock);
    return made;
}

static ncclResult_t comm_end(ncclComm_t comm)
{
    if (!comm || !comm->live)
        return ncclInvalidArgument;
    comm->live = 0;
    return ncclSuccess;
}

static ncclResult_t op(const char *name, ncclComm_t comm)
{
    const char *fails = getenv("FAKE_FAILS");
    fake_nccl_note(name);
    if (!comm || !comm->live || (fails && !strcmp(fails, name)))
        return ncclInvalidArgument;
    comm->ops++;
    if (depth) {
        queued++;
        later |= !comm->blocking;
    } else {
        __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
    }
    return comm->blocking || depth ? ncclSuccess : ncclInProgress;
}

EXPORT ncclResult_t pncclGetVersion(int *version)
{
    fake_nccl_note("ncclGetVersion");
    *version = FAKE_VERSION;
    return ncclSuccess;
}

EXPORT const char *pncclGetErrorString(ncclResult_t result)
{
    return result ? "fake error" : "no error";
}

EXPORT ncclResult_t pncclGetUniqueId(ncclUniqueId *id)
{
    fake_nccl_note("ncclGetUniqueId");
    memset(id, 7, sizeof *id);
    return ncclSuccess;
}

/* NCCL_COMM_BLOCKING aside. */
static int blocking_of(const ncclConfig_t *config, int inherited)
{
    return !config || config->blocking == INT_MIN ? inherited : config->blocking;
}

EXPORT ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                            ncclConfig_t *config)
{
    fake_nccl_note("ncclCommInitRankConfig");
    if (id.internal[0] != 7 || id.internal[127] != 7)
        return ncclInvalidArgument; /* 128 bytes by value */
    *comm = comm_make(ranks, rank, blocking_of(config, 1));
    return (*comm)->blocking ? ncclSuccess : ncclInProgress;
}

EXPORT ncclResult_t pncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    fake_nccl_note("ncclCommInitRank");
    return pncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

EXPORT ncclResult_t pncclCommInitAll(ncclComm_t *made, int count, const int *devices)
{
    ncclUniqueId id;
    fake_nccl_note("ncclCommInitAll");
    ncclGetUniqueId(&id);
    for (int i = 0; i < count; i++)
        made[i] = comm_make(count, i, 1);
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                                   ncclConfig_t *config)
{
    fake_nccl_note("ncclCommSplit");
    *child = color < 0 ? NULL : comm_make(comm->size / 2, 0, blocking_of(config, comm->blocking));
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommDestroy(ncclComm_t comm)
{
    fake_nccl_note("ncclCommDestroy");
    return comm_end(comm);
}

EXPORT ncclResult_t pncclCommAbort(ncclComm_t comm)
{
    fake_nccl_note("ncclCommAbort");
    return comm_end(comm);
}

EXPORT ncclResult_t pncclCommCount(const ncclComm_t comm, int *count)
{
    fake_nccl_note("ncclCommCount");
    *count = comm->size;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = 0;
    return ncclSuccess;
}

/* Handles of the two kinds of registration are not alike. */
EXPORT ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buffer, size_t size,
                                      void **handle)
{
    fake_nccl_note("ncclCommRegister");
    *handle = (char *)buffer + 1;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
    fake_nccl_note("ncclCommDeregister");
    return (uintptr_t)handle % 4 == 1 ? ncclSuccess : ncclInvalidArgument;
}

EXPORT ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *made, void *scalar, ncclDataType_t type,
                                              ncclScalarResidence_t residence, ncclComm_t comm)
{
    fake_nccl_note("ncclRedOpCreatePreMulSum");
    *made = ncclNumOps + 3;
    return ncclSuccess;
}

EXPORT ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream)
{
    return op("ncclAllReduce", comm);
}

EXPORT ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t count,
                                       ncclDataType_t type, ncclRedOp_t redop, ncclComm_t comm,
                                       cudaStream_t stream)
{
    return op("ncclReduceScatter", comm);
}

EXPORT ncclResult_t pncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclComm_t comm, cudaStream_t stream)
{
    return op("ncclAllGather", comm);
}

EXPORT ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   int root, ncclComm_t comm, cudaStream_t stream)
{
    return op("ncclBroadcast", comm);
}

EXPORT ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream)
{
    fake_nccl_note("ncclBcast");
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORT ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    return op("ncclSend", comm);
}

EXPORT ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    return op("ncclRecv", comm);
}

EXPORT ncclResult_t pncclGroupStart(void)
{
    fake_nccl_note("ncclGroupStart");
    depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(int launch)
{
    if (!depth)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    ncclResult_t result = later ? ncclInProgress : ncclSuccess;
    if (launch)
        __atomic_fetch_add(&launched, queued, __ATOMIC_RELAXED);
    queued = later = 0;
    return result;
}

EXPORT ncclResult_t pncclGroupEnd(void)
{
    fake_nccl_note("ncclGroupEnd");
    return group_end(1);
}

#ifndef FAKE_OLD
EXPORT ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    fake_nccl_note("ncclGroupSimulateEnd");
    return group_end(0);
}

EXPORT ncclResult_t pncclCommShrink(ncclComm_t comm, int *excluded, int num_excluded,
                                    ncclComm_t *child, ncclConfig_t *config, int flags)
{
    fake_nccl_note("ncclCommShrink");
    *child = comm_make(comm->size - num_excluded, comm->rank, comm->blocking);
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t size,
                                            ncclWindow_t *window, int flags)
{
    fake_nccl_note("ncclCommWindowRegister");
    *window = (ncclWindow_t)(void *)((char *)buffer + 2);
    return ncclSuccess;
}

EXPORT ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    fake_nccl_note("ncclCommWindowDeregister");
    return (uintptr_t)window % 4 == 2 ? ncclSuccess : ncclInvalidArgument;
}

EXPORT ncclTeam_t pncclTeamWorld(ncclComm_t comm)
{
    return (ncclTeam_t){comm->size, comm->rank, 1};
}
#endif
