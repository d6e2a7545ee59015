/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader of the report has to know before he believes its numbers. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/report.h"

/* A replay that misses the recorded step by more than this explains little. */
#define REPLAY_ERROR_WARN 0.1

void report_warn(report *r, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    char **grown = length < 0 ? NULL : reallocarray(r->warnings, r->nwarnings + 1, sizeof *grown);
    if (!grown) {
        if (length >= 0)
            free(text);
        return;
    }
    r->warnings = grown;
    grown[r->nwarnings++] = text;
}

static const brg_bucket_report *bucket_find(const brg_rank_report *data, uint32_t id)
{
    size_t low = 0, high = data->nbuckets;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (data->buckets[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < data->nbuckets && data->buckets[low].id == id ? &data->buckets[low] : NULL;
}

report_count report_count_of(const report *r, uint32_t bucket, report_func func)
{
    report_count count = {.min = UINT64_MAX};
    for (size_t i = 0; i < r->nranks; i++) {
        const brg_rank_report *data = &r->ranks[i].data;
        if (!r->ranks[i].usable)
            continue;
        const brg_bucket_report *b = bucket_find(data, bucket);
        brg_step_count c = {0};
        if (b)
            c = func == REPORT_REDUCE_SCATTERS ? b->reduce_scatters
                : func == REPORT_ALL_GATHERS   ? b->all_gathers
                                               : b->all_reduces;
        count.min = c.min < count.min ? c.min : count.min;
        count.max = c.max > count.max ? c.max : count.max;
        count.total += c.total;
        count.steps += data->steps_used;
    }
    if (count.min == UINT64_MAX)
        count.min = 0;
    return count;
}

/* "1, 4-6" for the ranks of which there is no file. */
static void missing_list(const report *r, char *text, size_t size)
{
    size_t used = 0, next = 0;
    text[0] = '\0';
    for (uint64_t from = 0; from < r->world && used + 32 < size;) {
        uint64_t to = next < r->nranks ? r->ranks[next].trace->rank : r->world;
        if (to > from + 1)
            used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64 "-%" PRIu64,
                                     used ? ", " : "", from, to - 1);
        else if (to > from)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%" PRIu64, used ? ", " : "", from);
        from = to + 1;
        next++;
    }
}

static void warn_of_ranks(report *r)
{
    if (r->nranks < r->world) {
        char text[200];
        missing_list(r, text, sizeof text);
        report_warn(r, "%u of %u ranks have no trace here: %s", r->world - (uint32_t)r->nranks,
                    r->world, text);
    }
    for (size_t i = 0; i < r->nranks; i++) {
        const brg_trace *trace = r->ranks[i].trace;
        char how[64];
        if (!trace->closed)
            report_warn(r, "rank %u: the trace has no end (%s)%s", trace->rank,
                        report_end_how(r, trace->rank, how),
                        r->ranks[i].data.steps_incomplete ? "; its last step is left out" : "");
        uint64_t lost = brg_trace_lost(trace) - trace->overwritten;
        if (lost)
            report_warn(r, "rank %u: %" PRIu64 " records are lost: what they said is missing here",
                        trace->rank, lost);
        if (trace->overwritten)
            report_warn(r,
                        "rank %u: the ring was too short for the run: the oldest %" PRIu64
                        " of %" PRIu64
                        " records were overwritten; brigade run --records keeps more",
                        trace->rank, trace->overwritten, trace->written);
        if (trace->description_drops)
            report_warn(r, "rank %u: %u descriptions did not fit: some names are missing",
                        trace->rank, trace->description_drops);
        if (r->ranks[i].usable && r->ranks[i].data.steps_used != r->shown->data.steps_used)
            report_warn(r, "rank %u: %u steps are used, of rank %u %u", trace->rank,
                        r->ranks[i].data.steps_used, r->shown->trace->rank,
                        r->shown->data.steps_used);
    }
}

static void warn_of_count(report *r, const brg_bucket_report *bucket, report_func func,
                          const char *what)
{
    report_count count = report_count_of(r, bucket->id, func);
    if (count.min != count.max)
        report_warn(r,
                    "bucket %u%s%s: %s per step are not constant: %" PRIu64 " to %" PRIu64
                    " over %" PRIu64 " steps",
                    bucket->id, bucket->described ? " " : "", bucket->meta.name, what, count.min,
                    count.max, count.steps);
}

static void warn_of_steps(report *r, uint32_t rank, uint32_t count, const char *which)
{
    if (count)
        report_warn(r, "rank %u: %u step%s %s %s left out", rank, count, count > 1 ? "s" : "",
                    which, count > 1 ? "are" : "is");
}

/* What was not recognised, and why. */
static void warn_of_recognition(report *r, const report_rank *rank)
{
    const brg_recognition *g = rank->data.recognition;
    uint32_t id = rank->trace->rank;
    if (!g)
        return;
    uint64_t placed = g->recognised + g->unfinished;
    double missed = 100.0 - 100.0 * (double)placed / (double)g->collectives;
    if (g->early && !rank->trace->overwritten)
        report_warn(r,
                    "rank %u: %" PRIu64
                    " reduction%s before the first whole step left out (DDP makes "
                    "its buckets anew)",
                    id, g->early, g->early > 1 ? "s" : "");
    warn_of_steps(r, id, g->steps_unlike, "with other gathers than most (evaluation)");
    warn_of_steps(r, id, g->steps_lossy, "of which records are missing");
    warn_of_steps(r, id, g->steps_untimed, "of which device times are missing");
    if (missed >= 0.05)
        report_warn(r,
                    "rank %u: %.1f%% of the collectives of communicator %u are in no recognised "
                    "step",
                    id, missed, g->comm.comm);
    if (g->untimed)
        report_warn(
            r, "rank %u: %" PRIu64 " collectives have no device times: only their calls are known",
            id, g->untimed);
    if (g->captured)
        report_warn(
            r, "rank %u: %" PRIu64 " collectives went into CUDA graphs: their replays are not seen",
            id, g->captured);
}

static void warn_of_kernels(report *r, const report_rank *rank)
{
    const char *why = brg_trace_info_get(rank->trace, "kernels_missing");
    if (why)
        report_warn(r, "rank %u: no kernels are recorded: %s", rank->trace->rank, why);
    if (rank->usable && rank->data.steps_without_compute)
        report_warn(r,
                    "rank %u: %u of %u steps have no kernels and are left out of what is said of "
                    "compute (another profiler?)",
                    rank->trace->rank, rank->data.steps_without_compute, rank->data.steps_used);
}

static void warn_of_costs(report *r)
{
    const brg_rank_report *data = &r->shown->data;
    if (data->recognition) {
        if (r->arrivals.unlike)
            report_warn(r, "%" PRIu64 " collectives of the same number differ between ranks",
                        r->arrivals.unlike);
        return;
    }
    if (!data->compute_recorded)
        report_warn(r, "no compute spans are recorded: compute is the step less its waits");
    if (!data->waits_recorded)
        report_warn(r, "no waits are recorded: what a bucket costs is unknown");
    else if (data->replay_error.median > REPLAY_ERROR_WARN)
        report_warn(
            r, "the replay misses the recorded step by %.0f%%: take what buckets cost with care",
            100 * data->replay_error.median);
}

void report_warn_all(report *r)
{
    const brg_rank_report *data = &r->shown->data;
    char ends[512];
    if (report_ends_text(r, ends, sizeof ends)[0])
        report_warn(r, "%s", ends);
    warn_of_ranks(r);
    warn_of_recognition(r, r->shown);
    for (size_t i = 0; i < r->nranks; i++)
        warn_of_kernels(r, &r->ranks[i]);
    warn_of_costs(r);
    for (size_t i = 0; i < data->nbuckets; i++) {
        warn_of_count(r, &data->buckets[i], REPORT_REDUCE_SCATTERS, "reduce-scatters");
        warn_of_count(r, &data->buckets[i], REPORT_ALL_GATHERS, "all-gathers");
        warn_of_count(r, &data->buckets[i], REPORT_ALL_REDUCES, "all-reduces");
    }
}
