/* SPDX-License-Identifier: Apache-2.0 */
/* Which NCCL a call is meant for. Without us the loader would have bound the caller to one; we look
 * for the same one, from the caller's own object:
 *
 *   0 the caller is an NCCL library: that one          3 the next in the loader's order
 *   1 BRIGADE_NCCL_LIB                                  4 the only libnccl.so* in the process
 *   2 what the caller is linked with (a trainer that    5 libnccl.so.2, for programs linked with
 *     opened its NCCL with RTLD_LOCAL: PyTorch)           us in front of an NCCL that the linker
 *                                                         then left out
 *
 * Built as an archive, for programs that have NCCL inside (libnccl_static.a, taken whole), it is
 * that one, whose names a program does not export.
 *
 * pncclX is NCCL's second name for ncclX, which we do not shadow. Answers are kept per return
 * address and per object. Handles are never closed: an NCCL that we know stays.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/status.h"
#include "shim/interpose/internal.h"

enum { CALLERS = 1024, PROBES = 8, OBJECTS = 64 };

static struct {
    _Atomic uintptr_t caller, route; /* of a route: the address of the shim_real, | 1: inner */
} callers[CALLERS];
static struct {
    const void *base;
    uintptr_t route;
} objects[OBJECTS];
static int num_objects;
static shim_real reals[SHIM_COPIES];
static _Atomic int num_reals;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const void *base_of(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fbase : NULL;
}

static bool is_own(const void *address)
{
    return base_of(address) == base_of((const void *)shim_route_of);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_nccl_name(const char *path)
{
    return !strncmp(base_name(path), "libnccl.so", 10);
}

#ifdef BRG_SHIM_STATIC
#define F(kind, result, name, params, args, what)                                                  \
    extern result p##name params __attribute__((weak));
BRG_NCCL_ALL(F)
#undef F

static void *linked_in(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } all[] = {
#define F(kind, result, name, params, args, what) {#name, (void *)p##name},
        BRG_NCCL_ALL(F)
#undef F
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name))
            return all[i].function;
    return NULL;
}
#else
static void *linked_in(const char *name)
{
    return NULL;
}
#endif

/* NCCL's function of that name, not ours. */
static void *symbol(void *handle, const char *name)
{
    void *inside = linked_in(name);
    if (inside)
        return inside;
    char second[80];
    snprintf(second, sizeof second, "p%s", name);
    void *found = dlsym(handle, second);
    if (!found) {
        found = dlsym(handle, name);
        if (found && is_own(found))
            found = NULL;
    }
    return found;
}

const shim_real *shim_real_at(int index)
{
    return index < atomic_load_explicit(&num_reals, memory_order_acquire) ? &reals[index] : NULL;
}

static const shim_real *known(const void *base)
{
    const shim_real *real;
    for (int i = 0; (real = shim_real_at(i)); i++)
        if (real->base == base)
            return real;
    return NULL;
}

/* The NCCL that `handle` leads to, NULL if it leads to none. */
static const shim_real *real_behind(void *handle)
{
    void *probe = handle ? symbol(handle, "ncclGetVersion") : NULL;
    Dl_info info;
    if (!probe || !dladdr(probe, &info))
        return NULL;
    const shim_real *real = known(info.dli_fbase);
    if (real)
        return real;
    shim_real fresh = {.base = info.dli_fbase};
    snprintf(fresh.path, sizeof fresh.path, "%s", info.dli_fname ? info.dli_fname : "?");
    /* Of the library itself: a caller may be linked with several that have some of the names. */
    void *own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (own)
        handle = own;
#define F(kind, result, name, params, args, what)                                                  \
    *(void **)(void *)&fresh.fn.name = symbol(handle, #name);
    BRG_NCCL_ALL(F)
#undef F
    shim_inside++;
    if (!fresh.fn.ncclGetVersion || fresh.fn.ncclGetVersion(&fresh.version) != ncclSuccess)
        fresh.version = 0;
    shim_inside--;
    pthread_mutex_lock(&lock);
    real = known(fresh.base);
    int index = atomic_load_explicit(&num_reals, memory_order_relaxed);
    if (!real && index < SHIM_COPIES) {
        fresh.index = index;
        reals[index] = fresh;
        real = &reals[index];
        atomic_store_explicit(&num_reals, index + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (real)
        shim_found(real);
    return real;
}

typedef struct mapped_nccl {
    int count;
    char path[512];
} mapped_nccl;

static int mapped_see(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    mapped_nccl *mapped = arg;
    if (info->dlpi_name && is_nccl_name(info->dlpi_name)) {
        mapped->count++;
        snprintf(mapped->path, sizeof mapped->path, "%s", info->dlpi_name);
    }
    return 0;
}

static void *named_by_user(bool *wanted)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *file = getenv("BRIGADE_NCCL_LIB");
    *wanted = file && *file;
    void *handle = *wanted && *file == '/' ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (*wanted && !handle && !atomic_flag_test_and_set(&said))
        brg_log(BRG_LOG_ERROR, "environment: BRIGADE_NCCL_LIB=%s: %s", file,
                *file == '/' ? dlerror() : "expected an absolute path");
    return handle;
}

/* Linked with us, not under LD_PRELOAD. */
static bool is_linked(void)
{
    Dl_info info;
    const char *preload = getenv("LD_PRELOAD");
    return !preload || !dladdr((const void *)shim_route_of, &info) || !info.dli_fname ||
           !strstr(preload, base_name(info.dli_fname));
}

static const shim_real *anywhere(const char *file)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    mapped_nccl mapped = {0};
    const shim_real *real = real_behind(RTLD_NEXT);
    if (!real) {
        dl_iterate_phdr(mapped_see, &mapped);
        if (mapped.count == 1)
            real = real_behind(dlopen(mapped.path, RTLD_LAZY | RTLD_NOLOAD));
    }
    if (!real && !mapped.count && is_linked())
        real = real_behind(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL));
    if (!real && !atomic_flag_test_and_set(&said))
        brg_log(BRG_LOG_ERROR,
                "shim: no NCCL for %s: it is not linked with one, and the process has %s loaded; "
                "set BRIGADE_NCCL_LIB to the file",
                file, mapped.count ? "several" : "none");
    return real;
}

static shim_route resolve(const Dl_info *info)
{
    shim_route route = {0};
    const char *file = info->dli_fname ? info->dli_fname : "this program";
    void *own = info->dli_fname ? dlopen(info->dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!own)
        own = dlopen(NULL, RTLD_LAZY); /* the program itself */
    if (is_nccl_name(file)) {
        route.real = real_behind(own);
        route.inner = route.real && route.real->base == info->dli_fbase;
        if (route.inner)
            return route;
    }
    bool wanted;
    void *named = named_by_user(&wanted);
    if (wanted)
        route.real = real_behind(named);
    else
        route.real = real_behind(own);
    if (!route.real && !wanted)
        route.real = anywhere(file);
    return route;
}

static shim_route decode(uintptr_t word)
{
    return (shim_route){.real = (const shim_real *)(word & ~(uintptr_t)1), .inner = word & 1};
}

static size_t slot_of(uintptr_t caller)
{
    return (caller ^ caller >> 10) % CALLERS;
}

static void remember(uintptr_t caller, const void *base, uintptr_t word)
{
    pthread_mutex_lock(&lock);
    bool known_object = false;
    for (int i = 0; i < num_objects; i++)
        known_object |= objects[i].base == base;
    if (base && !known_object && num_objects < OBJECTS) {
        objects[num_objects].base = base;
        objects[num_objects++].route = word;
    }
    for (size_t i = 0, at = slot_of(caller); i < PROBES; i++, at = (at + 1) % CALLERS) {
        uintptr_t there = atomic_load_explicit(&callers[at].caller, memory_order_relaxed);
        if (there && there != caller)
            continue;
        atomic_store_explicit(&callers[at].route, word, memory_order_relaxed);
        atomic_store_explicit(&callers[at].caller, caller, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* No lock while the loader works: it may be running a constructor that is waiting for us. */
static shim_route look_up(const void *caller)
{
    Dl_info info = {0};
    shim_route route = {0};
    if (!dladdr(caller, &info))
        memset(&info, 0, sizeof info);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_objects && info.dli_fbase; i++)
        if (objects[i].base == info.dli_fbase)
            route = decode(objects[i].route);
    pthread_mutex_unlock(&lock);
    if (!route.real)
        route = resolve(&info);
    if (route.real)
        remember((uintptr_t)caller, info.dli_fbase, (uintptr_t)route.real | (route.inner ? 1 : 0));
    return route;
}

shim_route shim_route_of(const void *caller)
{
    uintptr_t key = (uintptr_t)caller;
    for (size_t i = 0, at = slot_of(key); i < PROBES; i++, at = (at + 1) % CALLERS) {
        uintptr_t there = atomic_load_explicit(&callers[at].caller, memory_order_acquire);
        if (there == key)
            return decode(atomic_load_explicit(&callers[at].route, memory_order_relaxed));
        if (!there)
            break;
    }
    return look_up(caller);
}

ncclResult_t shim_missing(const shim_real *real, const char *name)
{
    enum { NAMES = 32 };
    static _Atomic(const char *) said[NAMES];
    if (!real)
        return ncclSystemError;
    for (int i = 0; i < NAMES; i++) {
        const char *there = NULL;
        if (atomic_compare_exchange_strong(&said[i], &there, name)) {
            brg_log(BRG_LOG_WARN, "shim: %s is not in NCCL %d (%s)", name, real->version,
                    real->path);
            break;
        }
        if (there == name)
            break;
    }
    return ncclInvalidUsage;
}

void shim_real_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}
