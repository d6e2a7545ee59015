/* SPDX-License-Identifier: Apache-2.0 */
/* Groups are a list per thread. At the outermost end, communicators are made first; then, for each
 * communicator, collectives go to their streams in the order of the calls, and all sends and
 * receives follow as one batch, so that their order inside the group does not matter. Collectives
 * come before sends and receives on every rank, whatever the order of the calls in the group. */
#include "sched/device/host_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pending {
    host_call call;
    host_comm *comm;
    host_stream *stream;
    bool taken;
} pending;

typedef struct group {
    int depth;
    int error;
    pending *calls;
    size_t num_calls, room_calls;
    host_job *jobs;
    int num_jobs, room_jobs;
    host_marker **waits; /* for calls on the NULL stream */
    size_t num_waits, room_waits;
} group;

static pthread_key_t group_key;
static pthread_once_t group_once = PTHREAD_ONCE_INIT;

static void group_free(void *value)
{
    group *g = value;
    free(g->calls);
    free(g->jobs);
    free(g->waits);
    free(g);
}

static void make_key(void)
{
    pthread_key_create(&group_key, group_free);
}

static group *this_group(void)
{
    pthread_once(&group_once, make_key);
    group *g = pthread_getspecific(group_key);
    if (!g) {
        g = calloc(1, sizeof *g);
        if (g && pthread_setspecific(group_key, g)) {
            free(g);
            g = NULL;
        }
    }
    return g;
}

static int no_memory(void)
{
    return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
}

/* Makes room for one more element. */
static bool reserve(void *array, size_t count, size_t *room, size_t elem_bytes)
{
    if (count < *room)
        return true;
    size_t bigger = *room ? 2 * *room : 16;
    void *grown = realloc(*(void **)array, bigger * elem_bytes);
    if (!grown)
        return false;
    *(void **)array = grown;
    *room = bigger;
    return true;
}

int host_group_error(int result)
{
    group *g = this_group();
    if (g && g->depth && result && !g->error)
        g->error = result;
    return result;
}

int host_group_start(void)
{
    group *g = this_group();
    if (!g)
        return no_memory();
    if (g->depth++ == 0) {
        g->error = 0;
        g->num_calls = 0;
        g->num_jobs = 0;
        g->num_waits = 0;
    }
    return BRG_NCCL_OK;
}

int host_group_job(const host_job *job)
{
    group *g = this_group();
    if (!g)
        return no_memory();
    if (!g->depth) {
        host_job now = *job;
        return host_jobs_run(&now, 1);
    }
    size_t room = (size_t)g->room_jobs;
    if (!reserve(&g->jobs, (size_t)g->num_jobs, &room, sizeof *g->jobs))
        return host_group_error(no_memory());
    g->room_jobs = (int)room;
    g->jobs[g->num_jobs++] = *job;
    return BRG_NCCL_OK;
}

static void *job_thread(void *argument)
{
    host_job *job = argument;
    if (job->parent) {
        job->result = host_split_now(job->parent, job->color, job->key, job->out);
    } else {
        host_comm *comm;
        job->result = host_comm_create(&comm, job->num_ranks, job->name, job->rank, job->device);
        *job->out = comm;
    }
    if (job->result) {
        job->cause = brg_host_last_cause();
        snprintf(job->text, sizeof job->text, "%s", host_thread_error());
    }
    return NULL;
}

int host_jobs_run(host_job *jobs, int count)
{
    int result = BRG_NCCL_OK;
    for (int i = 0; i < count; i++) {
        jobs[i].running =
            i + 1 < count && !pthread_create(&jobs[i].thread, NULL, job_thread, &jobs[i]);
        if (i + 1 < count && !jobs[i].running) {
            jobs[i].result = host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "cannot start a thread");
            jobs[i].cause = BRG_ERR_NO_MEMORY;
            snprintf(jobs[i].text, sizeof jobs[i].text, "%s", host_thread_error());
        }
    }
    if (count)
        job_thread(&jobs[count - 1]);
    for (int i = 0; i < count; i++) {
        if (jobs[i].running)
            pthread_join(jobs[i].thread, NULL);
        if (jobs[i].result && !result)
            result = host_fail(jobs[i].result, jobs[i].cause, "%s", jobs[i].text);
    }
    return result;
}

/* Work on the NULL stream is over when the call returns, so the call can say how it went. */
static int run_here(host_comm *c, host_op *op)
{
    host_comm_ref(c); /* another thread may abort it meanwhile */
    host_op_run(op);
    int error = atomic_load(&c->error);
    if (error)
        error = host_fail(error, c->error_cause, "%s", c->error_text);
    host_comm_unref(c);
    return error;
}

/* Hands a call to its stream, or, on the NULL stream outside groups, runs it here. */
int host_call_submit(const host_call *call, host_comm *c, host_stream *stream)
{
    host_op op = {.kind = HOST_OP_COLLECTIVE, .collective = {.comm = c, .call = *call}};
    pthread_mutex_lock(&c->lock);
    int error = atomic_load(&c->error);
    if (error) {
        error = host_fail(BRG_NCCL_REMOTE, c->error_cause, "%s", c->error_text);
        pthread_mutex_unlock(&c->lock);
        return error;
    }
    op.collective.ticket = c->next_ticket;
    op.collective.seq = c->next_seq + 1;
    host_comm_ref(c);
    if (stream)
        error = host_stream_push(stream, &op, false, NULL);
    if (error) {
        error = host_fail(BRG_NCCL_UNHANDLED_CUDA, BRG_ERR_NO_MEMORY,
                          "cannot put a collective on the stream (error %d)", error);
    } else {
        c->next_ticket++;
        c->next_seq++;
    }
    pthread_mutex_unlock(&c->lock);
    if (error)
        host_comm_unref(c);
    else if (!stream)
        error = run_here(c, &op);
    return error;
}

static host_batch *batch_new(host_comm *c)
{
    pthread_mutex_lock(&c->lock);
    host_batch *batch = c->free_batches;
    if (batch)
        c->free_batches = batch->next;
    pthread_mutex_unlock(&c->lock);
    if (!batch)
        batch = calloc(1, sizeof *batch);
    if (batch) {
        batch->count = 0;
        batch->finished = NULL;
        batch->next = NULL;
    }
    return batch;
}

static bool batch_add(host_batch *batch, const host_call *call)
{
    size_t room = (size_t)batch->capacity;
    if (!reserve(&batch->ops, (size_t)batch->count, &room, sizeof *batch->ops))
        return false;
    batch->capacity = (int)room;
    batch->ops[batch->count++] = (struct host_p2p){.call = *call, .previous = -1};
    return true;
}

static void batch_drop(host_comm *c, host_batch *batch)
{
    host_marker_unref(batch->finished);
    batch->finished = NULL;
    pthread_mutex_lock(&c->lock);
    batch->next = c->free_batches;
    c->free_batches = batch;
    pthread_mutex_unlock(&c->lock);
}

static int batch_submit(host_comm *c, host_batch *batch, host_stream *stream)
{
    host_op op = {.kind = HOST_OP_BATCH, .batch = {.comm = c, .batch = batch}};
    pthread_mutex_lock(&c->lock);
    int error = atomic_load(&c->error);
    if (error) {
        error = host_fail(BRG_NCCL_REMOTE, c->error_cause, "%s", c->error_text);
    } else {
        op.batch.ticket = c->next_ticket;
        host_comm_ref(c);
        if (stream && host_stream_push(stream, &op, false, NULL)) {
            error = host_fail(BRG_NCCL_UNHANDLED_CUDA, BRG_ERR_NO_MEMORY,
                              "cannot put sends and receives on the stream");
            atomic_fetch_sub(&c->refs, 1); /* never the last: the user holds one */
        } else {
            c->next_ticket++;
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (error)
        batch_drop(c, batch);
    else if (!stream)
        error = run_here(c, &op);
    return error;
}

int host_group_call(const host_call *call, host_comm *c, void *stream)
{
    group *g = this_group();
    if (!g)
        return no_memory();
    if (g->depth) {
        if (!reserve(&g->calls, g->num_calls, &g->room_calls, sizeof *g->calls))
            return host_group_error(no_memory());
        g->calls[g->num_calls++] = (pending){.call = *call, .comm = c, .stream = stream};
        return BRG_NCCL_OK;
    }
    if (call->kind != HOST_SEND && call->kind != HOST_RECV)
        return host_call_submit(call, c, stream);
    if (call->peer == c->rank)
        return host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_STATE,
                         "rank %d sends to or receives from itself outside a group", c->rank);
    host_batch *batch = batch_new(c);
    if (!batch || !batch_add(batch, call)) {
        if (batch)
            batch_drop(c, batch);
        return no_memory();
    }
    return batch_submit(c, batch, stream);
}

/* The stream on which work for the NULL stream runs when several communicators' calls must go on at
 * the same time; group_end waits for it. */
static host_stream *stand_in(group *g, host_comm *c)
{
    if (!c->own_stream) {
        void *stream;
        if (!host_stream_create(&stream, BRG_STREAM_NON_BLOCKING, 0))
            c->own_stream = stream;
    }
    if (!c->own_stream || !reserve(&g->waits, g->num_waits, &g->room_waits, sizeof *g->waits))
        return NULL;
    return c->own_stream;
}

static int mark(group *g, host_stream *stream)
{
    host_marker *marker = host_marker_new(stream);
    if (!marker || !reserve(&g->waits, g->num_waits, &g->room_waits, sizeof *g->waits)) {
        host_marker_unref(marker);
        return no_memory();
    }
    host_op op = {.kind = HOST_OP_RECORD, .marker = marker};
    host_marker_ref(marker);
    if (host_stream_push(stream, &op, false, NULL)) {
        host_marker_unref(marker);
        host_marker_unref(marker);
        return no_memory();
    }
    g->waits[g->num_waits++] = marker;
    return BRG_NCCL_OK;
}

/* Orders `waiter` after what is now on `stream`. */
static int join_streams(host_stream *waiter, host_stream *stream)
{
    host_marker *marker = host_marker_new(stream);
    if (!marker)
        return no_memory();
    host_op record = {.kind = HOST_OP_RECORD, .marker = marker};
    host_op wait = {.kind = HOST_OP_WAIT, .marker = marker};
    host_marker_ref(marker);
    if (host_stream_push(stream, &record, false, NULL)) {
        host_marker_unref(marker);
        host_marker_unref(marker);
        return no_memory();
    }
    if (host_stream_push(waiter, &wait, false, NULL)) {
        host_marker_unref(marker);
        return no_memory();
    }
    return BRG_NCCL_OK;
}

static int check_self(host_comm *c, const host_batch *batch)
{
    int sends = 0, receives = 0;
    for (int i = 0; i < batch->count; i++)
        if (batch->ops[i].call.peer == c->rank)
            (*(batch->ops[i].call.kind == HOST_SEND ? &sends : &receives))++;
    if (sends == receives)
        return BRG_NCCL_OK;
    return host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_STATE,
                     "rank %d: %d sends to itself but %d receives from itself in one group",
                     c->rank, sends, receives);
}

/* Gathers the sends and receives on one communicator, from calls[first] on, and submits them. They
 * run on the first one's stream; the other streams of the batch wait before and after. */
static int submit_batch(group *g, size_t first)
{
    host_comm *c = g->calls[first].comm;
    host_batch *batch = batch_new(c);
    if (!batch)
        return no_memory();
    host_stream *stream = g->calls[first].stream;
    host_stream *on = stream ? stream : stand_in(g, c);
    int result = on ? BRG_NCCL_OK : no_memory();
    for (size_t i = first; i < g->num_calls && !result; i++) {
        pending *p = &g->calls[i];
        if (p->taken || p->comm != c)
            continue;
        if (!batch_add(batch, &p->call))
            result = no_memory();
        else if (p->stream != stream && p->stream && on != p->stream)
            result = join_streams(on, p->stream);
    }
    if (!result)
        result = check_self(c, batch);
    if (result) {
        batch_drop(c, batch);
        return result;
    }
    result = batch_submit(c, batch, on);
    bool null_waits = !stream;
    for (size_t i = first; i < g->num_calls; i++) {
        pending *p = &g->calls[i];
        if (p->taken || p->comm != c)
            continue;
        p->taken = true;
        if (!result && p->stream != stream && p->stream)
            result = join_streams(p->stream, on);
        null_waits |= !p->stream;
    }
    return result || !null_waits ? result : mark(g, on);
}

static int submit_collectives(group *g)
{
    for (size_t i = 0; i < g->num_calls; i++) {
        pending *p = &g->calls[i];
        if (p->call.kind == HOST_SEND || p->call.kind == HOST_RECV)
            continue;
        p->taken = true;
        host_stream *on = p->stream ? p->stream : stand_in(g, p->comm);
        int result = on ? host_call_submit(&p->call, p->comm, on) : no_memory();
        if (!result && !p->stream)
            result = mark(g, on);
        if (result)
            return result;
    }
    return BRG_NCCL_OK;
}

int host_group_end(void)
{
    group *g = this_group();
    if (!g)
        return no_memory();
    if (!g->depth)
        return host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_STATE, "group_end without group_start");
    if (--g->depth)
        return BRG_NCCL_OK;
    int result = g->error;
    if (!result && g->num_jobs)
        result = host_jobs_run(g->jobs, g->num_jobs);
    if (!result)
        result = submit_collectives(g);
    for (size_t i = 0; i < g->num_calls && !result; i++)
        if (!g->calls[i].taken)
            result = submit_batch(g, i);
    for (size_t i = 0; i < g->num_waits; i++) {
        host_marker_wait(g->waits[i]);
        host_marker_unref(g->waits[i]);
    }
    g->num_waits = 0;
    return result;
}
