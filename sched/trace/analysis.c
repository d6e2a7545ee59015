/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/trace/analysis.h"

#include <stdlib.h>

#include "brigade/context.h"
#include "sched/trace/analysis_internal.h"

static void bucket_fill(brg_analysis *a, brg_bucket_report *bucket)
{
    brg_samples *s = &a->samples;
    uint64_t key = brg_key(KEY_BUCKET, bucket->id), nsteps = a->end - a->first;
    const struct {
        brg_stat *stat;
        brg_metric metric;
        brg_fold fold;
        uint64_t nsteps; /* 0: steps without it do not count */
    } by_step[] = {
        {&bucket->ready, M_READY, BRG_FOLD_MAX, 0},
        {&bucket->reduce_issued, M_REDUCE_ISSUED, BRG_FOLD_MIN, 0},
        {&bucket->reduce_start, M_REDUCE_START, BRG_FOLD_MIN, 0},
        {&bucket->reduce_end, M_REDUCE_END, BRG_FOLD_MAX, 0},
        {&bucket->reduce_time, M_REDUCE_TIME, BRG_FOLD_SUM, 0},
        {&bucket->reduce_wait, M_REDUCE_WAIT, BRG_FOLD_SUM, nsteps},
        {&bucket->gather_issued, M_GATHER_ISSUED, BRG_FOLD_MIN, 0},
        {&bucket->gather_start, M_GATHER_START, BRG_FOLD_MIN, 0},
        {&bucket->gather_end, M_GATHER_END, BRG_FOLD_MAX, 0},
        {&bucket->gather_time, M_GATHER_TIME, BRG_FOLD_SUM, 0},
        {&bucket->gather_wait, M_GATHER_WAIT, BRG_FOLD_SUM, nsteps},
        {&bucket->wait, M_WAIT, BRG_FOLD_SUM, nsteps},
        {&bucket->exposed, M_EXPOSED, BRG_FOLD_SUM, 0},
    };
    for (size_t i = 0; i < sizeof by_step / sizeof *by_step; i++)
        *by_step[i].stat =
            brg_samples_stat_by_step(s, key, by_step[i].metric, by_step[i].fold, by_step[i].nsteps);
    bucket->reduce_busbw = brg_samples_stat(s, key, M_REDUCE_BUSBW);
    bucket->gather_busbw = brg_samples_stat(s, key, M_GATHER_BUSBW);
    bucket->reduce_group = brg_samples_stat(s, key, M_REDUCE_GROUP);
    bucket->gather_group = brg_samples_stat(s, key, M_GATHER_GROUP);
    bucket->reduce_scatters = brg_samples_count(s, key, M_REDUCE_SCATTERS, nsteps);
    bucket->all_gathers = brg_samples_count(s, key, M_ALL_GATHERS, nsteps);
    bucket->all_reduces = brg_samples_count(s, key, M_ALL_REDUCES, nsteps);
}

static brg_status named_add(brg_analysis *a, brg_named_report **list, size_t *count,
                            const char *name, uint64_t key)
{
    brg_stat time =
        brg_samples_stat_by_step(&a->samples, key, M_TIME, BRG_FOLD_SUM, a->end - a->first);
    brg_named_report *grown = reallocarray(*list, *count + 1, sizeof *grown);
    if (!grown)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for \"%s\"", a->trace->path, name);
    *list = grown;
    grown[(*count)++] = (brg_named_report){.name = name, .time = time};
    return BRG_OK;
}

static brg_status named_fill(brg_analysis *a)
{
    static const char *const kinds[] = {
        [BRG_COMPUTE_FORWARD] = "forward",
        [BRG_COMPUTE_BACKWARD] = "backward",
        [BRG_COMPUTE_OTHER] = "other",
    };
    brg_rank_report *report = a->report;
    brg_status status = BRG_OK;
    /* Samples are sorted, so that everything with a name turns up here once, by kind and id. */
    for (size_t i = 0; status == BRG_OK && i < a->samples.count; i++) {
        uint64_t key = a->samples.at[i].key, what = key >> 32;
        if (i && a->samples.at[i - 1].key == key)
            continue;
        if (what == KEY_COMPUTE)
            status =
                named_add(a, &report->computes, &report->ncomputes, kinds[key & 0xffffffff], key);
        else if (what == KEY_OPTIMIZER)
            status = named_add(a, &report->optimizers, &report->noptimizers,
                               brg_trace_name(a->trace, key & 0xffffffff), key);
        else if (what == KEY_NORM)
            report->norm =
                brg_samples_stat_by_step(&a->samples, key, M_TIME, BRG_FOLD_SUM, a->end - a->first);
    }
    return status;
}

static brg_status group_add(brg_analysis *a, brg_group_report **list, size_t *count, uint64_t key)
{
    brg_group_report *grown = reallocarray(*list, *count + 1, sizeof *grown);
    uint64_t nsteps = a->end - a->first;
    if (!grown)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its communicators", a->trace->path);
    *list = grown;
    grown[(*count)++] = (brg_group_report){
        .id = (uint32_t)key,
        .count = brg_samples_stat_by_step(&a->samples, key, M_COUNT, BRG_FOLD_SUM, nsteps),
        .bytes = brg_samples_stat_by_step(&a->samples, key, M_BYTES, BRG_FOLD_SUM, nsteps),
        .time = brg_samples_stat_by_step(&a->samples, key, M_TIME, BRG_FOLD_SUM, 0),
    };
    return BRG_OK;
}

static brg_status groups_fill(brg_analysis *a)
{
    brg_rank_report *report = a->report;
    brg_status status = BRG_OK;
    for (size_t i = 0; status == BRG_OK && i < a->samples.count; i++) {
        uint64_t key = a->samples.at[i].key;
        if (i && a->samples.at[i - 1].key == key)
            continue;
        if (key >> 32 == KEY_COMM)
            status = group_add(a, &report->comms, &report->ncomms, key);
        else if (key >> 32 == KEY_FUNC)
            status = group_add(a, &report->funcs, &report->nfuncs, key);
    }
    return status;
}

static brg_status report_fill(brg_analysis *a)
{
    brg_rank_report *report = a->report;
    const struct {
        brg_stat *stat;
        brg_metric metric;
    } rank[] = {
        {&report->step, M_STEP},
        {&report->compute, M_COMPUTE},
        {&report->communication, M_COMMUNICATION},
        {&report->overlapped, M_OVERLAPPED},
        {&report->exposed, M_EXPOSED_TOTAL},
        {&report->idle, M_IDLE},
        {&report->replay_error, M_REPLAY_ERROR},
        {&report->update_delay, M_UPDATE_DELAY},
        {&report->exposed_all, M_EXPOSED},
    };
    for (size_t i = 0; i < sizeof rank / sizeof *rank; i++)
        *rank[i].stat = brg_samples_stat(&a->samples, brg_key(KEY_RANK, 0), rank[i].metric);
    for (size_t i = 0; i < report->nbuckets; i++)
        bucket_fill(a, &report->buckets[i]);
    report->other_collectives = brg_samples_stat_by_step(&a->samples, brg_key(KEY_OTHER, 0), M_TIME,
                                                         BRG_FOLD_SUM, a->end - a->first);
    brg_status status = named_fill(a);
    return status == BRG_OK ? groups_fill(a) : status;
}

brg_status brg_analysis_recognise(brg_analysis *a, const brg_recognise_options *options)
{
    if (!brg_recognise_needed(a->trace))
        return BRG_OK;
    brg_recognition *r = calloc(1, sizeof *r);
    if (!r)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its steps", a->trace->path);
    brg_status status = brg_recognise(a->trace, options, r);
    if (status == BRG_OK && !r->steps_whole && r->steps_untimed)
        status = brg_fail(BRG_ERR_NO_DATA,
                          "%s: no step can be used: the device times of some collectives are "
                          "missing in each of %u whole steps",
                          a->trace->path, r->steps_untimed);
    else if (status == BRG_OK && !r->steps_whole && options->repeats > 1)
        status =
            brg_fail(BRG_ERR_NO_DATA,
                     "%s: no step in which the same buckets are reduced %u times in a row could "
                     "be recognised (--repeats %u)",
                     a->trace->path, options->repeats, options->repeats);
    else if (status == BRG_OK && !r->steps_whole && options->comm_given)
        status = brg_fail(BRG_ERR_NO_DATA,
                          "%s: no steps could be recognised in the collectives of communicator %u; "
                          "--by comm lists the communicators",
                          a->trace->path, options->comm);
    else if (status == BRG_OK && !r->steps_whole)
        status = brg_fail(BRG_ERR_NO_DATA, "%s: no steps could be recognised in its collectives",
                          a->trace->path);
    a->report->recognition = r;
    a->trace = &r->trace;
    return status;
}

brg_status brg_analysis_run(brg_analysis *a, const brg_analysis_options *options)
{
    brg_status status;
    BRG_TRY(brg_analysis_steps(a, options), out);
    BRG_TRY(brg_analysis_timeline(a), out);
    BRG_TRY(brg_analysis_buckets(a), out);
    brg_samples_sort(&a->samples);
out:
    return status;
}

void brg_analysis_free(brg_analysis *a)
{
    free(a->windows);
    free(a->by_number);
    brg_interval_set_free(&a->compute);
    brg_interval_set_free(&a->communication);
    brg_interval_set_free(&a->overlapped);
    brg_samples_free(&a->samples);
}

brg_status brg_trace_analyze(const brg_trace *trace, const brg_analysis_options *options,
                             brg_rank_report *report)
{
    *report = (brg_rank_report){0};
    brg_analysis a = {.trace = trace, .report = report};
    brg_status status;
    BRG_TRY(brg_analysis_recognise(&a, &options->recognise), out);
    BRG_TRY(brg_analysis_run(&a, options), out);
    BRG_TRY(report_fill(&a), out);
out:
    brg_analysis_free(&a);
    if (status != BRG_OK)
        brg_rank_report_free(report);
    return status;
}

void brg_rank_report_free(brg_rank_report *report)
{
    free(report->buckets);
    free(report->computes);
    free(report->optimizers);
    free(report->comms);
    free(report->funcs);
    if (report->recognition)
        brg_recognition_free(report->recognition);
    free(report->recognition);
    *report = (brg_rank_report){0};
}
