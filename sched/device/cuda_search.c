/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a shared library when the program runs. */
#include "sched/device/cuda_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *cuda_symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

static void *open_named(const cuda_library *library, int flags)
{
    void *handle = NULL;
    for (const char *const *name = library->names; *name && !handle; name++)
        handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL | flags);
    return handle;
}

/* What the loader says about the first name that fails for another reason than that there is no
 * such file: a library that is there and cannot be loaded is what the user wants to know. */
static const char *find_complaint(const cuda_library *library)
{
    for (const char *const *name = library->names; *name; name++) {
        if (dlopen(*name, RTLD_NOW | RTLD_LOCAL))
            continue;
        const char *text = dlerror();
        size_t length = strlen(*name);
        if (text && !(strncmp(text, *name, length) == 0 && strstr(text, "No such file")))
            return text;
    }
    return NULL;
}

void *cuda_library_open(const cuda_library *library, brg_status *status)
{
    const char *file = getenv(library->variable);
    if (file && *file) {
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            *status = brg_fail(BRG_ERR_INVALID_ARGUMENT, "environment: %s=%s: %s",
                               library->variable, file, dlerror());
        return handle;
    }
    /* A second copy beside the one that the program uses would not know its streams' errors. */
    void *handle = open_named(library, RTLD_NOLOAD);
    if (!handle)
        handle = open_named(library, 0);
    if (handle)
        return handle;
    const char *complaint = find_complaint(library);
    char tried[256] = "";
    size_t used = 0;
    for (const char *const *name = library->names; *name && used < sizeof tried; name++)
        used +=
            (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", used ? ", " : "", *name);
    *status = brg_fail(BRG_ERR_UNSUPPORTED,
                       "device cuda: no %s library: tried %s%s%s%s; set %s to the file",
                       library->what, tried, complaint ? " (" : "", complaint ? complaint : "",
                       complaint ? ")" : "", library->variable);
    return NULL;
}
