/* SPDX-License-Identifier: Apache-2.0 */
/* The report as one JSON document, schema 1. Times are integers, in ns; null is what is not known.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/report.h"

static json_t *count_number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *ns(double value)
{
    return json_integer((json_int_t)fmin(fmax(round(value), -9e18), 9e18));
}

static json_t *median_ns(const brg_stat *stat)
{
    return stat->n ? ns(stat->median) : json_null();
}

static json_t *median_real(const brg_stat *stat)
{
    return stat->n ? json_real(stat->median) : json_null();
}

static json_t *stat_ns(const brg_stat *stat)
{
    if (!stat->n)
        return json_null();
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "median", ns(stat->median), "p95", ns(stat->p95),
                     "min", ns(stat->min), "max", ns(stat->max), "n", count_number(stat->n));
}

static json_t *stat_real(const brg_stat *stat)
{
    if (!stat->n)
        return json_null();
    return json_pack("{s:f,s:f,s:f,s:f,s:o}", "median", stat->median, "p95", stat->p95, "min",
                     stat->min, "max", stat->max, "n", count_number(stat->n));
}

/* Text of the trace need not be UTF-8. */
static json_t *text(const char *bytes)
{
    json_t *string = json_string(bytes);
    if (string)
        return string;
    size_t length = strlen(bytes);
    char *copy = malloc(length + 1);
    if (!copy)
        return NULL;
    for (size_t i = 0; i <= length; i++)
        copy[i] = (unsigned char)bytes[i] < 0x80 ? bytes[i] : '?';
    string = json_string(copy);
    free(copy);
    return string;
}

/* A part of the typical step; null when it is not known. */
static json_t *typical_ns(int64_t time_ns, const brg_stat *stat)
{
    return stat->n ? json_integer(time_ns) : json_null();
}

static json_t *steps_json(const brg_rank_report *data)
{
    const brg_partition *p = &data->typical;
    json_t *steps = json_pack(
        "{s:i,s:i,s:i,s:i,s:i,s:b,s:o,s:o,s:o,s:o,s:o,s:o}", "recorded", (int)data->steps_recorded,
        "warmup", (int)data->steps_warmup, "incomplete", (int)data->steps_incomplete, "used",
        (int)data->steps_used, "graph_replays", (int)data->steps_replayed, "compute_recorded",
        data->compute_recorded, "step_ns", typical_ns(p->step_ns, &data->step), "compute_ns",
        typical_ns(p->compute_ns, &data->compute), "communication_ns",
        typical_ns(p->communication_ns, &data->communication), "overlapped_ns",
        typical_ns(p->overlapped_ns, &data->overlapped), "exposed_ns",
        typical_ns(p->exposed_ns, &data->exposed), "idle_ns", typical_ns(p->idle_ns, &data->idle));
    json_t *distribution =
        json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "step_ns", stat_ns(&data->step), "compute_ns",
                  stat_ns(&data->compute), "communication_ns", stat_ns(&data->communication),
                  "overlapped_ns", stat_ns(&data->overlapped), "exposed_ns",
                  stat_ns(&data->exposed), "idle_ns", stat_ns(&data->idle));
    if (steps)
        json_object_set_new(steps, "distribution", distribution);
    return steps;
}

/* One number when it is the same in all steps of all ranks, else the mean. */
static json_t *count_json(const report_count *count)
{
    if (count->min == count->max)
        return count_number(count->min);
    return json_real((double)count->total / (double)count->steps);
}

static void counts_set(json_t *object, const report *r, uint32_t id)
{
    static const char *const names[] = {[REPORT_REDUCE_SCATTERS] = "reduce_scatters",
                                        [REPORT_ALL_GATHERS] = "all_gathers",
                                        [REPORT_ALL_REDUCES] = "all_reduces"};
    bool constant = true;
    char key[64];
    for (int func = REPORT_REDUCE_SCATTERS; func <= REPORT_ALL_REDUCES; func++) {
        report_count count = report_count_of(r, id, (report_func)func);
        constant = constant && count.min == count.max;
        snprintf(key, sizeof key, "%s_per_step", names[func]);
        json_object_set_new(object, key, count_json(&count));
        snprintf(key, sizeof key, "%s_min", names[func]);
        json_object_set_new(object, key, count_number(count.min));
        snprintf(key, sizeof key, "%s_max", names[func]);
        json_object_set_new(object, key, count_number(count.max));
    }
    json_object_set_new(object, "counts_constant", json_boolean(constant));
}

static json_t *bucket_json(const report *r, const brg_bucket_report *b)
{
    const brg_meta_bucket *meta = &b->meta;
    json_t *object = json_object();
    json_object_set_new(object, "id", json_integer(b->id));
    json_object_set_new(object, "name", b->described ? text(meta->name) : json_null());
    json_object_set_new(object, "group", b->described ? json_integer(meta->group) : json_null());
    const struct {
        const char *name;
        uint64_t value;
    } sizes[] = {
        {"grad_bytes", meta->grad_bytes}, {"param_bytes", meta->param_bytes},
        {"numel", meta->numel},           {"numel_unpadded", meta->numel_unpadded},
        {"num_params", meta->num_params}, {"num_shards", meta->num_shards},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(object, sizes[i].name,
                            b->described ? count_number(sizes[i].value) : json_null());
    counts_set(object, r, b->id);
    const struct {
        const char *name;
        const brg_stat *stat;
    } times[] = {
        {"ready_ns", &b->ready},
        {"issued_ns", &b->reduce_issued},
        {"start_ns", &b->reduce_start},
        {"end_ns", &b->reduce_end},
        {"reduce_ns", &b->reduce_time},
        {"gather_issued_ns", &b->gather_issued},
        {"gather_start_ns", &b->gather_start},
        {"gather_end_ns", &b->gather_end},
        {"gather_ns", &b->gather_time},
        {"wait_ns", &b->wait},
        {"reduce_wait_ns", &b->reduce_wait},
        {"gather_wait_ns", &b->gather_wait},
        {"exposed_ns", &b->exposed},
    };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        json_object_set_new(object, times[i].name, median_ns(times[i].stat));
    json_object_set_new(object, "reduce_busbw_gbps", median_real(&b->reduce_busbw));
    json_object_set_new(object, "gather_busbw_gbps", median_real(&b->gather_busbw));
    json_object_set_new(object, "reduce_group", median_ns(&b->reduce_group));
    json_object_set_new(object, "gather_group", median_ns(&b->gather_group));
    json_t *distribution = json_object();
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        json_object_set_new(distribution, times[i].name, stat_ns(times[i].stat));
    json_object_set_new(distribution, "reduce_busbw_gbps", stat_real(&b->reduce_busbw));
    json_object_set_new(distribution, "gather_busbw_gbps", stat_real(&b->gather_busbw));
    json_object_set_new(object, "distribution", distribution);
    return object;
}

static json_t *named_json(const brg_named_report *list, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_pack("{s:o,s:o,s:o}", "name", text(list[i].name),
                                               "time_ns", median_ns(&list[i].time), "distribution",
                                               stat_ns(&list[i].time)));
    return array;
}

static json_t *rank_json(const report_rank *rank)
{
    const brg_trace *trace = rank->trace;
    const brg_rank_report *data = &rank->data;
    json_t *object = json_pack(
        "{s:I,s:I,s:I,s:o,s:b,s:o,s:o,s:o,s:o,s:o}", "rank", (json_int_t)trace->rank, "pid",
        (json_int_t)trace->pid, "gpu", (json_int_t)trace->gpu, "file", text(trace->path), "closed",
        trace->closed, "records", count_number(trace->written), "drops", count_number(trace->drops),
        "torn", count_number(trace->torn), "overwritten", count_number(trace->overwritten),
        "invalid", count_number(trace->invalid));
    if (!object)
        return NULL;
    json_object_set_new(object, "steps", rank->usable ? steps_json(data) : json_null());
    json_object_set_new(object, "replay_error", median_real(&data->replay_error));
    return object;
}

static json_t *missing_json(const report *r)
{
    enum { LISTED_MAX = 10000 }; /* a damaged world size must not fill the memory */
    json_t *array = json_array();
    size_t next = 0;
    for (uint32_t rank = 0; rank < r->world && json_array_size(array) < LISTED_MAX; rank++) {
        if (next < r->nranks && r->ranks[next].trace->rank == rank)
            next++;
        else if (json_array_append_new(array, json_integer(rank)))
            break;
    }
    return array;
}

static json_t *info_json(const brg_trace *trace)
{
    json_t *object = json_object();
    for (size_t i = 0; i < trace->ninfos; i++) {
        json_t *key = text(trace->infos[i].key);
        if (key)
            json_object_set_new(object, json_string_value(key), text(trace->infos[i].value));
        json_decref(key);
    }
    return object;
}

static json_t *spread_json(const report *r)
{
    if (!r->shown->data.compute_known)
        return json_null();
    double low = r->fastest->data.compute.median, high = r->slowest->data.compute.median;
    return json_pack("{s:I,s:o,s:I,s:o,s:f}", "fastest_rank", (json_int_t)r->fastest->trace->rank,
                     "fastest_compute_ns", ns(low), "slowest_rank",
                     (json_int_t)r->slowest->trace->rank, "slowest_compute_ns", ns(high),
                     "relative", low > 0 ? high / low - 1 : 0.0);
}

static json_t *replay_json(const brg_rank_report *data)
{
    return json_pack("{s:o,s:o,s:o}", "error", median_real(&data->replay_error), "exposed_ns",
                     median_ns(&data->exposed_all), "distribution", stat_real(&data->replay_error));
}

json_t *report_document(const report *r)
{
    static const char *const exposed_from[] = {[BRG_EXPOSED_UNKNOWN] = "unknown",
                                               [BRG_EXPOSED_WAITS] = "waits",
                                               [BRG_EXPOSED_KERNELS] = "kernels"};
    const brg_rank_report *data = &r->shown->data;
    json_t *root = json_object();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "path", text(r->path));
    json_object_set_new(root, "world", json_integer(r->world));
    json_object_set_new(root, "rank", json_integer(r->shown->trace->rank));
    json_object_set_new(root, "info", info_json(r->shown->trace));
    json_object_set_new(root, "steps", steps_json(data));
    json_object_set_new(root, "replay", replay_json(data));
    json_t *buckets = json_array(), *ranks = json_array(), *warnings = json_array();
    for (size_t i = 0; i < data->nbuckets; i++)
        json_array_append_new(buckets, bucket_json(r, &data->buckets[r->order[i]]));
    for (size_t i = 0; i < r->nranks; i++)
        json_array_append_new(ranks, rank_json(&r->ranks[r->rank_order[i]]));
    for (size_t i = 0; i < r->nwarnings; i++)
        json_array_append_new(warnings, text(r->warnings[i]));
    json_object_set_new(root, "buckets", buckets);
    json_object_set_new(root, "computes", named_json(data->computes, data->ncomputes));
    json_object_set_new(root, "optimizers", named_json(data->optimizers, data->noptimizers));
    json_object_set_new(root, "norm_ns", median_ns(&data->norm));
    json_object_set_new(root, "update_delay_ns", median_ns(&data->update_delay));
    json_object_set_new(root, "other_collectives_ns", median_ns(&data->other_collectives));
    json_object_set_new(root, "comms", report_groups_json(data->comms, data->ncomms, false));
    json_object_set_new(root, "funcs", report_groups_json(data->funcs, data->nfuncs, true));
    json_object_set_new(root, "exposed_from", json_string(exposed_from[data->exposed_from]));
    json_object_set_new(root, "recognition", report_recognition_json(r));
    json_object_set_new(root, "arrivals", report_arrivals_json(r));
    json_object_set_new(root, "ranks", ranks);
    json_object_set_new(root, "spread", spread_json(r));
    json_object_set_new(root, "missing_ranks", missing_json(r));
    json_object_set_new(root, "ends", report_ends_json(r));
    json_object_set_new(root, "drops", count_number(r->drops));
    json_object_set_new(root, "torn", count_number(r->torn));
    json_object_set_new(root, "overwritten", count_number(r->overwritten));
    json_object_set_new(root, "invalid", count_number(r->invalid));
    json_object_set_new(root, "warnings", warnings);
    return root;
}

bool report_json(const report *r)
{
    json_t *root = report_document(r);
    char *document = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (!document)
        return false;
    puts(document);
    free(document);
    return true;
}
