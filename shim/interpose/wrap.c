/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators and groups. */
#include <stdlib.h>

#include "shim/interpose/internal.h"
#include "shim/interpose/wrap.h"

enum { NCCL_MAGIC = 0xcafebeef }; /* of a ncclConfig_t that was initialised */

#define CALL(name, ...)                                                                            \
    ({                                                                                             \
        shim_inside++;                                                                             \
        ncclResult_t outcome_ = route.real->fn.name(__VA_ARGS__);                                  \
        shim_inside--;                                                                             \
        outcome_;                                                                                  \
    })

/* NCCL_COMM_BLOCKING overrides what the program asks for, as in NCCL. */
static bool is_blocking(const ncclConfig_t *config, bool inherited)
{
    const char *forced = getenv("NCCL_COMM_BLOCKING");
    if (forced && (forced[0] == '0' || forced[0] == '1') && !forced[1])
        return forced[0] == '1';
    if (!config || config->size < sizeof *config || config->magic != NCCL_MAGIC ||
        config->blocking == INT_MIN)
        return inherited;
    return config->blocking != 0;
}

static bool worked(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

/* A communicator from unique ids. */
static void made(const shim_real *real, ncclComm_t *comm, int ranks, int rank, uint64_t hash,
                 const ncclConfig_t *config, ncclResult_t result)
{
    if (!worked(result) || !*comm || !shim_open(rank, ranks))
        return;
    shim_comm info = {.size = ranks,
                      .rank = rank,
                      .device = -1,
                      .hash = hash,
                      .how = "init",
                      .blocking = result != ncclInProgress && is_blocking(config, true)};
    shim_comm_add(real, *comm, &info, info.blocking && !shim_group_depth(real));
}

/* A communicator from another. `mark` tells the children of one parent apart, and is the same on
 * all of a child's ranks. */
static void derived(const shim_real *real, ncclComm_t parent, ncclComm_t *child, const char *how,
                    uint64_t mark, const ncclConfig_t *config, ncclResult_t result)
{
    shim_comm *from = parent && shim_on() ? shim_comm_of(real, parent) : NULL;
    uint64_t turn = from ? atomic_fetch_add_explicit(&from->children, 1, memory_order_relaxed) : 0;
    if (!worked(result) || !child || !*child || !shim_open(0, 1))
        return;
    const uint64_t words[] = {from ? from->hash : 0, turn, mark};
    shim_comm info = {.size = -1,
                      .rank = -1,
                      .device = from ? from->device : -1,
                      .hash = from && from->hash ? shim_hash(0, words, sizeof words) : 0,
                      .parent = from ? from->id : 0,
                      .how = how,
                      .blocking =
                          result != ncclInProgress && is_blocking(config, !from || from->blocking)};
    shim_comm_add(real, *child, &info, info.blocking && !shim_group_depth(real));
}

SHIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    SHIM_ENTER(ncclCommInitRank);
    ncclResult_t result = CALL(ncclCommInitRank, comm, ranks, id, rank);
    if (!SHIM_QUIET() && comm)
        made(route.real, comm, ranks, rank, shim_hash(0, &id, sizeof id), NULL, result);
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id,
                                                int rank, ncclConfig_t *config)
{
    SHIM_ENTER(ncclCommInitRankConfig);
    ncclResult_t result = CALL(ncclCommInitRankConfig, comm, ranks, id, rank, config);
    if (!SHIM_QUIET() && comm)
        made(route.real, comm, ranks, rank, shim_hash(0, &id, sizeof id), config, result);
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank,
                                                  int num_ids, ncclUniqueId *ids,
                                                  ncclConfig_t *config)
{
    SHIM_ENTER(ncclCommInitRankScalable);
    ncclResult_t result = CALL(ncclCommInitRankScalable, comm, ranks, rank, num_ids, ids, config);
    if (!SHIM_QUIET() && comm && worked(result))
        made(route.real, comm, ranks, rank, shim_hash(0, ids, (size_t)num_ids * sizeof *ids),
             config, result);
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    SHIM_ENTER(ncclCommInitAll);
    ncclResult_t result = CALL(ncclCommInitAll, comms, count, devices);
    if (SHIM_QUIET() || !worked(result))
        return result;
    /* All ranks are here: the first handle and the time tell this clique from any other. */
    const uint64_t unique[] = {(uint64_t)(uintptr_t)comms[0], brg_now_ns()};
    for (int i = 0; i < count; i++) {
        if (!comms[i] || !shim_open(0, 1))
            continue;
        shim_comm info = {.size = count,
                          .rank = i,
                          .device = devices ? devices[i] : i,
                          .hash = shim_hash(0, unique, sizeof unique),
                          .how = "init",
                          .blocking = is_blocking(NULL, true)};
        shim_comm_add(route.real, comms[i], &info, true);
    }
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                                       ncclConfig_t *config)
{
    SHIM_ENTER(ncclCommSplit);
    ncclResult_t result = CALL(ncclCommSplit, comm, color, key, child, config);
    if (!SHIM_QUIET())
        derived(route.real, comm, child, "split", (uint32_t)color, config, result);
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int num_excluded,
                                        ncclComm_t *child, ncclConfig_t *config, int flags)
{
    SHIM_ENTER(ncclCommShrink);
    uint64_t mark = shim_hash(
        1, excluded, excluded && num_excluded > 0 ? (size_t)num_excluded * sizeof *excluded : 0);
    ncclResult_t result = CALL(ncclCommShrink, comm, excluded, num_excluded, child, config, flags);
    if (!SHIM_QUIET())
        derived(route.real, comm, child, "shrink", mark, config, result);
    return result;
}

/* New ranks have no parent: what the old ranks know they cannot know, so there is no hash. */
SHIM_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank,
                                      ncclComm_t *child, ncclConfig_t *config)
{
    SHIM_ENTER(ncclCommGrow);
    ncclResult_t result = CALL(ncclCommGrow, comm, ranks, id, rank, child, config);
    if (SHIM_QUIET() || !worked(result) || !child || !*child || !shim_open(0, 1))
        return result;
    shim_comm *from = comm ? shim_comm_of(route.real, comm) : NULL;
    shim_comm info = {.size = ranks,
                      .rank = rank,
                      .device = from ? from->device : -1,
                      .parent = from ? from->id : 0,
                      .how = "grow",
                      .blocking =
                          result != ncclInProgress && is_blocking(config, !from || from->blocking)};
    shim_comm_add(route.real, *child, &info, info.blocking && !shim_group_depth(route.real));
    return result;
}

SHIM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    SHIM_ENTER(ncclCommFinalize);
    ncclResult_t result = CALL(ncclCommFinalize, comm);
    if (!SHIM_QUIET())
        shim_timing_harvest();
    return result;
}

/* Before the call: afterwards the pointer may already mean another communicator, made by another
 * thread. */
SHIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    SHIM_ENTER(ncclCommDestroy);
    if (!SHIM_QUIET()) {
        shim_comm_retire(comm, "destroy");
        shim_timing_harvest();
    }
    return CALL(ncclCommDestroy, comm);
}

SHIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    SHIM_ENTER(ncclCommAbort);
    if (!SHIM_QUIET())
        shim_comm_retire(comm, "abort");
    return CALL(ncclCommAbort, comm);
}

SHIM_EXPORT ncclResult_t ncclGroupStart(void)
{
    SHIM_ENTER(ncclGroupStart);
    ncclResult_t result = CALL(ncclGroupStart);
    if (!SHIM_QUIET() && result == ncclSuccess)
        shim_group_started(route.real);
    return result;
}

SHIM_EXPORT ncclResult_t ncclGroupEnd(void)
{
    SHIM_ENTER(ncclGroupEnd);
    if (SHIM_QUIET())
        return CALL(ncclGroupEnd);
    shim_group_end_begin(route.real);
    ncclResult_t result = CALL(ncclGroupEnd);
    shim_group_end(route.real, result);
    return result;
}

SHIM_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    SHIM_ENTER(ncclGroupSimulateEnd);
    ncclResult_t result = CALL(ncclGroupSimulateEnd, info);
    if (!SHIM_QUIET())
        shim_group_simulated(route.real);
    return result;
}
