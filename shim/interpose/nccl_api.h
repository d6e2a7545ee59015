/* SPDX-License-Identifier: Apache-2.0 */
/* Every function that an NCCL from 2.19 to 2.30 exports, in declarations of our own, so that
 * building needs no header of NVIDIA's. tests/shim checks them against nccl.h where there is one.
 *
 * A list has one line per function, F(kind, result, name, parameters, arguments, operation):
 *   DATA     moves data on a stream; operation = (func, address, count, per_rank, datatype, op,
 *            comm, stream), per_rank: count is what one rank contributes; op -1: none
 *   OWN      wrapped by hand (wrap.c): communicators and groups
 *   FORWARD  nothing to see
 *   TEXT, VALUE, NOTHING   the same, returning a string, a plain value, nothing
 */
#ifndef BRIGADE_SHIM_INTERPOSE_NCCL_API_H
#define BRIGADE_SHIM_INTERPOSE_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifndef NCCL_MAJOR /* nccl.h is not included */
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

/* The beginning that ncclConfig_t has had since 2.14. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;

typedef struct ncclSimInfo ncclSimInfo_t;
typedef enum { ncclSum = 0, ncclAvg = 4, ncclNumOps = 5, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;
typedef enum { ncclInt8 = 0, ncclFloat32 = 7, ncclNumTypes = 12 } ncclDataType_t;
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;
#endif

/* nccl_device.h */
#ifndef _NCCL_DEVICE_CORE_H_
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;
typedef struct ncclTeam {
    int nRanks, rank, stride;
} ncclTeam_t;
#endif

#if !defined NCCL_MAJOR || NCCL_VERSION_CODE < 22900
typedef struct ncclCommProperties ncclCommProperties_t;
typedef struct {
    void *base;
} brg_multimem_handle; /* ncclMultimemHandle_t */
typedef enum { ncclStatGpuMemSuspend = 0, ncclStatGpuMemTotal = 3 } ncclCommMemStat_t;
typedef struct ncclWaitSignalDesc ncclWaitSignalDesc_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
#else
typedef ncclMultimemHandle_t brg_multimem_handle;
#endif

/* clang-format off */
#define BRG_NCCL_2_19(F)                                                                           \
    F(FORWARD, ncclResult_t, ncclMemAlloc, (void **ptr, size_t size), (ptr, size), ())             \
    F(FORWARD, ncclResult_t, ncclMemFree, (void *ptr), (ptr), ())                                  \
    F(FORWARD, ncclResult_t, ncclGetVersion, (int *version), (version), ())                        \
    F(FORWARD, ncclResult_t, ncclGetUniqueId, (ncclUniqueId *id), (id), ())                        \
    F(TEXT, const char *, ncclGetErrorString, (ncclResult_t result), (result), ())                 \
    F(TEXT, const char *, ncclGetLastError, (ncclComm_t comm), (comm), ())                         \
    F(OWN, ncclResult_t, ncclCommInitRank,                                                         \
      (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank), (comm, ranks, id, rank), ())       \
    F(OWN, ncclResult_t, ncclCommInitRankConfig,                                                   \
      (ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config),              \
      (comm, ranks, id, rank, config), ())                                                         \
    F(OWN, ncclResult_t, ncclCommInitAll, (ncclComm_t *comms, int count, const int *devices),      \
      (comms, count, devices), ())                                                                 \
    F(OWN, ncclResult_t, ncclCommSplit,                                                            \
      (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config),              \
      (comm, color, key, child, config), ())                                                       \
    F(OWN, ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm), ())                          \
    F(OWN, ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm), ())                           \
    F(OWN, ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm), ())                             \
    F(FORWARD, ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error),        \
      (comm, error), ())                                                                           \
    F(FORWARD, ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count), (comm, count),    \
      ())                                                                                          \
    F(FORWARD, ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device),               \
      (comm, device), ())                                                                          \
    F(FORWARD, ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank), (comm, rank),   \
      ())                                                                                          \
    F(FORWARD, ncclResult_t, ncclCommRegister,                                                     \
      (const ncclComm_t comm, void *buffer, size_t size, void **handle),                           \
      (comm, buffer, size, handle), ())                                                            \
    F(FORWARD, ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle),            \
      (comm, handle), ())                                                                          \
    F(FORWARD, ncclResult_t, ncclRedOpCreatePreMulSum,                                             \
      (ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,        \
       ncclComm_t comm),                                                                           \
      (op, scalar, type, residence, comm), ())                                                     \
    F(FORWARD, ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm), ())  \
    F(DATA, ncclResult_t, ncclReduce,                                                              \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,  \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, op, root, comm, stream),                                           \
      (BRG_FUNC_REDUCE, send, count, 0, type, (int)op, comm, stream))                              \
    F(DATA, ncclResult_t, ncclBcast,                                                               \
      (void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,                 \
       cudaStream_t stream),                                                                       \
      (buffer, count, type, root, comm, stream),                                                   \
      (BRG_FUNC_BROADCAST, buffer, count, 0, type, -1, comm, stream))                              \
    F(DATA, ncclResult_t, ncclBroadcast,                                                           \
      (const void *send, void *recv, size_t count, ncclDataType_t type, int root,                  \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, root, comm, stream),                                               \
      (BRG_FUNC_BROADCAST, recv, count, 0, type, -1, comm, stream))                                \
    F(DATA, ncclResult_t, ncclAllReduce,                                                           \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,            \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, op, comm, stream),                                                 \
      (BRG_FUNC_ALL_REDUCE, send, count, 0, type, (int)op, comm, stream))                          \
    F(DATA, ncclResult_t, ncclReduceScatter,                                                       \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,            \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, op, comm, stream),                                                 \
      (BRG_FUNC_REDUCE_SCATTER, send, count, 1, type, (int)op, comm, stream))                      \
    F(DATA, ncclResult_t, ncclAllGather,                                                           \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,           \
       cudaStream_t stream),                                                                       \
      (send, recv, count, type, comm, stream),                                                     \
      (BRG_FUNC_ALL_GATHER, recv, count, 1, type, -1, comm, stream))                               \
    F(DATA, ncclResult_t, ncclSend,                                                                \
      (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,             \
       cudaStream_t stream),                                                                       \
      (send, count, type, peer, comm, stream),                                                     \
      (BRG_FUNC_SEND, send, count, 0, type, -1, comm, stream))                                     \
    F(DATA, ncclResult_t, ncclRecv,                                                                \
      (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,                   \
       cudaStream_t stream),                                                                       \
      (recv, count, type, peer, comm, stream),                                                     \
      (BRG_FUNC_RECV, recv, count, 0, type, -1, comm, stream))                                     \
    F(OWN, ncclResult_t, ncclGroupStart, (void), (), ())                                           \
    F(OWN, ncclResult_t, ncclGroupEnd, (void), (), ())

#define BRG_NCCL_2_22(F)                                                                           \
    F(OWN, ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t *info), (info), ())

#define BRG_NCCL_2_23(F)                                                                           \
    F(OWN, ncclResult_t, ncclCommInitRankScalable,                                                 \
      (ncclComm_t *comm, int ranks, int rank, int num_ids, ncclUniqueId *ids,                      \
       ncclConfig_t *config),                                                                      \
      (comm, ranks, rank, num_ids, ids, config), ())

#define BRG_NCCL_2_24(F) F(NOTHING, void, ncclResetDebugInit, (void), (), ())

#define BRG_NCCL_2_27(F)                                                                           \
    F(OWN, ncclResult_t, ncclCommShrink,                                                           \
      (ncclComm_t comm, int *excluded, int num_excluded, ncclComm_t *child, ncclConfig_t *config,  \
       int flags),                                                                                 \
      (comm, excluded, num_excluded, child, config, flags), ())                                    \
    F(FORWARD, ncclResult_t, ncclCommWindowRegister,                                               \
      (ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags),               \
      (comm, buffer, size, window, flags), ())                                                     \
    F(FORWARD, ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window),     \
      (comm, window), ())

#define BRG_NCCL_2_28(F)                                                                           \
    F(FORWARD, ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags), (comm, flags), ())      \
    F(DATA, ncclResult_t, ncclAlltoAll,                                                            \
      (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,           \
       cudaStream_t stream),                                                                       \
      (send, recv, count, type, comm, stream),                                                     \
      (BRG_FUNC_ALL_TO_ALL, recv, count, 1, type, -1, comm, stream))                               \
    F(DATA, ncclResult_t, ncclGather,                                                              \
      (const void *send, void *recv, size_t count, ncclDataType_t type, int root,                  \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, root, comm, stream),                                               \
      (BRG_FUNC_GATHER, recv, count, 1, type, -1, comm, stream))                                   \
    F(DATA, ncclResult_t, ncclScatter,                                                             \
      (const void *send, void *recv, size_t count, ncclDataType_t type, int root,                  \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (send, recv, count, type, root, comm, stream),                                               \
      (BRG_FUNC_SCATTER, send, count, 1, type, -1, comm, stream))

#define BRG_NCCL_2_29(F)                                                                           \
    F(FORWARD, ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id), (comm, id), \
      ())                                                                                          \
    F(OWN, ncclResult_t, ncclCommGrow,                                                             \
      (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *child,            \
       ncclConfig_t *config),                                                                      \
      (comm, ranks, id, rank, child, config), ())                                                  \
    F(FORWARD, ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags), (comm, flags), ())     \
    F(FORWARD, ncclResult_t, ncclCommResume, (ncclComm_t comm), (comm), ())                        \
    F(FORWARD, ncclResult_t, ncclCommMemStats,                                                     \
      (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value), (comm, stat, value), ())         \
    F(FORWARD, ncclResult_t, ncclWinGetUserPtr,                                                    \
      (ncclComm_t comm, ncclWindow_t window, void **memory), (comm, window, memory), ())           \
    F(DATA, ncclResult_t, ncclPutSignal,                                                           \
      (const void *local, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,        \
       size_t offset, int signal, int context, unsigned flags, ncclComm_t comm,                    \
       cudaStream_t stream),                                                                       \
      (local, count, type, peer, window, offset, signal, context, flags, comm, stream),            \
      (BRG_FUNC_PUT, local, count, 0, type, -1, comm, stream))                                     \
    F(FORWARD, ncclResult_t, ncclSignal,                                                           \
      (int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream),   \
      (peer, signal, context, flags, comm, stream), ())                                            \
    F(FORWARD, ncclResult_t, ncclWaitSignal,                                                       \
      (int count, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream),            \
      (count, signals, comm, stream), ())

#define BRG_NCCL_2_30(F)                                                                           \
    F(FORWARD, ncclResult_t, ncclParamBind, (ncclParamHandle_t *out, const char *key), (out, key), \
      ())                                                                                          \
    F(FORWARD, ncclResult_t, ncclParamGetI8, (ncclParamHandle_t h, int8_t *out), (h, out), ())     \
    F(FORWARD, ncclResult_t, ncclParamGetI16, (ncclParamHandle_t h, int16_t *out), (h, out), ())   \
    F(FORWARD, ncclResult_t, ncclParamGetI32, (ncclParamHandle_t h, int32_t *out), (h, out), ())   \
    F(FORWARD, ncclResult_t, ncclParamGetI64, (ncclParamHandle_t h, int64_t *out), (h, out), ())   \
    F(FORWARD, ncclResult_t, ncclParamGetU8, (ncclParamHandle_t h, uint8_t *out), (h, out), ())    \
    F(FORWARD, ncclResult_t, ncclParamGetU16, (ncclParamHandle_t h, uint16_t *out), (h, out), ())  \
    F(FORWARD, ncclResult_t, ncclParamGetU32, (ncclParamHandle_t h, uint32_t *out), (h, out), ())  \
    F(FORWARD, ncclResult_t, ncclParamGetU64, (ncclParamHandle_t h, uint64_t *out), (h, out), ())  \
    F(FORWARD, ncclResult_t, ncclParamGetStr, (ncclParamHandle_t h, const char **out), (h, out),   \
      ())                                                                                          \
    F(FORWARD, ncclResult_t, ncclParamGet,                                                         \
      (ncclParamHandle_t h, void *out, int room, int *length), (h, out, room, length), ())         \
    F(FORWARD, ncclResult_t, ncclParamGetParameter,                                                \
      (const char *key, const char **value, int *length), (key, value, length), ())                \
    F(FORWARD, ncclResult_t, ncclParamGetAllParameterKeys, (const char ***table, int *length),     \
      (table, length), ())                                                                         \
    F(NOTHING, void, ncclParamDumpAll, (void), (), ())

/* nccl_device.h, the functions of the host */
#define BRG_NCCL_DEVICE_2_28(F)                                                                    \
    F(FORWARD, ncclResult_t, ncclDevCommCreate,                                                    \
      (ncclComm_t comm, const ncclDevCommRequirements_t *wanted, ncclDevComm_t *out),              \
      (comm, wanted, out), ())                                                                     \
    F(FORWARD, ncclResult_t, ncclDevCommDestroy,                                                   \
      (ncclComm_t comm, const ncclDevComm_t *device_comm), (comm, device_comm), ())                \
    F(VALUE, ncclTeam_t, ncclTeamWorld, (ncclComm_t comm), (comm), ())                             \
    F(VALUE, ncclTeam_t, ncclTeamLsa, (ncclComm_t comm), (comm), ())                               \
    F(VALUE, ncclTeam_t, ncclTeamRail, (ncclComm_t comm), (comm), ())                              \
    F(VALUE, int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank),               \
      (comm, team, rank), ())                                                                      \
    F(VALUE, int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank),                 \
      (comm, team, rank), ())                                                                      \
    F(FORWARD, ncclResult_t, ncclLsaBarrierCreateRequirement,                                      \
      (ncclTeam_t team, int count, ncclLsaBarrierHandle_t *handle,                                 \
       ncclDevResourceRequirements_t *out),                                                        \
      (team, count, handle, out), ())                                                              \
    F(FORWARD, ncclResult_t, ncclGinBarrierCreateRequirement,                                      \
      (ncclComm_t comm, ncclTeam_t team, int count, ncclGinBarrierHandle_t *handle,                \
       ncclDevResourceRequirements_t *out),                                                        \
      (comm, team, count, handle, out), ())                                                        \
    F(VALUE, int, ncclLLA2ACalcSlots, (int elems, int elem_size), (elems, elem_size), ())          \
    F(FORWARD, ncclResult_t, ncclLLA2ACreateRequirement,                                           \
      (int blocks, int slots, ncclLLA2AHandle_t *handle, ncclDevResourceRequirements_t *out),      \
      (blocks, slots, handle, out), ())

#define BRG_NCCL_DEVICE_2_29(F)                                                                    \
    F(FORWARD, ncclResult_t, ncclCommQueryProperties,                                              \
      (ncclComm_t comm, ncclCommProperties_t *out), (comm, out), ())                               \
    F(FORWARD, ncclResult_t, ncclGetLsaMultimemDevicePointer,                                      \
      (ncclWindow_t window, size_t offset, void **out), (window, offset, out), ())                 \
    F(FORWARD, ncclResult_t, ncclGetMultimemDevicePointer,                                         \
      (ncclWindow_t window, size_t offset, brg_multimem_handle multimem, void **out),              \
      (window, offset, multimem, out), ())                                                         \
    F(FORWARD, ncclResult_t, ncclGetLsaDevicePointer,                                              \
      (ncclWindow_t window, size_t offset, int rank, void **out), (window, offset, rank, out), ()) \
    F(FORWARD, ncclResult_t, ncclGetPeerDevicePointer,                                             \
      (ncclWindow_t window, size_t offset, int peer, void **out), (window, offset, peer, out), ())
/* clang-format on */

#define BRG_NCCL_ALL(F)                                                                            \
    BRG_NCCL_2_19(F)                                                                               \
    BRG_NCCL_2_22(F)                                                                               \
    BRG_NCCL_2_23(F)                                                                               \
    BRG_NCCL_2_24(F)                                                                               \
    BRG_NCCL_2_27(F)                                                                               \
    BRG_NCCL_2_28(F)                                                                               \
    BRG_NCCL_2_29(F)                                                                               \
    BRG_NCCL_2_30(F)                                                                               \
    BRG_NCCL_DEVICE_2_28(F)                                                                        \
    BRG_NCCL_DEVICE_2_29(F)

#endif
