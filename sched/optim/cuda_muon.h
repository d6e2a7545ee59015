/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libbrigade-cuda.so: Muon's parts.
 *
 * cuda_muon.cu          the plan: matrices of one shape in batches, workspace, update
 * cuda_muon_kernels.cu  momentum and norm; normalise; scale, decay, apply
 * cuda_ns.cu            Newton-Schulz as a list of products, run through cuBLASLt
 * cuda_ns_tune.cu       which form, which products, which cuBLASLt algorithm
 * cuda_ns_cache.cu      the file of such choices
 *
 * Newton-Schulz works on wide matrices only: `side` rows of `length` >= side elements, row-major,
 * both padded with zeros to multiples of 8, so that every row starts on 16 bytes; the polynomial of
 * a padded matrix is the padded polynomial. Tall ones are transposed by the kernels that write and
 * read the iterate, which costs no traffic.
 *
 * The iterate is stored times BRG_NS_FP16_SCALE in float16: elements of a large normalised matrix
 * are near 1e-4, where float16 becomes subnormal. A power of two multiplies exactly; the products
 * divide by its square. */
#ifndef BRIGADE_SCHED_OPTIM_CUDA_MUON_H
#define BRIGADE_SCHED_OPTIM_CUDA_MUON_H

#include <cublasLt.h>

#include <string>
#include <vector>

#include "brigade/optimizer.h"
#include "sched/optim/cuda.h"
#include "sched/optim/ns.h"

/* Singular values up to 16 stay finite, far above what any coefficient set leads to. */
#define BRG_NS_FP16_SCALE 4096.0

/* Matrices of a batch. */
#define BRG_NS_MAX_BATCH 256

/* Shared by all products of a plan, which run one after another. */
struct brg_ns_device {
    cublasLtHandle_t lt;
    void *workspace; /* of cuBLASLt */
    size_t workspace_bytes;
    std::string name, cublas_version;
};

/* A batch of equal matrices; padded sizes. */
struct brg_ns_shape {
    int64_t side, length;
    int batch;
    int precision; /* brg_ns_precision */
};

/* Products: gram D = alpha A A^T of side x length A; square D = alpha A B + beta C of symmetric
 * commuting A and B, so that D is symmetric; apply D = alpha A B + beta C of symmetric A and
 * side x length B. And shift D = beta C + diag I. */
enum brg_ns_kind { BRG_NS_GRAM_OF, BRG_NS_SQUARE, BRG_NS_APPLY, BRG_NS_KINDS, BRG_NS_SHIFT };

/* X and Y are side x length; the rest side x side. */
enum brg_ns_buffer { BRG_NS_X, BRG_NS_Y, BRG_NS_R, BRG_NS_Z, BRG_NS_T, BRG_NS_Q, BRG_NS_BUFFERS };

struct brg_ns_call {
    brg_ns_kind kind;
    brg_ns_buffer a, b, c, d;
    float alpha, beta, diag;
    void **pointers; /* device memory: A, B, C and D of every block, where there are blocks */
};

/* How a symmetric product is made. */
enum brg_ns_method {
    BRG_NS_WHOLE = 0,  /* by one product of the full matrices */
    BRG_NS_KERNEL = 1, /* by brg_symmetric_product() */
    BRG_NS_BLOCKS4 = 4,
    BRG_NS_BLOCKS8 = 8, /* the lower ones of 8 x 8 blocks, then mirrored */
};

struct brg_ns_choice {
    int gram; /* the Gram form; else the standard form */
    brg_ns_method method[BRG_NS_KINDS];
    cublasLtMatmulAlgo_t algo[BRG_NS_KINDS];
};

struct brg_ns_polynomial {
    std::vector<double> tuples; /* a, b, c of every step */
    std::vector<int> restarts;  /* of the Gram form, ascending */
    int num_steps() const
    {
        return (int)tuples.size() / 3;
    }
};

/* cuBLASLt's description of one kind of product. */
struct brg_ns_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    brg_ns_method method;
};

struct brg_ns_program {
    brg_ns_shape shape;
    brg_ns_choice choice;
    brg_ns_product products[BRG_NS_KINDS];
    std::vector<brg_ns_call> calls;
    brg_ns_buffer result;  /* X or Y */
    char *memory;          /* of the buffers; not owned */
    void **pointers;       /* owned */
    cudaGraphExec_t graph; /* all of `calls`; owned */
};

/* cuda_ns.cu */
size_t brg_ns_element_bytes(int precision);
size_t brg_ns_buffer_bytes(const brg_ns_shape *shape, int buffer);
size_t brg_ns_memory_bytes(const brg_ns_shape *shape, bool gram);
char *brg_ns_buffer_at(const brg_ns_shape *shape, char *memory, int buffer);
double brg_ns_scale(int precision);
int brg_ns_product_make(const brg_ns_shape *shape, brg_ns_kind kind, brg_ns_method method,
                        brg_ns_product *product);
void brg_ns_product_free(brg_ns_product *product);
/* Whether `shape` can be cut into the method's blocks. */
bool brg_ns_method_fits(const brg_ns_shape *shape, brg_ns_method method);
/* Whether it is a product of blocks, which needs pointers. */
static inline bool brg_ns_method_cuts(brg_ns_method method)
{
    return method == BRG_NS_BLOCKS4 || method == BRG_NS_BLOCKS8;
}
/* Fills `call->pointers`, `count` of which it needs; allocates on the device. */
int brg_ns_call_pointers(const brg_ns_shape *shape, brg_ns_method method, char *memory,
                         brg_ns_call *call, void **device);
size_t brg_ns_pointer_count(const brg_ns_shape *shape, brg_ns_method method);
int brg_ns_call_run(const brg_ns_device *device, const brg_ns_shape *shape,
                    const brg_ns_product *product, const cublasLtMatmulAlgo_t *algo,
                    const brg_ns_call *call, char *memory, cudaStream_t stream);
/* `memory` outlives the program; it is overwritten. */
int brg_ns_program_make(const brg_ns_device *device, const brg_ns_shape *shape,
                        const brg_ns_polynomial *polynomial, const brg_ns_choice *choice,
                        char *memory, brg_ns_program *program);
void brg_ns_program_free(brg_ns_program *program);
/* One launch of a graph; launches each product if the stream is being captured. */
int brg_ns_program_run(const brg_ns_device *device, const brg_ns_program *program,
                       cudaStream_t stream);

/* cuda_ns_tune.cu */

/* The choice for matrices of this shape, good for every number of them: shape->batch is not read.
 * From the file (NULL: none), else what this process has chosen before, else timed on random data.
 * `algorithm`: brg_ns_algorithm. *cached: whether the file had it. */
int brg_ns_choose(const brg_ns_device *device, const brg_ns_shape *shape,
                  const brg_ns_polynomial *polynomial, int algorithm, bool gram_allowed,
                  const char *cache_file, brg_ns_choice *choice, bool *cached);

/* cuda_ns_cache.cu */
std::string brg_ns_cache_key(const brg_ns_device *device, const brg_ns_shape *shape,
                             const brg_ns_polynomial *polynomial, int algorithm);
/* In the file, or with NULL among what this process has added. */
bool brg_ns_cache_find(const char *file, const std::string &key, brg_ns_choice *choice);
/* Adds it for this process, and to the file if there is one. Where another came first, *choice
 * becomes that one. That a file cannot be written is of no consequence: the next plan tunes again.
 */
void brg_ns_cache_add(const char *file, const std::string &key, brg_ns_choice *choice);

/* cuda_muon_kernels.cu */

/* What the kernels know of a matrix; an array of these lies in device memory. */
struct brg_muon_item {
    void *param;
    const void *grad;
    float *master, *momentum;
    int rows, cols, piece_rows;
    int64_t piece_stride;
    int param_dtype, grad_dtype;
    int vectors; /* four neighbours of a row can be accessed at once */
    double rate; /* update factor besides lr: extra * shape scale / iterate scale */
};

struct brg_muon_momentum {
    double mu, weight, ahead, aside; /* M = mu M + weight g; X = ahead M + aside g */
};

/* Partial sums of squares of a matrix; always all of them. */
#define BRG_MUON_PARTIALS 256

/* Momentum of `count` matrices, and the sums of squares of what Newton-Schulz gets. */
int brg_muon_momentum_run(const brg_muon_item *items, int count, const brg_step_state *state,
                          const brg_muon_momentum *momentum, double *partials, void *stream);
/* Writes X = scale * (what Newton-Schulz gets) / max(norm, eps), shape->batch matrices. */
int brg_muon_normalize_run(const brg_muon_item *items, const brg_ns_shape *shape,
                           const brg_step_state *state, const brg_muon_momentum *momentum,
                           const double *partials, double eps, void *x, void *stream);
/* How a matrix is iterated: in a batch of equal shapes; or, since float32 products are not accurate
 * enough there, as on the host in float64: vectors as the one singular value that they have, those
 * up to BRG_NS_SMALL_ELEMS elements by one block of threads each. */
enum brg_muon_way { BRG_MUON_BATCHED, BRG_MUON_SMALL, BRG_MUON_VECTOR };

/* Normalises, iterates and applies `count` matrices or vectors in float64. */
int brg_muon_exact_run(brg_muon_way way, const brg_muon_item *items, int count,
                       const brg_step_state *state, const brg_hyper_state *hyper,
                       const brg_muon_momentum *momentum, const double *partials, double eps,
                       const brg_ns_schedule *schedule, void *stream);
/* master = decay * master - lr * rate * X, and the parameter. */
int brg_muon_apply_run(const brg_muon_item *items, const brg_ns_shape *shape,
                       const brg_step_state *state, const brg_hyper_state *hyper, const void *x,
                       void *stream);

/* cuda_muon.cu */
int brg_cuda_muon_create(const brg_muon_matrix *matrices, int count, const brg_muon_config *config,
                         brg_muon_plan **plan, char *message, size_t message_bytes);
int brg_cuda_muon_update(brg_muon_plan *plan, const brg_step_state *state,
                         const brg_hyper_state *hyper, void *stream);
int brg_cuda_muon_ns_run(brg_muon_plan *plan, void *stream);
void brg_cuda_muon_destroy(brg_muon_plan *plan);
const char *brg_cuda_muon_describe(const brg_muon_plan *plan);

#endif
