/* SPDX-License-Identifier: Apache-2.0 */
/* Fresh random inputs with a printed seed: BRIGADE_TEST_SEED repeats a run. */
#ifndef BRIGADE_TESTS_SEED_H
#define BRIGADE_TESTS_SEED_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#ifndef BRIGADE_TEST_STRESS
#define BRIGADE_TEST_STRESS 1
#endif

inline uint64_t test_seed()
{
    static const uint64_t seed = [] {
        const char *text = std::getenv("BRIGADE_TEST_SEED");
        uint64_t value = text ? std::strtoull(text, nullptr, 0) : std::random_device{}();
        std::printf("BRIGADE_TEST_SEED=%llu\n", (unsigned long long)value);
        return value;
    }();
    return seed;
}

inline std::mt19937_64 test_rng(uint64_t salt = 0)
{
    return std::mt19937_64(test_seed() + 0x9e3779b97f4a7c15ull * salt);
}

#endif
