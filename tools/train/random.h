/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by position instead of by state: the value at (seed, stream, index) is the same
 * whoever asks and in whatever order, so ranks of any number agree. */
#ifndef BRIGADE_TOOLS_TRAIN_RANDOM_H
#define BRIGADE_TOOLS_TRAIN_RANDOM_H

#include <math.h>
#include <stdint.h>

/* Finaliser of a 64-bit hash: every input bit changes about half of the output bits. */
static inline uint64_t random_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

static inline uint64_t random_at(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t x = random_mix(seed + 0x9e3779b97f4a7c15u);
    x = random_mix(x ^ (stream + 0x9e3779b97f4a7c15u));
    return random_mix(x ^ (index + 0x9e3779b97f4a7c15u));
}

/* Uniform in (0, 1). */
static inline double random_uniform(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* Normal with mean 0 and deviation 1 (Box-Muller). */
static inline double random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double radius = random_uniform(random_at(seed, stream, 2 * index));
    double angle = random_uniform(random_at(seed, stream, 2 * index + 1));
    return sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle);
}

#endif
