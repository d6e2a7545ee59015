/* SPDX-License-Identifier: Apache-2.0 */
/* Where a context runs, for its helper threads and for the trace. */
#include "sched/bucket/context.h"

#include <stdio.h>

#include "sched/device/affinity.h"

void brg_context_describe(const brg_context *ctx)
{
    const brg_runtime *rt = ctx->device.rt;
    char text[256];
    int device = ctx->device_index, version = 0;
    if (!ctx->ring)
        return;
    if (rt->device_name && rt->device_name(text, sizeof text, device) == BRG_RT_OK)
        brg_ring_add_info(ctx->ring, "device_name", text);
    if (rt->device_pci_bus_id && rt->device_pci_bus_id(text, sizeof text, device) == BRG_RT_OK) {
        brg_ring_add_info(ctx->ring, "pci", text);
        if (ctx->device.nccl->get_version(&version) == BRG_NCCL_OK) {
            snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100,
                     version % 100);
            brg_ring_add_info(ctx->ring, "nccl_version", text);
        }
    }
}

void brg_context_place_thread(const brg_context *ctx, pthread_t thread)
{
    char where[256];
    if (brg_bind_near_device(&ctx->device, ctx->device_index, thread, where, sizeof where) != BRG_OK)
        brg_log(BRG_LOG_INFO, "%s", brg_last_error());
    else if (*where)
        brg_ring_add_info(ctx->ring, "cpus", where);
}
