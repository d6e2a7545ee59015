/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the NCCL-shaped table that makes, asks and ends communicators. */
#include "sched/device/host_comm_api.h"
#include "sched/device/host_group.h"

#include <stdlib.h>
#include <string.h>

#define ID_MAGIC "brigade1"

int host_get_version(int *version)
{
    if (!version)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "get_version: version is NULL");
    *version = 22809; /* the NCCL release whose behaviour the engine follows: 2.28.9 */
    return BRG_NCCL_OK;
}

int host_get_unique_id(brg_unique_id *id)
{
    if (!id)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "get_unique_id: id is NULL");
    char name[40] = {0};
    int result = host_comm_name_new(name);
    if (result)
        return result;
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, ID_MAGIC, sizeof ID_MAGIC - 1);
    memcpy(id->bytes + sizeof ID_MAGIC - 1, name, 32);
    return BRG_NCCL_OK;
}

static int name_of_id(const brg_unique_id *id, char name[40])
{
    memset(name, 0, 40);
    memcpy(name, id->bytes + sizeof ID_MAGIC - 1, 32);
    if (memcmp(id->bytes, ID_MAGIC, sizeof ID_MAGIC - 1) || strspn(name, "0123456789abcdef") != 32)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "comm_init_rank: the unique id was not made by the host device's "
                         "get_unique_id");
    return BRG_NCCL_OK;
}

static int check_place(int num_ranks, int rank)
{
    if (num_ranks < 1 || num_ranks > HOST_MAX_RANKS)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "communicator of %d ranks: expected 1 to %d", num_ranks, HOST_MAX_RANKS);
    if (rank < 0 || rank >= num_ranks)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "communicator of %d ranks: there is no rank %d", num_ranks, rank);
    return BRG_NCCL_OK;
}

int host_comm_init_rank(void **comm, int num_ranks, brg_unique_id id, int rank)
{
    if (!comm)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "comm_init_rank: comm is NULL");
    *comm = NULL;
    host_job job = {.out = comm, .num_ranks = num_ranks, .rank = rank};
    int result = check_place(num_ranks, rank);
    if (!result)
        result = name_of_id(&id, job.name);
    if (result)
        return host_group_error(result);
    host_get_device(&job.device);
    return host_group_job(&job);
}

int host_comm_init_all(void **comms, int num_devices, const int *devices)
{
    if (!comms)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "comm_init_all: comms is NULL");
    int device_count, result = check_place(num_devices, 0);
    if (result)
        return result;
    if (host_get_device_count(&device_count))
        return BRG_NCCL_INVALID_USAGE;
    host_job *jobs = calloc((size_t)num_devices, sizeof *jobs);
    if (!jobs)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
    char name[40] = {0};
    result = host_comm_name_new(name);
    for (int i = 0; i < num_devices && !result; i++) {
        int device = devices ? devices[i] : i;
        if (device < 0 || device >= device_count)
            result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                               "comm_init_all: there is no device %d, only %d devices", device,
                               device_count);
        comms[i] = NULL;
        jobs[i] =
            (host_job){.out = &comms[i], .num_ranks = num_devices, .rank = i, .device = device};
        memcpy(jobs[i].name, name, sizeof name);
    }
    if (!result)
        result = host_jobs_run(jobs, num_devices);
    for (int i = 0; i < num_devices && result; i++) {
        if (comms[i])
            host_comm_abort(comms[i]);
        comms[i] = NULL;
    }
    free(jobs);
    return result;
}

typedef struct split_entry { /* what every rank tells the others in a split */
    int32_t color, key;
    char name[40];
} split_entry;

/* Runs the internal all-gather of a split in the calls' order, on the calling thread. */
static int exchange(host_comm *parent, const split_entry *mine, split_entry *all)
{
    host_call call = {.kind = HOST_SPLIT,
                      .dtype = BRG_NCCL_INT8,
                      .peer = -1,
                      .count = sizeof *mine,
                      .send = mine,
                      .recv = all};
    return host_call_submit(&call, parent, NULL);
}

int host_split_now(host_comm *parent, int color, int key, void **child)
{
    int n = parent->num_ranks, size = 0, place = 0, first = -1;
    split_entry mine = {.color = color, .key = key};
    split_entry *all = calloc((size_t)n, sizeof *all);
    int result = all ? host_comm_name_new(mine.name)
                     : host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
    if (!result)
        result = exchange(parent, &mine, all);
    for (int r = 0; r < n && !result && color >= 0; r++) {
        if (all[r].color != color)
            continue;
        size++;
        if (first < 0 || all[r].key < all[first].key)
            first = r;
        place += all[r].key < key || (all[r].key == key && r < parent->rank);
    }
    if (!result && color >= 0) {
        host_comm *comm;
        result = host_comm_create(&comm, size, all[first].name, place, parent->device);
        *child = comm;
    }
    free(all);
    return result;
}

int host_comm_split(void *comm, int color, int key, void **child)
{
    int result = host_comm_check(comm, "comm_split");
    if (!result && (!child || color < -1))
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           child ? "comm_split: color %d: expected -1 (none) or more"
                                 : "comm_split: child is NULL",
                           color);
    if (result)
        return host_group_error(result);
    *child = NULL;
    host_job job = {.out = child, .parent = comm, .color = color, .key = key};
    return host_group_job(&job);
}

static void wait_for_calls(host_comm *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t target = c->next_ticket;
    while (c->turn < target)
        pthread_cond_wait(&c->turned, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static int async_result(host_comm *c)
{
    int error = atomic_load(&c->error);
    return error ? host_fail(error, c->error_cause, "%s", c->error_text) : BRG_NCCL_OK;
}

int host_comm_finalize(void *comm)
{
    int result = host_comm_check(comm, "comm_finalize");
    if (result)
        return result;
    wait_for_calls(comm);
    return async_result(comm);
}

static void end(host_comm *c)
{
    if (c->own_stream)
        host_stream_destroy(c->own_stream);
    c->own_stream = NULL;
    host_comm_unref(c);
}

/* In a forked child the handle is dropped, and nothing that the parent shares is touched. */
static bool is_inherited(const host_comm *c)
{
    return c && c->magic == HOST_COMM_MAGIC && c->generation != atomic_load(&host_generation);
}

int host_comm_destroy(void *comm)
{
    if (!comm || is_inherited(comm))
        return BRG_NCCL_OK;
    int result = host_comm_check(comm, "comm_destroy");
    if (!result)
        end(comm);
    return result;
}

int host_comm_abort(void *comm)
{
    if (!comm || is_inherited(comm))
        return BRG_NCCL_OK;
    int result = host_comm_check(comm, "comm_abort");
    if (result)
        return result;
    host_comm *c = comm;
    shm_rank *mine = &c->segment->ranks[c->rank];
    host_comm_break(c, atomic_load(&c->done_seq) + 1, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                    "rank %d (process %llu) has aborted the communicator", c->rank,
                    (unsigned long long)mine->process.pid);
    atomic_store(&mine->presence, SHM_ABORTED);
    host_comm_wake_all(c);
    end(c);
    return BRG_NCCL_OK;
}

int host_comm_get_async_error(void *comm, int *result)
{
    int error = host_comm_check(comm, "comm_get_async_error");
    if (!error && !result)
        error = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                          "comm_get_async_error: result is NULL");
    if (error)
        return error;
    host_comm *c = comm;
    *result = atomic_load(&c->error);
    if (*result)
        return BRG_NCCL_OK;
    *result = host_comm_adopt(c);
    uint64_t now = host_now_ns(), due = atomic_load(&c->next_check_ns);
    if (!*result && now >= due &&
        atomic_compare_exchange_strong(&c->next_check_ns, &due, now + HOST_CHECK_NS)) {
        host_wait idle = {.comm = c};
        *result = host_comm_look(&idle);
    }
    return BRG_NCCL_OK;
}

static int get(void *comm, int *out, const char *what, size_t offset)
{
    int result = host_comm_check(comm, what);
    if (!result && !out)
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           "%s: the result pointer is NULL", what);
    if (!result)
        memcpy(out, (const char *)comm + offset, sizeof *out);
    return result;
}

int host_comm_num_done(void *comm, uint64_t *count)
{
    int result = host_comm_check(comm, "comm_num_done");
    if (!result && !count)
        result = host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                           "comm_num_done: the result pointer is NULL");
    if (!result)
        *count = atomic_load(&((host_comm *)comm)->done_seq);
    return result;
}

int host_comm_count(void *comm, int *count)
{
    return get(comm, count, "comm_count", offsetof(host_comm, num_ranks));
}

int host_comm_user_rank(void *comm, int *rank)
{
    return get(comm, rank, "comm_user_rank", offsetof(host_comm, rank));
}

int host_comm_device(void *comm, int *device)
{
    return get(comm, device, "comm_device", offsetof(host_comm, device));
}

const char *brg_host_algorithm(void *comm)
{
    return host_comm_check(comm, "algorithm") ? "none"
                                              : atomic_load(&((host_comm *)comm)->algorithm);
}

brg_status brg_host_comm_status(void *comm)
{
    if (host_comm_check(comm, "status"))
        return BRG_ERR_INVALID_ARGUMENT;
    host_comm *c = comm;
    return atomic_load(&c->error) ? c->error_cause : BRG_OK;
}

const char *host_nccl_error_string(int result)
{
    switch (result) {
    case BRG_NCCL_OK:
        return "no error";
    case BRG_NCCL_UNHANDLED_CUDA:
        return "unhandled device error";
    case BRG_NCCL_SYSTEM:
        return "unhandled system error";
    case BRG_NCCL_INTERNAL:
        return "internal error";
    case BRG_NCCL_INVALID_ARGUMENT:
        return "invalid argument";
    case BRG_NCCL_INVALID_USAGE:
        return "invalid usage";
    case BRG_NCCL_REMOTE:
        return "remote process exited or there was a network error";
    case BRG_NCCL_IN_PROGRESS:
        return "operation in progress";
    default:
        return "unknown result code";
    }
}

const char *host_last_error(void *comm)
{
    host_comm *c = comm;
    if (c && c->magic == HOST_COMM_MAGIC && atomic_load(&c->error))
        return c->error_text;
    return host_thread_error();
}
