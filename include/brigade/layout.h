/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Layouts: where each parameter lives.
 *
 * A layout is a value. It is computed from parameter descriptions alone, touches no device, and is
 * handed to schedulers and optimizers alike. All offsets and sizes are in elements of the buffer.
 *
 * Parameters that share a key (parameter dtype, gradient dtype, expert-parallel or dense,
 * layer-wise or standard) share a buffer. A buffer is cut into buckets; a bucket into @c num_shards
 * equal shards.
 *
 * Thread rules: a layout is immutable; any number of threads may read it.
 */
#ifndef BRIGADE_LAYOUT_H
#define BRIGADE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "brigade/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_layout brg_layout;

typedef enum brg_algorithm {
    BRG_LAYERWISE = 0,   /**< matrices for Muon whole in one shard, everything else element-wise */
    BRG_ELEMENTWISE = 1, /**< shards may cut parameters; 64-element starts, padded bucket ends */
    BRG_FLAT = 2,        /**< back to back in backprop order, no padding */
} brg_algorithm;

/** How a chunk of whole matrices is packed into shards (BRG_LAYERWISE only). */
typedef enum brg_packing {
    BRG_PACKING_DEFAULT = 0,     /**< the library's choice, today BRG_PACKING_NS_BALANCED */
    BRG_PACKING_LPT = 1,         /**< largest first to the emptiest shard */
    BRG_PACKING_ABSORB = 2,      /**< as LPT; a full chunk still absorbs what fits for nothing */
    BRG_PACKING_NS_BALANCED = 3, /**< balances Newton-Schulz work over the ranks */
} brg_packing;

/** Values of brg_layout_options::bucket_size with a meaning of their own. */
#define BRG_BUCKET_SIZE_DEFAULT 0 /**< max(40,000,000, 1,000,000 * data_parallel_size) */
#define BRG_BUCKET_SIZE_NONE (-1) /**< one bucket per buffer */
#define BRG_BUCKET_SIZE_SMALLEST                                                                   \
    (-2) /**< a threshold of zero elements: cut as often as possible                               \
          */

/** Zero means default everywhere. */
typedef struct brg_layout_options {
    size_t size; /**< sizeof(brg_layout_options); 0 means its size in version 1.0 */
    brg_algorithm algorithm;
    brg_packing packing;
    int data_parallel_size;        /**< shards of a dense buffer; 0 means 1 */
    int expert_data_parallel_size; /**< shards of an expert-parallel buffer; 0 means
                                      data_parallel_size */
    int64_t bucket_size;           /**< elements, or one of BRG_BUCKET_SIZE_* */
    int64_t num_buckets; /**< bucket_size = all elements / num_buckets; excludes bucket_size */
    int pad_for_high_bus_bandwidth; /**< pad bucket ends to a multiple of 2^16 as well */
    int pad_param_starts;           /**< BRG_FLAT only: 64-element parameter starts */
    brg_dtype grad_dtype;           /**< type of the gradient buffers; zero is float32 */
    int grad_dtype_is_param_dtype;  /**< gradients have their parameter's type instead */
} brg_layout_options;

/** What parameters of one buffer have in common. */
typedef struct brg_buffer_key {
    brg_dtype param_dtype; /**< storage type: BRG_UINT8 for quantized parameters */
    brg_dtype grad_dtype;
    int expert_parallel; /**< 0 or 1 */
    int layerwise;       /**< 0 or 1: managed by the layer-wise optimizer */
} brg_buffer_key;

typedef struct brg_layout_bucket {
    int64_t start, end;     /**< [start, end) in the buffer */
    int64_t numel_unpadded; /**< elements that count; end - start less the padding at the end */
} brg_layout_bucket;

typedef struct brg_layout_param {
    int param;  /**< index in registration order */
    int bucket; /**< bucket within the buffer */
    int shard;  /**< shard that holds all of it; -1 where a shard may cut through parameters */
    int64_t start, end; /**< [start, end) in the buffer */
} brg_layout_param;

/** One buffer of a layout; everything is owned by the layout. */
typedef struct brg_layout_buffer {
    brg_buffer_key key;
    char name[32];          /**< "bf16/fp32/dense/lw": the key in words */
    int num_shards;         /**< data-parallel size of this buffer */
    int64_t numel;          /**< with padding; end of the last bucket */
    int64_t numel_unpadded; /**< sum of the parameters' elements */
    double ns_ratio; /**< largest / mean Newton-Schulz work over the shards; 1 where it has none */
    int num_buckets;
    const brg_layout_bucket *buckets; /**< in backprop order */
    int num_params;
    const brg_layout_param *params; /**< in order of start */
} brg_layout_buffer;

/** Computes a layout.
 *
 * @param params      @p num_params descriptions in registration order; copied.
 * @param num_params  0 or more.
 * @param options     NULL means all defaults.
 * @param[out] layout on success a layout to be freed with brg_layout_destroy(); on failure NULL.
 * @return BRG_ERR_INVALID_ARGUMENT (message names the parameter or option), BRG_ERR_NO_MEMORY.
 *
 * The rules are those of Megatron-LM's parameter layouts (DistributedDataParallel, distributed
 * optimizer, layer-wise optimizer), reproduced element for element.
 */
BRG_API brg_status brg_layout_compute(const brg_param *params, int num_params,
                                      const brg_layout_options *options, brg_layout **layout);

/** Frees a layout. NULL is allowed. */
BRG_API void brg_layout_destroy(brg_layout *layout);

/** @return the number of parameters, buffers, and buckets over all buffers. */
BRG_API int brg_layout_num_params(const brg_layout *layout);
BRG_API int brg_layout_num_buffers(const brg_layout *layout);
BRG_API int brg_layout_num_buckets(const brg_layout *layout);

/** @return parameter @p param as registered (name owned by the layout); NULL if out of range. */
BRG_API const brg_param *brg_layout_param_info(const brg_layout *layout, int param);

/** @return buffer @p buffer, in order of creation; NULL if out of range. */
BRG_API const brg_layout_buffer *brg_layout_get_buffer(const brg_layout *layout, int buffer);

/** Finds a parameter: its buffer and its placement there. Either output may be NULL.
 * @return BRG_ERR_INVALID_ARGUMENT if @p param is out of range. */
BRG_API brg_status brg_layout_find(const brg_layout *layout, int param, int *buffer,
                                   const brg_layout_param **placement);

/** @return the options in force, defaults filled in. bucket_size is the resolved threshold, or
 * BRG_BUCKET_SIZE_NONE, or BRG_BUCKET_SIZE_SMALLEST. */
BRG_API const brg_layout_options *brg_layout_get_options(const brg_layout *layout);

/** @return elements of @p param: the product of its shape, 1 for a scalar; -1 on NULL, overflow or
 * a negative dimension. */
BRG_API int64_t brg_param_numel(const brg_param *param);

/** Writes a layout as one JSON document (schema 1, see `brigade plan --json`).
 * @param[out] text a string to be freed with brg_free(). */
BRG_API brg_status brg_layout_to_json(const brg_layout *layout, char **text);

/** Reads a layout back and checks every invariant.
 * @param text        the document, of @p bytes bytes.
 * @param params      the parameters that it must be for, as for brg_layout_compute().
 * @return BRG_ERR_FORMAT with a message that names what is wrong. */
BRG_API brg_status brg_layout_from_json(const char *text, size_t bytes, const brg_param *params,
                                        int num_params, brg_layout **layout);

/** Checks the invariants: every parameter in exactly one place, none overlapping; bucket ids
 * monotone in backprop order; bucket boundaries divisible by the number of shards (unless
 * BRG_FLAT); a layer-wise parameter inside one shard; 64-element starts (unless BRG_FLAT without
 * pad_param_starts). brg_layout_compute() and brg_layout_from_json() call it.
 * @return BRG_ERR_FORMAT with a message that names the parameter or bucket. */
BRG_API brg_status brg_layout_check(const brg_layout *layout);

/** Frees what a brg_ function has returned for the caller to free. NULL is allowed. */
BRG_API void brg_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif
