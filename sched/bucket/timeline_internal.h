/* SPDX-License-Identifier: Apache-2.0 */
/* What timeline.c and timeline_graph.c share. */
#ifndef BRIGADE_SCHED_BUCKET_TIMELINE_INTERNAL_H
#define BRIGADE_SCHED_BUCKET_TIMELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "sched/bucket/timeline.h"

#define MAX_OPEN_SPANS 16

/* A moment on a stream: its own event's, or that of a stamp node in one replay of a graph. */
typedef struct stamp {
    void *event;
    brg_timeline_graph *graph; /* NULL: the event's */
    uint64_t replay;           /* of the graph, from 0 */
    int node;                  /* of the graph's stamps */
    int refs;
    bool resolved, lost; /* lost: its time will never be known */
    uint64_t ns;
    int next_free;
} stamp;

typedef struct pending {
    brg_rec record;
    int stamp0, stamp1;
} pending;

typedef struct open_span {
    bool used;
    brg_stream stream;
    brg_rec record;
    int stamp0;
} open_span;

struct brg_timeline {
    const brg_device *device;
    brg_ring *ring;
    pthread_mutex_t lock;
    stamp *stamps;
    int num_stamps, first_free;
    pending *pending;
    int num_pending;
    open_span open[MAX_OPEN_SPANS];
    void *base_event; /* owned unless it is a stamp's */
    int base_stamp;   /* -1: base_event is owned */
    uint64_t base_ns;
    _Atomic uint32_t step;
    _Atomic(brg_timeline_graph *) capture; /* being captured; NULL: none */
};

/* timeline.c */
int brg_timeline_take_locked(brg_timeline *timeline);
void brg_timeline_unref_locked(brg_timeline *timeline, int index);
/* Whether the stamp's time is known, or known to be lost; asks the device if need be. */
bool brg_timeline_resolve_locked(brg_timeline *timeline, int index);
/* Makes an event's stamp that has happened the new origin. */
void brg_timeline_rebase_locked(brg_timeline *timeline, int index);
/* As brg_timeline_emit(); takes over one reference of each stamp. */
void brg_timeline_put_locked(brg_timeline *timeline, const brg_rec *record, int stamp0, int stamp1);

/* timeline_graph.c. Stamps of a capture are nodes, not moments: they have numbers of their own,
 * from BRG_NODE_STAMP on, and no references. */
#define BRG_NODE_STAMP 0x40000000
static inline bool brg_timeline_is_node(int index)
{
    return index >= BRG_NODE_STAMP;
}
/* A stamp on a stream that is being captured. */
int brg_timeline_graph_stamp(brg_timeline_graph *graph, brg_stream stream);
/* A record of the capture, to be emitted for each replay. */
void brg_timeline_graph_emit(brg_timeline_graph *graph, const brg_rec *record, int stamp0,
                             int stamp1);
/* Asks the device for the time of a stamp of a replay; sets resolved or lost. */
void brg_timeline_graph_resolve_locked(brg_timeline *timeline, stamp *s);

#endif
