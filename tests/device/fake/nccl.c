/* SPDX-License-Identifier: Apache-2.0 */
/* An NCCL of one rank, which copies. Compiled with FAKE_NO_ALLTOALL and FAKE_NO_SPLIT for older
 * ones. Environment:
 *   FAKE_NCCL_VERSION  (22809)
 *   FAKE_BLOCK         the call that blocks: init, split, all_reduce; all_reduce is let go by abort
 *   FAKE_RESULT        what collectives return (0)
 * fake_calls() is a text of the names of calls so far.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char bytes[128];
} unique_id;

typedef struct { /* as far as NCCL 2.19 looks */
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

static char calls[4096];
static _Atomic int aborted;
static int tokens[2];

static int note(const char *name)
{
    if (strlen(calls) + strlen(name) + 2 < sizeof calls)
        strcat(strcat(calls, name), " ");
    return 0;
}

const char *fake_calls(void);
const char *fake_calls(void)
{
    return calls;
}

static void block(const char *call)
{
    const char *text = getenv("FAKE_BLOCK");
    while (text && strcmp(text, call) == 0 && !atomic_load(&aborted))
        usleep(1000);
}

static int result(void)
{
    const char *text = getenv("FAKE_RESULT");
    return text ? atoi(text) : 0;
}

int ncclGetVersion(int *version)
{
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text ? atoi(text) : 22809;
    return 0;
}

int ncclGetUniqueId(unique_id *id)
{
    memset(id, 7, sizeof *id);
    return 0;
}

static int init(void **comm, unique_id id, int rank, int num_ranks)
{
    if (id.bytes[127] != 7 || rank < 0 || rank >= num_ranks)
        return 4;
    block("init");
    *comm = &tokens[0];
    return 0;
}

int ncclCommInitRank(void **comm, int num_ranks, unique_id id, int rank)
{
    note("ncclCommInitRank");
    return init(comm, id, rank, num_ranks);
}

int ncclCommInitRankConfig(void **comm, int num_ranks, unique_id id, int rank, config *c)
{
    note("ncclCommInitRankConfig");
    return c->magic == 0xcafebeef && c->size >= 48 && c->version >= 21900 && c->blocking == 1
               ? init(comm, id, rank, num_ranks)
               : 4;
}

int ncclCommInitAll(void **comms, int num_devices, const int *devices)
{
    for (int i = 0; i < num_devices; i++)
        comms[i] = &tokens[0];
    return note("ncclCommInitAll");
}

int ncclCommDestroy(void *comm)
{
    return note("ncclCommDestroy");
}

int ncclCommFinalize(void *comm)
{
    return note("ncclCommFinalize");
}

int ncclCommAbort(void *comm)
{
    atomic_store(&aborted, 1);
    return note("ncclCommAbort");
}

#ifndef FAKE_NO_SPLIT
int ncclCommSplit(void *comm, int color, int key, void **child, config *c)
{
    note("ncclCommSplit");
    block("split");
    *child = color < 0 ? NULL : &tokens[1];
    return c->magic == 0xcafebeef && c->blocking == 1 ? 0 : 4;
}
#endif

int ncclCommGetAsyncError(void *comm, int *error)
{
    *error = result();
    return 0;
}

int ncclCommCount(void *comm, int *count)
{
    *count = 2;
    return 0;
}

int ncclCommUserRank(void *comm, int *rank)
{
    return *rank = 0;
}

int ncclCommCuDevice(void *comm, int *device)
{
    return *device = 0;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm,
                  void *stream)
{
    note("ncclAllReduce");
    block("all_reduce");
    return result();
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm,
                      void *stream)
{
    note("ncclReduceScatter");
    return result();
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    note("ncclAllGather");
    return result();
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm,
                  void *stream)
{
    note("ncclBroadcast");
    return result();
}

int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm,
               void *stream)
{
    note("ncclReduce");
    return result();
}

#ifndef FAKE_NO_ALLTOALL
int ncclAlltoAll(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    note("ncclAlltoAll");
    return result();
}
#endif

int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream)
{
    note(peer ? "ncclSend:1" : "ncclSend:0");
    return result();
}

int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream)
{
    note(peer ? "ncclRecv:1" : "ncclRecv:0");
    return result();
}

int ncclGroupStart(void)
{
    return note("ncclGroupStart");
}

int ncclGroupEnd(void)
{
    return note("ncclGroupEnd");
}

int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *comm)
{
    *op = 5;
    return 0;
}

int ncclRedOpDestroy(int op, void *comm)
{
    return 0;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    return note("ncclMemAlloc");
}

int ncclMemFree(void *memory)
{
    free(memory);
    return note("ncclMemFree");
}

const char *ncclGetErrorString(int error)
{
    return error == 1 ? "unhandled cuda error" : "fake NCCL error";
}

const char *ncclGetLastError(void *comm)
{
    return "transport 7 is on fire";
}
