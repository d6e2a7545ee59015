/* SPDX-License-Identifier: Apache-2.0 */
/* Whether anything is recorded. UNSET -> ON or OFF at the first communicator; ON -> OFF in a child
 * after fork. A process that makes no communicator is left as it was: nothing is opened, no thread
 * started. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "shim/interpose/internal.h"

enum { KERNELS_NREC_LOG2 = 20, KERNELS_STRTAB_BYTES = 4 << 20 };

_Atomic int shim_state = SHIM_UNSET;
brg_ring *shim_ring;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void shim_complain(const char *format, ...)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char text[512];
    va_list args;
    if (atomic_flag_test_and_set(&said))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    brg_log(BRG_LOG_WARN, "shim: %s", text);
}

static int env_number(const char *const *names)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        if (!text || !*text)
            continue;
        errno = 0;
        long value = strtol(text, &end, 10);
        if (!errno && !*end && value >= 0 && value < INT_MAX)
            return (int)value;
    }
    return -1;
}

/* libbrigade writes its own trace, of the same collectives, into the same file. */
static bool has_libbrigade(void)
{
    return dlsym(RTLD_DEFAULT, "brg_context_open") ||
           dlopen("libbrigade.so.1", RTLD_LAZY | RTLD_NOLOAD);
}

/* The thread that reads events is gone, the ring belongs to the parent. */
static void child_of_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    shim_real_after_fork();
    if (!shim_on())
        return;
    atomic_store(&shim_state, SHIM_OFF);
    brg_ring_abandon(shim_ring);
    shim_ring = NULL;
}

/* Other threads may still write: the mapping stays. */
static void at_exit(void)
{
    if (shim_on())
        brg_ring_finish(shim_ring);
}

static void real_describe(brg_ring *ring, const shim_real *real)
{
    char text[600];
    snprintf(text, sizeof text, "%d %s", real->version, real->path);
    brg_ring_add_info(ring, "nccl", text);
}

void shim_found(const shim_real *real)
{
    brg_log(BRG_LOG_INFO, "shim: NCCL %d, %s", real->version, real->path);
    if (shim_on())
        real_describe(shim_ring, real);
}

static brg_ring *ring_open(const char *dir, int rank, int ranks)
{
    static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
                                             "PMI_RANK", NULL};
    static const char *const world_names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS",
                                              "PMI_SIZE", NULL};
    int own = env_number(rank_names), world = env_number(world_names);
    if (own < 0) {
        own = rank;
        world = ranks;
    }
    if (world <= own)
        world = own + 1;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/rank-%d.ring", dir, own) >= (int)sizeof path)
        return NULL;
    bool kernels = shim_kernels_wanted(); /* thousands a step */
    int nrec_log2;
    if (brg_ring_env_nrec_log2(&nrec_log2) != BRG_OK)
        brg_log(BRG_LOG_WARN, "shim: %s", brg_last_error());
    if (!nrec_log2 && kernels)
        nrec_log2 = KERNELS_NREC_LOG2;
    const brg_ring_options options = {.rank = (uint32_t)own,
                                      .world = (uint32_t)world,
                                      .nrec_log2 = nrec_log2,
                                      .strtab_bytes = kernels ? KERNELS_STRTAB_BYTES : 0};
    brg_ring *ring = NULL;
    if (brg_ring_create(path, &options, &ring) != BRG_OK) {
        shim_complain("%s; nothing is recorded", brg_last_error());
        return NULL;
    }
    brg_ring_add_info(ring, "source", "shim");
    brg_ring_add_info(ring, "brigade", BRIGADE_VERSION);
    for (int i = 0; shim_real_at(i); i++)
        real_describe(ring, shim_real_at(i));
    return ring;
}

static void clocks_open(void)
{
    shim_timing_open();
    shim_kernels_open();
}

bool shim_open(int rank, int ranks)
{
    int state = atomic_load_explicit(&shim_state, memory_order_acquire);
    if (state == SHIM_ON)
        clocks_open();
    if (state != SHIM_UNSET)
        return state == SHIM_ON;
    const char *dir = getenv("BRIGADE_TRACE");
    bool wanted = dir && *dir && !has_libbrigade();
    if (dir && *dir && !wanted)
        brg_log(BRG_LOG_INFO, "shim: silent, since libbrigade is loaded and writes the trace");
    pthread_mutex_lock(&lock);
    state = atomic_load(&shim_state);
    if (state == SHIM_UNSET) {
        shim_ring = wanted ? ring_open(dir, rank, ranks) : NULL;
        bool on = shim_ring && !pthread_atfork(NULL, NULL, child_of_fork) && !atexit(at_exit);
        state = on ? SHIM_ON : SHIM_OFF;
        atomic_store_explicit(&shim_state, state, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (state == SHIM_ON)
        clocks_open();
    return state == SHIM_ON;
}
