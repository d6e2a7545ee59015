/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libbrigade-cuda.so: the functions behind the table of sched/device/kernels.h, whose
 * comments are their contract. They return cudaError_t values. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_H
#define BRIGADE_SCHED_OPTIM_CUDA_H

#include <cuda_runtime.h>

#include "sched/device/kernels.h"

/* cuda_step.cu */
int brg_cuda_sum_partials(const double *const *partials, int count, double *sum, void *stream);
int brg_cuda_prepare_step(const brg_prepare_args *args, void *stream);
int brg_cuda_stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride,
                   uint32_t index, int advance, void *stream);
int brg_cuda_store_double(double *dst, double value, void *stream);

/* Launches `kernel`; unlike <<<>>> with cudaGetLastError() it neither returns nor clears the errors
 * of others. */
template <typename... Params, typename... Args>
static inline int brg_cuda_launch(void (*kernel)(Params...), unsigned blocks, unsigned threads,
                                  void *stream, Args... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

#endif
