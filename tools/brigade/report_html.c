/* SPDX-License-Identifier: Apache-2.0 */
/* The report as one page that needs no other file: report_page.html with the data in its middle.
 * The page makes everything that comes from the trace text, never markup. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sched/status.h"
#include "tools/brigade/report_export.h"

static const char page[] =
#include "report_page.h"
    ;
#define DATA_MARK "@DATA@"

/* A page is to open in a moment: what the browser draws is limited. */
enum { RANKS_MAX = 16, SLICES_MAX = 20000, STEPS_MAX = 8 };

typedef struct window {
    uint64_t from_ns, to_ns;
    uint32_t nsteps;
} window;

static uint64_t distance(double length, const brg_rec *step)
{
    double d = length - (double)(step->t1_ns - step->t0_ns);
    return (uint64_t)(d < 0 ? -d : d);
}

static int step_compare(const void *a, const void *b)
{
    const brg_rec *x = *(const brg_rec *const *)a, *y = *(const brg_rec *const *)b;
    return (x->t0_ns > y->t0_ns) - (x->t0_ns < y->t0_ns);
}

/* As many steps as fit, from the one on whose length is nearest to the median. */
static bool window_choose(const report *r, window *w)
{
    const brg_trace *trace = report_trace(r->shown);
    const brg_rank_report *data = &r->shown->data;
    const brg_rec **steps = calloc(trace->nrecs + 1, sizeof *steps);
    size_t n = 0, chosen = data->steps_warmup;
    if (!steps)
        return false;
    for (size_t i = 0; i < trace->nrecs; i++)
        if (trace->recs[i].kind == BRG_REC_STEP)
            steps[n++] = &trace->recs[i];
    qsort(steps, n, sizeof *steps, step_compare);
    for (size_t i = chosen; i < n; i++)
        if (distance(data->step.median, steps[i]) < distance(data->step.median, steps[chosen]))
            chosen = i;
    size_t per_step = 2 * trace->nrecs / n + 1; /* slices, at most */
    size_t ranks = r->nranks < RANKS_MAX ? r->nranks : RANKS_MAX;
    size_t count = SLICES_MAX / per_step / ranks;
    count = count < 1 ? 1 : count > STEPS_MAX ? STEPS_MAX : count;
    if (chosen + count > n) /* near the end: what comes before is as good */
        chosen = n > count ? n - count : 0;
    size_t last = chosen + count < n ? chosen + count - 1 : n - 1;
    *w = (window){.from_ns = steps[chosen]->t0_ns,
                  .to_ns = steps[last]->t1_ns,
                  .nsteps = (uint32_t)(last + 1 - chosen)};
    free(steps);
    return true;
}

/* The index of a name, which is added when it is new. */
static json_int_t name_index(json_t *names, json_t *indices, const char *name)
{
    json_t *known = json_object_get(indices, name);
    if (!known) {
        json_object_set_new(indices, name, json_integer((json_int_t)json_array_size(names)));
        json_array_append_new(names, json_string(name));
        known = json_object_get(indices, name);
    }
    return json_integer_value(known);
}

/* [begin, length, name, bytes, kind] for each slice; the kind is its color's. */
static json_t *lane_json(const timeline *t, const timeline_lane *lane, const window *w,
                         json_t *names, json_t *indices)
{
    char text[TIMELINE_TEXT];
    json_t *slices = json_array();
    for (size_t i = lane->first; i < lane->first + lane->count; i++) {
        const timeline_slice *slice = &t->slices[i];
        json_int_t name = name_index(names, indices, timeline_slice_name(t, slice, text));
        bool collective = slice->records[0]->kind == BRG_REC_COLLECTIVE;
        json_array_append_new(slices,
                              json_pack("[I,I,I,I,i]", (json_int_t)(slice->t0_ns - w->from_ns),
                                        (json_int_t)(slice->t1_ns - slice->t0_ns), name,
                                        collective ? (json_int_t)timeline_slice_bytes(slice) : 0,
                                        (int)(collective ? LANE_COMM : slice->kind)));
    }
    return json_pack("{s:s,s:o}", "name", timeline_lane_name(t, lane, text), "slices", slices);
}

static brg_status rank_json(const report_rank *rank, const window *w, json_t *ranks, json_t *names,
                            json_t *indices)
{
    timeline t;
    brg_status status = timeline_build(report_trace(rank), w->from_ns, w->to_ns, &t);
    if (status != BRG_OK)
        return status;
    json_t *lanes = json_array();
    for (size_t i = 0; i < t.nlanes; i++)
        json_array_append_new(lanes, lane_json(&t, &t.lanes[i], w, names, indices));
    json_array_append_new(
        ranks, json_pack("{s:I,s:o}", "rank", (json_int_t)rank->trace->rank, "lanes", lanes));
    timeline_free(&t);
    return BRG_OK;
}

/* NULL: *status says why. The rank that is shown comes first. */
static json_t *timeline_json(const report *r, brg_status *status)
{
    window w;
    if (!window_choose(r, &w))
        return NULL;
    json_t *ranks = json_array(), *names = json_array(), *indices = json_object();
    *status = rank_json(r->shown, &w, ranks, names, indices);
    for (size_t i = 0; *status == BRG_OK && i < r->nranks && json_array_size(ranks) < RANKS_MAX;
         i++)
        if (&r->ranks[i] != r->shown && report_exports(r, &r->ranks[i]))
            *status = rank_json(&r->ranks[i], &w, ranks, names, indices);
    json_decref(indices);
    return json_pack("{s:I,s:i,s:o,s:o}", "length_ns", (json_int_t)(w.to_ns - w.from_ns), "steps",
                     (int)w.nsteps, "names", names, "ranks", ranks);
}

/* JSON inside of a script element: nothing may look like the end of it. */
static void data_put(FILE *out, const char *json)
{
    for (; *json; json++)
        if (strchr("<>&", *json))
            fprintf(out, "\\u%04x", (unsigned)*json);
        else
            putc(*json, out);
}

brg_status report_html(const report *r, FILE *out)
{
    brg_status status = BRG_OK;
    json_t *root = json_object();
    json_object_set_new(root, "report", report_document(r));
    json_object_set_new(root, "timeline", timeline_json(r, &status));
    char *json = json_object_get(root, "timeline")
                     ? json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9))
                     : NULL;
    json_decref(root);
    if (status == BRG_OK && !json)
        status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its page", r->path);
    if (status == BRG_OK) {
        const char *mark = strstr(page, DATA_MARK);
        fwrite(page, 1, (size_t)(mark - page), out);
        data_put(out, json);
        fputs(mark + strlen(DATA_MARK), out);
    }
    free(json);
    return status;
}
