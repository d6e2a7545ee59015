/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench step: what communication costs a whole training step. */
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/status.h"
#include "sched/trace/analysis.h"
#include "tools/brigade/bench_peer.h"
#include "tools/brigade/bench_step_run.h"

static const char *const type_names[] = {"bf16", "fp32", NULL};
static const brg_dtype types[] = {BRG_BFLOAT16, BRG_FLOAT32};
static const char *const overlap_names[] = {"on", "off", NULL};

static struct {
    const char *model, *trace_dir;
    int64_t tokens, steps, bucket_size;
    int device, dtype, grad_dtype, overlap;
    bool dtype_given, precision_aware, no_baseline, json;
    bench_peer_options peer;
} args = {.model = "small", .tokens = 512, .steps = 20, .grad_dtype = 1};

static const cli_option options[] = {
    BENCH_DEVICE_OPTION(&args.device),
    {"model", 'm', CLI_STRING, &args.model, "FILE|NAME",
     "A list of parameters as for 'brigade plan', or one of small, llama-3.2-1b, llama-3.2-3b, "
     "llama-3-8b (default small).",
     NULL, 0, 0, NULL},
    {"tokens", 't', CLI_INT, &args.tokens, "N", "Tokens of a rank in a step (default 512).", NULL,
     1, 1 << 24, NULL},
    {"steps", 'n', CLI_INT, &args.steps, "N",
     "Steps to measure of each kind, in blocks of 4, interleaved (default 20).", NULL, 1,
     BENCH_MAX_ROUNDS, NULL},
    {"dtype", 'd', CLI_CHOICE, &args.dtype, NULL,
     "Type of parameters and activations (default bf16; fp32 on the host device, which computes in "
     "no other).",
     type_names, 0, 0, &args.dtype_given},
    {"grad-dtype", 0, CLI_CHOICE, &args.grad_dtype, NULL,
     "Type of the gradients in their buffers (default fp32).", type_names, 0, 0, NULL},
    {"bucket-size", 0, CLI_SIZE, &args.bucket_size, "N",
     "Elements at which a bucket closes (default as the library's).", NULL, 0, 1e12, NULL},
    {"overlap", 0, CLI_CHOICE, &args.overlap, NULL,
     "Reduce under backward and gather under forward (default on).", overlap_names, 0, 0, NULL},
    {"precision-aware", 0, CLI_FLAG, &args.precision_aware, NULL,
     "AdamW with 16-bit moments and remainders.", NULL, 0, 0, NULL},
    {"no-baseline", 0, CLI_FLAG, &args.no_baseline, NULL,
     "Leave out the steps without communication.", NULL, 0, 0, NULL},
    {"output", 'o', CLI_STRING, &args.trace_dir, "DIR",
     "Afterwards run as many steps again with a trace, and show what each bucket costs.", NULL, 0,
     0, NULL},
    BENCH_PEER_OPTIONS(args.peer),
    BENCH_JSON_OPTION(&args.json),
    {.name = NULL}};

static const cli_command command = {
    .name = "bench step",
    .summary = "Time whole steps of a synthetic model, with communication and without.",
    .usage = "[--model FILE|NAME] [--tokens N] [options]",
    .details =
        "Real scheduler, real optimizers (Muon for matrices, AdamW for the rest, one clip factor), "
        "made-up work: for every matrix the three products of a training step with that many "
        "tokens, on one stream. The first embedding is a table that is looked up, and costs "
        "nothing. Steps without communication are the same steps in the same run, but that "
        "collectives do nothing; the ratio says what communication costs. Times are the slowest "
        "rank's, by events, medians. Ranks are those of the environment:\n\n"
        "  brigade run -n 2 -- brigade bench step --model llama-3.2-3b --tokens 4096",
    .options = options,
};

typedef struct job {
    bench_session session;
    bench_model model;
    bench_step_options options;
    int buckets, ranks;
    int64_t elements;
    double flops;
    char device[16], device_name[128];
    bench_peer peer;
    bench_samples with, without, peers;
    json_t *document;
} job;

/* "64x32m,32,...": see the script. The caller frees it. */
static char *shapes_of(const bench_step_run *run)
{
    size_t bytes = (size_t)run->model->count * 64 + 1, used = 0;
    char *text = calloc(bytes, 1);
    for (int p = 0; text && p < run->model->count; p++) {
        const brg_param *param = &run->model->params[p];
        int buffer = 0;
        brg_layout_find(run->layout, p, &buffer, NULL);
        bool layerwise = brg_layout_get_buffer(run->layout, buffer)->key.layerwise;
        if (param->num_dims == 2)
            used += (size_t)snprintf(text + used, bytes - used, "%lldx%lld%s%s,",
                                     (long long)param->shape[0], (long long)param->shape[1],
                                     layerwise ? "m" : "", run->layers[p].computes ? "" : "e");
        else
            used += (size_t)snprintf(text + used, bytes - used, "%lld,",
                                     (long long)brg_param_numel(param));
    }
    if (used)
        text[used - 1] = '\0';
    return text;
}

/* On every rank or on none. */
static brg_status start_peer(const bench_step_run *run, job *j)
{
    char tokens[32], steps[16], *shapes = shapes_of(run);
    snprintf(tokens, sizeof tokens, "%lld", (long long)args.tokens);
    snprintf(steps, sizeof steps, "%d", BENCH_STEP_BLOCK);
    const char *script_args[] = {j->session.device->kernels ? "cuda" : "cpu", tokens, steps,
                                 shapes ? shapes : "", NULL};
    bench_peer_start(&j->peer, &command, &args.peer, "bench_step.py", script_args);
    bench_peer_ready(&j->peer);
    free(shapes);
    double missing = j->peer.count == 0;
    brg_status status = bench_max_over_ranks(&j->session, &missing, 1);
    if (missing > 0)
        bench_peer_stop(&j->peer);
    return status;
}

static void measure_peer(job *j, bool count)
{
    double us[BENCH_MAX_PEERS];
    bench_peer_measure(&j->peer, 0, us);
    if (count)
        bench_add(&j->peers, us[0]);
}

static brg_status measure(bench_step_run *run, job *j)
{
    double us[BENCH_STEP_BLOCK];
    int64_t blocks = (args.steps + BENCH_STEP_BLOCK - 1) / BENCH_STEP_BLOCK;
    brg_status status;
    BRG_TRY(start_peer(run, j), out);
    for (int64_t b = -1; b < blocks; b++) { /* the first block warms up and learns */
        for (int i = 0; i < 2; i++) {
            bool communicate = b < 0 ? i == 0 : (b + i) % 2 == 0;
            if (!communicate && args.no_baseline)
                continue;
            BRG_TRY(bench_step_block(run, communicate, us), out);
            for (int k = 0; k < BENCH_STEP_BLOCK && b >= 0; k++)
                bench_add(communicate ? &j->with : &j->without, us[k]);
        }
        measure_peer(j, b >= 0);
    }
out:
    bench_peer_stop(&j->peer);
    return status;
}

static brg_status run_traced(bench_step_run *run)
{
    double us[BENCH_STEP_BLOCK];
    brg_status status = BRG_OK;
    for (int64_t done = -BENCH_STEP_BLOCK; done < args.steps && status == BRG_OK;
         done += BENCH_STEP_BLOCK)
        status = bench_step_block(run, true, us);
    return status;
}

/* A context of its own for each of the two: what is measured is not traced. */
static int run_all(job *j, const char *trace_dir)
{
    bench_step_run run = {0};
    int code = bench_open(&j->session, &command, args.device, true, trace_dir);
    if (code != CLI_OK)
        return code;
    bool host = j->session.device->kernels == NULL;
    if (host && args.dtype_given && types[args.dtype] != BRG_FLOAT32) {
        bench_close(&j->session);
        return cli_fail(&command, CLI_USAGE, "--dtype: the host device computes in fp32 only");
    }
    j->options.dtype = host ? BRG_FLOAT32 : types[args.dtype];
    code = bench_model_load(&command, args.model, j->options.dtype, &j->model);
    if (code == CLI_OK) {
        brg_status status = bench_step_open(&run, &j->session, &j->model, &j->options);
        if (status == BRG_OK)
            status = trace_dir ? run_traced(&run) : measure(&run, j);
        if (status != BRG_OK)
            code = bench_fail(&j->session, status);
        j->buckets = brg_scheduler_num_buckets(run.sched);
        j->flops = run.gemm_flops;
        j->elements = 0;
        for (int p = 0; p < j->model.count; p++)
            j->elements += brg_param_numel(&j->model.params[p]);
        j->ranks = j->session.world;
        snprintf(j->device, sizeof j->device, "%s", j->session.device->rt->name);
        snprintf(j->device_name, sizeof j->device_name, "%s", j->session.device_name);
    }
    int rank = j->session.rank;
    bench_step_close(&run);
    bench_close(&j->session);
    j->session.rank = rank;
    return code;
}

static void report(job *j)
{
    double with = bench_median_of(&j->with), without = bench_median_of(&j->without);
    double peer = bench_median_of(&j->peers);
    bool compared = !isnan(without);
    j->document = json_pack(
        "{s:i, s:s, s:s, s:i, s:s, s:i, s:I, s:i, s:I, s:s, s:s, s:b, s:i, s:f, s:f}", "schema", 1,
        "device", j->device, "device_name", j->device_name, "ranks", j->ranks, "model", args.model,
        "params", j->model.count, "elements", (json_int_t)j->elements, "buckets", j->buckets,
        "tokens", (json_int_t)args.tokens, "dtype", brg_dtype_str(j->options.dtype), "grad_dtype",
        brg_dtype_str(j->options.grad_dtype), "overlap", j->options.overlap, "steps", j->with.count,
        "gemm_tflop", j->flops * 1e-12, "step_us", with);
    if (compared) {
        json_object_set_new(j->document, "without_communication_us", json_real(without));
        json_object_set_new(j->document, "ratio", json_real(with / without));
    }
    if (!isnan(peer))
        json_object_set_new(j->document, "peer",
                            json_pack("{s:s, s:f, s:f}", "name", j->peer.names[0], "us", peer,
                                      "speedup", peer / with));
    if (args.json)
        return;
    printf("# %d rank(s) on %s (%s): %s, %d parameters, %lld elements in %d buckets\n"
           "# %lld tokens, %s, gradients %s, overlap %s, medians of %d steps\n",
           j->ranks, j->device, j->device_name, args.model, j->model.count, (long long)j->elements,
           j->buckets, (long long)args.tokens, brg_dtype_str(j->options.dtype),
           brg_dtype_str(j->options.grad_dtype), overlap_names[args.overlap], j->with.count);
    printf("%-24s %12.3f ms  (products: %.3f TFLOP)\n", "step", with * 1e-3, j->flops * 1e-12);
    if (compared)
        printf("%-24s %12.3f ms\n%-24s %12.3f\n", "without communication", without * 1e-3, "ratio",
               with / without);
    if (!isnan(peer))
        printf("%-24s %12.3f ms (%.2fx)\n", j->peer.names[0], peer * 1e-3, peer / with);
    fflush(stdout);
}

static void report_bucket(const brg_bucket_report *b, json_t *buckets)
{
    double bytes = (double)b->meta.grad_bytes;
    json_array_append_new(
        buckets, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "bucket", (int)b->id, "grad_bytes",
                           bytes, "exposed_us", b->exposed.median * 1e-3, "wait_us",
                           b->wait.median * 1e-3, "reduce_us", b->reduce_time.median * 1e-3,
                           "gather_us", b->gather_time.median * 1e-3));
    if (!args.json)
        printf("%8d %12.1f %12.1f %12.1f %12.1f %12.1f\n", (int)b->id, bytes / (1 << 20),
               b->exposed.median * 1e-3, b->wait.median * 1e-3, b->reduce_time.median * 1e-3,
               b->gather_time.median * 1e-3);
}

/* This rank's own trace; `brigade report` looks at all of them. */
static int report_trace(job *j)
{
    char path[PATH_MAX];
    brg_trace *trace = NULL;
    brg_rank_report found;
    snprintf(path, sizeof path, "%s/rank-%d.ring", args.trace_dir, j->session.rank);
    brg_status status = brg_trace_open(path, &trace);
    if (status == BRG_OK)
        status = brg_trace_analyze(
            trace, &(brg_analysis_options){.warmup_steps = BENCH_STEP_BLOCK + 1}, &found);
    if (status != BRG_OK) {
        brg_trace_close(trace);
        return cli_fail(&command, CLI_FINDING, "%s", brg_last_error());
    }
    json_t *buckets = json_array();
    if (!args.json)
        printf("\n# traced steps of rank 0, us per step (all: brigade report %s)\n"
               "%8s %12s %12s %12s %12s %12s\n",
               args.trace_dir, "bucket", "MiB", "exposed", "wait", "reduce", "gather");
    for (size_t i = 0; i < found.nbuckets; i++)
        report_bucket(&found.buckets[i], buckets);
    if (!args.json)
        printf("%8s %12s %12.1f\n", "all", "", found.exposed_all.median * 1e-3);
    json_object_set_new(j->document, "exposed_us", json_real(found.exposed_all.median * 1e-3));
    json_object_set_new(j->document, "exposed", buckets);
    brg_rank_report_free(&found);
    brg_trace_close(trace);
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
    j.options = (bench_step_options){.tokens = args.tokens,
                                     .bucket_size = args.bucket_size,
                                     .grad_dtype = types[args.grad_dtype],
                                     .overlap = args.overlap == 0,
                                     .precision_aware = args.precision_aware};
    code = run_all(&j, NULL);
    if (code == CLI_OK && j.session.rank == 0)
        report(&j);
    if (code == CLI_OK && args.trace_dir) {
        bench_model_free(&j.model);
        code = run_all(&j, args.trace_dir);
        if (code == CLI_OK && j.session.rank == 0)
            code = report_trace(&j);
    }
    if (code == CLI_OK && args.json && j.session.rank == 0)
        code = bench_print_json(&command, j.document);
    else
        json_decref(j.document);
    bench_model_free(&j.model);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_step = {&command, run};
