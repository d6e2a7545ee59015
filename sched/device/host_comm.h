/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the host engine: what lies in shared memory, and one rank's view of it.
 *
 * All ranks of a communicator share one segment. Everything that one rank tells the others goes
 * through C11 atomics in it; a rank that has to wait sleeps in futex on one of them and looks after
 * its peers every HOST_CHECK_NS. A rank (of the collectives on one communicator) works on one call
 * at a time, in the order in which the calls were made, whatever streams they are on.
 *
 * A collective:
 *   1. every rank writes its call into its slot (seq modulo 2), small inputs too, and arrives;
 *   2. once all have arrived, each compares all slots: any difference breaks the communicator;
 *   3. small: each rank computes its result from the slots. No rank can overwrite slot seq modulo 2
 *      before all have arrived at seq+1, that is, have finished seq.
 *      direct: each rank reads what it needs from its peers' memory, then departs; it returns, and
 * the user may touch the buffers, when all have departed. All-reduce has one more meeting between
 * its two halves. staged: the same through slots in the segment, piece by piece, when some rank
 * cannot read some other's memory.
 */
#ifndef BRIGADE_SCHED_DEVICE_HOST_COMM_H
#define BRIGADE_SCHED_DEVICE_HOST_COMM_H

#include "sched/device/host_internal.h"

/* Shared memory */

typedef struct shm_slot { /* a rank's current call */
    uint32_t kind;
    int32_t dtype, op, root;
    uint64_t count;
    uint64_t send_address, recv_address;
    uint64_t send_offset, recv_offset; /* in the rank's arena, UINT64_MAX: outside */
    uint8_t scalar[8];
} shm_slot;

typedef struct shm_process { /* who a rank is */
    uint64_t pid, start_time, pid_namespace;
    uint8_t cookie[16];      /* random per process */
    uint64_t cookie_address; /* where it lies in the process */
    host_arena_id arena;
} shm_process;

enum { SHM_RANK_FREE, SHM_RANK_TAKEN, SHM_RANK_READY };
enum { SHM_HERE, SHM_LEFT, SHM_ABORTED };

typedef struct shm_rank {
    alignas(HOST_LINE) _Atomic uint32_t claim; /* SHM_RANK_* */
    _Atomic uint32_t presence;                 /* SHM_HERE.. */
    _Atomic uint32_t inside;                   /* 1 while the rank reads peers' memory */
    shm_process process;
    alignas(HOST_LINE) _Atomic uint32_t doorbell; /* changes whenever a peer did something for us */
    _Atomic uint64_t arrived;  /* seq of the last collective that this rank arrived at */
    _Atomic uint64_t departed; /* and of the last one that it has done its part of */
    shm_slot slots[2];
} shm_rank;

typedef struct shm_mail { /* sends from one rank to one other, one at a time */
    alignas(HOST_LINE) _Atomic uint32_t posted; /* sends so far, by the sender */
    _Atomic uint32_t consumed;                  /* by the receiver */
    _Atomic uint32_t written, read;             /* staged pieces of the current send */
    int32_t dtype;
    uint64_t count;
    uint64_t address, offset;
} shm_mail;

typedef struct shm_header {
    _Atomic uint32_t ready; /* SHM_READY once the creator has written what follows */
    uint32_t version;
    uint32_t num_ranks;
    uint32_t unused;
    uint64_t bytes;
    uint64_t creator_pid, creator_start_time;
    alignas(HOST_LINE) _Atomic uint32_t attached; /* ranks that have claimed their place */
    _Atomic uint32_t connected;                   /* ranks that have tried to reach all others */
    alignas(HOST_LINE) _Atomic uint32_t broken;   /* SHM_WHOLE.. */
    int32_t broken_code, broken_cause;
    uint64_t broken_seq; /* collectives before this one may still succeed */
    char broken_text[THREAD_ERROR_BYTES];
    alignas(HOST_LINE) _Atomic uint32_t arrive; /* these count ranks, over all collectives */
    alignas(HOST_LINE) _Atomic uint32_t meet;
    alignas(HOST_LINE) _Atomic uint32_t depart;
} shm_header;

enum { SHM_WHOLE, SHM_BREAKING, SHM_BROKEN };
#define SHM_READY 0x62726731u
#define SHM_VERSION 1u

/* A mapped segment, one per process and communicator, shared by the rank threads of the process. */
typedef struct host_segment {
    char name[80];
    int fd; /* open and locked until all ranks have attached */
    char *base;
    size_t bytes;
    unsigned users;
    bool unlinked;
    shm_header *header;
    shm_rank *ranks;
    _Atomic uint8_t *reach; /* [reader * n + owner]: HOST_REACH_* bits */
    shm_mail *mail;         /* [sender * n + receiver] */
    char *small;            /* [rank][2][HOST_INLINE_BYTES] */
    char *stage;            /* [rank][2][HOST_STAGE_BYTES] */
    size_t stage_offset;
    struct host_segment *next;
} host_segment;

int host_segment_open(const char *name, int num_ranks, uint64_t deadline_ns,
                      host_segment **segment);
void host_segment_unlink(host_segment *segment); /* idempotent */
void host_segment_close(host_segment *segment);
int host_segment_reserve_stage(host_segment *segment, int num_ranks, int rank);
void host_segment_fork_child(void);

/* Peers */

enum { HOST_REACH_SAME = 1, HOST_REACH_ARENA = 2, HOST_REACH_COPY = 4 };
enum { HOST_TRANSPORT_AUTO, HOST_TRANSPORT_ARENA, HOST_TRANSPORT_COPY, HOST_TRANSPORT_STAGED };

typedef struct host_peer { /* a process that holds a rank of ours; shared by all communicators */
    shm_process id;
    int pidfd;    /* -1: none */
    bool visible; /* its pid means something here */
    bool dead_at_open;
    char *arena; /* its arena in our memory, NULL: not mapped */
    unsigned reach;
    unsigned users;
    struct host_peer *next;
} host_peer;

int host_process_identify(shm_process *id);
int host_peer_open(const shm_process *id, host_peer **peer);
void host_peer_close(host_peer *peer);
bool host_peer_dead(const host_peer *peer);
void host_peer_fork_child(void);

/* Communicators */

typedef struct host_redop {
    bool used;
    int dtype;
    uint8_t scalar[8];
    const void *pointer;
} host_redop;

struct host_comm {
    uint32_t magic;
    uint32_t generation;
    _Atomic uint32_t refs; /* the user's and one for each queued call */
    int num_ranks, rank, device;
    int transport; /* HOST_TRANSPORT_*: what this rank may use */
    host_segment *segment;
    host_peer **peers;
    uint8_t *reach; /* how this rank reads each peer's memory: HOST_REACH_* */
    bool all_copy;  /* every rank can read any memory of every other */
    bool all_arena; /* every rank can read every other's arena, at least */
    bool staging;   /* this rank's staging slots are backed */
    uint64_t collective_timeout_ns;

    pthread_mutex_t lock;
    pthread_cond_t turned;
    uint64_t next_ticket, turn; /* calls and groups, in the order of the calls */
    uint64_t next_seq;          /* collectives only */
    _Atomic uint64_t done_seq;  /* the last collective that this rank has finished */
    host_redop *redops;
    int num_redops;
    host_batch *free_batches;
    host_stream *own_stream; /* runs calls on the NULL stream that come in a group */

    /* The current call's, used by whoever has the turn. */
    uint32_t arrive_target, meet_target, depart_target;
    uint32_t *mail_sent, *mail_received; /* per peer, calls finished */
    void *scratch;                       /* HOST_SCRATCH_BYTES */
    _Atomic(const char *) algorithm;

    _Atomic uint64_t next_check_ns;
    _Atomic int error;      /* result code once broken */
    brg_status error_cause; /* these two are written before `error` */
    char error_text[THREAD_ERROR_BYTES];
};

#define HOST_COMM_MAGIC 0x6272636du
#define HOST_SCRATCH_BYTES ((size_t)256 << 10)

/* What a rank is waiting in, for messages and time-outs. */
typedef struct host_wait {
    host_comm *comm;
    const host_call *call; /* NULL: none */
    uint64_t seq;          /* 0: not in a collective */
    uint64_t start_ns;
    bool arriving; /* peers that have left without arriving will never come */
} host_wait;

/* host_comm.c */
int host_comm_check(host_comm *comm, const char *what); /* the handle is ours */
void host_comm_ref(host_comm *comm);
void host_comm_unref(host_comm *comm);
void host_comm_run(host_op *op); /* a queued collective or batch */
void host_comm_wait_turn(host_comm *comm, uint64_t ticket);
void host_comm_end_turn(host_comm *comm);
/* Blocks until all ranks have come or the time for it is over. */
int host_comm_create(host_comm **comm, int num_ranks, const char *name, int rank, int device);
int host_comm_name_new(char name[40]);

/* host_liveness.c: errors, waits, peers */
/* Breaks the communicator for all ranks; collectives from `seq` on fail. Returns the code. */
int host_comm_break(host_comm *comm, uint64_t seq, int code, brg_status cause, const char *format,
                    ...) __attribute__((format(printf, 5, 6)));
/* 0, or the code of the error that ends what `wait` describes. */
int host_comm_look(const host_wait *wait);
/* Sleeps until the counter has reached the target. */
int host_wait_count(const host_wait *wait, _Atomic uint32_t *word, uint32_t target);
/* Sleeps until *word != seen or for HOST_CHECK_NS, then looks around. */
int host_wait_change(const host_wait *wait, _Atomic uint32_t *word, uint32_t seen);
/* Breaks the communicator if two of the ranks that have arrived at `seq` made different calls. */
int host_comm_compare(host_comm *comm, uint64_t seq);
int host_comm_adopt(host_comm *comm); /* takes over the shared error; returns the code or 0 */
void host_comm_wake_all(host_comm *comm);
/* For a rank that gives up on a broken communicator: its user may free memory as soon as the call
 * is over, so no peer thread of this process may still be reading it. */
void host_comm_wait_readers(host_comm *comm);

/* host_text.c */
const char *host_call_text(char text[96], const host_call *call);
const char *host_slot_text(char text[96], const shm_slot *slot);
const char *host_dtype_text(int dtype);
const char *host_ranks_text(char text[160], const bool *is_listed, int num_ranks);

/* host_collective.c, host_staged.c, host_p2p.c */
int host_collective_run(host_comm *comm, uint64_t seq, const host_call *call);
int host_collective_staged(host_comm *comm, const host_wait *wait, const host_call *call);
/* Copies bytes out of a peer's memory. */
int host_peer_copy(host_comm *comm, int peer, void *dst, uint64_t address, uint64_t offset,
                   size_t bytes);
/* The peer's bytes: in place if they can be addressed, otherwise copied to scratch. NULL on
 * failure. */
const void *host_peer_view(host_comm *comm, int peer, uint64_t address, uint64_t offset,
                           size_t bytes, void *scratch);
int host_batch_run(host_comm *comm, host_batch *batch);

struct host_batch { /* the sends and receives of one group on one communicator */
    struct host_p2p {
        host_call call;
        size_t done_bytes;
        int previous; /* earlier one in the same direction with the same peer, -1: none */
        bool started, finished;
    } * ops;
    int count, capacity;
    host_marker *finished; /* other streams of the group wait for it; may be NULL */
    host_batch *next;
};

/* host_group.c */
int host_call_submit(const host_call *call, host_comm *comm, host_stream *stream);

/* host_calls.c */
size_t host_dtype_bytes(int dtype); /* 0: no such type */

/* host_reduce.c */
/* Describes an element-wise reduction over the ranks. */
typedef struct host_reduction {
    int dtype, op, num_ranks;
} host_reduction;
/* Reduces in pieces: for each piece of at most host_reduce_piece(dtype) elements call
 * host_reduce_first, then host_reduce_next in rank order, then host_reduce_last. */
size_t host_reduce_piece(int dtype);
void host_reduce_first(const host_reduction *r, void *acc, const void *src, const uint8_t scalar[8],
                       size_t count);
void host_reduce_next(const host_reduction *r, void *acc, const void *src, const uint8_t scalar[8],
                      size_t count);
void host_reduce_last(const host_reduction *r, void *dst, const void *acc, size_t count);

#endif
