/* SPDX-License-Identifier: Apache-2.0 */
/* The inner loops of the reductions. Included by host_kernels_base.c and host_kernels_avx2.c, which
 * compile the same text for different processors; results are bitwise the same, so that ranks on
 * unlike machines and runs on unlike machines agree. Hence no fused multiply-add.
 *
 * Accumulators have the element's type, float for the 16-bit types. Integers wrap around.
 */
#include "sched/device/host_reduce.h"

#include <string.h>

#define CHUNK 512 /* 16-bit elements widened at a time */

/* T: element, W: type to compute in (unsigned for integers, so that overflow is defined), D: type
 * to divide in. */
#define WIDE_KERNELS(NAME, T, W, D)                                                                \
    static void NAME##_first(void *restrict acc, const void *restrict src, const uint8_t *scalar,  \
                             size_t n)                                                             \
    {                                                                                              \
        memcpy(acc, src, n * sizeof(T));                                                           \
    }                                                                                              \
    static void NAME##_first_scaled(void *restrict acc, const void *restrict src,                  \
                                    const uint8_t *scalar, size_t n)                               \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        T s;                                                                                       \
        memcpy(&s, scalar, sizeof s);                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (T)((W)s * (W)x[i]);                                                            \
    }                                                                                              \
    static void NAME##_sum(void *restrict acc, const void *restrict src, const uint8_t *scalar,    \
                           size_t n)                                                               \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (T)((W)a[i] + (W)x[i]);                                                         \
    }                                                                                              \
    static void NAME##_sum_scaled(void *restrict acc, const void *restrict src,                    \
                                  const uint8_t *scalar, size_t n)                                 \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        T s;                                                                                       \
        memcpy(&s, scalar, sizeof s);                                                              \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (T)((W)a[i] + (W)s * (W)x[i]);                                                  \
    }                                                                                              \
    static void NAME##_prod(void *restrict acc, const void *restrict src, const uint8_t *scalar,   \
                            size_t n)                                                              \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (T)((W)a[i] * (W)x[i]);                                                         \
    }                                                                                              \
    /* A NaN loses against a number, as in fmax and fmin. */                                       \
    static void NAME##_max(void *restrict acc, const void *restrict src, const uint8_t *scalar,    \
                           size_t n)                                                               \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (a[i] > x[i]) | (x[i] != x[i]) ? a[i] : x[i];                                   \
    }                                                                                              \
    static void NAME##_min(void *restrict acc, const void *restrict src, const uint8_t *scalar,    \
                           size_t n)                                                               \
    {                                                                                              \
        T *restrict a = acc;                                                                       \
        const T *restrict x = src;                                                                 \
        for (size_t i = 0; i < n; i++)                                                             \
            a[i] = (a[i] < x[i]) | (x[i] != x[i]) ? a[i] : x[i];                                   \
    }                                                                                              \
    static void NAME##_last(void *restrict dst, const void *restrict acc, size_t n)                \
    {                                                                                              \
        memcpy(dst, acc, n * sizeof(T));                                                           \
    }                                                                                              \
    static void NAME##_last_divided(void *restrict dst, const void *restrict acc, int divisor,     \
                                    size_t n)                                                      \
    {                                                                                              \
        T *restrict d = dst;                                                                       \
        const T *restrict a = acc;                                                                 \
        for (size_t i = 0; i < n; i++)                                                             \
            d[i] = (T)((D)a[i] / (D)divisor);                                                      \
    }

WIDE_KERNELS(i8, int8_t, unsigned, int)
WIDE_KERNELS(u8, uint8_t, unsigned, int)
WIDE_KERNELS(i32, int32_t, uint32_t, int64_t)
WIDE_KERNELS(u32, uint32_t, uint32_t, uint32_t)
WIDE_KERNELS(i64, int64_t, uint64_t, int64_t)
WIDE_KERNELS(u64, uint64_t, uint64_t, uint64_t)
WIDE_KERNELS(f32, float, float, float)
WIDE_KERNELS(f64, double, double, double)

static inline float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void bf16_widen(float *restrict out, const uint16_t *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = bits_to_float((uint32_t)in[i] << 16);
}

static void bf16_narrow(uint16_t *restrict out, const float *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_to_bits(in[i]);
        uint32_t nan = (bits >> 16) | 0x40u; /* keep it a NaN whatever its low bits were */
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

#ifndef HAVE_HALF_CONVERSION
static void f16_widen(float *restrict out, const uint16_t *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16, magnitude = in[i] & 0x7fffu;
        uint32_t normal = (magnitude << 13) + 0x38000000u; /* exponent bias 15 to 127 */
        uint32_t special = (magnitude << 13) | 0x7f800000u;
        if ((magnitude & 0x3ffu) && magnitude > 0x7c00u)
            special |= 0x400000u; /* quiet, as the processor's conversion makes it */
        uint32_t tiny = float_to_bits((float)(int32_t)magnitude * 0x1p-24f);
        uint32_t bits = magnitude >= 0x7c00u ? special : magnitude < 0x400u ? tiny : normal;
        out[i] = bits_to_float(bits | sign);
    }
}

static void f16_narrow(uint16_t *restrict out, const float *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_to_bits(in[i]);
        uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
        uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
        uint32_t rebiased = magnitude - 0x38000000u;
        uint32_t normal = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
        /* Adding 0.5, whose last place is the smallest half, rounds to a multiple of that. */
        uint32_t tiny = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
        uint32_t half = magnitude > 0x7f800000u    ? nan
                        : magnitude >= 0x47800000u ? 0x7c00u
                        : magnitude >= 0x38800000u ? normal
                                                   : tiny;
        out[i] = (uint16_t)(half | sign);
    }
}
#endif

#define NARROW_APPLY(NAME, STEP)                                                                   \
    static void NAME##_##STEP(void *restrict acc, const void *restrict src, const uint8_t *scalar, \
                              size_t n)                                                            \
    {                                                                                              \
        float wide[CHUNK], s = 0;                                                                  \
        float *restrict a = acc;                                                                   \
        const uint16_t *restrict x = src;                                                          \
        if (scalar) {                                                                              \
            uint16_t narrow;                                                                       \
            memcpy(&narrow, scalar, sizeof narrow);                                                \
            NAME##_widen(&s, &narrow, 1);                                                          \
        }                                                                                          \
        for (size_t i = 0; i < n; i += CHUNK) {                                                    \
            size_t m = n - i < CHUNK ? n - i : CHUNK;                                              \
            NAME##_widen(wide, x + i, m);                                                          \
            f32_##STEP(a + i, wide, (const uint8_t *)&s, m);                                       \
        }                                                                                          \
    }

#define NARROW_KERNELS(NAME)                                                                       \
    NARROW_APPLY(NAME, first_scaled)                                                               \
    NARROW_APPLY(NAME, sum)                                                                        \
    NARROW_APPLY(NAME, sum_scaled)                                                                 \
    NARROW_APPLY(NAME, prod)                                                                       \
    NARROW_APPLY(NAME, max)                                                                        \
    NARROW_APPLY(NAME, min)                                                                        \
    static void NAME##_first(void *restrict acc, const void *restrict src, const uint8_t *scalar,  \
                             size_t n)                                                             \
    {                                                                                              \
        NAME##_widen(acc, src, n);                                                                 \
    }                                                                                              \
    static void NAME##_last(void *restrict dst, const void *restrict acc, size_t n)                \
    {                                                                                              \
        NAME##_narrow(dst, acc, n);                                                                \
    }                                                                                              \
    static void NAME##_last_divided(void *restrict dst, const void *restrict acc, int divisor,     \
                                    size_t n)                                                      \
    {                                                                                              \
        float quotient[CHUNK];                                                                     \
        uint16_t *restrict d = dst;                                                                \
        const float *restrict a = acc;                                                             \
        for (size_t i = 0; i < n; i += CHUNK) {                                                    \
            size_t m = n - i < CHUNK ? n - i : CHUNK;                                              \
            f32_last_divided(quotient, a + i, divisor, m);                                         \
            NAME##_narrow(d + i, quotient, m);                                                     \
        }                                                                                          \
    }

NARROW_KERNELS(f16)
NARROW_KERNELS(bf16)

#define ENTRY(NAME, ACC)                                                                           \
    {                                                                                              \
        .acc_bytes = sizeof(ACC), .first = NAME##_first, .first_scaled = NAME##_first_scaled,      \
        .next = {[BRG_NCCL_SUM] = NAME##_sum, [BRG_NCCL_PROD] = NAME##_prod,                       \
                 [BRG_NCCL_MAX] = NAME##_max, [BRG_NCCL_MIN] = NAME##_min,                         \
                 [BRG_NCCL_AVG] = NAME##_sum, [HOST_OP_PREMUL_SUM] = NAME##_sum_scaled},           \
        .last = NAME##_last, .last_divided = NAME##_last_divided                                   \
    }

const host_kernels KERNEL_TABLE[HOST_NUM_DTYPES] = {
    [BRG_NCCL_INT8] = ENTRY(i8, int8_t),     [BRG_NCCL_UINT8] = ENTRY(u8, uint8_t),
    [BRG_NCCL_INT32] = ENTRY(i32, int32_t),  [BRG_NCCL_UINT32] = ENTRY(u32, uint32_t),
    [BRG_NCCL_INT64] = ENTRY(i64, int64_t),  [BRG_NCCL_UINT64] = ENTRY(u64, uint64_t),
    [BRG_NCCL_FLOAT16] = ENTRY(f16, float),  [BRG_NCCL_FLOAT32] = ENTRY(f32, float),
    [BRG_NCCL_FLOAT64] = ENTRY(f64, double), [BRG_NCCL_BFLOAT16] = ENTRY(bf16, float),
};
