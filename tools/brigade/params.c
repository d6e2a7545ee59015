/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/params.h"

#include <stdlib.h>
#include <string.h>

void params_free(params_list *list)
{
    free(list->params);
    json_decref(list->root);
    *list = (params_list){0};
}

/* The parameter being read, for messages: `parameter 3 ("layers.0.weight")`. */
static int bad_param(const params_list *list, size_t index, const json_t *item, const char *what,
                     const char *expected)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    if (name)
        return cli_fail(list->command, CLI_INPUT, "%s: parameter %zu (\"%s\"): %s, expected %s",
                        list->file, index, name, what, expected);
    return cli_fail(list->command, CLI_INPUT, "%s: parameter %zu: %s, expected %s", list->file,
                    index, what, expected);
}

static bool dtype_from_word(const char *word, brg_dtype *dtype)
{
    for (int i = 0; word && brg_dtype_bytes((brg_dtype)i); i++) {
        if (strcmp(word, brg_dtype_str((brg_dtype)i)) == 0) {
            *dtype = (brg_dtype)i;
            return true;
        }
    }
    return false;
}

static int read_shape(const params_list *list, const json_t *item, size_t index, brg_param *param)
{
    const json_t *shape = json_object_get(item, "shape");
    if (!json_is_array(shape))
        return bad_param(list, index, item, shape ? "shape is not an array" : "shape is missing",
                         "an array of integers");
    if (json_array_size(shape) > BRG_MAX_DIMS)
        return bad_param(list, index, item, "shape has too many dimensions", "8 at most");
    param->num_dims = (int)json_array_size(shape);
    for (int i = 0; i < param->num_dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size))
            return bad_param(list, index, item, "shape has an element that is not an integer",
                             "integers of 0 or more");
        param->shape[i] = json_integer_value(size);
    }
    return CLI_OK;
}

static int read_flags(const params_list *list, const json_t *item, size_t index, brg_param *param)
{
    static const struct {
        const char *field;
        uint32_t flag;
        bool when; /* the value that sets the flag */
    } fields[] = {
        {"shared_embedding", BRG_PARAM_SHARED_EMBEDDING, true},
        {"expert_parallel", BRG_PARAM_EXPERT_PARALLEL, true},
        {"embedding_or_output", BRG_PARAM_EMBEDDING_OR_OUTPUT, true},
        {"use_muon", BRG_PARAM_NO_MUON, false},
        {"quantized", BRG_PARAM_QUANTIZED, true},
    };
    char what[64];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(item, fields[i].field);
        if (!value || json_is_null(value))
            continue;
        if (!json_is_boolean(value)) {
            snprintf(what, sizeof what, "%s is not a truth value", fields[i].field);
            return bad_param(list, index, item, what, "true or false");
        }
        if (json_is_true(value) == fields[i].when)
            param->flags |= fields[i].flag;
    }
    return CLI_OK;
}

static int read_param(const params_list *list, const json_t *item, size_t index, brg_param *param)
{
    if (!json_is_object(item))
        return bad_param(list, index, NULL, "not an object",
                         "an object with name, shape and dtype");
    const json_t *name = json_object_get(item, "name");
    if (!json_is_string(name))
        return bad_param(list, index, item, name ? "name is not a string" : "name is missing",
                         "a string");
    param->name = json_string_value(name);

    const json_t *dtype = json_object_get(item, "dtype");
    if (!json_is_string(dtype))
        return bad_param(list, index, item, dtype ? "dtype is not a string" : "dtype is missing",
                         "a string");
    if (!dtype_from_word(json_string_value(dtype), &param->dtype))
        return bad_param(list, index, item, "dtype is not known",
                         "bf16, fp32, fp16, fp64, i8, u8, ...");

    const json_t *multiplier = json_object_get(item, "gtp_remat_size");
    if (multiplier && !json_is_null(multiplier)) {
        if (!json_is_integer(multiplier) || json_integer_value(multiplier) < 1)
            return bad_param(list, index, item, "gtp_remat_size is not a positive integer",
                             "1 or more");
        param->ns_row_multiplier = json_integer_value(multiplier);
    }
    int code = read_shape(list, item, index, param);
    return code == CLI_OK ? read_flags(list, item, index, param) : code;
}

int params_load_json(const cli_command *command, const char *file, json_t **root)
{
    json_error_t error;
    bool standard_input = strcmp(file, "-") == 0;
    FILE *stream = standard_input ? stdin : fopen(file, "r");
    if (!stream)
        return cli_fail(command, CLI_INPUT, "cannot open %s: %m", file);
    *root = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    bool unreadable = ferror(stream) != 0;
    if (!standard_input)
        fclose(stream);
    if (*root)
        return CLI_OK;
    if (unreadable)
        return cli_fail(command, CLI_INPUT, "cannot read %s", file);
    return cli_fail(command, CLI_INPUT, "%s: line %d, column %d: %s", file, error.line,
                    error.column, error.text);
}

int params_load(const cli_command *command, const char *file, params_list *list)
{
    *list = (params_list){.command = command, .file = file};
    int code = params_load_json(command, file, &list->root);
    if (code != CLI_OK)
        return code;
    if (!json_is_array(list->root)) {
        code =
            cli_fail(command, CLI_INPUT, "%s: not an array, expected an array of parameters", file);
        goto fail;
    }
    size_t count = json_array_size(list->root);
    list->params = calloc(count ? count : 1, sizeof *list->params);
    if (!list->params || count > INT32_MAX) {
        code = cli_fail(command, CLI_INPUT, "%s: no memory for %zu parameters", file, count);
        goto fail;
    }
    list->count = (int)count;
    for (size_t i = 0; i < count && code == CLI_OK; i++)
        code = read_param(list, json_array_get(list->root, i), i, &list->params[i]);
    if (code == CLI_OK)
        return CLI_OK;
fail:
    params_free(list);
    return code;
}
