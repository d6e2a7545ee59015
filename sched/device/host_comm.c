/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: how ranks meet, take turns and part. */
#include "sched/device/host_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

static _Atomic uint64_t init_timeout_ns, collective_timeout_ns; /* 0: from the environment */

void brg_host_set_timeouts(double init_s, double collective_s)
{
    atomic_store(&init_timeout_ns, init_s > 0 ? (uint64_t)(init_s * 1e9) : 0);
    atomic_store(&collective_timeout_ns, collective_s > 0 ? (uint64_t)(collective_s * 1e9) : 0);
}

static int timeout_ns(_Atomic uint64_t *set, const char *name, double fallback_s, uint64_t *ns)
{
    double seconds;
    int result = host_env_number(name, fallback_s, 0.001, 1e9, &seconds);
    *ns = atomic_load(set);
    if (!result && !*ns)
        *ns = (uint64_t)(seconds * 1e9);
    return result;
}

static int transport(int *value)
{
    static const char *const names[] = {"auto", "mapped", "copy", "staged"};
    const char *text = getenv("BRIGADE_HOST_TRANSPORT");
    *value = HOST_TRANSPORT_AUTO;
    if (!text || !*text)
        return BRG_NCCL_OK;
    for (int i = 0; i < 4; i++)
        if (!strcasecmp(text, names[i])) {
            *value = i;
            return BRG_NCCL_OK;
        }
    return host_fail(
        BRG_NCCL_INVALID_USAGE, BRG_ERR_INVALID_ARGUMENT,
        "environment: BRIGADE_HOST_TRANSPORT=%s: expected auto, mapped, copy or staged", text);
}

int host_comm_name_new(char name[40])
{
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_IO, "no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(name + 2 * i, 3, "%02x", random[i]);
    return BRG_NCCL_OK;
}

int host_comm_check(host_comm *c, const char *what)
{
    if (!c)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: communicator is NULL", what);
    if (c->magic != HOST_COMM_MAGIC)
        return host_fail(BRG_NCCL_INVALID_ARGUMENT, BRG_ERR_INVALID_ARGUMENT,
                         "%s: not a communicator of the host device, or destroyed", what);
    if (c->generation != atomic_load(&host_generation))
        return host_fail(
            BRG_NCCL_INVALID_USAGE, BRG_ERR_STATE,
            "%s: the communicator belongs to the process that this one was forked from", what);
    return BRG_NCCL_OK;
}

void host_comm_ref(host_comm *c)
{
    atomic_fetch_add(&c->refs, 1);
}

static void comm_free(host_comm *c)
{
    for (int r = 0; c->peers && r < c->num_ranks; r++)
        host_peer_close(c->peers[r]);
    host_segment_close(c->segment);
    while (c->free_batches) {
        host_batch *batch = c->free_batches;
        c->free_batches = batch->next;
        free(batch->ops);
        free(batch);
    }
    pthread_cond_destroy(&c->turned);
    pthread_mutex_destroy(&c->lock);
    free(c->peers);
    free(c->reach);
    free(c->redops);
    free(c->mail_sent);
    free(c->scratch);
    c->magic = 0;
    free(c);
}

void host_comm_unref(host_comm *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    uint32_t here = SHM_HERE;
    atomic_compare_exchange_strong(&c->segment->ranks[c->rank].presence, &here, SHM_LEFT);
    host_comm_wake_all(c); /* whoever needs this rank should not wait for the next look around */
    comm_free(c);
}

static int claim(host_comm *c)
{
    shm_rank *mine = &c->segment->ranks[c->rank];
    uint32_t state = SHM_RANK_FREE;
    if (!atomic_compare_exchange_strong(&mine->claim, &state, SHM_RANK_TAKEN))
        return host_fail(BRG_NCCL_INVALID_USAGE, BRG_ERR_MISMATCH,
                         "communicator of %d ranks: rank %d is already taken, by process %llu",
                         c->num_ranks, c->rank,
                         state == SHM_RANK_READY ? (unsigned long long)mine->process.pid : 0ull);
    int result = host_process_identify(&mine->process);
    if (result) {
        host_segment_unlink(c->segment);
        return result;
    }
    atomic_store(&mine->claim, SHM_RANK_READY);
    if (atomic_fetch_add(&c->segment->header->attached, 1) + 1 == (uint32_t)c->num_ranks)
        host_segment_unlink(c->segment);
    host_futex_wake(&c->segment->header->attached, true);
    return BRG_NCCL_OK;
}

static int open_peers(host_comm *c)
{
    for (int r = 0; r < c->num_ranks; r++) {
        shm_rank *rank = &c->segment->ranks[r];
        if (c->peers[r] || atomic_load(&rank->claim) != SHM_RANK_READY)
            continue;
        int result = host_peer_open(&rank->process, &c->peers[r]);
        if (result)
            return result;
        if (r != c->rank && host_peer_dead(c->peers[r]))
            return host_comm_break(c, 0, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                                   "communicator of %d ranks: rank %d (process %llu) has died",
                                   c->num_ranks, r, (unsigned long long)rank->process.pid);
    }
    return BRG_NCCL_OK;
}

static int meet_failed(host_comm *c, double limit_s)
{
    bool missing[HOST_MAX_RANKS];
    char text[160];
    for (int r = 0; r < c->num_ranks; r++)
        missing[r] = atomic_load(&c->segment->ranks[r].claim) != SHM_RANK_READY;
    return host_comm_break(c, 0, BRG_NCCL_REMOTE, BRG_ERR_TIMEOUT,
                           "communicator of %d ranks: %s did not arrive within %g s", c->num_ranks,
                           host_ranks_text(text, missing, c->num_ranks), limit_s);
}

/* Waits until all ranks have raised the counter, looking after those that have come. */
static int meet(host_comm *c, _Atomic uint32_t *word, uint64_t start_ns, uint64_t limit_ns)
{
    for (;;) {
        uint32_t value = atomic_load(word);
        bool complete = value >= (uint32_t)c->num_ranks;
        /* Once all are here it does not matter that one of them has gone again. */
        int result = complete ? BRG_NCCL_OK : host_comm_adopt(c);
        if (!result)
            result = open_peers(c);
        if (result || complete)
            return result;
        for (int r = 0; r < c->num_ranks; r++)
            if (r != c->rank && c->peers[r] && host_peer_dead(c->peers[r]))
                return host_comm_break(c, 0, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                                       "communicator of %d ranks: rank %d (process %llu) has died",
                                       c->num_ranks, r, (unsigned long long)c->peers[r]->id.pid);
        uint64_t waited = host_now_ns() - start_ns;
        if (waited > limit_ns)
            return meet_failed(c, (double)limit_ns * 1e-9);
        uint64_t left = limit_ns - waited + 1;
        host_futex_wait(word, value, left < HOST_CHECK_NS ? left : HOST_CHECK_NS, true);
    }
}

static void publish_reach(host_comm *c)
{
    static const unsigned allowed[] = {
        [HOST_TRANSPORT_AUTO] = HOST_REACH_SAME | HOST_REACH_ARENA | HOST_REACH_COPY,
        [HOST_TRANSPORT_ARENA] = HOST_REACH_SAME | HOST_REACH_ARENA,
        [HOST_TRANSPORT_COPY] = HOST_REACH_SAME | HOST_REACH_COPY,
        [HOST_TRANSPORT_STAGED] = 0,
    };
    unsigned mask = allowed[c->transport];
    size_t row = (size_t)c->rank * (size_t)c->num_ranks;
    for (int r = 0; r < c->num_ranks; r++) {
        c->reach[r] = (uint8_t)(r == c->rank ? HOST_REACH_SAME : c->peers[r]->reach & mask);
        atomic_store(&c->segment->reach[row + (size_t)r], c->reach[r]);
    }
    atomic_fetch_add(&c->segment->header->connected, 1);
    host_futex_wake(&c->segment->header->connected, true);
}

static int choose_paths(host_comm *c)
{
    size_t n = (size_t)c->num_ranks;
    c->all_copy = c->all_arena = true;
    for (size_t i = 0; i < n * n; i++) {
        unsigned reach = atomic_load(&c->segment->reach[i]);
        c->all_copy &= (reach & (HOST_REACH_SAME | HOST_REACH_COPY)) != 0;
        c->all_arena &= reach != 0;
    }
    if (c->all_copy)
        return BRG_NCCL_OK;
    int result = host_segment_reserve_stage(c->segment, c->num_ranks, c->rank);
    return result ? host_comm_break(c, 0, result, BRG_ERR_NO_MEMORY, "%s", host_thread_error()) : 0;
}

static host_comm *comm_new(int num_ranks, int rank, int device)
{
    size_t n = (size_t)num_ranks;
    host_comm *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->magic = HOST_COMM_MAGIC;
    c->generation = atomic_load(&host_generation);
    atomic_init(&c->refs, 1);
    c->num_ranks = num_ranks;
    c->rank = rank;
    c->device = device;
    atomic_init(&c->algorithm, "none");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->turned, NULL);
    c->peers = calloc(n, sizeof(host_peer *));
    c->reach = calloc(n, 1);
    c->mail_sent = calloc(4 * n, sizeof *c->mail_sent);
    c->mail_received = c->mail_sent ? c->mail_sent + n : NULL;
    c->scratch = aligned_alloc(4096, HOST_SCRATCH_BYTES);
    if (!c->peers || !c->reach || !c->mail_sent || !c->scratch) {
        comm_free(c);
        return NULL;
    }
    return c;
}

int host_comm_create(host_comm **comm, int num_ranks, const char *name, int rank, int device)
{
    *comm = NULL;
    uint64_t limit_ns, start_ns = host_now_ns();
    host_fork_prepare();
    int result = timeout_ns(&init_timeout_ns, "BRIGADE_INIT_TIMEOUT", 60, &limit_ns);
    if (result)
        return result;
    host_comm *c = comm_new(num_ranks, rank, device);
    if (!c)
        return host_fail(BRG_NCCL_SYSTEM, BRG_ERR_NO_MEMORY, "out of memory");
    bool claimed = false;
    result = timeout_ns(&collective_timeout_ns, "BRIGADE_COLLECTIVE_TIMEOUT", 600,
                        &c->collective_timeout_ns);
    if (!result)
        result = transport(&c->transport);
    if (!result)
        result = host_segment_open(name, num_ranks, start_ns + limit_ns, &c->segment);
    if (!result)
        result = claim(c);
    claimed = !result;
    if (!result)
        result = meet(c, &c->segment->header->attached, start_ns, limit_ns);
    if (!result) {
        publish_reach(c);
        result = meet(c, &c->segment->header->connected, start_ns, limit_ns);
    }
    if (!result)
        result = choose_paths(c);
    if (result) {
        if (claimed)
            host_segment_unlink(c->segment);
        comm_free(c);
        return result;
    }
    *comm = c;
    return BRG_NCCL_OK;
}

void host_comm_wait_turn(host_comm *c, uint64_t ticket)
{
    pthread_mutex_lock(&c->lock);
    while (c->turn != ticket)
        pthread_cond_wait(&c->turned, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void host_comm_end_turn(host_comm *c)
{
    pthread_mutex_lock(&c->lock);
    c->turn++;
    pthread_cond_broadcast(&c->turned);
    pthread_mutex_unlock(&c->lock);
}

void host_comm_run(host_op *op)
{
    if (op->kind == HOST_OP_COLLECTIVE) {
        host_comm *c = op->collective.comm;
        host_comm_wait_turn(c, op->collective.ticket);
        if (!atomic_load(&c->error))
            host_collective_run(c, op->collective.seq, &op->collective.call);
        host_comm_end_turn(c);
        host_comm_unref(c);
    } else {
        host_comm *c = op->batch.comm;
        host_batch *batch = op->batch.batch;
        host_comm_wait_turn(c, op->batch.ticket);
        if (!atomic_load(&c->error))
            host_batch_run(c, batch);
        if (batch->finished) {
            host_marker_finish(batch->finished);
            host_marker_unref(batch->finished);
            batch->finished = NULL;
        }
        pthread_mutex_lock(&c->lock);
        batch->next = c->free_batches;
        c->free_batches = batch;
        pthread_mutex_unlock(&c->lock);
        host_comm_end_turn(c);
        host_comm_unref(c);
    }
}
