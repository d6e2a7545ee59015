/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/context.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sched/bucket/bootstrap.h"
#include "sched/device/host.h"
#include "sched/options.h"

#define DEFAULT_INIT_TIMEOUT_S 60.0
#define DEFAULT_COLLECTIVE_TIMEOUT_S 600.0
/* The host engine's own time-out comes first: it knows which rank is late. */
#define WATCHDOG_GRACE_S 2.0

brg_status brg_context_rt(const brg_context *ctx, int error, const char *what)
{
    return error == BRG_RT_OK ? BRG_OK : brg_rt_status(&ctx->device, error, what);
}

brg_status brg_context_nccl(brg_context *ctx, int result, const char *what)
{
    if (result == BRG_NCCL_OK)
        return BRG_OK;
    /* An asynchronous error explains more than the call that ran into it. */
    brg_status failure = brg_context_status(ctx);
    return failure != BRG_OK ? failure : brg_nccl_status(&ctx->device, result, ctx->comm, what);
}

/* Asynchronous errors */

brg_status brg_context_fail(brg_context *ctx, brg_status status, const char *format, ...)
{
    pthread_mutex_lock(&ctx->fail_lock);
    if (atomic_load(&ctx->failure) == BRG_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(ctx->failure_text, sizeof ctx->failure_text, format, args);
        va_end(args);
        atomic_store(&ctx->failure, (int)status);
        brg_log(BRG_LOG_INFO, "%s: %s", brg_status_str(status), ctx->failure_text);
    }
    pthread_mutex_unlock(&ctx->fail_lock);
    return status;
}

brg_status brg_context_status(brg_context *ctx)
{
    if (!ctx)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "context is NULL");
    if (atomic_load(&ctx->failure) == BRG_OK && ctx->watchdog)
        brg_watchdog_look(ctx->watchdog);
    brg_status status = (brg_status)atomic_load(&ctx->failure);
    if (status != BRG_OK) {
        pthread_mutex_lock(&ctx->fail_lock);
        brg_fail(status, "%s", ctx->failure_text);
        pthread_mutex_unlock(&ctx->fail_lock);
    }
    return status;
}

void brg_context_abort(brg_context *ctx)
{
    if (!ctx)
        return;
    brg_context_fail(ctx, BRG_ERR_STATE, "rank %d: the context was aborted", ctx->rank);
    pthread_mutex_lock(&ctx->issue_lock);
    if (ctx->watchdog)
        brg_watchdog_lock(ctx->watchdog);
    void *comm = ctx->comm;
    ctx->comm = NULL;
    if (ctx->watchdog)
        brg_watchdog_unlock(ctx->watchdog);
    pthread_mutex_unlock(&ctx->issue_lock);
    if (comm)
        ctx->device.nccl->comm_abort(comm);
}

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
    int port = 29500;
    BRG_TRY(env_int("MASTER_PORT", 1, 65535, &port), out);
    BRG_TRY(env_int("BRIGADE_MASTER_PORT", 1, 65535, &port), out);
    BRG_TRY(brg_bootstrap_run(address && *address ? address : "127.0.0.1", port, ctx->rank,
                              ctx->world, timeout, id),
            out);
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
    BRG_TRY(brg_ring_create(path,
                            &(brg_ring_options){.rank = (uint32_t)ctx->rank,
                                                .world = (uint32_t)ctx->world,
                                                .gpu = (uint32_t)ctx->local_rank,
                                                .nrec_log2 = options->trace_records_log2},
                            &ctx->ring),
            out);
    BRG_TRY(brg_timeline_create(&ctx->device, ctx->ring, ctx->comm_stream, &ctx->timeline), out);
    brg_ring_add_info(ctx->ring, "device", ctx->device.rt->name);
    brg_ring_add_info(ctx->ring, "version", brg_version());
out:
    return status;
}

static brg_status open_device(brg_context *ctx, const brg_device *tables,
                              const brg_context_options *options)
{
    const brg_runtime *rt;
    brg_status status;
    if (tables)
        ctx->device = *tables;
    else
        BRG_TRY(brg_device_open(options->device, &ctx->device), out);
    rt = ctx->device.rt;
    int devices = 0;
    BRG_TRY(brg_context_rt(ctx, rt->get_device_count(&devices), "get_device_count"), out);
    if (devices < 1) {
        status = brg_fail(BRG_ERR_DEVICE, "device %s has no devices", rt->name);
        goto out;
    }
    BRG_TRY(brg_context_rt(ctx, rt->set_device(ctx->local_rank % devices), "set_device"), out);
    int least = 0, greatest = 0;
    BRG_TRY(
        brg_context_rt(ctx, rt->stream_priority_range(&least, &greatest), "stream_priority_range"),
        out);
    BRG_TRY(brg_context_rt(ctx,
                           rt->stream_create(&ctx->comm_stream, BRG_STREAM_NON_BLOCKING, greatest),
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
    brg_unique_id id = {{0}};
    double init_timeout = 0, timeout = 0;
    brg_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a context");
    pthread_mutex_init(&ctx->issue_lock, NULL);
    pthread_mutex_init(&ctx->fail_lock, NULL);
    if (!(options.init_timeout_s >= 0 && options.init_timeout_s < 1e9) ||
        !(options.collective_timeout_s >= 0 && options.collective_timeout_s < 1e9) ||
        (options.trace_records_log2 &&
         (options.trace_records_log2 < 8 || options.trace_records_log2 > 26))) {
        status = brg_fail(
            BRG_ERR_INVALID_ARGUMENT,
            "context options out of range: init_timeout_s %g, collective_timeout_s %g "
            "(0 to 1e9), trace_records_log2 %d (0, or 8 to 26)",
            options.init_timeout_s, options.collective_timeout_s, options.trace_records_log2);
        goto fail;
    }
    BRG_TRY(read_ranks(ctx, &options), fail);
    BRG_TRY(open_device(ctx, tables, &options), fail);
    BRG_TRY(get_timeout(options.init_timeout_s, "BRIGADE_INIT_TIMEOUT", DEFAULT_INIT_TIMEOUT_S,
                        &init_timeout),
            fail);
    BRG_TRY(get_timeout(options.collective_timeout_s, "BRIGADE_COLLECTIVE_TIMEOUT",
                        DEFAULT_COLLECTIVE_TIMEOUT_S, &timeout),
            fail);
    if (ctx->device.nccl == brg_host_nccl())
        brg_host_set_timeouts(init_timeout, timeout);
    BRG_TRY(get_unique_id(ctx, &options, init_timeout, &id), fail);
    BRG_TRY(brg_context_nccl(
                ctx, ctx->device.nccl->comm_init_rank(&ctx->comm, ctx->world, id, ctx->rank),
                "comm_init_rank"),
            fail);
    BRG_TRY(open_trace(ctx, &options), fail);
    BRG_TRY(brg_watchdog_create(ctx, timeout + WATCHDOG_GRACE_S, &ctx->watchdog), fail);
    ctx->relay_watch.event = ctx->relay_done;
    snprintf(ctx->relay_watch.label, sizeof ctx->relay_watch.label,
             "a collective of the trainer's own");
    brg_watchdog_add(ctx->watchdog, &ctx->relay_watch);
    brg_log(BRG_LOG_INFO, "rank %d of %d on device %s, %s", ctx->rank, ctx->world,
            ctx->device.rt->name, ctx->ring ? "traced" : "not traced");
    *out = ctx;
    return BRG_OK;
fail:
    brg_context_close(ctx);
    return status;
}

void brg_context_close(brg_context *ctx)
{
    if (!ctx)
        return;
    const brg_runtime *rt = ctx->device.rt;
    bool failed = atomic_load(&ctx->failure) != BRG_OK;
    if (failed)
        brg_context_abort(ctx);
    else if (ctx->comm_stream)
        rt->stream_synchronize(ctx->comm_stream);
    brg_watchdog_destroy(ctx->watchdog);
    ctx->watchdog = NULL;
    if (ctx->comm) {
        ctx->device.nccl->comm_finalize(ctx->comm);
        ctx->device.nccl->comm_destroy(ctx->comm);
    }
    brg_timeline_destroy(ctx->timeline);
    brg_ring_close(ctx->ring);
    if (ctx->relay_event)
        rt->event_destroy(ctx->relay_event);
    if (ctx->relay_done)
        rt->event_destroy(ctx->relay_done);
    if (ctx->comm_stream)
        rt->stream_destroy(ctx->comm_stream);
    pthread_mutex_destroy(&ctx->issue_lock);
    pthread_mutex_destroy(&ctx->fail_lock);
    free(ctx);
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

/* Accessors */

int brg_context_rank(const brg_context *ctx)
{
    return ctx ? ctx->rank : -1;
}

int brg_context_world_size(const brg_context *ctx)
{
    return ctx ? ctx->world : -1;
}

const char *brg_context_device(const brg_context *ctx)
{
    return ctx ? ctx->device.rt->name : "";
}

const brg_device *brg_context_device_tables(const brg_context *ctx)
{
    return &ctx->device;
}
