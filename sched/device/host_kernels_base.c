/* SPDX-License-Identifier: Apache-2.0 */
#define KERNEL_TABLE host_kernels_base
#include "sched/device/host_kernels.h"
