/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/bucket/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/bucket/timeline_internal.h"

/* Room for several steps in flight: a step of 100 buckets and 100 compute spans needs about 900. */
#define MAX_STAMPS 16384
#define MAX_PENDING 8192

brg_status brg_timeline_create(const brg_device *device, brg_ring *ring, brg_stream base_stream,
                               brg_timeline **out)
{
    *out = NULL;
    brg_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the trace's time line");
    pthread_mutex_init(&timeline->lock, NULL);
    timeline->device = device;
    timeline->ring = ring;
    timeline->first_free = -1;
    timeline->base_stamp = -1;
    timeline->stamps = calloc(MAX_STAMPS, sizeof *timeline->stamps);
    timeline->pending = calloc(MAX_PENDING, sizeof *timeline->pending);
    brg_status status;
    if (!timeline->stamps || !timeline->pending) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for the trace's time line");
        goto fail;
    }
    const brg_runtime *rt = device->rt;
    BRG_TRY(brg_rt_status(device, rt->event_create(&timeline->base_event, 0), "event_create"),
            fail);
    /* The origin: an event known to have happened between two readings of the host clock. */
    uint64_t before = brg_now_ns();
    BRG_TRY(
        brg_rt_status(device, rt->event_record(timeline->base_event, base_stream), "event_record"),
        fail);
    BRG_TRY(brg_rt_status(device, rt->event_synchronize(timeline->base_event), "event_synchronize"),
            fail);
    uint64_t after = brg_now_ns();
    timeline->base_ns = before + (after - before) / 2;
    *out = timeline;
    return BRG_OK;
fail:
    brg_timeline_destroy(timeline);
    return status;
}

void brg_timeline_destroy(brg_timeline *timeline)
{
    if (!timeline)
        return;
    brg_timeline_harvest(timeline, BRG_NO_STAMP);
    if (timeline->num_pending)
        brg_ring_drop(timeline->ring, (uint64_t)timeline->num_pending);
    const brg_runtime *rt = timeline->device->rt;
    for (int i = 0; i < timeline->num_stamps; i++)
        rt->event_destroy(timeline->stamps[i].event);
    if (timeline->base_event && timeline->base_stamp < 0)
        rt->event_destroy(timeline->base_event);
    pthread_mutex_destroy(&timeline->lock);
    free(timeline->stamps);
    free(timeline->pending);
    free(timeline);
}

/* A stamp with one reference, its event not yet recorded; -1 when the pool is empty. */
int brg_timeline_take_locked(brg_timeline *timeline)
{
    int index = timeline->first_free;
    if (index >= 0) {
        timeline->first_free = timeline->stamps[index].next_free;
    } else {
        if (timeline->num_stamps == MAX_STAMPS)
            return BRG_NO_STAMP;
        stamp *fresh = &timeline->stamps[timeline->num_stamps];
        if (timeline->device->rt->event_create(&fresh->event, 0) != BRG_RT_OK)
            return BRG_NO_STAMP;
        index = timeline->num_stamps++;
    }
    stamp *taken = &timeline->stamps[index];
    taken->refs = 1;
    taken->graph = NULL;
    taken->resolved = taken->lost = false;
    return index;
}

void brg_timeline_unref_locked(brg_timeline *timeline, int index)
{
    if (index < 0 || brg_timeline_is_node(index))
        return;
    stamp *s = &timeline->stamps[index];
    if (--s->refs == 0) {
        s->next_free = timeline->first_free;
        timeline->first_free = index;
    }
}

int brg_timeline_stamp(brg_timeline *timeline, brg_stream stream)
{
    if (!timeline)
        return BRG_NO_STAMP;
    brg_timeline_graph *capture = atomic_load(&timeline->capture);
    int capturing = 0;
    if (capture && timeline->device->rt->stream_is_capturing(stream, &capturing) == BRG_RT_OK &&
        capturing)
        return brg_timeline_graph_stamp(capture, stream);
    pthread_mutex_lock(&timeline->lock);
    int index = brg_timeline_take_locked(timeline);
    void *event = index >= 0 ? timeline->stamps[index].event : NULL;
    pthread_mutex_unlock(&timeline->lock);
    if (index >= 0 && timeline->device->rt->event_record(event, stream) != BRG_RT_OK) {
        brg_timeline_unref(timeline, index);
        index = BRG_NO_STAMP;
    }
    return index;
}

int brg_timeline_ref(brg_timeline *timeline, int index)
{
    if (!timeline || index < 0 || brg_timeline_is_node(index))
        return index;
    pthread_mutex_lock(&timeline->lock);
    timeline->stamps[index].refs++;
    pthread_mutex_unlock(&timeline->lock);
    return index;
}

void brg_timeline_unref(brg_timeline *timeline, int index)
{
    if (!timeline || index < 0 || brg_timeline_is_node(index))
        return;
    pthread_mutex_lock(&timeline->lock);
    brg_timeline_unref_locked(timeline, index);
    pthread_mutex_unlock(&timeline->lock);
}

void brg_timeline_put_locked(brg_timeline *timeline, const brg_rec *record, int stamp0, int stamp1)
{
    bool lost0 = stamp0 < 0 && !record->t0_ns, lost1 = stamp1 < 0 && !record->t1_ns;
    if (lost0 || lost1 || timeline->num_pending == MAX_PENDING) {
        brg_timeline_unref_locked(timeline, stamp0);
        brg_timeline_unref_locked(timeline, stamp1);
        brg_ring_drop(timeline->ring, 1);
    } else {
        timeline->pending[timeline->num_pending++] =
            (pending){.record = *record, .stamp0 = stamp0, .stamp1 = stamp1};
    }
}

void brg_timeline_emit(brg_timeline *timeline, const brg_rec *record, int stamp0, int stamp1)
{
    if (!timeline)
        return;
    pthread_mutex_lock(&timeline->lock);
    if (brg_timeline_is_node(stamp0) || brg_timeline_is_node(stamp1)) {
        brg_timeline_graph_emit(atomic_load(&timeline->capture), record, stamp0, stamp1);
        brg_timeline_unref_locked(timeline, stamp0);
        brg_timeline_unref_locked(timeline, stamp1);
    } else {
        brg_timeline_put_locked(timeline, record, stamp0, stamp1);
    }
    pthread_mutex_unlock(&timeline->lock);
}

bool brg_timeline_resolve_locked(brg_timeline *timeline, int index)
{
    if (index < 0)
        return true;
    stamp *s = &timeline->stamps[index];
    if (s->resolved || s->lost)
        return true;
    if (s->graph) {
        brg_timeline_graph_resolve_locked(timeline, s);
        return s->resolved || s->lost;
    }
    const brg_runtime *rt = timeline->device->rt;
    float ms = 0;
    if (rt->event_query(s->event) != BRG_RT_OK ||
        rt->event_elapsed(&ms, timeline->base_event, s->event) != BRG_RT_OK)
        return false;
    s->ns = (uint64_t)((int64_t)timeline->base_ns + llround((double)ms * 1e6));
    s->resolved = true;
    return true;
}

void brg_timeline_rebase_locked(brg_timeline *timeline, int index)
{
    if (index < 0 || index == timeline->base_stamp || timeline->stamps[index].graph ||
        !brg_timeline_resolve_locked(timeline, index))
        return;
    if (timeline->base_stamp >= 0)
        brg_timeline_unref_locked(timeline, timeline->base_stamp);
    else
        timeline->device->rt->event_destroy(timeline->base_event);
    timeline->stamps[index].refs++;
    timeline->base_stamp = index;
    timeline->base_event = timeline->stamps[index].event;
    timeline->base_ns = timeline->stamps[index].ns;
}

static bool is_lost(const brg_timeline *timeline, int index)
{
    return index >= 0 && timeline->stamps[index].lost;
}

void brg_timeline_harvest(brg_timeline *timeline, int rebase)
{
    if (!timeline)
        return;
    pthread_mutex_lock(&timeline->lock);
    int kept = 0;
    for (int i = 0; i < timeline->num_pending; i++) {
        pending *p = &timeline->pending[i];
        if (!brg_timeline_resolve_locked(timeline, p->stamp0) ||
            !brg_timeline_resolve_locked(timeline, p->stamp1)) {
            timeline->pending[kept++] = *p;
            continue;
        }
        if (p->stamp0 >= 0)
            p->record.t0_ns = timeline->stamps[p->stamp0].ns;
        if (p->stamp1 >= 0)
            p->record.t1_ns = timeline->stamps[p->stamp1].ns;
        if (p->record.t1_ns < p->record.t0_ns) /* two clocks, rounding */
            p->record.t0_ns = p->record.t1_ns;
        if (is_lost(timeline, p->stamp0) || is_lost(timeline, p->stamp1))
            brg_ring_drop(timeline->ring, 1);
        else
            brg_ring_put(timeline->ring, &p->record);
        brg_timeline_unref_locked(timeline, p->stamp0);
        brg_timeline_unref_locked(timeline, p->stamp1);
    }
    timeline->num_pending = kept;
    brg_timeline_rebase_locked(timeline, rebase);
    pthread_mutex_unlock(&timeline->lock);
}

void brg_timeline_open_span(brg_timeline *timeline, const brg_rec *record, brg_stream stream)
{
    if (!timeline)
        return;
    int begin = brg_timeline_stamp(timeline, stream);
    pthread_mutex_lock(&timeline->lock);
    open_span *slot = NULL;
    for (int i = 0; i < MAX_OPEN_SPANS; i++) {
        open_span *s = &timeline->open[i];
        if (s->used && s->stream == stream) { /* begun twice: the first one is lost */
            brg_timeline_unref_locked(timeline, s->stamp0);
            brg_ring_drop(timeline->ring, 1);
            slot = s;
            break;
        }
        if (!s->used && !slot)
            slot = s;
    }
    if (slot) {
        *slot = (open_span){.used = true, .stream = stream, .record = *record, .stamp0 = begin};
        slot->record.step = timeline->step;
    } else {
        brg_timeline_unref_locked(timeline, begin);
        brg_ring_drop(timeline->ring, 1);
    }
    pthread_mutex_unlock(&timeline->lock);
}

bool brg_timeline_close_span(brg_timeline *timeline, brg_stream stream)
{
    if (!timeline)
        return true;
    int end = brg_timeline_stamp(timeline, stream);
    pthread_mutex_lock(&timeline->lock);
    open_span found = {0};
    for (int i = 0; i < MAX_OPEN_SPANS; i++)
        if (timeline->open[i].used && timeline->open[i].stream == stream) {
            found = timeline->open[i];
            timeline->open[i].used = false;
            break;
        }
    pthread_mutex_unlock(&timeline->lock);
    if (!found.used) {
        brg_timeline_unref(timeline, end);
        return false;
    }
    brg_timeline_emit(timeline, &found.record, found.stamp0, end);
    return true;
}

void brg_timeline_set_step(brg_timeline *timeline, uint32_t step)
{
    if (timeline)
        timeline->step = step;
}

uint32_t brg_timeline_step(const brg_timeline *timeline)
{
    return timeline ? timeline->step : 0;
}
