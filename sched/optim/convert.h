/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of the floating-point types that gradients and parameters come in. Arithmetic is
 * done in float32 or wider; stores round to nearest, ties to even. */
#ifndef BRIGADE_SCHED_OPTIM_CONVERT_H
#define BRIGADE_SCHED_OPTIM_CONVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "brigade/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fp32, fp16 and bf16. */
bool brg_dtype_is_trainable(brg_dtype dtype);

/* Elements [start, start + numel) of `src` as float32: `src` itself if it is float32 already, else
 * converted into `buffer`, which is returned. */
const float *brg_load_f32(float *buffer, const void *src, brg_dtype dtype, size_t start,
                          size_t numel);

/* Writes `numel` values to elements [start, start + numel) of `dst`. */
void brg_store_f32(void *dst, brg_dtype dtype, size_t start, const float *values, size_t numel);

#ifdef __cplusplus
}
#endif
#endif
