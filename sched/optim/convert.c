/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/optim/convert.h"

#include <string.h>

#include "sched/half.h"

bool brg_dtype_is_trainable(brg_dtype dtype)
{
    return dtype == BRG_FLOAT32 || dtype == BRG_FLOAT16 || dtype == BRG_BFLOAT16;
}

const float *brg_load_f32(float *restrict buffer, const void *src, brg_dtype dtype, size_t start,
                          size_t numel)
{
    if (dtype == BRG_FLOAT32)
        return (const float *)src + start;
    const uint16_t *restrict from = (const uint16_t *)src + start;
    if (dtype == BRG_BFLOAT16) {
        for (size_t i = 0; i < numel; i++)
            buffer[i] = brg_float_from_bf16(from[i]);
    } else {
        for (size_t i = 0; i < numel; i++)
            buffer[i] = brg_float_from_fp16(from[i]);
    }
    return buffer;
}

void brg_store_f32(void *dst, brg_dtype dtype, size_t start, const float *restrict values,
                   size_t numel)
{
    if (dtype == BRG_FLOAT32) {
        if (numel > 0) /* empty tensors may have no memory */
            memmove((float *)dst + start, values, numel * sizeof *values);
        return;
    }
    uint16_t *restrict to = (uint16_t *)dst + start;
    if (dtype == BRG_BFLOAT16) {
        for (size_t i = 0; i < numel; i++)
            to[i] = brg_bf16_from_float(values[i]);
    } else {
        for (size_t i = 0; i < numel; i++)
            to[i] = brg_fp16_from_float(values[i]);
    }
}
