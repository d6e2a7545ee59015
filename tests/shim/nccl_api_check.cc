/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled where NCCL's own headers are: every prototype of the shim's list is theirs, and so are
 * the types of the list's own header that travel by value. */
#include <nccl.h>

#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)
#include <nccl_device.h>
#endif

#include <cstddef>

#include "shim/interpose/nccl_api.h"

static_assert(sizeof(ncclUniqueId) == 128, "by value");
static_assert(offsetof(ncclConfig_t, blocking) == 16, "what the shim reads of a configuration");
static_assert(ncclNumOps == 5 && ncclNumTypes >= 10, "what the shim's tables are made for");
static_assert(ncclBfloat16 == 9 && ncclFloat16 == 6 && ncclFloat8e4m3 == 10, "types");
static_assert(ncclSystemError == 2 && ncclInvalidUsage == 5 && ncclInProgress == 7, "results");

#define F(kind, result, name, params, args, what)                                                  \
    [[maybe_unused]] static result(*const check_##name) params = &name;
BRG_NCCL_2_19(F)
#if NCCL_VERSION_CODE >= 22200
BRG_NCCL_2_22(F)
#endif
#if NCCL_VERSION_CODE >= 22300
BRG_NCCL_2_23(F)
#endif
#if NCCL_VERSION_CODE >= 22400
BRG_NCCL_2_24(F)
#endif
#if NCCL_VERSION_CODE >= 22700
BRG_NCCL_2_27(F)
#endif
#if NCCL_VERSION_CODE >= 22807
BRG_NCCL_2_28(F)
#endif
#if NCCL_VERSION_CODE >= 22907
BRG_NCCL_2_29(F)
#endif
#if NCCL_VERSION_CODE >= 23007
BRG_NCCL_2_30(F)
#endif
#ifdef _NCCL_DEVICE_CORE_H_
BRG_NCCL_DEVICE_2_28(F)
#if NCCL_VERSION_CODE >= 22902
BRG_NCCL_DEVICE_2_29(F)
#endif
#endif
