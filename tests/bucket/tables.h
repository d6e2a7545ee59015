/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts on tables that stand between the library and the host engine. */
#ifndef BRIGADE_TESTS_BUCKET_TABLES_H
#define BRIGADE_TESTS_BUCKET_TABLES_H

#include "tests/bucket/harness.h"

inline brg_context_options host_options()
{
    brg_context_options options = {};
    options.device = BRG_DEVICE_HOST;
    options.trace_dir = "";
    return options;
}

struct Tables {
    brg_runtime rt = *brg_host_runtime();
    brg_nccl nccl = *brg_host_nccl();
    brg_device device = {&rt, &nccl, nullptr};

    brg_context *open(int local_rank = 0, double timeout_s = 0)
    {
        brg_context_options options = host_options();
        options.collective_timeout_s = timeout_s;
        options.world_size = 1;
        options.local_rank = local_rank;
        brg_context *ctx = nullptr;
        EXPECT_OK(brg_context_open_on(&device, &options, &ctx));
        return ctx;
    }
};

#endif
