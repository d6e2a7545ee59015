/* SPDX-License-Identifier: Apache-2.0 */
#include "brigade/param.h"

#include <stdlib.h>
#include <string.h>

#include "sched/layout/layout.h"
#include "sched/status.h"

#define KNOWN_FLAGS                                                                                \
    (BRG_PARAM_SHARED_EMBEDDING | BRG_PARAM_EXPERT_PARALLEL | BRG_PARAM_EMBEDDING_OR_OUTPUT |      \
     BRG_PARAM_NO_MUON | BRG_PARAM_QUANTIZED)

int64_t brg_param_numel(const brg_param *param)
{
    int64_t numel = 1;
    bool overflow = false, zero = false;
    if (!param || param->num_dims < 0 || param->num_dims > BRG_MAX_DIMS)
        return -1;
    for (int i = 0; i < param->num_dims; i++) {
        if (param->shape[i] < 0)
            return -1;
        if (param->shape[i] == 0)
            zero = true;
        overflow |= __builtin_mul_overflow(numel, param->shape[i], &numel);
    }
    /* An empty parameter is empty whatever its other dimensions are. */
    return zero ? 0 : overflow ? -1 : numel;
}

static int64_t row_multiplier(const brg_param *param)
{
    return param->ns_row_multiplier ? param->ns_row_multiplier : 1;
}

brg_ns_cost brg_param_ns_cost(const brg_param *param)
{
    if (param->num_dims != 2)
        return (brg_ns_cost)brg_param_numel(param);
    brg_ns_cost rows = (brg_ns_cost)param->shape[0] * (brg_ns_cost)row_multiplier(param);
    brg_ns_cost columns = (brg_ns_cost)param->shape[1];
    if (rows == 0 || columns == 0)
        return 0;
    return rows > columns ? rows * columns * columns : columns * rows * rows;
}

/* Well-formed UTF-8: no stray or missing continuation bytes, no overlong forms, no surrogates. */
static bool is_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        int more = *s < 0x80 ? 0 : *s >= 0xf0 ? 3 : *s >= 0xe0 ? 2 : 1;
        uint32_t code = more == 0 ? *s : *s & (0x3fu >> more);
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if ((*s >= 0x80 && *s < 0xc0) || *s > 0xf7)
            return false;
        for (int i = 1; i <= more; i++) {
            if ((s[i] & 0xc0) != 0x80)
                return false;
            code = code << 6 | (s[i] & 0x3fu);
        }
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
            return false;
        s += more + 1;
    }
    return true;
}

static brg_status check_shape(const brg_param *param)
{
    if (param->num_dims < 0 || param->num_dims > BRG_MAX_DIMS)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "parameter \"%s\" has %d dimensions, expected 0 to %d", param->name,
                        param->num_dims, BRG_MAX_DIMS);
    for (int i = 0; i < param->num_dims; i++)
        if (param->shape[i] < 0)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "parameter \"%s\": dimension %d is %lld, expected 0 or more",
                            param->name, i, (long long)param->shape[i]);
    int64_t numel = brg_param_numel(param);
    if (numel < 0 || numel > BRG_PLAN_MAX_ELEMS)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "parameter \"%s\" has more than %lld elements",
                        param->name, (long long)BRG_PLAN_MAX_ELEMS);
    if (param->ns_row_multiplier < 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "parameter \"%s\": ns_row_multiplier is %lld, expected 0 or more",
                        param->name, (long long)param->ns_row_multiplier);
    if (numel > 0 && row_multiplier(param) > BRG_PLAN_MAX_ELEMS / numel)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "parameter \"%s\": the whole matrix, %lld elements times "
                        "ns_row_multiplier %lld, has more than %lld elements",
                        param->name, (long long)numel, (long long)param->ns_row_multiplier,
                        (long long)BRG_PLAN_MAX_ELEMS);
    return BRG_OK;
}

static brg_status check_param(const brg_param *param, int index)
{
    if (!param->name || !*param->name)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "parameter %d has no name", index);
    if (!is_utf8(param->name))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "the name of parameter %d is not UTF-8", index);
    if (brg_dtype_bytes(param->dtype) == 0)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "parameter \"%s\": dtype %d is not one of "
                        "brg_dtype",
                        param->name, (int)param->dtype);
    if (param->flags & ~(uint32_t)KNOWN_FLAGS)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "parameter \"%s\": unknown flags 0x%x",
                        param->name, (unsigned)(param->flags & ~(uint32_t)KNOWN_FLAGS));
    for (size_t i = 0; i < sizeof param->reserved / sizeof param->reserved[0]; i++)
        if (param->reserved[i])
            return brg_fail(BRG_ERR_INVALID_ARGUMENT, "parameter \"%s\": reserved[%zu] is not zero",
                            param->name, i);
    return check_shape(param);
}

static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static brg_status check_names_unique(const brg_param *params, int num_params)
{
    size_t slots = 2;
    while (slots < 2 * (size_t)num_params)
        slots *= 2;
    int *table = calloc(slots, sizeof *table); /* index + 1; 0: free */
    brg_status status = BRG_OK;
    if (!table)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory for the names of %d parameters", num_params);
    for (int i = 0; i < num_params && status == BRG_OK; i++) {
        size_t slot = hash_name(params[i].name) & (slots - 1);
        while (table[slot] && strcmp(params[table[slot] - 1].name, params[i].name) != 0)
            slot = (slot + 1) & (slots - 1);
        if (table[slot])
            status = brg_fail(BRG_ERR_INVALID_ARGUMENT,
                              "parameters %d and %d are both named \"%s\", expected unique names",
                              table[slot] - 1, i, params[i].name);
        table[slot] = i + 1;
    }
    free(table);
    return status;
}

brg_status brg_layout_copy_params(brg_layout *layout, const brg_param *params, int num_params,
                                  int64_t *total)
{
    size_t name_bytes = 0;
    if (num_params < 0 || (num_params > 0 && !params))
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "%d parameters at %p, expected 0 or more at an array", num_params,
                        (const void *)params);
    *total = 0;
    for (int i = 0; i < num_params; i++) {
        brg_status status = check_param(&params[i], i);
        if (status != BRG_OK)
            return status;
        name_bytes += strlen(params[i].name) + 1;
        *total += brg_param_numel(&params[i]);
        if (*total > BRG_PLAN_MAX_ELEMS)
            return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                            "all parameters up to \"%s\" have more than %lld elements together",
                            params[i].name, (long long)BRG_PLAN_MAX_ELEMS);
    }
    layout->params = calloc(num_params ? (size_t)num_params : 1, sizeof *layout->params);
    layout->places = calloc(num_params ? (size_t)num_params : 1, sizeof *layout->places);
    layout->names = malloc(name_bytes + 1);
    if (!layout->params || !layout->places || !layout->names)
        return brg_fail(BRG_ERR_NO_MEMORY, "no memory to copy %d parameters", num_params);

    char *name = layout->names;
    for (int i = 0; i < num_params; i++) {
        size_t bytes = strlen(params[i].name) + 1;
        layout->params[i] = params[i];
        layout->params[i].name = memcpy(name, params[i].name, bytes);
        layout->places[i] = (brg_param_place){.buffer = -1};
        name += bytes;
    }
    layout->num_params = num_params;
    return check_names_unique(layout->params, num_params);
}
