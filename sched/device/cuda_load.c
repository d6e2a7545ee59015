/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the device `cuda`: libraries, versions, symbols, once per process. */
#include "sched/device/cuda_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

brg_cudart cuda_rt;
brg_nccl_lib cuda_nccl;
int cuda_nccl_version;
bool cuda_buffers_are_nccl;

static const cuda_library cudart_library = {
    .what = "CUDA runtime",
    .variable = "BRIGADE_CUDART",
    .names = (const char *const[]){"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", NULL},
};
static const cuda_library nccl_library = {
    .what = "NCCL",
    .variable = "BRIGADE_NCCL",
    .names = (const char *const[]){"libnccl.so.2", NULL},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct {
    brg_status status;
    char text[THREAD_ERROR_BYTES]; /* of the status */
    bool gpu_answers;
    const brg_kernels *kernels;
} opened;

/* A library that opens and will not do: the variable's fault where one is set. */
static brg_status refuse(const cuda_library *library, const void *symbol, const char *why)
{
    const char *file = getenv(library->variable);
    if (file && *file)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "environment: %s=%s: %s", library->variable, file,
                        why);
    Dl_info info;
    return brg_fail(BRG_ERR_UNSUPPORTED,
                    "device cuda: %s library %s: %s; set %s to the file of another", library->what,
                    symbol && dladdr(symbol, &info) ? info.dli_fname : library->names[0], why,
                    library->variable);
}

static brg_status refuse_symbol(const cuda_library *library, const void *symbol, const char *name)
{
    char why[128];
    snprintf(why, sizeof why, "it has no %s, so it is not the %s library that is needed", name,
             library->what);
    return refuse(library, symbol, why);
}

/* The first name of the table that the library lacks, or NULL. */
static const char *resolve_cudart(void *library)
{
    const char *missing = NULL;
#define RESOLVE(result, name, arguments)                                                           \
    *(void **)&cuda_rt.name = cuda_symbol(library, #name);                                         \
    if (!cuda_rt.name && !missing)                                                                 \
        missing = #name;
    BRG_CUDART_FUNCTIONS(RESOLVE)
#undef RESOLVE
    void *newer = cuda_symbol(library, BRG_CUDART_PROPERTIES_V2);
    if (newer)
        *(void **)&cuda_rt.cudaGetDeviceProperties = newer;
    return missing;
}

static const char *resolve_nccl(void *library)
{
    const char *missing = NULL;
#define RESOLVE_IF_THERE(result, name, arguments)                                                  \
    *(void **)&cuda_nccl.name = cuda_symbol(library, #name);
#define RESOLVE(result, name, arguments)                                                           \
    RESOLVE_IF_THERE(result, name, arguments)                                                      \
    if (!cuda_nccl.name && !missing)                                                               \
        missing = #name;
    BRG_NCCL_FUNCTIONS(RESOLVE, RESOLVE_IF_THERE)
#undef RESOLVE
#undef RESOLVE_IF_THERE
    return missing;
}

static brg_status open_cudart(void)
{
    brg_status status = BRG_OK;
    void *library = cuda_library_open(&cudart_library, &status);
    if (!library)
        return status;
    const char *missing = resolve_cudart(library);
    const void *symbol = (const void *)(uintptr_t)cuda_rt.cudaRuntimeGetVersion;
    int version = 0, count = 0, error = BRG_RT_OK;
    /* Whether a GPU answers is worth knowing even of a library that will not do. */
    if (cuda_rt.cudaGetDeviceCount) {
        error = cuda_rt.cudaGetDeviceCount(&count);
        if (error && cuda_rt.cudaGetLastError)
            cuda_rt.cudaGetLastError();
        opened.gpu_answers = !error && count > 0;
    }
    if (!symbol)
        return refuse_symbol(&cudart_library, NULL, "cudaRuntimeGetVersion");
    cuda_rt.cudaRuntimeGetVersion(&version);
    if (version < BRG_CUDART_OLDEST) {
        char why[128];
        snprintf(why, sizeof why, "version %d.%d is too old, %d.%d or later is needed",
                 version / 1000, version % 1000 / 10, BRG_CUDART_OLDEST / 1000,
                 BRG_CUDART_OLDEST % 1000 / 10);
        return refuse(&cudart_library, symbol, why);
    }
    if (missing)
        return refuse_symbol(&cudart_library, symbol, missing);
    if (opened.gpu_answers)
        return BRG_OK;
    return brg_fail(BRG_ERR_DEVICE, "device cuda: no GPU answers: %s",
                    error ? cuda_rt.cudaGetErrorString(error)
                          : "the CUDA runtime counts 0 devices");
}

static brg_status open_nccl(void)
{
    brg_status status = BRG_OK;
    void *library = cuda_library_open(&nccl_library, &status);
    if (!library)
        return status;
    const char *missing = resolve_nccl(library);
    const void *symbol = (const void *)(uintptr_t)cuda_nccl.ncclGetVersion;
    if (!symbol)
        return refuse_symbol(&nccl_library, NULL, "ncclGetVersion");
    cuda_nccl.ncclGetVersion(&cuda_nccl_version);
    if (cuda_nccl_version < BRG_NCCL_OLDEST) {
        int v = cuda_nccl_version;
        bool old_count = v < 10000; /* up to 2.8 a minor version was a hundred */
        char why[128];
        snprintf(why, sizeof why, "version %d.%d is too old, %d.%d or later is needed",
                 old_count ? v / 1000 : v / 10000, old_count ? v % 1000 / 100 : v % 10000 / 100,
                 BRG_NCCL_OLDEST / 10000, BRG_NCCL_OLDEST % 10000 / 100);
        return refuse(&nccl_library, symbol, why);
    }
    return missing ? refuse_symbol(&nccl_library, symbol, missing) : BRG_OK;
}

static brg_status read_buffers(void)
{
    const char *text = getenv("BRIGADE_BUFFERS");
    if (!text || !*text || !strcasecmp(text, "auto") || !strcasecmp(text, "cuda"))
        return BRG_OK;
    if (strcasecmp(text, "nccl"))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "environment: BRIGADE_BUFFERS=%s: expected auto, cuda or nccl", text);
    cuda_buffers_are_nccl = cuda_nccl.ncclMemAlloc && cuda_nccl.ncclMemFree;
    if (cuda_buffers_are_nccl)
        return BRG_OK;
    return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                    "environment: BRIGADE_BUFFERS=%s: this NCCL has no ncclMemAlloc", text);
}

static void open_all(void)
{
    brg_status status;
    BRG_TRY(open_cudart(), out);
    BRG_TRY(open_nccl(), out);
    BRG_TRY(read_buffers(), out);
    opened.kernels = cuda_kernels_open(&status);
out:
    opened.status = status;
    if (status != BRG_OK)
        snprintf(opened.text, sizeof opened.text, "%s", brg_last_error());
}

brg_status brg_cuda_open(brg_device *device, bool *gpu_answers)
{
    pthread_once(&once, open_all);
    *gpu_answers = opened.gpu_answers;
    if (opened.status != BRG_OK)
        return brg_fail(opened.status, "%s", opened.text);
    device->rt = brg_cuda_runtime();
    device->nccl = brg_cuda_nccl();
    device->kernels = opened.kernels;
    return BRG_OK;
}
