/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses how a shape is iterated, by timing on the device: for each kind of product the method and
 * the cuBLASLt algorithm, then the form. Data are random: zeros run a fifth faster, since they
 * switch fewer transistors.
 *
 * Ranks have different numbers of a shape's matrices and yet must choose the same. So the batch on
 * which candidates are timed depends on the shape alone, candidates are algorithms that work for
 * every batch and whose sums no batch changes, they are tried in an order of preference, and each
 * must clearly beat the best before it. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "sched/optim/cuda_muon.h"

namespace
{

constexpr int MAX_ALGOS = 8;
constexpr int TIMED_RUNS = 5, TIMED_BURSTS = 3;
/* What a later candidate must undercut, so that noise does not choose, and two ranks choose alike.
 */
constexpr float CLEARLY = 0.97f;
/* The batch that is timed: twice what one matrix of 4096 x 4096 has in tiles of 128 x 128, so that
 * the last wave of tiles matters little; within some memory. */
constexpr int64_t SAMPLE_TILES = 1056, SAMPLE_ELEMENTS = (int64_t)1 << 27;

__device__ float random_value(int64_t i, unsigned seed)
{
    uint64_t x = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (float)(x & 0xffffff) / 8388608.0f - 1.0f;
}

template <typename T>
__global__ void fill_kernel(T *values, int64_t numel, float size, unsigned seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < numel;
         i += (int64_t)gridDim.x * blockDim.x)
        values[i] = (T)(size * random_value(i, seed));
}

template <typename T> int fill(void *memory, size_t bytes, float size, cudaStream_t stream)
{
    return brg_cuda_launch(fill_kernel<T>, 1024, 256, stream, (T *)memory,
                           (int64_t)(bytes / sizeof(T)), size, 17u);
}

struct timer {
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr, end = nullptr;
    int open()
    {
        int error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        if (!error)
            error = cudaEventCreate(&start);
        return error ? error : cudaEventCreate(&end);
    }
    ~timer()
    {
        if (end)
            cudaEventDestroy(end);
        if (start)
            cudaEventDestroy(start);
        if (stream)
            cudaStreamDestroy(stream);
    }
    /* Milliseconds of a run in the fastest burst; the first run is not counted. */
    template <typename F> int time(F run, float *ms)
    {
        int error = run();
        for (int burst = 0; burst < TIMED_BURSTS && !error; burst++) {
            float elapsed = 0;
            error = cudaEventRecord(start, stream);
            for (int i = 0; i < TIMED_RUNS && !error; i++)
                error = run();
            if (!error)
                error = cudaEventRecord(end, stream);
            if (!error)
                error = cudaEventSynchronize(end);
            if (!error)
                error = cudaEventElapsedTime(&elapsed, start, end);
            *ms = burst ? std::min(*ms, elapsed / TIMED_RUNS) : elapsed / TIMED_RUNS;
        }
        return error;
    }
};

/* Random iterates as after normalisation; the rest small enough not to overflow. */
int fill_buffers(const brg_ns_shape *shape, char *memory, bool gram, cudaStream_t stream)
{
    int last = gram ? BRG_NS_BUFFERS : BRG_NS_T, error = 0;
    for (int i = 0; i < last && !error; i++) {
        float size = i <= BRG_NS_Y ? (float)brg_ns_scale(shape->precision) : 1.0f;
        size /=
            sqrtf((float)shape->side) * sqrtf((float)(i <= BRG_NS_Y ? shape->length : shape->side));
        size_t bytes = brg_ns_buffer_bytes(shape, i);
        void *at = brg_ns_buffer_at(shape, memory, i);
        error = shape->precision == BRG_NS_FP16   ? fill<__half>(at, bytes, size, stream)
                : shape->precision == BRG_NS_BF16 ? fill<__nv_bfloat16>(at, bytes, size, stream)
                                                  : fill<float>(at, bytes, size, stream);
    }
    return error;
}

/* A call of this kind with epilogue, on buffers that every form has. */
brg_ns_call sample_call(brg_ns_kind kind, int precision)
{
    float scale = (float)brg_ns_scale(precision);
    switch (kind) {
    case BRG_NS_GRAM_OF:
        return {kind, BRG_NS_X, BRG_NS_X, BRG_NS_R, BRG_NS_R, 1 / (scale * scale), 0, 0, nullptr};
    case BRG_NS_SQUARE:
        return {kind, BRG_NS_R, BRG_NS_R, BRG_NS_R, BRG_NS_Z, 1, 0.5f, 0, nullptr};
    default:
        return {kind, BRG_NS_Z, BRG_NS_X, BRG_NS_X, BRG_NS_Y, 1, 0.5f, 0, nullptr};
    }
}

brg_ns_shape sample_of(const brg_ns_shape *shape)
{
    brg_ns_shape sample = *shape;
    const int64_t tiles = (shape->side + 127) / 128;
    int64_t batch = std::min(SAMPLE_TILES / (tiles * (tiles + 1) / 2),
                             SAMPLE_ELEMENTS / (shape->side * shape->length));
    sample.batch = (int)std::clamp<int64_t>(batch, 1, BRG_NS_MAX_BATCH);
    return sample;
}

/* Whether cuBLASLt runs this algorithm on one matrix as on the largest batch, with unsplit sums:
 * the order in which a matrix' products are added must not depend on the batch. */
bool usable(const brg_ns_device *device, const brg_ns_shape *shape, brg_ns_kind kind,
            brg_ns_method method, const cublasLtMatmulAlgo_t *algo)
{
    int32_t splits = 0;
    size_t written = 0;
    if (!brg_ns_method_fits(shape, method))
        return false;
    if (method == BRG_NS_KERNEL)
        return true;
    if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                             sizeof splits, &written) ||
        splits > 1)
        return false;
    bool fits = true;
    for (int batch : {1, BRG_NS_MAX_BATCH}) {
        brg_ns_product product = {};
        cublasLtMatmulHeuristicResult_t result;
        brg_ns_shape other = *shape;
        other.batch = batch;
        fits = fits && !brg_ns_product_make(&other, kind, method, &product) &&
               !cublasLtMatmulAlgoCheck(device->lt, product.desc, product.a, product.b, product.d,
                                        product.d, algo, &result) &&
               result.workspaceSize <= device->workspace_bytes;
        brg_ns_product_free(&product);
    }
    return fits;
}

/* What cuBLASLt proposes, the best first. */
int propose(const brg_ns_device *device, const brg_ns_product *product,
            cublasLtMatmulHeuristicResult_t *found, int *count)
{
    cublasLtMatmulPreference_t preference;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    *count = 0;
    if (cublasLtMatmulPreferenceCreate(&preference))
        return cudaErrorUnknown;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &device->workspace_bytes, sizeof device->workspace_bytes);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &reductions, sizeof reductions);
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(device->lt, product->desc, product->a, product->b,
                                       product->d, product->d, preference, MAX_ALGOS, found, count);
    cublasLtMatmulPreferenceDestroy(preference);
    return status == CUBLAS_STATUS_SUCCESS || status == CUBLAS_STATUS_NOT_SUPPORTED
               ? 0
               : cudaErrorUnknown;
}

/* Updates the choice for `kind` if this method beats *best milliseconds. */
int try_method(const brg_ns_device *device, const brg_ns_shape *shape, brg_ns_kind kind,
               brg_ns_method method, char *memory, timer *clock, brg_ns_choice *choice, float *best)
{
    brg_ns_product product = {};
    brg_ns_call call = sample_call(kind, shape->precision);
    cublasLtMatmulHeuristicResult_t found[MAX_ALGOS];
    void **pointers = nullptr;
    int count = 0;
    int error = brg_ns_product_make(shape, kind, method, &product);
    if (!error && brg_ns_method_cuts(method))
        error =
            cudaMalloc((void **)&pointers, brg_ns_pointer_count(shape, method) * sizeof(void *));
    if (!error && pointers)
        error = brg_ns_call_pointers(shape, method, memory, &call, pointers);
    if (method == BRG_NS_KERNEL) {
        found[0] = {};
        count = 1;
    } else if (!error) {
        error = propose(device, &product, found, &count);
    }
    for (int i = 0; i < count && !error; i++) {
        float ms = 0;
        if (!usable(device, shape, kind, method, &found[i].algo))
            continue;
        int refused = clock->time(
            [&] {
                return brg_ns_call_run(device, shape, &product, &found[i].algo, &call, memory,
                                       clock->stream);
            },
            &ms);
        /* What refuses to launch is no candidate; a broken context shows itself at the
         * synchronisation below. */
        if (refused == cudaErrorLaunchFailure || refused == cudaErrorNotSupported)
            continue;
        error = refused;
        if (!error && ms < *best * CLEARLY) {
            *best = ms;
            choice->method[kind] = method;
            choice->algo[kind] = found[i].algo;
        }
    }
    int synchronized = cudaStreamSynchronize(clock->stream);
    cudaFree(pointers);
    brg_ns_product_free(&product);
    return error ? error : synchronized;
}

int tune_kind(const brg_ns_device *device, const brg_ns_shape *shape, brg_ns_kind kind,
              int algorithm, char *memory, timer *clock, brg_ns_choice *choice)
{
    const float none = 1e30f;
    float best = none;
    int error = 0;
    if (kind != BRG_NS_APPLY && algorithm != BRG_NS_STANDARD)
        for (brg_ns_method method : {BRG_NS_KERNEL, BRG_NS_BLOCKS8, BRG_NS_BLOCKS4})
            if (!error && brg_ns_method_fits(shape, method))
                error = try_method(device, shape, kind, method, memory, clock, choice, &best);
    /* Pinned to the symmetric form, whole products are for shapes that cannot be cut. */
    if (!error && (algorithm != BRG_NS_SYMMETRIC || best == none))
        error = try_method(device, shape, kind, BRG_NS_WHOLE, memory, clock, choice, &best);
    return !error && best == none ? cudaErrorNotSupported : error;
}

int time_form(const brg_ns_device *device, const brg_ns_shape *shape,
              const brg_ns_polynomial *polynomial, const brg_ns_choice *choice, char *memory,
              timer *clock, float *ms)
{
    brg_ns_program program = {};
    int error = brg_ns_program_make(device, shape, polynomial, choice, memory, &program);
    if (!error)
        error = fill_buffers(shape, memory, choice->gram, clock->stream);
    if (!error)
        error =
            clock->time([&] { return brg_ns_program_run(device, &program, clock->stream); }, ms);
    brg_ns_program_free(&program);
    return error;
}

/* Times candidates on random data in `memory`. */
int tune(const brg_ns_device *device, const brg_ns_shape *shape,
         const brg_ns_polynomial *polynomial, int algorithm, bool gram_allowed, char *memory,
         brg_ns_choice *choice)
{
    timer clock;
    brg_ns_choice found = {};
    int error = clock.open();
    if (!error)
        error = fill_buffers(shape, memory, gram_allowed, clock.stream);
    for (int kind = 0; kind < BRG_NS_KINDS && !error; kind++)
        error = tune_kind(device, shape, (brg_ns_kind)kind, algorithm, memory, &clock, &found);
    if (!error && gram_allowed && algorithm == BRG_NS_AUTO) {
        float standard = 0, gram = 0;
        error = time_form(device, shape, polynomial, &found, memory, &clock, &standard);
        found.gram = 1;
        if (!error)
            error = time_form(device, shape, polynomial, &found, memory, &clock, &gram);
        found.gram = gram < standard * CLEARLY;
    } else {
        found.gram = gram_allowed;
    }
    if (!error)
        *choice = found;
    return error;
}

bool choice_usable(const brg_ns_device *device, const brg_ns_shape *shape, bool gram_allowed,
                   const brg_ns_choice *choice)
{
    bool all = gram_allowed || !choice->gram;
    for (int kind = 0; kind < BRG_NS_KINDS && all; kind++)
        all = usable(device, shape, (brg_ns_kind)kind, choice->method[kind], &choice->algo[kind]);
    return all;
}

} // namespace

int brg_ns_choose(const brg_ns_device *device, const brg_ns_shape *shape,
                  const brg_ns_polynomial *polynomial, int algorithm, bool gram_allowed,
                  const char *cache_file, brg_ns_choice *choice, bool *cached)
{
    const std::string key = brg_ns_cache_key(device, shape, polynomial, algorithm);
    auto found = [&](const char *file) {
        return brg_ns_cache_find(file, key, choice) &&
               choice_usable(device, shape, gram_allowed, choice);
    };
    *cached = cache_file && found(cache_file);
    if (*cached)
        return 0;
    if (!found(nullptr)) {
        brg_ns_shape sample = sample_of(shape);
        char *memory = nullptr;
        int error = cudaMalloc((void **)&memory, brg_ns_memory_bytes(&sample, gram_allowed));
        for (; error == cudaErrorMemoryAllocation && sample.batch > 1;
             error = cudaMalloc((void **)&memory, brg_ns_memory_bytes(&sample, gram_allowed))) {
            cudaGetLastError(); /* it is dealt with */
            sample.batch /= 2;
        }
        if (!error)
            error = tune(device, &sample, polynomial, algorithm, gram_allowed, memory, choice);
        cudaFree(memory);
        if (error)
            return error;
    }
    const brg_ns_choice mine = *choice;
    brg_ns_cache_add(cache_file, key, choice);
    if (!choice_usable(device, shape, gram_allowed, choice)) /* somebody has edited the file */
        *choice = mine;
    return 0;
}
