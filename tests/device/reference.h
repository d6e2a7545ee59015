/* SPDX-License-Identifier: Apache-2.0 */
/* What collectives should give, computed the slow way and apart from the engine's code. */
#ifndef BRIGADE_TESTS_DEVICE_REFERENCE_H
#define BRIGADE_TESTS_DEVICE_REFERENCE_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

extern "C" {
#include "sched/device/device.h"
}

struct Type {
    int nccl;
    const char *name;
    size_t bytes;
};

inline const std::vector<Type> &all_types()
{
    static const std::vector<Type> types = {
        {BRG_NCCL_INT8, "i8", 1},      {BRG_NCCL_UINT8, "u8", 1},
        {BRG_NCCL_INT32, "i32", 4},    {BRG_NCCL_UINT32, "u32", 4},
        {BRG_NCCL_INT64, "i64", 8},    {BRG_NCCL_UINT64, "u64", 8},
        {BRG_NCCL_FLOAT16, "fp16", 2}, {BRG_NCCL_FLOAT32, "fp32", 4},
        {BRG_NCCL_FLOAT64, "fp64", 8}, {BRG_NCCL_BFLOAT16, "bf16", 2},
    };
    return types;
}

/* 16-bit floats by their definition: `fraction` bits below the point, exponents from
 * `min_exponent`. */
inline double decode16(uint16_t bits, int fraction, int min_exponent)
{
    int exponent_bits = 15 - fraction;
    int exponent = (bits >> fraction) & ((1 << exponent_bits) - 1);
    double mantissa = bits & ((1 << fraction) - 1), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa ? std::numeric_limits<double>::quiet_NaN()
                        : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0)
        return sign * std::ldexp(mantissa, min_exponent - fraction);
    return sign * std::ldexp(mantissa + (1 << fraction), exponent - 1 + min_exponent - fraction);
}

/* Nearest 16-bit float, ties to even. */
inline uint16_t encode16(double value, int fraction, int min_exponent)
{
    int exponent_bits = 15 - fraction;
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << fraction);
    if (std::isnan(value))
        return (uint16_t)(sign | infinity | (1 << (fraction - 1)));
    value = std::fabs(value);
    if (value == 0)
        return sign;
    if (std::isinf(value))
        return (uint16_t)(sign | infinity);
    int exponent = std::max(std::ilogb(value), min_exponent);
    double steps = std::nearbyint(std::ldexp(value, fraction - exponent)); /* of the last place */
    uint32_t bits = (uint32_t)(exponent - min_exponent) * (1u << fraction) + (uint32_t)steps;
    return (uint16_t)(sign | std::min<uint32_t>(bits, infinity));
}

inline double decode_fp16(uint16_t bits)
{
    return decode16(bits, 10, -14);
}
inline uint16_t encode_fp16(double value)
{
    return encode16(value, 10, -14);
}
inline double decode_bf16(uint16_t bits)
{
    return decode16(bits, 7, -126);
}
inline uint16_t encode_bf16(double value)
{
    return encode16(value, 7, -126);
}

template <typename T> T load(const std::vector<char> &from, size_t index)
{
    T value;
    memcpy(&value, from.data() + index * sizeof(T), sizeof(T));
    return value;
}
template <typename T> void store(std::vector<char> &to, size_t index, T value)
{
    memcpy(to.data() + index * sizeof(T), &value, sizeof(T));
}

/* Reproducible input of one rank: integers over the whole range, floats of moderate size. */
inline std::vector<char> make_input(const Type &type, size_t count, uint64_t seed)
{
    std::mt19937_64 rng(seed);
    std::vector<char> data(count * type.bytes);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = rng();
        double value = (double)(int64_t)bits * 0x1p-61; /* within [-4, 4] */
        switch (type.nccl) {
        case BRG_NCCL_FLOAT16:
            store(data, i, encode_fp16(value));
            break;
        case BRG_NCCL_BFLOAT16:
            store(data, i, encode_bf16(value));
            break;
        case BRG_NCCL_FLOAT32:
            store(data, i, (float)value);
            break;
        case BRG_NCCL_FLOAT64:
            store(data, i, value);
            break;
        default:
            memcpy(data.data() + i * type.bytes, &bits, type.bytes);
        }
    }
    return data;
}

/* Integers: modulo 2^width; an average divides what is left. */
template <typename T>
T reduce_integers(const std::vector<std::vector<char>> &in, size_t i, int op, const T *scalars)
{
    uint64_t acc = 0;
    T best = load<T>(in[0], i);
    for (size_t r = 0; r < in.size(); r++) {
        T x = load<T>(in[r], i);
        uint64_t wide =
            scalars ? (uint64_t)(int64_t)scalars[r] * (uint64_t)(int64_t)x : (uint64_t)x;
        acc = r == 0 ? wide : op == BRG_NCCL_PROD ? acc * wide : acc + wide;
        if (op == BRG_NCCL_MAX ? x > best : x < best)
            best = x;
    }
    if (op == BRG_NCCL_MAX || op == BRG_NCCL_MIN)
        return best;
    if (op == BRG_NCCL_AVG) {
        __int128 sum = (T)acc;
        return (T)(sum / (__int128)in.size());
    }
    return (T)acc;
}

/* Floats, in rank order, in arithmetic of type A; `decode` and `encode` convert an element. */
template <typename A, typename Get>
A reduce_floats(size_t ranks, int op, const Get &get, const std::vector<A> &scalars)
{
    A acc = 0;
    for (size_t r = 0; r < ranks; r++) {
        volatile A x = get(r); /* volatile: no contraction */
        if (!scalars.empty())
            x = x * scalars[r];
        if (r == 0)
            acc = x;
        else if (op == BRG_NCCL_PROD)
            acc = acc * x;
        else if (op == BRG_NCCL_MAX)
            acc = std::fmax(acc, (A)x);
        else if (op == BRG_NCCL_MIN)
            acc = std::fmin(acc, (A)x);
        else
            acc = acc + x;
    }
    return op == BRG_NCCL_AVG ? acc / (A)ranks : acc;
}

/* The scalar of a rank's pre-multiplied sum, in the collective's type. */
inline std::vector<char> make_scalar(const Type &type, int rank)
{
    std::vector<char> scalar(8);
    double value = 0.25 * (rank + 3);
    switch (type.nccl) {
    case BRG_NCCL_FLOAT16:
        store(scalar, 0, encode_fp16(value));
        break;
    case BRG_NCCL_BFLOAT16:
        store(scalar, 0, encode_bf16(value));
        break;
    case BRG_NCCL_FLOAT32:
        store(scalar, 0, (float)value);
        break;
    case BRG_NCCL_FLOAT64:
        store(scalar, 0, value);
        break;
    default:
        scalar[0] = (char)(rank + 3); /* little endian: right for every width */
    }
    return scalar;
}

/* Element i of the reduction of all inputs, into out[slot]. */
inline void reduce_element(const Type &type, int op, bool premul,
                           const std::vector<std::vector<char>> &in, size_t i,
                           std::vector<char> &out, size_t slot)
{
    size_t n = in.size();
    std::vector<float> f;
    std::vector<double> d;
    std::vector<std::vector<char>> scalars;
    for (size_t r = 0; r < n && premul; r++)
        scalars.push_back(make_scalar(type, (int)r));
#define INTEGER_CASE(CODE, T)                                                                      \
    case CODE: {                                                                                   \
        std::vector<T> s;                                                                          \
        for (auto &scalar : scalars)                                                               \
            s.push_back(load<T>(scalar, 0));                                                       \
        store(out, slot, reduce_integers<T>(in, i, op, premul ? s.data() : nullptr));              \
        break;                                                                                     \
    }
    switch (type.nccl) {
        INTEGER_CASE(BRG_NCCL_INT8, int8_t)
        INTEGER_CASE(BRG_NCCL_UINT8, uint8_t)
        INTEGER_CASE(BRG_NCCL_INT32, int32_t)
        INTEGER_CASE(BRG_NCCL_UINT32, uint32_t)
        INTEGER_CASE(BRG_NCCL_INT64, int64_t)
        INTEGER_CASE(BRG_NCCL_UINT64, uint64_t)
#undef INTEGER_CASE
    case BRG_NCCL_FLOAT32:
        for (auto &scalar : scalars)
            f.push_back(load<float>(scalar, 0));
        store(out, slot,
              reduce_floats<float>(
                  n, op, [&](size_t r) { return load<float>(in[r], i); }, f));
        break;
    case BRG_NCCL_FLOAT64:
        for (auto &scalar : scalars)
            d.push_back(load<double>(scalar, 0));
        store(out, slot,
              reduce_floats<double>(
                  n, op, [&](size_t r) { return load<double>(in[r], i); }, d));
        break;
    case BRG_NCCL_FLOAT16:
        for (auto &scalar : scalars)
            f.push_back((float)decode_fp16(load<uint16_t>(scalar, 0)));
        store(
            out, slot,
            encode_fp16(reduce_floats<float>(
                n, op, [&](size_t r) { return (float)decode_fp16(load<uint16_t>(in[r], i)); }, f)));
        break;
    case BRG_NCCL_BFLOAT16:
        for (auto &scalar : scalars)
            f.push_back((float)decode_bf16(load<uint16_t>(scalar, 0)));
        store(
            out, slot,
            encode_bf16(reduce_floats<float>(
                n, op, [&](size_t r) { return (float)decode_bf16(load<uint16_t>(in[r], i)); }, f)));
        break;
    }
}

#endif
