/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/bench_model.h"

#include <stdlib.h>
#include <string.h>

/* Transformers with grouped attention and a gated feed-forward block, projections fused as in
 * Megatron-LM, output and embedding apart. */
static const struct transformer {
    const char *name;
    int layers;
    int64_t hidden, heads, groups, head, ffn, vocabulary;
} known[] = {
    {"small", 2, 128, 4, 2, 32, 256, 512},
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256},
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256},
};

static void add(bench_model *model, int layer, const char *name, int64_t rows, int64_t cols,
                uint32_t flags)
{
    char *text = model->names[model->count];
    if (layer >= 0)
        snprintf(text, sizeof model->names[0], "layers.%d.%s", layer, name);
    else
        snprintf(text, sizeof model->names[0], "%s", name);
    model->params[model->count++] =
        (brg_param){.name = text, .num_dims = cols ? 2 : 1, .shape = {rows, cols}, .flags = flags};
}

static int make_known(const cli_command *command, const struct transformer *t, bench_model *model)
{
    size_t count = 3 + 6 * (size_t)t->layers;
    model->params = calloc(count, sizeof *model->params);
    model->names = calloc(count, sizeof *model->names);
    if (!model->params || !model->names)
        return cli_fail(command, CLI_INPUT, "no memory for %zu parameters", count);
    add(model, -1, "embedding", t->vocabulary, t->hidden, BRG_PARAM_EMBEDDING_OR_OUTPUT);
    for (int i = 0; i < t->layers; i++) {
        add(model, i, "attention_norm", t->hidden, 0, 0);
        add(model, i, "attention_qkv", (t->heads + 2 * t->groups) * t->head, t->hidden, 0);
        add(model, i, "attention_out", t->hidden, t->heads * t->head, 0);
        add(model, i, "mlp_norm", t->hidden, 0, 0);
        add(model, i, "mlp_up", 2 * t->ffn, t->hidden, 0);
        add(model, i, "mlp_down", t->hidden, t->ffn, 0);
    }
    add(model, -1, "final_norm", t->hidden, 0, 0);
    add(model, -1, "output", t->vocabulary, t->hidden, BRG_PARAM_EMBEDDING_OR_OUTPUT);
    return CLI_OK;
}

int bench_model_load(const cli_command *command, const char *name, brg_dtype dtype,
                     bench_model *model)
{
    int code = -1;
    *model = (bench_model){.name = name};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i].name, name))
            code = make_known(command, &known[i], model);
    if (code < 0) {
        code = params_load(command, name, &model->list);
        if (code == CLI_OK) {
            model->params = model->list.params;
            model->count = model->list.count;
        }
    }
    if (code == CLI_OK && model->count == 0)
        code = cli_fail(command, CLI_INPUT, "%s: no parameters", name);
    for (int i = 0; i < model->count; i++) {
        brg_dtype have = model->params[i].dtype;
        if (have == BRG_FLOAT32 || have == BRG_FLOAT16 || have == BRG_BFLOAT16)
            model->params[i].dtype = dtype;
        else if (code == CLI_OK)
            code = cli_fail(command, CLI_INPUT,
                            "%s: parameter \"%s\" is %s, expected fp32, fp16 "
                            "or bf16",
                            name, model->params[i].name, brg_dtype_str(have));
    }
    return code;
}

void bench_model_free(bench_model *model)
{
    if (model->list.params)
        params_free(&model->list);
    else
        free(model->params);
    free(model->names);
    *model = (bench_model){0};
}
