/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between float and the 16-bit types, round to nearest even. */
#ifndef BRIGADE_SCHED_HALF_H
#define BRIGADE_SCHED_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t brg_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float brg_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float brg_float_from_bf16(uint16_t half)
{
    return brg_float_of_bits((uint32_t)half << 16);
}

static inline uint16_t brg_bf16_from_float(float value)
{
    uint32_t bits = brg_bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40); /* keep a NaN a NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float brg_float_from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) /* Inf and NaN */
        return brg_float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u) /* normal: rebias the exponent from 15 to 127 */
        return brg_float_of_bits(sign | ((rest << 13) + (112u << 23)));
    /* subnormal: units of 2^-24, exact in float */
    float magnitude = (float)rest * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

static inline uint16_t brg_fp16_from_float(float value)
{
    uint32_t bits = brg_bits_of_float(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) /* 65520 and above round to Inf */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) {
        /* Below 2^-14. Adding 0.5 leaves units of 2^-24 in the low mantissa bits, rounded by the
         * FPU. */
        float shifted = brg_float_of_bits(bits) + 0.5f;
        return (uint16_t)(sign | (brg_bits_of_float(shifted) - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - (112u << 23)) >> 13);
}

#endif
