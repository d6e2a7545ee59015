/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/replay.h"

#include <stdlib.h>

#include "sched/status.h"

#define NO_OP SIZE_MAX

/* One collective begins this soon after another if it has waited for it: launch and wake-up. */
#define QUEUE_GAP_NS 200000u

/* What a bucket's record is about. */
typedef enum role { ROLE_OTHER, ROLE_REDUCE, ROLE_GATHER } role;

static role role_of(uint8_t func)
{
    switch (func) {
    case BRG_FUNC_ALL_REDUCE:
    case BRG_FUNC_REDUCE_SCATTER:
        return ROLE_REDUCE;
    case BRG_FUNC_ALL_GATHER:
        return ROLE_GATHER;
    default:
        return ROLE_OTHER;
    }
}

/* A moment that belongs to a bucket: its last gradient was ready, or its collective (`op`) began.
 */
typedef struct moment {
    uint32_t bucket;
    role role;
    uint32_t step;
    uint64_t t;
    size_t op;
} moment;

typedef struct member {
    uint32_t bucket;
    uint64_t bytes;
} member;

/* One place in a queue: one collective, or several that were issued as one. */
typedef struct op {
    uint64_t release, t0, t1;
    size_t lane, first_member, nmembers;
} op;

typedef struct wait_on {
    uint64_t t0, t1;
    size_t op;
} wait_on;

typedef struct boundary {
    uint64_t t;
    size_t index; /* 2 * window for its beginning, + 1 for its end */
} boundary;

struct brg_replay {
    op *ops; /* by release; within a lane that is the order of the queue */
    member *members;
    wait_on *waits;
    boundary *boundaries;
    size_t nops, nwaits, nboundaries, nlanes;
    double *op_ends, *lane_ends, *boundary_times; /* of the run in progress */
};

/* Only for building. */
typedef struct builder {
    const brg_rec *recs;
    size_t nrecs;
    const brg_rec **colls; /* by lane and time */
    size_t ncolls;
    moment *readies; /* by bucket, role, step, time */
    size_t nreadies;
    moment *starts; /* by bucket, role, time */
    size_t nstarts;
    uint64_t *updates; /* ends of optimizer spans */
    size_t nupdates;
} builder;

#define COMPARE(a, b)                                                                              \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

/* Collectives queue up behind each other on a stream; where it is unknown, on a communicator. */
static uint64_t lane_of(const brg_rec *rec)
{
    return rec->stream ? rec->stream : UINT64_C(1) << 32 | rec->comm;
}

static int coll_compare(const void *a, const void *b)
{
    const brg_rec *x = *(const brg_rec *const *)a, *y = *(const brg_rec *const *)b;
    COMPARE(lane_of(x), lane_of(y));
    COMPARE(x->t0_ns, y->t0_ns);
    COMPARE(x->t1_ns, y->t1_ns);
    COMPARE(x->seq, y->seq);
    return 0;
}

static int ready_compare(const void *a, const void *b)
{
    const moment *x = a, *y = b;
    COMPARE(x->bucket, y->bucket);
    COMPARE(x->role, y->role);
    COMPARE(x->step, y->step);
    COMPARE(x->t, y->t);
    return 0;
}

static int start_compare(const void *a, const void *b)
{
    const moment *x = a, *y = b;
    COMPARE(x->bucket, y->bucket);
    COMPARE(x->role, y->role);
    COMPARE(x->t, y->t);
    return 0;
}

static int time_compare(const void *a, const void *b)
{
    COMPARE(*(const uint64_t *)a, *(const uint64_t *)b);
    return 0;
}

static int op_compare(const void *a, const void *b)
{
    const op *x = a, *y = b;
    COMPARE(x->release, y->release);
    COMPARE(x->lane, y->lane);
    COMPARE(x->t0, y->t0);
    COMPARE(x->first_member, y->first_member);
    return 0;
}

static int wait_compare(const void *a, const void *b)
{
    const wait_on *x = a, *y = b;
    COMPARE(x->t0, y->t0);
    COMPARE(x->t1, y->t1);
    return 0;
}

static int boundary_compare(const void *a, const void *b)
{
    const boundary *x = a, *y = b;
    COMPARE(x->t, y->t);
    COMPARE(x->index, y->index);
    return 0;
}

/* The last moment that is not after `key`, in an array sorted by `compare`; NULL if there is none.
 */
static const moment *moment_until(const moment *moments, size_t count, const moment *key,
                                  int (*compare)(const void *, const void *))
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&moments[middle], key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    const moment *last = low ? &moments[low - 1] : NULL;
    return last && last->bucket == key->bucket && last->role == key->role ? last : NULL;
}

/* The end of the last update that had ended at `t`; 0: none had. */
static uint64_t update_until(const builder *b, uint64_t t)
{
    size_t low = 0, high = b->nupdates;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (b->updates[middle] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? b->updates[low - 1] : 0;
}

/* When this collective could have begun, had its queue been empty. `queue_end`: when its queue
 * became empty before it. If that was long before, it did not wait for its queue: it began when it
 * could. Otherwise that is told by what it needed; where nothing is known of that, it stays where
 * it was. */
static uint64_t release_of(const builder *b, const brg_rec *rec, uint64_t queue_end)
{
    role kind = role_of(rec->func);
    const moment key = {.bucket = rec->bucket, .role = kind, .step = rec->step, .t = rec->t0_ns};
    const moment *ready = moment_until(b->readies, b->nreadies, &key, ready_compare);
    uint64_t release = 0;
    if (rec->t0_ns > queue_end && rec->t0_ns - queue_end > QUEUE_GAP_NS)
        return rec->t0_ns;
    if (ready && ready->step == rec->step)
        release = ready->t;
    else if (kind == ROLE_GATHER)
        release = update_until(b, rec->t0_ns);
    if (!release)
        return rec->t0_ns;
    if (rec->aux > release)
        release = rec->aux;
    return release < rec->t0_ns ? release : rec->t0_ns;
}

static brg_status builder_init(builder *b, const brg_rec *recs, size_t nrecs,
                               uint32_t compute_stream)
{
    b->recs = recs;
    b->nrecs = nrecs;
    size_t room = nrecs ? nrecs : 1;
    b->colls = calloc(room, sizeof *b->colls);
    b->readies = calloc(room, sizeof *b->readies);
    b->starts = calloc(room, sizeof *b->starts);
    b->updates = calloc(room, sizeof *b->updates);
    if (!b->colls || !b->readies || !b->starts || !b->updates)
        return brg_fail(BRG_ERR_NO_MEMORY, "replay: no memory for %zu records", nrecs);
    for (size_t i = 0; i < nrecs; i++) {
        const brg_rec *rec = &recs[i];
        if (rec->kind == BRG_REC_COLLECTIVE && !(compute_stream && rec->stream == compute_stream))
            b->colls[b->ncolls++] = rec;
        if (rec->kind == BRG_REC_READY)
            b->readies[b->nreadies++] =
                (moment){.bucket = rec->bucket,
                         .role = role_of(rec->func) == ROLE_GATHER ? ROLE_GATHER : ROLE_REDUCE,
                         .step = rec->step,
                         .t = rec->t1_ns};
        if (rec->kind == BRG_REC_OPTIMIZER)
            b->updates[b->nupdates++] = rec->t1_ns;
    }
    qsort(b->colls, b->ncolls, sizeof *b->colls, coll_compare);
    qsort(b->readies, b->nreadies, sizeof *b->readies, ready_compare);
    qsort(b->updates, b->nupdates, sizeof *b->updates, time_compare);
    return BRG_OK;
}

static void builder_free(builder *b)
{
    free(b->colls);
    free(b->readies);
    free(b->starts);
    free(b->updates);
}

static void ops_build(brg_replay *replay, builder *b)
{
    op *last = NULL;
    uint64_t last_lane = 0, queue_end = 0, lane_end = 0;
    for (size_t i = 0; i < b->ncolls; i++) {
        const brg_rec *rec = b->colls[i];
        bool same_lane = last && lane_of(rec) == last_lane;
        bool same_op = same_lane && rec->t0_ns == last->t0 && rec->t1_ns == last->t1;
        if (!same_op)
            queue_end = same_lane ? lane_end : 0;
        uint64_t release = release_of(b, rec, queue_end);
        if (same_op) {
            last->release = release > last->release ? release : last->release;
        } else {
            /* Who is behind another in the queue is not released before him. */
            if (same_lane && last->release > release)
                release = last->release;
            replay->nlanes += !same_lane;
            last = &replay->ops[replay->nops++];
            *last = (op){.release = release,
                         .t0 = rec->t0_ns,
                         .t1 = rec->t1_ns,
                         .lane = replay->nlanes - 1,
                         .first_member = i};
            last_lane = lane_of(rec);
            lane_end = rec->t1_ns > queue_end ? rec->t1_ns : queue_end;
        }
        replay->members[i] = (member){.bucket = rec->bucket, .bytes = rec->bytes};
        last->nmembers++;
    }
    if (replay->nops)
        qsort(replay->ops, replay->nops, sizeof *replay->ops, op_compare);
    for (size_t i = 0; i < replay->nops; i++)
        for (size_t k = 0; k < replay->ops[i].nmembers; k++) {
            const brg_rec *rec = b->colls[replay->ops[i].first_member + k];
            if (rec->bucket != BRG_NO_BUCKET)
                b->starts[b->nstarts++] = (moment){
                    .bucket = rec->bucket, .role = role_of(rec->func), .t = rec->t0_ns, .op = i};
        }
    qsort(b->starts, b->nstarts, sizeof *b->starts, start_compare);
}

/* What a wait waited for: the last collective of that bucket and role that had begun at its end. */
static size_t wait_target(const builder *b, const brg_rec *rec)
{
    const moment *found = NULL;
    for (int kind = ROLE_OTHER; kind <= ROLE_GATHER; kind++) {
        if (rec->func != BRG_FUNC_NONE && role_of(rec->func) != (role)kind)
            continue;
        const moment key = {.bucket = rec->bucket, .role = (role)kind, .t = rec->t1_ns};
        const moment *last = moment_until(b->starts, b->nstarts, &key, start_compare);
        if (last && (!found || last->t > found->t))
            found = last;
    }
    return found ? found->op : NO_OP;
}

static void waits_build(brg_replay *replay, const builder *b)
{
    for (size_t i = 0; i < b->nrecs; i++) {
        const brg_rec *rec = &b->recs[i];
        size_t target = rec->kind == BRG_REC_WAIT ? wait_target(b, rec) : NO_OP;
        if (target != NO_OP)
            replay->waits[replay->nwaits++] =
                (wait_on){.t0 = rec->t0_ns, .t1 = rec->t1_ns, .op = target};
    }
    qsort(replay->waits, replay->nwaits, sizeof *replay->waits, wait_compare);
}

static brg_status replay_alloc(brg_replay *replay, const builder *b, size_t nwindows)
{
    size_t colls = b->ncolls ? b->ncolls : 1, recs = b->nrecs ? b->nrecs : 1;
    size_t boundaries = nwindows ? 2 * nwindows : 1;
    replay->ops = calloc(colls, sizeof *replay->ops);
    replay->members = calloc(colls, sizeof *replay->members);
    replay->waits = calloc(recs, sizeof *replay->waits);
    replay->op_ends = calloc(colls, sizeof *replay->op_ends);
    replay->lane_ends = calloc(colls, sizeof *replay->lane_ends);
    replay->boundaries = calloc(boundaries, sizeof *replay->boundaries);
    replay->boundary_times = calloc(boundaries, sizeof *replay->boundary_times);
    if (!replay->ops || !replay->members || !replay->waits || !replay->op_ends ||
        !replay->lane_ends || !replay->boundaries || !replay->boundary_times)
        return brg_fail(BRG_ERR_NO_MEMORY, "replay: no memory for %zu records", b->nrecs);
    return BRG_OK;
}

brg_status brg_replay_create(const brg_rec *recs, size_t nrecs, uint32_t compute_stream,
                             const brg_replay_window *windows, size_t nwindows, brg_replay **out)
{
    *out = NULL;
    brg_status status;
    builder b = {0};
    brg_replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return brg_fail(BRG_ERR_NO_MEMORY, "replay: no memory");
    BRG_TRY(builder_init(&b, recs, nrecs, compute_stream), out);
    BRG_TRY(replay_alloc(replay, &b, nwindows), out);
    ops_build(replay, &b);
    waits_build(replay, &b);
    for (size_t i = 0; i < nwindows; i++) {
        replay->boundaries[2 * i] = (boundary){.t = windows[i].t0_ns, .index = 2 * i};
        replay->boundaries[2 * i + 1] = (boundary){.t = windows[i].t1_ns, .index = 2 * i + 1};
    }
    replay->nboundaries = 2 * nwindows;
    qsort(replay->boundaries, replay->nboundaries, sizeof *replay->boundaries, boundary_compare);
    *out = replay;
    replay = NULL;
out:
    builder_free(&b);
    brg_replay_destroy(replay);
    return status;
}

void brg_replay_destroy(brg_replay *replay)
{
    if (!replay)
        return;
    free(replay->ops);
    free(replay->members);
    free(replay->waits);
    free(replay->op_ends);
    free(replay->lane_ends);
    free(replay->boundaries);
    free(replay->boundary_times);
    free(replay);
}

/* Where the compute timeline is: recorded time `at` is time `now` of the replay. Recorded times
 * within the last wait are told by the clock of the host, which does not stand still: it began the
 * wait at `wait_at`, which is `wait_now`. Times are counted from `origin`, so that doubles hold
 * them exactly. */
typedef struct cursor {
    uint64_t origin;
    double at, now, wait_at, wait_now;
    brg_replay_free what;
    uint32_t bucket;
    size_t next_op;
} cursor;

static double since(const cursor *cur, uint64_t t)
{
    return t >= cur->origin ? (double)(t - cur->origin) : -(double)(cur->origin - t);
}

static double replayed(const cursor *cur, uint64_t t)
{
    double x = since(cur, t);
    if (x >= cur->at)
        return cur->now + (x - cur->at);
    double inside = cur->wait_now + (x - cur->wait_at);
    return inside < cur->now ? inside : cur->now;
}

static bool is_free(const cursor *cur, uint32_t bucket)
{
    return cur->what == BRG_REPLAY_ALL ? bucket != BRG_NO_BUCKET : bucket == cur->bucket;
}

static double duration(const brg_replay *replay, const op *o, const cursor *cur)
{
    double whole = (double)(o->t1 - o->t0), bytes = 0, freed_bytes = 0;
    size_t freed = 0;
    if (cur->what == BRG_REPLAY_NOTHING)
        return whole;
    for (size_t i = o->first_member; i < o->first_member + o->nmembers; i++) {
        const member *m = &replay->members[i];
        bytes += (double)m->bytes;
        freed_bytes += is_free(cur, m->bucket) ? (double)m->bytes : 0;
        freed += is_free(cur, m->bucket);
    }
    if (freed == 0 || freed == o->nmembers)
        return freed ? 0 : whole;
    return whole * (1 - (bytes > 0 ? freed_bytes / bytes : (double)freed / (double)o->nmembers));
}

static void op_run(brg_replay *replay, cursor *cur)
{
    size_t i = cur->next_op++;
    const op *o = &replay->ops[i];
    double start = replayed(cur, o->release), *lane_end = &replay->lane_ends[o->lane];
    if (*lane_end > start)
        start = *lane_end;
    *lane_end = replay->op_ends[i] = start + duration(replay, o, cur);
}

static void wait_run(brg_replay *replay, cursor *cur, const wait_on *w)
{
    double t0 = since(cur, w->t0), t1 = since(cur, w->t1);
    if (t0 > cur->at) {
        cur->now += t0 - cur->at;
        cur->at = t0;
    }
    cur->wait_at = cur->at;
    cur->wait_now = cur->now;
    /* Issued by the host while the timeline already waits. */
    while (cur->next_op <= w->op)
        op_run(replay, cur);
    if (replay->op_ends[w->op] > cur->now)
        cur->now = replay->op_ends[w->op];
    if (t1 > cur->at)
        cur->at = t1;
}

void brg_replay_run(brg_replay *replay, brg_replay_free what, uint32_t bucket, double *lengths_ns)
{
    if (!replay->nboundaries)
        return;
    cursor cur = {.origin = replay->boundaries[0].t, .what = what, .bucket = bucket};
    const double before_all = -1e300;
    for (size_t i = 0; i < replay->nlanes; i++)
        replay->lane_ends[i] = before_all;
    /* Nothing has happened before the first event. */
    if (replay->nops && since(&cur, replay->ops[0].release) < cur.at)
        cur.at = since(&cur, replay->ops[0].release);
    if (replay->nwaits && since(&cur, replay->waits[0].t0) < cur.at)
        cur.at = since(&cur, replay->waits[0].t0);
    cur.now = cur.wait_at = cur.wait_now = cur.at;
    size_t w = 0, p = 0;
    while (p < replay->nboundaries) {
        uint64_t op_t = cur.next_op < replay->nops ? replay->ops[cur.next_op].release : UINT64_MAX;
        uint64_t wait_t = w < replay->nwaits ? replay->waits[w].t0 : UINT64_MAX;
        const boundary *point = &replay->boundaries[p];
        if (op_t <= point->t && op_t <= wait_t) {
            op_run(replay, &cur);
        } else if (point->t <= wait_t) {
            replay->boundary_times[point->index] = replayed(&cur, point->t);
            p++;
        } else {
            wait_run(replay, &cur, &replay->waits[w++]);
        }
    }
    for (size_t i = 0; i < replay->nboundaries / 2; i++)
        lengths_ns[i] = replay->boundary_times[2 * i + 1] - replay->boundary_times[2 * i];
}

size_t brg_replay_events(const brg_replay *replay)
{
    return replay->nops + replay->nwaits + replay->nboundaries;
}

size_t brg_replay_waits(const brg_replay *replay)
{
    return replay->nwaits;
}
