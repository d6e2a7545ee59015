/* SPDX-License-Identifier: Apache-2.0 */
/* Variables BRIGADE_*: misspelt, or set to what makes no sense. */
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sched/trace/ring.h"
#include "tools/brigade/doctor.h"
#include "tools/brigade/elf_file.h"

#define CHECK "BRIGADE_ variables"
#define FIX "correct the value, or unset the variable"
#define FIX_PATH "correct the path, or unset the variable"

typedef struct variable {
    const char *name;
    enum {
        NUMBER,
        WHOLE,
        WORD,
        LIBRARY,       /* the first of the paths: a path, or a name that the loader looks for */
        LIBRARY_WHOLE, /* an absolute path */
        INPUT,         /* a file that is read */
        CACHE,         /* a file that is made where it is missing */
        DIRECTORY,     /* the same */
    } kind;
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
    {"BRIGADE_CUBLAS", .kind = LIBRARY},
    {"BRIGADE_CUDART", .kind = LIBRARY},
    {"BRIGADE_CUDA_KERNELS", .kind = LIBRARY},
    {"BRIGADE_CUPTI", .kind = LIBRARY},
    {"BRIGADE_DEVICE", WORDS("auto", "host", "cuda")},
    {"BRIGADE_HOST_DEVICES", .kind = NUMBER, .min = 1, .max = 1024},
    {"BRIGADE_HOST_TRANSPORT", WORDS("auto", "mapped", "copy", "staged")},
    {"BRIGADE_INIT_TIMEOUT", .kind = NUMBER, .min = 0.001, .max = 1e9},
    {"BRIGADE_LOG", WORDS("error", "warn", "info", "debug")},
    {"BRIGADE_MASTER_PORT", .kind = WHOLE, .min = 1, .max = 65535},
    {"BRIGADE_NCCL", .kind = LIBRARY},
    {"BRIGADE_NCCL_LIB", .kind = LIBRARY_WHOLE},
    {"BRIGADE_SHIM_KERNELS", WORDS("none", "cupti")},
    {"BRIGADE_SHIM_TIMING", WORDS("auto", "events", "none")},
    {"BRIGADE_TRACE", .kind = DIRECTORY},
    {"BRIGADE_TRACE_RECORDS", .kind = WHOLE, .min = BRG_RING_RECORDS_MIN,
     .max = BRG_RING_RECORDS_MAX},
    {"BRIGADE_TRAIN_DATA", .kind = INPUT},
    {"BRIGADE_TUNE_CACHE", .kind = CACHE},
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
    double number = v->kind == WHOLE ? (double)strtol(value, &end, 10) : strtod(value, &end);
    return !*end && isfinite(number) && number >= v->min && number <= v->max;
}

static bool word_fits(const variable *v, const char *value)
{
    for (const char *const *word = v->words; *word; word++)
        if (!strcasecmp(*word, value))
            return true;
    return false;
}

static bool library_check(doctor *d, const variable *v, const char *value)
{
    elf_file file;
    if (v->kind == LIBRARY_WHOLE && *value != '/') {
        doctor_note(d, CHECK, DOCTOR_FAIL, "write the file's absolute path",
                    "%s=%s: expected an absolute path", v->name, value);
        return false;
    }
    if (!strchr(value, '/')) {
        void *library = dlopen(value, RTLD_LAZY | RTLD_LOCAL);
        if (!library)
            doctor_note(d, CHECK, DOCTOR_FAIL, FIX_PATH, "%s=%s: %s", v->name, value, dlerror());
        return library != NULL; /* it stays loaded: not all that load can be unloaded safely */
    }
    elf_kind kind = elf_look(value, &file);
    if (kind == ELF_UNREADABLE)
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX_PATH, "%s=%s: %s", v->name, value, strerror(errno));
    else if (kind != ELF_DYNAMIC)
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX_PATH, "%s=%s is no library of this machine", v->name,
                    value);
    return kind == ELF_DYNAMIC;
}

/* Whether what is missing can be made: Brigade makes no directories above it. */
static bool can_be_made(doctor *d, const char *path)
{
    char *copy = strdup(path);
    bool can = copy && !access(dirname(copy), W_OK | X_OK);
    d->no_memory |= !copy;
    free(copy);
    return can;
}

/* Files and directories other than libraries. */
static bool place_check(doctor *d, const variable *v, const char *value)
{
    struct stat info;
    bool directory = v->kind == DIRECTORY, there = stat(value, &info) == 0;
    int error = there ? 0 : errno;
    if (there && directory != S_ISDIR(info.st_mode))
        error = directory ? ENOTDIR : EISDIR;
    else if (there && access(value, directory ? W_OK | X_OK : v->kind == INPUT ? R_OK : W_OK))
        error = errno;
    bool made = error == ENOENT && v->kind != INPUT && can_be_made(d, value);
    if (made && v->kind == CACHE)
        error = 0;
    if (made && directory)
        doctor_note(d, CHECK, DOCTOR_WARN,
                    "make the directory, or let brigade run -o make and name it",
                    "%s=%s is not there: libbrigade makes it, the shim does not and records "
                    "nothing",
                    v->name, value);
    else if (error)
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX_PATH, "%s=%s: %s", v->name, value, strerror(error));
    return !error;
}

static bool path_check(doctor *d, const variable *v, const char *value)
{
    bool library = v->kind == LIBRARY || v->kind == LIBRARY_WHOLE;
    if (!(library ? library_check : place_check)(d, v, value))
        return false;
    if (*value == '/' || (library && !strchr(value, '/')))
        return true;
    doctor_note(d, CHECK, DOCTOR_WARN, "write the absolute path",
                "%s=%s is relative: a rank in another working directory means another file",
                v->name, value);
    return false;
}

static bool value_check(doctor *d, const variable *v, const char *value)
{
    if (!*value)
        return true; /* as if unset */
    if (v->kind >= LIBRARY)
        return path_check(d, v, value);
    if (v->kind != WORD && !number_fits(v, value)) {
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "%s=%s: expected a %snumber from %.10g to %.10g",
                    v->name, value, v->kind == WHOLE ? "whole " : "", v->min, v->max);
        return false;
    }
    if (v->kind == WORD && !word_fits(v, value)) {
        char words[128] = "";
        for (const char *const *word = v->words; *word; word++)
            snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s",
                     word == v->words ? "" : ", ", *word);
        doctor_note(d, CHECK, DOCTOR_FAIL, FIX, "%s=%s: expected one of %s", v->name, value, words);
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
