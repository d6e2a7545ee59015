/* SPDX-License-Identifier: Apache-2.0 */
/* The trace in Perfetto's format, for ui.perfetto.dev and its trace_processor: protobuf messages
 * by hand, as https://github.com/google/perfetto/tree/main/protos/perfetto/trace defines them.
 *
 * A process per rank; a track per lane; slices as pairs of begin and end, in the order in which
 * they nest, since the reader sorts by time and keeps the order of what is at one time. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/report_export.h"

enum {
    TRACE_PACKET = 1,

    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACK_DESCRIPTOR = 60,

    EVENT_DEBUG_ANNOTATIONS = 4,
    EVENT_TYPE = 9,
    EVENT_TRACK_UUID = 11,
    EVENT_CATEGORIES = 22,
    EVENT_NAME = 23,
    EVENT_COUNTER_VALUE = 30,
    EVENT_FLOW_IDS = 47,
    EVENT_TERMINATING_FLOW_IDS = 48,

    ANNOTATION_UINT = 3,
    ANNOTATION_STRING = 6,
    ANNOTATION_NAME = 10,

    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT_UUID = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDERING = 11,
    TRACK_SIBLING_ORDER_RANK = 12,

    PROCESS_PID = 1,
    PROCESS_NAME = 6,

    COUNTER_UNIT = 3,
};
enum { SLICE_BEGIN = 1, SLICE_END = 2, COUNTER = 4 };
enum { UNIT_SIZE_BYTES = 3, ORDERING_EXPLICIT = 3, INCREMENTAL_STATE_CLEARED = 1 };
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2 };

typedef struct writer {
    FILE *out;
    const timeline *t;
    uint64_t origin;
    uint32_t rank;
    uint8_t *packet; /* being built */
    size_t size, capacity;
    bool no_memory;
} writer;

/* ---- Protobuf ---- */

static void put_byte(writer *w, uint8_t byte)
{
    if (w->size == w->capacity) {
        size_t capacity = w->capacity ? 2 * w->capacity : 1024;
        uint8_t *packet = realloc(w->packet, capacity);
        if (!packet) {
            w->no_memory = true;
            return;
        }
        w->packet = packet;
        w->capacity = capacity;
    }
    w->packet[w->size++] = byte;
}

static void put_varint(writer *w, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(w, (uint8_t)(value | 0x80));
    put_byte(w, (uint8_t)value);
}

static void put_uint(writer *w, uint32_t field, uint64_t value)
{
    put_varint(w, field << 3 | WIRE_VARINT);
    put_varint(w, value);
}

static void put_fixed64(writer *w, uint32_t field, uint64_t value)
{
    put_varint(w, field << 3 | WIRE_FIXED64);
    for (int i = 0; i < 8; i++)
        put_byte(w, (uint8_t)(value >> 8 * i));
}

static void put_text(writer *w, uint32_t field, const char *text)
{
    put_varint(w, field << 3 | WIRE_BYTES);
    put_varint(w, strlen(text));
    for (; *text; text++)
        put_byte(w, (uint8_t)*text);
}

enum { LENGTH_BYTES = 4 }; /* of a message, as a varint of this many bytes, filled in at its end */

static size_t message_begin(writer *w, uint32_t field)
{
    put_varint(w, field << 3 | WIRE_BYTES);
    for (int i = 0; i < LENGTH_BYTES; i++)
        put_byte(w, 0);
    return w->size;
}

static void message_end(writer *w, size_t begin)
{
    if (w->no_memory)
        return;
    size_t length = w->size - begin;
    for (int i = 0; i < LENGTH_BYTES; i++)
        w->packet[begin - LENGTH_BYTES + (size_t)i] =
            (uint8_t)((length >> 7 * i & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}

static size_t packet_begin(writer *w)
{
    w->size = 0;
    size_t begin = message_begin(w, TRACE_PACKET);
    put_uint(w, PACKET_SEQUENCE_ID, (uint64_t)w->rank + 1);
    return begin;
}

static void packet_end(writer *w, size_t begin)
{
    message_end(w, begin);
    if (!w->no_memory)
        fwrite(w->packet, 1, w->size, w->out);
}

/* ---- Tracks ---- */

/* Unique among all ranks, so that files of several ranks can be put one behind the other. Within a
 * rank: 0 the process, 1 the counter, then the lanes. */
enum { TRACK_IS_PROCESS = 0, TRACK_IS_COUNTER = 1, TRACK_LANES = 2 };

static uint64_t track_uuid(const writer *w, size_t track)
{
    return ((uint64_t)w->rank + 1) << 32 | (uint32_t)track;
}

static void process_put(writer *w)
{
    char name[64];
    snprintf(name, sizeof name, "rank %" PRIu32, w->rank);
    size_t packet = packet_begin(w);
    put_uint(w, PACKET_SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
    size_t track = message_begin(w, PACKET_TRACK_DESCRIPTOR);
    put_uint(w, TRACK_UUID, track_uuid(w, TRACK_IS_PROCESS));
    put_uint(w, TRACK_CHILD_ORDERING, ORDERING_EXPLICIT);
    size_t process = message_begin(w, TRACK_PROCESS);
    /* Process ids of several machines or containers can be equal, and 0 is the idle process. */
    put_uint(w, PROCESS_PID, (uint64_t)w->rank % INT32_MAX + 1);
    put_text(w, PROCESS_NAME, name);
    message_end(w, process);
    message_end(w, track);
    packet_end(w, packet);
}

static void track_put(writer *w, size_t index, const char *name, size_t order)
{
    size_t packet = packet_begin(w);
    size_t track = message_begin(w, PACKET_TRACK_DESCRIPTOR);
    put_uint(w, TRACK_UUID, track_uuid(w, index));
    put_uint(w, TRACK_PARENT_UUID, track_uuid(w, TRACK_IS_PROCESS));
    put_text(w, TRACK_NAME, name);
    put_uint(w, TRACK_SIBLING_ORDER_RANK, order);
    if (index == TRACK_IS_COUNTER) {
        size_t counter = message_begin(w, TRACK_COUNTER);
        put_uint(w, COUNTER_UNIT, UNIT_SIZE_BYTES);
        message_end(w, counter);
    }
    message_end(w, track);
    packet_end(w, packet);
}

static void tracks_put(writer *w)
{
    char name[TIMELINE_TEXT];
    process_put(w);
    for (size_t i = 0; i < w->t->nlanes; i++)
        track_put(w, TRACK_LANES + i, timeline_lane_name(w->t, &w->t->lanes[i], name), i);
    track_put(w, TRACK_IS_COUNTER, "bytes in flight", w->t->nlanes);
}

/* ---- Events ---- */

static size_t event_begin(writer *w, uint64_t t_ns, size_t track, uint32_t type, size_t *packet)
{
    *packet = packet_begin(w);
    put_uint(w, PACKET_TIMESTAMP, t_ns - w->origin);
    size_t event = message_begin(w, PACKET_TRACK_EVENT);
    put_uint(w, EVENT_TYPE, type);
    put_uint(w, EVENT_TRACK_UUID, track_uuid(w, track));
    return event;
}

static void event_end(writer *w, size_t event, size_t packet)
{
    message_end(w, event);
    packet_end(w, packet);
}

static void annotate_uint(writer *w, const char *name, uint64_t value)
{
    size_t annotation = message_begin(w, EVENT_DEBUG_ANNOTATIONS);
    put_text(w, ANNOTATION_NAME, name);
    put_uint(w, ANNOTATION_UINT, value);
    message_end(w, annotation);
}

static void annotate_text(writer *w, const char *name, const char *value)
{
    size_t annotation = message_begin(w, EVENT_DEBUG_ANNOTATIONS);
    put_text(w, ANNOTATION_NAME, name);
    put_text(w, ANNOTATION_STRING, value);
    message_end(w, annotation);
}

static void annotations_put(writer *w, const timeline_slice *slice)
{
    const brg_rec *rec = slice->records[0];
    annotate_uint(w, "step", rec->step);
    if (rec->kind == BRG_REC_COMPUTE && rec->bytes)
        annotate_uint(w, "kernels", rec->bytes);
    if (rec->kind != BRG_REC_COLLECTIVE)
        return;
    annotate_text(w, "function", timeline_func_name(rec->func));
    annotate_uint(w, "bytes", timeline_slice_bytes(slice));
    annotate_uint(w, "communicator", rec->comm);
    if (slice->nrecords > 1)
        annotate_uint(w, "collectives", slice->nrecords);
    else if (rec->bucket != BRG_NO_BUCKET)
        annotate_uint(w, "bucket", rec->bucket);
    if (rec->aux >= w->origin)
        annotate_uint(w, "issued_ns", rec->aux - w->origin);
}

static const char *category(lane_kind kind)
{
    static const char *const names[] = {
        [LANE_STEP] = "step",           [LANE_COMPUTE] = "compute",    [LANE_WAIT] = "wait",
        [LANE_OPTIMIZER] = "optimizer", [LANE_COMM] = "communication", [LANE_BUCKET] = "bucket"};
    return names[kind];
}

/* The first point of this slice or a later one. */
static size_t point_find(const timeline *t, size_t slice)
{
    size_t low = 0, high = t->npoints;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->points[middle].slice < slice)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void slice_begin(writer *w, size_t index)
{
    const timeline *t = w->t;
    const timeline_slice *slice = &t->slices[index];
    char name[TIMELINE_TEXT];
    size_t packet,
        event = event_begin(w, slice->t0_ns, TRACK_LANES + slice->lane, SLICE_BEGIN, &packet);
    put_text(w, EVENT_NAME, timeline_slice_name(t, slice, name));
    put_text(w, EVENT_CATEGORIES, category(slice->kind));
    annotations_put(w, slice);
    for (size_t i = point_find(t, index); i < t->npoints && t->points[i].slice == index; i++)
        put_fixed64(w, t->points[i].last ? EVENT_TERMINATING_FLOW_IDS : EVENT_FLOW_IDS,
                    track_uuid(w, (size_t)t->points[i].flow));
    event_end(w, event, packet);
}

static void slice_end(writer *w, const timeline_slice *slice)
{
    size_t packet,
        event = event_begin(w, slice->t1_ns, TRACK_LANES + slice->lane, SLICE_END, &packet);
    event_end(w, event, packet);
}

/* Begins and ends of one lane as they nest; `open` has room for all its slices. */
static void lane_put(writer *w, const timeline_lane *lane, const timeline_slice **open)
{
    size_t depth = 0;
    for (size_t i = lane->first; i < lane->first + lane->count; i++) {
        while (depth && open[depth - 1]->t1_ns <= w->t->slices[i].t0_ns)
            slice_end(w, open[--depth]);
        slice_begin(w, i);
        open[depth++] = &w->t->slices[i];
    }
    while (depth)
        slice_end(w, open[--depth]);
}

static void counter_put(writer *w, uint64_t t_ns, uint64_t bytes)
{
    size_t packet, event = event_begin(w, t_ns, TRACK_IS_COUNTER, COUNTER, &packet);
    put_uint(w, EVENT_COUNTER_VALUE, bytes);
    event_end(w, event, packet);
}

static brg_status rank_put(writer *w)
{
    const timeline *t = w->t;
    const timeline_slice **open = calloc(t->nslices + 1, sizeof *open);
    if (!open)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its export", t->trace->path);
    tracks_put(w);
    /* Buckets first: their flows begin there, and of what is at one time order decides. */
    for (size_t i = 0; i < t->nlanes; i++)
        if (t->lanes[i].kind == LANE_BUCKET)
            lane_put(w, &t->lanes[i], open);
    for (size_t i = 0; i < t->nlanes; i++)
        if (t->lanes[i].kind != LANE_BUCKET)
            lane_put(w, &t->lanes[i], open);
    for (size_t i = 0; i < t->nin_flight; i++)
        counter_put(w, t->in_flight[i].t_ns, t->in_flight[i].bytes);
    free(open);
    return w->no_memory
               ? brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its export", t->trace->path)
               : BRG_OK;
}

brg_status report_perfetto(const report *r, FILE *out)
{
    brg_status status = BRG_OK;
    writer w = {.out = out, .origin = report_origin(r)};
    for (size_t i = 0; status == BRG_OK && i < r->nranks; i++) {
        timeline t;
        if (!report_exports(r, &r->ranks[i]))
            continue;
        status = timeline_build(report_trace(&r->ranks[i]), 0, UINT64_MAX, &t);
        if (status != BRG_OK)
            break;
        w.t = &t;
        w.rank = r->ranks[i].trace->rank;
        status = rank_put(&w);
        timeline_free(&t);
    }
    free(w.packet);
    return status;
}
