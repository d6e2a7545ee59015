/* SPDX-License-Identifier: Apache-2.0 */
/* From calls to records. An operation outside a group is on its stream when the call returns; one
 * in a group when the outermost ncclGroupEnd of its thread and NCCL returns, together with all
 * others of the group. */
#include <stdlib.h>

#include "brigade/dtype.h"
#include "shim/interpose/internal.h"

enum { LANES = 64, STREAMS = 4096, STREAM_PROBES = 32 };

_Thread_local int shim_inside __attribute__((tls_model("initial-exec")));

/* A (device, stream) that a group touches. */
typedef struct lane {
    int device, pair, head;
    cudaStream_t stream;
    bool captured;
} lane;

typedef struct group {
    int count, num_lanes;
    lane lanes[LANES];
    struct {
        shim_op op;
        shim_comm *comm;
        uint64_t t0_ns;
        int lane; /* -1: more lanes than can be timed */
    } ops[SHIM_GROUP_OPS];
} group;

static _Thread_local struct {
    int depth[SHIM_COPIES];
    group *group[SHIM_COPIES];
} own __attribute__((tls_model("initial-exec")));

static pthread_key_t thread_end;
static pthread_once_t thread_end_made = PTHREAD_ONCE_INIT;
static struct {
    _Atomic uintptr_t key;
    _Atomic uint32_t id;
} streams[STREAMS];
static _Atomic uint32_t num_streams;
static _Atomic uint32_t last_group;

/* Handles of streams to small numbers. 0: the table is full there. */
static uint32_t stream_id(cudaStream_t stream)
{
    uintptr_t key = (uintptr_t)stream + 1; /* the default stream is 0 */
    for (size_t i = 0, at = (key >> 4 ^ key >> 13) % STREAMS; i < STREAM_PROBES;
         i++, at = (at + 1) % STREAMS) {
        uintptr_t there = atomic_load_explicit(&streams[at].key, memory_order_relaxed);
        if (!there && atomic_compare_exchange_strong(&streams[at].key, &there, key))
            atomic_store(&streams[at].id, atomic_fetch_add(&num_streams, 1) + 1);
        else if (there != key)
            continue;
        uint32_t id;
        while (!(id = atomic_load_explicit(&streams[at].id, memory_order_relaxed)))
            ; /* the thread that took the place is about to write it */
        return id;
    }
    return 0;
}

static uint8_t dtype_of(int type)
{
    static const uint8_t dtypes[] = {BRG_INT8,    BRG_UINT8,   BRG_INT32,   BRG_UINT32,
                                     BRG_INT64,   BRG_UINT64,  BRG_FLOAT16, BRG_FLOAT32,
                                     BRG_FLOAT64, BRG_BFLOAT16};
    return (unsigned)type < sizeof dtypes ? dtypes[type] : BRG_NO_DTYPE;
}

/* 0 for types that came after 2.30. */
static uint64_t type_bytes(int type)
{
    static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < ncclNumTypes ? bytes[type] : 0;
}

static brg_rec record_of(const shim_op *op, shim_comm *comm, uint64_t t0_ns, uint64_t t1_ns,
                         bool captured)
{
    bool paired =
        op->func == BRG_FUNC_SEND || op->func == BRG_FUNC_RECV || op->func == BRG_FUNC_PUT;
    uint64_t ranks = op->per_rank && comm->size > 0 ? (uint64_t)comm->size : 1;
    _Atomic uint32_t *next = paired ? &comm->next_p2p : &comm->next_collective;
    return (brg_rec){.t0_ns = t0_ns,
                     .t1_ns = t1_ns,
                     .bytes = op->count * type_bytes(op->type) * ranks,
                     .step = atomic_fetch_add_explicit(next, 1, memory_order_relaxed),
                     .comm = comm->id,
                     .bucket = BRG_NO_BUCKET,
                     .stream = stream_id(op->stream),
                     .kind = BRG_REC_COLLECTIVE,
                     .flags = (uint16_t)(BRG_REC_UNTIMED | (captured ? BRG_REC_CAPTURED : 0) |
                                         (op->op >= ncclNumOps ? BRG_REC_USER_OP : 0)),
                     .dtype = dtype_of(op->type),
                     .func = (uint8_t)op->func,
                     .aux = (uint64_t)(uintptr_t)op->address};
}

static void groups_free(void *unused)
{
    for (int i = 0; i < SHIM_COPIES; i++) {
        free(own.group[i]);
        own.group[i] = NULL;
    }
}

static void thread_end_make(void)
{
    pthread_key_create(&thread_end, groups_free);
}

/* The group of this thread; made when the thread has its first. */
static group *group_of(const shim_real *real)
{
    group *g = own.group[real->index];
    if (!g && (g = calloc(1, sizeof *g))) {
        own.group[real->index] = g;
        pthread_once(&thread_end_made, thread_end_make);
        pthread_setspecific(thread_end, g);
    }
    return g;
}

static int lane_of(group *g, int device, cudaStream_t stream)
{
    for (int i = 0; i < g->num_lanes; i++)
        if (g->lanes[i].stream == stream && g->lanes[i].device == device)
            return i;
    if (g->num_lanes == LANES)
        return -1;
    g->lanes[g->num_lanes] = (lane){.device = device, .stream = stream, .pair = -1, .head = -1};
    return g->num_lanes++;
}

void shim_op_begin(const shim_real *real, const shim_op *op, shim_call *call)
{
    call->active = shim_on() || shim_open(0, 1);
    call->pair = -1;
    call->captured = false;
    if (!call->active)
        return;
    call->comm = shim_comm_of(real, op->handle);
    call->active = call->comm != NULL;
    if (call->active && !own.depth[real->index] && call->comm->blocking)
        call->pair = shim_timing_begin(call->comm->device, op->stream, &call->captured);
    call->t0_ns = brg_now_ns();
}

static void group_add(const shim_real *real, const shim_op *op, const shim_call *call)
{
    group *g = group_of(real);
    if (!g || g->count == SHIM_GROUP_OPS) {
        brg_ring_drop(shim_ring, 1);
        return;
    }
    int at = g->count++;
    g->ops[at].op = *op;
    g->ops[at].comm = call->comm;
    g->ops[at].t0_ns = call->t0_ns;
    g->ops[at].lane = lane_of(g, call->comm->device, op->stream);
}

void shim_op_end(const shim_real *real, const shim_op *op, const shim_call *call,
                 ncclResult_t result)
{
    if (!call->active)
        return;
    bool fine = result == ncclSuccess || result == ncclInProgress;
    if (own.depth[real->index]) {
        if (fine)
            group_add(real, op, call);
        return;
    }
    if (call->pair >= 0 && result != ncclSuccess)
        shim_timing_cancel(call->pair);
    if (!fine)
        return;
    if (result == ncclInProgress)
        call->comm->blocking = false;
    bool timed =
        call->pair >= 0 && result == ncclSuccess && shim_timing_end(call->pair, op->stream);
    const brg_rec rec = record_of(op, call->comm, call->t0_ns, brg_now_ns(), call->captured);
    int head = -1;
    if (timed && shim_timing_add(&head, &rec)) {
        shim_timing_submit(call->pair, head);
    } else {
        if (timed)
            shim_timing_cancel(call->pair);
        brg_ring_put(shim_ring, &rec);
    }
}

int shim_group_depth(const shim_real *real)
{
    return own.depth[real->index];
}

void shim_group_started(const shim_real *real)
{
    own.depth[real->index]++;
}

/* A non-blocking communicator launches later, on another thread: marks around this call would mean
 * nothing, for any of the group. */
static bool all_blocking(const group *g)
{
    for (int i = 0; i < g->count; i++)
        if (!g->ops[i].comm->blocking)
            return false;
    return true;
}

void shim_group_end_begin(const shim_real *real)
{
    group *g = own.group[real->index];
    if (own.depth[real->index] != 1 || !g || !g->count || !shim_on() || !all_blocking(g))
        return;
    for (int i = 0; i < g->num_lanes; i++) {
        lane *l = &g->lanes[i];
        l->pair = shim_timing_begin(l->device, l->stream, &l->captured);
    }
}

static void group_clear(group *g)
{
    g->count = 0;
    g->num_lanes = 0;
}

static uint32_t group_number(void)
{
    uint32_t number;
    do
        number = atomic_fetch_add_explicit(&last_group, 1, memory_order_relaxed) + 1;
    while (!(number & 0xffff));
    return number & 0xffff;
}

static void group_write(group *g, uint64_t t1_ns, bool later)
{
    uint32_t number = group_number();
    for (int i = 0; i < g->count; i++) {
        shim_comm *comm = g->ops[i].comm;
        lane *l = g->ops[i].lane >= 0 ? &g->lanes[g->ops[i].lane] : NULL;
        if (later)
            comm->blocking = false;
        brg_rec rec = record_of(&g->ops[i].op, comm, g->ops[i].t0_ns, t1_ns, l && l->captured);
        rec.channel_first = (uint8_t)number;
        rec.channel_count = (uint8_t)(number >> 8);
        if (g->count > 1)
            rec.flags |= BRG_REC_GROUPED;
        if (!l || l->pair < 0 || !shim_timing_add(&l->head, &rec))
            brg_ring_put(shim_ring, &rec);
    }
    for (int i = 0; i < g->num_lanes; i++) {
        lane *l = &g->lanes[i];
        if (l->pair >= 0 && l->head >= 0)
            shim_timing_submit(l->pair, l->head);
        else if (l->pair >= 0)
            shim_timing_cancel(l->pair);
    }
}

void shim_group_end(const shim_real *real, ncclResult_t result)
{
    group *g = own.group[real->index];
    int *depth = &own.depth[real->index];
    if (*depth > 0)
        (*depth)--; /* NCCL counts down whatever it returns */
    if (*depth || !g || !g->count)
        return;
    for (int i = 0; i < g->num_lanes; i++) {
        lane *l = &g->lanes[i];
        if (l->pair < 0)
            continue;
        if (result != ncclSuccess)
            shim_timing_cancel(l->pair);
        if (result != ncclSuccess || !shim_timing_end(l->pair, l->stream))
            l->pair = -1;
    }
    if (result == ncclSuccess || result == ncclInProgress)
        group_write(g, brg_now_ns(), result == ncclInProgress);
    group_clear(g);
}

void shim_group_simulated(const shim_real *real)
{
    group *g = own.group[real->index];
    int *depth = &own.depth[real->index];
    if (*depth > 0)
        (*depth)--;
    if (!*depth && g)
        group_clear(g); /* nothing of it will run */
}
