/* SPDX-License-Identifier: Apache-2.0 */
/* What the report says of traces whose steps and buckets were recognised. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/brigade/cli.h"
#include "tools/brigade/report.h"

enum { CELL = 8, LATE_SHOWN = 3, REASON_COLUMNS = 10 };

static double ms(double time_ns)
{
    return time_ns / 1e6;
}

const brg_bucket_arrivals *report_bucket_arrivals(const report *r, uint32_t bucket)
{
    for (size_t i = 0; i < r->arrivals.nbuckets; i++)
        if (r->arrivals.buckets[i].bucket == bucket)
            return &r->arrivals.buckets[i];
    return NULL;
}

const brg_rank_arrivals *report_rank_arrivals(const report *r, uint32_t rank)
{
    for (size_t i = 0; i < r->arrivals.nranks; i++)
        if (r->arrivals.ranks[i].rank == rank && r->arrivals.ranks[i].shared)
            return &r->arrivals.ranks[i];
    return NULL;
}

const char *report_reason_name(brg_reason reason)
{
    static const char *const names[] = {[BRG_REASON_UNCLEAR] = "unclear",
                                        [BRG_REASON_LATE_PEER] = "late peer",
                                        [BRG_REASON_TRANSFER] = "transfer"};
    return names[reason];
}

/* ---- Lines above the table ---- */

static void exposed_line(const brg_rank_report *data)
{
    static const char *const from[] = {
        [BRG_EXPOSED_UNKNOWN] = "not known: no compute records",
        [BRG_EXPOSED_WAITS] = "from stream waits",
        [BRG_EXPOSED_KERNELS] = "from kernel intervals",
    };
    printf("%-10s %s\n", "exposed", from[data->exposed_from]);
    uint64_t timed = data->recognition->timed_by_kernels;
    if (timed)
        printf("%-10s of %" PRIu64 " collectives from NCCL's kernels, of the others from events\n",
               "times", timed);
}

static void recognition_line(const brg_recognition *g)
{
    printf("%-10s %zu buckets of communicator %u", "recognised", g->trace.nbuckets, g->comm.comm);
    if (g->comm.size != UINT32_MAX)
        printf(" (%u ranks)", g->comm.size);
    printf(" by %s", g->by_address ? "address and size" : "size alone");
    if (g->micro_steps > 1)
        printf(", %u micro-steps a step", g->micro_steps);
    printf("\n");
    if (!g->micro_steps_known)
        printf("%-10s each round of them is taken for a step; where K rounds make one: --repeats "
               "K\n",
               "");
}

/* The ranks that came last most often, one line each. */
static void late_lines(const report *r)
{
    const brg_arrivals *a = &r->arrivals;
    char error[32], late[32], p95[32];
    if (!a->matched)
        return;
    printf("%-10s aligned on %" PRIu64 " collectives of %zu ranks, error %s\n", "clocks",
           a->matched, a->nranks, cli_time_ns(error, a->error_ns));
    uint64_t below = UINT64_MAX;
    for (int shown = 0; shown < LATE_SHOWN; shown++) {
        const brg_rank_arrivals *most = NULL;
        for (size_t i = 0; i < a->nranks; i++)
            if (a->ranks[i].last && a->ranks[i].last < below &&
                (!most || a->ranks[i].last > most->last))
                most = &a->ranks[i];
        if (!most)
            break;
        below = most->last;
        printf("%-10s rank %u came last to %" PRIu64 " collectives, by %s (p95 %s)\n", "late",
               most->rank, most->last, cli_time_ns(late, most->late.median),
               cli_time_ns(p95, most->late.p95));
    }
}

/* ---- What could be saved ---- */

/* A mean number of collectives. */
static void mean_print(double mean)
{
    bool whole = fabs(mean - round(mean)) < 0.05;
    printf("%.*f", whole ? 0 : 1, mean);
}

static void waste_tiny(const brg_recognition *g, const brg_waste *w)
{
    char bytes[32], time[32];
    printf("%-10s ", "waste");
    mean_print(w->count);
    printf(" small %ss of communicator %u in a row could be ", report_func_name(w->func), w->comm);
    mean_print(w->runs);
    printf(": %s", cli_bytes(bytes, w->bytes));
    if (w->time_ns > 0)
        printf(", %s", cli_time_ns(time, w->time_ns));
    printf(" a step\n");
    if (w->steps < g->steps_whole)
        printf("%-10s in the %u of %u steps that have some\n", "", w->steps, g->steps_whole);
}

/* All buckets of which the same is to be said, in one line. */
static void waste_again(const brg_recognition *g, size_t first)
{
    const brg_waste *w = &g->waste[first];
    double bytes = 0, time = 0;
    size_t n = 0;
    char size[32], length[32];
    for (size_t i = 0; i < g->nwaste; i++) {
        const brg_waste *x = &g->waste[i];
        if (x->kind != w->kind || x->count != w->count)
            continue;
        if (i < first)
            return; /* said already */
        bytes += x->bytes;
        time += x->time_ns;
        n++;
    }
    printf("%-10s %zu bucket%s %s %gx a step", w->by_design ? "by design" : "waste", n,
           n > 1 ? "s" : "", w->kind == BRG_WASTE_GATHERED ? "gathered" : "reduced", w->count);
    if (w->by_design)
        printf(" (reshard after forward)");
    printf(": %s", cli_bytes(size, bytes));
    if (time > 0)
        printf(", %s", cli_time_ns(length, time));
    printf(" a step\n");
    if (!w->by_design) /* seen: flattened gradients in memory that torch's allocator gives again */
        printf("%-10s unless memory was freed and used again for others in between\n", "");
}

static void waste_lines(const brg_recognition *g)
{
    for (size_t i = 0; i < g->nwaste; i++)
        if (g->waste[i].kind == BRG_WASTE_TINY)
            waste_tiny(g, &g->waste[i]);
        else
            waste_again(g, i);
}

void report_recognised_lines(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    exposed_line(data);
    recognition_line(data->recognition);
    late_lines(r);
    waste_lines(data->recognition);
}

/* ---- Buckets ---- */

typedef struct row {
    const char *op;
    const brg_stat *start, *end, *time, *busbw, *group;
    report_count count;
} row;

static void cell(double value, bool known)
{
    if (known)
        printf(" %*.3f", CELL - 1, ms(value));
    else
        printf("%*s", CELL, "-");
}

static const char *reason_of(const report *r, uint32_t bucket, char text[REASON_COLUMNS + 16])
{
    const brg_bucket_arrivals *a = report_bucket_arrivals(r, bucket);
    if (!a)
        return "-";
    if (a->reason != BRG_REASON_LATE_PEER)
        return report_reason_name(a->reason);
    snprintf(text, REASON_COLUMNS + 16, "late r%u", a->last_rank);
    return text;
}

static void row_print(const row *op, const brg_stat *exposed, const char *reason)
{
    char per_step[48];
    printf("%c%2s", report_grouped(op->group) ? '*' : ' ', op->op);
    cell(op->start->median, op->start->n);
    cell(op->end->median, op->end->n);
    cell(op->time->median, op->time->n);
    cell(op->time->p95, op->time->n);
    if (exposed)
        cell(exposed->median, exposed->n);
    else
        printf("%*s", CELL, ".");
    if (op->busbw->n)
        printf(" %7.*f", op->busbw->median < 10 ? 3 : 1, op->busbw->median);
    else
        printf("%*s", CELL, "-");
    if (op->count.min == op->count.max)
        snprintf(per_step, sizeof per_step, "%" PRIu64, op->count.min);
    else
        snprintf(per_step, sizeof per_step, "%" PRIu64 "-%" PRIu64, op->count.min, op->count.max);
    printf("%6s%s%s\n", per_step, *reason ? " " : "", reason);
}

static void bucket_rows(const report *r, const brg_bucket_report *b)
{
    char name[REPORT_NAME_COLUMNS + 1], size[32], reason[REASON_COLUMNS + 16];
    uint64_t bytes = b->meta.grad_bytes ? b->meta.grad_bytes : b->meta.param_bytes;
    const row rows[] = {
        {"RS", &b->reduce_start, &b->reduce_end, &b->reduce_time, &b->reduce_busbw,
         &b->reduce_group, report_count_of(r, b->id, REPORT_REDUCE_SCATTERS)},
        {"AR", &b->reduce_start, &b->reduce_end, &b->reduce_time, &b->reduce_busbw,
         &b->reduce_group, report_count_of(r, b->id, REPORT_ALL_REDUCES)},
        {"AG", &b->gather_start, &b->gather_end, &b->gather_time, &b->gather_busbw,
         &b->gather_group, report_count_of(r, b->id, REPORT_ALL_GATHERS)},
    };
    report_name(name, b->meta.name);
    bool first = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].count.max)
            continue;
        printf("%-*s %9s", REPORT_NAME_COLUMNS, first ? name : "",
               first ? cli_bytes(size, (double)bytes) : "");
        row_print(&rows[i], first ? &b->exposed : NULL, first ? reason_of(r, b->id, reason) : "");
        first = false;
    }
}

void report_recognised_table(const report *r)
{
    const brg_rank_report *data = &r->shown->data;
    bool color = cli_use_color(stdout);
    printf("%s%-*s %9s op%*s%*s%*s%*s%*s%*s%6s reason%s\n", color ? "\033[1m" : "",
           REPORT_NAME_COLUMNS, "bucket", "size", CELL, "start", CELL, "end", CELL, "time", CELL,
           "p95", CELL, "exposed", CELL, "busbw", "/step", color ? "\033[0m" : "");
    for (size_t i = 0; i < r->top; i++)
        bucket_rows(r, &data->buckets[r->order[i]]);
    if (r->top < data->nbuckets)
        printf("... and %zu more (--top 0 shows all)\n", data->nbuckets - r->top);
    printf("times in ms a step, start and end from the beginning of the step; busbw in GB/s\n"
           "RS reduce-scatter, AR all-reduce, AG all-gather; reason: what most of its time was, "
           "waiting\nfor a late rank or transfer\n");
    report_grouped_line(r);
}
