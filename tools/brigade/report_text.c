/* SPDX-License-Identifier: Apache-2.0 */
/* The report for a person: one screen. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/brigade/cli.h"
#include "tools/brigade/report.h"

enum { CELL = 8 };

const char *report_name(char buffer[REPORT_NAME_COLUMNS + 1], const char *name)
{
    size_t length = strlen(name), from = 0;
    if (length > REPORT_NAME_COLUMNS)
        from = length - REPORT_NAME_COLUMNS;
    size_t n = 0;
    for (size_t i = from; name[i]; i++)
        buffer[n++] =
            (unsigned char)name[i] >= ' ' && (unsigned char)name[i] < 0x7f ? name[i] : '?';
    if (from)
        buffer[0] = '~';
    buffer[n] = '\0';
    return buffer;
}

static const char *bold(void)
{
    return cli_use_color(stdout) ? "\033[1m" : "";
}

static const char *plain(void)
{
    return cli_use_color(stdout) ? "\033[0m" : "";
}

static double ms(double time_ns)
{
    return time_ns / 1e6;
}

/* ---- The step ---- */

static void heading(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    const char *device = brg_trace_info_get(r->shown->trace, "device");
    char name[REPORT_NAME_COLUMNS + 1];
    printf("%s: %zu of %u rank%s%s%s, %u of %u steps", r->path, r->nranks, r->world,
           r->world == 1 ? "" : "s", device ? ", device " : "",
           device ? report_name(name, device) : "", data->steps_used, data->steps_recorded);
    if (data->steps_warmup || data->steps_incomplete)
        printf(" (left out: %u warm-up, %u incomplete)", data->steps_warmup,
               data->steps_incomplete);
    if (data->steps_replayed)
        printf(", %u replays of a graph", data->steps_replayed);
    printf("\n\n");
}

static void part(const char *label, int64_t time_ns, int64_t step_ns, const brg_stat *stat)
{
    if (!stat->n) {
        printf("  %-16s%15s\n", label, "not known");
        return;
    }
    printf("  %-16s%12.3f ms  ", label, ms((double)time_ns));
    if (stat->n && step_ns > 0)
        printf("%5.1f%%", 100.0 * (double)time_ns / (double)step_ns);
    else
        printf("%6s", "");
    printf("%14.3f %12.3f\n", ms(stat->median), ms(stat->p95));
}

/* One line as long as the step. */
static void bar(const brg_partition *p)
{
    static const char *const utf8[] = {"\u2588", "\u2593", "\u2591", "\u00b7"};
    static const char *const ascii[] = {"#", "+", "!", "."};
    const char *const *marks = cli_use_utf8() ? utf8 : ascii;
    const int64_t lengths[] = {p->compute_ns - p->overlapped_ns, p->overlapped_ns, p->exposed_ns,
                               p->idle_ns};
    const int columns = 64;
    double done = 0;
    int drawn = 0;
    printf("  ");
    for (int i = 0; i < 4; i++) {
        done += p->step_ns > 0 ? (double)lengths[i] / (double)p->step_ns : 0;
        for (; drawn < (int)(done * columns + 0.5) && drawn < columns; drawn++)
            fputs(marks[i], stdout);
    }
    printf("\n  %s compute  %s compute and communication  %s exposed  %s idle\n\n", marks[0],
           marks[1], marks[2], marks[3]);
}

static void step_table(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    const brg_partition *p = &data->typical;
    printf("%srank %u%s%s\n", bold(), r->shown->trace->rank, plain(),
           r->nranks < 2 || r->shown_by_choice ? ""
           : data->compute_known               ? ", which computes most (--rank N shows another)"
                                               : " (--rank N shows another)");
    printf("  %-16s%15s  %6s%14s %12s\n", "", "typical step", "share", "median ms", "p95 ms");
    part("step", p->step_ns, 0, &data->step);
    if (data->compute_known)
        part("compute", p->compute_ns, p->step_ns, &data->compute);
    part("communication", p->communication_ns, p->step_ns, &data->communication);
    if (!data->idle.n) {
        printf("\n");
        return;
    }
    part("  overlapped", p->overlapped_ns, p->step_ns, &data->overlapped);
    part("  exposed", p->exposed_ns, p->step_ns, &data->exposed);
    part("idle", p->idle_ns, p->step_ns, &data->idle);
    bar(p);
}

static void named_line(const char *label, const brg_named_report *list, size_t count)
{
    char name[REPORT_NAME_COLUMNS + 1], buffer[32];
    printf("%-10s", label);
    for (size_t i = 0; i < count; i++)
        printf("%s %s %s", i ? "," : "", report_name(name, list[i].name),
               cli_time_ns(buffer, list[i].time.median));
}

static void optimizer_line(const brg_rank_report *data)
{
    char buffer[32];
    if (!data->noptimizers && !data->norm.n)
        return;
    named_line("optimizer", data->optimizers, data->noptimizers);
    if (data->norm.n)
        printf("%s norm %s", data->noptimizers ? "," : "", cli_time_ns(buffer, data->norm.median));
    if (data->update_delay.n)
        printf("; last reduction to first update %s",
               cli_time_ns(buffer, data->update_delay.median));
    printf("\n");
}

static void rank_lines(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    char low[32], high[32];
    if (r->fastest != r->slowest && data->compute_known) {
        double fast = r->fastest->data.compute.median, slow = r->slowest->data.compute.median;
        printf("%-10s compute %s (rank %u) to %s (rank %u)", "ranks", cli_time_ns(low, fast),
               r->fastest->trace->rank, cli_time_ns(high, slow), r->slowest->trace->rank);
        if (fast > 0)
            printf(", spread %.1f%%", 100 * (slow / fast - 1));
        printf("\n");
    }
    if (data->ncomputes) {
        named_line("spans", data->computes, data->ncomputes);
        printf("\n");
    }
    optimizer_line(data);
    if (data->other_collectives.max > 0)
        printf("%-10s %s a step in collectives that belong to no bucket\n", "other",
               cli_time_ns(low, data->other_collectives.median));
    if (data->recognition)
        report_recognised_lines(r);
    else if (data->replay_error.n)
        printf("%-10s error %.1f%% (p95 %.1f%%); with all buckets free the step would be %s "
               "shorter\n",
               "replay", 100 * data->replay_error.median, 100 * data->replay_error.p95,
               cli_time_ns(low, data->exposed_all.median));
    else
        printf("%-10s not possible\n", "replay");
    printf("%-10s %" PRIu64 " dropped, %" PRIu64 " torn, %" PRIu64 " overwritten, %" PRIu64
           " invalid\n\n",
           "records", r->drops, r->torn, r->overwritten, r->invalid);
}

/* ---- Buckets ---- */

/* A reduction or a gather of one bucket. */
typedef struct row {
    const char *op;
    const brg_stat *ready, *issued, *start, *end, *wait, *busbw, *group;
    report_count count;
} row;

static void cell(const brg_stat *stat)
{
    if (stat && stat->n)
        printf(" %*.3f", CELL - 1, ms(stat->median));
    else
        printf("%*s", CELL, "-");
}

bool report_grouped(const brg_stat *group)
{
    return group->max > 1;
}

void report_grouped_line(const report *r)
{
    bool any = false;
    for (size_t i = 0; i < r->top && !any; i++) {
        const brg_bucket_report *b = &r->shown->data.buckets[r->order[i]];
        any = report_grouped(&b->reduce_group) || report_grouped(&b->gather_group);
    }
    if (any)
        printf("* in a group call with others: times and busbw are the whole group's, exposed is "
               "its share\n");
}

static void row_print(const row *op, const brg_stat *exposed)
{
    printf("%c%2s", report_grouped(op->group) ? '*' : ' ', op->op);
    cell(op->ready);
    cell(op->issued);
    cell(op->start);
    cell(op->end);
    cell(op->wait);
    if (exposed)
        cell(exposed);
    else
        printf("%*s", CELL, ".");
    if (op->busbw->n)
        printf(" %7.*f", op->busbw->median < 10 ? 3 : 1, op->busbw->median);
    else
        printf("%8s", "-");
    char per_step[48];
    if (op->count.min == op->count.max)
        snprintf(per_step, sizeof per_step, "%" PRIu64, op->count.min);
    else
        snprintf(per_step, sizeof per_step, "%" PRIu64 "-%" PRIu64, op->count.min, op->count.max);
    printf("%6s\n", per_step);
}

static void bucket_rows(const report *r, const brg_bucket_report *b)
{
    char name[REPORT_NAME_COLUMNS + 1], number[32], size[32];
    const row rows[] = {
        {"RS", &b->ready, &b->reduce_issued, &b->reduce_start, &b->reduce_end, &b->reduce_wait,
         &b->reduce_busbw, &b->reduce_group, report_count_of(r, b->id, REPORT_REDUCE_SCATTERS)},
        {"AR", &b->ready, &b->reduce_issued, &b->reduce_start, &b->reduce_end, &b->reduce_wait,
         &b->reduce_busbw, &b->reduce_group, report_count_of(r, b->id, REPORT_ALL_REDUCES)},
        {"AG", NULL, &b->gather_issued, &b->gather_start, &b->gather_end, &b->gather_wait,
         &b->gather_busbw, &b->gather_group, report_count_of(r, b->id, REPORT_ALL_GATHERS)},
    };
    snprintf(number, sizeof number, "bucket %u", b->id);
    report_name(name, b->described ? b->meta.name : number);
    const char *bytes = b->described ? cli_bytes(size, (double)b->meta.grad_bytes) : "-";
    bool first = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].count.max)
            continue;
        printf("%-*s %10s", REPORT_NAME_COLUMNS, first ? name : "", first ? bytes : "");
        row_print(&rows[i], first ? &b->exposed : NULL);
        first = false;
    }
    if (first)
        printf("%-*s %10s  no collectives\n", REPORT_NAME_COLUMNS, name, bytes);
}

static void bucket_table(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    printf("%s%-*s %10s op%*s%*s%*s%*s%*s%*s%8s%6s%s\n", bold(), REPORT_NAME_COLUMNS, "bucket",
           "size", CELL, "ready", CELL, "issued", CELL, "start", CELL, "end", CELL, "wait", CELL,
           "exposed", "busbw", "/step", plain());
    for (size_t i = 0; i < r->top; i++)
        bucket_rows(r, &data->buckets[r->order[i]]);
    if (r->top < data->nbuckets)
        printf("... and %zu more (--top 0 shows all)\n", data->nbuckets - r->top);
    printf("times in ms, from the beginning of the step; busbw in GB/s\n"
           "RS reduce-scatter, AR all-reduce, AG all-gather\n");
    report_grouped_line(r);
}

void report_text(const report *r, report_by by, size_t top)
{
    heading(r);
    step_table(r);
    rank_lines(r);
    if (by != REPORT_BY_BUCKET)
        report_by_table(r, by, top);
    else if (r->shown->data.recognition)
        report_recognised_table(r);
    else
        bucket_table(r);
    if (r->nwarnings)
        printf("\n");
    for (size_t i = 0; i < r->nwarnings; i++) {
        printf("warning: ");
        for (const char *c = r->warnings[i]; *c; c++)
            putchar((unsigned char)*c >= ' ' && *c != 0x7f ? *c : '?');
        printf("\n");
    }
}
