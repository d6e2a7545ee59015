/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BRIGADE_SCHED_DEVICE_HOST_REDUCE_H
#define BRIGADE_SCHED_DEVICE_HOST_REDUCE_H

#include "sched/device/host_internal.h"

#define HOST_NUM_DTYPES 10

typedef struct host_kernels { /* of one element type */
    size_t acc_bytes;         /* of an accumulator */
    void (*first)(void *acc, const void *src, const uint8_t *scalar, size_t n);
    void (*first_scaled)(void *acc, const void *src, const uint8_t *scalar, size_t n);
    void (*next[HOST_OP_PREMUL_SUM + 1])(void *acc, const void *src, const uint8_t *scalar,
                                         size_t n);
    void (*last)(void *dst, const void *acc, size_t n);
    void (*last_divided)(void *dst, const void *acc, int divisor, size_t n);
} host_kernels;

extern const host_kernels host_kernels_base[HOST_NUM_DTYPES];
#if defined(__x86_64__)
extern const host_kernels host_kernels_avx2[HOST_NUM_DTYPES];
#endif

/* The kernels for this processor. `dtype` must be valid. */
const host_kernels *host_kernels_of(int dtype);

#endif
