/* SPDX-License-Identifier: Apache-2.0 */
/* How element-wise kernels move data. An array is cut into tiles, a block takes a tile at a time.
 *
 * A thread keeps E elements of each array in registers, as raw 32-bit words, so that the loads of
 * all arrays are under way before the first value is used. Which elements these are depends on the
 * tile: in a tile that lies wholly inside the array they are vectors of W elements, read with loads
 * of 16 bytes (8 for 16-bit types beside 32-bit ones). At the ends of an array, and where the
 * arrays of one range are not aligned alike, they are single elements, THREADS apart: more
 * instructions, but the same bytes from memory and as many of them under way. Loads and stores go
 * without cache hints: no hint was faster on an H200.
 */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_TILE_CUH
#define BRIGADE_SCHED_OPTIM_CUDA_TILE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* Element j of registers, and elements j and j + 1 for an even j. */

template <typename T> static __device__ inline T brg_get(const uint32_t *words, int j)
{
    if constexpr (sizeof(T) == 8)
        return __hiloint2double((int)words[2 * j + 1], (int)words[2 * j]);
    else
        return __uint_as_float(words[j]);
}

template <> __device__ inline __nv_bfloat16 brg_get<__nv_bfloat16>(const uint32_t *words, int j)
{
    return __ushort_as_bfloat16((unsigned short)(words[j / 2] >> (j % 2 * 16)));
}

template <> __device__ inline __half brg_get<__half>(const uint32_t *words, int j)
{
    return __ushort_as_half((unsigned short)(words[j / 2] >> (j % 2 * 16)));
}

static __device__ inline void brg_put(uint32_t *words, int j, double2 pair)
{
    words[2 * j] = (uint32_t)__double2loint(pair.x);
    words[2 * j + 1] = (uint32_t)__double2hiint(pair.x);
    words[2 * j + 2] = (uint32_t)__double2loint(pair.y);
    words[2 * j + 3] = (uint32_t)__double2hiint(pair.y);
}

static __device__ inline void brg_put(uint32_t *words, int j, float2 pair)
{
    words[j] = __float_as_uint(pair.x);
    words[j + 1] = __float_as_uint(pair.y);
}

static __device__ inline void brg_put(uint32_t *words, int j, __nv_bfloat162 pair)
{
    words[j / 2] =
        (uint32_t)__bfloat16_as_ushort(pair.y) << 16 | (uint32_t)__bfloat16_as_ushort(pair.x);
}

static __device__ inline void brg_put(uint32_t *words, int j, __half2 pair)
{
    words[j / 2] = (uint32_t)__half_as_ushort(pair.y) << 16 | (uint32_t)__half_as_ushort(pair.x);
}

/* From float32 and float64, rounded once to nearest even. */
template <typename T, typename V>
static __device__ inline void brg_put_as(uint32_t *words, int j, V x, V y)
{
    if constexpr (sizeof(T) == 8)
        brg_put(words, j, make_double2(x, y));
    else if constexpr (sizeof(T) == 4)
        brg_put(words, j, make_float2((float)x, (float)y));
    else if constexpr (sizeof(V) == 8 && __is_same(T, __half))
        brg_put(words, j, __halves2half2(__double2half(x), __double2half(y)));
    else if constexpr (sizeof(V) == 8)
        brg_put(words, j, __halves2bfloat162(__double2bfloat16(x), __double2bfloat16(y)));
    else if constexpr (__is_same(T, __half))
        brg_put(words, j, __floats2half2_rn(x, y));
    else
        brg_put(words, j, __floats2bfloat162_rn(x, y));
}

/* The part of a tile that is inside the array; `vectors` if that is all of it and W-element vectors
 * are aligned. */
struct brg_tile_part {
    int begin, end;
    bool vectors;
};

template <int THREADS_, int W_, int U_> struct brg_tile {
    static constexpr int THREADS = THREADS_, W = W_, U = U_;
    static constexpr int E = W * U, ELEMENTS = THREADS * E;

    template <typename T> static constexpr int words = E *(int)sizeof(T) / 4;

    /* `tile` is the address of the tile's first element, be that inside the array or not. */
    template <typename T>
    static __device__ void load(uint32_t (&out)[E * sizeof(T) / 4], const T *tile,
                                const brg_tile_part &part)
    {
        if (part.vectors) {
#pragma unroll
            for (int u = 0; u < U; u++)
                load_vector<W * sizeof(T)>(out + u * (W * sizeof(T) / 4),
                                           tile + (u * THREADS + (int)threadIdx.x) * W);
            return;
        }
#pragma unroll
        for (int j = 0; j < E; j++) {
            int i = j * THREADS + (int)threadIdx.x;
            load_element<T>(out, j, tile + i, part.begin <= i && i < part.end);
        }
    }

    template <typename T>
    static __device__ void store(T *tile, const uint32_t (&in)[E * sizeof(T) / 4],
                                 const brg_tile_part &part)
    {
        if (part.vectors) {
#pragma unroll
            for (int u = 0; u < U; u++)
                store_vector<W * sizeof(T)>(tile + (u * THREADS + (int)threadIdx.x) * W,
                                            in + u * (W * sizeof(T) / 4));
            return;
        }
#pragma unroll
        for (int j = 0; j < E; j++) {
            int i = j * THREADS + (int)threadIdx.x;
            if (part.begin <= i && i < part.end)
                tile[i] = brg_get<T>(in, j);
        }
    }

  private:
    template <int BYTES> static __device__ void load_vector(uint32_t *out, const void *from)
    {
        if constexpr (BYTES == 8) {
            uint2 raw = __ldca((const uint2 *)from);
            out[0] = raw.x;
            out[1] = raw.y;
        } else {
#pragma unroll
            for (int k = 0; k < BYTES / 16; k++) {
                uint4 raw = __ldca((const uint4 *)from + k);
                out[4 * k] = raw.x;
                out[4 * k + 1] = raw.y;
                out[4 * k + 2] = raw.z;
                out[4 * k + 3] = raw.w;
            }
        }
    }

    /* __stwb: a plain store is cut into words. */
    template <int BYTES> static __device__ void store_vector(void *to, const uint32_t *in)
    {
        if constexpr (BYTES == 8) {
            __stwb((uint2 *)to, make_uint2(in[0], in[1]));
        } else {
#pragma unroll
            for (int k = 0; k < BYTES / 16; k++)
                __stwb((uint4 *)to + k,
                       make_uint4(in[4 * k], in[4 * k + 1], in[4 * k + 2], in[4 * k + 3]));
        }
    }

    template <typename T>
    static __device__ void load_element(uint32_t *out, int j, const T *from, bool inside)
    {
        if constexpr (sizeof(T) == 8) {
            uint2 raw = inside ? __ldca((const uint2 *)from) : make_uint2(0, 0);
            out[2 * j] = raw.x;
            out[2 * j + 1] = raw.y;
        } else if constexpr (sizeof(T) == 4) {
            out[j] = inside ? __ldca((const unsigned *)from) : 0;
        } else {
            uint32_t raw = inside ? __ldca((const unsigned short *)from) : 0;
            out[j / 2] = j % 2 ? out[j / 2] | raw << 16 : raw;
        }
    }
};

/* How many elements before `array` vectors of `vector` elements of `element_bytes` each start. */
static inline int brg_vector_shift(const void *array, int vector, size_t element_bytes)
{
    return (int)((uintptr_t)array / element_bytes % (unsigned)vector);
}

#endif
