/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/optim/convert.h"

#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A subnormal half h is h * 2^-24: placed into the mantissa of 2^-14, whose last kept bit weighs
 * 2^-24, and freed of that 2^-14 again. No float32 subnormal appears, so flush-to-zero modes of the
 * caller do no harm. */
static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    uint32_t subnormal = to_bits(from_bits((magnitude << 13) + 0x38800000u) - 0x1p-14f);
    uint32_t bits = magnitude < 0x0400u ? subnormal : magnitude < 0x7c00u ? normal : special;
    return from_bits(bits | sign);
}

/* Below 2^-14 the sum with 0.5, whose unit in the last place is the subnormal step 2^-24, rounds as
 * wanted; above, the 13 dropped bits are rounded by an integer addition, whose carry may run into
 * the exponent and up to infinity. */
static inline uint16_t float_to_half(float value)
{
    uint32_t bits = to_bits(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u   ? subnormal
                    : magnitude < 0x47800000u ? normal
                                              : special;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

static inline uint16_t float_to_bfloat(float value)
{
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x0040u; /* quiet, so that cutting bits cannot make it infinite */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

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
            buffer[i] = from_bits((uint32_t)from[i] << 16);
    } else {
        for (size_t i = 0; i < numel; i++)
            buffer[i] = half_to_float(from[i]);
    }
    return buffer;
}

void brg_store_f32(void *dst, brg_dtype dtype, size_t start, const float *restrict values,
                   size_t numel)
{
    if (dtype == BRG_FLOAT32) {
        memmove((float *)dst + start, values, numel * sizeof *values);
        return;
    }
    uint16_t *restrict to = (uint16_t *)dst + start;
    if (dtype == BRG_BFLOAT16) {
        for (size_t i = 0; i < numel; i++)
            to[i] = float_to_bfloat(values[i]);
    } else {
        for (size_t i = 0; i < numel; i++)
            to[i] = float_to_half(values[i]);
    }
}
