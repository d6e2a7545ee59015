/* SPDX-License-Identifier: Apache-2.0 */
/* What brigade report has gathered, for those who print it. */
#ifndef BRIGADE_TOOLS_REPORT_H
#define BRIGADE_TOOLS_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "sched/trace/analysis.h"
#include "sched/trace/arrivals.h"
#include "tools/brigade/run.h"

typedef struct report_rank {
    brg_trace *trace; /* without its records, unless something is to be exported */
    brg_rank_report data;
    brg_arrival_list arrivals;
    bool usable; /* false: nothing to analyze, data is empty */
} report_rank;

/* The trace with steps and buckets: as recorded, or as recognised in it. */
static inline const brg_trace *report_trace(const report_rank *rank)
{
    return rank->data.recognition ? &rank->data.recognition->trace : rank->trace;
}

typedef struct report {
    const char *path;
    report_rank *ranks; /* by rank */
    size_t nranks;
    uint32_t world;
    const report_rank *shown; /* the rank whose step and buckets are shown */
    bool shown_by_choice;     /* --rank was given; else it is the one that computes most */
    const report_rank *fastest, *slowest; /* by compute */
    size_t *order;                        /* rows of shown->data.buckets, sorted */
    size_t *rank_order;                   /* the same of ranks */
    size_t top;                           /* how many buckets to show */
    brg_arrivals arrivals;                /* matched = 0: nothing is known of who came last */
    run_end *ends;                        /* of the ranks that failed; none: nothing is known */
    size_t nends;
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

/* What --by lists. */
typedef enum report_by {
    REPORT_BY_BUCKET,
    REPORT_BY_COMM,
    REPORT_BY_RANK,
    REPORT_BY_FUNC
} report_by;

/* What --sort sorts it by. */
typedef enum report_sort_key {
    REPORT_SORT_ID,
    REPORT_SORT_EXPOSED,
    REPORT_SORT_WAIT,
    REPORT_SORT_SIZE,
    REPORT_SORT_READY,
    REPORT_SORT_BUSBW,
    REPORT_SORT_TIME,
    REPORT_SORT_COUNT
} report_sort_key;

/* Whether the list has what it is to be sorted by. */
bool report_sorts_by(report_by by, report_sort_key key);
/* Sorts the list of `by`; the others stay by id. `top`: how many rows to show, 0: all. False: no
 * memory. */
bool report_sort(report *r, report_by by, report_sort_key key, size_t top);

void report_text(const report *r, report_by by, size_t top);
/* The parts of the text that only recognised traces have. */
void report_recognised_lines(const report *r);
void report_recognised_table(const report *r);
/* The list of --by, but for buckets. */
void report_by_table(const report *r, report_by by, size_t top);
/* The same lists, and the buckets, as comma-separated values. An existing file is replaced only
 * with `force`. False: errno says why not. */
bool report_csv(const report *r, report_by by, const char *path, bool force);

/* report_ends.c: who died first. */
void report_ends_load(report *r);
const char *report_ends_text(const report *r, char *text, size_t size); /* "": not known */
/* Of the rank of a trace without an end. */
const char *report_end_how(const report *r, uint32_t rank, char text[64]);
json_t *report_ends_json(const report *r);

/* "all-reduce". */
const char *report_func_name(uint32_t func);
const char *report_reason_name(brg_reason reason);
/* NULL: nothing is known of its arrivals. */
const brg_bucket_arrivals *report_bucket_arrivals(const report *r, uint32_t bucket);
const brg_rank_arrivals *report_rank_arrivals(const report *r, uint32_t rank);
/* A name of the trace, made fit for a terminal; what is too long loses its beginning. */
enum { REPORT_NAME_COLUMNS = 22 };
const char *report_name(char buffer[REPORT_NAME_COLUMNS + 1], const char *name);

/* Whether collectives of the bucket have times that others have, too: of one group call. */
bool report_grouped(const brg_stat *group);
/* What the mark of those rows means, where a row of the table has it. */
void report_grouped_line(const report *r);

/* Names recognised buckets after a plan, by elements and order. BRG_ERR_IO, BRG_ERR_FORMAT. */
brg_status report_map(report *r, const char *path);
json_t *report_recognition_json(const report *r);
json_t *report_arrivals_json(const report *r);
json_t *report_groups_json(const brg_group_report *list, size_t count, bool funcs);
/* The report as JSON, schema 1. */
json_t *report_document(const report *r);
/* Prints it. False: no memory. */
bool report_json(const report *r);

#endif
