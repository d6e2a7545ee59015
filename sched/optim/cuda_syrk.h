/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric matrix products on Hopper's tensor cores; half the work of a general product. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_SYRK_H
#define BRIGADE_SCHED_OPTIM_CUDA_SYRK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* D = alpha A B^T + beta C + diag I for each of `batch` members, where A B^T is known to be
 * symmetric: A == B, or two commuting symmetric matrices. D is n x n, A and B are n x k, all dense
 * and row-major; dtype 0 is float16, 1 bfloat16; sums are float32. The lower triangle is computed
 * and stored to both, so D is symmetric to the bit, and the result does not depend on the order in
 * which the device runs the blocks.
 *
 * C is symmetric too, may be D, or NULL when beta is 0. D must not overlap A or B. Strides lead
 * from one member to the next, in elements; they are ignored when batch is 1.
 *
 * Works on `stream` without allocation or synchronisation; may be captured in a graph. Returns a
 * cudaError_t: cudaErrorNotSupported, with nothing launched, where the device is not of compute
 * capability 9.0, n or k is not a multiple of 8, or a pointer or stride is not one of 16 bytes.
 */
int brg_symmetric_product(int dtype, int batch, int n, int k, float alpha, const void *A,
                          int64_t stride_a, const void *B, int64_t stride_b, float beta,
                          const void *C, int64_t stride_c, float diag, void *D, int64_t stride_d,
                          void *stream);

#ifdef __cplusplus
}
#endif
#endif
