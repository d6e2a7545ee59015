/* SPDX-License-Identifier: Apache-2.0 */
/* The borders of captures and replays:
 *
 *     outstanding work --join--> stream | fork comm_streams ... join them | --leave--> later work
 *
 * Inside of a capture nothing may wait for events that were recorded outside, and the other way
 * round. So before a capture, and before each launch, the stream waits for all that is outstanding,
 * and everything is marked as needing no wait; behind it one event stands for all of it. */
#ifndef BRIGADE_SCHED_BUCKET_GRAPH_H
#define BRIGADE_SCHED_BUCKET_GRAPH_H

#include "sched/bucket/scheduler.h"

#define BRG_MAX_CONTEXTS 3

/* The scheduler's own context, then those of its experts and instances. Returns how many. */
int brg_graph_contexts(const brg_scheduler *sched, brg_context *all[BRG_MAX_CONTEXTS]);

/* `stream` waits for all communication streams. Goes on after errors: a capture cannot be ended
 * before they have joined. */
brg_status brg_graph_join_streams_locked(const brg_scheduler *sched, brg_stream stream);
/* `stream` waits for what owners of groups have on streams of their own. */
brg_status brg_graph_join_owners(const brg_scheduler *sched, brg_stream stream);
/* `stream` waits for everything that the scheduler and its owners have outstanding. */
brg_status brg_graph_join(brg_scheduler *sched, brg_stream stream);

/* After brg_graph_join(), or at the end of a capture: nothing that is issued from now on has to
 * wait. */
void brg_graph_forget(brg_scheduler *sched);

/* Everything that is issued from now on, on any stream, waits for the work now on `stream`. */
brg_status brg_graph_leave(brg_scheduler *sched, brg_stream stream);

#endif
