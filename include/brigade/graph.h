/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * CUDA graphs: a whole step, captured once and replayed.
 *
 *     brg_graph_capture_begin(sched, stream);
 *     brg_zero_grad(sched, stream); forward, backward with brg_grad_ready() ...
 *     brg_finish_grad_sync(sched, stream);
 *     brg_step(optimizer, stream);
 *     brg_graph_capture_end(sched, stream, &graph);
 *     for (;;) brg_graph_launch(graph, stream);
 *
 * A capture holds one step: one brg_zero_grad() and one brg_finish_grad_sync(), together with the
 * trainer's own work on @p stream and on streams that wait for it and are waited for again. It may
 * begin anywhere between two steps, and ends where it began: everything that it starts also ends in
 * it. In the order above the gathers therefore end with the replay, under the optimizer at most. To
 * have them run under the forward pass, begin with the optimizer:
 *
 *     (one step without brg_step(); then the capture:)
 *     brg_step(optimizer, stream);
 *     brg_zero_grad(sched, stream); forward with brg_param_wait(), backward ...
 *     brg_finish_grad_sync(sched, stream);
 *
 * Nothing of a capture runs before the first launch. Replays and ordinary steps may alternate.
 * Counts of brg_scheduler_bucket() grow with each launch; a learning rate that was set before a
 * launch holds for it. Everything that was given by address (main gradients, the trainer's buffers)
 * must stay where it was. Ranks must capture the same step and launch it at the same point.
 *
 * In a trace, spans of replays carry a flag and device times; of a graph that is launched more than
 * eight steps ahead of the device the older ones are counted as lost.
 */
#ifndef BRIGADE_GRAPH_H
#define BRIGADE_GRAPH_H

#include "brigade/scheduler.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A captured step of one scheduler. */
typedef struct brg_graph brg_graph;

/** Begins a capture on @p stream, after everything that is outstanding. Until brg_graph_capture_end
 * no call may wait for the device, and calls of this scheduler are only made with streams of the
 * capture.
 * @param stream not NULL.
 * @return BRG_ERR_UNSUPPORTED on a device without graphs (host); BRG_ERR_STATE within a step, while
 *         the next step would learn (the first one, after brg_scheduler_relearn()), with
 *         check_grads, or if the context is capturing already. */
BRG_API brg_status brg_graph_capture_begin(brg_scheduler *sched, brg_stream stream);

/** Ends the capture that was begun on @p stream, also when it fails; the scheduler is then where it
 * was before.
 * @param[out] graph destroyed with brg_graph_destroy(); NULL on failure.
 * @return BRG_ERR_STATE if there was no capture, or not exactly one complete step in it;
 *         BRG_ERR_DEVICE if the capture was broken, e.g. by a call that waits for the device. */
BRG_API brg_status brg_graph_capture_end(brg_scheduler *sched, brg_stream stream,
                                         brg_graph **graph);

/** Puts a replay of the step on @p stream, behind everything that is outstanding. What comes next,
 * ordinary or replayed, on whatever stream, follows it. Does not wait for the device.
 * @return BRG_ERR_STATE within a step, during a capture, or if brg_step() is due when it was not at
 *         the capture's beginning, or the other way round. */
BRG_API brg_status brg_graph_launch(brg_graph *graph, brg_stream stream);

/** Waits for outstanding launches and frees the graph; before its scheduler and its optimizers are
 * destroyed. NULL is allowed. */
BRG_API void brg_graph_destroy(brg_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
