/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz as a list of matrix products on a batch, run through cuBLASLt.
 *
 * Standard form, each step: A = XX^T; B = bA + cA^2; X = aX + BX. Gram form,
 * which touches X at restarts only: R = XX^T; each step Z = bR + cR^2, Q = QZ + aQ (Q = Z + aI when
 * Q is still I), T = RZ + aR, R = ZT + aT; at a restart and at the end X = QX. All of R, Z, T, Q
 * are polynomials of one symmetric matrix, so that their products are symmetric.
 *
 * cuBLAS has no symmetric product for 16-bit types. There is a kernel of our own for it, for Hopper
 * (cuda_syrk.cu). With cuBLASLt a symmetric product is cut into 4 x 4 or 8 x 8
 * blocks; those on and below the diagonal are one product of a pointer-array batch, and a kernel
 * mirrors them: 0.63 or 0.56 of the arithmetic. Measured on an H200 at 4096^3: 0.188 ms whole,
 * 0.127 in 4 x 4 and 0.117 ms in 8 x 8 blocks, plus 0.012 ms; separate launches for each diagonal,
 * panel or recursive half, on one stream or four, took 0.112 to 0.146 ms.
 *
 * Rounding leaves whole products of the Gram form not quite symmetric, and a form that took A B^T
 * for A B would make more of that in every product: 0.0022 in place of 0.0008 for a Gaussian matrix
 * of 256 x 1024, 0.14 for ten steps. So whole products of square matrices are A B. The others are
 * symmetric to the bit, and may be A B^T.
 *
 * cuBLASLt is column-major: row-major D = A B is its D^T = B^T A^T, where it sees B^T and A^T. */
#include <cuda_fp16.h>

#include <algorithm>

#include "sched/optim/cuda_muon.h"
#include "sched/optim/cuda_syrk.h"

namespace
{

constexpr int MIRROR_TILE = 64, MIRROR_ROWS = 8;
constexpr int BLOCK_ALIGN = 128; /* elements; blocks then start on 256 bytes, as cuBLASLt assumes */
constexpr int MIN_BLOCK = 256;

/* Copies the lower triangle of each matrix of the batch to the upper one. */
__global__ void __launch_bounds__(MIRROR_TILE / 2 * MIRROR_ROWS)
    mirror_kernel(uint16_t *matrices, int side)
{
    __shared__ uint16_t tile[MIRROR_TILE][MIRROR_TILE + 2];
    const int row0 = blockIdx.y * MIRROR_TILE, col0 = blockIdx.x * MIRROR_TILE;
    if (col0 > row0)
        return;
    uint16_t *a = matrices + blockIdx.z * (int64_t)side * side;
    const int pair = threadIdx.x * 2;
    for (int r = threadIdx.y; r < MIRROR_TILE; r += MIRROR_ROWS) {
        ushort2 v = *(const ushort2 *)&a[(int64_t)(row0 + r) * side + col0 + pair];
        tile[r][pair] = v.x;
        tile[r][pair + 1] = v.y;
    }
    __syncthreads();
    for (int r = threadIdx.y; r < MIRROR_TILE; r += MIRROR_ROWS) {
        uint16_t *to = &a[(int64_t)(col0 + r) * side + row0 + pair];
        if (row0 != col0) {
            *(ushort2 *)to = make_ushort2(tile[pair][r], tile[pair + 1][r]);
            continue;
        }
        for (int k = 0; k < 2; k++)
            if (pair + k > r)
                to[k] = tile[pair + k][r];
    }
}

/* D = beta C + diag I */
template <typename T>
__global__ void shift_kernel(const T *c, T *d, int side, int64_t numel, float beta, float diag)
{
    const int64_t square = (int64_t)side * side;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < numel;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = i % square;
        float value = beta * (float)c[i];
        if (at / side == at % side)
            value += diag;
        d[i] = (T)value;
    }
}

template <typename T>
int shift(const brg_ns_call *call, const brg_ns_shape *shape, const void *c, void *d,
          cudaStream_t stream)
{
    int64_t numel = shape->side * shape->side * shape->batch;
    unsigned blocks = (unsigned)std::min<int64_t>((numel + 255) / 256, 4096);
    return brg_cuda_launch(shift_kernel<T>, blocks, 256, stream, (const T *)c, (T *)d,
                           (int)shape->side, numel, call->beta, call->diag);
}

cudaDataType_t type_of(int precision)
{
    return precision == BRG_NS_FP16   ? CUDA_R_16F
           : precision == BRG_NS_BF16 ? CUDA_R_16BF
                                      : CUDA_R_32F;
}

int64_t stride_of(const brg_ns_shape *shape, int buffer)
{
    return shape->side * (buffer <= BRG_NS_Y ? shape->length : shape->side);
}

int make_layout(cublasLtMatrixLayout_t *layout, int precision, int64_t rows, int64_t cols,
                int64_t leading, int batch, int64_t stride, bool pointers)
{
    int32_t mode = pointers ? CUBLASLT_BATCH_MODE_POINTER_ARRAY : CUBLASLT_BATCH_MODE_STRIDED;
    int32_t count = batch;
    if (cublasLtMatrixLayoutCreate(layout, type_of(precision), (uint64_t)rows, (uint64_t)cols,
                                   leading) ||
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, &mode,
                                         sizeof mode) ||
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof count))
        return cudaErrorUnknown;
    if (!pointers &&
        cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &stride, sizeof stride))
        return cudaErrorUnknown;
    return 0;
}

int blocks_of(brg_ns_method method)
{
    return brg_ns_method_cuts(method) ? method * (method + 1) / 2 : 0;
}

} // namespace

size_t brg_ns_element_bytes(int precision)
{
    return precision == BRG_NS_FP32 ? 4 : 2;
}

double brg_ns_scale(int precision)
{
    return precision == BRG_NS_FP16 ? BRG_NS_FP16_SCALE : 1.0;
}

size_t brg_ns_buffer_bytes(const brg_ns_shape *shape, int buffer)
{
    size_t bytes =
        (size_t)stride_of(shape, buffer) * shape->batch * brg_ns_element_bytes(shape->precision);
    return (bytes + 255) / 256 * 256;
}

char *brg_ns_buffer_at(const brg_ns_shape *shape, char *memory, int buffer)
{
    for (int i = 0; i < buffer; i++)
        memory += brg_ns_buffer_bytes(shape, i);
    return memory;
}

size_t brg_ns_memory_bytes(const brg_ns_shape *shape, bool gram)
{
    int last = gram ? BRG_NS_BUFFERS : BRG_NS_T;
    return (size_t)(brg_ns_buffer_at(shape, nullptr, last) - (char *)nullptr);
}

bool brg_ns_method_fits(const brg_ns_shape *shape, brg_ns_method method)
{
    if (method == BRG_NS_WHOLE)
        return true;
    if (method == BRG_NS_KERNEL) /* which itself says what else it needs */
        return shape->precision != BRG_NS_FP32;
    return shape->precision != BRG_NS_FP32 && shape->side % (method * BLOCK_ALIGN) == 0 &&
           shape->side / method >= MIN_BLOCK;
}

int brg_ns_product_make(const brg_ns_shape *shape, brg_ns_kind kind, brg_ns_method method,
                        brg_ns_product *product)
{
    const int64_t side = shape->side, length = shape->length;
    const int precision = shape->precision;
    const cublasComputeType_t compute =
        precision == BRG_NS_FP32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    *product = {};
    product->method = method;
    if (method == BRG_NS_KERNEL)
        return 0; /* no business of cuBLASLt's */
    if (cublasLtMatmulDescCreate(&product->desc, compute, CUDA_R_32F))
        return cudaErrorUnknown;
    if (kind == BRG_NS_APPLY) {
        const int64_t stride = side * length;
        int error =
            make_layout(&product->a, precision, length, side, length, shape->batch, stride, false);
        if (!error)
            error = make_layout(&product->b, precision, side, side, side, shape->batch, side * side,
                                false);
        return error ? error
                     : make_layout(&product->d, precision, length, side, length, shape->batch,
                                   stride, false);
    }
    const bool cut = brg_ns_method_cuts(method);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    if ((kind == BRG_NS_GRAM_OF || cut) &&
        cublasLtMatmulDescSetAttribute(product->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof transposed))
        return cudaErrorUnknown;
    const int64_t depth = kind == BRG_NS_GRAM_OF ? length : side;
    const int64_t block = cut ? side / method : side;
    const int batch = cut ? shape->batch * blocks_of(method) : shape->batch;
    int error = make_layout(&product->a, precision, depth, block, depth, batch, side * depth, cut);
    if (!error)
        error = make_layout(&product->b, precision, depth, block, depth, batch, side * depth, cut);
    return error ? error
                 : make_layout(&product->d, precision, block, block, side, batch, side * side, cut);
}

void brg_ns_product_free(brg_ns_product *product)
{
    if (product->desc)
        cublasLtMatmulDescDestroy(product->desc);
    for (cublasLtMatrixLayout_t layout : {product->a, product->b, product->d})
        if (layout)
            cublasLtMatrixLayoutDestroy(layout);
    *product = {};
}

size_t brg_ns_pointer_count(const brg_ns_shape *shape, brg_ns_method method)
{
    return 4 * (size_t)shape->batch * blocks_of(method);
}

int brg_ns_call_pointers(const brg_ns_shape *shape, brg_ns_method method, char *memory,
                         brg_ns_call *call, void **device)
{
    const size_t count = brg_ns_pointer_count(shape, method) / 4;
    const int64_t bytes = (int64_t)brg_ns_element_bytes(shape->precision);
    const int64_t block = shape->side / method;
    const int64_t depth = call->kind == BRG_NS_GRAM_OF ? shape->length : shape->side;
    std::vector<void *> pointers(4 * count);
    size_t at = 0;
    for (int matrix = 0; matrix < shape->batch; matrix++)
        for (int row = 0; row < method; row++)
            for (int col = 0; col <= row; col++, at++) {
                auto place = [&](brg_ns_buffer buffer, int64_t element) {
                    return brg_ns_buffer_at(shape, memory, buffer) +
                           (matrix * stride_of(shape, buffer) + element) * bytes;
                };
                int64_t out = row * block * shape->side + col * block;
                pointers[at] = place(call->a, row * block * depth);
                pointers[count + at] = place(call->b, col * block * depth);
                pointers[2 * count + at] = place(call->c, out);
                pointers[3 * count + at] = place(call->d, out);
            }
    call->pointers = device;
    return cudaMemcpy(device, pointers.data(), pointers.size() * sizeof(void *),
                      cudaMemcpyHostToDevice);
}

int brg_ns_call_run(const brg_ns_device *device, const brg_ns_shape *shape,
                    const brg_ns_product *product, const cublasLtMatmulAlgo_t *algo,
                    const brg_ns_call *call, char *memory, cudaStream_t stream)
{
    const void *a = brg_ns_buffer_at(shape, memory, call->a);
    const void *b = brg_ns_buffer_at(shape, memory, call->b);
    const void *c = brg_ns_buffer_at(shape, memory, call->c);
    void *d = brg_ns_buffer_at(shape, memory, call->d);
    if (call->kind == BRG_NS_SHIFT)
        return shape->precision == BRG_NS_FP32
                   ? shift<float>(call, shape, c, d, stream)
                   : shift<__half>(call, shape, c, d, stream); /* no Gram form in bfloat16 */
    if (product->method == BRG_NS_KERNEL) {
        int64_t in = stride_of(shape, call->a), out = stride_of(shape, call->d);
        int64_t depth = call->kind == BRG_NS_GRAM_OF ? shape->length : shape->side;
        return brg_symmetric_product(shape->precision == BRG_NS_BF16, shape->batch,
                                     (int)shape->side, (int)depth, call->alpha, a, in, b, in,
                                     call->beta, call->beta != 0 ? c : nullptr, out, 0, d, out,
                                     stream);
    }
    const bool cut = brg_ns_method_cuts(product->method);
    void *mirrored = d;
    if (cut) {
        size_t count = brg_ns_pointer_count(shape, product->method) / 4;
        a = call->pointers;
        b = call->pointers + count;
        c = call->pointers + 2 * count;
        d = call->pointers + 3 * count;
    }
    if (cublasLtMatmul(device->lt, product->desc, &call->alpha, b, product->a, a, product->b,
                       &call->beta, call->beta != 0 ? c : d, product->d, d, product->d, algo,
                       device->workspace, device->workspace_bytes, stream))
        return cudaErrorLaunchFailure;
    if (!cut)
        return 0;
    cudaLaunchConfig_t config = {};
    unsigned tiles = (unsigned)(shape->side / MIRROR_TILE);
    config.gridDim = dim3(tiles, tiles, (unsigned)shape->batch);
    config.blockDim = dim3(MIRROR_TILE / 2, MIRROR_ROWS);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, mirror_kernel, (uint16_t *)mirrored, (int)shape->side);
}

/* For apply, call->a is the square matrix and call->b the iterate. cuBLASLt gets B first. */
static void standard_form(const brg_ns_polynomial *polynomial, double scale,
                          brg_ns_program *program)
{
    const float gram = (float)(1 / (scale * scale));
    brg_ns_buffer x = BRG_NS_X, y = BRG_NS_Y;
    for (int i = 0; i < polynomial->num_steps(); i++) {
        const double *t = &polynomial->tuples[3 * i];
        const float a = (float)t[0], b = (float)t[1], c = (float)t[2];
        program->calls.push_back({BRG_NS_GRAM_OF, x, x, BRG_NS_R, BRG_NS_R, gram, 0, 0, nullptr});
        if (c != 0)
            program->calls.push_back(
                {BRG_NS_SQUARE, BRG_NS_R, BRG_NS_R, BRG_NS_R, BRG_NS_Z, c, b, 0, nullptr});
        program->calls.push_back({BRG_NS_APPLY, c != 0 ? BRG_NS_Z : BRG_NS_R, x, x, y,
                                  c != 0 ? 1.0f : b, a, 0, nullptr});
        std::swap(x, y);
    }
    program->result = x;
}

static void gram_form(const brg_ns_polynomial *polynomial, double scale, brg_ns_program *program)
{
    const float gram = (float)(1 / (scale * scale));
    const int steps = polynomial->num_steps();
    auto restart_at = [&](int step) {
        return std::count(polynomial->restarts.begin(), polynomial->restarts.end(), step) > 0;
    };
    brg_ns_buffer x = BRG_NS_X, y = BRG_NS_Y, q = BRG_NS_Q, t = BRG_NS_T;
    bool first = true; /* Q is still I, and R not yet made */
    for (int i = 0; i < steps; i++) {
        const double *tuple = &polynomial->tuples[3 * i];
        const float a = (float)tuple[0], b = (float)tuple[1], c = (float)tuple[2];
        if (first)
            program->calls.push_back(
                {BRG_NS_GRAM_OF, x, x, BRG_NS_R, BRG_NS_R, gram, 0, 0, nullptr});
        if (c != 0)
            program->calls.push_back(
                {BRG_NS_SQUARE, BRG_NS_R, BRG_NS_R, BRG_NS_R, BRG_NS_Z, c, b, 0, nullptr});
        else
            program->calls.push_back(
                {BRG_NS_SHIFT, BRG_NS_R, BRG_NS_R, BRG_NS_R, BRG_NS_Z, 0, b, 0, nullptr});
        const bool last = i + 1 == steps || restart_at(i + 1);
        if (!last) {
            program->calls.push_back(
                {BRG_NS_SQUARE, BRG_NS_R, BRG_NS_Z, BRG_NS_R, t, 1, a, 0, nullptr});
            program->calls.push_back({BRG_NS_SQUARE, BRG_NS_Z, t, t, BRG_NS_R, 1, a, 0, nullptr});
        }
        if (first) {
            program->calls.push_back(
                {BRG_NS_SHIFT, BRG_NS_Z, BRG_NS_Z, BRG_NS_Z, q, 0, 1, a, nullptr});
        } else { /* T is free again */
            program->calls.push_back({BRG_NS_SQUARE, q, BRG_NS_Z, q, t, 1, a, 0, nullptr});
            std::swap(q, t);
        }
        first = last;
        if (last) {
            program->calls.push_back({BRG_NS_APPLY, q, x, x, y, 1, 0, 0, nullptr});
            std::swap(x, y);
        }
    }
    program->result = x;
}

static int run_calls(const brg_ns_device *device, const brg_ns_program *program,
                     cudaStream_t stream)
{
    int error = 0;
    for (size_t i = 0; i < program->calls.size() && !error; i++) {
        const brg_ns_call *call = &program->calls[i];
        const int kind = call->kind < BRG_NS_KINDS ? call->kind : 0; /* shift uses no product */
        error = brg_ns_call_run(device, &program->shape, &program->products[kind],
                                &program->choice.algo[kind], call, program->memory, stream);
    }
    return error;
}

/* A product takes the host some 5 us to launch, small ones take the device less. */
static int make_graph(const brg_ns_device *device, brg_ns_program *program)
{
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    int error = cudaStreamSynchronize(nullptr); /* pointers are copied: `stream` waits for none */
    if (!error)
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!error) /* what is loaded or set up by a first launch must not be in a capture */
        error = run_calls(device, program, stream);
    if (!error)
        error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (!error) {
        error = run_calls(device, program, stream);
        int ended = cudaStreamEndCapture(stream, &graph);
        error = error ? error : ended;
    }
    if (!error)
        error = cudaGraphInstantiateWithFlags(&program->graph, graph, 0);
    if (!error)
        error = cudaGraphUpload(program->graph, stream);
    if (!error)
        error = cudaStreamSynchronize(stream);
    if (graph)
        cudaGraphDestroy(graph);
    if (stream)
        cudaStreamDestroy(stream);
    return error;
}

int brg_ns_program_make(const brg_ns_device *device, const brg_ns_shape *shape,
                        const brg_ns_polynomial *polynomial, const brg_ns_choice *choice,
                        char *memory, brg_ns_program *program)
{
    program->shape = *shape;
    program->choice = *choice;
    program->memory = memory;
    if (choice->gram)
        gram_form(polynomial, brg_ns_scale(shape->precision), program);
    else
        standard_form(polynomial, brg_ns_scale(shape->precision), program);
    for (int kind = 0; kind < BRG_NS_KINDS; kind++) {
        int error = brg_ns_product_make(shape, (brg_ns_kind)kind, choice->method[kind],
                                        &program->products[kind]);
        if (error)
            return error;
    }
    size_t count = 0;
    for (const brg_ns_call &call : program->calls)
        if (call.kind < BRG_NS_KINDS)
            count += brg_ns_pointer_count(shape, choice->method[call.kind]);
    int error = 0;
    if (count > 0)
        error = cudaMalloc((void **)&program->pointers, count * sizeof(void *));
    void **at = program->pointers;
    for (brg_ns_call &call : program->calls) {
        if (error || call.kind >= BRG_NS_KINDS || !brg_ns_method_cuts(choice->method[call.kind]))
            continue;
        error = brg_ns_call_pointers(shape, choice->method[call.kind], memory, &call, at);
        at += brg_ns_pointer_count(shape, choice->method[call.kind]);
    }
    return error ? error : make_graph(device, program);
}

void brg_ns_program_free(brg_ns_program *program)
{
    for (brg_ns_product &product : program->products)
        brg_ns_product_free(&product);
    cudaFree(program->pointers);
    program->pointers = nullptr;
    if (program->graph)
        cudaGraphExecDestroy(program->graph);
    program->graph = nullptr;
}

int brg_ns_program_run(const brg_ns_device *device, const brg_ns_program *program,
                       cudaStream_t stream)
{
    cudaStreamCaptureStatus capture;
    int error = cudaStreamIsCapturing(stream, &capture);
    if (error)
        return error;
    return capture == cudaStreamCaptureStatusNone ? cudaGraphLaunch(program->graph, stream)
                                                  : run_calls(device, program, stream);
}
