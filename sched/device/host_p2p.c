/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives. Each ordered pair of ranks has a mailbox in the segment, which holds one send
 * at a time: the sender posts where its data lies, the receiver copies it (or takes it piece by
 * piece out of the sender's staging slots) and consumes the send. All sends and receives of a batch
 * advance whenever they can; when none can, the rank sleeps on its doorbell. */
#include "sched/device/host_comm.h"

#include <errno.h>
#include <string.h>

static shm_mail *mailbox(host_comm *c, int from, int to)
{
    return &c->segment->mail[(size_t)from * (size_t)c->num_ranks + (size_t)to];
}

static void ring(host_comm *c, int rank)
{
    atomic_fetch_add(&c->segment->ranks[rank].doorbell, 1);
    host_futex_wake(&c->segment->ranks[rank].doorbell, true);
}

/* How the receiver gets at the data; both sides come to the same answer. */
static bool is_direct(host_comm *c, int from, int to, const shm_mail *mail)
{
    unsigned reach =
        atomic_load(&c->segment->reach[(size_t)to * (size_t)c->num_ranks + (size_t)from]);
    return reach & (HOST_REACH_SAME | HOST_REACH_COPY) ||
           (reach & HOST_REACH_ARENA && mail->offset != UINT64_MAX);
}

/* A sender's two staging slots are divided among the receivers; each part holds two pieces. */
static size_t piece_bytes(const host_comm *c)
{
    return HOST_STAGE_BYTES / (size_t)c->num_ranks / HOST_LINE * HOST_LINE;
}

static char *piece(host_comm *c, int from, int to, uint32_t index)
{
    return c->segment->stage + ((size_t)from * 2 + (index & 1)) * HOST_STAGE_BYTES +
           (size_t)to * piece_bytes(c);
}

static size_t total_bytes(const struct host_p2p *op)
{
    return op->call.count * host_dtype_bytes(op->call.dtype);
}

/* Both advance one operation as far as it goes; *moved tells whether anything happened. */

static int advance_send(host_comm *c, struct host_p2p *op, bool *moved)
{
    int to = op->call.peer;
    shm_mail *mail = mailbox(c, c->rank, to);
    size_t bytes = total_bytes(op);
    if (!op->started) {
        mail->dtype = op->call.dtype;
        mail->count = op->call.count;
        mail->address = (uint64_t)(uintptr_t)op->call.send;
        mail->offset = host_arena_offset(op->call.send, bytes);
        atomic_store(&mail->written, 0);
        atomic_store(&mail->read, 0);
        op->started = true;
        atomic_store_explicit(&mail->posted, ++c->mail_sent[to], memory_order_release);
        ring(c, to);
        *moved = true;
    }
    bool rang = false;
    while (!is_direct(c, c->rank, to, mail) && op->done_bytes < bytes) {
        uint32_t written = atomic_load(&mail->written);
        if (written - atomic_load_explicit(&mail->read, memory_order_acquire) >= 2)
            break;
        size_t left = bytes - op->done_bytes, n = left < piece_bytes(c) ? left : piece_bytes(c);
        memcpy(piece(c, c->rank, to, written), (const char *)op->call.send + op->done_bytes, n);
        op->done_bytes += n;
        atomic_store_explicit(&mail->written, written + 1, memory_order_release);
        rang = true;
    }
    if (rang) {
        ring(c, to);
        *moved = true;
    }
    if (atomic_load_explicit(&mail->consumed, memory_order_acquire) == c->mail_sent[to]) {
        op->finished = true;
        *moved = true;
    }
    return BRG_NCCL_OK;
}

static int check_match(host_comm *c, const struct host_p2p *op, const shm_mail *mail)
{
    if (mail->count == op->call.count && mail->dtype == op->call.dtype)
        return BRG_NCCL_OK;
    return host_comm_break(
        c, atomic_load(&c->done_seq) + 1, BRG_NCCL_INVALID_USAGE, BRG_ERR_MISMATCH,
        "send #%u from rank %d to rank %d: rank %d sends %llu %s, rank %d "
        "receives %zu %s",
        c->mail_received[op->call.peer] + 1, op->call.peer, c->rank, op->call.peer,
        (unsigned long long)mail->count, host_dtype_text(mail->dtype), c->rank, op->call.count,
        host_dtype_text(op->call.dtype));
}

static void consume(host_comm *c, struct host_p2p *op, shm_mail *mail)
{
    int from = op->call.peer;
    atomic_store_explicit(&mail->consumed, ++c->mail_received[from], memory_order_release);
    op->finished = true;
    ring(c, from);
}

static int receive_direct(host_comm *c, struct host_p2p *op, shm_mail *mail, const host_wait *wait)
{
    _Atomic uint32_t *inside = &c->segment->ranks[c->rank].inside;
    size_t bytes = total_bytes(op);
    atomic_store(inside, 1);
    int result = atomic_load(&c->segment->header->broken) ? host_comm_look(wait) : BRG_NCCL_OK;
    if (!result && bytes)
        result =
            host_peer_copy(c, op->call.peer, op->call.recv, mail->address, mail->offset, bytes);
    atomic_store(inside, 0);
    if (result && !host_comm_look(wait))
        result = host_comm_break(c, atomic_load(&c->done_seq) + 1, BRG_NCCL_SYSTEM, BRG_ERR_IO,
                                 "rank %d cannot read the memory of rank %d: %s", c->rank,
                                 op->call.peer, strerror(errno));
    if (!result)
        consume(c, op, mail);
    return result;
}

static int advance_recv(host_comm *c, struct host_p2p *op, const host_wait *wait, bool *moved)
{
    int from = op->call.peer;
    shm_mail *mail = mailbox(c, from, c->rank);
    if (atomic_load_explicit(&mail->posted, memory_order_acquire) == c->mail_received[from])
        return BRG_NCCL_OK;
    if (!op->started) {
        int result = check_match(c, op, mail);
        if (result)
            return result;
        op->started = true;
    }
    if (is_direct(c, from, c->rank, mail)) {
        *moved = true;
        return receive_direct(c, op, mail, wait);
    }
    size_t bytes = total_bytes(op);
    bool took = false;
    for (;;) {
        uint32_t read = atomic_load(&mail->read);
        if (op->done_bytes == bytes ||
            atomic_load_explicit(&mail->written, memory_order_acquire) == read)
            break;
        size_t left = bytes - op->done_bytes, n = left < piece_bytes(c) ? left : piece_bytes(c);
        memcpy((char *)op->call.recv + op->done_bytes, piece(c, from, c->rank, read), n);
        op->done_bytes += n;
        atomic_store_explicit(&mail->read, read + 1, memory_order_release);
        took = true;
    }
    *moved |= took;
    if (op->done_bytes == bytes) {
        *moved = true;
        consume(c, op, mail);
    } else if (took) {
        ring(c, from);
    }
    return BRG_NCCL_OK;
}

/* Links every operation to the one before it in the same direction with the same peer. */
static void link_operations(host_comm *c, host_batch *batch)
{
    size_t n = (size_t)c->num_ranks;
    uint32_t *last = c->mail_sent + 2 * n; /* index + 1: n for sends, n for receives */
    memset(last, 0, 2 * n * sizeof *last);
    for (int i = 0; i < batch->count; i++) {
        struct host_p2p *op = &batch->ops[i];
        uint32_t *entry = &last[(op->call.kind == HOST_SEND ? 0 : n) + (size_t)op->call.peer];
        op->previous = (int)*entry - 1;
        *entry = (uint32_t)i + 1;
    }
}

/* Sends to this rank itself: matched with the receives in order. */
static int run_self(host_comm *c, host_batch *batch)
{
    int receive = 0;
    for (int i = 0; i < batch->count; i++) {
        struct host_p2p *send = &batch->ops[i];
        if (send->call.kind != HOST_SEND || send->call.peer != c->rank)
            continue;
        while (batch->ops[receive].call.kind != HOST_RECV ||
               batch->ops[receive].call.peer != c->rank)
            receive++;
        struct host_p2p *recv = &batch->ops[receive++];
        if (send->call.count != recv->call.count || send->call.dtype != recv->call.dtype)
            return host_comm_break(c, atomic_load(&c->done_seq) + 1, BRG_NCCL_INVALID_USAGE,
                                   BRG_ERR_MISMATCH,
                                   "rank %d sends itself %zu %s but receives %zu %s", c->rank,
                                   send->call.count, host_dtype_text(send->call.dtype),
                                   recv->call.count, host_dtype_text(recv->call.dtype));
        if (total_bytes(send) && send->call.send != recv->call.recv)
            memmove(recv->call.recv, send->call.send, total_bytes(send));
        send->finished = recv->finished = true;
    }
    return BRG_NCCL_OK;
}

/* A peer that has left will neither send nor receive any more. */
static int check_left(host_comm *c, const struct host_p2p *op)
{
    char call[96];
    int peer = op->call.peer;
    if (atomic_load(&c->segment->ranks[peer].presence) == SHM_HERE)
        return BRG_NCCL_OK;
    const shm_mail *mail =
        op->call.kind == HOST_SEND ? mailbox(c, c->rank, peer) : mailbox(c, peer, c->rank);
    if (op->call.kind == HOST_SEND ? atomic_load(&mail->consumed) == c->mail_sent[peer]
                                   : atomic_load(&mail->posted) != c->mail_received[peer])
        return BRG_NCCL_OK;
    return host_comm_break(c, atomic_load(&c->done_seq) + 1, BRG_NCCL_REMOTE, BRG_ERR_PEER_LOST,
                           "rank %d has left the communicator while rank %d was in a %s", peer,
                           c->rank, host_call_text(call, &op->call));
}

int host_batch_run(host_comm *c, host_batch *batch)
{
    host_wait wait = {.comm = c, .start_ns = host_now_ns()};
    _Atomic uint32_t *doorbell = &c->segment->ranks[c->rank].doorbell;
    link_operations(c, batch);
    int result = run_self(c, batch);
    while (!result) {
        uint32_t seen = atomic_load_explicit(doorbell, memory_order_acquire);
        bool moved = false;
        wait.call = NULL;
        for (int i = 0; i < batch->count && !result; i++) {
            struct host_p2p *op = &batch->ops[i];
            if (op->finished || (op->previous >= 0 && !batch->ops[op->previous].finished))
                continue;
            if (!wait.call)
                wait.call = &op->call;
            result = op->call.kind == HOST_SEND ? advance_send(c, op, &moved)
                                                : advance_recv(c, op, &wait, &moved);
        }
        if (!wait.call)
            break;
        if (moved || result)
            continue;
        for (int i = 0; i < batch->count && !result; i++)
            if (!batch->ops[i].finished)
                result = check_left(c, &batch->ops[i]);
        if (!result)
            result = host_wait_change(&wait, doorbell, seen);
    }
    if (result)
        host_comm_wait_readers(c);
    for (int i = 0; i < batch->count; i++)
        if (batch->ops[i].call.kind == HOST_RECV && batch->ops[i].call.peer != c->rank)
            atomic_store(&c->algorithm, is_direct(c, batch->ops[i].call.peer, c->rank,
                                                  mailbox(c, batch->ops[i].call.peer, c->rank))
                                            ? "direct"
                                            : "staged");
    return result;
}
