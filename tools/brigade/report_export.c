/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/brigade/report_export.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool report_exports(const report *r, const report_rank *rank)
{
    return !r->shown_by_choice || rank == r->shown;
}

uint64_t report_origin(const report *r)
{
    uint64_t origin = UINT64_MAX;
    for (size_t i = 0; i < r->nranks; i++)
        if (report_exports(r, &r->ranks[i])) {
            uint64_t begin = timeline_begin(report_trace(&r->ranks[i]));
            origin = begin < origin ? begin : origin;
        }
    return origin;
}

int report_export(const cli_command *command, const report *r, const char *path, bool force,
                  report_writer writer)
{
    FILE *out = fopen(path, force ? "we" : "wxe");
    if (!out && errno == EEXIST)
        return cli_fail(command, CLI_INPUT,
                        "'%s' exists; name another file or replace it with --force", path);
    if (!out)
        return cli_fail(command, CLI_INPUT, "cannot create '%s': %s", path, strerror(errno));
    struct stat info;
    bool is_file = !fstat(fileno(out), &info) && S_ISREG(info.st_mode); /* not /dev/stdout */
    brg_status status = writer(r, out);
    int error = ferror(out) ? EIO : 0; /* what came first is no longer known */
    if (fclose(out))
        error = errno;
    if (status == BRG_OK && !error)
        return CLI_OK;
    if (is_file)
        unlink(path);
    if (status != BRG_OK)
        return cli_fail(command, CLI_INPUT, "%s", brg_last_error());
    return cli_fail(command, CLI_INPUT, "cannot write '%s': %s", path, strerror(error));
}
