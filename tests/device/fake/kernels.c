/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel library without kernels; FAKE_ABI is the interface that it has. */
#include "sched/device/kernels.h"

const brg_kernels *brg_cuda_kernels(int abi);
const brg_kernels *brg_cuda_kernels(int abi)
{
    static const brg_kernels table = {.abi = FAKE_ABI};
    return abi == FAKE_ABI ? &table : NULL;
}
