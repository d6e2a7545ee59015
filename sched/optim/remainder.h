/* SPDX-License-Identifier: Apache-2.0 */
/* A float32 master kept as a bfloat16 weight and a 16-bit remainder, as TransformerEngine's
 * `store_param_remainders` does.
 *
 * The remainder is the low half of the master's bits. The weight is the master rounded to nearest:
 * its high half, plus 1 if the top bit of the low half is set. That bit also says how to undo the
 * rounding, so no master is lost. The price is that ties round away from zero, not to even: after
 * rounding to even, a tie's weight would not say whether it came from above or below.
 *
 * A NaN is replaced by the quiet NaN of its sign: the carry would turn some into numbers. All other
 * masters, infinities and zeros of both signs included, come back bit by bit. A master above the
 * largest bfloat16 by half a unit or more has an infinite weight and comes back finite.
 */
#ifndef BRIGADE_SCHED_OPTIM_REMAINDER_H
#define BRIGADE_SCHED_OPTIM_REMAINDER_H

#include <stdint.h>

#ifdef __CUDACC__
#define BRG_REMAINDER_FN static __host__ __device__ inline
#else
#define BRG_REMAINDER_FN static inline
#endif

/* @param master_bits the bits of the float32 master
 * @param weight gets the bits of the bfloat16 weight */
BRG_REMAINDER_FN void brg_remainder_split(uint32_t master_bits, uint16_t *weight,
                                          uint16_t *remainder)
{
    uint32_t bits = (master_bits & 0x7fffffffu) > 0x7f800000u
                        ? (master_bits & 0x80000000u) | 0x7fc00000u
                        : master_bits;
    *weight = (uint16_t)((bits + 0x8000u) >> 16);
    *remainder = (uint16_t)bits;
}

/* @return the bits of the float32 master */
BRG_REMAINDER_FN uint32_t brg_remainder_join(uint16_t weight, uint16_t remainder)
{
    uint32_t carry = (uint32_t)remainder >> 15;
    return (((uint32_t)weight - carry) << 16) | remainder;
}

#endif
