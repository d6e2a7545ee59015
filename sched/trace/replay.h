/* SPDX-License-Identifier: Apache-2.0 */
/* Replays what was recorded with some of the communication made free.
 *
 * The model: one compute timeline, whose stretches of work keep their lengths, and one queue per
 * communication stream. A collective starts at
 *     max(its release point on the compute timeline, end of the one before it in its queue)
 * and the compute timeline goes on at
 *     max(arrival at the wait, end of the collective waited for).
 * One that began long after its queue had become empty was released when it began. One that waited
 * for its queue was released by what it needed: a reduction, when its bucket's last gradient was
 * ready and it had been issued; a gather, when the parameters had been updated (a READY record with
 * func ALL_GATHER says so; without one, the last OPTIMIZER span that ended before it began) and it
 * had been issued; but not before the one ahead of it. Launch and wake-up latencies are not in the
 * model: the difference between the replay of the unchanged recording and the recording shows how
 * much that leaves unexplained. Not modelled either: compute that would run faster if it did not
 * share the machine with communication, and other ranks that would arrive earlier.
 */
#ifndef BRIGADE_SCHED_TRACE_REPLAY_H
#define BRIGADE_SCHED_TRACE_REPLAY_H

#include <stdbool.h>
#include <stddef.h>

#include "sched/trace/ring.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct brg_replay brg_replay;

/* A stretch of the timeline whose length is asked for: a step. */
typedef struct brg_replay_window {
    uint64_t t0_ns, t1_ns;
} brg_replay_window;

/* What is free. */
typedef enum brg_replay_free {
    BRG_REPLAY_NOTHING,
    BRG_REPLAY_BUCKET, /* one bucket's reductions and gathers */
    BRG_REPLAY_ALL,    /* all buckets'; collectives without a bucket stay */
} brg_replay_free;

/* `compute_stream`: collectives on it are part of the timeline, not of a queue; 0: unknown. Records
 * may be in any order; times must be those that the reader lets through. */
brg_status brg_replay_create(const brg_rec *recs, size_t nrecs, uint32_t compute_stream,
                             const brg_replay_window *windows, size_t nwindows,
                             brg_replay **replay);
void brg_replay_destroy(brg_replay *replay);

/* Sets lengths_ns[i] to the length of windows[i]. */
void brg_replay_run(brg_replay *replay, brg_replay_free what, uint32_t bucket, double *lengths_ns);

/* Number of things that one run has to look at. */
size_t brg_replay_events(const brg_replay *replay);
/* Waits of which the collective could be found; the others are taken as compute. */
size_t brg_replay_waits(const brg_replay *replay);

#ifdef __cplusplus
}
#endif
#endif
