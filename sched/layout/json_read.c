/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what json_write.c writes. Fields that it does not know are ignored; what it knows must be
 * of the right type, and the layout must hold together. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/layout/layout.h"
#include "sched/status.h"

#define SCHEMA 1

/* Where in the document a value stands: "buffers[2].params[17]". */
typedef char where_text[64];

static const char *type_name(const json_t *value)
{
    if (!value)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

static brg_status bad_type(const char *where, const char *field, const json_t *value,
                           const char *expected)
{
    return brg_fail(BRG_ERR_FORMAT, "%s%s%s is %s, expected %s", where, *where && *field ? "." : "",
                    field, type_name(value), expected);
}

static brg_status get_int(const json_t *object, const char *where, const char *field, int64_t min,
                          int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(object, field);
    if (!json_is_integer(value))
        return bad_type(where, field, value, "an integer");
    *out = json_integer_value(value);
    if (*out < min || *out > max)
        return brg_fail(BRG_ERR_FORMAT, "%s%s%s is %lld, expected %lld to %lld", where,
                        *where ? "." : "", field, (long long)*out, (long long)min, (long long)max);
    return BRG_OK;
}

static brg_status get_string(const json_t *object, const char *where, const char *field,
                             const char **out)
{
    const json_t *value = json_object_get(object, field);
    if (!json_is_string(value))
        return bad_type(where, field, value, "a string");
    *out = json_string_value(value);
    return BRG_OK;
}

static brg_status get_array(const json_t *object, const char *where, const char *field,
                            const json_t **out)
{
    *out = json_object_get(object, field);
    if (!json_is_array(*out))
        return bad_type(where, field, *out, "an array");
    return BRG_OK;
}

static bool parse_dtype(const char *text, size_t length, brg_dtype *dtype)
{
    for (int i = 0; brg_dtype_bytes((brg_dtype)i); i++) {
        const char *name = brg_dtype_str((brg_dtype)i);
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            *dtype = (brg_dtype)i;
            return true;
        }
    }
    return false;
}

/* "bf16/fp32/dense/lw" */
static bool parse_key(const char *text, brg_buffer_key *key)
{
    const char *first = strchr(text, '/');
    const char *second = first ? strchr(first + 1, '/') : NULL;
    if (!second || !parse_dtype(text, (size_t)(first - text), &key->param_dtype) ||
        !parse_dtype(first + 1, (size_t)(second - first - 1), &key->grad_dtype))
        return false;
    static const char *const tails[] = {"/dense/std", "/dense/lw", "/expert/std", "/expert/lw"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(second, tails[i]) == 0) {
            key->expert_parallel = i / 2;
            key->layerwise = i % 2;
            return true;
        }
    }
    return false;
}

static brg_status read_algorithm(const json_t *root, brg_layout_options *options)
{
    const char *word = NULL;
    brg_status status = get_string(root, "", "algorithm", &word);
    if (status != BRG_OK)
        return status;
    int algorithm = 0;
    while (brg_algorithm_str((brg_algorithm)algorithm) &&
           strcmp(brg_algorithm_str((brg_algorithm)algorithm), word) != 0)
        algorithm++;
    if (!brg_algorithm_str((brg_algorithm)algorithm))
        return brg_fail(BRG_ERR_FORMAT,
                        "algorithm is \"%s\", expected layerwise, elementwise or flat", word);
    options->algorithm = (brg_algorithm)algorithm;

    const json_t *packing = json_object_get(root, "packing");
    if (options->algorithm != BRG_LAYERWISE && (!packing || json_is_null(packing)))
        return BRG_OK;
    if (!json_is_string(packing))
        return bad_type("", "packing", packing, "a string");
    word = json_string_value(packing);
    for (int i = BRG_PACKING_LPT; brg_packing_str((brg_packing)i); i++) {
        if (strcmp(brg_packing_str((brg_packing)i), word) == 0) {
            options->packing = (brg_packing)i;
            return BRG_OK;
        }
    }
    return brg_fail(BRG_ERR_FORMAT, "packing is \"%s\", expected lpt, absorb or ns-balanced", word);
}

/* The options follow from the document: expert shards and gradient type from the buffers. The
 * bucket size is not in it and does not matter any more. */
static brg_status read_options(const json_t *root, brg_layout *layout)
{
    brg_layout_options options = {.bucket_size = BRG_BUCKET_SIZE_NONE};
    int64_t number;
    brg_status status;

    if (!json_is_object(root))
        return bad_type("the document", "", root, "an object");
    BRG_TRY(get_int(root, "", "schema", INT64_MIN, INT64_MAX, &number), out);
    if (number != SCHEMA)
        return brg_fail(BRG_ERR_FORMAT, "schema is %lld, expected %d", (long long)number, SCHEMA);
    BRG_TRY(read_algorithm(root, &options), out);
    BRG_TRY(get_int(root, "", "dp", 1, INT32_MAX, &number), out);
    options.data_parallel_size = (int)number;
    status = brg_layout_options_resolve(&options, &layout->options);
out:
    return status;
}

static brg_status read_buckets(const json_t *object, const char *where, brg_layout_buffer *buffer)
{
    const json_t *array;
    brg_status status;
    BRG_TRY(get_array(object, where, "buckets", &array), out);
    size_t count = json_array_size(array);
    brg_layout_bucket *buckets = calloc(count ? count : 1, sizeof *buckets);
    if (!buckets)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu buckets", count);
    buffer->buckets = buckets;
    buffer->num_buckets = (int)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        char at[sizeof(where_text) + 32];
        snprintf(at, sizeof at, "%s.buckets[%zu]", where, i);
        if (!json_is_object(item))
            return bad_type(at, "", item, "an object");
        brg_layout_bucket *bucket = &buckets[i];
        BRG_TRY(get_int(item, at, "start", 0, BRG_PLAN_MAX_ELEMS, &bucket->start), out);
        BRG_TRY(get_int(item, at, "end", 0, BRG_PLAN_MAX_ELEMS, &bucket->end), out);
        BRG_TRY(get_int(item, at, "numel_unpadded", 0, BRG_PLAN_MAX_ELEMS, &bucket->numel_unpadded),
                out);
    }
    status = BRG_OK;
out:
    return status;
}

/* Names in order, for looking up. */
typedef struct name_index {
    const brg_param *params;
    int *sorted;
    int count;
} name_index;

static int by_name(const void *a, const void *b, void *params)
{
    const brg_param *all = params;
    return strcmp(all[*(const int *)a].name, all[*(const int *)b].name);
}

static int find_name(const name_index *names, const char *name)
{
    int low = 0, high = names->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(name, names->params[names->sorted[middle]].name);
        if (order == 0)
            return names->sorted[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

static brg_status read_params(const json_t *object, const char *where, const name_index *names,
                              brg_layout_buffer *buffer)
{
    const json_t *array;
    brg_status status;
    BRG_TRY(get_array(object, where, "params", &array), out);
    size_t count = json_array_size(array);
    if (count > (size_t)names->count)
        return brg_fail(BRG_ERR_FORMAT, "%s.params has %zu parameters, more than the %d expected",
                        where, count, names->count);
    brg_layout_param *params = calloc(count ? count : 1, sizeof *params);
    if (!params)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu parameters", count);
    buffer->params = params;
    buffer->num_params = (int)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        char at[sizeof(where_text) + 32];
        const char *name = NULL;
        int64_t bucket, shard;
        snprintf(at, sizeof at, "%s.params[%zu]", where, i);
        if (!json_is_object(item))
            return bad_type(at, "", item, "an object");
        BRG_TRY(get_string(item, at, "name", &name), out);
        params[i].param = find_name(names, name);
        if (params[i].param < 0)
            return brg_fail(BRG_ERR_FORMAT, "%s: there is no parameter \"%s\"", at, name);
        BRG_TRY(get_int(item, at, "start", 0, BRG_PLAN_MAX_ELEMS, &params[i].start), out);
        BRG_TRY(get_int(item, at, "end", 0, BRG_PLAN_MAX_ELEMS, &params[i].end), out);
        BRG_TRY(get_int(item, at, "bucket", 0, INT32_MAX, &bucket), out);
        BRG_TRY(get_int(item, at, "shard", -1, INT32_MAX, &shard), out);
        params[i].bucket = (int)bucket;
        params[i].shard = (int)shard;
    }
    status = BRG_OK;
out:
    return status;
}

static brg_status read_buffer(const json_t *object, const char *where, const name_index *names,
                              brg_layout_buffer *buffer)
{
    const char *text = NULL;
    int64_t shards;
    brg_buffer_key key;
    brg_status status;
    if (!json_is_object(object))
        return bad_type(where, "", object, "an object");
    BRG_TRY(get_string(object, where, "key", &text), out);
    if (!parse_key(text, &key))
        return brg_fail(BRG_ERR_FORMAT,
                        "%s.key is \"%s\", expected something like bf16/fp32/dense/lw", where,
                        text);
    BRG_TRY(get_int(object, where, "shards", 1, INT32_MAX, &shards), out);
    brg_layout_buffer_init(buffer, key, &(brg_layout_options){0});
    buffer->num_shards = (int)shards;
    BRG_TRY(read_buckets(object, where, buffer), out);
    BRG_TRY(read_params(object, where, names, buffer), out);
out:
    return status;
}

/* Options that only the buffers tell. */
static void infer_options(brg_layout *layout)
{
    brg_layout_options *options = &layout->options;
    bool own_type = false;
    for (int b = 0; b < layout->num_buffers; b++) {
        const brg_layout_buffer *buffer = &layout->buffers[b];
        if (buffer->key.expert_parallel)
            options->expert_data_parallel_size = buffer->num_shards;
        if (b == 0)
            options->grad_dtype = buffer->key.grad_dtype;
        else if (options->grad_dtype != buffer->key.grad_dtype)
            own_type = true;
        for (int i = 1; i < buffer->num_params && options->algorithm == BRG_FLAT; i++)
            if (buffer->params[i].start > buffer->params[i - 1].end)
                options->pad_param_starts = 1;
    }
    if (own_type) { /* no single type: each parameter's own */
        options->grad_dtype = BRG_FLOAT32;
        options->grad_dtype_is_param_dtype = 1;
    }
}

static brg_status check_fraction(const json_t *object, const char *where, const char *field,
                                 double expected)
{
    const json_t *value = json_object_get(object, field);
    if (!json_is_number(value))
        return bad_type(where, field, value, "a number");
    if (fabs(json_number_value(value) - expected) > 1e-5 * (1 + fabs(expected)))
        return brg_fail(BRG_ERR_FORMAT, "%s.%s is %g, expected %g", where, field,
                        json_number_value(value), expected);
    return BRG_OK;
}

/* The sums that a document states must be those that its contents give. */
static brg_status check_sums(const json_t *object, const char *where,
                             const brg_layout_buffer *buffer)
{
    int64_t padding = buffer->numel - buffer->numel_unpadded;
    const struct {
        const char *field;
        int64_t expected;
    } sums[] = {
        {"numel", buffer->numel}, {"numel_unpadded", buffer->numel_unpadded}, {"padding", padding}};
    brg_status status;
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        int64_t value;
        BRG_TRY(get_int(object, where, sums[i].field, INT64_MIN, INT64_MAX, &value), out);
        if (value != sums[i].expected)
            return brg_fail(BRG_ERR_FORMAT, "%s.%s is %lld, expected %lld", where, sums[i].field,
                            (long long)value, (long long)sums[i].expected);
    }
    double real = (double)buffer->numel_unpadded;
    BRG_TRY(check_fraction(object, where, "overhead", real > 0 ? (double)padding / real : 0), out);
    status = check_fraction(object, where, "ns_ratio", buffer->ns_ratio);
out:
    return status;
}

static brg_status read_layout(const json_t *root, brg_layout *layout, const name_index *names)
{
    const json_t *array;
    where_text where;
    brg_status status;
    BRG_TRY(get_array(root, "", "buffers", &array), out);
    size_t count = json_array_size(array);
    if (count > (size_t)layout->num_params)
        return brg_fail(BRG_ERR_FORMAT, "buffers has %zu entries for %d parameters", count,
                        layout->num_params);
    layout->buffers = calloc(count ? count : 1, sizeof *layout->buffers);
    if (!layout->buffers)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for %zu buffers", count);
    for (size_t i = 0; i < count; i++) {
        snprintf(where, sizeof where, "buffers[%zu]", i);
        layout->num_buffers = (int)i + 1; /* for brg_layout_destroy() */
        BRG_TRY(read_buffer(json_array_get(array, i), where, names, &layout->buffers[i]), out);
    }
    infer_options(layout);
    BRG_TRY(brg_layout_complete(layout), out);
    for (size_t i = 0; i < count; i++) {
        snprintf(where, sizeof where, "buffers[%zu]", i);
        BRG_TRY(check_sums(json_array_get(array, i), where, &layout->buffers[i]), out);
    }
out:
    return status;
}

brg_status brg_layout_from_json(const char *text, size_t bytes, const brg_param *params,
                                int num_params, brg_layout **layout)
{
    json_error_t error;
    json_t *root = NULL;
    name_index names = {0};
    int64_t total;
    brg_status status;

    if (!layout)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_from_json: layout is NULL");
    *layout = NULL;
    brg_layout *made = calloc(1, sizeof *made);
    if (!made)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for a layout");
    BRG_TRY(brg_layout_copy_params(made, params, num_params, &total), fail);
    names.params = made->params;
    names.count = num_params;
    names.sorted = calloc(num_params ? (size_t)num_params : 1, sizeof *names.sorted);
    if (!names.sorted) {
        status = brg_fail(BRG_ERR_NO_MEMORY, "no memory for %d names", num_params);
        goto fail;
    }
    for (int i = 0; i < num_params; i++)
        names.sorted[i] = i;
    qsort_r(names.sorted, (size_t)num_params, sizeof *names.sorted, by_name, made->params);

    if (!text) {
        status = brg_fail(BRG_ERR_INVALID_ARGUMENT, "brg_layout_from_json: text is NULL");
        goto fail;
    }
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        status = brg_fail(BRG_ERR_FORMAT, "line %d, column %d: %s", error.line, error.column,
                          error.text);
        goto fail;
    }
    BRG_TRY(read_options(root, made), fail);
    BRG_TRY(read_layout(root, made, &names), fail);
    *layout = made;
    made = NULL;

fail:
    json_decref(root);
    free(names.sorted);
    brg_layout_destroy(made);
    return status;
}
