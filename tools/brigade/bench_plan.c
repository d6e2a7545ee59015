/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench plan: how long planning takes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "brigade/layout.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/cli.h"

#define NAME_BYTES 48

static int64_t runs = 5, num_params = 100000, dp = 4096;
static bool json;

static const cli_option options[] = {
    {.name = "runs",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &runs,
     .metavar = "N",
     .min = 1,
     .max = 1000,
     .help = "Runs of each measurement, of which the median is printed (default: 5)."},
    {.name = "num-params",
     .type = CLI_INT,
     .dest = &num_params,
     .metavar = "N",
     .min = 1,
     .max = 10000000,
     .help = "Parameters of the synthetic model (default: 100000)."},
    {.name = "dp",
     .type = CLI_INT,
     .dest = &dp,
     .metavar = "N",
     .min = 1,
     .max = 1 << 20,
     .help = "Data-parallel ranks for the synthetic model (default: 4096)."},
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench plan",
    .summary = "Time the planners on a large synthetic model and on an 8-billion-parameter one.",
    .usage = "[--runs N] [--num-params N] [--dp N] [--json]",
    .details = "Times include checking the parameters and the finished layout, as in a trainer.",
    .options = options,
};

typedef struct model {
    brg_param *params;
    char (*names)[NAME_BYTES];
    int count, capacity;
} model;

static void free_model(model *m)
{
    free(m->params);
    free(m->names);
}

static bool init_model(model *m, int capacity)
{
    m->params = calloc((size_t)capacity, sizeof *m->params);
    m->names = calloc((size_t)capacity, sizeof *m->names);
    m->capacity = capacity;
    return m->params && m->names;
}

/* A matrix, or a vector if `columns` is 0. */
static void add_param(model *m, int layer, const char *name, int64_t rows, int64_t columns,
                      uint32_t flags)
{
    if (m->count == m->capacity)
        return;
    snprintf(m->names[m->count], NAME_BYTES, "layers.%d.%s", layer, name);
    m->params[m->count] = (brg_param){
        .name = m->names[m->count],
        .num_dims = columns ? 2 : 1,
        .shape = {rows, columns},
        .dtype = BRG_BFLOAT16,
        .flags = flags,
    };
    m->count++;
}

/* Llama 3 8B on one of 4 tensor-parallel ranks: 32 layers, hidden 4096, 32 heads and 8 groups of
 * 128, feed-forward 14336, vocabulary 128256, untied output. */
static bool make_llama_8b(model *m)
{
    const int64_t hidden = 4096, heads = 32, groups = 8, head = 128, ffn = 14336, tensor = 4;
    const int64_t vocabulary = 128256;
    const int layers = 32;
    if (!init_model(m, 3 + 6 * layers))
        return false;
    add_param(m, 0, "embedding", vocabulary / tensor, hidden, BRG_PARAM_EMBEDDING_OR_OUTPUT);
    for (int i = 0; i < layers; i++) {
        add_param(m, i, "attention_norm", hidden, 0, 0);
        add_param(m, i, "attention_qkv", (heads + 2 * groups) * head / tensor, hidden, 0);
        add_param(m, i, "attention_out", hidden, heads * head / tensor, 0);
        add_param(m, i, "mlp_norm", hidden, 0, 0);
        add_param(m, i, "mlp_up", 2 * ffn / tensor, hidden, 0);
        add_param(m, i, "mlp_down", hidden, ffn / tensor, 0);
    }
    add_param(m, layers, "final_norm", hidden, 0, 0);
    add_param(m, layers, "output", vocabulary / tensor, hidden, BRG_PARAM_EMBEDDING_OR_OUTPUT);
    return true;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Mostly matrices of all proportions, an eighth vectors; always the same. */
static bool make_synthetic(model *m, int count)
{
    uint64_t state = 1;
    if (!init_model(m, count))
        return false;
    for (int i = 0; i < count; i++) {
        int64_t rows = (int64_t)(1 + next_random(&state) % 4096);
        int64_t columns = (int64_t)(1 + next_random(&state) % 4096);
        add_param(m, i, "weight", rows, i % 8 == 7 ? 0 : columns, 0);
    }
    return true;
}

typedef struct measurement {
    const char *label;
    const model *model;
    brg_layout_options options;
    double median_ms, min_ms, max_ms;
    int num_buckets;
} measurement;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int measure(measurement *m)
{
    double *times = calloc((size_t)runs, sizeof *times);
    int code = CLI_OK;
    if (!times)
        return cli_fail(&command, CLI_INPUT, "no memory for %lld runs", (long long)runs);
    for (int64_t i = 0; i < runs && code == CLI_OK; i++) {
        brg_layout *layout;
        double start = now_ms();
        if (brg_layout_compute(m->model->params, m->model->count, &m->options, &layout) != BRG_OK) {
            code = cli_fail(&command, CLI_INPUT, "%s: %s", m->label, brg_last_error());
            break;
        }
        times[i] = now_ms() - start;
        m->num_buckets = brg_layout_num_buckets(layout);
        brg_layout_destroy(layout);
    }
    m->median_ms = bench_median(times, runs); /* and sorts */
    m->min_ms = times[0];
    m->max_ms = times[runs - 1];
    free(times);
    return code;
}

static void print_measurement(const measurement *m, bool first)
{
    const char *size = m->options.bucket_size == BRG_BUCKET_SIZE_NONE ? "none" : "default";
    if (json)
        printf(
            "%s{\"planner\":\"%s\",\"params\":%d,\"dp\":%d,\"bucket_size\":\"%s\",\"buckets\":%d,"
            "\"median_ms\":%.4f,\"min_ms\":%.4f,\"max_ms\":%.4f}",
            first ? "" : ",", m->label, m->model->count, m->options.data_parallel_size, size,
            m->num_buckets, m->median_ms, m->min_ms, m->max_ms);
    else
        printf("%-12s %9d %6d %12s %8d %11.3f %11.3f %11.3f\n", m->label, m->model->count,
               m->options.data_parallel_size, size, m->num_buckets, m->median_ms, m->min_ms,
               m->max_ms);
}

static int measure_all(const model *synthetic, const model *llama)
{
    static const struct {
        const char *label;
        brg_algorithm algorithm;
        brg_packing packing;
    } planners[] = {
        {"flat", BRG_FLAT, BRG_PACKING_DEFAULT},
        {"elementwise", BRG_ELEMENTWISE, BRG_PACKING_DEFAULT},
        {"lpt", BRG_LAYERWISE, BRG_PACKING_LPT},
        {"absorb", BRG_LAYERWISE, BRG_PACKING_ABSORB},
        {"ns-balanced", BRG_LAYERWISE, BRG_PACKING_NS_BALANCED},
    };
    const int count = sizeof planners / sizeof planners[0];

    if (json)
        printf("{\"schema\":1,\"runs\":%lld,\"results\":[", (long long)runs);
    else
        printf("%lld runs each\n%-12s %9s %6s %12s %8s %11s %11s %11s\n", (long long)runs,
               "planner", "params", "dp", "bucket size", "buckets", "median ms", "min ms",
               "max ms");
    for (int i = 0; i < 3 * count; i++) {
        /* By default bucket size, then in one bucket, then the small model. */
        measurement m = {.label = planners[i % count].label,
                         .model = i < 2 * count ? synthetic : llama};
        m.options.algorithm = planners[i % count].algorithm;
        m.options.packing = planners[i % count].packing;
        m.options.data_parallel_size = m.model == synthetic ? (int)dp : 8;
        if (i / count == 1)
            m.options.bucket_size = BRG_BUCKET_SIZE_NONE;
        int code = measure(&m);
        if (code != CLI_OK)
            return code;
        print_measurement(&m, i == 0);
    }
    if (json)
        printf("]}\n");
    return CLI_OK;
}

static int bench_plan_run(int argc, char **argv)
{
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    model synthetic = {0}, llama = {0};
    if (make_synthetic(&synthetic, (int)num_params) && make_llama_8b(&llama))
        code = measure_all(&synthetic, &llama);
    else
        code =
            cli_fail(&command, CLI_INPUT, "no memory for %lld parameters", (long long)num_params);
    free_model(&synthetic);
    free_model(&llama);
    return code == CLI_OK ? cli_finish(&command, CLI_OK) : code;
}

const cli_entry cli_bench_plan = {&command, bench_plan_run};
