/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the device `cuda`: made, split and ended without hanging for ever.
 *
 * NCCL's calls block until the other ranks have come, and cannot be called off. So each runs on a
 * thread of its own, for which the caller waits until a deadline. A thread that comes too late
 * aborts the communicator that nobody waits for any more; one that never comes is lost with its
 * job, which is harmless. Inside a group, which belongs to the calling thread, NCCL is called
 * directly.
 */
#include "sched/device/cuda_internal.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_INIT_S 60.0
#define DEFAULT_COLLECTIVE_S 600.0
#define LOOK_EVERY_NS 1000000

typedef struct job {
    int (*run)(struct job *job);
    int device; /* the caller's current one */
    double limit_s;
    char what[160]; /* "comm_init_rank of rank 1 of 4: the other ranks" */

    /* Arguments and results; the thread's until it is done. */
    void *comm;
    void **made; /* num_made communicators; NULL where none is made */
    int num_made;
    int *devices; /* NULL: the first ones */
    int num_ranks, rank, color, key;
    brg_unique_id id;
    int result;
    brg_status cause;
    char text[THREAD_ERROR_BYTES]; /* of a failure */

    pthread_mutex_t lock; /* done, abandoned */
    pthread_cond_t changed;
    bool done, abandoned;
} job;

static _Thread_local int group_depth;
static _Atomic double init_timeout_s, collective_timeout_s; /* 0: the environment's */

void brg_cuda_set_timeouts(double init_s, double collective_s)
{
    atomic_store(&init_timeout_s, init_s);
    atomic_store(&collective_timeout_s, collective_s);
}

static int read_timeout(_Atomic double *set, const char *name, double fallback, double *seconds)
{
    const char *text = getenv(name);
    *seconds = atomic_load(set);
    if (*seconds > 0)
        return BRG_NCCL_OK;
    *seconds = fallback;
    if (!text || !*text)
        return BRG_NCCL_OK;
    char *end;
    *seconds = strtod(text, &end);
    if (*end || !(*seconds > 0 && *seconds < 1e9))
        return cuda_nccl_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_INVALID_ARGUMENT,
                              "environment: %s=%s: expected seconds above 0", name, text);
    return BRG_NCCL_OK;
}

/* Jobs */

static void free_job(job *j)
{
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->changed);
    free(j->made);
    free(j->devices);
    free(j);
}

/* A communicator that NCCL makes in the background (NCCL_COMM_BLOCKING=0) is waited for here. */
static int settle(const job *j, void *comm, int result)
{
    const struct timespec pause = {.tv_nsec = LOOK_EVERY_NS};
    for (double waited_s = 0; result == BRG_NCCL_IN_PROGRESS && comm && waited_s < j->limit_s;
         waited_s += LOOK_EVERY_NS * 1e-9) {
        nanosleep(&pause, NULL);
        int error = cuda_nccl.ncclCommGetAsyncError(comm, &result);
        if (error)
            return error;
    }
    return result;
}

static void *job_main(void *arg)
{
    job *j = arg;
    brg_cuda_runtime()->set_device(j->device);
    j->result = cuda_nccl_done(j->run(j));
    if (j->result) {
        j->cause = brg_cuda_last_cause();
        snprintf(j->text, sizeof j->text, "%s", cuda_nccl_text());
    }
    pthread_mutex_lock(&j->lock);
    bool abandoned = j->abandoned;
    j->done = true;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (!abandoned)
        return NULL; /* the job is the caller's again */
    for (int i = 0; i < j->num_made && !j->result; i++)
        if (j->made[i])
            cuda_nccl.ncclCommAbort(j->made[i]);
    free_job(j);
    return NULL;
}

static job *new_job(int (*run)(job *), int num_made)
{
    job *j = calloc(1, sizeof *j);
    void **made = calloc((size_t)num_made + 1, sizeof *made);
    if (!j || !made) {
        free(j);
        free(made);
        cuda_nccl_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    j->run = run;
    j->made = made;
    j->num_made = num_made;
    brg_cuda_runtime()->get_device(&j->device);
    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &attr);
    pthread_condattr_destroy(&attr);
    return j;
}

static bool wait_for(job *j)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double whole = floor(j->limit_s);
    long ns = until.tv_nsec + (long)((j->limit_s - whole) * 1e9);
    until.tv_sec += (time_t)whole + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&j->lock);
    while (!j->done && pthread_cond_timedwait(&j->changed, &j->lock, &until) != ETIMEDOUT)
        ;
    bool done = j->done;
    j->abandoned = !done;
    pthread_mutex_unlock(&j->lock);
    return done;
}

/* Runs the job within its limit, copies what it made to `out`, and frees it. */
static int run_job(job *j, void **out)
{
    char what[sizeof j->what];
    memcpy(what, j->what, sizeof what);
    double limit_s = j->limit_s;
    pthread_t thread;
    int error = pthread_create(&thread, NULL, job_main, j);
    if (error) {
        free_job(j);
        return cuda_nccl_fail(BRG_NCCL_SYSTEM, BRG_ERR_DEVICE, "%s: cannot start a thread: %s",
                              what, strerror(error));
    }
    pthread_detach(thread);
    if (!wait_for(j)) /* the job is the thread's now */
        return cuda_nccl_fail(BRG_NCCL_SYSTEM, BRG_ERR_TIMEOUT, "%s have not come within %g s",
                              what, limit_s);
    int result = j->result;
    for (int i = 0; i < j->num_made && !result; i++)
        out[i] = j->made[i];
    if (result)
        cuda_nccl_fail(result, j->cause, "%s", j->text);
    free_job(j);
    return result;
}

/* Making communicators */

static int init_directly(void **comm, int num_ranks, brg_unique_id id, int rank)
{
    brg_nccl_config config = BRG_NCCL_CONFIG;
    if (cuda_nccl.ncclCommInitRankConfig)
        return cuda_nccl.ncclCommInitRankConfig(comm, num_ranks, id, rank, &config);
    return cuda_nccl.ncclCommInitRank(comm, num_ranks, id, rank);
}

static int run_init_rank(job *j)
{
    int result = init_directly(j->made, j->num_ranks, j->id, j->rank);
    return settle(j, j->made[0], result);
}

int cuda_comm_init_rank(void **comm, int num_ranks, brg_unique_id id, int rank)
{
    double limit_s;
    if (!comm)
        return cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                              "comm_init_rank: comm is NULL");
    *comm = NULL;
    if (group_depth)
        return cuda_nccl_done(init_directly(comm, num_ranks, id, rank));
    int result = read_timeout(&init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_S, &limit_s);
    job *j = result ? NULL : new_job(run_init_rank, 1);
    if (!j)
        return result ? result : BRG_NCCL_SYSTEM;
    j->limit_s = limit_s;
    j->num_ranks = num_ranks;
    j->rank = rank;
    j->id = id;
    snprintf(j->what, sizeof j->what, "comm_init_rank: rank %d of %d: the other ranks", rank,
             num_ranks);
    return run_job(j, comm);
}

static int run_init_all(job *j)
{
    return cuda_nccl.ncclCommInitAll(j->made, j->num_made, j->devices);
}

int cuda_comm_init_all(void **comms, int num_devices, const int *devices)
{
    double limit_s;
    if (!comms || num_devices < 1)
        return cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                              "comm_init_all: comms is NULL, or %d devices", num_devices);
    memset(comms, 0, (size_t)num_devices * sizeof *comms);
    int result = read_timeout(&init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_S, &limit_s);
    job *j = result ? NULL : new_job(run_init_all, num_devices);
    if (!j)
        return result ? result : BRG_NCCL_SYSTEM;
    j->limit_s = limit_s;
    snprintf(j->what, sizeof j->what, "comm_init_all: the %d devices", num_devices);
    if (devices) {
        j->devices = malloc((size_t)num_devices * sizeof *devices);
        if (!j->devices) {
            free_job(j);
            return cuda_nccl_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
        }
        memcpy(j->devices, devices, (size_t)num_devices * sizeof *devices);
    }
    return run_job(j, comms);
}

static int run_split(job *j)
{
    brg_nccl_config config = BRG_NCCL_CONFIG; /* blocking, whatever the parent is */
    int result = cuda_nccl.ncclCommSplit(j->comm, j->color, j->key, j->made, &config);
    return settle(j, j->made[0] ? j->made[0] : j->comm, result);
}

int cuda_comm_split(void *comm, int color, int key, void **child)
{
    double limit_s;
    if (!comm || !child || color < -1)
        return cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                              "comm_split: comm or child is NULL, or color %d is below -1", color);
    *child = NULL;
    if (!cuda_nccl.ncclCommSplit)
        return cuda_nccl_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_UNSUPPORTED,
                              "comm_split: this NCCL (version code %d) has no ncclCommSplit",
                              cuda_nccl_version);
    brg_nccl_config config = BRG_NCCL_CONFIG;
    if (group_depth)
        return cuda_nccl_done(cuda_nccl.ncclCommSplit(comm, color, key, child, &config));
    int result = read_timeout(&init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_S, &limit_s);
    job *j = result ? NULL : new_job(run_split, 1);
    if (!j)
        return result ? result : BRG_NCCL_SYSTEM;
    j->limit_s = limit_s;
    j->comm = comm;
    j->color = color;
    j->key = key;
    snprintf(j->what, sizeof j->what, "comm_split of color %d: the other ranks", color);
    return run_job(j, child);
}

/* Ending them */

static int run_finalize(job *j)
{
    return settle(j, j->comm, cuda_nccl.ncclCommFinalize(j->comm));
}

static int run_destroy(job *j)
{
    return cuda_nccl.ncclCommDestroy(j->comm);
}

static int end(void *comm, int (*run)(job *), double limit_s, const char *what)
{
    job *j = new_job(run, 0);
    if (!j)
        return BRG_NCCL_SYSTEM;
    j->limit_s = limit_s;
    j->comm = comm;
    snprintf(j->what, sizeof j->what, "%s", what);
    return run_job(j, NULL);
}

int cuda_comm_finalize(void *comm)
{
    double limit_s;
    if (!comm)
        return cuda_nccl_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                              "comm_finalize: comm is NULL");
    if (!cuda_nccl.ncclCommFinalize)
        return BRG_NCCL_OK;
    int result = read_timeout(&collective_timeout_s, "BRIGADE_COLLECTIVE_TIMEOUT",
                              DEFAULT_COLLECTIVE_S, &limit_s);
    return result ? result
                  : end(comm, run_finalize, limit_s, "comm_finalize: outstanding collectives");
}

int cuda_comm_destroy(void *comm)
{
    double limit_s;
    if (!comm)
        return BRG_NCCL_OK;
    int result = read_timeout(&init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_S, &limit_s);
    return result ? result : end(comm, run_destroy, limit_s, "comm_destroy: NCCL's own threads");
}

int cuda_comm_abort(void *comm)
{
    return comm ? cuda_nccl_done(cuda_nccl.ncclCommAbort(comm)) : BRG_NCCL_OK;
}

int cuda_comm_get_async_error(void *comm, int *result)
{
    int error = cuda_nccl_done(cuda_nccl.ncclCommGetAsyncError(comm, result));
    if (!error)
        cuda_nccl_done(*result); /* keeps the text for last_error */
    return error;
}

int cuda_group_start(void)
{
    int result = cuda_nccl_done(cuda_nccl.ncclGroupStart());
    group_depth += !result;
    return result;
}

int cuda_group_end(void)
{
    group_depth -= group_depth > 0;
    return cuda_nccl_done(cuda_nccl.ncclGroupEnd());
}
