/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for processors with AVX2 and F16C. Nothing here may be called before the processor
 * was asked (host_reduce.c). */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static void f16_widen(float *restrict out, const uint16_t *restrict in, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + i))));
    for (; i < n; i++)
        out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(in[i])));
}

static void f16_narrow(uint16_t *restrict out, const float *restrict in, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        out[i] =
            (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(in[i]), _MM_FROUND_TO_NEAREST_INT));
}

#define HAVE_HALF_CONVERSION
#define KERNEL_TABLE host_kernels_avx2
#include "sched/device/host_kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int host_kernels_avx2_unused; /* a translation unit may not be empty */
#endif
