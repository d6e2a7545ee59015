/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/brigade/doctor.h"

static const char *const state_names[] = {[DOCTOR_PASS] = "pass",
                                          [DOCTOR_WARN] = "warn",
                                          [DOCTOR_FAIL] = "fail",
                                          [DOCTOR_ABSENT] = "absent"};

void doctor_note(doctor *d, const char *check, doctor_state state, const char *fix,
                 const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    doctor_finding *grown =
        length < 0 ? NULL : reallocarray(d->findings, d->count + 1, sizeof *grown);
    if (!grown) {
        if (length >= 0)
            free(text);
        d->no_memory = true;
        return;
    }
    d->findings = grown;
    grown[d->count++] = (doctor_finding){.check = check, .state = state, .text = text, .fix = fix};
}

void doctor_free(doctor *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->findings[i].text);
    for (size_t i = 0; i < d->nmapped; i++)
        free(d->mapped[i]);
    for (size_t i = 0; i < d->ncopies; i++)
        free(d->copies[i].path);
    for (size_t i = 0; i < d->nsettings; i++) {
        free(d->settings[i].name);
        free(d->settings[i].value);
        free(d->settings[i].where);
    }
    free(d->settings);
    free(d->findings);
    free(d->mapped);
    free(d->copies);
}

size_t doctor_count(const doctor *d, doctor_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < d->count; i++)
        count += d->findings[i].state == state;
    return count;
}

enum { LABEL_COLUMNS = 26, TEXT_BYTES = 2048 };

void doctor_text(const doctor *d)
{
    static const char *const colors[] = {"\033[32m", "\033[33m", "\033[1;31m", "\033[2m"};
    bool color = cli_use_color(stdout);
    char text[TEXT_BYTES];
    for (size_t i = 0; i < d->count; i++) {
        const doctor_finding *f = &d->findings[i];
        printf("%s%-6s%s %-*s ", color ? colors[f->state] : "", state_names[f->state],
               color ? "\033[0m" : "", LABEL_COLUMNS - 8, f->check);
        cli_print_wrapped(stdout, cli_label(text, sizeof text, f->text), LABEL_COLUMNS,
                          cli_width());
        if (f->fix) {
            printf("%*s", LABEL_COLUMNS, "");
            snprintf(text, sizeof text, "fix: %s", f->fix);
            cli_print_wrapped(stdout, text, LABEL_COLUMNS + 5, cli_width());
        }
    }
    printf("\n%zu passed, %zu warning%s, %zu failure%s, %zu not there\n",
           doctor_count(d, DOCTOR_PASS), doctor_count(d, DOCTOR_WARN),
           doctor_count(d, DOCTOR_WARN) == 1 ? "" : "s", doctor_count(d, DOCTOR_FAIL),
           doctor_count(d, DOCTOR_FAIL) == 1 ? "" : "s", doctor_count(d, DOCTOR_ABSENT));
}

bool doctor_json(const doctor *d)
{
    char text[TEXT_BYTES];
    json_t *checks = json_array();
    for (size_t i = 0; i < d->count; i++) {
        const doctor_finding *f = &d->findings[i];
        json_array_append_new(checks,
                              json_pack("{s:s,s:s,s:s,s:s?}", "check", f->check, "state",
                                        state_names[f->state], "text",
                                        cli_label(text, sizeof text, f->text), "fix", f->fix));
    }
    json_t *root = json_pack("{s:i,s:b,s:I,s:I,s:I,s:I,s:o}", "schema", 1, "observed",
                             d->mapped != NULL, "passed", (json_int_t)doctor_count(d, DOCTOR_PASS),
                             "warnings", (json_int_t)doctor_count(d, DOCTOR_WARN), "failures",
                             (json_int_t)doctor_count(d, DOCTOR_FAIL), "absent",
                             (json_int_t)doctor_count(d, DOCTOR_ABSENT), "checks", checks);
    char *document = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (!document)
        return false;
    puts(document);
    free(document);
    return true;
}
