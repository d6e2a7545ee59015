/* SPDX-License-Identifier: Apache-2.0 */
/* brigade report --by comm, rank, func. */
#include <inttypes.h>
#include <stdio.h>

#include "tools/brigade/cli.h"
#include "tools/brigade/report.h"

const char *report_func_name(uint32_t func)
{
    static const char *const names[] = {
        [BRG_FUNC_NONE] = "none",
        [BRG_FUNC_ALL_REDUCE] = "all-reduce",
        [BRG_FUNC_REDUCE_SCATTER] = "reduce-scatter",
        [BRG_FUNC_ALL_GATHER] = "all-gather",
        [BRG_FUNC_BROADCAST] = "broadcast",
        [BRG_FUNC_REDUCE] = "reduce",
        [BRG_FUNC_SEND] = "send",
        [BRG_FUNC_RECV] = "receive",
        [BRG_FUNC_ALL_TO_ALL] = "all-to-all",
        [BRG_FUNC_GATHER] = "gather",
        [BRG_FUNC_SCATTER] = "scatter",
        [BRG_FUNC_PUT] = "put",
    };
    return func < sizeof names / sizeof *names ? names[func] : "unknown";
}

static void cell(double time_ns, bool known)
{
    if (known)
        printf(" %11.3f", time_ns / 1e6);
    else
        printf(" %11s", "-");
}

static void group_name(const report *r, const brg_group_report *group, report_by by)
{
    char text[64];
    if (by == REPORT_BY_FUNC) {
        printf("%-24s", report_func_name(group->id));
        return;
    }
    const brg_recognition *g = r->shown->data.recognition;
    const brg_comm_info info = brg_comm_info_get(r->shown->trace, group->id);
    int used = snprintf(text, sizeof text, "%u", group->id);
    if (info.size != UINT32_MAX)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %u ranks", info.size);
    if (g && g->comm.comm == group->id)
        snprintf(text + used, sizeof text - (size_t)used, ", steps");
    printf("%-24s", text);
}

static void groups_table(const report *r, const brg_group_report *list, size_t n, report_by by,
                         size_t top)
{
    char bytes[32];
    printf("%-24s %11s %11s %11s %11s\n", by == REPORT_BY_FUNC ? "collective" : "communicator",
           "/step", "bytes", "time", "p95");
    for (size_t i = 0; i < n && (!top || i < top); i++) {
        group_name(r, &list[i], by);
        printf(" %11.0f %11s", list[i].count.median, cli_bytes(bytes, list[i].bytes.median));
        cell(list[i].time.median, list[i].time.n);
        cell(list[i].time.p95, list[i].time.n);
        printf("\n");
    }
    if (top && top < n)
        printf("... and %zu more (--top 0 shows all)\n", n - top);
    printf("of rank %u; medians per step; times in ms\n", r->shown->trace->rank);
}

static void ranks_table(const report *r, size_t top)
{
    printf("%-6s %6s %11s %11s %11s %11s %8s %11s %11s\n", "rank", "steps", "step", "compute",
           "comm.", "exposed", "last", "late", "clock error");
    for (size_t i = 0; i < r->nranks && (!top || i < top); i++) {
        const report_rank *rank = &r->ranks[r->rank_order[i]];
        const brg_rank_report *data = &rank->data;
        const brg_rank_arrivals *a = report_rank_arrivals(r, rank->trace->rank);
        printf("%-6u %6u", rank->trace->rank, data->steps_used);
        cell(data->step.median, data->step.n);
        cell(data->compute.median, data->compute.n);
        cell(data->communication.median, data->communication.n);
        cell(data->exposed.median, data->exposed.n);
        if (a)
            printf(" %8" PRIu64, a->last);
        else
            printf(" %8s", "-");
        cell(a ? a->late.median : 0, a && a->late.n);
        cell(a ? a->error_ns : 0, a);
        printf("\n");
    }
    if (top && top < r->nranks)
        printf("... and %zu more (--top 0 shows all)\n", r->nranks - top);
    printf("medians in ms; last: collectives that it came last to, late: by how much\n");
}

void report_by_table(const report *r, report_by by, size_t top)
{
    const brg_rank_report *data = &r->shown->data;
    if (by == REPORT_BY_RANK)
        ranks_table(r, top);
    else if (by == REPORT_BY_COMM)
        groups_table(r, data->comms, data->ncomms, by, top);
    else
        groups_table(r, data->funcs, data->nfuncs, by, top);
}
