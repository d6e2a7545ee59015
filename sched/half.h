/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between float and the 16-bit types, round to nearest even. Written without branches,
 * so that loops over them become vector code. */
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

/* A subnormal half h is h * 2^-24: placed into the mantissa of 2^-14, whose last kept bit weighs
 * 2^-24, and freed of that 2^-14 again. No float32 subnormal appears, so flush-to-zero modes of the
 * caller do no harm. */
static inline float brg_float_from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    uint32_t subnormal =
        brg_bits_of_float(brg_float_of_bits((magnitude << 13) + 0x38800000u) - 0x1p-14f);
    uint32_t bits = magnitude < 0x0400u ? subnormal : magnitude < 0x7c00u ? normal : special;
    return brg_float_of_bits(bits | sign);
}

/* Below 2^-14 the sum with 0.5, whose unit in the last place is the subnormal step 2^-24, rounds as
 * wanted; above, the 13 dropped bits are rounded by an integer addition, whose carry may run into
 * the exponent and up to infinity. */
static inline uint16_t brg_fp16_from_float(float value)
{
    uint32_t bits = brg_bits_of_float(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t subnormal =
        brg_bits_of_float(brg_float_of_bits(magnitude) + 0.5f) - brg_bits_of_float(0.5f);
    uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude < 0x38800000u   ? subnormal
                    : magnitude < 0x47800000u ? normal
                                              : special;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

static inline uint16_t brg_bf16_from_float(float value)
{
    uint32_t bits = brg_bits_of_float(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x0040u; /* quiet, so that cutting bits cannot make it infinite */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
