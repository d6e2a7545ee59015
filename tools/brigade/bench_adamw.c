/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench adamw: norm, clip, AdamW and the write of the weights, beside a copy of memory and
 * what torch does for the same. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/status.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/bench_peer.h"
#include "tools/brigade/bench_session.h"

enum { FP32, PRECISION_AWARE, NUM_FORMS };
static const char *const form_names[] = {"fp32", "precision-aware", "all", NULL};
/* The norm reads the gradient; then gradient, weight, master and two moments: 4 + 30, 2 + 18. */
static const double form_bytes[] = {34, 20};
static const brg_dtype grad_types[] = {BRG_FLOAT32, BRG_BFLOAT16};

static struct {
    int64_t numel, params, rounds;
    int device, form;
    bool numel_given, json;
    bench_peer_options peer;
} args = {.params = 200, .rounds = 20, .form = NUM_FORMS};

static const cli_option options[] = {
    BENCH_DEVICE_OPTION(&args.device),
    {"numel", 'N', CLI_INT, &args.numel, "N",
     "Elements of the model (default 1000000000; on the host device 4000000).", NULL, 1024, 1e11,
     &args.numel_given},
    {"params", 0, CLI_INT, &args.params, "N", "Parameters that they are in (default 200).", NULL, 1,
     100000, NULL},
    {"form", 0, CLI_CHOICE, &args.form, NULL,
     "fp32 gradients, masters and moments, or precision-aware: bf16 gradients and moments, masters "
     "of 16 bits beside the weight (default all).",
     form_names, 0, 0, NULL},
    {"iters", 'n', CLI_INT, &args.rounds, "N", "Measurements, interleaved (default 20).", NULL, 1,
     BENCH_MAX_ROUNDS, NULL},
    BENCH_PEER_OPTIONS(args.peer),
    BENCH_JSON_OPTION(&args.json),
    {.name = NULL}};

static const cli_command command = {
    .name = "bench adamw",
    .summary = "Time AdamW with norm, clip and weight write beside a copy of memory and torch.",
    .usage = "[--numel N] [options]",
    .details =
        "step is the true path, one rank: brg_grad_ready() for all, brg_finish_grad_sync() and "
        "brg_step() with clipping. kernels are the device's kernels alone, on one range. Weights "
        "are bf16. Bytes are what must be read and written for a parameter, the norm's pass "
        "included: 34 (fp32) and 20 (precision-aware). copy is the runtime's copy within device "
        "memory of 4 bytes for each parameter, 8 with the write; on the host device memcpy. torch: "
        "clip_grad_norm_(foreach=True), AdamW(fused=True) on fp32, and a cast to bf16, in the same "
        "run. Medians.",
    .options = options,
};

enum { STEP, KERNELS, COPY, NUM_KINDS };

typedef struct job {
    bench_session session;
    bench_peer peer;
    json_t *results;
    int form;
    brg_layout *layout;
    brg_scheduler *sched;
    brg_optimizer *adamw, *chain;
    void *copy[2];
    size_t copy_bytes;
    /* of the kernels alone */
    void *param, *grad, *master, *state0, *state1, *partials, *pointer, *state, *hyper;
    bench_samples samples[NUM_KINDS], peers[BENCH_MAX_PEERS];
} job;

static brg_status make_step(job *j)
{
    enum { NAME_BYTES = 24 };
    brg_status status = BRG_ERR_NO_MEMORY;
    int64_t each = args.numel / args.params, aware = j->form == PRECISION_AWARE;
    brg_param *params = calloc((size_t)args.params, sizeof *params);
    char(*names)[NAME_BYTES] = calloc((size_t)args.params, sizeof *names);
    if (!params || !names) {
        brg_fail(status, "no memory for %lld parameters", (long long)args.params);
        goto out;
    }
    for (int64_t p = 0; p < args.params; p++) {
        snprintf(names[p], NAME_BYTES, "p%lld", (long long)p);
        params[p] = (brg_param){.name = names[p],
                                .num_dims = 1,
                                .shape = {p ? each : args.numel - each * (args.params - 1)},
                                .dtype = BRG_BFLOAT16};
    }
    BRG_TRY(brg_layout_compute(params, (int)args.params,
                               &(brg_layout_options){.grad_dtype = grad_types[j->form]},
                               &j->layout),
            out);
    /* A plain sum: with one rank there is then nothing to do for a reduction. */
    BRG_TRY(brg_scheduler_create(j->session.ctx, j->layout,
                                 &(brg_scheduler_options){.overlap_grad_reduce = 1,
                                                          .overlap_param_gather = 1,
                                                          .grad_scaling = BRG_SCALE_NONE},
                                 &j->sched),
            out);
    BRG_TRY(brg_adamw_create(
                j->sched, &(brg_adamw_options){.weight_decay = 0.1, .precision_aware = (int)aware},
                &j->adamw),
            out);
    BRG_TRY(brg_chain_create(&j->adamw, 1, &(brg_chain_options){.max_grad_norm = 1.0}, &j->chain),
            out);
    for (int p = 0; p < (int)args.params; p++)
        BRG_TRY(bench_fill(&j->session, brg_param_data(j->sched, p), BRG_BFLOAT16,
                           (size_t)params[p].shape[0]),
                out);
out:
    free(params);
    free(names);
    return status;
}

/* Zeroed moments and remainders, random weights and gradients. */
static brg_status make_kernels(job *j)
{
    bench_session *s = &j->session;
    size_t n = (size_t)args.numel, state_bytes = n * (j->form == FP32 ? 4 : 2);
    const brg_runtime *rt = s->device->rt;
    brg_status status;
    BRG_TRY(bench_alloc(s, 2 * n, &j->param), out);
    BRG_TRY(bench_alloc(s, n * brg_dtype_bytes(grad_types[j->form]), &j->grad), out);
    void **states[] = {&j->master, &j->state0, &j->state1};
    for (int i = 0; i < 3; i++) {
        BRG_TRY(bench_alloc(s, state_bytes, states[i]), out);
        BRG_TRY(bench_rt(s, rt->memset_async(*states[i], 0, state_bytes, s->stream), "memset"),
                out);
    }
    BRG_TRY(bench_alloc(s, BRG_NORM_PARTIALS * sizeof(double), &j->partials), out);
    BRG_TRY(bench_alloc(s, sizeof j->partials, &j->pointer), out);
    BRG_TRY(bench_alloc(s, sizeof(brg_step_state), &j->state), out);
    BRG_TRY(bench_alloc(s, sizeof(brg_hyper_state), &j->hyper), out);
    BRG_TRY(bench_rt(s, rt->memset_async(j->state, 0, sizeof(brg_step_state), s->stream), "memset"),
            out);
    BRG_TRY(
        bench_rt(s, rt->memset_async(j->hyper, 0, sizeof(brg_hyper_state), s->stream), "memset"),
        out);
    BRG_TRY(bench_rt(s,
                     rt->memcpy_async(j->pointer, &j->partials, sizeof j->partials,
                                      BRG_COPY_HOST_TO_DEVICE, s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(bench_fill(s, j->param, BRG_BFLOAT16, n), out);
    BRG_TRY(bench_fill(s, j->grad, grad_types[j->form], n), out);
    if (j->form == FP32)
        BRG_TRY(bench_fill(s, j->master, BRG_FLOAT32, n), out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
out:
    return status;
}

static brg_status make_all(job *j)
{
    brg_status status;
    j->copy_bytes = (size_t)args.numel * 4;
    BRG_TRY(make_step(j), out);
    for (int i = 0; i < 2; i++) {
        BRG_TRY(bench_alloc(&j->session, j->copy_bytes, &j->copy[i]), out);
        BRG_TRY(bench_fill(&j->session, j->copy[i], BRG_FLOAT32, j->copy_bytes / 4), out);
    }
    if (j->session.device->kernels)
        BRG_TRY(make_kernels(j), out);
out:
    return status;
}

static void free_all(job *j)
{
    void **memory[] = {&j->copy[0], &j->copy[1],  &j->param,   &j->grad,  &j->master, &j->state0,
                       &j->state1,  &j->partials, &j->pointer, &j->state, &j->hyper};
    brg_optimizer_destroy(j->chain);
    brg_optimizer_destroy(j->adamw);
    brg_scheduler_destroy(j->sched);
    brg_layout_destroy(j->layout);
    j->chain = j->adamw = NULL;
    j->sched = NULL;
    j->layout = NULL;
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        bench_free(&j->session, *memory[i]);
        *memory[i] = NULL;
    }
}

static brg_status time_step(job *j, double *us)
{
    bench_session *s = &j->session;
    brg_status status;
    BRG_TRY(brg_zero_grad(j->sched, s->stream), out);
    for (int p = 0; p < (int)args.params; p++)
        BRG_TRY(bench_fill(s, brg_grad_data(j->sched, p), grad_types[j->form],
                           (size_t)brg_param_numel(brg_layout_param_info(j->layout, p))),
                out);
    BRG_TRY(bench_time_begin(s), out);
    for (int p = (int)args.params - 1; p >= 0; p--)
        BRG_TRY(brg_grad_ready(j->sched, p, s->stream), out);
    BRG_TRY(brg_finish_grad_sync(j->sched, s->stream), out);
    BRG_TRY(brg_step(j->chain, s->stream), out);
    BRG_TRY(brg_finish_param_sync(j->sched, s->stream), out);
    BRG_TRY(bench_time_end(s, us), out);
out:
    return status;
}

static int launch_kernels(job *j)
{
    const brg_kernels *k = j->session.device->kernels;
    brg_stream stream = j->session.stream;
    const double beta1 = 0.9, beta2 = 0.999;
    brg_dtype grad_type = grad_types[j->form];
    brg_prepare_args prepare = {
        .state = j->state,
        .grad_factor = 1,
        .max_grad_norm = 1,
        .num_children = 1,
        .children = {
            {.hyper = j->hyper, .lr = 1e-3, .weight_decay = 0.1, .beta1 = beta1, .beta2 = beta2}}};
    bool aware = j->form == PRECISION_AWARE;
    brg_update_range range = {.param = j->param,
                              .grad = j->grad,
                              .master = aware ? NULL : j->master,
                              .low = aware ? j->master : NULL,
                              .state0 = j->state0,
                              .state1 = j->state1,
                              .numel = args.numel};
    brg_adamw_args update = {.state = j->state,
                             .hyper = j->hyper,
                             .beta1 = (float)beta1,
                             .beta2 = (float)beta2,
                             .eps = 1e-8f,
                             .one_minus_beta1 = (float)(1 - beta1),
                             .one_minus_beta2 = (float)(1 - beta2),
                             .param_dtype = BRG_BFLOAT16,
                             .grad_dtype = grad_type,
                             .precision_aware = aware,
                             .num_ranges = 1,
                             .ranges = &range};
    brg_step_state *state = j->state;
    int error = k->sum_squares(j->grad, grad_type, args.numel, j->partials, stream);
    if (!error)
        error = k->sum_partials((const double *const *)j->pointer, 1, &state->sum_squares, stream);
    if (!error)
        error = k->prepare_step(&prepare, stream);
    return error ? error : k->adamw(&update, stream);
}

static brg_status time_kernels(job *j, double *us)
{
    brg_status status;
    BRG_TRY(bench_time_begin(&j->session), out);
    BRG_TRY(bench_rt(&j->session, launch_kernels(j), "AdamW's kernels"), out);
    BRG_TRY(bench_time_end(&j->session, us), out);
out:
    return status;
}

static brg_status time_copy(job *j, double *us)
{
    bench_session *s = &j->session;
    brg_status status;
    BRG_TRY(bench_time_begin(s), out);
    BRG_TRY(bench_rt(s,
                     s->device->rt->memcpy_async(j->copy[0], j->copy[1], j->copy_bytes,
                                                 BRG_COPY_DEVICE_TO_DEVICE, s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(bench_time_end(s, us), out);
out:
    return status;
}

static brg_status one_round(job *j, bool count)
{
    double us[NUM_KINDS] = {NAN, NAN, NAN}, peers[BENCH_MAX_PEERS];
    brg_status status;
    BRG_TRY(time_step(j, &us[STEP]), out);
    BRG_TRY(time_copy(j, &us[COPY]), out);
    if (j->session.device->kernels)
        BRG_TRY(time_kernels(j, &us[KERNELS]), out);
    bench_peer_measure(&j->peer, 0, peers);
    for (int i = 0; i < NUM_KINDS && count; i++)
        bench_add(&j->samples[i], us[i]);
    for (int i = 0; i < BENCH_MAX_PEERS && count; i++)
        bench_add(&j->peers[i], peers[i]);
out:
    return status;
}

static void report_row(job *j, const char *what, double us, double bytes, double copy_gbs)
{
    double gbs = bytes / us * 1e-3;
    double torch_us = bench_median_of(&j->peers[0]);
    bool compared = !isnan(torch_us) && copy_gbs > 0;
    json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:f}", "form", form_names[j->form], "what", what,
                            "us", us, "bytes", bytes, "gbs", gbs);
    if (copy_gbs > 0)
        json_object_set_new(row, "ratio_to_copy", json_real(gbs / copy_gbs));
    if (compared)
        json_object_set_new(row, "speedup", json_real(torch_us / us));
    json_array_append_new(j->results, row);
    if (args.json)
        return;
    printf("%-16s %-8s %10.3f %8.0f %9.1f", form_names[j->form], what, us * 1e-3,
           bytes / (double)args.numel, gbs);
    if (copy_gbs > 0)
        printf(" %7.1f%%", 100 * gbs / copy_gbs);
    if (compared)
        printf(" %8.2fx", torch_us / us);
    printf("\n");
}

static void report(job *j)
{
    double copy_us = bench_median_of(&j->samples[COPY]);
    double copy_bytes = 2.0 * (double)j->copy_bytes, copy_gbs = copy_bytes / copy_us * 1e-3;
    double bytes = form_bytes[j->form] * (double)args.numel;
    report_row(j, "step", bench_median_of(&j->samples[STEP]), bytes, copy_gbs);
    if (j->session.device->kernels)
        report_row(j, "kernels", bench_median_of(&j->samples[KERNELS]), bytes, copy_gbs);
    report_row(j, "copy", copy_us, copy_bytes, 0);
    for (int i = 0; i < j->peer.count; i++) {
        double us = bench_median_of(&j->peers[i]);
        if (isnan(us))
            continue;
        json_array_append_new(j->results, json_pack("{s:s, s:s, s:f}", "form", form_names[j->form],
                                                    "what", j->peer.names[i], "us", us));
        if (!args.json)
            printf("%-16s %-8s %10.3f\n", form_names[j->form], j->peer.names[i], us * 1e-3);
    }
    fflush(stdout);
}

static brg_status measure_form(job *j)
{
    enum { WARMUP = 3 };
    brg_status status;
    for (int i = 0; i < NUM_KINDS; i++)
        j->samples[i].count = 0;
    for (int i = 0; i < BENCH_MAX_PEERS; i++)
        j->peers[i].count = 0;
    BRG_TRY(make_all(j), out);
    for (int64_t i = -WARMUP; i < args.rounds; i++)
        BRG_TRY(one_round(j, i >= 0), out);
    report(j);
out:
    free_all(j);
    return status;
}

static int measure_all(job *j)
{
    const bench_session *s = &j->session;
    j->results = json_array();
    bench_peer_ready(&j->peer);
    if (!args.json)
        printf("# 1 rank on %s (%s), %lld elements in %lld parameters, medians of %lld\n"
               "%-16s %-8s %10s %8s %9s %8s %9s\n",
               s->device->rt->name, s->device_name, (long long)args.numel, (long long)args.params,
               (long long)args.rounds, "# form", "what", "ms", "B/elem", "GB/s", "of copy",
               j->peer.count ? "speedup" : "");
    for (j->form = 0; j->form < NUM_FORMS; j->form++) {
        if (args.form != NUM_FORMS && args.form != j->form)
            continue;
        brg_status status = measure_form(j);
        if (status != BRG_OK)
            return bench_fail(&j->session, status);
    }
    if (!args.json)
        return CLI_OK;
    return bench_print_json(&command, json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:O}", "schema", 1,
                                                "device", s->device->rt->name, "device_name",
                                                s->device_name, "numel", (json_int_t)args.numel,
                                                "params", (json_int_t)args.params, "measurements",
                                                (json_int_t)args.rounds, "results", j->results));
}

static int run(int argc, char **argv)
{
    static job j;
    char numel[32], params[32];
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    code = bench_open(&j.session, &command, args.device, false, NULL);
    if (code != CLI_OK)
        return code;
    if (!args.numel_given)
        args.numel = j.session.device->kernels ? 1000000000 : 4000000;
    if (args.params > args.numel)
        args.params = args.numel;
    snprintf(numel, sizeof numel, "%lld", (long long)args.numel);
    snprintf(params, sizeof params, "%lld", (long long)args.params);
    const char *script_args[] = {j.session.device->kernels ? "cuda" : "cpu", numel, params, NULL};
    bench_peer_start(&j.peer, &command, &args.peer, "bench_adamw.py", script_args);
    code = measure_all(&j);
    bench_peer_stop(&j.peer);
    json_decref(j.results);
    bench_close(&j.session);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_adamw = {&command, run};
