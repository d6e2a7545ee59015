/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a device, and the conversions between the library's own terms and the tables'. */
#include "sched/device/device.h"
#include "sched/device/cuda.h"
#include "sched/device/host.h"
#include "sched/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>

static brg_status resolve(brg_device_kind *kind)
{
    const char *text = getenv("BRIGADE_DEVICE");
    if (!text || !*text || !strcasecmp(text, "auto"))
        *kind = BRG_DEVICE_AUTO;
    else if (!strcasecmp(text, "host"))
        *kind = BRG_DEVICE_HOST;
    else if (!strcasecmp(text, "cuda"))
        *kind = BRG_DEVICE_CUDA;
    else
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "environment: BRIGADE_DEVICE=%s: expected auto, cuda or host", text);
    return BRG_OK;
}

static brg_status open_host(brg_device *device)
{
    device->rt = brg_host_runtime();
    device->nccl = brg_host_nccl();
    device->kernels = NULL;
    return BRG_OK;
}

/* A GPU if one answers, and all that it takes is there; a variable that is set and wrong is an
 * error even so. */
static brg_status open_any(brg_device *device)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    bool gpu_answers;
    brg_status status = brg_cuda_open(device, &gpu_answers);
    if (status == BRG_OK || status == BRG_ERR_INVALID_ARGUMENT)
        return status;
    if (gpu_answers && !atomic_flag_test_and_set(&said))
        brg_log(BRG_LOG_WARN, "a GPU answers, but the device host is used: %s", brg_last_error());
    return open_host(device);
}

brg_status brg_device_open(brg_device_kind kind, brg_device *device)
{
    bool gpu_answers;
    brg_status status = kind == BRG_DEVICE_AUTO ? resolve(&kind) : BRG_OK;
    if (status)
        return status;
    switch (kind) {
    case BRG_DEVICE_AUTO:
        return open_any(device);
    case BRG_DEVICE_HOST:
        return open_host(device);
    case BRG_DEVICE_CUDA:
        return brg_cuda_open(device, &gpu_answers);
    default:
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "unknown device kind %d", (int)kind);
    }
}

int brg_nccl_dtype(brg_dtype dtype)
{
    static const int types[] = {
        [BRG_FLOAT32] = BRG_NCCL_FLOAT32, [BRG_FLOAT64] = BRG_NCCL_FLOAT64,
        [BRG_FLOAT16] = BRG_NCCL_FLOAT16, [BRG_BFLOAT16] = BRG_NCCL_BFLOAT16,
        [BRG_INT8] = BRG_NCCL_INT8,       [BRG_UINT8] = BRG_NCCL_UINT8,
        [BRG_INT32] = BRG_NCCL_INT32,     [BRG_UINT32] = BRG_NCCL_UINT32,
        [BRG_INT64] = BRG_NCCL_INT64,     [BRG_UINT64] = BRG_NCCL_UINT64,
    };
    return (size_t)dtype < sizeof types / sizeof types[0] ? types[dtype] : -1;
}

int brg_nccl_op(brg_op op)
{
    static const int ops[] = {
        [BRG_SUM] = BRG_NCCL_SUM, [BRG_PROD] = BRG_NCCL_PROD, [BRG_MAX] = BRG_NCCL_MAX,
        [BRG_MIN] = BRG_NCCL_MIN, [BRG_AVG] = BRG_NCCL_AVG,
    };
    return (size_t)op < sizeof ops / sizeof ops[0] ? ops[op] : -1;
}

brg_status brg_rt_status(const brg_device *device, int error, const char *what)
{
    brg_status status = BRG_ERR_DEVICE;
    if (!error)
        return BRG_OK;
    if (error == BRG_RT_INVALID_VALUE)
        status = BRG_ERR_INVALID_ARGUMENT;
    else if (error == BRG_RT_NO_MEMORY)
        status = BRG_ERR_NO_MEMORY;
    return brg_fail(status, "%s: %s", what, device->rt->error_string(error));
}

static brg_status nccl_cause(int result)
{
    switch (result) {
    case BRG_NCCL_INVALID_ARGUMENT:
        return BRG_ERR_INVALID_ARGUMENT;
    case BRG_NCCL_INVALID_USAGE:
        return BRG_ERR_STATE;
    case BRG_NCCL_REMOTE:
        return BRG_ERR_PEER_LOST;
    case BRG_NCCL_IN_PROGRESS:
        return BRG_IN_PROGRESS;
    default:
        return BRG_ERR_DEVICE;
    }
}

brg_status brg_nccl_status(const brg_device *device, int result, void *comm, const char *what)
{
    if (!result)
        return BRG_OK;
    brg_status status = nccl_cause(result);
    if (device->nccl ==
        brg_host_nccl()) { /* which knows the cause better than NCCL's few codes say */
        brg_status known = comm ? brg_host_comm_status(comm) : BRG_OK;
        if (known == BRG_OK)
            known = brg_host_last_cause();
        if (known != BRG_OK)
            status = known;
    } else if (device->nccl == brg_cuda_nccl() && brg_cuda_last_cause() != BRG_OK) {
        status = brg_cuda_last_cause();
    }
    const char *text = device->nccl->last_error(comm);
    return brg_fail(status, "%s: %s", what,
                    text && *text ? text : device->nccl->error_string(result));
}
