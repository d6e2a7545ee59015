/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/interpose/cupti.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/interpose/internal.h"

enum { PATH_BYTES = 512 };

/* The version that goes with the program's runtime first: another may refuse the driver. */
static const char *const *names(void)
{
    static const char *const newest[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so", NULL};
    static const char *const of_12[] = {"libcupti.so.12", "libcupti.so.13", "libcupti.so", NULL};
    char runtime[PATH_BYTES];
    bool is_12 = shim_mapped_find("libcudart.so", runtime, sizeof runtime) &&
                 strstr(runtime, "libcudart.so.12");
    return is_12 ? of_12 : newest;
}

/* In `dir`, or "" for where the loader looks. */
static void *open_in(const char *dir)
{
    void *library = NULL;
    char path[2 * PATH_BYTES];
    for (const char *const *name = names(); *name && !library; name++) {
        snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", *name);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

/* Where CUPTI lies as seen from a library of CUDA's or NCCL's: beside it, in a toolkit, among
 * Python packages. */
static void *open_near(const char *file)
{
    static const char *const places[] = {"", "/../extras/CUPTI/lib64",
                                         "/../../../extras/CUPTI/lib64", "/../../cuda_cupti/lib",
                                         "/../../cu13/lib"};
    const char *slash = strrchr(file, '/');
    char dir[2 * PATH_BYTES];
    void *library = NULL;
    for (size_t i = 0; slash && !library && i < sizeof places / sizeof *places; i++) {
        snprintf(dir, sizeof dir, "%.*s%s", (int)(slash - file), file, places[i]);
        library = open_in(dir);
    }
    return library;
}

static void *open_in_toolkit(const char *home)
{
    static const char *const places[] = {"extras/CUPTI/lib64", "lib64"};
    char dir[2 * PATH_BYTES];
    void *library = NULL;
    for (size_t i = 0; home && *home && !library && i < sizeof places / sizeof *places; i++) {
        snprintf(dir, sizeof dir, "%s/%s", home, places[i]);
        library = open_in(dir);
    }
    return library;
}

static void *find(void)
{
    char path[PATH_BYTES];
    void *library = NULL;
    /* A second copy would not see what this one's users enable, or would refuse to begin. */
    if (shim_mapped_find("libcupti.so", path, sizeof path))
        library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library && shim_mapped_find("libcudart.so", path, sizeof path))
        library = open_near(path);
    for (int i = 0; !library && shim_real_at(i); i++)
        library = open_near(shim_real_at(i)->path);
    if (!library)
        library = open_in_toolkit(getenv("CUDA_HOME"));
    if (!library)
        library = open_in("");
    return library ? library : open_in_toolkit("/usr/local/cuda");
}

static bool resolve(shim_cupti *cupti, void *library, char *why, size_t why_bytes)
{
    const char *missing = NULL;
#define F(name, parameters)                                                                        \
    *(void **)(void *)&cupti->name = dlsym(library, #name);                                        \
    if (!cupti->name && !missing)                                                                  \
        missing = #name;
    CUPTI_FUNCTIONS(F)
#undef F
    Dl_info info;
    const void *symbol = (const void *)(uintptr_t)cupti->cuptiGetVersion;
    snprintf(cupti->path, sizeof cupti->path, "%s",
             symbol && dladdr(symbol, &info) ? info.dli_fname : "libcupti.so");
    if (missing)
        snprintf(why, why_bytes, "%s has no %s", cupti->path, missing);
    else if (cupti->cuptiGetVersion(&cupti->version))
        snprintf(why, why_bytes, "%s does not tell its version", cupti->path);
    else if (cupti->version < CUPTI_OLDEST || cupti->version >= CUPTI_TOO_NEW)
        snprintf(why, why_bytes, "%s is CUPTI %u, of which the records are not known", cupti->path,
                 cupti->version);
    else
        return true;
    return false;
}

bool shim_cupti_load(shim_cupti *cupti, char *why, size_t why_bytes)
{
    const char *file = getenv("BRIGADE_CUPTI");
    bool named = file && *file;
    void *library = named ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : find();
    if (library)
        return resolve(cupti, library, why, why_bytes);
    if (named)
        snprintf(why, why_bytes, "environment: BRIGADE_CUPTI=%s: %s", file, dlerror());
    else
        snprintf(why, why_bytes,
                 "no libcupti.so.13 or .12 is found; set BRIGADE_CUPTI to the file");
    return false;
}
