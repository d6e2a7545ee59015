/* SPDX-License-Identifier: Apache-2.0 */
/* What the lanes and slices of a timeline are called. */
#include <inttypes.h>
#include <stdio.h>

#include "brigade/context.h"
#include "tools/brigade/cli.h"
#include "tools/brigade/report_timeline.h"

const char *timeline_func_name(uint8_t func)
{
    static const char *const names[] = {
        [BRG_FUNC_NONE] = "Collective",
        [BRG_FUNC_ALL_REDUCE] = "AllReduce",
        [BRG_FUNC_REDUCE_SCATTER] = "ReduceScatter",
        [BRG_FUNC_ALL_GATHER] = "AllGather",
        [BRG_FUNC_BROADCAST] = "Broadcast",
        [BRG_FUNC_REDUCE] = "Reduce",
        [BRG_FUNC_SEND] = "Send",
        [BRG_FUNC_RECV] = "Recv",
        [BRG_FUNC_ALL_TO_ALL] = "AllToAll",
    };
    return func < sizeof names / sizeof *names ? names[func] : names[BRG_FUNC_NONE];
}

uint64_t timeline_slice_bytes(const timeline_slice *slice)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < slice->nrecords; i++)
        bytes += slice->records[i]->bytes;
    return bytes;
}

const char *timeline_lane_name(const timeline *t, const timeline_lane *lane,
                               char buffer[TIMELINE_TEXT])
{
    char copy[16] = "", name[80] = "";
    if (lane->copy)
        snprintf(copy, sizeof copy, " (%" PRIu32 ")", lane->copy + 1);
    const brg_meta_bucket *meta = brg_trace_bucket_get(t->trace, lane->id);
    switch (lane->kind) {
    case LANE_STEP:
        snprintf(buffer, TIMELINE_TEXT, "steps%s", copy);
        break;
    case LANE_COMPUTE:
        snprintf(buffer, TIMELINE_TEXT, "compute, stream %" PRIu32 "%s", lane->id, copy);
        break;
    case LANE_WAIT:
        snprintf(buffer, TIMELINE_TEXT, "waits, stream %" PRIu32 "%s", lane->id, copy);
        break;
    case LANE_OPTIMIZER:
        snprintf(buffer, TIMELINE_TEXT, "optimizer%s", copy);
        break;
    case LANE_COMM:
        snprintf(buffer, TIMELINE_TEXT, "communication, stream %" PRIu32 "%s", lane->id, copy);
        break;
    case LANE_BUCKET:
        if (lane->id == BRG_NO_BUCKET)
            snprintf(buffer, TIMELINE_TEXT, "no bucket%s", copy);
        else
            snprintf(buffer, TIMELINE_TEXT, "bucket %" PRIu32 "%s%s%s", lane->id, meta ? " " : "",
                     meta ? cli_label(name, sizeof name, meta->name) : "", copy);
        break;
    }
    return buffer;
}

/* "ReduceScatter #3", "AllGather x4". */
static void collective_name(const timeline_slice *slice, char buffer[TIMELINE_TEXT])
{
    const brg_rec *rec = slice->records[0];
    const char *func = timeline_func_name(rec->func);
    if (slice->nrecords > 1)
        snprintf(buffer, TIMELINE_TEXT, "%s x%zu", func, slice->nrecords);
    else if (rec->bucket == BRG_NO_BUCKET)
        snprintf(buffer, TIMELINE_TEXT, "%s", func);
    else
        snprintf(buffer, TIMELINE_TEXT, "%s #%" PRIu32, func, rec->bucket);
}

const char *timeline_slice_name(const timeline *t, const timeline_slice *slice,
                                char buffer[TIMELINE_TEXT])
{
    static const char *const kinds[] = {
        [BRG_COMPUTE_FORWARD] = "forward",
        [BRG_COMPUTE_BACKWARD] = "backward",
        [BRG_COMPUTE_OTHER] = "compute",
    };
    const brg_rec *rec = slice->records[0];
    bool named = rec->aux && rec->aux < t->trace->nnames;
    switch (rec->kind) {
    case BRG_REC_STEP:
        snprintf(buffer, TIMELINE_TEXT, "step %" PRIu32, rec->step);
        break;
    case BRG_REC_COMPUTE:
        if (named)
            cli_label(buffer, TIMELINE_TEXT, brg_trace_name(t->trace, rec->aux));
        else
            snprintf(buffer, TIMELINE_TEXT, "%s",
                     rec->flags < sizeof kinds / sizeof *kinds && kinds[rec->flags]
                         ? kinds[rec->flags]
                         : kinds[BRG_COMPUTE_OTHER]);
        break;
    case BRG_REC_OPTIMIZER:
        cli_label(buffer, TIMELINE_TEXT, named ? brg_trace_name(t->trace, rec->aux) : "optimizer");
        break;
    case BRG_REC_NORM:
        snprintf(buffer, TIMELINE_TEXT, "gradient norm");
        break;
    case BRG_REC_READY:
        snprintf(buffer, TIMELINE_TEXT, "gradients #%" PRIu32, rec->bucket);
        break;
    case BRG_REC_WAIT:
        if (rec->bucket == BRG_NO_BUCKET)
            snprintf(buffer, TIMELINE_TEXT, "wait");
        else
            snprintf(buffer, TIMELINE_TEXT, "wait for %s #%" PRIu32, timeline_func_name(rec->func),
                     rec->bucket);
        break;
    default:
        collective_name(slice, buffer);
        break;
    }
    return buffer;
}
