/* SPDX-License-Identifier: Apache-2.0 */
/* The report as a file for other programs: ui.perfetto.dev, HolisticTraceAnalysis, a browser. */
#ifndef BRIGADE_TOOLS_REPORT_EXPORT_H
#define BRIGADE_TOOLS_REPORT_EXPORT_H

#include <stdio.h>

#include "tools/brigade/cli.h"
#include "tools/brigade/report.h"
#include "tools/brigade/report_timeline.h"

/* Writes to `out`, whose errors the caller looks for. */
typedef brg_status (*report_writer)(const report *r, FILE *out);

/* Creates `path`, replaces it only with `force`, and has it written; removes what could not be
 * written whole. Returns an exit code. */
int report_export(const cli_command *command, const report *r, const char *path, bool force,
                  report_writer writer);

/* Whether the export is to hold the rank: all, unless one was asked for. */
bool report_exports(const report *r, const report_rank *rank);
/* The earliest time in the traces that are exported; times in the files are counted from it, since
 * viewers keep them as floating-point numbers. */
uint64_t report_origin(const report *r);

brg_status report_perfetto(const report *r, FILE *out);
brg_status report_chrome(const report *r, FILE *out);
brg_status report_html(const report *r, FILE *out);

#endif
