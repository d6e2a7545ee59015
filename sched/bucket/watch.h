/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: one sleeping thread per context that notices lost peers, failed and stuck
 * collectives, and turns them into the context's asynchronous error, naming the bucket that was
 * under way. */
#ifndef BRIGADE_SCHED_BUCKET_WATCH_H
#define BRIGADE_SCHED_BUCKET_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "brigade/context.h"

typedef struct brg_watchdog brg_watchdog;

/* One thing that may be under way: e.g. the reduction of one bucket group. */
typedef struct brg_watch_slot {
    void *event;                        /* recorded behind it */
    _Atomic uint64_t issued_ns;         /* 0: nothing under way */
    _Atomic uint64_t first_op, last_op; /* numbers of its collectives on the communicator, from 1 */
    char label[160];                    /* "reduce-scatter of bucket 3 (fp32/fp32/dense/lw#3)" */
    struct brg_watch_slot *next;
} brg_watch_slot;

brg_status brg_watchdog_create(brg_context *ctx, double timeout_s, brg_watchdog **watchdog);
void brg_watchdog_destroy(brg_watchdog *watchdog); /* NULL allowed */

/* A slot must be removed before its event is destroyed. */
void brg_watchdog_add(brg_watchdog *watchdog, brg_watch_slot *slot);
void brg_watchdog_remove(brg_watchdog *watchdog, brg_watch_slot *slot);

/* Call after recording slot->event behind collectives number first_op to last_op. Cheap, lock-free.
 */
void brg_watch_issued(brg_watch_slot *slot, uint64_t first_op, uint64_t last_op);

/* Nothing is under way any more; returns when no event is being asked for. */
void brg_watchdog_forget(brg_watchdog *watchdog);

/* Looks for errors of the communicator now, on the caller's thread. Never blocks on the device. */
void brg_watchdog_look(brg_watchdog *watchdog);

#endif
