/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the report's JSON that say how a trace without steps was read. */
#include <math.h>

#include "brigade/dtype.h"
#include "tools/brigade/report.h"

static json_t *number(double value)
{
    return json_integer((json_int_t)round(value));
}

static json_t *stat(const brg_stat *s)
{
    if (!s->n)
        return json_null();
    return json_pack("{s:o,s:o,s:o,s:o,s:I}", "median", number(s->median), "p95", number(s->p95),
                     "min", number(s->min), "max", number(s->max), "n", (json_int_t)s->n);
}

static json_t *waste_json(const brg_recognition *g)
{
    static const char *const kinds[] = {[BRG_WASTE_GATHERED] = "gathered_again",
                                        [BRG_WASTE_REDUCED] = "reduced_again",
                                        [BRG_WASTE_TINY] = "tiny"};
    json_t *array = json_array();
    for (size_t i = 0; i < g->nwaste; i++) {
        const brg_waste *w = &g->waste[i];
        json_array_append_new(
            array,
            json_pack("{s:s,s:b,s:I,s:o,s:s,s:s,s:I,s:f,s:f,s:o,s:o}", "kind", kinds[w->kind],
                      "by_design", w->by_design, "comm", (json_int_t)w->comm, "bucket",
                      w->bucket == BRG_NO_BUCKET ? json_null() : json_integer(w->bucket), "func",
                      report_func_name(w->func), "dtype", brg_dtype_str((brg_dtype)w->dtype),
                      "steps", (json_int_t)w->steps, "per_step", w->count, "could_be", w->runs,
                      "bytes", number(w->bytes), "time_ns",
                      w->time_ns > 0 ? number(w->time_ns) : json_null()));
    }
    return array;
}

json_t *report_recognition_json(const report *r)
{
    const brg_recognition *g = r->shown->data.recognition;
    if (!g)
        return json_null();
    return json_pack("{s:I,s:o,s:b,s:b,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}",
                     "comm", (json_int_t)g->comm.comm, "comm_size",
                     g->comm.size == UINT32_MAX ? json_null() : json_integer(g->comm.size),
                     "by_address", g->by_address, "gathers_first", g->gathers_first, "micro_steps",
                     (json_int_t)g->micro_steps, "micro_steps_known", g->micro_steps_known, "steps",
                     (json_int_t)g->steps_whole, "steps_lossy", (json_int_t)g->steps_lossy,
                     "steps_untimed", (json_int_t)g->steps_untimed, "steps_unlike",
                     (json_int_t)g->steps_unlike, "reductions_before", (json_int_t)g->early,
                     "collectives", (json_int_t)g->collectives, "recognised",
                     (json_int_t)g->recognised, "unfinished", (json_int_t)g->unfinished, "untimed",
                     (json_int_t)g->untimed, "captured", (json_int_t)g->captured,
                     "timed_by_kernels", (json_int_t)g->timed_by_kernels, "waste", waste_json(g));
}

static json_t *arrival_ranks_json(const brg_arrivals *a)
{
    json_t *array = json_array();
    for (size_t i = 0; i < a->nranks; i++) {
        const brg_rank_arrivals *rank = &a->ranks[i];
        bool known = rank->shared > 0;
        json_array_append_new(
            array, json_pack("{s:I,s:o,s:o,s:o,s:I,s:I,s:o}", "rank", (json_int_t)rank->rank,
                             "clock_offset_ns", known ? number(rank->offset_ns) : json_null(),
                             "clock_drift", known ? json_real(rank->drift) : json_null(),
                             "clock_error_ns", known ? number(rank->error_ns) : json_null(),
                             "collectives", (json_int_t)rank->shared, "last",
                             (json_int_t)rank->last, "late_ns", stat(&rank->late)));
    }
    return array;
}

json_t *report_arrivals_json(const report *r)
{
    const brg_arrivals *a = &r->arrivals;
    if (!a->matched)
        return json_null();
    json_t *buckets = json_array();
    for (size_t i = 0; i < a->nbuckets; i++) {
        const brg_bucket_arrivals *b = &a->buckets[i];
        json_array_append_new(
            buckets,
            json_pack("{s:I,s:s,s:o,s:o,s:o,s:I,s:f}", "bucket", (json_int_t)b->bucket, "reason",
                      report_reason_name(b->reason), "spread_ns", stat(&b->spread), "transfer_ns",
                      stat(&b->transfer), "wait_ns", stat(&b->wait), "last_rank",
                      (json_int_t)b->last_rank, "last_share", b->last_share));
    }
    return json_pack("{s:I,s:I,s:o,s:o,s:o}", "matched", (json_int_t)a->matched, "unlike",
                     (json_int_t)a->unlike, "error_ns", number(a->error_ns), "ranks",
                     arrival_ranks_json(a), "buckets", buckets);
}

json_t *report_groups_json(const brg_group_report *list, size_t count, bool funcs)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *object = json_pack("{s:o,s:o,s:o}", "count", stat(&list[i].count), "bytes",
                                   stat(&list[i].bytes), "time_ns", stat(&list[i].time));
        json_object_set_new(object, funcs ? "func" : "comm",
                            funcs ? json_string(report_func_name(list[i].id))
                                  : json_integer(list[i].id));
        json_array_append_new(array, object);
    }
    return array;
}
