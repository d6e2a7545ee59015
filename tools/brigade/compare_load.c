/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/compare.h"

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median as the report has it, by nearest rank; -1: no memory. */
static double median_of(const double *values, size_t n)
{
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return -1;
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, double_compare);
    double median = sorted[(n - 1) / 2];
    free(sorted);
    return median;
}

/* What is known while the files of a run are gone through. */
typedef struct choice {
    int64_t wanted;
    double compute; /* of the rank taken so far; -1: none */
    char nothing[1024];
} choice;

static brg_status file_take(compare_run *run, const char *path, const brg_analysis_options *how,
                            choice *c)
{
    brg_trace *trace = NULL;
    brg_series series = {0};
    brg_status status;
    BRG_TRY(brg_trace_open(path, &trace), out);
    if (run->nranks && trace->world != run->world) {
        status = brg_fail(BRG_ERR_FORMAT, "%s: of %u ranks, where others in %s are of %u", path,
                          trace->world, run->path, run->world);
        goto out;
    }
    run->world = trace->world;
    run->nranks++;
    run->lost += brg_trace_lost(trace);
    if (c->wanted >= 0 && trace->rank != c->wanted)
        goto out;
    status = brg_trace_series(trace, how, &series);
    if (status == BRG_ERR_NO_DATA) {
        if (!c->nothing[0])
            snprintf(c->nothing, sizeof c->nothing, "%s", brg_last_error());
        status = BRG_OK;
    } else if (status == BRG_OK) {
        const double *computes = series.values[BRG_SERIES_COMPUTE];
        double compute = computes ? median_of(computes, series.nsteps) : 0;
        if (compute < 0) {
            status = brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory", path);
        } else if (compute > c->compute) {
            brg_series last = run->series;
            c->compute = compute;
            run->series = series;
            run->rank = trace->rank;
            series = last;
        }
    }
out:
    brg_series_free(&series);
    brg_trace_close(trace);
    return status;
}

int compare_load(const cli_command *command, const char *path, const brg_analysis_options *how,
                 int64_t rank, compare_run *run)
{
    char **paths = NULL;
    size_t npaths = 0;
    choice c = {.wanted = rank, .compute = -1};
    *run = (compare_run){.path = path};
    brg_status status = brg_trace_list(path, &paths, &npaths);
    for (size_t i = 0; status == BRG_OK && i < npaths; i++)
        status = file_take(run, paths[i], how, &c);
    brg_trace_list_free(paths, npaths);
    if (status != BRG_OK)
        return cli_fail(command, status == BRG_ERR_NO_DATA ? CLI_NO_DATA : CLI_INPUT, "%s",
                        brg_last_error());
    if (run->series.nsteps)
        return CLI_OK;
    if (c.nothing[0])
        return cli_fail(command, CLI_NO_DATA, "%s", c.nothing);
    return cli_fail(command, CLI_NO_DATA, "%s: nothing is recorded of rank %lld", path,
                    (long long)rank);
}
