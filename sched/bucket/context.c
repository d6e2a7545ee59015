/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How long an abort waits for calls of the library to come back by themselves. */
#define ABORT_GRACE_MS 1000

brg_status brg_context_rt(const brg_context *ctx, int error, const char *what)
{
    return error == BRG_RT_OK ? BRG_OK : brg_rt_status(&ctx->device, error, what);
}

brg_status brg_context_nccl(brg_context *ctx, int result, const char *what)
{
    if (result == BRG_NCCL_OK)
        return BRG_OK;
    /* An asynchronous error explains more than the call that ran into it. */
    brg_status status = brg_context_status(ctx);
    if (status == BRG_OK) {
        status = brg_nccl_status(&ctx->device, result, brg_context_hold_comm(ctx), what);
        brg_context_release_comm(ctx);
    }
    return status;
}

/* The current device */

brg_device_scope brg_context_enter(const brg_context *ctx)
{
    const brg_runtime *rt = ctx->device.rt;
    int device;
    if (!ctx->has_current_device || rt->get_device(&device) != BRG_RT_OK ||
        device == ctx->device_index)
        return (brg_device_scope){0};
    rt->set_device(ctx->device_index); /* if it fails, so does what follows */
    return (brg_device_scope){rt, device};
}

void brg_context_leave(brg_device_scope *scope)
{
    if (scope->rt)
        scope->rt->set_device(scope->device);
}

/* Asynchronous errors */

brg_status brg_context_fail(brg_context *ctx, brg_status status, const char *format, ...)
{
    bool first = false;
    pthread_mutex_lock(&ctx->fail_lock);
    if (atomic_load(&ctx->failure) == BRG_OK) {
        first = true;
        va_list args;
        va_start(args, format);
        vsnprintf(ctx->failure_text, sizeof ctx->failure_text, format, args);
        va_end(args);
        atomic_store(&ctx->failure, (int)status);
        brg_log(BRG_LOG_INFO, "%s: %s", brg_status_str(status), ctx->failure_text);
    }
    pthread_mutex_unlock(&ctx->fail_lock);
    if (first && ctx->parent) /* the text does not change any more */
        brg_context_fail(ctx->parent, status, "%s", ctx->failure_text);
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

/* Once the pointer is gone nobody new comes in. Those who are inside of the library normally leave
 * at once; one that does not is blocked there, which is what an abort is for: it may be called
 * beside such a call, which then returns. */
static void abort_comm(brg_context *ctx)
{
    void *comm = atomic_exchange(&ctx->comm, NULL);
    if (!comm)
        return;
    BRG_ON_DEVICE(ctx);
    for (int ms = 0; atomic_load(&ctx->comm_users) && ms < ABORT_GRACE_MS; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ctx->device.nccl->comm_abort(comm);
}

void brg_context_abort(brg_context *ctx)
{
    if (!ctx)
        return;
    brg_context_fail(ctx, BRG_ERR_STATE, "rank %d: the context was aborted", ctx->rank);
    pthread_mutex_lock(&ctx->children_lock);
    for (brg_context *child = ctx->first_child; child; child = child->next_sibling) {
        brg_context_fail(child, (brg_status)atomic_load(&ctx->failure), "%s", ctx->failure_text);
        brg_context_abort(child);
    }
    pthread_mutex_unlock(&ctx->children_lock);
    abort_comm(ctx);
}

/* Beginning and end */

brg_context *brg_context_new(void)
{
    brg_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    ctx->root = ctx;
    pthread_mutex_init(&ctx->children_lock, NULL);
    pthread_mutex_init(&ctx->issue_lock, NULL);
    pthread_mutex_init(&ctx->fail_lock, NULL);
    return ctx;
}

static void leave_parent(brg_context *ctx)
{
    if (!ctx->parent)
        return;
    pthread_mutex_lock(&ctx->parent->children_lock);
    for (brg_context **at = &ctx->parent->first_child; *at; at = &(*at)->next_sibling)
        if (*at == ctx) {
            *at = ctx->next_sibling;
            break;
        }
    pthread_mutex_unlock(&ctx->parent->children_lock);
}

static void close_streams(brg_context *ctx)
{
    const brg_runtime *rt = ctx->device.rt;
    if (ctx->relay_event)
        rt->event_destroy(ctx->relay_event);
    if (ctx->relay_done)
        rt->event_destroy(ctx->relay_done);
    if (ctx->comm_stream && !ctx->borrows_stream)
        rt->stream_destroy(ctx->comm_stream);
}

void brg_context_close(brg_context *ctx)
{
    if (!ctx)
        return;
    BRG_ON_DEVICE(ctx);
    /* A stuck collective would block here, but the watchdog ends it. */
    if (atomic_load(&ctx->failure) == BRG_OK && ctx->comm_stream)
        ctx->device.rt->stream_synchronize(ctx->comm_stream);
    if (atomic_load(&ctx->failure) != BRG_OK)
        brg_context_abort(ctx);
    leave_parent(ctx);
    brg_watchdog_destroy(ctx->watchdog);
    ctx->watchdog = NULL;
    brg_lifeline_destroy(ctx->lifeline);
    void *comm = atomic_load(&ctx->comm);
    if (comm && !ctx->borrows_comm) {
        ctx->device.nccl->comm_finalize(comm);
        ctx->device.nccl->comm_destroy(comm);
    }
    if (ctx->root == ctx) {
        brg_timeline_destroy(ctx->timeline);
        brg_ring_close(ctx->ring);
    }
    close_streams(ctx);
    pthread_mutex_destroy(&ctx->children_lock);
    pthread_mutex_destroy(&ctx->issue_lock);
    pthread_mutex_destroy(&ctx->fail_lock);
    free(ctx);
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
