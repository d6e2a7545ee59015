/* SPDX-License-Identifier: Apache-2.0 */
/* The device `cuda` over fake libraries, in child processes: libraries are opened once per process.
 */
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

extern "C" {
#include "sched/device/cuda.h"
#include "sched/device/device.h"
#include "sched/status.h"
}

namespace
{

using Environment = std::map<std::string, std::string>;

const std::string fakes = BRIGADE_FAKES "/";
const Environment good = {{"BRIGADE_CUDART", fakes + "libfake-cudart.so"},
                          {"BRIGADE_NCCL", fakes + "libfake-nccl.so"},
                          {"BRIGADE_CUDA_KERNELS", fakes + "libfake-kernels.so"}};

Environment with(Environment environment, const Environment &changes)
{
    for (const auto &[name, value] : changes)
        environment[name] = value;
    return environment;
}

/* Runs `body` in a child with only these variables of ours; returns what it wrote to stderr. */
std::string in_child(const Environment &environment, const std::function<void()> &body)
{
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        dup2(ends[1], 2);
        for (const char *name : {"BRIGADE_DEVICE", "BRIGADE_CUDART", "BRIGADE_NCCL",
                                 "BRIGADE_CUDA_KERNELS", "BRIGADE_BUFFERS", "BRIGADE_LOG"})
            unsetenv(name);
        for (const auto &[name, value] : environment)
            setenv(name.c_str(), value.c_str(), 1);
        body();
        fflush(stdout);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    std::string output;
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        output.append(buffer, (size_t)n);
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << output;
    return output;
}

void expect_text(const std::string &part)
{
    EXPECT_NE(strstr(brg_last_error(), part.c_str()), nullptr)
        << brg_last_error() << "\n lacks: " << part;
}

void expect_failure(const Environment &environment, brg_status status, const std::string &text)
{
    in_child(environment, [&] {
        brg_device device;
        EXPECT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), status) << brg_last_error();
        expect_text(text);
        EXPECT_EQ(strchr(brg_last_error(), '\n'), nullptr);
    });
}

/* Body with an open device and a communicator. */
void with_comm(const Environment &environment,
               const std::function<void(const brg_device &, void *)> &body)
{
    in_child(environment, [&] {
        brg_device device;
        ASSERT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), BRG_OK) << brg_last_error();
        brg_unique_id id;
        void *comm = nullptr;
        ASSERT_EQ(device.nccl->get_unique_id(&id), 0);
        ASSERT_EQ(device.nccl->comm_init_rank(&comm, 2, id, 0), 0) << brg_last_error();
        ASSERT_NE(comm, nullptr);
        body(device, comm);
    });
}

std::string calls()
{
    void *library = dlopen(getenv("BRIGADE_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    auto get = (const char *(*)())dlsym(library, "fake_calls");
    return get ? get() : "?";
}

TEST(CudaOpen, FillsAllThreeTables)
{
    with_comm(good, [](const brg_device &device, void *comm) {
        EXPECT_STREQ(device.rt->name, "cuda");
        EXPECT_EQ(device.kernels->abi, BRG_KERNELS_ABI);
        char text[64];
        EXPECT_EQ(device.rt->device_name(text, sizeof text, 0), 0);
        EXPECT_STREQ(text, "NVIDIA Fake");
        EXPECT_EQ(device.rt->device_pci_bus_id(text, sizeof text, 0), 0);
        EXPECT_STREQ(text, "0000:1B:00.0");
        EXPECT_EQ(calls(), "ncclCommInitRankConfig ");
        EXPECT_EQ(device.nccl->comm_finalize(comm), 0);
        EXPECT_EQ(device.nccl->comm_destroy(comm), 0);
        EXPECT_EQ(device.nccl->comm_destroy(nullptr), 0);
        EXPECT_EQ(device.nccl->comm_abort(nullptr), 0);
        EXPECT_EQ(device.nccl->mem_free(nullptr), 0);
        EXPECT_EQ(device.rt->free_device(nullptr), 0);
        EXPECT_EQ(device.rt->free_host(nullptr), 0);
        EXPECT_EQ(device.rt->graph_destroy(nullptr), 0);
    });
}

bool system_has(std::initializer_list<const char *> names)
{
    for (const char *name : names)
        if (dlopen(name, RTLD_LAZY))
            return true;
    return false;
}

TEST(CudaOpen, SaysWhatIsMissingAndHowToPointToIt)
{
    in_child({}, [] {
        brg_device device;
        if (system_has({"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}))
            return;
        EXPECT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), BRG_ERR_UNSUPPORTED);
        expect_text("no CUDA runtime library: tried libcudart.so.13, libcudart.so.12, "
                    "libcudart.so.11.0; set BRIGADE_CUDART to the file");
    });
    in_child({{"BRIGADE_CUDART", good.at("BRIGADE_CUDART")}}, [] {
        brg_device device;
        if (system_has({"libnccl.so.2"}))
            return;
        EXPECT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), BRG_ERR_UNSUPPORTED);
        expect_text("no NCCL library: tried libnccl.so.2; set BRIGADE_NCCL to the file");
    });
}

TEST(CudaOpen, AWrongFileIsAnErrorThatNamesIt)
{
    for (const auto &entry : good) {
        expect_failure(with(good, {{entry.first, "/no/such.so"}}), BRG_ERR_INVALID_ARGUMENT,
                       "environment: " + entry.first + "=/no/such.so");
        /* a library, but another one */
        std::string other = fakes + "libfake-empty.so";
        expect_failure(with(good, {{entry.first, other}}), BRG_ERR_INVALID_ARGUMENT,
                       "environment: " + entry.first + "=" + other + ": ");
    }
    expect_failure(with(good, {{"BRIGADE_BUFFERS", "heap"}}), BRG_ERR_INVALID_ARGUMENT,
                   "BRIGADE_BUFFERS=heap: expected auto, cuda or nccl");
}

TEST(CudaOpen, ChecksVersions)
{
    expect_failure(with(good, {{"FAKE_CUDART_VERSION", "11070"}}), BRG_ERR_INVALID_ARGUMENT,
                   "version 11.7 is too old, 11.8 or later");
    expect_failure(with(good, {{"FAKE_NCCL_VERSION", "21805"}}), BRG_ERR_INVALID_ARGUMENT,
                   "version 2.18 is too old, 2.19 or later");
    expect_failure(with(good, {{"FAKE_NCCL_VERSION", "2708"}}), BRG_ERR_INVALID_ARGUMENT,
                   "version 2.7 is too old");
    for (const char *version : {"21903", "22803", "23004"})
        with_comm(with(good, {{"FAKE_NCCL_VERSION", version}}),
                  [&](const brg_device &device, void *) {
                      int number = 0;
                      EXPECT_EQ(device.nccl->get_version(&number), 0);
                      EXPECT_EQ(number, atoi(version));
                  });
}

TEST(CudaOpen, RefusesKernelsOfAnotherBuild)
{
    expect_failure(with(good, {{"BRIGADE_CUDA_KERNELS", fakes + "libfake-kernels-other.so"}}),
                   BRG_ERR_INVALID_ARGUMENT, "both must come from one build");
}

TEST(CudaOpen, TakesALoadedCopyFirst)
{
    Environment environment = {{"BRIGADE_CUDA_KERNELS", good.at("BRIGADE_CUDA_KERNELS")}};
    in_child(environment, [] {
        ASSERT_NE(dlopen((fakes + "soname/libcudart.so.12").c_str(), RTLD_NOW), nullptr);
        ASSERT_NE(dlopen((fakes + "soname/libnccl.so.2").c_str(), RTLD_NOW), nullptr);
        brg_device device;
        EXPECT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), BRG_OK) << brg_last_error();
    });
}

/* Opens `auto` twice; the NCCL `loaded`, if any, has been loaded by the program. */
std::string auto_device(const Environment &environment, const char *expected,
                        const std::string &loaded = "")
{
    return in_child(environment, [&] {
        brg_device device;
        if (!loaded.empty()) {
            ASSERT_NE(dlopen(loaded.c_str(), RTLD_NOW), nullptr);
        }
        for (int i = 0; i < 2; i++) {
            ASSERT_EQ(brg_device_open(BRG_DEVICE_AUTO, &device), BRG_OK) << brg_last_error();
            EXPECT_STREQ(device.rt->name, expected);
        }
    });
}

TEST(CudaAuto, TakesWhatIsThere)
{
    EXPECT_EQ(auto_device(good, "cuda"), "");
    EXPECT_EQ(auto_device(with(good, {{"BRIGADE_DEVICE", "host"}}), "host"), "");
    EXPECT_EQ(auto_device(with(good, {{"FAKE_GPUS", "0"}}), "host"), "");
    EXPECT_EQ(
        auto_device(with(good, {{"FAKE_GPUS", "0"}, {"BRIGADE_NCCL", "/no/such.so"}}), "host"), "");
    Environment old = with(good, {{"FAKE_NCCL_VERSION", "21805"}});
    old.erase("BRIGADE_NCCL");
    std::string said = auto_device(old, "host", fakes + "soname/libnccl.so.2");
    EXPECT_NE(said.find("a GPU answers, but the device host is used: device cuda: NCCL library"),
              std::string::npos)
        << said;
    EXPECT_EQ(said.find('\n'), said.size() - 1) << "one line, once: " << said;
    in_child(with(good, {{"BRIGADE_NCCL", "/no/such.so"}}), [] {
        brg_device device;
        EXPECT_EQ(brg_device_open(BRG_DEVICE_AUTO, &device), BRG_ERR_INVALID_ARGUMENT);
    });
    expect_failure(with(good, {{"FAKE_GPUS", "0"}}), BRG_ERR_DEVICE,
                   "no GPU answers: no CUDA-capable device is detected");
}

TEST(CudaRuntime, MapsErrorsAndLeavesNoneBehind)
{
    with_comm(with(good, {{"FAKE_QUERY", "600"}}), [](const brg_device &device, void *) {
        const brg_runtime *rt = device.rt;
        void *library = dlopen(getenv("BRIGADE_CUDART"), RTLD_NOW | RTLD_NOLOAD);
        auto peek = (int (*)())dlsym(library, "cudaPeekAtLastError");
        void *stream, *event, *memory = &stream, *graph;
        ASSERT_EQ(rt->stream_create(&stream, BRG_STREAM_NON_BLOCKING, 0), 0);
        ASSERT_EQ(rt->event_create(&event, 0), 0);
        EXPECT_EQ(rt->stream_query(stream), BRG_RT_NOT_READY);
        EXPECT_EQ(rt->event_query(event), BRG_RT_NOT_READY);
        EXPECT_EQ(rt->malloc_device(&memory, (size_t)1 << 50), BRG_RT_NO_MEMORY);
        EXPECT_EQ(memory, nullptr);
        EXPECT_EQ(brg_rt_status(&device, BRG_RT_NO_MEMORY, "x"), BRG_ERR_NO_MEMORY);
        float ms;
        EXPECT_EQ(rt->event_elapsed(&ms, event, event), BRG_RT_INVALID_VALUE);
        int capturing = -1;
        EXPECT_EQ(rt->stream_is_capturing(stream, &capturing), 0);
        EXPECT_EQ(capturing, 0);
        EXPECT_EQ(rt->stream_is_capturing(nullptr, &capturing), 0); /* error 906 */
        EXPECT_EQ(capturing, 1);
        EXPECT_EQ(rt->graph_begin(stream), 0);
        EXPECT_EQ(rt->graph_end(stream, &graph), 0);
        EXPECT_EQ(rt->graph_launch(graph, stream), 0);
        EXPECT_EQ(rt->graph_destroy(graph), 0);
        EXPECT_EQ(rt->event_destroy(nullptr), BRG_RT_INVALID_VALUE);
        EXPECT_EQ(peek(), 0);
    });
}

TEST(CudaNccl, MapsResultsWithNcclsText)
{
    with_comm(good, [](const brg_device &device, void *comm) {
        setenv("FAKE_RESULT", "1", 1);
        int result = device.nccl->all_reduce(nullptr, nullptr, 1, BRG_NCCL_FLOAT32, BRG_NCCL_SUM,
                                             comm, nullptr);
        EXPECT_EQ(brg_nccl_status(&device, result, comm, "all_reduce"), BRG_ERR_DEVICE);
        expect_text("all_reduce: unhandled cuda error: transport 7 is on fire");
        setenv("FAKE_RESULT", "6", 1);
        EXPECT_EQ(device.nccl->comm_get_async_error(comm, &result), 0);
        EXPECT_EQ(brg_nccl_status(&device, result, comm, "rank 0"), BRG_ERR_PEER_LOST);
        void *memory;
        result = device.nccl->mem_alloc(&memory, (size_t)1 << 50);
        EXPECT_EQ(brg_nccl_status(&device, result, nullptr, "buffer"), BRG_ERR_NO_MEMORY);
    });
}

TEST(CudaNccl, AllToAllWithAndWithoutTheCall)
{
    auto body = [](const std::string &expected) {
        return [expected](const brg_device &device, void *comm) {
            char data[64] = {};
            EXPECT_EQ(device.nccl->all_to_all(data, data, 4, BRG_NCCL_FLOAT32, comm, nullptr), 0);
            EXPECT_EQ(calls(), "ncclCommInitRankConfig " + expected);
        };
    };
    with_comm(good, body("ncclAlltoAll "));
    with_comm(with(good, {{"BRIGADE_NCCL", fakes + "libfake-nccl-old.so"}}),
              body("ncclGroupStart ncclSend:0 ncclRecv:0 ncclSend:1 ncclRecv:1 ncclGroupEnd "));
}

TEST(CudaNccl, SplitsOrSaysThatItCannot)
{
    with_comm(good, [](const brg_device &device, void *comm) {
        void *child = nullptr;
        EXPECT_EQ(device.nccl->comm_split(comm, 1, 0, &child), 0);
        EXPECT_NE(child, nullptr);
        EXPECT_EQ(device.nccl->comm_split(comm, -1, 0, &child), 0);
        EXPECT_EQ(child, nullptr);
    });
    with_comm(with(good, {{"BRIGADE_NCCL", fakes + "libfake-nccl-old.so"}}),
              [](const brg_device &device, void *comm) {
                  void *child;
                  int result = device.nccl->comm_split(comm, 1, 0, &child);
                  EXPECT_EQ(brg_nccl_status(&device, result, comm, "split"), BRG_ERR_UNSUPPORTED);
                  expect_text("no ncclCommSplit");
              });
}

TEST(CudaNccl, BuffersComeFromWhereTheVariableSays)
{
    for (const auto &[value, expected] :
         Environment{{"auto", ""}, {"cuda", ""}, {"nccl", "ncclMemAlloc ncclMemFree "}})
        with_comm(with(good, {{"BRIGADE_BUFFERS", value}}),
                  [text = expected](const brg_device &device, void *) {
                      void *memory;
                      ASSERT_EQ(device.nccl->mem_alloc(&memory, 100), 0);
                      EXPECT_EQ(device.nccl->mem_free(memory), 0);
                      EXPECT_EQ(calls(), "ncclCommInitRankConfig " + text);
                  });
}

TEST(CudaNccl, InitAndSplitGiveUpInTime)
{
    in_child(with(good, {{"FAKE_BLOCK", "init"}, {"BRIGADE_INIT_TIMEOUT", "0.2"}}), [] {
        brg_device device;
        ASSERT_EQ(brg_device_open(BRG_DEVICE_CUDA, &device), BRG_OK);
        brg_unique_id id;
        void *comm;
        device.nccl->get_unique_id(&id);
        int result = device.nccl->comm_init_rank(&comm, 2, id, 1);
        EXPECT_EQ(brg_nccl_status(&device, result, nullptr, "init"), BRG_ERR_TIMEOUT);
        expect_text("rank 1 of 2: the other ranks have not come within 0.2 s");
        EXPECT_EQ(comm, nullptr);
        brg_cuda_set_timeouts(0.1, 0.1);
        result = device.nccl->comm_init_rank(&comm, 2, id, 1);
        EXPECT_EQ(brg_nccl_status(&device, result, nullptr, "init"), BRG_ERR_TIMEOUT);
        expect_text("within 0.1 s");
        /* threads that come late abort what they have made */
        setenv("FAKE_BLOCK", "nothing", 1);
        unsetenv("FAKE_BLOCK");
    });
    with_comm(with(good, {{"FAKE_BLOCK", "split"}, {"BRIGADE_INIT_TIMEOUT", "0.2"}}),
              [](const brg_device &device, void *comm) {
                  void *child;
                  int result = device.nccl->comm_split(comm, 3, 0, &child);
                  EXPECT_EQ(brg_nccl_status(&device, result, comm, "split"), BRG_ERR_TIMEOUT);
                  expect_text("comm_split of color 3");
              });
}

TEST(CudaNccl, AbortComesInWhileACallBlocks)
{
    with_comm(with(good, {{"FAKE_BLOCK", "all_reduce"}}), [](const brg_device &device, void *comm) {
        std::atomic<bool> returned{false};
        std::thread caller([&] {
            device.nccl->all_reduce(nullptr, nullptr, 1, BRG_NCCL_FLOAT32, 0, comm, nullptr);
            returned = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(returned);
        EXPECT_EQ(device.nccl->comm_abort(comm), 0);
        caller.join();
    });
}

} // namespace
