/* SPDX-License-Identifier: Apache-2.0 */
/* Turns device events into trace records without ever waiting for the device. A stamp is one timing
 * event on a stream; a record refers to two stamps and is written once both have happened.
 * Everything accepts a NULL timeline (no trace) and does nothing then. Any thread. */
#ifndef BRIGADE_SCHED_BUCKET_TIMELINE_H
#define BRIGADE_SCHED_BUCKET_TIMELINE_H

#include "brigade/context.h"
#include "sched/device/device.h"
#include "sched/trace/ring.h"

typedef struct brg_timeline brg_timeline;
typedef struct brg_timeline_graph brg_timeline_graph; /* the records of one captured step */

#define BRG_NO_STAMP (-1)

/* `base_stream` is any stream that may be synchronised with now. */
brg_status brg_timeline_create(const brg_device *device, brg_ring *ring, brg_stream base_stream,
                               brg_timeline **timeline);
void brg_timeline_destroy(brg_timeline *timeline);

/* Puts a timing event on `stream`. The caller holds one reference. BRG_NO_STAMP when the pool is
 * empty (records that need it are counted as dropped). */
int brg_timeline_stamp(brg_timeline *timeline, brg_stream stream);
int brg_timeline_ref(brg_timeline *timeline, int stamp);
void brg_timeline_unref(brg_timeline *timeline, int stamp);

/* Writes *record with t0 and t1 from the stamps, later. Takes over one reference of each. A stamp
 * of BRG_NO_STAMP with a non-zero time in the record means: keep that time. */
void brg_timeline_emit(brg_timeline *timeline, const brg_rec *record, int stamp0, int stamp1);

/* Writes all records whose stamps have happened; with `rebase` >= 0 makes that stamp the new
 * origin, to keep the precision of elapsed times (float milliseconds). */
void brg_timeline_harvest(brg_timeline *timeline, int rebase);

/* Spans begun and ended by stream, for brg_span_begin() and brg_context_mark_begin(). */
void brg_timeline_open_span(brg_timeline *timeline, const brg_rec *record, brg_stream stream);
bool brg_timeline_close_span(brg_timeline *timeline, brg_stream stream); /* false: none was open */

/* The step that records belong to from now on. */
void brg_timeline_set_step(brg_timeline *timeline, uint32_t step);
uint32_t brg_timeline_step(const brg_timeline *timeline);

/* Captured steps (timeline_graph.c). NULL graphs, which go with NULL time lines, are accepted by
 * all. Between capture_begin and capture_end stamps on streams that are being captured become nodes
 * of the graph. */

/* `stream` is not being captured yet. */
brg_status brg_timeline_graph_create(brg_timeline *timeline, brg_stream stream,
                                     brg_timeline_graph **graph);
/* The graph must not be running. */
void brg_timeline_graph_destroy(brg_timeline_graph *graph);
void brg_timeline_capture_begin(brg_timeline *timeline, brg_timeline_graph *graph);
/* All of the capture has joined `stream`. */
brg_status brg_timeline_capture_end(brg_timeline *timeline, brg_stream stream);

/* Call right before and after each launch of the graph on `stream`. The records come out with their
 * step numbers raised by steps_later. The two stamps are those of the capture and become those of
 * this replay, with one reference each. */
brg_status brg_timeline_graph_prepare(brg_timeline_graph *graph, brg_stream stream);
brg_status brg_timeline_graph_launched(brg_timeline_graph *graph, brg_stream stream,
                                       uint32_t steps_later, int *step_stamp, int *end_stamp);

#endif
