/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel table for the host engine: what the optimizers put on streams of a device that has one,
 * in float64 arithmetic on host functions. So their host side is tested without a GPU. */
#ifndef BRIGADE_TESTS_OPTIM_HOST_KERNEL_TABLE_H
#define BRIGADE_TESTS_OPTIM_HOST_KERNEL_TABLE_H

#include <atomic>

extern "C" {
#include "sched/device/device.h"
}

/* Tables of the host engine and these kernels, to open contexts on. */
const brg_device *host_kernel_device();

/* Calls of the process's tables so far. */
struct HostKernelCounts {
    std::atomic<int> sum_squares{0}, sum_partials{0}, prepare_step{0}, adamw{0}, sgd{0}, convert{0},
        store_double{0}, muon_create{0}, muon_update{0}, muon_destroy{0};
    std::atomic<int> failing_creates{0}; /* so many muon_create from now on fail */
};
HostKernelCounts &host_kernel_counts();

#endif
