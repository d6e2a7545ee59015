/* SPDX-License-Identifier: Apache-2.0 */
/* libbrigade-host as a C program sees it. */
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/brigade/command.h"

namespace
{

TEST(HostNames, EveryNcclFunctionHasItsSecondNameAtAnAddressOfItsOwnOrTheSame)
{
    void *library = dlopen(HOST_LIBRARY, RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    for (const char *name : {"ncclAllGather",
                             "ncclAllReduce",
                             "ncclAlltoAll",
                             "ncclBcast",
                             "ncclBroadcast",
                             "ncclCommAbort",
                             "ncclCommCount",
                             "ncclCommCuDevice",
                             "ncclCommDeregister",
                             "ncclCommDestroy",
                             "ncclCommFinalize",
                             "ncclCommGetAsyncError",
                             "ncclCommInitAll",
                             "ncclCommInitRank",
                             "ncclCommInitRankConfig",
                             "ncclCommInitRankScalable",
                             "ncclCommRegister",
                             "ncclCommRevoke",
                             "ncclCommShrink",
                             "ncclCommSplit",
                             "ncclCommUserRank",
                             "ncclCommWindowDeregister",
                             "ncclCommWindowRegister",
                             "ncclGather",
                             "ncclGetErrorString",
                             "ncclGetLastError",
                             "ncclGetUniqueId",
                             "ncclGetVersion",
                             "ncclGroupEnd",
                             "ncclGroupSimulateEnd",
                             "ncclGroupStart",
                             "ncclMemAlloc",
                             "ncclMemFree",
                             "ncclRecv",
                             "ncclRedOpCreatePreMulSum",
                             "ncclRedOpDestroy",
                             "ncclReduce",
                             "ncclReduceScatter",
                             "ncclScatter",
                             "ncclSend"}) {
        EXPECT_NE(dlsym(library, name), nullptr) << name;
        EXPECT_NE(dlsym(library, (std::string("p") + name).c_str()), nullptr) << name;
    }
    dlclose(library);
}

TEST(HostNames, ErrorsStayUntilTheyAreAskedFor)
{
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
    EXPECT_STRNE(cudaGetErrorString(cudaErrorInvalidDevice), "");
}

TEST(HostNames, ABusyStreamIsNoError)
{
    cudaStream_t stream;
    cudaEvent_t go;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&go), cudaSuccess);
    static std::atomic<bool> release;
    release = false;
    ASSERT_EQ(cudaLaunchHostFunc(
                  stream,
                  [](void *) {
                      while (!release)
                          std::this_thread::yield();
                  },
                  nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    release = true;
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(go), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(HostNames, CaptureIsRefusedAndNothingCaptures)
{
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorNotSupported);
    cudaGetLastError();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/* Ranks as threads: gather and scatter are made of sends and receives here. */
TEST(HostNames, GatherAndScatter)
{
    constexpr int ranks = 3, count = 5;
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    std::vector<std::vector<int>> gathered(ranks), scattered(ranks);
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&, rank] {
            ncclComm_t comm;
            cudaStream_t stream;
            int *mine, *all;
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess);
            ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
            ASSERT_EQ(cudaMalloc((void **)&mine, count * sizeof(int)), cudaSuccess);
            ASSERT_EQ(cudaMalloc((void **)&all, ranks * count * sizeof(int)), cudaSuccess);
            for (int i = 0; i < count; i++)
                mine[i] = 100 * rank + i;
            ASSERT_EQ(ncclGather(mine, all, count, ncclInt, 1, comm, stream), ncclSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            gathered[rank].assign(all, all + ranks * count);
            for (int i = 0; i < ranks * count; i++)
                all[i] = 1000 * rank + i;
            ASSERT_EQ(ncclScatter(all, mine, count, ncclInt, 2, comm, stream), ncclSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            scattered[rank].assign(mine, mine + count);
            EXPECT_EQ(ncclGather(mine, all, count, ncclInt, ranks, comm, stream),
                      ncclInvalidArgument);
            EXPECT_EQ(ncclCommShrink(comm, nullptr, 0, &comm, nullptr, 0), ncclInvalidUsage);
            EXPECT_NE(std::string(ncclGetLastError(comm)).find("ncclCommShrink"),
                      std::string::npos);
            cudaFree(mine);
            cudaFree(all);
            ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
            ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
        });
    for (std::thread &thread : threads)
        thread.join();
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < count; i++) {
            EXPECT_EQ(gathered[1][rank * count + i], 100 * rank + i);
            EXPECT_EQ(scattered[rank][i], 2000 + rank * count + i);
        }
}

CommandResult train(const char *trainer, int ranks, const TempDir &dir)
{
    CommandOptions options;
    options.env["NCCL_ID_FILE"] = dir.path("id-" + std::to_string(ranks));
    return brigade({"run", "-q", "--no-prefix", "-n", std::to_string(ranks), "-o",
                    dir.path("trace"), "--", trainer, "6"},
                   options);
}

/* Both trainers do the same arithmetic, so all-reduce must give what reduce-scatter, update and
 * all-gather give, to the last bit. */
TEST(HostTrainers, BothWaysOfReducingGiveTheSameWeights)
{
    for (int ranks : {1, 2, 4}) {
        TempDir a, b;
        CommandResult ddp = train(DDP_TRAINER, ranks, a), zero = train(ZERO_TRAINER, ranks, b);
        EXPECT_EQ(ddp.code, 0) << ddp.err;
        EXPECT_EQ(zero.code, 0) << zero.err;
        EXPECT_NE(ddp.out.find("weights"), std::string::npos) << ddp.out;
        EXPECT_EQ(ddp.out, zero.out) << ranks << " ranks";
    }
}

} // namespace
