/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Parameter descriptions. A parameter is known everywhere else by its index in the array given to
 * brg_layout_compute(): registration order, which is model-definition (forward) order. Backprop
 * order is its reverse.
 */
#ifndef BRIGADE_PARAM_H
#define BRIGADE_PARAM_H

#include <stdint.h>

#include "brigade/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Most dimensions a parameter may have. */
#define BRG_MAX_DIMS 8

/** Flags of a parameter. */
enum brg_param_flag {
    BRG_PARAM_SHARED_EMBEDDING = 1u << 0, /**< tied across pipeline stages: a bucket of its own */
    BRG_PARAM_EXPERT_PARALLEL = 1u << 1,  /**< reduced over the expert data-parallel ranks only */
    BRG_PARAM_EMBEDDING_OR_OUTPUT = 1u
                                    << 2, /**< never layer-wise, although it has two dimensions */
    BRG_PARAM_NO_MUON = 1u << 3,          /**< never layer-wise */
    BRG_PARAM_QUANTIZED = 1u << 4,        /**< owns FP8/FP4 storage: parameter buffer holds bytes */
};

/** One parameter. Zero-initialise, then set what applies. */
typedef struct brg_param {
    const char *name;            /**< unique, not empty, UTF-8; copied by whoever keeps it */
    int num_dims;                /**< 0 for a scalar (one element) */
    int64_t shape[BRG_MAX_DIMS]; /**< in elements; row-major; a zero gives an empty parameter */
    brg_dtype dtype;             /**< type of the parameter itself */
    uint32_t flags;              /**< brg_param_flag, or-ed */
    int64_t ns_row_multiplier;   /**< rows of the whole matrix = rows * this, when the matrix is cut
                                    over   other ranks and rebuilt for Newton-Schulz; 0 means 1 */
    uint64_t reserved[4];        /**< must be zero */
} brg_param;

#ifdef __cplusplus
}
#endif
#endif
