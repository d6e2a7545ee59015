/* SPDX-License-Identifier: Apache-2.0 */
/* Finding libbrigade-cuda.so, which belongs to this very build. */
#include "sched/device/cuda_internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "BRIGADE_CUDA_KERNELS"
#define NAME "libbrigade-cuda.so"

/* The directory of the file that holds this code, with its slash; "" if it cannot be told. */
static void find_own_directory(char directory[PATH_MAX])
{
    Dl_info info;
    directory[0] = 0;
    /* of the program itself the loader knows only how it was called */
    if (!dladdr((void *)(uintptr_t)cuda_kernels_open, &info) || !strchr(info.dli_fname, '/') ||
        !realpath(info.dli_fname, directory)) {
        ssize_t length = readlink("/proc/self/exe", directory, PATH_MAX - 1);
        directory[length < 0 ? 0 : length] = 0;
    }
    char *slash = strrchr(directory, '/');
    directory[slash ? slash + 1 - directory : 0] = 0;
}

static void *open_near(const char *directory, brg_status *status)
{
    /* beside libbrigade.so; then, in a build tree, from there and from programs that contain it */
    static const char *const places[] = {"", "optim/", "../../sched/", "../../sched/optim/"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%s%s%s", directory, places[i], NAME);
        if (length >= (int)sizeof path || access(path, F_OK) != 0)
            continue;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            *status = brg_fail(BRG_ERR_UNSUPPORTED,
                               "device cuda: kernel library: %s; set " VARIABLE " to another file",
                               dlerror());
        return library;
    }
    return NULL;
}

static void *open_library(brg_status *status)
{
    const char *file = getenv(VARIABLE);
    void *library;
    if (file && *file) {
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            *status = brg_fail(BRG_ERR_INVALID_ARGUMENT, "environment: " VARIABLE "=%s: %s", file,
                               dlerror());
        return library;
    }
    char directory[PATH_MAX];
    find_own_directory(directory);
    *status = BRG_OK;
    library = *directory ? open_near(directory, status) : NULL;
    if (library || *status != BRG_OK)
        return library;
    library = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        *status = brg_fail(BRG_ERR_UNSUPPORTED,
                           "device cuda: no kernel library: tried %s" NAME
                           " and the library path (%s); set " VARIABLE " to the file",
                           directory, dlerror());
    return library;
}

const brg_kernels *cuda_kernels_open(brg_status *status)
{
    void *library = open_library(status);
    if (!library)
        return NULL;
    brg_cuda_kernels_fn get;
    *(void **)&get = cuda_symbol(library, BRG_CUDA_KERNELS_SYMBOL);
    const char *file = getenv(VARIABLE);
    bool chosen = file && *file;
    const brg_kernels *kernels = get ? get(BRG_KERNELS_ABI) : NULL;
    if (kernels && kernels->abi == BRG_KERNELS_ABI)
        return kernels;
    Dl_info info;
    const char *path = get && dladdr((void *)(uintptr_t)get, &info) ? info.dli_fname : NAME;
    *status =
        brg_fail(chosen ? BRG_ERR_INVALID_ARGUMENT : BRG_ERR_UNSUPPORTED,
                 "%s%s: %s interface %d, which this libbrigade needs; both must come from one "
                 "build",
                 chosen ? "environment: " VARIABLE "=" : "device cuda: ", chosen ? file : path,
                 get ? "a kernel library without" : "no kernel library with", BRG_KERNELS_ABI);
    return NULL;
}
