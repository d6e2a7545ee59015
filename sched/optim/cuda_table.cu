/* SPDX-License-Identifier: Apache-2.0 */
/* The table of libbrigade-cuda.so. */
#include "sched/optim/cuda.h"
#include "sched/optim/cuda_muon.h"

static const char *error_string(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

/* The only symbol that the library exports; its type is brg_cuda_kernels_fn. */
extern "C" __attribute__((visibility("default"))) const brg_kernels *brg_cuda_kernels(int abi)
{
    static const brg_kernels table = [] {
        brg_kernels kernels = {};
        kernels.abi = BRG_KERNELS_ABI;
        kernels.sum_squares = brg_cuda_sum_squares;
        kernels.sum_partials = brg_cuda_sum_partials;
        kernels.prepare_step = brg_cuda_prepare_step;
        kernels.adamw = brg_cuda_adamw;
        kernels.sgd = brg_cuda_sgd;
        kernels.convert = brg_cuda_convert;
        kernels.check_values = brg_cuda_check_values;
        kernels.stamp = brg_cuda_stamp;
        kernels.store_double = brg_cuda_store_double;
        kernels.muon_create = brg_cuda_muon_create;
        kernels.muon_update = brg_cuda_muon_update;
        kernels.muon_destroy = brg_cuda_muon_destroy;
        kernels.muon_describe = brg_cuda_muon_describe;
        kernels.muon_ns_run = brg_cuda_muon_ns_run;
        kernels.error_string = error_string;
        return kernels;
    }();
    return abi == BRG_KERNELS_ABI ? &table : nullptr;
}
