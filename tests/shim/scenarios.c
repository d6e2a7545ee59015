/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that use NCCL, one for each trap that the shim must not fall into: scenario_run(NAME).
 * They run on the fake NCCL and the fake CUDA runtime, check what a program sees, and print what
 * the test needs for checking the trace. */
#include "scenarios.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake/fake.h"

static cudaStream_t const streams[] = {(cudaStream_t)0x1000, (cudaStream_t)0x2000};
static char memory[4096];

/* As a program with ranks in other processes would. */
static ncclComm_t comm_make(int ranks, int rank)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess);
    EXPECT(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess && comm);
    return comm;
}

static ncclResult_t reduce(ncclComm_t comm, int stream, size_t count)
{
    return ncclAllReduce(memory, memory, count, ncclFloat, ncclSum, comm, streams[stream]);
}

static void plain(void)
{
    ncclComm_t comm = comm_make(4, 1);
    EXPECT(reduce(comm, 0, 10) == ncclSuccess);
    EXPECT(ncclReduceScatter(memory, memory + 512, 10, ncclBfloat16, ncclAvg, comm, streams[0]) ==
           ncclSuccess);
    EXPECT(ncclAllGather(memory + 512, memory, 9, ncclFloat8e4m3, comm, streams[1]) ==
           ncclSuccess);
    EXPECT(ncclSend(memory, 3, ncclInt64, 2, comm, streams[1]) == ncclSuccess);
    EXPECT(fake_nccl_launched() == 4);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
}

static void internal_calls(void)
{
    ncclComm_t comms[2];
    EXPECT(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
    EXPECT(ncclBcast(memory, 16, ncclInt8, 0, comms[0], streams[0]) == ncclSuccess);
    EXPECT(fake_nccl_calls("ncclBcast") == 1 && fake_nccl_calls("ncclBroadcast") == 1);
}

static void nested_groups(void)
{
    ncclComm_t a = comm_make(4, 0), b = comm_make(2, 0);
    EXPECT(ncclGroupStart() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    EXPECT(reduce(a, 0, 1) == ncclSuccess && reduce(b, 1, 2) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(fake_nccl_launched() == 0 && fake_cuda_records() == 0);
    EXPECT(reduce(a, 0, 3) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(fake_nccl_launched() == 3);
    EXPECT(fake_cuda_records() >= 4); /* two streams, and the reader's own */
    EXPECT(ncclGroupStart() == ncclSuccess && ncclGroupEnd() == ncclSuccess);
    EXPECT(ncclGroupEnd() != ncclSuccess);
    EXPECT(reduce(b, 0, 4) == ncclSuccess);
    ncclCommDestroy(a);
    ncclCommDestroy(b);
}

static void group_simulate_end(void)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ncclComm_t comm = comm_make(2, 0);
    EXPECT(ncclGroupStart() == ncclSuccess && reduce(comm, 0, 1) == ncclSuccess);
    EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
    EXPECT(fake_nccl_launched() == 0 && fake_cuda_records() == 0);
    EXPECT(reduce(comm, 0, 2) == ncclSuccess);
    EXPECT(ncclGroupStart() == ncclSuccess && reduce(comm, 0, 3) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(fake_nccl_launched() == 2);
}

static void non_blocking(void)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess);
    EXPECT(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress);
    EXPECT(reduce(comm, 0, 1) == ncclInProgress);
    EXPECT(ncclGroupStart() == ncclSuccess && reduce(comm, 0, 2) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclInProgress);
    EXPECT(fake_cuda_records() == 0);
}

static void capture(void)
{
    ncclComm_t comm = comm_make(2, 0);
    EXPECT(reduce(comm, 0, 1) == ncclSuccess); /* starts the reader */
    fake_cuda_capture(streams[0]);
    EXPECT(reduce(comm, 0, 2) == ncclSuccess);
    EXPECT(ncclGroupStart() == ncclSuccess && reduce(comm, 0, 3) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(reduce(comm, 1, 4) == ncclSuccess); /* another stream: not captured */
    usleep(60000);                             /* the reader looks at events meanwhile */
    EXPECT(ncclCommFinalize(comm) == ncclSuccess);
    fake_cuda_capture(NULL);
    fake_cuda_implicit(1);
    EXPECT(ncclAllReduce(memory, memory, 5, ncclFloat, ncclSum, comm, NULL) == ncclSuccess);
    fake_cuda_implicit(0);
    EXPECT(reduce(comm, 0, 6) == ncclSuccess);
    EXPECT(fake_cuda_sins() == 0);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

static void cuda_errors(void)
{
    ncclComm_t comm = comm_make(2, 0);
    EXPECT(cudaSetDevice(99) != cudaSuccess);
    EXPECT(reduce(comm, 0, 1) == ncclSuccess);
    EXPECT(cudaPeekAtLastError() == cudaErrorInvalidDevice); /* still the program's */
    EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
    fake_cuda_fail_records(1);
    EXPECT(reduce(comm, 0, 2) == ncclSuccess);
    fake_cuda_fail_records(0);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(reduce(comm, 0, 3) == ncclSuccess);
    EXPECT(ncclCommDestroy(comm) == ncclSuccess);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

static void host_ahead(void)
{
    enum { CALLS = 6000 };
    ncclComm_t comm = comm_make(2, 0);
    fake_cuda_behind(INT64_C(10000000000));
    for (int i = 1; i <= CALLS; i++)
        EXPECT(reduce(comm, i % 2, i) == ncclSuccess);
    fake_cuda_behind(0);
    for (int waited = 0; waited < 100; waited++) {
        usleep(10000);
        EXPECT(ncclCommFinalize(comm) == ncclSuccess); /* the shim looks for what has ended */
    }
    EXPECT(reduce(comm, 0, CALLS + 1) == ncclSuccess);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

static void lineage(void)
{
    ncclComm_t world = comm_make(4, 1), half = NULL, none = world, fewer = NULL, again;
    int excluded[] = {3};
    EXPECT(ncclCommSplit(world, 1, 0, &half, NULL) == ncclSuccess && half);
    EXPECT(ncclCommSplit(world, NCCL_SPLIT_NOCOLOR, 0, &none, NULL) == ncclSuccess && !none);
    EXPECT(ncclCommShrink(world, excluded, 1, &fewer, NULL, NCCL_SHRINK_DEFAULT) == ncclSuccess);
    EXPECT(reduce(half, 0, 1) == ncclSuccess && reduce(fewer, 0, 2) == ncclSuccess);
    EXPECT(ncclCommAbort(half) == ncclSuccess);
    again = comm_make(8, 5);
    EXPECT(again == half); /* the fake reuses the memory */
    EXPECT(reduce(again, 0, 3) == ncclSuccess);
    EXPECT(ncclCommDestroy(again) == ncclSuccess);
    EXPECT(ncclCommSplit(world, 0, 0, &again, NULL) == ncclSuccess && again == half);
    EXPECT(reduce(again, 0, 4) == ncclSuccess);
}

static void after_fork(void)
{
    ncclComm_t comm = comm_make(2, 0);
    int status = 1;
    EXPECT(reduce(comm, 0, 1) == ncclSuccess);
    pid_t child = fork();
    if (!child) {
        int fine = reduce(comm, 0, 77) == ncclSuccess && ncclGroupStart() == ncclSuccess &&
                   reduce(comm, 0, 78) == ncclSuccess && ncclGroupEnd() == ncclSuccess &&
                   ncclCommDestroy(comm) == ncclSuccess;
        exit(fine ? 0 : 1); /* handlers of exit run in the child, too */
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(reduce(comm, 0, 2) == ncclSuccess);
}

enum { THREADS = 8, ROUNDS = 500 };

static void *thread_body(void *arg)
{
    ncclComm_t comm = arg;
    int failed = 0;
    for (int i = 0; i < ROUNDS; i++) {
        failed |= reduce(comm, 0, 1) != ncclSuccess;
        failed |= ncclGroupStart() != ncclSuccess;
        failed |= reduce(comm, 0, 2) != ncclSuccess || reduce(comm, 1, 3) != ncclSuccess;
        failed |= ncclGroupEnd() != ncclSuccess;
    }
    return (void *)(long)failed;
}

static void threads(void)
{
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; i++)
        EXPECT(!pthread_create(&ids[i], NULL, thread_body, comm_make(2, 0)));
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        EXPECT(!pthread_join(ids[i], &failed) && !failed);
    }
    EXPECT(fake_nccl_launched() == THREADS * ROUNDS * 3);
}

static void user_redops(void)
{
    ncclComm_t comm = comm_make(2, 0);
    ncclRedOp_t op;
    float half = 0.5f;
    EXPECT(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat, ncclScalarHostImmediate, comm) ==
           ncclSuccess);
    EXPECT(op >= ncclNumOps);
    EXPECT(ncclGroupStart() == ncclSuccess);
    EXPECT(ncclAllReduce(memory, memory, 1, ncclFloat, op, comm, streams[0]) == ncclSuccess);
    EXPECT(ncclRedOpDestroy(op, comm) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(reduce(comm, 0, 2) == ncclSuccess);
}

static void windows(void)
{
    ncclComm_t comm = comm_make(2, 0);
    ncclWindow_t window = NULL;
    void *handle = NULL;
    EXPECT(ncclCommRegister(comm, memory, 64, &handle) == ncclSuccess);
    EXPECT(ncclCommWindowRegister(comm, memory, 64, &window, NCCL_WIN_COLL_SYMMETRIC) ==
           ncclSuccess);
    EXPECT((void *)window != handle);
    EXPECT(ncclCommWindowDeregister(comm, window) == ncclSuccess);
    EXPECT(ncclCommDeregister(comm, handle) == ncclSuccess);
    EXPECT(ncclCommDeregister(comm, window) != ncclSuccess);
}

static void failing_call(void)
{
    ncclComm_t comm = comm_make(2, 0);
    EXPECT(reduce(comm, 0, 1) == ncclInvalidArgument);
    EXPECT(ncclGroupStart() == ncclSuccess && reduce(comm, 0, 2) == ncclInvalidArgument);
    EXPECT(ncclGroupEnd() == ncclSuccess);
    EXPECT(ncclAllGather(memory, memory, 3, ncclInt, comm, streams[0]) == ncclSuccess);
}

static void old_nccl(void)
{
    ncclComm_t comm = comm_make(2, 0), child = comm;
    int version = 0;
    EXPECT(ncclGetVersion(&version) == ncclSuccess && version == 21903);
    EXPECT(ncclCommRevoke(comm, 0) == ncclInvalidUsage);
    EXPECT(ncclCommRevoke(comm, 0) == ncclInvalidUsage);
    EXPECT(ncclCommShrink(comm, NULL, 0, &child, NULL, 0) == ncclInvalidUsage && child == comm);
    EXPECT(ncclAlltoAll(memory, memory, 1, ncclInt, comm, streams[0]) == ncclInvalidUsage);
    EXPECT(reduce(comm, 0, 1) == ncclSuccess);
}

static void version_only(void)
{
    int version = 0;
    ncclUniqueId id;
    EXPECT(ncclGetVersion(&version) == ncclSuccess && ncclGetUniqueId(&id) == ncclSuccess);
    printf("version %d\n", version);
}

static void nothing(void)
{
}

static void with_libbrigade(void)
{
    EXPECT(dlopen(getenv("LIBBRIGADE"), RTLD_NOW | RTLD_LOCAL));
    plain();
}

static void no_nccl(void)
{
    int version = 0;
    EXPECT(ncclGetVersion(&version) == ncclSystemError);
    EXPECT(ncclGroupStart() == ncclSystemError);
    EXPECT(ncclGetErrorString(ncclSystemError));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"plain", plain},
    {"internal_calls", internal_calls},
    {"nested_groups", nested_groups},
    {"group_simulate_end", group_simulate_end},
    {"non_blocking", non_blocking},
    {"capture", capture},
    {"cuda_errors", cuda_errors},
    {"host_ahead", host_ahead},
    {"lineage", lineage},
    {"after_fork", after_fork},
    {"threads", threads},
    {"user_redops", user_redops},
    {"windows", windows},
    {"failing_call", failing_call},
    {"old_nccl", old_nccl},
    {"version_only", version_only},
    {"nothing", nothing},
    {"with_libbrigade", with_libbrigade},
    {"no_nccl", no_nccl},
};

int scenario_failures;

int scenario_run(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(scenarios[i].name, name)) {
            scenarios[i].run();
            return scenario_failures ? 1 : 0;
        }
    fprintf(stderr, "no scenario %s\n", name);
    return 2;
}
