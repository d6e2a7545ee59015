/* SPDX-License-Identifier: Apache-2.0 */
/* How contexts come to be: opened with a communicator of their own or with one of the caller's, or
 * split off another. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sched/bucket/bootstrap.h"
#include "sched/bucket/context.h"
#include "sched/device/cuda.h"
#include "sched/device/host.h"
#include "sched/options.h"

#define DEFAULT_INIT_TIMEOUT_S 60.0
#define DEFAULT_COLLECTIVE_TIMEOUT_S 600.0
/* The host engine's own time-out comes first: it knows which rank is late. */
#define WATCHDOG_GRACE_S 2.0

/* Opening */

static brg_status env_int(const char *name, int lowest, int highest, int *value)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return BRG_OK;
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || *end || number < lowest || number > highest)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "environment variable %s is \"%s\", expected %d to %d", name, text, lowest,
                        highest);
    *value = (int)number;
    return BRG_OK;
}

/* The option, else the environment variable, else the default. */
static brg_status get_timeout(double option, const char *name, double fallback, double *seconds)
{
    const char *text = getenv(name);
    *seconds = option > 0 ? option : fallback;
    if (option > 0 || !text || !*text)
        return BRG_OK;
    char *end;
    *seconds = strtod(text, &end);
    if (*end || !(*seconds > 0 && *seconds < 1e9))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "environment variable %s is \"%s\", expected seconds above 0", name, text);
    return BRG_OK;
}

/* Who this rank is: from the options, or from the environment as torchrun sets it. */
static brg_status read_ranks(brg_context *ctx, const brg_context_options *options)
{
    brg_status status = BRG_OK;
    ctx->world = options->world_size;
    ctx->rank = options->rank;
    ctx->local_rank = options->local_rank;
    if (options->world_size == 0) {
        ctx->world = 1;
        ctx->rank = 0;
        BRG_TRY(env_int("WORLD_SIZE", 1, INT_MAX, &ctx->world), out);
        const char *rank = getenv("RANK");
        if (ctx->world > 1 && (!rank || !*rank)) {
            status =
                brg_fail(BRG_ERR_INVALID_ARGUMENT,
                         "environment variable WORLD_SIZE is %d, but RANK is not set", ctx->world);
            goto out;
        }
        BRG_TRY(env_int("RANK", 0, INT_MAX, &ctx->rank), out);
        ctx->local_rank = ctx->rank;
        BRG_TRY(env_int("LOCAL_RANK", 0, INT_MAX, &ctx->local_rank), out);
    }
    if (ctx->world < 1 || ctx->rank < 0 || ctx->rank >= ctx->world || ctx->local_rank < 0)
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT, "rank %d (local %d) of %d ranks", ctx->rank,
                          ctx->local_rank, ctx->world);
out:
    return status;
}

/* The group's id: the caller's, our own where there is one rank, else rank 0's over TCP. */
static brg_status get_unique_id(brg_context *ctx, const brg_context_options *options,
                                double timeout, brg_unique_id *id)
{
    if (options->unique_id) {
        *id = *options->unique_id;
        return BRG_OK;
    }
    brg_status status = BRG_OK;
    if (ctx->rank == 0)
        BRG_TRY(brg_context_nccl(ctx, ctx->device.nccl->get_unique_id(id), "get_unique_id"), out);
    if (ctx->world == 1)
        return BRG_OK;
    const char *address = getenv("MASTER_ADDR");
    int port = 29500, *kept = NULL;
    BRG_TRY(env_int("MASTER_PORT", 1, 65535, &port), out);
    BRG_TRY(env_int("BRIGADE_MASTER_PORT", 1, 65535, &port), out);
    /* A library that counts what is done knows what its ranks do. */
    BRG_TRY(brg_bootstrap_run(address && *address ? address : "127.0.0.1", port, ctx->rank,
                              ctx->world, timeout, id,
                              ctx->device.nccl->comm_num_done ? NULL : &kept),
            out);
    if (kept)
        status = brg_lifeline_create(ctx->rank, ctx->world, kept, &ctx->lifeline);
    free(kept);
out:
    return status;
}

static brg_status open_trace(brg_context *ctx, const brg_context_options *options)
{
    const char *dir = options->trace_dir ? options->trace_dir : getenv("BRIGADE_TRACE");
    if (!dir || !*dir)
        return BRG_OK;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return brg_fail(BRG_ERR_IO, "cannot create trace directory %s: %s", dir, strerror(errno));
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/rank-%d.ring", dir, ctx->rank) >= (int)sizeof path)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "trace directory name is too long: %s", dir);
    brg_status status;
    int nrec_log2 = options->trace_records_log2;
    if (!nrec_log2)
        BRG_TRY(brg_ring_env_nrec_log2(&nrec_log2), out);
    BRG_TRY(brg_ring_create(path,
                            &(brg_ring_options){.rank = (uint32_t)ctx->rank,
                                                .world = (uint32_t)ctx->world,
                                                .gpu = (uint32_t)ctx->local_rank,
                                                .nrec_log2 = nrec_log2},
                            &ctx->ring),
            out);
    BRG_TRY(brg_timeline_create(&ctx->device, ctx->ring, ctx->comm_stream, &ctx->timeline), out);
    brg_ring_add_info(ctx->ring, "device", ctx->device.rt->name);
    brg_ring_add_info(ctx->ring, "version", brg_version());
    brg_context_describe(ctx);
out:
    return status;
}

brg_status brg_context_make_streams(brg_context *ctx)
{
    const brg_runtime *rt = ctx->device.rt;
    int least = 0, greatest = 0;
    brg_status status;
    BRG_TRY(
        brg_context_rt(ctx, rt->stream_priority_range(&least, &greatest), "stream_priority_range"),
        out);
    if (!ctx->borrows_stream)
        BRG_TRY(brg_context_rt(
                    ctx, rt->stream_create(&ctx->comm_stream, BRG_STREAM_NON_BLOCKING, greatest),
                    "stream_create"),
                out);
    BRG_TRY(brg_context_rt(ctx, rt->event_create(&ctx->relay_event, BRG_EVENT_DISABLE_TIMING),
                           "event_create"),
            out);
    BRG_TRY(brg_context_rt(ctx, rt->event_create(&ctx->relay_done, BRG_EVENT_DISABLE_TIMING),
                           "event_create"),
            out);
out:
    return status;
}

brg_status brg_context_start(brg_context *ctx)
{
    brg_status status = brg_watchdog_create(ctx, ctx->timeout_s, &ctx->watchdog);
    if (status != BRG_OK)
        return status;
    ctx->relay_watch.event = ctx->relay_done;
    snprintf(ctx->relay_watch.label, sizeof ctx->relay_watch.label,
             "a collective of the trainer's own");
    brg_watchdog_add(ctx->watchdog, &ctx->relay_watch);
    brg_log(BRG_LOG_INFO, "rank %d of %d on device %s, %s", ctx->rank, ctx->world,
            ctx->device.rt->name, ctx->ring ? "traced" : "not traced");
    return BRG_OK;
}

static brg_status open_tables(brg_context *ctx, const brg_device *tables,
                              const brg_context_options *options)
{
    brg_status status = BRG_OK;
    if (tables)
        ctx->device = *tables;
    else
        status = brg_device_open(options->device, &ctx->device);
    ctx->has_current_device = status == BRG_OK && ctx->device.rt != brg_host_runtime();
    return status;
}

/* Rank, size and device of a communicator. */
static brg_status ask_comm(brg_context *ctx)
{
    const brg_nccl *nccl = ctx->device.nccl;
    brg_status status;
    BRG_TRY(brg_context_nccl(ctx, nccl->comm_count(ctx->comm, &ctx->world), "comm_count"), out);
    BRG_TRY(brg_context_nccl(ctx, nccl->comm_user_rank(ctx->comm, &ctx->rank), "comm_user_rank"),
            out);
    BRG_TRY(brg_context_nccl(ctx, nccl->comm_device(ctx->comm, &ctx->device_index), "comm_device"),
            out);
out:
    return status;
}

static brg_status adopt_comm(brg_context *ctx, const brg_context_options *options)
{
    brg_status status;
    uint64_t done = 0;
    ctx->borrows_comm = true;
    ctx->comm = options->nccl_comm;
    if (options->unique_id) {
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                          "brg_context_open: both nccl_comm and unique_id are given");
        goto out;
    }
    BRG_TRY(ask_comm(ctx), out);
    ctx->local_rank = ctx->device_index;
    if (ctx->device.nccl->comm_num_done) /* the caller's collectives before */
        BRG_TRY(brg_context_nccl(ctx, ctx->device.nccl->comm_num_done(ctx->comm, &done),
                                 "comm_num_done"),
                out);
    atomic_store(&ctx->num_ops, done);
    if (options->world_size && (options->world_size != ctx->world || options->rank != ctx->rank))
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                          "brg_context_open: the options say rank %d of %d, but nccl_comm is rank "
                          "%d of %d",
                          options->rank, options->world_size, ctx->rank, ctx->world);
out:
    if (status != BRG_OK)
        ctx->comm = NULL; /* not ours to abort */
    return status;
}

/* The device is the calling thread's from now on, which is what a trainer with one device wants. */
static brg_status create_comm(brg_context *ctx, const brg_context_options *options,
                              double init_timeout, double timeout)
{
    const brg_runtime *rt = ctx->device.rt;
    brg_unique_id id = {{0}};
    void *comm = NULL;
    int devices = 0;
    brg_status status;
    BRG_TRY(read_ranks(ctx, options), out);
    BRG_TRY(brg_context_rt(ctx, rt->get_device_count(&devices), "get_device_count"), out);
    if (devices < 1) {
        status = brg_fail(BRG_ERR_DEVICE, "device %s has no devices", rt->name);
        goto out;
    }
    ctx->device_index = ctx->local_rank % devices;
    BRG_TRY(brg_context_rt(ctx, rt->set_device(ctx->device_index), "set_device"), out);
    if (ctx->device.nccl == brg_host_nccl())
        brg_host_set_timeouts(init_timeout, timeout);
    else if (ctx->device.nccl == brg_cuda_nccl())
        brg_cuda_set_timeouts(init_timeout, timeout);
    BRG_TRY(get_unique_id(ctx, options, init_timeout, &id), out);
    BRG_TRY(brg_context_nccl(ctx,
                             ctx->device.nccl->comm_init_rank(&comm, ctx->world, id, ctx->rank),
                             "comm_init_rank"),
            out);
    ctx->comm = comm;
out:
    return status;
}

static brg_status check_options(const brg_context_options *options)
{
    if (!(options->init_timeout_s >= 0 && options->init_timeout_s < 1e9) ||
        !(options->collective_timeout_s >= 0 && options->collective_timeout_s < 1e9) ||
        (options->trace_records_log2 &&
         (options->trace_records_log2 < 8 || options->trace_records_log2 > 26)))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "context options out of range: init_timeout_s %g, collective_timeout_s %g "
                        "(0 to 1e9), trace_records_log2 %d (0, or 8 to 26)",
                        options->init_timeout_s, options->collective_timeout_s,
                        options->trace_records_log2);
    return BRG_OK;
}

/* Everything behind the communicator, with its device current. */
static brg_status open_rest(brg_context *ctx, const brg_context_options *options)
{
    BRG_ON_DEVICE(ctx);
    brg_status status;
    BRG_TRY(brg_context_make_streams(ctx), out);
    BRG_TRY(open_trace(ctx, options), out);
    BRG_TRY(brg_context_start(ctx), out);
out:
    return status;
}

brg_status brg_context_open(const brg_context_options *given, brg_context **out)
{
    return brg_context_open_on(NULL, given, out);
}

brg_status brg_context_open_on(const brg_device *tables, const brg_context_options *given,
                               brg_context **out)
{
    if (!out)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_context_open: the output is NULL");
    *out = NULL;
    brg_context_options options;
    brg_status status = brg_options_copy("brg_context_options", &options, sizeof options, given);
    if (status != BRG_OK)
        return status;
    double init_timeout = 0, timeout = 0;
    brg_context *ctx = brg_context_new();
    if (!ctx)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a context");
    BRG_TRY(check_options(&options), fail);
    BRG_TRY(get_timeout(options.init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_TIMEOUT_S,
                        &init_timeout),
            fail);
    BRG_TRY(get_timeout(options.collective_timeout_s, "BRIGADE_COLLECTIVE_TIMEOUT",
                        DEFAULT_COLLECTIVE_TIMEOUT_S, &timeout),
            fail);
    ctx->timeout_s = timeout + WATCHDOG_GRACE_S;
    ctx->comm_stream = options.comm_stream;
    ctx->borrows_stream = options.comm_stream != NULL;
    BRG_TRY(open_tables(ctx, tables, &options), fail);
    if (options.nccl_comm)
        BRG_TRY(adopt_comm(ctx, &options), fail);
    else
        BRG_TRY(create_comm(ctx, &options, init_timeout, timeout), fail);
    BRG_TRY(open_rest(ctx, &options), fail);
    *out = ctx;
    return BRG_OK;
fail:
    brg_context_close(ctx);
    return status;
}

/* Splitting */

static void join_parent(brg_context *ctx, brg_context *parent)
{
    ctx->parent = parent;
    pthread_mutex_lock(&parent->children_lock);
    ctx->next_sibling = parent->first_child;
    parent->first_child = ctx;
    pthread_mutex_unlock(&parent->children_lock);
}

/* In the order of the other collectives, and with none of them outstanding, as NCCL wants it. */
static brg_status split_comm(brg_context *ctx, int color, int key, void **comm)
{
    brg_status status;
    BRG_TRY(brg_context_rt(ctx, ctx->device.rt->stream_synchronize(ctx->comm_stream),
                           "stream_synchronize"),
            out);
    BRG_TRY(brg_context_status(ctx), out);
    pthread_mutex_lock(&ctx->issue_lock);
    void *parent = brg_context_hold_comm(ctx);
    int result =
        parent ? ctx->device.nccl->comm_split(parent, color, key, comm) : BRG_NCCL_INVALID_USAGE;
    brg_context_release_comm(ctx);
    brg_context_count_op_locked(ctx, result);
    pthread_mutex_unlock(&ctx->issue_lock);
    status = brg_context_nccl(ctx, result, "comm_split");
out:
    return status;
}

static void describe_child(const brg_context *ctx, int color)
{
    char name[40], text[80];
    snprintf(name, sizeof name, "communicator %u", ctx->comm_id);
    snprintf(text, sizeof text, "rank %d of %d, color %d of communicator %u", ctx->rank, ctx->world,
             color, ctx->parent->comm_id);
    brg_ring_add_info(ctx->ring, name, text);
}

brg_status brg_context_split(brg_context *ctx, int color, int key, brg_context **out)
{
    if (!ctx || !out || color < -1)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "brg_context_split: context or output is NULL, or color %d is below -1",
                        color);
    *out = NULL;
    BRG_ON_DEVICE(ctx);
    brg_status status = brg_context_check(ctx);
    if (status != BRG_OK)
        return status;
    brg_context *child = brg_context_new();
    if (!child)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a context");
    child->device = ctx->device;
    child->has_current_device = ctx->has_current_device;
    child->timeout_s = ctx->timeout_s;
    child->local_rank = ctx->local_rank;
    void *comm = NULL;
    BRG_TRY(split_comm(ctx, color, key, &comm), out);
    child->comm = comm;
    child->comm_id = atomic_fetch_add(&ctx->root->num_comms, 1) + 1;
    if (!comm)
        goto out;
    BRG_TRY(ask_comm(child), out);
    child->root = ctx->root;
    child->ring = ctx->ring;
    child->timeline = ctx->timeline;
    BRG_TRY(brg_context_make_streams(child), out);
    join_parent(child, ctx);
    BRG_TRY(brg_context_start(child), out);
    describe_child(child, color);
    *out = child;
    return BRG_OK;
out:
    brg_context_close(child);
    return status;
}

brg_status brg_unique_id_create(brg_device_kind kind, brg_unique_id *id)
{
    if (!id)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_unique_id_create: the output is NULL");
    brg_device device;
    brg_status status = brg_device_open(kind, &device);
    if (status != BRG_OK)
        return status;
    return brg_nccl_status(&device, device.nccl->get_unique_id(id), NULL, "get_unique_id");
}
