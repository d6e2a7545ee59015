/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives through the staging slots, for ranks that cannot read each other's memory. Every rank
 * has two slots of HOST_STAGE_BYTES. A round: each writes a piece of its input into slot (round
 * modulo 2), all meet, each reads what it needs. One meeting a round is enough: nobody can write
 * slot (round modulo 2) again before all have come to the meeting of round + 1, and so have read
 * round. All-reduce takes two meetings a round and uses slot 0 for inputs, slot 1 for results. */
#include "sched/device/host_comm.h"

#include <string.h>

typedef struct staged {
    host_comm *comm;
    const host_wait *wait;
    const host_call *call;
    size_t elem_bytes;
    host_reduction reduction;
    uint64_t round;
} staged;

static char *slot(const staged *k, int rank, uint64_t parity)
{
    return k->comm->segment->stage + ((size_t)rank * 2 + (parity & 1)) * HOST_STAGE_BYTES;
}

static const uint8_t *scalar_of(const staged *k, int rank)
{
    return k->comm->segment->ranks[rank].slots[k->wait->seq & 1].scalar;
}

static int meet(staged *k)
{
    host_comm *c = k->comm;
    _Atomic uint32_t *word = &c->segment->header->meet;
    c->meet_target += (uint32_t)c->num_ranks;
    if (atomic_fetch_add(word, 1) + 1 == c->meet_target)
        host_futex_wake(word, true);
    return host_wait_count(k->wait, word, c->meet_target);
}

/* Reduces count elements that lie at byte `at` of every rank's slot. */
static void reduce_slots(staged *k, uint64_t parity, size_t at, size_t count, char *out)
{
    host_comm *c = k->comm;
    size_t piece = host_reduce_piece(k->call->dtype);
    for (size_t done = 0; done < count; done += piece) {
        size_t n = count - done < piece ? count - done : piece;
        size_t skip = at + done * k->elem_bytes;
        for (int r = 0; r < c->num_ranks; r++) {
            const char *src = slot(k, r, parity) + skip;
            if (r == 0)
                host_reduce_first(&k->reduction, c->scratch, src, scalar_of(k, r), n);
            else
                host_reduce_next(&k->reduction, c->scratch, src, scalar_of(k, r), n);
        }
        host_reduce_last(&k->reduction, out + done * k->elem_bytes, c->scratch, n);
    }
}

/* Elements that fit into an n-th of a slot, or into all of it. */
static size_t room_elems(const staged *k, bool divided)
{
    size_t bytes = HOST_STAGE_BYTES;
    if (divided)
        bytes = bytes / (size_t)k->comm->num_ranks / HOST_LINE * HOST_LINE;
    return bytes / k->elem_bytes;
}

static int
whole_input(staged *k) /* all-gather, broadcast, reduce: everybody's input, or the root's */
{
    host_comm *c = k->comm;
    const host_call *call = k->call;
    const char *send = call->send;
    char *recv = call->recv;
    size_t step = room_elems(k, false), size = k->elem_bytes;
    for (size_t at = 0; at < call->count; at += step, k->round++) {
        size_t n = call->count - at < step ? call->count - at : step;
        if (call->kind != HOST_BROADCAST || call->peer == c->rank)
            memcpy(slot(k, c->rank, k->round), send + at * size, n * size);
        int result = meet(k);
        if (result)
            return result;
        if (call->kind == HOST_ALL_GATHER) {
            for (int r = 0; r < c->num_ranks; r++)
                memcpy(recv + ((size_t)r * call->count + at) * size, slot(k, r, k->round),
                       n * size);
        } else if (call->kind == HOST_BROADCAST) {
            memcpy(recv + at * size, slot(k, call->peer, k->round), n * size);
        } else if (call->peer == c->rank) {
            reduce_slots(k, k->round, 0, n, recv + at * size);
        }
    }
    return BRG_NCCL_OK;
}

static int divided_input(staged *k) /* reduce-scatter, all-to-all: a part for every rank */
{
    host_comm *c = k->comm;
    const host_call *call = k->call;
    const char *send = call->send;
    char *recv = call->recv;
    size_t step = room_elems(k, true), size = k->elem_bytes, part = step * size;
    for (size_t at = 0; at < call->count; at += step, k->round++) {
        size_t n = call->count - at < step ? call->count - at : step;
        for (int r = 0; r < c->num_ranks; r++)
            memcpy(slot(k, c->rank, k->round) + (size_t)r * part,
                   send + ((size_t)r * call->count + at) * size, n * size);
        int result = meet(k);
        if (result)
            return result;
        size_t mine = (size_t)c->rank * part;
        if (call->kind == HOST_REDUCE_SCATTER) {
            reduce_slots(k, k->round, mine, n, recv + at * size);
            continue;
        }
        for (int r = 0; r < c->num_ranks; r++)
            memcpy(recv + ((size_t)r * call->count + at) * size, slot(k, r, k->round) + mine,
                   n * size);
    }
    return BRG_NCCL_OK;
}

static int all_reduce(staged *k)
{
    host_comm *c = k->comm;
    const host_call *call = k->call;
    const char *send = call->send;
    char *recv = call->recv;
    size_t share = room_elems(k, true), size = k->elem_bytes, step = share * (size_t)c->num_ranks;
    for (size_t at = 0; at < call->count; at += step) {
        size_t n = call->count - at < step ? call->count - at : step;
        memcpy(slot(k, c->rank, 0), send + at * size, n * size);
        int result = meet(k);
        if (result)
            return result;
        size_t begin = share * (size_t)c->rank;
        if (begin < n)
            reduce_slots(k, 0, begin * size, n - begin < share ? n - begin : share,
                         slot(k, c->rank, 1));
        result = meet(k);
        if (result)
            return result;
        for (int r = 0; r < c->num_ranks; r++) {
            begin = share * (size_t)r;
            if (begin < n)
                memcpy(recv + (at + begin) * size, slot(k, r, 1),
                       (n - begin < share ? n - begin : share) * size);
        }
    }
    return BRG_NCCL_OK;
}

int host_collective_staged(host_comm *c, const host_wait *wait, const host_call *call)
{
    staged k = {.comm = c,
                .wait = wait,
                .call = call,
                .elem_bytes = host_dtype_bytes(call->dtype),
                .reduction = {.dtype = call->dtype, .op = call->op, .num_ranks = c->num_ranks}};
    switch (call->kind) {
    case HOST_ALL_REDUCE:
        return all_reduce(&k);
    case HOST_REDUCE_SCATTER:
    case HOST_ALL_TO_ALL:
        return divided_input(&k);
    default:
        return whole_input(&k);
    }
}
