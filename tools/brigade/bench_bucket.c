/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench bucket: reduce-scatter and all-gather of buckets through the scheduler, beside a
 * bare loop of the same collectives on the same communicator, stream and memory. */
#include <jansson.h>
#include <stdlib.h>

#include "sched/bucket/context.h"
#include "sched/status.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/bench_session.h"

enum { MAX_BUCKETS = 64 };

static const char *const type_names[] = {"bf16", "fp32", "fp16", NULL};
static const brg_dtype types[] = {BRG_BFLOAT16, BRG_FLOAT32, BRG_FLOAT16};

static struct {
    int64_t min_bytes, max_bytes, factor, rounds, buckets;
    int device, type;
    bool max_given, min_given, json;
} args = {.factor = 4, .rounds = 20};

static const cli_option options[] = {
    BENCH_DEVICE_OPTION(&args.device),
    {"minbytes", 'b', CLI_SIZE, &args.min_bytes, "BYTES",
     "Smallest bucket, all shards (default 16M; on the host device 64K).", NULL, 1 << 10, 1e12,
     &args.min_given},
    {"maxbytes", 'e', CLI_SIZE, &args.max_bytes, "BYTES",
     "Largest bucket (default 1G; on the host device 16M).", NULL, 1 << 10, 1e12, &args.max_given},
    {"stepfactor", 'f', CLI_INT, &args.factor, "N",
     "Each size is N times the one before (default 4).", NULL, 2, 1 << 20, NULL},
    {"buckets", 0, CLI_INT, &args.buckets, "N",
     "Buckets, one collective each, that are timed together (default 2 to 16, less for larger "
     "ones).",
     NULL, 1, MAX_BUCKETS, NULL},
    {"iters", 'n', CLI_INT, &args.rounds, "N", "Measurements, interleaved (default 20).", NULL, 1,
     BENCH_MAX_ROUNDS, NULL},
    {"datatype", 'd', CLI_CHOICE, &args.type, "TYPE",
     "Element type of gradients and parameters (default bf16).", type_names, 0, 0, NULL},
    BENCH_JSON_OPTION(&args.json),
    {.name = NULL}};

static const cli_command command = {
    .name = "bench bucket",
    .summary = "Time buckets through the scheduler beside a bare loop of the same collectives.",
    .usage = "[-b BYTES] [-e BYTES] [options]",
    .details =
        "For each size a scheduler with that many buckets of it: brg_grad_ready() for every "
        "gradient and brg_finish_grad_sync(); and the start of all gathers to "
        "brg_finish_param_sync(). The bare loop puts the same collectives on the communication "
        "stream, in place in the same buffers, with nothing in between. Times are those of the "
        "device, by events, from an idle device until the last collective has ended: medians over "
        "the measurements of the slowest rank's time, for one bucket. busbw is that of nccl-tests, "
        "ratio is scheduler / bare.\n\n"
        "Ranks are those of the environment; alone there is one, and nothing to move:\n\n"
        "  brigade run -n 2 -- brigade bench bucket -b 16M -e 1G",
    .options = options,
};

enum { REDUCE_SCATTER, ALL_GATHER, NUM_OPS };
static const char *const op_names[] = {"reduce-scatter", "all-gather"};

typedef struct job {
    bench_session session;
    brg_layout *layout;
    brg_scheduler *sched;
    int num_buckets, groups[MAX_BUCKETS];
    size_t bucket_bytes, bucket_elems;
    bench_samples through[NUM_OPS], bare[NUM_OPS];
    json_t *results;
} job;

/* One parameter a bucket: the threshold closes each of them. */
static brg_status make_scheduler(job *j, int64_t bytes)
{
    enum { NAME_BYTES = 24 };
    brg_param params[MAX_BUCKETS] = {0};
    char names[MAX_BUCKETS][NAME_BYTES];
    brg_dtype dtype = types[args.type];
    int64_t numel = bytes / (int64_t)brg_dtype_bytes(dtype);
    for (int i = 0; i < j->num_buckets; i++) {
        snprintf(names[i], NAME_BYTES, "bucket%d", i);
        params[i] = (brg_param){.name = names[i], .num_dims = 1, .shape = {numel}, .dtype = dtype};
    }
    brg_bucket_info info = {0};
    brg_status status;
    BRG_TRY(brg_layout_compute(params, j->num_buckets,
                               &(brg_layout_options){.algorithm = BRG_ELEMENTWISE,
                                                     .data_parallel_size = j->session.world,
                                                     .bucket_size = BRG_BUCKET_SIZE_SMALLEST,
                                                     .grad_dtype_is_param_dtype = 1},
                               &j->layout),
            out);
    BRG_TRY(brg_scheduler_create(
                j->session.ctx, j->layout,
                &(brg_scheduler_options){.overlap_grad_reduce = 1, .overlap_param_gather = 1},
                &j->sched),
            out);
    BRG_TRY(brg_scheduler_bucket(j->sched, 0, &info), out);
    j->bucket_bytes = info.grad_bytes;
    j->bucket_elems = info.grad_bytes / brg_dtype_bytes(dtype);
    for (int i = 0; i < j->num_buckets; i++) {
        j->groups[i] = i;
        BRG_TRY(bench_fill(&j->session, brg_param_data(j->sched, i), dtype, (size_t)numel), out);
    }
out:
    return status;
}

static brg_status idle_everywhere(job *j)
{
    brg_status status = brg_barrier(j->session.ctx);
    return status == BRG_OK ? bench_time_begin(&j->session) : status;
}

static brg_status reduce_through(job *j, double *us)
{
    bench_session *s = &j->session;
    brg_status status;
    BRG_TRY(brg_zero_grad(j->sched, s->stream), out);
    for (int i = 0; i < j->num_buckets; i++)
        BRG_TRY(bench_fill(s, brg_grad_data(j->sched, i), types[args.type], j->bucket_elems), out);
    BRG_TRY(idle_everywhere(j), out);
    for (int i = j->num_buckets - 1; i >= 0; i--)
        BRG_TRY(brg_grad_ready(j->sched, i, s->stream), out);
    BRG_TRY(brg_finish_grad_sync(j->sched, s->stream), out);
    BRG_TRY(bench_time_end(s, us), out);
out:
    return status;
}

static brg_status gather_through(job *j, double *us)
{
    brg_status status;
    BRG_TRY(idle_everywhere(j), out);
    BRG_TRY(brg_sched_start_param_sync(j->sched, j->groups, j->num_buckets, j->session.stream),
            out);
    BRG_TRY(brg_finish_param_sync(j->sched, j->session.stream), out);
    BRG_TRY(bench_time_end(&j->session, us), out);
out:
    return status;
}

static int call_bare(const job *j, int op, int bucket)
{
    const brg_context *ctx = j->session.ctx;
    const brg_nccl *nccl = ctx->device.nccl;
    int dtype = brg_nccl_dtype(types[args.type]);
    size_t shard = j->bucket_elems / (size_t)ctx->world;
    size_t offset = shard * (size_t)ctx->rank * brg_dtype_bytes(types[args.type]);
    char *base =
        op == REDUCE_SCATTER ? brg_grad_data(j->sched, bucket) : brg_param_data(j->sched, bucket);
    if (op == REDUCE_SCATTER)
        return nccl->reduce_scatter(base, base + offset, shard, dtype, BRG_NCCL_AVG, ctx->comm,
                                    ctx->comm_stream);
    return nccl->all_gather(base + offset, base, shard, dtype, ctx->comm, ctx->comm_stream);
}

/* Straight on the communication stream, which the session's timing events go to meanwhile. */
static brg_status bare_loop(job *j, int op, double *us)
{
    brg_context *ctx = j->session.ctx;
    brg_stream own = j->session.stream;
    brg_status status;
    if (op == REDUCE_SCATTER) /* sums of sums would grow */
        for (int i = 0; i < j->num_buckets; i++)
            BRG_TRY(bench_fill(&j->session, brg_grad_data(j->sched, i), types[args.type],
                               j->bucket_elems),
                    out);
    j->session.stream = ctx->comm_stream;
    BRG_TRY(idle_everywhere(j), out);
    pthread_mutex_lock(&ctx->issue_lock);
    int result = BRG_NCCL_OK;
    for (int i = j->num_buckets - 1; i >= 0 && result == BRG_NCCL_OK; i--)
        result = brg_context_count_op_locked(ctx, call_bare(j, op, i));
    pthread_mutex_unlock(&ctx->issue_lock);
    BRG_TRY(brg_context_nccl(ctx, result, op_names[op]), out);
    BRG_TRY(bench_time_end(&j->session, us), out);
out:
    j->session.stream = own;
    return status;
}

/* Every rank measures everything in the same order; which of two comes first changes. */
static brg_status one_round(job *j, int64_t round)
{
    double us[2 * NUM_OPS];
    brg_status status;
    /* The gradients of a step first: only then may its gathers start. */
    BRG_TRY(reduce_through(j, &us[REDUCE_SCATTER]), out);
    for (int i = 0; i < 2; i++) {
        if ((round + i) % 2)
            BRG_TRY(gather_through(j, &us[ALL_GATHER]), out);
        else
            BRG_TRY(bare_loop(j, ALL_GATHER, &us[NUM_OPS + ALL_GATHER]), out);
    }
    BRG_TRY(bare_loop(j, REDUCE_SCATTER, &us[NUM_OPS + REDUCE_SCATTER]), out);
    BRG_TRY(bench_max_over_ranks(&j->session, us, 2 * NUM_OPS), out);
    for (int op = 0; op < NUM_OPS && round >= 0; op++) {
        bench_add(&j->through[op], us[op] / j->num_buckets);
        bench_add(&j->bare[op], us[NUM_OPS + op] / j->num_buckets);
    }
out:
    return status;
}

static void report(job *j)
{
    const double n = j->session.world;
    for (int op = 0; op < NUM_OPS; op++) {
        double through = bench_median_of(&j->through[op]), bare = bench_median_of(&j->bare[op]);
        double moved = (double)j->bucket_bytes * (n - 1) / n * 1e-3; /* per us: GB/s */
        if (args.json)
            json_array_append_new(
                j->results,
                json_pack("{s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f}", "op", op_names[op], "bytes",
                          (json_int_t)j->bucket_bytes, "buckets", j->num_buckets, "scheduler_us",
                          through, "scheduler_busbw_gbs", moved / through, "bare_us", bare,
                          "bare_busbw_gbs", moved / bare, "ratio", through / bare));
        else
            printf("%-14s %12zu %8d %13.2f %9.2f %11.2f %9.2f %7.3f\n", op_names[op],
                   j->bucket_bytes, j->num_buckets, through, moved / through, bare, moved / bare,
                   through / bare);
    }
    fflush(stdout);
}

static brg_status measure_size(job *j, int64_t bytes)
{
    enum { WARMUP = 3 }; /* the first round's step learns */
    const int64_t together = (int64_t)2 << 30;
    brg_status status;
    int64_t fit = together / bytes;
    j->num_buckets = (int)(args.buckets ? args.buckets : fit < 2 ? 2 : fit > 16 ? 16 : fit);
    for (int op = 0; op < NUM_OPS; op++)
        j->through[op].count = j->bare[op].count = 0;
    BRG_TRY(make_scheduler(j, bytes), out);
    for (int64_t i = -WARMUP; i < args.rounds; i++)
        BRG_TRY(one_round(j, i), out);
    if (j->session.rank == 0)
        report(j);
out:
    if (status != BRG_OK)
        bench_fail(&j->session, status);
    brg_scheduler_destroy(j->sched);
    brg_layout_destroy(j->layout);
    j->sched = NULL;
    j->layout = NULL;
    return status;
}

static int choose_sizes(bool host)
{
    if (!args.min_given)
        args.min_bytes = host ? 64 << 10 : 16 << 20;
    if (!args.max_given)
        args.max_bytes = host ? 16 << 20 : 1 << 30;
    if (!args.max_given && args.max_bytes < args.min_bytes)
        args.max_bytes = args.min_bytes;
    if (!args.min_given && args.max_bytes < args.min_bytes)
        args.min_bytes = args.max_bytes;
    if (args.max_bytes < args.min_bytes)
        return cli_fail(&command, CLI_USAGE, "-e %lld is less than -b %lld",
                        (long long)args.max_bytes, (long long)args.min_bytes);
    return CLI_OK;
}

static int measure_all(job *j)
{
    const bench_session *s = &j->session;
    if (s->rank == 0 && !args.json) {
        printf("# %d rank(s) on %s (%s), %s, %lld measurements, times for one bucket\n", s->world,
               s->device->rt->name, s->device_name, type_names[args.type], (long long)args.rounds);
        printf("%-14s %12s %8s %13s %9s %11s %9s %7s\n", "# collective", "bytes", "buckets",
               "scheduler(us)", "busbw", "bare(us)", "busbw", "ratio");
    }
    j->results = json_array();
    for (int64_t bytes = args.min_bytes; bytes <= args.max_bytes; bytes *= args.factor)
        if (measure_size(j, bytes) != BRG_OK)
            return CLI_FINDING;
    if (s->rank != 0 || !args.json)
        return CLI_OK;
    return bench_print_json(&command,
                            json_pack("{s:i, s:s, s:s, s:i, s:s, s:I, s:O}", "schema", 1, "device",
                                      s->device->rt->name, "device_name", s->device_name, "ranks",
                                      s->world, "type", type_names[args.type], "measurements",
                                      (json_int_t)args.rounds, "results", j->results));
}

static int run(int argc, char **argv)
{
    static job j;
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    if (args.min_given && args.max_given && args.max_bytes < args.min_bytes)
        return choose_sizes(true); /* wrong on every device */
    code = bench_open(&j.session, &command, args.device, true, NULL);
    if (code != CLI_OK)
        return code;
    code = choose_sizes(j.session.device->kernels == NULL);
    if (code == CLI_OK)
        code = measure_all(&j);
    json_decref(j.results);
    bench_close(&j.session);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_bucket = {&command, run};
