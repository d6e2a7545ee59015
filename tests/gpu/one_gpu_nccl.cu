// SPDX-License-Identifier: Apache-2.0
/* A stand-in for libnccl: several ranks, each a thread of one process, on one GPU, where the real
 * one refuses. BRIGADE_NCCL names it. Sums are in rank order, in float (double for double), so that
 * results are the same in every run.
 *
 * A collective is a meeting of the ranks' threads inside the call; then, on the streams:
 *
 *     everybody has come here | each rank's share of the work | everybody has come here
 *
 * where "has come here" is events, or, in captures, which events of others may not enter, a kernel
 * that waits for the other ranks' kernels. Not supported: point-to-point calls, several devices. */
#include <condition_variable>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <string>
#include <vector>

namespace
{

constexpr int MAX_RANKS = 8;
constexpr int TIMEOUT_S = 30;
thread_local std::string last_error;

ncclResult_t fail(ncclResult_t result, const std::string &text)
{
    last_error = "one-GPU stand-in: " + text;
    return result;
}

ncclResult_t cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return ncclSuccess;
    return fail(ncclUnhandledCudaError, std::string(what) + ": " + cudaGetErrorString(error));
}

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        ncclResult_t result_ = (expr);                                                             \
        if (result_ != ncclSuccess)                                                                \
            return result_;                                                                        \
    } while (0)

enum class Func { init, all_reduce, reduce_scatter, all_gather, broadcast, reduce, split };

/* What a rank brings to a meeting. */
struct Visit {
    Func func;
    const void *send;
    void *recv;
    size_t count;
    int type, root;
    bool captured;
    int color, key;
};

struct Group {
    int size;
    std::mutex mutex;
    std::condition_variable changed;
    int arrived = 0;
    uint64_t meeting = 0;
    bool aborted = false;
    Visit visits[MAX_RANKS];
    cudaEvent_t in[MAX_RANKS], out[MAX_RANKS];
    unsigned long long *flags = nullptr; /* device: arrivals [rank], then each rank's own count */
    std::map<std::pair<uint64_t, int>, std::shared_ptr<Group>> children; /* by meeting and color */

    explicit Group(int n) : size(n)
    {
    }
    ncclResult_t meet()
    {
        std::unique_lock<std::mutex> lock(mutex);
        uint64_t now = meeting;
        if (++arrived == size) {
            arrived = 0;
            meeting++;
            changed.notify_all();
        } else {
            changed.wait_for(lock, std::chrono::seconds(TIMEOUT_S),
                             [&] { return meeting != now || aborted; });
        }
        if (meeting == now || aborted) {
            aborted = true;
            changed.notify_all();
            return fail(ncclRemoteError, "a rank did not come to a collective");
        }
        return ncclSuccess;
    }
};

std::mutex groups_mutex;
std::map<std::string, std::weak_ptr<Group>> groups; /* by unique id */

/* Kernels */

struct Job {
    const void *send[MAX_RANKS];
    void *recv[MAX_RANKS]; /* null: not written */
    size_t begin, end;     /* elements of the sends that this rank works on */
    size_t to;             /* where `begin` goes in the receives */
    int ranks, op;
    double factor;
};

template <typename T> struct Wide {
    using type = T;
};
template <> struct Wide<__half> {
    using type = float;
};
template <> struct Wide<__nv_bfloat16> {
    using type = float;
};

template <typename T> __global__ void reduce_kernel(Job job)
{
    using W = typename Wide<T>::type;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = job.begin + (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < job.end;
         i += stride) {
        W factor = (W)job.factor, sum = (W)((const T *)job.send[0])[i];
        if (job.op == ncclSum && job.factor != 1)
            sum *= factor;
        for (int r = 1; r < job.ranks; r++) {
            W value = (W)((const T *)job.send[r])[i];
            if (job.op == ncclSum)
                sum += job.factor != 1 ? (W)(value * factor) : value;
            else if (job.op == ncclProd)
                sum *= value;
            else if (job.op == ncclMax)
                sum = value > sum ? value : sum;
            else
                sum = value < sum ? value : sum;
        }
        for (int r = 0; r < job.ranks; r++)
            if (job.recv[r])
                ((T *)job.recv[r])[i - job.begin + job.to] = (T)sum;
    }
}

template <typename T> void launch_reduce(const Job &job, cudaStream_t stream)
{
    size_t blocks = (job.end - job.begin + 255) / 256;
    if (blocks)
        reduce_kernel<T><<<(unsigned)(blocks < 1024 ? blocks : 1024), 256, 0, stream>>>(job);
}

ncclResult_t reduce(const Job &job, int type, cudaStream_t stream)
{
    switch (type) {
    case ncclInt8:
        launch_reduce<int8_t>(job, stream);
        break;
    case ncclUint8:
        launch_reduce<uint8_t>(job, stream);
        break;
    case ncclInt32:
        launch_reduce<int32_t>(job, stream);
        break;
    case ncclUint32:
        launch_reduce<uint32_t>(job, stream);
        break;
    case ncclInt64:
        launch_reduce<int64_t>(job, stream);
        break;
    case ncclUint64:
        launch_reduce<uint64_t>(job, stream);
        break;
    case ncclFloat16:
        launch_reduce<__half>(job, stream);
        break;
    case ncclFloat32:
        launch_reduce<float>(job, stream);
        break;
    case ncclFloat64:
        launch_reduce<double>(job, stream);
        break;
    case ncclBfloat16:
        launch_reduce<__nv_bfloat16>(job, stream);
        break;
    default:
        return fail(ncclInvalidArgument, "unknown type");
    }
    return cuda(cudaGetLastError(), "reduce");
}

/* Waits for the other ranks' kernels; gives up after 20 s, rather than hold the GPU for ever. */
__global__ void meet_kernel(volatile unsigned long long *flags, int rank, int ranks)
{
    unsigned long long mine = flags[MAX_RANKS + rank] + 1, begin, now;
    flags[MAX_RANKS + rank] = mine;
    __threadfence_system();
    flags[rank] = mine;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    for (int r = 0; r < ranks; r++)
        do
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        while (flags[r] < mine && now - begin < 20000000000ull);
    __threadfence_system();
}

size_t bytes_of(int type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 4;
    }
}

} // namespace

struct ncclComm {
    std::shared_ptr<Group> group;
    int rank;
    std::vector<double> factors; /* of operators made at run time */
};

namespace
{

/* All ranks' threads come together and agree on what they do. */
ncclResult_t visit(ncclComm_t comm, const Visit &mine)
{
    Group &group = *comm->group;
    group.visits[comm->rank] = mine;
    TRY(group.meet());
    for (int r = 0; r < group.size; r++) {
        const Visit &theirs = group.visits[r];
        if (theirs.func != mine.func || theirs.count != mine.count || theirs.type != mine.type ||
            theirs.root != mine.root || theirs.captured != mine.captured)
            return fail(ncclInvalidUsage, "ranks make different calls");
    }
    return ncclSuccess;
}

/* The streams of all ranks come together. */
ncclResult_t meet_on_stream(ncclComm_t comm, bool captured, cudaEvent_t *events,
                            cudaStream_t stream)
{
    Group &group = *comm->group;
    if (group.size == 1)
        return ncclSuccess;
    if (captured) {
        meet_kernel<<<1, 1, 0, stream>>>(group.flags, comm->rank, group.size);
        return cuda(cudaGetLastError(), "meet");
    }
    TRY(cuda(cudaEventRecord(events[comm->rank], stream), "cudaEventRecord"));
    TRY(group.meet());
    for (int r = 0; r < group.size; r++)
        if (r != comm->rank)
            TRY(cuda(cudaStreamWaitEvent(stream, events[r], 0), "cudaStreamWaitEvent"));
    return ncclSuccess;
}

ncclResult_t push(ncclComm_t comm, const void *from, size_t bytes, size_t to, cudaStream_t stream)
{
    Group &group = *comm->group;
    for (int r = 0; r < group.size; r++) {
        char *recv = (char *)group.visits[r].recv + to;
        if (recv != from && bytes)
            TRY(cuda(cudaMemcpyAsync(recv, from, bytes, cudaMemcpyDeviceToDevice, stream),
                     "cudaMemcpyAsync"));
    }
    return ncclSuccess;
}

ncclResult_t share(ncclComm_t comm, const Visit &mine, int op, cudaStream_t stream)
{
    Group &group = *comm->group;
    size_t n = (size_t)group.size, rank = (size_t)comm->rank, elem = bytes_of(mine.type);
    if (mine.func == Func::all_gather)
        return push(comm, mine.send, mine.count * elem, rank * mine.count * elem, stream);
    if (mine.func == Func::broadcast)
        return comm->rank == mine.root ? push(comm, mine.send, mine.count * elem, 0, stream)
                                       : ncclSuccess;
    Job job = {};
    job.ranks = group.size;
    job.op = op;
    job.factor = 1;
    if (op == ncclAvg)
        job.factor = 1.0 / group.size;
    if (op >= ncclNumOps)
        job.factor = comm->factors.at((size_t)(op - ncclNumOps));
    if (op == ncclAvg || op >= ncclNumOps)
        job.op = ncclSum;
    for (int r = 0; r < group.size; r++) {
        job.send[r] = group.visits[r].send;
        bool gets = mine.func == Func::all_reduce ||
                    (mine.func == Func::reduce ? r == mine.root : r == comm->rank);
        job.recv[r] = gets ? group.visits[r].recv : nullptr;
    }
    /* Each element is read and written by one rank only: so all may be in place. */
    job.begin = mine.func == Func::reduce_scatter ? rank * mine.count : mine.count * rank / n;
    job.end =
        mine.func == Func::reduce_scatter ? job.begin + mine.count : mine.count * (rank + 1) / n;
    job.to = mine.func == Func::reduce_scatter ? 0 : job.begin;
    return reduce(job, mine.type, stream);
}

ncclResult_t collective(ncclComm_t comm, Visit mine, int op, cudaStream_t stream)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRY(cuda(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
    mine.captured = capture != cudaStreamCaptureStatusNone;
    TRY(visit(comm, mine));
    TRY(meet_on_stream(comm, mine.captured, comm->group->in, stream));
    TRY(share(comm, mine, op, stream));
    TRY(meet_on_stream(comm, mine.captured, comm->group->out, stream));
    /* The visits of all have been read. */
    return mine.captured ? comm->group->meet() : ncclSuccess;
}

ncclResult_t join(const std::shared_ptr<Group> &group, int rank, ncclComm_t *out)
{
    auto comm = std::make_unique<ncclComm>();
    comm->group = group;
    comm->rank = rank;
    if (rank == 0) {
        size_t bytes = 2 * MAX_RANKS * sizeof *group->flags;
        TRY(cuda(cudaMalloc((void **)&group->flags, bytes), "cudaMalloc"));
        TRY(cuda(cudaMemset(group->flags, 0, bytes), "cudaMemset"));
        TRY(cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    }
    for (cudaEvent_t *event : {&group->in[rank], &group->out[rank]})
        TRY(cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate"));
    TRY(group->meet());
    *out = comm.release();
    return ncclSuccess;
}

ncclResult_t unsupported(const char *name)
{
    return fail(ncclInvalidUsage, std::string(name) + " is not supported");
}

} // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION(2, 28, 9);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::mutex mutex;
    static int next;
    std::lock_guard<std::mutex> lock(mutex);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "one-gpu-%d", next++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    *comm = nullptr;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return fail(ncclInvalidArgument, "ranks out of range");
    std::shared_ptr<Group> group;
    {
        std::lock_guard<std::mutex> lock(groups_mutex);
        std::string name(id.internal, sizeof id.internal);
        group = groups[name].lock();
        if (!group)
            groups[name] = group = std::make_shared<Group>(ranks);
    }
    if (group->size != ranks)
        return fail(ncclInvalidArgument, "ranks disagree about their number");
    return join(group, rank, comm);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *)
{
    return ncclCommInitRank(comm, ranks, id, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t *, int, const int *)
{
    return unsupported("ncclCommInitAll");
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *)
{
    Group &group = *comm->group;
    *child = nullptr;
    Visit mine = {};
    mine.func = Func::split;
    mine.color = color;
    mine.key = key;
    TRY(visit(comm, mine));
    int rank = 0, size = 0;
    for (int r = 0; r < group.size; r++) {
        const Visit &theirs = group.visits[r];
        size += theirs.color == color;
        rank +=
            theirs.color == color && (theirs.key < key || (theirs.key == key && r < comm->rank));
    }
    std::shared_ptr<Group> made;
    {
        std::lock_guard<std::mutex> lock(group.mutex);
        auto &place = group.children[{group.meeting, color}];
        if (!place)
            place = std::make_shared<Group>(size);
        made = place;
    }
    TRY(group.meet());
    return color < 0 ? ncclSuccess : join(made, rank, child);
}

ncclResult_t ncclCommFinalize(ncclComm_t)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    cudaEventDestroy(comm->group->in[comm->rank]);
    cudaEventDestroy(comm->group->out[comm->rank]);
    delete comm; /* the flags stay: a peer's kernel may still look at them */
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    {
        std::lock_guard<std::mutex> lock(comm->group->mutex);
        comm->group->aborted = true;
    }
    comm->group->changed.notify_all();
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    std::lock_guard<std::mutex> lock(comm->group->mutex);
    *error = comm->group->aborted ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->group->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t, int *device)
{
    return cuda(cudaGetDevice(device), "cudaGetDevice");
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, {Func::all_reduce, send, recv, count, type, 0, false, 0, 0}, op,
                      stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, {Func::reduce_scatter, send, recv, count, type, 0, false, 0, 0}, op,
                      stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, {Func::all_gather, send, recv, count, type, 0, false, 0, 0}, 0, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, {Func::broadcast, send, recv, count, type, root, false, 0, 0}, 0,
                      stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, {Func::reduce, send, recv, count, type, root, false, 0, 0}, op, stream);
}

ncclResult_t ncclAlltoAll(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)
{
    return unsupported("ncclAlltoAll");
}

ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
{
    return unsupported("ncclSend");
}

ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
{
    return unsupported("ncclRecv");
}

/* Ranks are threads that make the same calls in the same order: a group needs no holding back. */
ncclResult_t ncclGroupStart()
{
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    if (residence != ncclScalarHostImmediate)
        return fail(ncclInvalidUsage, "scalars in device memory are not supported");
    double factor;
    if (type == ncclFloat64)
        factor = *(const double *)scalar;
    else if (type == ncclFloat32)
        factor = *(const float *)scalar;
    else if (type == ncclFloat16)
        factor = __half2float(*(const __half *)scalar);
    else if (type == ncclBfloat16)
        factor = __bfloat162float(*(const __nv_bfloat16 *)scalar);
    else
        return fail(ncclInvalidArgument, "a scalar of this type");
    comm->factors.push_back(factor);
    *op = (ncclRedOp_t)(ncclNumOps + (int)comm->factors.size() - 1);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t)
{
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    return cuda(cudaMalloc(memory, bytes), "cudaMalloc");
}

ncclResult_t ncclMemFree(void *memory)
{
    return cuda(cudaFree(memory), "cudaFree");
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "error of the one-GPU stand-in";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}
}
