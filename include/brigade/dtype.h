/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Element types. Zero is float32, so that zero-initialised options mean float32.
 */
#ifndef BRIGADE_DTYPE_H
#define BRIGADE_DTYPE_H

#include <stddef.h>

#include "brigade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum brg_dtype {
    BRG_FLOAT32 = 0,
    BRG_FLOAT64 = 1,
    BRG_FLOAT16 = 2,
    BRG_BFLOAT16 = 3,
    BRG_INT8 = 4,
    BRG_UINT8 = 5,
    BRG_INT32 = 6,
    BRG_UINT32 = 7,
    BRG_INT64 = 8,
    BRG_UINT64 = 9,
} brg_dtype;

/** Reduction operators of brg_all_reduce. */
typedef enum brg_op {
    BRG_SUM = 0,
    BRG_PROD = 1,
    BRG_MAX = 2,
    BRG_MIN = 3,
    BRG_AVG = 4, /**< sum divided by the number of ranks */
} brg_op;

/** @return bytes per element, 0 if @p dtype is not one of brg_dtype. */
BRG_API size_t brg_dtype_bytes(brg_dtype dtype);

/** @return the short name used in buffer keys and JSON ("fp32", "bf16", "u8", ...), "?" if unknown.
 */
BRG_API const char *brg_dtype_str(brg_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
