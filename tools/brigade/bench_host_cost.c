/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench host-cost: CPU time that one step's calls take from the thread that makes them. */
#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#include "sched/status.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/bench_session.h"

static struct {
    int64_t params, iterations;
    int device;
    bool json;
} args = {.params = 200, .iterations = 100};

static const cli_option options[] = {
    BENCH_DEVICE_OPTION(&args.device),
    {.name = "params",
     .type = CLI_INT,
     .dest = &args.params,
     .metavar = "N",
     .min = 2,
     .max = 100000,
     .help = "Parameters: every other one a matrix for Muon, the others vectors for AdamW (default "
             "200)."},
    {.name = "iterations",
     .short_name = 'n',
     .type = CLI_INT,
     .dest = &args.iterations,
     .metavar = "N",
     .min = 1,
     .max = BENCH_MAX_ROUNDS,
     .help = "Steps to measure, of which the median is printed (default 100)."},
    BENCH_JSON_OPTION(&args.json),
    {.name = NULL},
};

static const cli_command command = {
    .name = "bench host-cost",
    .summary = "CPU time that a step's calls take from the thread that makes them.",
    .usage = "[--params N] [options]",
    .details = "One eager step (nothing captured in a graph) of one rank or, under 'brigade run -n "
               "N --' or torchrun, of each rank; rank 0's is printed. Both overlaps are on. The "
               "device is idle when a step begins. Time is that of the calling thread "
               "(CLOCK_THREAD_CPUTIME_ID): what the device's own threads do is not in it. wall is "
               "the time that passes.",
    .options = options,
};

enum { ZERO_GRAD, PARAM_WAIT, GRAD_READY, FINISH, STEP, NUM_CALLS };
static const char *const call_names[] = {"brg_zero_grad", "brg_param_wait", "brg_grad_ready",
                                         "brg_finish_grad_sync", "brg_step"};

typedef struct job {
    bench_session session;
    brg_layout *layout;
    brg_scheduler *sched;
    brg_optimizer *children[2], *chain;
    bench_samples calls[NUM_CALLS], total, wall;
} job;

static double clock_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static brg_status make_layout(job *j)
{
    enum { SIDE = 128, NAME_BYTES = 24 };
    brg_status status = BRG_ERR_NO_MEMORY;
    brg_param *params = calloc((size_t)args.params, sizeof *params);
    char(*names)[NAME_BYTES] = calloc((size_t)args.params, sizeof *names);
    if (params && names) {
        for (int64_t p = 0; p < args.params; p++) {
            snprintf(names[p], NAME_BYTES, "p%lld", (long long)p);
            params[p] = (brg_param){.name = names[p],
                                    .num_dims = p % 2 ? 1 : 2,
                                    .shape = {SIDE, p % 2 ? 0 : SIDE},
                                    .dtype = BRG_BFLOAT16};
        }
        /* About as many buckets as a model of 200 parameters has. */
        int64_t numel = (args.params + 1) / 2 * SIDE * SIDE;
        status = brg_layout_compute(params, (int)args.params,
                                    &(brg_layout_options){.data_parallel_size = j->session.world,
                                                          .bucket_size = numel / 20 + 1},
                                    &j->layout);
    } else {
        brg_fail(status, "no memory for %lld parameters", (long long)args.params);
    }
    free(params);
    free(names);
    return status;
}

static brg_status make_all(job *j)
{
    brg_status status;
    BRG_TRY(make_layout(j), out);
    BRG_TRY(brg_scheduler_create(
                j->session.ctx, j->layout,
                &(brg_scheduler_options){.overlap_grad_reduce = 1, .overlap_param_gather = 1},
                &j->sched),
            out);
    BRG_TRY(brg_muon_create(j->sched, NULL, &j->children[0]), out);
    BRG_TRY(brg_adamw_create(j->sched, NULL, &j->children[1]), out);
    BRG_TRY(brg_chain_create(j->children, 2, &(brg_chain_options){.max_grad_norm = 1.0}, &j->chain),
            out);
    for (int p = 0; p < (int)args.params; p++)
        BRG_TRY(bench_fill(&j->session, brg_param_data(j->sched, p), BRG_BFLOAT16,
                           (size_t)brg_param_numel(brg_layout_param_info(j->layout, p))),
                out);
out:
    return status;
}

/* One step. Gradients are zeros: nobody computes. */
static brg_status one_step(job *j, bool count)
{
    brg_stream stream = j->session.stream;
    double at[NUM_CALLS + 1], wall;
    brg_status status;
    BRG_TRY(bench_rt(&j->session, j->session.device->rt->device_synchronize(), "synchronize"), out);
    wall = clock_us(CLOCK_MONOTONIC);
    at[ZERO_GRAD] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    BRG_TRY(brg_zero_grad(j->sched, stream), out);
    at[PARAM_WAIT] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    for (int p = 0; p < (int)args.params; p++)
        BRG_TRY(brg_param_wait(j->sched, p, stream), out);
    at[GRAD_READY] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    for (int p = (int)args.params - 1; p >= 0; p--)
        BRG_TRY(brg_grad_ready(j->sched, p, stream), out);
    at[FINISH] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    BRG_TRY(brg_finish_grad_sync(j->sched, stream), out);
    at[STEP] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    BRG_TRY(brg_step(j->chain, stream), out);
    at[NUM_CALLS] = clock_us(CLOCK_THREAD_CPUTIME_ID);
    wall = clock_us(CLOCK_MONOTONIC) - wall;
    if (!count)
        return BRG_OK;
    for (int c = 0; c < NUM_CALLS; c++)
        bench_add(&j->calls[c], at[c + 1] - at[c]);
    bench_add(&j->total, at[NUM_CALLS] - at[0]);
    bench_add(&j->wall, wall);
out:
    return status;
}

static int64_t calls_of(int call)
{
    return call == PARAM_WAIT || call == GRAD_READY ? args.params : 1;
}

static int print(job *j)
{
    double total = bench_median_of(&j->total), wall = bench_median_of(&j->wall);
    int buckets = brg_scheduler_num_buckets(j->sched);
    if (args.json) {
        json_t *calls = json_array();
        for (int c = 0; c < NUM_CALLS; c++)
            json_array_append_new(calls, json_pack("{s:s, s:I, s:f}", "call", call_names[c],
                                                   "calls", (json_int_t)calls_of(c), "cpu_us",
                                                   bench_median_of(&j->calls[c])));
        return bench_print_json(&command,
                                json_pack("{s:i, s:s, s:s, s:i, s:I, s:i, s:I, s:o, s:f, s:f}",
                                          "schema", 1, "device", j->session.device->rt->name,
                                          "device_name", j->session.device_name, "ranks",
                                          j->session.world, "params", (json_int_t)args.params,
                                          "buckets", buckets, "steps", (json_int_t)args.iterations,
                                          "calls", calls, "cpu_us", total, "wall_us", wall));
    }
    printf("# %d rank(s) on %s (%s), %lld parameters in %d buckets, medians of %lld steps\n",
           j->session.world, j->session.device->rt->name, j->session.device_name,
           (long long)args.params, buckets, (long long)args.iterations);
    printf("%-22s %7s %12s %12s\n", "call", "calls", "CPU us", "ns a call");
    for (int c = 0; c < NUM_CALLS; c++) {
        double us = bench_median_of(&j->calls[c]);
        printf("%-22s %7lld %12.2f %12.1f\n", call_names[c], (long long)calls_of(c), us,
               us * 1e3 / (double)calls_of(c));
    }
    printf("%-22s %7s %12.2f\n%-22s %7s %12.2f\n", "step", "", total, "wall", "", wall);
    return CLI_OK;
}

static int run(int argc, char **argv)
{
    static job j;
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    code = bench_open(&j.session, &command, args.device, true, NULL);
    if (code != CLI_OK)
        return code;
    enum { WARMUP = 5 }; /* the first step learns, others reach every allocation once */
    brg_status status = make_all(&j);
    for (int64_t i = -WARMUP; i < args.iterations && status == BRG_OK; i++)
        status = one_step(&j, i >= 0);
    if (status == BRG_OK)
        status = brg_finish_param_sync(j.sched, j.session.stream);
    if (status == BRG_OK)
        status = brg_stream_synchronize(j.session.ctx, j.session.stream);
    if (status != BRG_OK)
        code = bench_fail(&j.session, status);
    else if (j.session.rank == 0)
        code = print(&j);
    brg_optimizer_destroy(j.chain);
    brg_optimizer_destroy(j.children[0]);
    brg_optimizer_destroy(j.children[1]);
    brg_scheduler_destroy(j.sched);
    brg_layout_destroy(j.layout);
    bench_close(&j.session);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_host_cost = {&command, run};
