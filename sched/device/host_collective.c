/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: arrival, comparison of the calls, and the inline and direct ways of moving the data.
 */
#include "sched/device/host_comm.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

typedef struct collective {
    host_comm *comm;
    const host_call *call;
    host_wait wait;
    size_t elem_bytes;
    host_reduction reduction;
} collective;

static const shm_slot *slot_of(const collective *k, int rank)
{
    return &k->comm->segment->ranks[rank].slots[k->wait.seq & 1];
}

static char *small_of(const collective *k, int rank)
{
    return k->comm->segment->small + ((size_t)rank * 2 + (k->wait.seq & 1)) * HOST_INLINE_BYTES;
}

/* Bytes of this rank's input. */
static size_t input_bytes(const collective *k)
{
    size_t bytes = k->call->count * k->elem_bytes;
    switch (k->call->kind) {
    case HOST_REDUCE_SCATTER:
    case HOST_ALL_TO_ALL:
        return bytes * (size_t)k->comm->num_ranks;
    default:
        return bytes;
    }
}

static size_t output_bytes(const collective *k)
{
    size_t bytes = k->call->count * k->elem_bytes;
    switch (k->call->kind) {
    case HOST_ALL_GATHER:
    case HOST_ALL_TO_ALL:
    case HOST_SPLIT:
        return bytes * (size_t)k->comm->num_ranks;
    default:
        return bytes;
    }
}

static bool has_input(const collective *k)
{
    return k->call->kind != HOST_BROADCAST || k->call->peer == k->comm->rank;
}

static bool is_small(const collective *k)
{
    return input_bytes(k) <= HOST_INLINE_BYTES;
}

static void publish(collective *k)
{
    host_comm *c = k->comm;
    const host_call *call = k->call;
    shm_rank *mine = &c->segment->ranks[c->rank];
    shm_slot *slot = &mine->slots[k->wait.seq & 1];
    *slot = (shm_slot){.kind = call->kind,
                       .dtype = call->dtype,
                       .op = call->op,
                       .root = call->peer,
                       .count = call->count,
                       .send_address = (uint64_t)(uintptr_t)call->send,
                       .recv_address = (uint64_t)(uintptr_t)call->recv};
    memcpy(slot->scalar, call->scalar, sizeof slot->scalar);
    if (call->scalar_pointer)
        memcpy(slot->scalar, call->scalar_pointer, k->elem_bytes);
    if (is_small(k)) {
        if (has_input(k) && input_bytes(k))
            memcpy(small_of(k, c->rank), call->send, input_bytes(k));
    } else {
        slot->send_offset = host_arena_offset(call->send, input_bytes(k));
        slot->recv_offset = host_arena_offset(call->recv, output_bytes(k));
    }
    atomic_store_explicit(&mine->arrived, k->wait.seq, memory_order_release);
    if (atomic_fetch_add(&c->segment->header->arrive, 1) + 1 == c->arrive_target)
        host_futex_wake(&c->segment->header->arrive, true);
}

/* All ranks get to the same place before any goes on. */
static int meet(collective *k)
{
    host_comm *c = k->comm;
    _Atomic uint32_t *word = &c->segment->header->meet;
    c->meet_target += (uint32_t)c->num_ranks;
    if (atomic_fetch_add(word, 1) + 1 == c->meet_target)
        host_futex_wake(word, true);
    return host_wait_count(&k->wait, word, c->meet_target);
}

static int depart(collective *k)
{
    host_comm *c = k->comm;
    _Atomic uint32_t *word = &c->segment->header->depart;
    c->depart_target += (uint32_t)c->num_ranks;
    atomic_store(&c->segment->ranks[c->rank].departed, k->wait.seq);
    if (atomic_fetch_add(word, 1) + 1 == c->depart_target)
        host_futex_wake(word, true);
    return host_wait_count(&k->wait, word, c->depart_target);
}

/* Small: everything lies in the slots' payload. */

static void reduce_small(collective *k, size_t first, size_t count, char *out)
{
    host_comm *c = k->comm;
    size_t piece = host_reduce_piece(k->call->dtype);
    for (size_t done = 0; done < count; done += piece) {
        size_t n = count - done < piece ? count - done : piece;
        size_t at = (first + done) * k->elem_bytes;
        host_reduce_first(&k->reduction, c->scratch, small_of(k, 0) + at, slot_of(k, 0)->scalar, n);
        for (int r = 1; r < c->num_ranks; r++)
            host_reduce_next(&k->reduction, c->scratch, small_of(k, r) + at, slot_of(k, r)->scalar,
                             n);
        host_reduce_last(&k->reduction, out + done * k->elem_bytes, c->scratch, n);
    }
}

static void run_small(collective *k)
{
    host_comm *c = k->comm;
    size_t count = k->call->count, bytes = count * k->elem_bytes;
    char *recv = k->call->recv;
    if (!bytes)
        return;
    switch (k->call->kind) {
    case HOST_ALL_REDUCE:
        reduce_small(k, 0, count, recv);
        break;
    case HOST_REDUCE_SCATTER:
        reduce_small(k, (size_t)c->rank * count, count, recv);
        break;
    case HOST_REDUCE:
        if (c->rank == k->call->peer)
            reduce_small(k, 0, count, recv);
        break;
    case HOST_BROADCAST:
        memcpy(recv, small_of(k, k->call->peer), bytes);
        break;
    case HOST_ALL_GATHER:
    case HOST_SPLIT:
        for (int r = 0; r < c->num_ranks; r++)
            memcpy(recv + (size_t)r * bytes, small_of(k, r), bytes);
        break;
    case HOST_ALL_TO_ALL:
        for (int r = 0; r < c->num_ranks; r++)
            memcpy(recv + (size_t)r * bytes, small_of(k, r) + (size_t)c->rank * bytes, bytes);
        break;
    default:
        break;
    }
}

/* Direct: out of the peers' memory. */

static bool read_remote(const host_peer *peer, void *dst, uint64_t address, size_t bytes)
{
    while (bytes) {
        struct iovec local = {.iov_base = dst, .iov_len = bytes};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
        ssize_t got = process_vm_readv((pid_t)peer->id.pid, &local, 1, &remote, 1, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        dst = (char *)dst + got;
        address += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return true;
}

const void *host_peer_view(host_comm *c, int peer, uint64_t address, uint64_t offset, size_t bytes,
                           void *scratch)
{
    unsigned reach = c->reach[peer];
    if (reach & HOST_REACH_SAME)
        return (const void *)(uintptr_t)address;
    if (reach & HOST_REACH_ARENA && offset != UINT64_MAX)
        return c->peers[peer]->arena + offset;
    return reach & HOST_REACH_COPY && read_remote(c->peers[peer], scratch, address, bytes) ? scratch
                                                                                           : NULL;
}

int host_peer_copy(host_comm *c, int peer, void *dst, uint64_t address, uint64_t offset,
                   size_t bytes)
{
    const void *src = host_peer_view(c, peer, address, offset, bytes, dst);
    if (!src)
        return BRG_NCCL_SYSTEM;
    if (src != dst)
        memmove(dst, src, bytes);
    return BRG_NCCL_OK;
}

static uint64_t shifted(uint64_t offset, size_t by)
{
    return offset == UINT64_MAX ? offset : offset + by;
}

static int unreadable(collective *k, int peer)
{
    if (host_comm_look(&k->wait)) /* it may have died, which says more */
        return atomic_load(&k->comm->error);
    return host_comm_break(k->comm, k->wait.seq, BRG_NCCL_SYSTEM, BRG_ERR_IO,
                           "collective #%llu: rank %d cannot read the memory of rank %d: %s",
                           (unsigned long long)k->wait.seq, k->comm->rank, peer, strerror(errno));
}

/* Copies [skip, skip+bytes) of a peer's send (or receive) buffer. */
static int pull(collective *k, int peer, bool from_recv, size_t skip, char *dst, size_t bytes)
{
    const shm_slot *slot = slot_of(k, peer);
    uint64_t address = from_recv ? slot->recv_address : slot->send_address;
    uint64_t offset = from_recv ? slot->recv_offset : slot->send_offset;
    if (!bytes)
        return BRG_NCCL_OK;
    if (peer == k->comm->rank) {
        const char *own = from_recv ? k->call->recv : k->call->send;
        if (own + skip != dst)
            memmove(dst, own + skip, bytes);
        return BRG_NCCL_OK;
    }
    if (host_peer_copy(k->comm, peer, dst, address + skip, shifted(offset, skip), bytes))
        return unreadable(k, peer);
    return BRG_NCCL_OK;
}

/* Reduces elements [first, first+count) of all ranks' inputs. */
static int reduce_direct(collective *k, size_t first, size_t count, char *out)
{
    host_comm *c = k->comm;
    size_t piece = host_reduce_piece(k->call->dtype);
    char *acc = c->scratch, *view = acc + HOST_SCRATCH_BYTES / 2;
    for (size_t done = 0; done < count; done += piece) {
        size_t n = count - done < piece ? count - done : piece;
        size_t skip = (first + done) * k->elem_bytes;
        for (int r = 0; r < c->num_ranks; r++) {
            const shm_slot *slot = slot_of(k, r);
            const void *src =
                host_peer_view(c, r, slot->send_address + skip, shifted(slot->send_offset, skip),
                               n * k->elem_bytes, view);
            if (!src)
                return unreadable(k, r);
            if (r == 0)
                host_reduce_first(&k->reduction, acc, src, slot->scalar, n);
            else
                host_reduce_next(&k->reduction, acc, src, slot->scalar, n);
        }
        host_reduce_last(&k->reduction, out + done * k->elem_bytes, acc, n);
    }
    return BRG_NCCL_OK;
}

/* The elements of an all-reduce that rank r reduces. */
static size_t share_begin(const collective *k, int rank)
{
    size_t n = (size_t)k->comm->num_ranks, line = HOST_LINE / k->elem_bytes;
    size_t share = (k->call->count / n / line + 1) * line;
    size_t begin = share * (size_t)rank;
    return begin < k->call->count ? begin : k->call->count;
}

static int all_reduce_direct(collective *k)
{
    host_comm *c = k->comm;
    char *recv = k->call->recv;
    size_t mine = share_begin(k, c->rank), end = share_begin(k, c->rank + 1);
    int result = reduce_direct(k, mine, end - mine, recv + mine * k->elem_bytes);
    if (!result)
        result = meet(k);
    for (int i = 1; i < c->num_ranks && !result; i++) {
        int r = (c->rank + i) % c->num_ranks;
        size_t begin = share_begin(k, r) * k->elem_bytes;
        size_t bytes = share_begin(k, r + 1) * k->elem_bytes - begin;
        result = pull(k, r, true, begin, recv + begin, bytes);
    }
    return result;
}

static int run_direct(collective *k)
{
    host_comm *c = k->comm;
    size_t count = k->call->count, bytes = count * k->elem_bytes;
    char *recv = k->call->recv;
    int result = BRG_NCCL_OK;
    switch (k->call->kind) {
    case HOST_ALL_REDUCE:
        return all_reduce_direct(k);
    case HOST_REDUCE_SCATTER:
        return reduce_direct(k, (size_t)c->rank * count, count, recv);
    case HOST_REDUCE:
        return c->rank == k->call->peer ? reduce_direct(k, 0, count, recv) : BRG_NCCL_OK;
    case HOST_BROADCAST:
        return pull(k, k->call->peer, false, 0, recv, bytes);
    case HOST_ALL_GATHER:
    case HOST_ALL_TO_ALL:
        for (int i = 0; i < c->num_ranks && !result; i++) { /* not all at the same peer */
            int r = (c->rank + i) % c->num_ranks;
            size_t skip = k->call->kind == HOST_ALL_TO_ALL ? (size_t)c->rank * bytes : 0;
            result = pull(k, r, false, skip, recv + (size_t)r * bytes, bytes);
        }
        return result;
    default:
        return BRG_NCCL_INTERNAL;
    }
}

/* Every rank comes to the same answer, from what all have published. */
static bool direct_possible(const collective *k)
{
    const host_comm *c = k->comm;
    if (c->all_copy || c->num_ranks == 1)
        return true;
    if (!c->all_arena)
        return false;
    for (int r = 0; r < c->num_ranks; r++) {
        const shm_slot *slot = slot_of(k, r);
        bool is_read = k->call->kind != HOST_BROADCAST || r == k->call->peer;
        if ((is_read && slot->send_offset == UINT64_MAX) ||
            (k->call->kind == HOST_ALL_REDUCE && slot->recv_offset == UINT64_MAX))
            return false;
    }
    return true;
}

static int move_directly(collective *k)
{
    host_comm *c = k->comm;
    _Atomic uint32_t *inside = &c->segment->ranks[c->rank].inside;
    atomic_store(inside, 1);
    int result = atomic_load(&c->segment->header->broken) ? host_comm_look(&k->wait) : BRG_NCCL_OK;
    if (!result)
        result = run_direct(k);
    atomic_store(inside, 0);
    if (!result)
        result = depart(k);
    if (result)
        host_comm_wait_readers(c);
    return result;
}

int host_collective_run(host_comm *c, uint64_t seq, const host_call *call)
{
    collective k = {
        .comm = c,
        .call = call,
        .wait = {.comm = c, .call = call, .seq = seq, .start_ns = host_now_ns(), .arriving = true},
        .elem_bytes = host_dtype_bytes(call->dtype),
        .reduction = {.dtype = call->dtype, .op = call->op, .num_ranks = c->num_ranks}};
    c->arrive_target += (uint32_t)c->num_ranks;
    publish(&k);
    int result = host_wait_count(&k.wait, &c->segment->header->arrive, c->arrive_target);
    if (!result)
        result = host_comm_compare(c, seq);
    k.wait.arriving = false;
    if (result) {
        host_comm_wait_readers(c); /* the slot is out: a peer may have gone on to read */
        return result;
    }
    if (is_small(&k)) {
        run_small(&k);
        atomic_store(&c->segment->ranks[c->rank].departed, seq);
        atomic_store(&c->algorithm, "inline");
    } else if (direct_possible(&k)) {
        result = move_directly(&k);
        atomic_store(&c->algorithm, "direct");
    } else {
        result = host_collective_staged(c, &k.wait, call);
        atomic_store(&c->segment->ranks[c->rank].departed, seq);
        atomic_store(&c->algorithm, "staged");
    }
    if (!result)
        atomic_store(&c->done_seq, seq);
    return result;
}
