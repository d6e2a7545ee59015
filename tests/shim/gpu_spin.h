/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SHIM_GPU_SPIN_H
#define TESTS_SHIM_GPU_SPIN_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

int gpu_spin(unsigned long long duration_ns, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
