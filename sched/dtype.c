/* SPDX-License-Identifier: Apache-2.0 */
#include "brigade/dtype.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [BRG_FLOAT32] = {"fp32", 4},  [BRG_FLOAT64] = {"fp64", 8}, [BRG_FLOAT16] = {"fp16", 2},
    [BRG_BFLOAT16] = {"bf16", 2}, [BRG_INT8] = {"i8", 1},      [BRG_UINT8] = {"u8", 1},
    [BRG_INT32] = {"i32", 4},     [BRG_UINT32] = {"u32", 4},   [BRG_INT64] = {"i64", 8},
    [BRG_UINT64] = {"u64", 8},
};

size_t brg_dtype_bytes(brg_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].bytes : 0;
}

const char *brg_dtype_str(brg_dtype dtype)
{
    return (unsigned)dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].name : "?";
}
