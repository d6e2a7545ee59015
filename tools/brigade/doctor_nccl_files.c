/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's files of variables, read as NCCL reads them: lines NAME=VALUE without any trimming, # only
 * at a line's beginning. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/brigade/doctor.h"

#define CHECK "NCCL's files"

static void setting_add(doctor *d, const char *name, const char *value, const char *path,
                        int number)
{
    doctor_setting made = {.name = strdup(name), .value = strdup(value)};
    doctor_setting *grown = reallocarray(d->settings, d->nsettings + 1, sizeof *grown);
    if (asprintf(&made.where, "%s, line %d", path, number) < 0)
        made.where = NULL;
    if (grown)
        d->settings = grown;
    if (!grown || !made.name || !made.value || !made.where) {
        d->no_memory = true;
        free(made.name);
        free(made.value);
        free(made.where);
        return;
    }
    grown[d->nsettings++] = made;
}

static bool is_padded(const char *text)
{
    size_t n = strlen(text);
    return n && (isspace((unsigned char)*text) || isspace((unsigned char)text[n - 1]));
}

static void line_read(doctor *d, char *line, const char *path, int number)
{
    line[strcspn(line, "\r\n")] = 0;
    char *equal = strchr(line, '=');
    if (*line == '#' || !line[strspn(line, " \t")])
        return;
    if (!equal || equal == line) {
        doctor_note(d, CHECK, DOCTOR_WARN, "write NAME=VALUE", "%s, line %d: no NAME=VALUE", path,
                    number);
        return;
    }
    *equal = 0;
    if (is_padded(line) || is_padded(equal + 1) || strchr(equal + 1, '#'))
        doctor_note(d, CHECK, DOCTOR_WARN,
                    "write NAME=VALUE without spaces, and comments on lines of their own",
                    "%s, line %d: NCCL takes %s for a part of the name or value", path, number,
                    strchr(equal + 1, '#') ? "the comment" : "the spaces");
    setting_add(d, line, equal + 1, path, number);
}

static bool file_read(doctor *d, const char *path)
{
    char *line = NULL;
    size_t size = 0;
    struct stat info;
    if (stat(path, &info) != 0)
        return false;
    if (!S_ISREG(info.st_mode)) { /* a FIFO would keep the doctor waiting */
        errno = EINVAL;
        return false;
    }
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    for (int number = 1; getline(&line, &size, file) >= 0; number++)
        line_read(d, line, path, number);
    free(line);
    fclose(file);
    return true;
}

static const doctor_setting *setting_find(const doctor *d, size_t before, const char *name)
{
    for (size_t i = 0; i < before; i++)
        if (!strcmp(d->settings[i].name, name))
            return &d->settings[i];
    return NULL;
}

const char *doctor_nccl_value(const doctor *d, const char *name, const char **where)
{
    const char *value = getenv(name);
    const doctor_setting *setting = value ? NULL : setting_find(d, d->nsettings, name);
    *where = setting ? setting->where : "the environment";
    return setting ? setting->value : value;
}

/* The environment counts first, then the user's file, then the machine's. */
static void conflicts_note(doctor *d)
{
    size_t conflicts = 0;
    for (size_t i = 0; i < d->nsettings; i++) {
        const doctor_setting *s = &d->settings[i];
        const char *where, *value = doctor_nccl_value(d, s->name, &where);
        if (!strcmp(value, s->value))
            continue;
        conflicts++;
        doctor_note(d, CHECK, DOCTOR_WARN, "set the variable in one place",
                    "%s is %s in %s and %s in %s: the former counts", s->name, value, where,
                    s->value, s->where);
    }
    if (!conflicts)
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "%zu settings, none against another",
                    d->nsettings);
}

void doctor_nccl_files(doctor *d)
{
    char *own = NULL;
    const char *home = getenv("HOME"), *given = getenv("NCCL_CONF_FILE");
    if (given && *given)
        own = strdup(given);
    else if (home && asprintf(&own, "%s/.nccl.conf", home) < 0)
        own = NULL;
    bool any = own && file_read(d, own);
    if (own && !any && given && *given)
        doctor_note(d, CHECK, DOCTOR_FAIL, "correct the path, or unset the variable",
                    "NCCL_CONF_FILE=%s cannot be read: %s", given, strerror(errno));
    any |= file_read(d, "/etc/nccl.conf");
    if (any)
        conflicts_note(d);
    else
        doctor_note(d, CHECK, DOCTOR_PASS, NULL, "neither /etc/nccl.conf nor %s",
                    own ? own : "~/.nccl.conf");
    free(own);
}
