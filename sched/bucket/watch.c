/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sched/bucket/context.h"

#define LOOK_EVERY_NS 100000000ull
#define NEWS_MS 500 /* how long a rank's end may take to be known here */

struct brg_watchdog {
    brg_context *ctx;
    uint64_t timeout_ns;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* slots and stop */
    pthread_cond_t wake;
    bool stop;
    bool stuck; /* its thread only */
    brg_watch_slot *slots;
};

void brg_watch_issued(brg_watch_slot *slot, uint64_t first_op, uint64_t last_op)
{
    atomic_store_explicit(&slot->first_op, first_op, memory_order_relaxed);
    atomic_store_explicit(&slot->last_op, last_op, memory_order_relaxed);
    atomic_store_explicit(&slot->issued_ns, brg_now_ns(), memory_order_release);
}

/* The label and age of what has been under way longest; clears slots that are done. */
static const brg_watch_slot *oldest_locked(brg_watchdog *watchdog, uint64_t *issued_ns)
{
    const brg_runtime *rt = watchdog->ctx->device.rt;
    const brg_watch_slot *oldest = NULL;
    *issued_ns = UINT64_MAX;
    for (brg_watch_slot *slot = watchdog->slots; slot; slot = slot->next) {
        uint64_t issued = atomic_load_explicit(&slot->issued_ns, memory_order_acquire);
        if (!issued)
            continue;
        if (rt->event_query(slot->event) != BRG_RT_NOT_READY) {
            /* only if it has not been issued again in between */
            atomic_compare_exchange_strong(&slot->issued_ns, &issued, 0);
            continue;
        }
        if (issued < *issued_ns) {
            *issued_ns = issued;
            oldest = slot;
        }
    }
    return oldest;
}

/* What was under way when the communicator failed. A collective that ends in an error counts as
 * done on its stream, so ask the library how far it came; where it cannot tell, failed collectives
 * hang. */
static const brg_watch_slot *failed_slot_locked(brg_watchdog *watchdog, void *comm)
{
    const brg_nccl *nccl = watchdog->ctx->device.nccl;
    uint64_t done = 0, unused;
    if (!nccl->comm_num_done || nccl->comm_num_done(comm, &done) != BRG_NCCL_OK)
        return oldest_locked(watchdog, &unused);
    for (brg_watch_slot *slot = watchdog->slots; slot; slot = slot->next)
        if (atomic_load(&slot->first_op) <= done + 1 && done + 1 <= atomic_load(&slot->last_op))
            return slot;
    return NULL;
}

/* What a look has found; BRG_OK: nothing. */
typedef struct finding {
    brg_status status;
    char text[768];
} finding;

/* The communicator's own error. */
static void describe_failed_locked(brg_watchdog *watchdog, void *comm, int result, finding *f)
{
    brg_context *ctx = watchdog->ctx;
    const brg_watch_slot *slot = failed_slot_locked(watchdog, comm);
    char what[200];
    snprintf(what, sizeof what, "rank %d%s%s", ctx->rank, slot ? ": " : "",
             slot ? slot->label : "");
    f->status = brg_nccl_status(&ctx->device, result, comm, what);
    snprintf(f->text, sizeof f->text, "%s", brg_last_error());
}

/* What other ranks say, with what is under way here. */
static void hear_locked(brg_watchdog *watchdog, int wait_ms, finding *f)
{
    brg_context *ctx = watchdog->ctx;
    brg_lifeline_news news;
    uint64_t unused;
    if (!ctx->lifeline ||
        !brg_lifeline_look(ctx->lifeline, atomic_load(&ctx->num_ops), wait_ms, &news))
        return;
    const brg_watch_slot *slot = oldest_locked(watchdog, &unused);
    f->status = news.status;
    snprintf(f->text, sizeof f->text, "rank %d%s%s: %s", ctx->rank, slot ? ": " : "",
             slot ? slot->label : "", news.text);
}

static void describe_stuck_locked(brg_watchdog *watchdog, const brg_watch_slot *slot,
                                  uint64_t issued_ns, finding *f)
{
    brg_context *ctx = watchdog->ctx;
    char late[256] = "";
    watchdog->stuck = true;
    if (ctx->lifeline)
        brg_lifeline_name_late(ctx->lifeline, atomic_load(&ctx->num_ops), late);
    if (!*late) /* rank 0 has timed out as well, does not answer any more, and says why */
        hear_locked(watchdog, 0, f);
    if (f->status != BRG_OK)
        return;
    f->status = BRG_ERR_TIMEOUT;
    snprintf(f->text, sizeof f->text, "rank %d: %s has not finished for %.1f s%s%s", ctx->rank,
             slot->label, (double)(brg_now_ns() - issued_ns) * 1e-9, *late ? "; " : "", late);
}

/* `thorough`: also what takes system calls, which the watchdog's own thread does. */
static void look_locked(brg_watchdog *watchdog, bool thorough, finding *f)
{
    brg_context *ctx = watchdog->ctx;
    int result = BRG_NCCL_OK;
    uint64_t issued_ns = 0;
    void *comm = brg_context_hold_comm(ctx);
    if (comm && ctx->device.nccl->comm_get_async_error(comm, &result) != BRG_NCCL_OK)
        result = BRG_NCCL_INTERNAL;
    bool failed = result != BRG_NCCL_OK && result != BRG_NCCL_IN_PROGRESS;
    /* Where a peer's end is the reason, its name is the better message, and on its way. */
    if (failed || thorough)
        hear_locked(watchdog, failed ? NEWS_MS : 0, f);
    if (f->status == BRG_OK && failed)
        describe_failed_locked(watchdog, comm, result, f);
    const brg_watch_slot *slot =
        f->status == BRG_OK && thorough ? oldest_locked(watchdog, &issued_ns) : NULL;
    if (slot && watchdog->timeout_ns && brg_now_ns() > issued_ns + watchdog->timeout_ns)
        describe_stuck_locked(watchdog, slot, issued_ns, f);
    brg_context_release_comm(ctx);
}

/* What this rank has failed with, the others would wait for. */
static void tell_others(brg_watchdog *watchdog)
{
    brg_context *ctx = watchdog->ctx;
    char text[sizeof ctx->failure_text];
    if (!ctx->lifeline)
        return;
    pthread_mutex_lock(&ctx->fail_lock);
    memcpy(text, ctx->failure_text, sizeof text);
    pthread_mutex_unlock(&ctx->fail_lock);
    pthread_mutex_lock(&watchdog->lock);
    brg_lifeline_tell(ctx->lifeline, (brg_status)atomic_load(&ctx->failure), text);
    pthread_mutex_unlock(&watchdog->lock);
}

static void look(brg_watchdog *watchdog, bool thorough)
{
    brg_context *ctx = watchdog->ctx;
    finding f = {.status = BRG_OK};
    if (atomic_load(&ctx->failure) == BRG_OK) {
        pthread_mutex_lock(&watchdog->lock);
        look_locked(watchdog, thorough, &f);
        pthread_mutex_unlock(&watchdog->lock);
        if (f.status != BRG_OK)
            brg_context_fail(ctx, f.status, "%s", f.text);
    }
    if (thorough && atomic_load(&ctx->failure) != BRG_OK)
        tell_others(watchdog);
}

void brg_watchdog_forget(brg_watchdog *watchdog)
{
    pthread_mutex_lock(&watchdog->lock);
    for (brg_watch_slot *slot = watchdog->slots; slot; slot = slot->next)
        atomic_store(&slot->issued_ns, 0);
    pthread_mutex_unlock(&watchdog->lock);
}

void brg_watchdog_look(brg_watchdog *watchdog)
{
    look(watchdog, false);
}

/* Frees the streams that wait behind a stuck collective. Where the library cannot tell how far it
 * has come, a collective that has failed does not end by itself either. */
static void end_stuck(brg_watchdog *watchdog)
{
    brg_context *ctx = watchdog->ctx;
    if (watchdog->stuck ||
        (!ctx->device.nccl->comm_num_done && atomic_load(&ctx->failure) != BRG_OK))
        brg_context_abort(ctx);
}

static void *watchdog_main(void *arg)
{
    brg_watchdog *watchdog = arg;
    BRG_ON_DEVICE(watchdog->ctx);
    pthread_mutex_lock(&watchdog->lock);
    while (!watchdog->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + LOOK_EVERY_NS;
        until.tv_sec += (time_t)(ns / 1000000000ull);
        until.tv_nsec = (long)(ns % 1000000000ull);
        while (!watchdog->stop &&
               pthread_cond_timedwait(&watchdog->wake, &watchdog->lock, &until) != ETIMEDOUT)
            ;
        if (watchdog->stop)
            break;
        pthread_mutex_unlock(&watchdog->lock);
        look(watchdog, true);
        end_stuck(watchdog);
        pthread_mutex_lock(&watchdog->lock);
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

brg_status brg_watchdog_create(brg_context *ctx, double timeout_s, brg_watchdog **out)
{
    *out = NULL;
    brg_watchdog *watchdog = calloc(1, sizeof *watchdog);
    if (!watchdog)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the watchdog");
    watchdog->ctx = ctx;
    watchdog->timeout_ns = (uint64_t)(timeout_s * 1e9);
    pthread_mutex_init(&watchdog->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog->wake, &attr);
    pthread_condattr_destroy(&attr);
    int error = pthread_create(&watchdog->thread, NULL, watchdog_main, watchdog);
    if (error) {
        brg_watchdog_destroy(watchdog);
        return brg_fail(BRG_ERR_DEVICE, "cannot start the watchdog thread: error %d", error);
    }
    watchdog->started = true;
    brg_context_place_thread(ctx, watchdog->thread);
    *out = watchdog;
    return BRG_OK;
}

void brg_watchdog_destroy(brg_watchdog *watchdog)
{
    if (!watchdog)
        return;
    if (watchdog->started) {
        pthread_mutex_lock(&watchdog->lock);
        watchdog->stop = true;
        pthread_cond_signal(&watchdog->wake);
        pthread_mutex_unlock(&watchdog->lock);
        pthread_join(watchdog->thread, NULL);
        if (atomic_load(&watchdog->ctx->failure) != BRG_OK)
            tell_others(watchdog);
    }
    pthread_mutex_destroy(&watchdog->lock);
    pthread_cond_destroy(&watchdog->wake);
    free(watchdog);
}

void brg_watchdog_add(brg_watchdog *watchdog, brg_watch_slot *slot)
{
    atomic_store(&slot->issued_ns, 0);
    pthread_mutex_lock(&watchdog->lock);
    slot->next = watchdog->slots;
    watchdog->slots = slot;
    pthread_mutex_unlock(&watchdog->lock);
}

void brg_watchdog_remove(brg_watchdog *watchdog, brg_watch_slot *slot)
{
    pthread_mutex_lock(&watchdog->lock);
    for (brg_watch_slot **at = &watchdog->slots; *at; at = &(*at)->next)
        if (*at == slot) {
            *at = slot->next;
            break;
        }
    pthread_mutex_unlock(&watchdog->lock);
}
