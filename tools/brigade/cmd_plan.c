/* SPDX-License-Identifier: Apache-2.0 */
/* brigade plan: computes a layout from a list of parameters, or checks one that exists. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "brigade/layout.h"
#include "tools/brigade/cli.h"
#include "tools/brigade/params.h"

static const char *const algorithm_words[] = {"layerwise", "elementwise", "flat", NULL};
static const char *const packing_words[] = {"ns-balanced", "lpt", "absorb", NULL};

static const brg_algorithm algorithm_values[] = {BRG_LAYERWISE, BRG_ELEMENTWISE, BRG_FLAT};
static const brg_packing packing_values[] = {BRG_PACKING_NS_BALANCED, BRG_PACKING_LPT,
                                             BRG_PACKING_ABSORB};

static struct {
    const char *params_file, *check_file, *bucket_size;
    int64_t dp, expert_dp, num_buckets;
    int algorithm, packing;
    bool pad_bus_bandwidth, pad_param_starts, json;
} opt;

static struct {
    bool dp, expert_dp, num_buckets, algorithm, packing;
} given;

static const cli_option options[] = {
    {.name = "params",
     .short_name = 'p',
     .type = CLI_STRING,
     .dest = &opt.params_file,
     .metavar = "FILE",
     .help = "JSON list of parameters in model-definition order; - reads standard input."},
    {.name = "dp",
     .type = CLI_INT,
     .dest = &opt.dp,
     .metavar = "N",
     .min = 1,
     .max = INT32_MAX,
     .given = &given.dp,
     .help = "Data-parallel ranks: the shards of a bucket."},
    {.name = "expert-dp",
     .type = CLI_INT,
     .dest = &opt.expert_dp,
     .metavar = "N",
     .min = 1,
     .max = INT32_MAX,
     .given = &given.expert_dp,
     .help = "Data-parallel ranks of expert-parallel parameters (default: as --dp)."},
    {.name = "bucket-size",
     .type = CLI_STRING,
     .dest = &opt.bucket_size,
     .metavar = "N|none",
     .help = "Elements at which a bucket closes; none makes one bucket per buffer (default: the "
             "larger of 40000000 and 1000000 for every rank)."},
    {.name = "num-buckets",
     .type = CLI_INT,
     .dest = &opt.num_buckets,
     .metavar = "N",
     .min = 1,
     .max = INT32_MAX,
     .given = &given.num_buckets,
     .help = "Bucket size as all elements of the model divided by N."},
    {.name = "algorithm",
     .short_name = 'a',
     .type = CLI_CHOICE,
     .dest = &opt.algorithm,
     .choices = algorithm_words,
     .given = &given.algorithm,
     .help = "layerwise keeps matrices for Muon whole in a shard, elementwise cuts anywhere, flat "
             "has no padding (default: layerwise)."},
    {.name = "packing",
     .type = CLI_CHOICE,
     .dest = &opt.packing,
     .choices = packing_words,
     .given = &given.packing,
     .help = "How layerwise packs matrices into shards (default: ns-balanced)."},
    {.name = "pad-bus-bandwidth",
     .type = CLI_FLAG,
     .dest = &opt.pad_bus_bandwidth,
     .help = "Pad bucket ends to a multiple of 65536 elements as well."},
    {.name = "pad-param-starts",
     .type = CLI_FLAG,
     .dest = &opt.pad_param_starts,
     .help = "With flat: start every parameter at a multiple of 64 elements."},
    {.name = "check",
     .type = CLI_STRING,
     .dest = &opt.check_file,
     .metavar = "LAYOUT",
     .help = "Plan nothing; check that the JSON layout in this file is a valid one for --params."},
    {.name = "json", .type = CLI_FLAG, .dest = &opt.json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "plan",
    .summary = "Compute where each parameter lives: buffers, buckets, shards.",
    .usage = "--params FILE --dp N [options] | --params FILE --check LAYOUT",
    .details =
        "FILE is a JSON array of objects: name (string), shape (array of integers), dtype "
        "(\"bf16\", "
        "\"fp32\", ...) and, where they apply, shared_embedding, expert_parallel, "
        "embedding_or_output, quantized (true), use_muon (false) and gtp_remat_size (an integer). "
        "Other fields are ignored.\n\n"
        "Exit status: 0 on success, 1 if --check finds a fault in the layout, 2 for wrong usage, 3 "
        "if a file cannot be read or used.\n\n"
        "  brigade plan --params model.json --dp 8 --num-buckets 6\n"
        "  brigade plan --params model.json --dp 8 --json > layout.json\n"
        "  brigade plan --params model.json --check layout.json",
    .options = options,
};

/* ---- output ---- */

/* "1,234,567" */
static const char *grouped(char text[32], int64_t value)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

static double percent(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void print_head(const brg_layout *layout)
{
    const brg_layout_options *used = brg_layout_get_options(layout);
    char text[32];
    printf("%s", algorithm_words[opt.algorithm]);
    if (used->algorithm == BRG_LAYERWISE)
        printf(", packing %s", packing_words[opt.packing]);
    printf(", dp %d", used->data_parallel_size);
    if (used->expert_data_parallel_size != used->data_parallel_size)
        printf(", expert dp %d", used->expert_data_parallel_size);
    if (used->bucket_size == BRG_BUCKET_SIZE_NONE)
        printf(", one bucket per buffer\n");
    else if (used->bucket_size == BRG_BUCKET_SIZE_SMALLEST)
        printf(", smallest buckets\n");
    else
        printf(", bucket size %s\n", grouped(text, used->bucket_size));
}

static void print_summary(const brg_layout *layout)
{
    char a[32], b[32];
    int64_t elements = 0, padded = 0;
    printf("\n%-20s %7s %8s %8s %16s %16s %9s %9s\n", "buffer", "shards", "params", "buckets",
           "elements", "with padding", "padding %", "NS ratio");
    for (int i = 0; i < brg_layout_num_buffers(layout); i++) {
        const brg_layout_buffer *buffer = brg_layout_get_buffer(layout, i);
        char ratio[32] = "-";
        if (buffer->key.layerwise)
            snprintf(ratio, sizeof ratio, "%.3f", buffer->ns_ratio);
        printf("%-20s %7d %8d %8d %16s %16s %9.2f %9s\n", buffer->name, buffer->num_shards,
               buffer->num_params, buffer->num_buckets, grouped(a, buffer->numel_unpadded),
               grouped(b, buffer->numel),
               percent(buffer->numel - buffer->numel_unpadded, buffer->numel_unpadded), ratio);
        elements += buffer->numel_unpadded;
        padded += buffer->numel;
    }
    printf("%-20s %7s %8d %8d %16s %16s %9.2f\n", "total", "", brg_layout_num_params(layout),
           brg_layout_num_buckets(layout), grouped(a, elements), grouped(b, padded),
           percent(padded - elements, elements));
}

static void print_buckets(const brg_layout_buffer *buffer)
{
    char a[32], b[32], c[32];
    int next = 0; /* parameters are in order of start, so in order of buckets */
    printf("\n%s\n%8s %20s %20s %8s %18s %9s\n", buffer->name, "bucket", "start", "end", "params",
           "elements", "padding %");
    for (int i = 0; i < buffer->num_buckets; i++) {
        const brg_layout_bucket *bucket = &buffer->buckets[i];
        int first = next;
        int64_t elements = 0;
        for (; next < buffer->num_params && buffer->params[next].bucket == i; next++)
            elements += buffer->params[next].end - buffer->params[next].start;
        printf("%8d %20s %20s %8d %18s %9.2f\n", i, grouped(a, bucket->start),
               grouped(b, bucket->end), next - first, grouped(c, elements),
               percent(bucket->end - bucket->start - elements, elements));
    }
}

static int print_layout(const brg_layout *layout)
{
    if (opt.json) {
        char *text;
        if (brg_layout_to_json(layout, &text) != BRG_OK)
            return cli_fail(&command, CLI_INPUT, "%s", brg_last_error());
        puts(text);
        brg_free(text);
    } else {
        print_head(layout);
        print_summary(layout);
        for (int i = 0; i < brg_layout_num_buffers(layout); i++)
            print_buckets(brg_layout_get_buffer(layout, i));
    }
    return cli_finish(&command, CLI_OK);
}

/* ---- the two things that it does ---- */

static int parse_bucket_size(int64_t *bucket_size)
{
    char *end;
    if (!opt.bucket_size)
        return CLI_OK;
    if (strcmp(opt.bucket_size, "none") == 0) {
        *bucket_size = BRG_BUCKET_SIZE_NONE;
        return CLI_OK;
    }
    size_t digits = strspn(opt.bucket_size, "0123456789");
    unsigned long long value = strtoull(opt.bucket_size, &end, 10);
    if (digits == 0 || digits > 18 || *end)
        return cli_fail(&command, CLI_USAGE,
                        "--bucket-size is '%s', expected a number of elements or none",
                        opt.bucket_size);
    *bucket_size = value ? (int64_t)value : BRG_BUCKET_SIZE_SMALLEST;
    return CLI_OK;
}

static int plan(const params_list *list, int64_t bucket_size)
{
    brg_layout_options wanted = {
        .size = sizeof wanted,
        .algorithm = algorithm_values[opt.algorithm],
        .packing = packing_values[opt.packing],
        .data_parallel_size = (int)opt.dp,
        .expert_data_parallel_size = (int)opt.expert_dp,
        .bucket_size = bucket_size,
        .num_buckets = opt.num_buckets,
        .pad_for_high_bus_bandwidth = opt.pad_bus_bandwidth,
        .pad_param_starts = opt.pad_param_starts,
    };
    brg_layout *layout;
    if (brg_layout_compute(list->params, list->count, &wanted, &layout) != BRG_OK)
        return cli_fail(&command, CLI_INPUT, "%s: %s", opt.params_file, brg_last_error());
    int code = print_layout(layout);
    brg_layout_destroy(layout);
    return code;
}

static int print_verdict(const char *problem)
{
    if (opt.json) {
        json_t *verdict = json_pack("{s:i, s:b, s:s?}", "schema", 1, "valid", problem == NULL,
                                    "problem", problem);
        char *text = verdict ? json_dumps(verdict, JSON_COMPACT) : NULL;
        if (text)
            puts(text);
        free(text);
        json_decref(verdict);
    } else if (!problem) {
        printf("%s: valid\n", opt.check_file);
    }
    if (problem)
        cli_fail(&command, CLI_FINDING, "%s: %s", opt.check_file, problem);
    return cli_finish(&command, problem ? CLI_FINDING : CLI_OK);
}

static int check(const params_list *list)
{
    json_t *root;
    brg_layout *layout;
    int code = params_load_json(&command, opt.check_file, &root);
    if (code != CLI_OK)
        return code;
    const json_t *schema = json_object_get(root, "schema");
    bool known = json_is_integer(schema) && json_integer_value(schema) == 1;
    char *text = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (!known || !text) {
        free(text);
        return cli_fail(&command, CLI_INPUT, "%s: not a layout of schema 1", opt.check_file);
    }
    brg_status status =
        brg_layout_from_json(text, strlen(text), list->params, list->count, &layout);
    free(text);
    if (status == BRG_OK) {
        brg_layout_destroy(layout);
        return print_verdict(NULL);
    }
    if (status == BRG_ERR_FORMAT)
        return print_verdict(brg_last_error());
    return cli_fail(&command, CLI_INPUT, "%s: %s", opt.params_file, brg_last_error());
}

/* What must or must not be given together. */
static int check_usage(void)
{
    if (!opt.params_file)
        return cli_fail(&command, CLI_USAGE, "--params FILE is missing");
    if (opt.check_file) {
        if (given.dp || given.expert_dp || given.num_buckets || given.algorithm || given.packing ||
            opt.bucket_size || opt.pad_bus_bandwidth || opt.pad_param_starts)
            return cli_fail(&command, CLI_USAGE, "--check takes no options about planning");
        if (strcmp(opt.params_file, "-") == 0 && strcmp(opt.check_file, "-") == 0)
            return cli_fail(&command, CLI_USAGE, "--params and --check both read standard input");
        return CLI_OK;
    }
    if (!given.dp)
        return cli_fail(&command, CLI_USAGE, "--dp N is missing");
    if (opt.bucket_size && given.num_buckets)
        return cli_fail(&command, CLI_USAGE,
                        "--bucket-size and --num-buckets are both given, expected one");
    return CLI_OK;
}

static int plan_run(int argc, char **argv)
{
    params_list list = {0};
    int64_t bucket_size = BRG_BUCKET_SIZE_DEFAULT;
    int first;
    int code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    code = check_usage();
    if (code == CLI_OK)
        code = parse_bucket_size(&bucket_size);
    if (code == CLI_OK)
        code = params_load(&command, opt.params_file, &list);
    if (code != CLI_OK)
        return code;
    code = opt.check_file ? check(&list) : plan(&list, bucket_size);
    params_free(&list);
    return code;
}

const cli_entry cli_plan = {&command, plan_run};
