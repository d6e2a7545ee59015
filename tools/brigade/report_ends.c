/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank died first, as brigade run has seen it (run_ends.c). */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/brigade/report.h"

enum { MAX_NAMED = 4 }; /* of ranks that died together */

static bool end_read(const json_t *entry, run_end *end)
{
    const json_t *rank = json_object_get(entry, "rank"), *sig = json_object_get(entry, "signal"),
                 *status = json_object_get(entry, "exit_status"),
                 *first = json_object_get(entry, "first"),
                 *ended_by_run = json_object_get(entry, "ended_by_run");
    *end = (run_end){.rank = (uint32_t)json_integer_value(rank),
                     .exit_status = (int)json_integer_value(status),
                     .signal = (int)json_integer_value(sig),
                     .first = json_is_true(first),
                     .ended_by_run = json_is_true(ended_by_run)};
    return json_is_integer(rank) && json_integer_value(rank) >= 0 && json_is_boolean(first) &&
           json_is_boolean(ended_by_run) && json_is_integer(sig) != json_is_integer(status);
}

/* Takes `root`. False: it is not as it should be. */
static bool ends_read(report *r, const json_t *root)
{
    const json_t *ranks = json_object_get(root, "ranks"), *time = json_object_get(root, "time_ns");
    size_t n = json_array_size(ranks);
    if (!json_is_integer(time) || !n)
        return false;
    /* Traces of a later run, which brigade run did not start? */
    for (size_t i = 0; i < r->nranks; i++)
        if (r->ranks[i].trace->t0_real_ns > (uint64_t)json_integer_value(time))
            return true;
    r->ends = calloc(n, sizeof *r->ends);
    for (size_t i = 0; r->ends && i < n; i++) {
        if (!end_read(json_array_get(ranks, i), &r->ends[i])) {
            r->nends = 0;
            return false;
        }
        r->nends++;
    }
    return true;
}

void report_ends_load(report *r)
{
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/" RUN_ENDS_FILE, r->path);
    if (access(path, F_OK))
        return;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        report_warn(r, "%s: %s: which rank died first is not known", path, error.text);
    else if (!ends_read(r, root))
        report_warn(
            r,
            "%s: expected what brigade run writes, \"time_ns\" and \"ranks\" with \"rank\", "
            "\"signal\" or \"exit_status\", \"first\" and \"ended_by_run\": which rank "
            "died first is not known",
            path);
    json_decref(root);
}

__attribute__((format(printf, 3, 4))) static void add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

const char *report_end_how(const report *r, uint32_t rank, char text[64])
{
    for (size_t i = 0; i < r->nends; i++)
        if (r->ends[i].rank == rank)
            return r->ends[i].ended_by_run ? "ended by brigade run"
                                           : run_end_how(&r->ends[i], text);
    return "killed, or still running";
}

const char *report_ends_text(const report *r, char *text, size_t size)
{
    size_t first = 0, ended = 0, named = 0;
    char how[64];
    for (size_t i = 0; i < r->nends; i++) {
        first += r->ends[i].first;
        ended += r->ends[i].ended_by_run;
    }
    text[0] = '\0';
    for (size_t i = 0; i < r->nends && named < MAX_NAMED; i++) {
        const char *before = !named ? "" : named + 1 < first ? ", " : " and ";
        if (!r->ends[i].first)
            continue;
        add(text, size, first > 1 ? "%srank %" PRIu32 " (%s)" : "%srank %" PRIu32 " died first: %s",
            before, r->ends[i].rank, run_end_how(&r->ends[i], how));
        named++;
    }
    if (first > named)
        add(text, size, " and %zu more", first - named);
    if (first > 1)
        add(text, size, " died first, in an order that nobody saw");
    if (first && ended)
        add(text, size, "; brigade run then ended %s", ended > 1 ? "the others" : "the other");
    return text;
}

json_t *report_ends_json(const report *r)
{
    json_t *ends = json_array();
    for (size_t i = 0; i < r->nends; i++)
        json_array_append_new(ends, run_end_json(&r->ends[i]));
    return ends;
}
