/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA that the process has loaded: the runtime where its names can be found, else the driver,
 * whose streams and events are the same objects (a program that nvcc built has the runtime inside
 * and exports nothing of it). Nothing is loaded for our sake. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "shim/interpose/internal.h"

shim_runtime shim_rt;
_Atomic bool shim_rt_ready;

typedef struct entry {
    size_t offset;
    const char *runtime, *driver; /* NULL: no such thing there */
} entry;

#define AT(member) offsetof(shim_runtime, member)
static const entry entries[] = {
    {AT(get_device), "cudaGetDevice", "cuCtxGetDevice"},
    {AT(set_device), "cudaSetDevice", NULL},
    {AT(event_create), "cudaEventCreateWithFlags", "cuEventCreate"},
    {AT(event_record), "cudaEventRecord", "cuEventRecord"},
    {AT(event_query), "cudaEventQuery", "cuEventQuery"},
    {AT(event_elapsed), "cudaEventElapsedTime", "cuEventElapsedTime"},
    {AT(stream_create), "cudaStreamCreateWithFlags", "cuStreamCreate"},
    {AT(is_capturing), "cudaStreamIsCapturing", "cuStreamIsCapturing"},
    {AT(exchange_capture_mode), "cudaThreadExchangeStreamCaptureMode",
     "cuThreadExchangeStreamCaptureMode"},
    {AT(last_error), "cudaGetLastError", NULL},
    {AT(peek_error), "cudaPeekAtLastError", NULL},
};
#undef AT

static int (*device_get)(int *device, int ordinal);
static int (*primary_retain)(void **context, int device);
static int (*context_set)(void *context);

/* cudaSetDevice by the driver. A context is retained once per device and kept. */
static int driver_set_device(int device)
{
    enum { DEVICES = 64 };
    static _Atomic(void *) contexts[DEVICES];
    int handle, error = 0;
    if (device < 0 || device >= DEVICES)
        return 101;
    void *context = atomic_load(&contexts[device]);
    if (!context && !(error = device_get(&handle, device)) &&
        !(error = primary_retain(&context, handle)))
        atomic_store(&contexts[device], context);
    return error ? error : context_set(context);
}

static bool fill(void *library, bool driver)
{
    shim_runtime found = {0};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *name = driver ? entries[i].driver : entries[i].runtime;
        void *symbol = name ? dlsym(library, name) : NULL;
        if (name && !symbol)
            return false;
        memcpy((char *)&found + entries[i].offset, &symbol, sizeof symbol);
    }
    if (driver) {
        *(void **)(void *)&device_get = dlsym(library, "cuDeviceGet");
        *(void **)(void *)&primary_retain = dlsym(library, "cuDevicePrimaryCtxRetain");
        *(void **)(void *)&context_set = dlsym(library, "cuCtxSetCurrent");
        if (!device_get || !primary_retain || !context_set)
            return false;
        found.set_device = driver_set_device;
    }
    shim_rt = found;
    return true;
}

typedef struct mapped {
    const char *prefix;
    char *path;
    size_t path_bytes;
} mapped;

static int mapped_see(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    mapped *m = arg;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : info->dlpi_name;
    if (!name || strncmp(name, m->prefix, strlen(m->prefix)) != 0)
        return 0;
    snprintf(m->path, m->path_bytes, "%s", info->dlpi_name);
    return 1;
}

bool shim_mapped_find(const char *prefix, char *path, size_t path_bytes)
{
    mapped m = {.prefix = prefix, .path = path, .path_bytes = path_bytes};
    return dl_iterate_phdr(mapped_see, &m) != 0;
}

static bool fill_mapped(const char *prefix, bool driver)
{
    char path[512];
    if (!shim_mapped_find(prefix, path, sizeof path))
        return false;
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return library && fill(library, driver);
}

/* Not with a lock: the loader has its own. A thread that comes while another is looking goes
 * without. */
bool shim_runtime_load(bool insisted)
{
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    bool found = atomic_load(&shim_rt_ready);
    if (found || atomic_flag_test_and_set(&busy))
        return found;
    found = fill(RTLD_DEFAULT, false) || fill_mapped("libcudart.so", false) ||
            fill_mapped("libcuda.so", true);
    atomic_store(&shim_rt_ready, found);
    if (!found && insisted)
        shim_complain("BRIGADE_SHIM_TIMING=events, but no CUDA is loaded");
    if (!found)
        atomic_flag_clear(&busy);
    return found;
}
