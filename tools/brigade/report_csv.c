/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of brigade report as comma-separated values (RFC 4180, but for LF line ends): one row
 * of names, then one row each. Times in ns, empty where nothing is known. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "tools/brigade/report.h"

/* Quoted, so that commas and quotes in a name do no harm; a spreadsheet must not take it for a
 * formula either. */
static void text(FILE *file, const char *value)
{
    fputc('"', file);
    if (*value == '=' || *value == '+' || *value == '-' || *value == '@')
        fputc('\'', file);
    for (; *value; value++) {
        if (*value == '"')
            fputc('"', file);
        fputc((unsigned char)*value < ' ' ? '?' : *value, file);
    }
    fputc('"', file);
}

static void stat_cells(FILE *file, const brg_stat *stat)
{
    if (stat->n)
        fprintf(file, ",%.9g,%.9g", stat->median, stat->p95);
    else
        fprintf(file, ",,");
}

static void number_cell(FILE *file, const brg_stat *stat)
{
    if (stat->n)
        fprintf(file, ",%.0f", stat->median);
    else
        fprintf(file, ",");
}

static void count_cell(FILE *file, const report_count *count)
{
    fprintf(file, ",%.9g", count->steps ? (double)count->total / (double)count->steps : 0);
}

static void bucket_row(const report *r, const brg_bucket_report *b, FILE *file)
{
    const brg_bucket_arrivals *a = report_bucket_arrivals(r, b->id);
    const brg_stat none = {0};
    const brg_stat *stats[] = {
        &b->ready,
        &b->reduce_issued,
        &b->reduce_start,
        &b->reduce_end,
        &b->reduce_time,
        &b->gather_issued,
        &b->gather_start,
        &b->gather_end,
        &b->gather_time,
        &b->wait,
        &b->exposed,
        &b->reduce_busbw,
        &b->gather_busbw,
        a ? &a->spread : &none,
        a ? &a->transfer : &none,
    };
    fprintf(file, "%u,", b->id);
    text(file, b->described ? b->meta.name : "");
    if (b->described)
        fprintf(file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, b->meta.grad_bytes, b->meta.param_bytes,
                b->meta.numel);
    else
        fprintf(file, ",,,");
    for (int func = REPORT_REDUCE_SCATTERS; func <= REPORT_ALL_REDUCES; func++) {
        report_count count = report_count_of(r, b->id, (report_func)func);
        count_cell(file, &count);
    }
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++)
        stat_cells(file, stats[i]);
    fprintf(file, ",%s", a ? report_reason_name(a->reason) : "");
    number_cell(file, &b->reduce_group);
    number_cell(file, &b->gather_group);
    fprintf(file, "\n");
}

static void buckets(const report *r, FILE *file)
{
    static const char *const names[] = {
        "ready_ns",         "issued_ns",         "start_ns",          "end_ns",    "reduce_ns",
        "gather_issued_ns", "gather_start_ns",   "gather_end_ns",     "gather_ns", "wait_ns",
        "exposed_ns",       "reduce_busbw_gbps", "gather_busbw_gbps", "spread_ns", "transfer_ns"};
    fprintf(file, "id,name,grad_bytes,param_bytes,numel,reduce_scatters_per_step,"
                  "all_gathers_per_step,all_reduces_per_step");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        fprintf(file, ",%s,%s_p95", names[i], names[i]);
    fprintf(file, ",reason,reduce_group,gather_group\n");
    for (size_t i = 0; i < r->shown->data.nbuckets; i++)
        bucket_row(r, &r->shown->data.buckets[r->order[i]], file);
}

static void groups(const report *r, const brg_group_report *list, size_t n, bool funcs, FILE *file)
{
    fprintf(file, "%s,size,count,count_p95,bytes,bytes_p95,time_ns,time_ns_p95\n",
            funcs ? "func" : "comm");
    for (size_t i = 0; i < n; i++) {
        const brg_comm_info info = brg_comm_info_get(r->shown->trace, list[i].id);
        if (funcs)
            fprintf(file, "%s,", report_func_name(list[i].id));
        else if (info.size == UINT32_MAX)
            fprintf(file, "%u,", list[i].id);
        else
            fprintf(file, "%u,%u", list[i].id, info.size);
        stat_cells(file, &list[i].count);
        stat_cells(file, &list[i].bytes);
        stat_cells(file, &list[i].time);
        fprintf(file, "\n");
    }
}

static void ranks(const report *r, FILE *file)
{
    const brg_stat none = {0};
    fprintf(file, "rank,steps,step_ns,step_ns_p95,compute_ns,compute_ns_p95,communication_ns,"
                  "communication_ns_p95,exposed_ns,exposed_ns_p95,late_ns,late_ns_p95,last,"
                  "clock_error_ns\n");
    for (size_t i = 0; i < r->nranks; i++) {
        const report_rank *rank = &r->ranks[r->rank_order[i]];
        const brg_rank_report *data = &rank->data;
        const brg_rank_arrivals *a = report_rank_arrivals(r, rank->trace->rank);
        fprintf(file, "%u,%u", rank->trace->rank, data->steps_used);
        stat_cells(file, &data->step);
        stat_cells(file, &data->compute);
        stat_cells(file, &data->communication);
        stat_cells(file, &data->exposed);
        stat_cells(file, a ? &a->late : &none);
        if (a)
            fprintf(file, ",%" PRIu64 ",%.9g\n", a->last, a->error_ns);
        else
            fprintf(file, ",,\n");
    }
}

bool report_csv(const report *r, report_by by, const char *path, bool force)
{
    const brg_rank_report *data = &r->shown->data;
    FILE *file = fopen(path, force ? "we" : "wxe");
    if (!file)
        return false;
    switch (by) {
    case REPORT_BY_BUCKET:
        buckets(r, file);
        break;
    case REPORT_BY_COMM:
        groups(r, data->comms, data->ncomms, false, file);
        break;
    case REPORT_BY_RANK:
        ranks(r, file);
        break;
    case REPORT_BY_FUNC:
        groups(r, data->funcs, data->nfuncs, true, file);
        break;
    }
    bool failed = ferror(file);
    int error = errno;
    if (fclose(file) == 0 && !failed)
        return true;
    if (failed)
        errno = error;
    return false;
}
