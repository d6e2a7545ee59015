/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "sched/layout/layout.h"
#include "sched/options.h"

const char *brg_algorithm_str(brg_algorithm algorithm)
{
    switch (algorithm) {
    case BRG_LAYERWISE:
        return "layerwise";
    case BRG_ELEMENTWISE:
        return "elementwise";
    case BRG_FLAT:
        return "flat";
    }
    return NULL;
}

const char *brg_packing_str(brg_packing packing)
{
    switch (packing) {
    case BRG_PACKING_DEFAULT:
    case BRG_PACKING_NS_BALANCED:
        return "ns-balanced";
    case BRG_PACKING_LPT:
        return "lpt";
    case BRG_PACKING_ABSORB:
        return "absorb";
    }
    return NULL;
}

static brg_status check_ranges(const brg_layout_options *options)
{
    if (!brg_algorithm_str(options->algorithm))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "algorithm %d is not one of brg_algorithm",
                        (int)options->algorithm);
    if (!brg_packing_str(options->packing))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "packing %d is not one of brg_packing",
                        (int)options->packing);
    if (options->data_parallel_size < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "data_parallel_size is %d, expected 1 or more",
                        options->data_parallel_size);
    if (options->expert_data_parallel_size < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "expert_data_parallel_size is %d, expected 1 or more",
                        options->expert_data_parallel_size);
    if (options->bucket_size < BRG_BUCKET_SIZE_SMALLEST)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "bucket_size is %lld, expected a number of elements or BRG_BUCKET_SIZE_*",
                        (long long)options->bucket_size);
    if (options->num_buckets < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "num_buckets is %lld, expected 1 or more",
                        (long long)options->num_buckets);
    if (options->num_buckets > 0 && options->bucket_size != BRG_BUCKET_SIZE_DEFAULT)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "bucket_size (%lld) and num_buckets (%lld) are both given, expected one",
                        (long long)options->bucket_size, (long long)options->num_buckets);
    if (brg_dtype_bytes(options->grad_dtype) == 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "grad_dtype %d is not one of brg_dtype",
                        (int)options->grad_dtype);
    return BRG_OK;
}

brg_status brg_layout_options_resolve(const brg_layout_options *given, brg_layout_options *options)
{
    brg_status status = brg_options_copy("brg_layout_options", options, sizeof *options, given);
    if (status == BRG_OK)
        status = check_ranges(options);
    if (status != BRG_OK)
        return status;

    options->size = sizeof *options;
    if (options->packing == BRG_PACKING_DEFAULT)
        options->packing = BRG_PACKING_NS_BALANCED;
    if (options->data_parallel_size == 0)
        options->data_parallel_size = 1;
    if (options->expert_data_parallel_size == 0)
        options->expert_data_parallel_size = options->data_parallel_size;
    if (options->bucket_size == BRG_BUCKET_SIZE_DEFAULT && options->num_buckets == 0) {
        int64_t scaled = (int64_t)1000000 * options->data_parallel_size;
        options->bucket_size = scaled > 40000000 ? scaled : 40000000;
    }
    options->pad_for_high_bus_bandwidth = options->pad_for_high_bus_bandwidth != 0;
    options->pad_param_starts = options->algorithm == BRG_FLAT && options->pad_param_starts != 0;
    options->grad_dtype_is_param_dtype = options->grad_dtype_is_param_dtype != 0;
    return BRG_OK;
}

void brg_layout_options_divide(brg_layout_options *options, int64_t total)
{
    if (options->num_buckets == 0)
        return;
    options->bucket_size = total / options->num_buckets;
    if (options->bucket_size == 0)
        options->bucket_size = BRG_BUCKET_SIZE_SMALLEST;
    options->num_buckets = 0;
}
