/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libbrigade-cuda.so: the functions behind the table of sched/device/kernels.h, whose
 * comments are their contract. They return cudaError_t values. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_H
#define BRIGADE_SCHED_OPTIM_CUDA_H

#include <cuda_runtime.h>

#include "sched/device/kernels.h"

/* cuda_norm.cu */
int brg_cuda_sum_squares(const void *values, int dtype, int64_t numel, double *partials,
                         void *stream);
int brg_cuda_check_values(const void *values, int dtype, int64_t numel, int64_t *first,
                          double *sum_squares, double *partials, void *stream);

/* cuda_step.cu */
int brg_cuda_sum_partials(const double *const *partials, int count, double *sum, void *stream);
int brg_cuda_prepare_step(const brg_prepare_args *args, void *stream);
int brg_cuda_stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride,
                   uint32_t index, int advance, void *stream);
int brg_cuda_store_double(double *dst, double value, void *stream);

int brg_cuda_adamw(const brg_adamw_args *args, void *stream);
int brg_cuda_sgd(const brg_sgd_args *args, void *stream);
int brg_cuda_convert(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t numel,
                     void *stream);

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

/* Blocks for `tiles` tiles: as many as are resident at once, at `blocks_per_sm`. */
static inline int brg_cuda_num_blocks(int64_t tiles, int blocks_per_sm, unsigned *blocks)
{
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        *blocks = (unsigned)(tiles < (int64_t)sms * blocks_per_sm ? tiles : sms * blocks_per_sm);
    return error;
}

#endif
