/* SPDX-License-Identifier: Apache-2.0 */
/* How a communicator breaks, and how a rank waits for others without hanging when they never come.
 *
 * The first rank to see an error writes it into the shared header, once; every rank's text is then
 * the same. A communicator never heals. A collective that all ranks have finished still succeeds on
 * a rank that learns of it late, unless the error belongs to it (broken_seq). */
#include "sched/device/host_comm.h"

#include <stdio.h>
#include <string.h>

void host_comm_wake_all(host_comm *c)
{
    shm_header *header = c->segment->header;
    host_futex_wake(&header->attached, true);
    host_futex_wake(&header->connected, true);
    host_futex_wake(&header->arrive, true);
    host_futex_wake(&header->meet, true);
    host_futex_wake(&header->depart, true);
    for (int r = 0; r < c->num_ranks; r++) {
        atomic_fetch_add(&c->segment->ranks[r].doorbell, 1);
        host_futex_wake(&c->segment->ranks[r].doorbell, true);
    }
}

static int adopt(host_comm *c, int code, brg_status cause, const char *text)
{
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->error)) {
        snprintf(c->error_text, sizeof c->error_text, "%s", text);
        c->error_cause = cause;
        atomic_store(&c->error, code);
    }
    code = atomic_load(&c->error);
    cause = c->error_cause;
    pthread_mutex_unlock(&c->lock);
    return host_fail(code, cause, "%s", c->error_text);
}

int host_comm_adopt(host_comm *c)
{
    const shm_header *header = c->segment->header;
    if (atomic_load(&header->broken) != SHM_BROKEN)
        return 0;
    return adopt(c, header->broken_code, (brg_status)header->broken_cause, header->broken_text);
}

int host_comm_break(host_comm *c, uint64_t seq, int code, brg_status cause, const char *format, ...)
{
    char text[THREAD_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    shm_header *header = c->segment->header;
    uint32_t state = SHM_WHOLE;
    if (atomic_compare_exchange_strong(&header->broken, &state, SHM_BREAKING)) {
        header->broken_code = code;
        header->broken_cause = cause;
        header->broken_seq = seq;
        memcpy(header->broken_text, text, sizeof text);
        atomic_store(&header->broken, SHM_BROKEN);
        host_comm_wake_all(c);
    }
    int shared = host_comm_adopt(c); /* another rank may have been first */
    return shared ? shared : adopt(c, code, cause, text);
}

static bool same_call(const shm_slot *a, const shm_slot *b)
{
    if (a->kind != b->kind)
        return false;
    return a->kind == HOST_SPLIT ||
           (a->dtype == b->dtype && a->op == b->op && a->root == b->root && a->count == b->count);
}

int host_comm_compare(host_comm *c, uint64_t seq)
{
    int first = -1;
    char one[96], other[96];
    for (int r = 0; r < c->num_ranks; r++) {
        shm_rank *rank = &c->segment->ranks[r];
        if (atomic_load_explicit(&rank->arrived, memory_order_acquire) < seq)
            continue;
        if (first < 0) {
            first = r;
            continue;
        }
        const shm_slot *a = &c->segment->ranks[first].slots[seq & 1], *b = &rank->slots[seq & 1];
        if (!same_call(a, b))
            return host_comm_break(c, seq, BRG_NCCL_INVALID_USAGE, BRG_ERR_MISMATCH,
                                   "collective #%llu: rank %d calls %s, rank %d calls %s",
                                   (unsigned long long)seq, first, host_slot_text(one, a), r,
                                   host_slot_text(other, b));
    }
    return 0;
}

/* " while rank 0 was in collective #12: all-gather of 4 fp32", or nothing when the rank is idle. */
static const char *context_text(char text[192], const host_wait *w)
{
    char call[96];
    text[0] = 0;
    if (w->call && w->seq)
        snprintf(text, 192, " while rank %d was in collective #%llu: %s", w->comm->rank,
                 (unsigned long long)w->seq, host_call_text(call, w->call));
    else if (w->call)
        snprintf(text, 192, " while rank %d was in a %s", w->comm->rank,
                 host_call_text(call, w->call));
    return text;
}

static int look_for_dead(const host_wait *w, uint64_t seq)
{
    host_comm *c = w->comm;
    char context[192];
    for (int r = 0; r < c->num_ranks; r++) {
        shm_rank *rank = &c->segment->ranks[r];
        if (r == c->rank)
            continue;
        bool here = atomic_load(&rank->presence) == SHM_HERE;
        if (here && host_peer_dead(c->peers[r]) && atomic_load(&rank->presence) == SHM_HERE)
            return host_comm_break(c, seq, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                                   "rank %d (process %llu) has died%s", r,
                                   (unsigned long long)rank->process.pid, context_text(context, w));
        if (!here && w->arriving && atomic_load(&rank->arrived) < w->seq)
            return host_comm_break(c, seq, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                                   "rank %d (process %llu) has left the communicator%s", r,
                                   (unsigned long long)rank->process.pid, context_text(context, w));
    }
    return 0;
}

static int give_up(const host_wait *w, uint64_t seq)
{
    host_comm *c = w->comm;
    bool late[HOST_MAX_RANKS];
    bool any = false;
    char call[96], ranks[160];
    double limit_s = (double)c->collective_timeout_ns * 1e-9;
    if (!w->seq)
        return host_comm_break(c, seq, BRG_NCCL_REMOTE, BRG_ERR_TIMEOUT,
                               "rank %d waited %g s in a %s: rank %d is late", c->rank, limit_s,
                               host_call_text(call, w->call), w->call->peer);
    for (int r = 0; r < c->num_ranks; r++) {
        late[r] = atomic_load(&c->segment->ranks[r].arrived) < w->seq;
        any |= late[r];
    }
    if (any)
        return host_comm_break(c, seq, BRG_NCCL_REMOTE, BRG_ERR_TIMEOUT,
                               "collective #%llu: %s: %s did not arrive within %g s",
                               (unsigned long long)w->seq, host_call_text(call, w->call),
                               host_ranks_text(ranks, late, c->num_ranks), limit_s);
    for (int r = 0; r < c->num_ranks; r++)
        late[r] = atomic_load(&c->segment->ranks[r].departed) < w->seq;
    return host_comm_break(c, seq, BRG_NCCL_REMOTE, BRG_ERR_TIMEOUT,
                           "collective #%llu: %s: %s did not finish within %g s",
                           (unsigned long long)w->seq, host_call_text(call, w->call),
                           host_ranks_text(ranks, late, c->num_ranks), limit_s);
}

int host_comm_look(const host_wait *w)
{
    host_comm *c = w->comm;
    uint64_t seq = w->seq ? w->seq : atomic_load(&c->done_seq) + 1;
    int code = atomic_load(&c->error);
    if (code)
        return adopt(c, code, BRG_OK, "");
    code = host_comm_adopt(c);
    if (!code)
        code = look_for_dead(w, seq);
    if (!code && w->seq && w->arriving)
        code = host_comm_compare(c, w->seq);
    if (!code && w->call && host_now_ns() - w->start_ns > c->collective_timeout_ns)
        code = give_up(w, seq);
    return code;
}

/* The awaited thing has happened; it counts unless the call itself is known to have failed. */
static int verdict(const host_wait *w)
{
    const shm_header *header = w->comm->segment->header;
    if (atomic_load(&header->broken) == SHM_BROKEN && (!w->seq || header->broken_seq <= w->seq))
        return host_comm_adopt(w->comm);
    return 0;
}

static uint64_t slice_ns(const host_wait *w)
{
    uint64_t limit = w->comm->collective_timeout_ns / 4 + 1000000;
    return limit < HOST_CHECK_NS ? limit : HOST_CHECK_NS;
}

int host_wait_count(const host_wait *w, _Atomic uint32_t *word, uint32_t target)
{
    const shm_header *header = w->comm->segment->header;
    uint64_t slice = slice_ns(w), last = 0;
    for (;;) {
        uint32_t value = atomic_load_explicit(word, memory_order_acquire);
        if ((int32_t)(value - target) >= 0)
            return verdict(w);
        uint64_t now = host_now_ns();
        if (!last)
            last = now;
        if (now - last >= slice || atomic_load(&header->broken) == SHM_BROKEN) {
            int code = host_comm_look(w);
            if (code)
                return code;
            last = now;
        }
        host_futex_wait(word, value, slice, true);
    }
}

int host_wait_change(const host_wait *w, _Atomic uint32_t *word, uint32_t seen)
{
    uint64_t slice = slice_ns(w);
    if (atomic_load_explicit(word, memory_order_acquire) != seen)
        return verdict(w);
    uint64_t start = host_now_ns();
    host_futex_wait(word, seen, slice, true);
    if (atomic_load_explicit(word, memory_order_acquire) != seen && host_now_ns() - start < slice)
        return verdict(w);
    return host_comm_look(w);
}

/* Readers look at `broken` after they have raised `inside`; this looks at `inside` after `broken`
 * was set. */
void host_comm_wait_readers(host_comm *c)
{
    for (int r = 0; r < c->num_ranks; r++)
        while (r != c->rank && c->reach[r] & HOST_REACH_SAME &&
               atomic_load(&c->segment->ranks[r].inside))
            host_sleep_ns(1000000);
}
