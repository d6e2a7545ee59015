/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of captured steps. Events of a graph have no times, so a stamp in a capture is a node
 * that writes the device clock into page-locked memory:
 *
 *     slots[replay % RING][node]     the last stamp of a replay moves on to the next row
 *
 * What the capture emits is kept and emitted again for each replay, with moments of that replay
 * instead of nodes. A moment is known once the event behind its replay has happened; it is lost
 * when its row has been given to a later replay before that. Device clock and trace clock are
 * brought together by a stamp and an event side by side on the stream, now and then. */
#include <stdlib.h>
#include <string.h>

#include "sched/bucket/timeline_internal.h"

#define RING 8
#define MAX_NODES 4096
#define CLOCK_EVERY 256 /* replays */

typedef struct captured {
    brg_rec record;
    int node0, node1;
} captured;

struct brg_timeline_graph {
    brg_timeline *timeline;
    uint64_t *slots;   /* page-locked: RING rows of MAX_NODES, then one for the clock */
    uint64_t *counter; /* device memory: replays that have run */
    int num_nodes;     /* under the time line's lock, as all that follows */
    captured *records;
    int num_records, max_records;
    int moments[MAX_NODES]; /* scratch: each node's stamp in the replay being launched */

    uint64_t launches;
    uint64_t row_replay[RING]; /* which replay has the row */
    void *row_done[RING];      /* event behind it */

    int clock_stamp; /* event beside the clock's slot; BRG_NO_STAMP: offset_ns is up to date */
    bool clock_known;
    int64_t offset_ns; /* trace clock less device clock */
};

/* Puts the two clocks side by side on `stream`, which is not being captured. */
static brg_status read_clocks(brg_timeline_graph *graph, brg_stream stream)
{
    brg_timeline *timeline = graph->timeline;
    brg_status status =
        brg_rt_status(timeline->device,
                      timeline->device->kernels->stamp(graph->slots + (size_t)RING * MAX_NODES,
                                                       graph->counter, 1, 1, 0, 0, stream),
                      "stamp");
    if (status == BRG_OK)
        graph->clock_stamp = brg_timeline_stamp(timeline, stream);
    return status;
}

brg_status brg_timeline_graph_create(brg_timeline *timeline, brg_stream stream,
                                     brg_timeline_graph **out)
{
    *out = NULL;
    if (!timeline)
        return BRG_OK;
    brg_timeline_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the trace of a graph");
    const brg_device *device = timeline->device;
    const brg_runtime *rt = device->rt;
    size_t bytes = ((size_t)RING * MAX_NODES + 1) * sizeof *graph->slots;
    graph->timeline = timeline;
    graph->clock_stamp = BRG_NO_STAMP;
    brg_status status;
    BRG_TRY(brg_rt_status(device, rt->malloc_host((void **)&graph->slots, bytes), "malloc_host"),
            fail);
    BRG_TRY(brg_rt_status(device,
                          rt->malloc_device((void **)&graph->counter, sizeof *graph->counter),
                          "malloc_device"),
            fail);
    BRG_TRY(brg_rt_status(device,
                          rt->memset_async(graph->counter, 0, sizeof *graph->counter, stream),
                          "memset_async"),
            fail);
    for (int row = 0; row < RING; row++)
        BRG_TRY(brg_rt_status(device,
                              rt->event_create(&graph->row_done[row], BRG_EVENT_DISABLE_TIMING),
                              "event_create"),
                fail);
    BRG_TRY(read_clocks(graph, stream), fail);
    *out = graph;
    return BRG_OK;
fail:
    brg_timeline_graph_destroy(graph);
    return status;
}

/* Every moment of the graph gets its time or is lost. */
static void settle_moments(brg_timeline_graph *graph)
{
    brg_timeline *timeline = graph->timeline;
    pthread_mutex_lock(&timeline->lock);
    for (int i = 0; i < timeline->num_stamps; i++) {
        stamp *s = &timeline->stamps[i];
        if (s->graph != graph)
            continue;
        brg_timeline_resolve_locked(timeline, i);
        s->lost = !s->resolved;
        s->graph = NULL;
    }
    brg_timeline_unref_locked(timeline, graph->clock_stamp);
    pthread_mutex_unlock(&timeline->lock);
}

void brg_timeline_graph_destroy(brg_timeline_graph *graph)
{
    if (!graph)
        return;
    const brg_runtime *rt = graph->timeline->device->rt;
    settle_moments(graph);
    for (int row = 0; row < RING; row++)
        if (graph->row_done[row])
            rt->event_destroy(graph->row_done[row]);
    rt->free_host(graph->slots);
    rt->free_device(graph->counter);
    free(graph->records);
    free(graph);
}

/* Capturing */

void brg_timeline_capture_begin(brg_timeline *timeline, brg_timeline_graph *graph)
{
    if (timeline)
        atomic_store(&timeline->capture, graph);
}

brg_status brg_timeline_capture_end(brg_timeline *timeline, brg_stream stream)
{
    if (!timeline)
        return BRG_OK;
    brg_timeline_graph *graph = atomic_exchange(&timeline->capture, NULL);
    return brg_rt_status(timeline->device,
                         timeline->device->kernels->stamp(graph->slots, graph->counter, RING,
                                                          MAX_NODES, MAX_NODES - 1, 1, stream),
                         "stamp");
}

int brg_timeline_graph_stamp(brg_timeline_graph *graph, brg_stream stream)
{
    brg_timeline *timeline = graph->timeline;
    pthread_mutex_lock(&timeline->lock);
    int node = graph->num_nodes;
    if (node < MAX_NODES - 1) /* the last one ends the replay */
        graph->num_nodes++;
    pthread_mutex_unlock(&timeline->lock);
    if (node == MAX_NODES - 1 ||
        timeline->device->kernels->stamp(graph->slots, graph->counter, RING, MAX_NODES,
                                         (uint32_t)node, 0, stream) != BRG_RT_OK)
        return BRG_NO_STAMP;
    return BRG_NODE_STAMP + node;
}

/* Called under the time line's lock. A span that began before the capture is given up: it has no
 * counterpart in replays. Times of the host's are those of the capture, not of a replay: a bucket's
 * first gradient counts as ready with its last one, and when a collective was issued is unknown. */
void brg_timeline_graph_emit(brg_timeline_graph *graph, const brg_rec *record, int stamp0,
                             int stamp1)
{
    if (stamp0 < 0 && record->kind == BRG_REC_READY)
        stamp0 = stamp1;
    if (!graph || !brg_timeline_is_node(stamp0) || !brg_timeline_is_node(stamp1))
        return brg_ring_drop(graph ? graph->timeline->ring : NULL, 1);
    if (graph->num_records == graph->max_records) {
        int room = graph->max_records ? 2 * graph->max_records : 256;
        captured *records = realloc(graph->records, (size_t)room * sizeof *records);
        if (!records)
            return brg_ring_drop(graph->timeline->ring, 1);
        graph->records = records;
        graph->max_records = room;
    }
    captured *kept = &graph->records[graph->num_records++];
    *kept = (captured){
        .record = *record, .node0 = stamp0 - BRG_NODE_STAMP, .node1 = stamp1 - BRG_NODE_STAMP};
    kept->record.t0_ns = kept->record.t1_ns = 0;
    kept->record.flags |= BRG_REC_GRAPH;
    if (record->kind == BRG_REC_COLLECTIVE)
        kept->record.aux = 0;
}

/* Replaying */

brg_status brg_timeline_graph_prepare(brg_timeline_graph *graph, brg_stream stream)
{
    if (!graph)
        return BRG_OK;
    brg_timeline *timeline = graph->timeline;
    brg_timeline_harvest(timeline, BRG_NO_STAMP);
    pthread_mutex_lock(&timeline->lock);
    graph->row_replay[graph->launches % RING] = graph->launches;
    bool due = graph->clock_known && graph->clock_stamp < 0 && graph->launches % CLOCK_EVERY == 0;
    pthread_mutex_unlock(&timeline->lock);
    return due ? read_clocks(graph, stream) : BRG_OK;
}

/* The node's stamp in the replay being launched, with a reference for the caller. */
static int moment_locked(brg_timeline_graph *graph, int node)
{
    brg_timeline *timeline = graph->timeline;
    int *moment = &graph->moments[node];
    if (*moment < 0) {
        *moment = brg_timeline_take_locked(timeline);
        if (*moment < 0)
            return BRG_NO_STAMP;
        stamp *taken = &timeline->stamps[*moment];
        taken->graph = graph;
        taken->replay = graph->launches;
        taken->node = node;
    } else {
        timeline->stamps[*moment].refs++;
    }
    return *moment;
}

static int named_moment_locked(brg_timeline_graph *graph, int index)
{
    return brg_timeline_is_node(index) ? moment_locked(graph, index - BRG_NODE_STAMP)
                                       : BRG_NO_STAMP;
}

brg_status brg_timeline_graph_launched(brg_timeline_graph *graph, brg_stream stream,
                                       uint32_t steps_later, int *step_stamp, int *end_stamp)
{
    if (!graph)
        return BRG_OK;
    brg_timeline *timeline = graph->timeline;
    const brg_runtime *rt = timeline->device->rt;
    brg_status status = brg_rt_status(
        timeline->device, rt->event_record(graph->row_done[graph->launches % RING], stream),
        "event_record");
    if (status != BRG_OK)
        return status;
    pthread_mutex_lock(&timeline->lock);
    memset(graph->moments, 0xff, sizeof graph->moments); /* BRG_NO_STAMP */
    for (int i = 0; i < graph->num_records; i++) {
        const captured *kept = &graph->records[i];
        brg_rec record = kept->record;
        record.step += steps_later;
        int stamp0 = moment_locked(graph, kept->node0);
        brg_timeline_put_locked(timeline, &record, stamp0, moment_locked(graph, kept->node1));
    }
    *step_stamp = named_moment_locked(graph, *step_stamp);
    *end_stamp = named_moment_locked(graph, *end_stamp);
    graph->launches++;
    pthread_mutex_unlock(&timeline->lock);
    return BRG_OK;
}

/* Whether the offset between the clocks is known; renews it if there is news. */
static bool know_clock_locked(brg_timeline_graph *graph)
{
    brg_timeline *timeline = graph->timeline;
    int index = graph->clock_stamp;
    if (index >= 0 && brg_timeline_resolve_locked(timeline, index)) {
        graph->offset_ns =
            (int64_t)(timeline->stamps[index].ns - graph->slots[(size_t)RING * MAX_NODES]);
        graph->clock_known = true;
        brg_timeline_rebase_locked(timeline, index);
        brg_timeline_unref_locked(timeline, index);
        graph->clock_stamp = BRG_NO_STAMP;
    }
    return graph->clock_known;
}

void brg_timeline_graph_resolve_locked(brg_timeline *timeline, stamp *s)
{
    brg_timeline_graph *graph = s->graph;
    uint64_t row = s->replay % RING;
    if (graph->row_replay[row] != s->replay) {
        s->lost = true;
        return;
    }
    if (timeline->device->rt->event_query(graph->row_done[row]) != BRG_RT_OK ||
        !know_clock_locked(graph))
        return;
    s->ns = graph->slots[row * MAX_NODES + (uint64_t)s->node] + (uint64_t)graph->offset_ns;
    s->resolved = true;
}
