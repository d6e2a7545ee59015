/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in words, for error messages. */
#include "sched/device/host_comm.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [BRG_NCCL_INT8] = {"i8", 1},      [BRG_NCCL_UINT8] = {"u8", 1},
    [BRG_NCCL_INT32] = {"i32", 4},    [BRG_NCCL_UINT32] = {"u32", 4},
    [BRG_NCCL_INT64] = {"i64", 8},    [BRG_NCCL_UINT64] = {"u64", 8},
    [BRG_NCCL_FLOAT16] = {"fp16", 2}, [BRG_NCCL_FLOAT32] = {"fp32", 4},
    [BRG_NCCL_FLOAT64] = {"fp64", 8}, [BRG_NCCL_BFLOAT16] = {"bf16", 2},
};

size_t host_dtype_bytes(int dtype)
{
    return dtype >= 0 && (size_t)dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].bytes : 0;
}

const char *host_dtype_text(int dtype)
{
    return host_dtype_bytes(dtype) ? dtypes[dtype].name : "?";
}

static const char *op_text(int op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg", "premul-sum"};
    return op >= 0 && op <= HOST_OP_PREMUL_SUM ? names[op] : "?";
}

static const char *describe(char text[96], uint32_t kind, int dtype, int op, int peer,
                            unsigned long long count)
{
    const char *type = host_dtype_text(dtype);
    switch (kind) {
    case HOST_ALL_REDUCE:
        snprintf(text, 96, "all-reduce (%s) of %llu %s", op_text(op), count, type);
        break;
    case HOST_REDUCE_SCATTER:
        snprintf(text, 96, "reduce-scatter (%s) of %llu %s", op_text(op), count, type);
        break;
    case HOST_ALL_GATHER:
        snprintf(text, 96, "all-gather of %llu %s", count, type);
        break;
    case HOST_BROADCAST:
        snprintf(text, 96, "broadcast of %llu %s from rank %d", count, type, peer);
        break;
    case HOST_REDUCE:
        snprintf(text, 96, "reduce (%s) of %llu %s to rank %d", op_text(op), count, type, peer);
        break;
    case HOST_ALL_TO_ALL:
        snprintf(text, 96, "all-to-all of %llu %s", count, type);
        break;
    case HOST_SPLIT:
        snprintf(text, 96, "communicator split");
        break;
    case HOST_SEND:
        snprintf(text, 96, "send of %llu %s to rank %d", count, type, peer);
        break;
    case HOST_RECV:
        snprintf(text, 96, "receive of %llu %s from rank %d", count, type, peer);
        break;
    default:
        snprintf(text, 96, "unknown call");
    }
    return text;
}

const char *host_call_text(char text[96], const host_call *call)
{
    return describe(text, call->kind, call->dtype, call->op, call->peer, call->count);
}

const char *host_slot_text(char text[96], const shm_slot *slot)
{
    return describe(text, slot->kind, slot->dtype, slot->op, slot->root, slot->count);
}

const char *host_ranks_text(char text[160], const bool *is_listed, int num_ranks)
{
    int total = 0, shown = 0;
    for (int r = 0; r < num_ranks; r++)
        total += is_listed[r];
    size_t used = (size_t)snprintf(text, 160, total == 1 ? "rank" : "ranks");
    for (int r = 0; r < num_ranks && shown < 16; r++)
        if (is_listed[r])
            used += (size_t)snprintf(text + used, 160 - used, "%s %d", shown++ ? "," : "", r);
    if (shown < total)
        snprintf(text + used, 160 - used, " and %d more", total - shown);
    return text;
}
