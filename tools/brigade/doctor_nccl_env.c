/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of NCCL and CUDA that cost speed, and those that NCCL's files set differently. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/brigade/doctor.h"

#define FILES_CHECK "NCCL's files"

typedef struct setting {
    char *name, *value;
    const char *file;
} setting;

typedef struct settings {
    setting *at;
    size_t count;
} settings;

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    for (size_t n = strlen(text); n && isspace((unsigned char)text[n - 1]);)
        text[--n] = 0;
    return text;
}

static void setting_add(doctor *d, settings *all, const char *name, const char *value,
                        const char *file)
{
    setting *grown = reallocarray(all->at, all->count + 1, sizeof *grown);
    if (!grown) {
        d->no_memory = true;
        return;
    }
    all->at = grown;
    grown[all->count++] = (setting){.name = strdup(name), .value = strdup(value), .file = file};
}

/* Lines NAME=VALUE; # begins a comment. */
static bool file_read(doctor *d, settings *all, const char *path)
{
    char *line = NULL;
    size_t size = 0;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) /* a FIFO would keep the doctor waiting */
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    for (int number = 1; getline(&line, &size, file) >= 0; number++) {
        line[strcspn(line, "#")] = 0;
        char *equal = strchr(line, '='), *name = trimmed(line);
        if (!*name)
            continue;
        if (!equal || equal == line) {
            doctor_note(d, FILES_CHECK, DOCTOR_WARN, "write NAME=VALUE",
                        "%s, line %d: no NAME=VALUE", path, number);
            continue;
        }
        *equal = 0;
        setting_add(d, all, trimmed(name), trimmed(equal + 1), path);
    }
    free(line);
    fclose(file);
    return true;
}

static const setting *setting_find(const settings *all, size_t before, const char *name)
{
    for (size_t i = 0; i < before; i++)
        if (all->at[i].name && !strcmp(all->at[i].name, name))
            return &all->at[i];
    return NULL;
}

/* The environment counts first, then the user's file, then the machine's. */
static void conflicts_note(doctor *d, const settings *all)
{
    size_t conflicts = 0;
    for (size_t i = 0; i < all->count; i++) {
        const setting *s = &all->at[i];
        if (!s->name || !s->value)
            continue;
        const char *value = getenv(s->name), *where = "the environment";
        const setting *earlier = setting_find(all, i, s->name);
        if (!value && earlier) {
            value = earlier->value;
            where = earlier->file;
        }
        if (!value || !strcmp(value, s->value))
            continue;
        conflicts++;
        doctor_note(d, FILES_CHECK, DOCTOR_WARN, "set the variable in one place",
                    "%s is %s in %s and %s in %s: the former counts", s->name, value, where,
                    s->value, s->file);
    }
    if (!conflicts)
        doctor_note(d, FILES_CHECK, DOCTOR_PASS, NULL, "%zu settings, none against another",
                    all->count);
}

static void files_check(doctor *d)
{
    settings all = {0};
    char *own = NULL;
    const char *home = getenv("HOME"), *given = getenv("NCCL_CONF_FILE");
    if (given && *given)
        own = strdup(given);
    else if (home && asprintf(&own, "%s/.nccl.conf", home) < 0)
        own = NULL;
    bool any = own && file_read(d, &all, own);
    any |= file_read(d, &all, "/etc/nccl.conf");
    if (any)
        conflicts_note(d, &all);
    else
        doctor_note(d, FILES_CHECK, DOCTOR_PASS, NULL, "neither /etc/nccl.conf nor %s",
                    own ? own : "~/.nccl.conf");
    for (size_t i = 0; i < all.count; i++) {
        free(all.at[i].name);
        free(all.at[i].value);
    }
    free(all.at);
    free(own);
}

/* Variables that are there to find faults, and cost speed when they are forgotten. */
static void brakes_check(doctor *d)
{
    static const struct {
        const char *name, *value, *effect;
    } brakes[] = {
        {"CUDA_LAUNCH_BLOCKING", "1", "nothing overlaps"},
        {"NCCL_P2P_DISABLE", "1", "GPUs of one machine talk through host memory"},
        {"NCCL_SHM_DISABLE", "1", "ranks of one machine talk through the network"},
        {"NCCL_IB_DISABLE", "1", "InfiniBand and RoCE are not used"},
        {"NCCL_DEBUG", "TRACE", "every call is logged"},
        {"NCCL_LAUNCH_MODE", "GROUP", "kernels are launched together, which can serialize them"},
    };
    size_t found = 0;
    for (size_t i = 0; i < sizeof brakes / sizeof *brakes; i++) {
        const char *value = getenv(brakes[i].name);
        if (!value || strcmp(value, brakes[i].value))
            continue;
        found++;
        doctor_note(d, "brakes", DOCTOR_WARN, "unset the variable when the fault is found",
                    "%s=%s: %s", brakes[i].name, value, brakes[i].effect);
    }
    if (!found)
        doctor_note(d, "brakes", DOCTOR_PASS, NULL,
                    "no variable is set that is known to cost speed");
}

static void connections_check(doctor *d)
{
    static const char check[] = "CUDA connections";
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    char *end;
    if (!text) {
        doctor_note(d, check, DOCTOR_PASS, NULL, "CUDA_DEVICE_MAX_CONNECTIONS is not set");
        return;
    }
    long value = strtol(text, &end, 10);
    if (!*text || *end || value < 1 || value > 32)
        doctor_note(d, check, DOCTOR_FAIL, "set it to a number from 1 to 32, or unset it",
                    "CUDA_DEVICE_MAX_CONNECTIONS=%s", text);
    else if (value == 1)
        doctor_note(d, check, DOCTOR_WARN,
                    "unset it, unless tensor parallelism needs that order (Megatron-LM does)",
                    "CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one queue, and kernels "
                    "begin in the order in which they are issued");
    else
        doctor_note(d, check, DOCTOR_PASS, NULL, "CUDA_DEVICE_MAX_CONNECTIONS=%ld", value);
}

void doctor_nccl_variables(doctor *d)
{
    files_check(d);
    brakes_check(d);
    connections_check(d);
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    doctor_note(d, "NVLS", DOCTOR_PASS, NULL, "%s%s%s", nvls ? "NCCL_NVLS_ENABLE=" : "",
                nvls ? nvls : "left to NCCL",
                nvls && !strcmp(nvls, "0") ? ": no reductions in the switch" : "");
}
