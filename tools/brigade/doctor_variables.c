/* SPDX-License-Identifier: Apache-2.0 */
/* Variables BRIGADE_*: misspelt, or set to what makes no sense. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tools/brigade/doctor.h"

#define CHECK "BRIGADE_ variables"

typedef struct variable {
    const char *name;
    enum { TEXT, FILE_PATH, NUMBER, WORD } kind;
    const char *const *words;
    double min, max;
} variable;

#define WORDS(...)                                                                                 \
    .kind = WORD, .words = (const char *const[])                                                   \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* All that the library and the commands read. */
static const variable variables[] = {
    {"BRIGADE_BUFFERS", WORDS("auto", "cuda", "nccl")},
    {"BRIGADE_COLLECTIVE_TIMEOUT", .kind = NUMBER, .min = 0.001, .max = 1e9},
    {"BRIGADE_CUBLAS", .kind = FILE_PATH},
    {"BRIGADE_CUDART", .kind = FILE_PATH},
    {"BRIGADE_CUDA_KERNELS", .kind = FILE_PATH},
    {"BRIGADE_CUPTI", .kind = FILE_PATH},
    {"BRIGADE_DEVICE", WORDS("auto", "host", "cuda")},
    {"BRIGADE_HOST_DEVICES", .kind = NUMBER, .min = 1, .max = 1024},
    {"BRIGADE_HOST_TRANSPORT", WORDS("auto", "mapped", "copy", "staged")},
    {"BRIGADE_INIT_TIMEOUT", .kind = NUMBER, .min = 0.001, .max = 1e9},
    {"BRIGADE_LOG", WORDS("error", "warn", "info", "debug")},
    {"BRIGADE_MASTER_PORT", .kind = NUMBER, .min = 1, .max = 65535},
    {"BRIGADE_NCCL", .kind = FILE_PATH},
    {"BRIGADE_NCCL_LIB", .kind = FILE_PATH},
    {"BRIGADE_SHIM_KERNELS", WORDS("none", "cupti")},
    {"BRIGADE_SHIM_TIMING", WORDS("auto", "events", "none")},
    {"BRIGADE_TRACE", .kind = TEXT},
    {"BRIGADE_TRAIN_DATA", .kind = FILE_PATH},
    {"BRIGADE_TUNE_CACHE", .kind = TEXT},
};
enum { NVARIABLES = sizeof variables / sizeof *variables };

static const variable *variable_find(const char *name, size_t length)
{
    for (size_t i = 0; i < NVARIABLES; i++)
        if (strlen(variables[i].name) == length && !strncmp(variables[i].name, name, length))
            return &variables[i];
    return NULL;
}

static void unknown_note(doctor *d, const char *name, size_t length)
{
    const char *names[NVARIABLES + 1] = {NULL};
    char *word = strndup(name, length);
    for (size_t i = 0; i < NVARIABLES; i++)
        names[i] = variables[i].name;
    const char *nearest = word ? cli_nearest(word, names) : NULL;
    doctor_note(d, CHECK, DOCTOR_WARN, "correct the name, or unset the variable",
                "%.*s is not known%s%s%s", (int)length, name, nearest ? "; did you mean " : "",
                nearest ? nearest : "", nearest ? "?" : "");
    free(word);
}

static bool number_fits(const variable *v, const char *value)
{
    char *end;
    double number = strtod(value, &end);
    return !*end && isfinite(number) && number >= v->min && number <= v->max;
}

static bool word_fits(const variable *v, const char *value)
{
    for (const char *const *word = v->words; *word; word++)
        if (!strcasecmp(*word, value))
            return true;
    return false;
}

static bool value_check(doctor *d, const variable *v, const char *value)
{
    if (!*value)
        return true; /* as if unset */
    if (v->kind == NUMBER && !number_fits(v, value)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, "correct the value, or unset the variable",
                    "%s=%s: expected a number from %g to %g", v->name, value, v->min, v->max);
        return false;
    }
    if (v->kind == WORD && !word_fits(v, value)) {
        char words[128] = "";
        for (const char *const *word = v->words; *word; word++)
            snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s",
                     word == v->words ? "" : ", ", *word);
        doctor_note(d, CHECK, DOCTOR_FAIL, "correct the value, or unset the variable",
                    "%s=%s: expected one of %s", v->name, value, words);
        return false;
    }
    if (v->kind == FILE_PATH && strchr(value, '/') && access(value, R_OK)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, "correct the path, or unset the variable", "%s=%s: %s",
                    v->name, value, strerror(errno));
        return false;
    }
    return true;
}

void doctor_variables(doctor *d)
{
    size_t good = 0, bad = 0;
    for (char **entry = environ; *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "BRIGADE_", strlen("BRIGADE_")) || !(*entry)[length])
            continue;
        const variable *v = variable_find(*entry, length);
        bool fits = false;
        if (!v)
            unknown_note(d, *entry, length);
        else
            fits = value_check(d, v, *entry + length + 1);
        good += fits;
        bad += !fits;
    }
    if (!bad)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL,
                    good ? "%zu set, all known and well-formed" : "none set", good);
}
