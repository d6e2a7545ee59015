/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench grad-ready: what brg_grad_ready() costs the thread that calls it, beside an empty
 * call through a function pointer. */
#include <stdlib.h>

#include "brigade/brigade.h"
#include "sched/trace/ring.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/cli.h"

static int64_t num_params = 4096, iterations = 200;
static bool json;

static const cli_option options[] = {
    {.name = "params",
     .type = CLI_INT,
     .dest = &num_params,
     .metavar = "N",
     .min = 2,
     .max = 1000000,
     .help = "Parameters in the one bucket that the calls go to (default 4096)."},
    {.name = "iterations",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &iterations,
     .metavar = "N",
     .min = 1,
     .max = 1000000,
     .help = "Steps to measure; the median step counts (default 200)."},
    {.name = "json", .type = CLI_FLAG, .dest = &json, .help = "Print one JSON document."},
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench grad-ready",
    .summary = "What saying that a gradient is ready costs the calling thread.",
    .usage = "[options]",
    .details = "Times brg_grad_ready() for gradients that do not complete their bucket, on one "
               "rank of the "
               "host device, and an empty call in the same way.",
    .options = options,
};

typedef brg_status (*ready_call)(brg_scheduler *sched, int param, brg_stream stream);

static brg_status __attribute__((noinline))
empty_call(brg_scheduler *sched, int param, brg_stream stream)
{
    __asm__ volatile("" : : "r"(sched), "r"(param), "r"(stream)); /* keeps the call */
    return BRG_OK;
}

/* ns per call for all parameters but the last one of the bucket. */
static double time_calls(ready_call call, brg_scheduler *sched, brg_stream stream, int *failures)
{
    ready_call volatile through = call;
    uint64_t begin = brg_now_ns();
    for (int p = (int)num_params - 1; p > 0; p--)
        *failures += through(sched, p, stream) != BRG_OK;
    return (double)(brg_now_ns() - begin) / (double)(num_params - 1);
}

static brg_status measure(brg_scheduler *sched, brg_stream stream, double *ready, double *empty)
{
    brg_status status = BRG_OK;
    for (int64_t i = -1; i < iterations; i++) { /* the first step learns */
        int failures = 0;
        status = brg_zero_grad(sched, stream);
        if (status != BRG_OK)
            return status;
        double ns = time_calls(brg_grad_ready, sched, stream, &failures);
        if (i >= 0) {
            ready[i] = ns;
            empty[i] = time_calls(empty_call, sched, stream, &failures);
        }
        status = brg_grad_ready(sched, 0, stream);
        if (status == BRG_OK)
            status = brg_finish_grad_sync(sched, stream);
        if (status != BRG_OK || failures)
            return status;
    }
    return status;
}

static brg_status open_all(brg_context **ctx, brg_layout **layout, brg_scheduler **sched,
                           brg_stream *stream)
{
    brg_param *params = calloc((size_t)num_params, sizeof *params);
    char(*names)[32] = calloc((size_t)num_params, sizeof *names);
    brg_status status = BRG_ERR_NO_MEMORY;
    if (params && names) {
        for (int64_t p = 0; p < num_params; p++) {
            snprintf(names[p], sizeof names[p], "p%lld", (long long)p);
            params[p] = (brg_param){.name = names[p], .num_dims = 1, .shape = {64}};
        }
        status = brg_layout_compute(params, (int)num_params,
                                    &(brg_layout_options){.algorithm = BRG_ELEMENTWISE,
                                                          .bucket_size = BRG_BUCKET_SIZE_NONE},
                                    layout);
    }
    free(params);
    free(names);
    if (status == BRG_OK)
        status = brg_context_open(
            &(brg_context_options){.device = BRG_DEVICE_HOST, .world_size = 1, .trace_dir = ""},
            ctx);
    if (status == BRG_OK)
        status = brg_scheduler_create(*ctx, *layout,
                                      &(brg_scheduler_options){.overlap_grad_reduce = 1}, sched);
    if (status == BRG_OK)
        status = brg_stream_create(*ctx, stream);
    return status;
}

static int run(int argc, char **argv)
{
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    brg_context *ctx = NULL;
    brg_layout *layout = NULL;
    brg_scheduler *sched = NULL;
    brg_stream stream = NULL;
    double *ready = calloc((size_t)iterations, sizeof *ready);
    double *empty = calloc((size_t)iterations, sizeof *empty);
    brg_status status =
        ready && empty ? open_all(&ctx, &layout, &sched, &stream) : BRG_ERR_NO_MEMORY;
    if (status == BRG_OK)
        status = measure(sched, stream, ready, empty);
    if (status == BRG_OK) {
        double r = bench_median(ready, iterations), e = bench_median(empty, iterations);
        if (json)
            printf("{\"schema\":1,\"params\":%lld,\"steps\":%lld,\"grad_ready_ns\":%.2f,"
                   "\"empty_call_ns\":%.2f}\n",
                   (long long)num_params, (long long)iterations, r, e);
        else
            printf("brg_grad_ready  %8.2f ns a call\nempty call      %8.2f ns a call\n"
                   "(medians of %lld steps of %lld calls)\n",
                   r, e, (long long)iterations, (long long)num_params - 1);
    } else {
        cli_fail(&command, CLI_FINDING, "%s: %s", brg_status_str(status), brg_last_error());
    }
    brg_stream_destroy(ctx, stream);
    brg_scheduler_destroy(sched);
    brg_layout_destroy(layout);
    brg_context_close(ctx);
    free(ready);
    free(empty);
    return cli_finish(&command, status == BRG_OK ? CLI_OK : CLI_FINDING);
}

const cli_entry cli_bench_grad_ready = {&command, run};
