/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles only if sched/device/cuda_api.h and device.h say what the real headers say. Handles are
 * void * and enumerations int with us, so types are compared by their kind and size. */
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

extern "C" {
#include "sched/device/cuda_api.h"
#include "sched/device/device.h"
}

namespace
{

enum kind { POINTER, NUMBER, REAL, STRUCT };

template <class A, class B> constexpr bool same()
{
    constexpr auto kind_of = [](auto pointer, auto number, auto real) {
        return pointer ? POINTER : number ? NUMBER : real ? REAL : STRUCT;
    };
    return kind_of(std::is_pointer<A>::value, std::is_integral<A>::value || std::is_enum<A>::value,
                   std::is_floating_point<A>::value) ==
               kind_of(std::is_pointer<B>::value,
                       std::is_integral<B>::value || std::is_enum<B>::value,
                       std::is_floating_point<B>::value) &&
           sizeof(A) == sizeof(B);
}

template <class A, class B> struct matches : std::false_type {
};
template <class R, class... As, class S, class... Bs> struct matches<R (*)(As...), S (*)(Bs...)> {
    static constexpr bool all()
    {
        if constexpr (sizeof...(As) == sizeof...(Bs))
            return same<R, S>() && (same<As, Bs>() && ...);
        return false;
    }
    static constexpr bool value = all();
};

#define CHECK_CUDART(result, name, arguments)                                                      \
    static_assert(matches<decltype(brg_cudart::name), decltype(&::name)>::value, #name);
BRG_CUDART_FUNCTIONS(CHECK_CUDART)

} // namespace

#include <nccl.h> /* whose own includes overload some of the names above */

namespace
{

#if NCCL_VERSION_CODE < 22800 /* has none to compare with */
ncclResult_t ncclAlltoAll(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
#endif
#define CHECK_NCCL(result, name, arguments)                                                        \
    static_assert(matches<decltype(brg_nccl_lib::name), decltype(&name)>::value, #name);
BRG_NCCL_FUNCTIONS(CHECK_NCCL, CHECK_NCCL)

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(BRG_RT_INVALID_VALUE, cudaErrorInvalidValue);
SAME(BRG_RT_NO_MEMORY, cudaErrorMemoryAllocation);
SAME(BRG_RT_NOT_READY, cudaErrorNotReady);
SAME(BRG_CUDA_INVALID_HANDLE, cudaErrorInvalidResourceHandle);
SAME(BRG_CUDA_CAPTURE_IMPLICIT, cudaErrorStreamCaptureImplicit);
SAME(BRG_CUDA_CAPTURE_RELAXED, cudaStreamCaptureModeRelaxed);
SAME(BRG_COPY_HOST_TO_DEVICE, cudaMemcpyHostToDevice);
SAME(BRG_COPY_DEVICE_TO_HOST, cudaMemcpyDeviceToHost);
SAME(BRG_COPY_DEVICE_TO_DEVICE, cudaMemcpyDeviceToDevice);
SAME(BRG_COPY_DEFAULT, cudaMemcpyDefault);
SAME(BRG_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(BRG_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
SAME(offsetof(cudaDeviceProp, name), 0);
SAME(BRG_CUDA_NAME_BYTES, sizeof(cudaDeviceProp::name));
static_assert(sizeof(cudaDeviceProp) <= BRG_CUDA_PROPERTIES_BYTES, "cudaDeviceProp");

SAME(BRG_NCCL_UNHANDLED_CUDA, ncclUnhandledCudaError);
SAME(BRG_NCCL_SYSTEM, ncclSystemError);
SAME(BRG_NCCL_INTERNAL, ncclInternalError);
SAME(BRG_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(BRG_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(BRG_NCCL_REMOTE, ncclRemoteError);
SAME(BRG_NCCL_IN_PROGRESS, ncclInProgress);
SAME(BRG_NCCL_INT8, ncclInt8);
SAME(BRG_NCCL_UINT8, ncclUint8);
SAME(BRG_NCCL_INT32, ncclInt32);
SAME(BRG_NCCL_UINT32, ncclUint32);
SAME(BRG_NCCL_INT64, ncclInt64);
SAME(BRG_NCCL_UINT64, ncclUint64);
SAME(BRG_NCCL_FLOAT16, ncclFloat16);
SAME(BRG_NCCL_FLOAT32, ncclFloat32);
SAME(BRG_NCCL_FLOAT64, ncclFloat64);
SAME(BRG_NCCL_BFLOAT16, ncclBfloat16);
SAME(BRG_NCCL_SUM, ncclSum);
SAME(BRG_NCCL_PROD, ncclProd);
SAME(BRG_NCCL_MAX, ncclMax);
SAME(BRG_NCCL_MIN, ncclMin);
SAME(BRG_NCCL_AVG, ncclAvg);
SAME(BRG_NCCL_NUM_OPS, ncclNumOps);
SAME(BRG_NCCL_SCALAR_DEVICE, ncclScalarDevice);
SAME(BRG_NCCL_SCALAR_HOST_IMMEDIATE, ncclScalarHostImmediate);

SAME(sizeof(brg_unique_id), sizeof(ncclUniqueId));
SAME(offsetof(brg_nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(brg_nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(brg_nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(brg_nccl_config, cga_cluster_size), offsetof(ncclConfig_t, cgaClusterSize));
SAME(offsetof(brg_nccl_config, min_ctas), offsetof(ncclConfig_t, minCTAs));
SAME(offsetof(brg_nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(brg_nccl_config, net_name), offsetof(ncclConfig_t, netName));
SAME(offsetof(brg_nccl_config, split_share), offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(brg_nccl_config) <= sizeof(ncclConfig_t), "a prefix");

TEST(CudaApi, ConfigIsAsNcclInitialisesIt)
{
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    brg_nccl_config ours = BRG_NCCL_CONFIG;
    EXPECT_EQ(ours.magic, theirs.magic);
    EXPECT_EQ(ours.split_share, theirs.splitShare);
    EXPECT_EQ(ours.net_name, theirs.netName);
    EXPECT_EQ(ours.max_ctas, NCCL_CONFIG_UNDEF_INT);
    EXPECT_EQ(ours.size, 48u) << "as NCCL 2.19 has it";
}

} // namespace
