/* SPDX-License-Identifier: Apache-2.0 */
/* What brigade report has gathered, for those who print it. */
#ifndef BRIGADE_TOOLS_REPORT_H
#define BRIGADE_TOOLS_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "sched/trace/analysis.h"

typedef struct report_rank {
    brg_trace *trace; /* without its records, unless something is to be exported */
    brg_rank_report data;
    bool usable; /* false: nothing to analyze, data is empty */
} report_rank;

typedef struct report {
    const char *path;
    report_rank *ranks; /* by rank */
    size_t nranks;
    uint32_t world;
    const report_rank *shown; /* the rank whose step and buckets are shown */
    bool shown_by_choice;     /* --rank was given; else it is the one that computes most */
    const report_rank *fastest, *slowest; /* by compute */
    size_t *order;                        /* rows of shown->data.buckets, sorted */
    size_t top;                           /* how many of them to show */
    char **warnings;
    size_t nwarnings;
    uint64_t drops, torn, overwritten, invalid; /* of all ranks */
} report;

/* How often something happened per step, over all ranks. */
typedef struct report_count {
    uint64_t min, max, total, steps;
} report_count;

typedef enum report_func {
    REPORT_REDUCE_SCATTERS,
    REPORT_ALL_GATHERS,
    REPORT_ALL_REDUCES
} report_func;

report_count report_count_of(const report *r, uint32_t bucket, report_func func);

/* Notes a warning. Out of memory, it is lost. */
void report_warn(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_warn_all(report *r);

void report_text(const report *r);
/* The report as JSON, schema 1. */
json_t *report_document(const report *r);
/* Prints it. False: no memory. */
bool report_json(const report *r);

#endif
