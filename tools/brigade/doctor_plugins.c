/* SPDX-License-Identifier: Apache-2.0 */
/* Which profiler and tuner NCCL would load, by the rules of its src/plugin/plugin_open.cc. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/brigade/doctor.h"

enum { PATH_MAX_NCCL = 254, NEWEST_KNOWN = 6 };

/* The newest interface that a version of NCCL tries, by the first version that has it. */
typedef struct interface_step {
    int since, newest;
} interface_step;

typedef struct plugin {
    const char *check, *variable, *kind, *symbol;
    int oldest; /* interface */
    const interface_step *steps;
} plugin;

static const plugin plugins[] = {
    {.check = "profiler plugin",
     .variable = "NCCL_PROFILER_PLUGIN",
     .kind = "profiler",
     .symbol = "ncclProfiler",
     .oldest = 1,
     .steps =
         (const interface_step[]){
             {22900, 6}, {22800, 5}, {22700, 4}, {22600, 3}, {22400, 2}, {22300, 1}, {0, 0}}},
    {.check = "tuner plugin",
     .variable = "NCCL_TUNER_PLUGIN",
     .kind = "tuner",
     .symbol = "ncclTunerPlugin",
     .oldest = 2,
     .steps = (const interface_step[]){{23000, 6}, {22800, 5}, {22600, 4}, {0, 0}}},
};

/* 0: this NCCL takes none. */
static int newest_interface(const plugin *p, int version)
{
    if (!version)
        return NEWEST_KNOWN;
    for (const interface_step *step = p->steps; step->since; step++)
        if (version >= step->since)
            return step->newest;
    return 0;
}

static void *plugin_open(const plugin *p, const char *value, char *path, size_t size)
{
    snprintf(path, size, "%s", value);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    size_t length = strlen(value);
    bool whole = strchr(value, '/') || !strncmp(value, "lib", 3) ||
                 (length > 3 && !strcmp(value + length - 3, ".so"));
    if (library || whole)
        return library;
    snprintf(path, size, "libnccl-%s-%s.so", p->kind, value);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void symbols_check(doctor *d, const plugin *p, void *library, const char *path, int version)
{
    char symbol[64];
    int newest = newest_interface(p, version), chosen = 0;
    for (int v = newest; v >= p->oldest && !chosen; v--) {
        snprintf(symbol, sizeof symbol, "%s_v%d", p->symbol, v);
        if (dlsym(library, symbol))
            chosen = v;
    }
    if (chosen)
        doctor_note(d, p->check, DOCTOR_PASS, NULL, "%s: %s_v%d of %s is chosen", p->variable,
                    p->symbol, chosen, path);
    else if (!newest)
        doctor_note(d, p->check, DOCTOR_WARN, "install a newer NCCL",
                    "%s is set, and this NCCL takes no %s", p->variable, p->kind);
    else
        doctor_note(d, p->check, DOCTOR_FAIL,
                    "use a plugin built for this NCCL; NCCL does not look for another",
                    "%s: %s has none of %s_v%d to _v%d", p->variable, path, p->symbol, p->oldest,
                    newest);
}

static void plugin_check(doctor *d, const plugin *p, int version)
{
    char path[4096];
    const char *value = getenv(p->variable);
    if (!value) {
        snprintf(path, sizeof path, "libnccl-%s.so", p->kind);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library)
            symbols_check(d, p, library, path, version);
        else
            doctor_note(d, p->check, DOCTOR_PASS, NULL, "none: %s is not set", p->variable);
        return;
    }
    if (!strcasecmp(value, "none")) {
        doctor_note(d, p->check, DOCTOR_PASS, NULL, "%s=%s: switched off", p->variable, value);
    } else if (!strncasecmp(value, "STATIC_PLUGIN", strlen(value))) {
        /* any beginning of the word counts, even none */
        bool meant = strlen(value) == strlen("STATIC_PLUGIN");
        doctor_note(d, p->check, meant ? DOCTOR_PASS : DOCTOR_WARN,
                    meant ? NULL : "write STATIC_PLUGIN, or the plugin's whole path",
                    "%s=%s: NCCL looks for the plugin in the program itself", p->variable, value);
    } else if (strlen(value) > PATH_MAX_NCCL) {
        doctor_note(d, p->check, DOCTOR_FAIL, "make a symbolic link with a shorter path",
                    "%s is %zu characters long, NCCL cuts it off after %d", p->variable,
                    strlen(value), PATH_MAX_NCCL);
    } else {
        void *library = plugin_open(p, value, path, sizeof path);
        const char *why = library ? NULL : dlerror();
        if (library)
            symbols_check(d, p, library, path, version);
        else
            doctor_note(d, p->check, DOCTOR_FAIL, "correct the path, or unset the variable",
                        "%s=%s cannot be loaded: %s", p->variable, value, why ? why : "?");
    }
}

void doctor_plugins(doctor *d)
{
    int version = d->ncopies ? d->copies[0].version : 0;
    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++)
        plugin_check(d, &plugins[i], version);
}
