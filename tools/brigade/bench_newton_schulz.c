/* SPDX-License-Identifier: Apache-2.0 */
/* brigade bench newton-schulz: Newton-Schulz of matrices of one shape, beside torch and
 * Emerging-Optimizers. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sched/optim/kernels.h"
#include "sched/status.h"
#include "tools/brigade/bench.h"
#include "tools/brigade/bench_ns_exact.h"
#include "tools/brigade/bench_peer.h"
#include "tools/brigade/bench_session.h"

enum { MAX_SHAPES = 16, SHAPE_TEXT = 48, NUM_PEERS = 2 };

static const char *const precision_names[] = {"fp16", "bf16", "fp32", NULL}; /* brg_ns_precision */
static const char *const algorithm_names[] = {"auto", "standard", "symmetric", "gram", NULL};
static const char *const coefficient_names[] = {"quintic", "simple", "polar-express", "cans",
                                                "aol",     NULL}; /* brg_ns_coefficients */
static const char *const peer_names[] = {"all", "torch", "emerging-optimizers", NULL};

static struct {
    int64_t rounds, steps;
    int device, precision, algorithm, coefficients, peers;
    const char *shapes;
    bool check, json;
    bench_peer_options peer;
} args = {.rounds = 20, .steps = 5};

static const cli_option options[] = {
    BENCH_DEVICE_OPTION(&args.device),
    {"shape", 's', CLI_STRING, &args.shapes, "RxC[xB],...",
     "Rows, columns and number of matrices (default 4096x4096,4096x14336,2048x2048x8; on the host "
     "device 256x256,256x1024,128x128x8).",
     NULL, 0, 0, NULL},
    {"precision", 0, CLI_CHOICE, &args.precision, NULL,
     "What products are rounded to (default fp16; the host device iterates in fp32).",
     precision_names, 0, 0, NULL},
    {"algorithm", 0, CLI_CHOICE, &args.algorithm, NULL,
     "Form of the polynomial (default auto; the host device has one).", algorithm_names, 0, 0,
     NULL},
    {"coefficients", 0, CLI_CHOICE, &args.coefficients, NULL, "Coefficient set (default quintic).",
     coefficient_names, 0, 0, NULL},
    {"steps", 0, CLI_INT, &args.steps, "N", "Iterations (default 5).", NULL, 1, BRG_NS_MAX_STEPS,
     NULL},
    {"iters", 'n', CLI_INT, &args.rounds, "N", "Measurements, interleaved (default 20).", NULL, 1,
     BENCH_MAX_ROUNDS, NULL},
    {"check", 'c', CLI_FLAG, &args.check, NULL, "Also compare with the same polynomial in float64.",
     NULL, 0, 0, NULL},
    {"peer", 0, CLI_CHOICE, &args.peers, NULL, "Peers to measure, each in a process of its own (default all).",
     peer_names, 0, 0, NULL},
    BENCH_PEER_OPTIONS(args.peer),
    BENCH_JSON_OPTION(&args.json),
    {.name = NULL}};

static const cli_command command = {
    .name = "bench newton-schulz",
    .summary = "Time Newton-Schulz beside torch and Emerging-Optimizers.",
    .usage = "[--shape RxC[xB],...] [options]",
    .details =
        "Gaussian matrices, all of one shape in one call. ms is the iteration alone; the peers "
        "normalise, round and iterate, one matrix after another or in one batch, whichever is "
        "faster. update, on the device cuda, is a whole Muon update: momentum, norm, "
        "normalisation, "
        "iteration, and the write of master and weight. TFLOP/s counts "
        "the standard form, steps * (4 s^2 l + 2 s^3) with s the smaller and l the larger side, "
        "whatever form is used: it compares times. error is the relative Frobenius norm of the "
        "first matrix' difference to float64.\n\n"
        "  brigade bench newton-schulz --shape 4096x14336 --algorithm gram --check",
    .options = options,
};

typedef struct shape {
    int64_t rows, cols, batch;
    char text[SHAPE_TEXT];
} shape;

typedef struct job {
    bench_session session;
    bench_peer peer[NUM_PEERS];
    json_t *results;
    brg_ns_schedule schedule;
    shape shapes[MAX_SHAPES];
    int num_shapes;
    float *input; /* of the first matrix, on the host */
    size_t numel; /* of one matrix */
    brg_ns_workspace workspace;
    brg_muon_matrix *matrices; /* cuda */
    brg_muon_plan *plan;
    void *state, *hyper;
    bench_samples ours, update, peers[NUM_PEERS][BENCH_MAX_PEERS];
} job;

static int parse_shapes(job *j, const char *text)
{
    while (*text) {
        shape *s = &j->shapes[j->num_shapes];
        int used = 0, length = (int)strcspn(text, ",");
        s->batch = 1;
        bool ok = j->num_shapes < MAX_SHAPES && strspn(text, "0123456789x") == (size_t)length &&
                  length < SHAPE_TEXT - 2;
        ok = ok && sscanf(text, "%ldx%ld%n", &s->rows, &s->cols, &used) == 2;
        if (ok && used < length)
            ok = sscanf(text + used, "x%ld%n", &s->batch, &length) == 1 &&
                 (length += used) == (int)strcspn(text, ",");
        ok = ok && s->rows > 1 && s->cols > 1 && s->batch > 0 && s->rows <= 1 << 20 &&
             s->cols <= 1 << 20 && s->batch <= 4096;
        if (!ok)
            return cli_fail(&command, CLI_USAGE,
                            "--shape: '%.60s' is not ROWSxCOLUMNS or ROWSxCOLUMNSxMATRICES, at "
                            "most %d of them",
                            text, MAX_SHAPES);
        snprintf(s->text, sizeof s->text, "%ldx%ldx%ld", s->rows, s->cols, s->batch);
        j->num_shapes++;
        text += length;
        text += *text == ',';
    }
    return j->num_shapes ? CLI_OK : cli_fail(&command, CLI_USAGE, "--shape is empty");
}

static double sum_of_squares(const float *values, size_t numel)
{
    return brg_sum_of_squares_host(values, BRG_FLOAT32, numel);
}

/* The host's iteration; all matrices have the same values there. */
static const float *iterate_host(job *j, const shape *s, brg_ns_workspace *workspace)
{
    const float *result = NULL;
    for (int64_t b = 0; b < s->batch; b++) {
        memcpy(workspace->x, j->input, j->numel * sizeof(float));
        result = brg_ns_orthogonalize_host(workspace, s->rows, s->cols,
                                           sum_of_squares(j->input, j->numel), 1e-15, &j->schedule);
    }
    return result;
}

static brg_status copy_to_device(job *j, void *to, const void *from, size_t bytes)
{
    bench_session *s = &j->session;
    brg_status status;
    BRG_TRY(bench_alloc(s, bytes, to), out);
    BRG_TRY(bench_rt(s,
                     s->device->rt->memcpy_async(*(void **)to, from, bytes, BRG_COPY_HOST_TO_DEVICE,
                                                 s->stream),
                     "memcpy_async"),
            out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
out:
    return status;
}

static brg_status make_matrix(job *j, const shape *s, int64_t index)
{
    bench_session *session = &j->session;
    const brg_runtime *rt = session->device->rt;
    brg_muon_matrix *m = &j->matrices[index];
    size_t bytes = j->numel * sizeof(float);
    float *values = index ? malloc(bytes) : j->input;
    brg_status status = BRG_ERR_NO_MEMORY;
    *m = (brg_muon_matrix){.rows = s->rows,
                           .cols = s->cols,
                           .num_pieces = 1,
                           .param_dtype = BRG_BFLOAT16,
                           .grad_dtype = BRG_FLOAT32};
    if (!values)
        return brg_fail(status, "no memory for a matrix of %s", s->text);
    if (index)
        bench_random(values, j->numel, (uint64_t)index + 1);
    BRG_TRY(copy_to_device(j, &m->grad, values, bytes), out);
    BRG_TRY(bench_alloc(session, j->numel * 2, &m->param), out);
    BRG_TRY(bench_alloc(session, bytes, (void **)&m->master), out);
    BRG_TRY(bench_alloc(session, bytes, (void **)&m->momentum), out);
    BRG_TRY(bench_rt(session, rt->memset_async(m->master, 0, bytes, session->stream), "memset"),
            out);
    BRG_TRY(bench_rt(session, rt->memset_async(m->momentum, 0, bytes, session->stream), "memset"),
            out);
out:
    if (index)
        free(values);
    return status;
}

/* Without momentum and decay, with learning rate 1 and masters of zero, one update writes
 * -scale(rows, cols) * X into the masters. */
static brg_status make_plan(job *j, const shape *s)
{
    const brg_kernels *k = j->session.device->kernels;
    const brg_step_state state = {.grad_scale = 1, .apply = 1, .norm = 1};
    const brg_hyper_state hyper = {.steps = 1, .lr = 1, .lr_f = 1, .decay = 1};
    const brg_muon_config config = {.num_steps = j->schedule.num_steps,
                                    .tuples = (const double(*)[3])j->schedule.tuples,
                                    .precision = args.precision,
                                    .algorithm = args.algorithm,
                                    .num_restarts = -1,
                                    .scale = BRG_SCALE_SPECTRAL,
                                    .eps = 1e-15,
                                    .extra_scale = 1};
    char message[512] = "";
    brg_status status = BRG_ERR_NO_MEMORY;
    j->matrices = calloc((size_t)s->batch, sizeof *j->matrices);
    if (!j->matrices)
        return brg_fail(status, "no memory for %lld matrices", (long long)s->batch);
    for (int64_t i = 0; i < s->batch; i++)
        BRG_TRY(make_matrix(j, s, i), out);
    BRG_TRY(copy_to_device(j, &j->state, &state, sizeof state), out);
    BRG_TRY(copy_to_device(j, &j->hyper, &hyper, sizeof hyper), out);
    if (k->muon_create(j->matrices, (int)s->batch, &config, &j->plan, message, sizeof message))
        status = brg_fail(BRG_ERR_DEVICE, "%s: %s", s->text, message);
out:
    return status;
}

static brg_status make_all(job *j, const shape *s)
{
    brg_status status = BRG_ERR_NO_MEMORY;
    j->numel = (size_t)(s->rows * s->cols);
    j->input = malloc(j->numel * sizeof *j->input);
    if (!j->input)
        return brg_fail(status, "no memory for a matrix of %s", s->text);
    bench_random(j->input, j->numel, 1);
    if (j->session.device->kernels)
        return make_plan(j, s);
    int64_t side = s->rows < s->cols ? s->rows : s->cols;
    return brg_ns_workspace_create((int64_t)j->numel, side, j->schedule.steep, &j->workspace);
}

static void free_all(job *j, const shape *s)
{
    const brg_kernels *k = j->session.device->kernels;
    if (j->plan)
        k->muon_destroy(j->plan);
    for (int64_t i = 0; j->matrices && i < s->batch; i++) {
        bench_free(&j->session, j->matrices[i].param);
        bench_free(&j->session, (void *)j->matrices[i].grad);
        bench_free(&j->session, j->matrices[i].master);
        bench_free(&j->session, j->matrices[i].momentum);
    }
    bench_free(&j->session, j->state);
    bench_free(&j->session, j->hyper);
    brg_ns_workspace_destroy(&j->workspace);
    free(j->matrices);
    free(j->input);
    j->plan = NULL;
    j->matrices = NULL;
    j->input = NULL;
    j->state = j->hyper = NULL;
}

static brg_status put_update(job *j)
{
    return bench_rt(
        &j->session,
        j->session.device->kernels->muon_update(j->plan, j->state, j->hyper, j->session.stream),
        "muon_update");
}

typedef struct host_call {
    job *j;
    const shape *shape;
} host_call;

static void run_host(void *arg)
{
    const host_call *call = arg;
    iterate_host(call->j, call->shape, &call->j->workspace);
}

static brg_status put_iteration(job *j)
{
    return bench_rt(&j->session,
                    j->session.device->kernels->muon_ns_run(j->plan, j->session.stream),
                    "muon_ns_run");
}

static brg_status one_round(job *j, const shape *s, int item, bool count)
{
    double us = 0, update = (double)NAN, peers[BENCH_MAX_PEERS];
    host_call call = {j, s};
    brg_status status;
    if (j->plan) { /* which leaves something to iterate */
        BRG_TRY(bench_time_begin(&j->session), out);
        BRG_TRY(put_update(j), out);
        BRG_TRY(bench_time_end(&j->session, &update), out);
    }
    BRG_TRY(bench_time_begin(&j->session), out);
    if (j->plan)
        BRG_TRY(put_iteration(j), out);
    else
        BRG_TRY(brg_stream_launch(j->session.ctx, j->session.stream, run_host, &call), out);
    BRG_TRY(bench_time_end(&j->session, &us), out);
    if (count) {
        bench_add(&j->ours, us);
        bench_add(&j->update, update);
    }
    for (int p = 0; p < NUM_PEERS; p++) {
        bench_peer_measure(&j->peer[p], item, peers);
        for (int i = 0; i < BENCH_MAX_PEERS && count; i++)
            bench_add(&j->peers[p][i], peers[i]);
    }
out:
    return status;
}

/* Relative Frobenius error of the first matrix against float64. */
static brg_status check(job *j, const shape *s, double *error)
{
    bench_session *session = &j->session;
    const brg_runtime *rt = session->device->rt;
    size_t bytes = j->numel * sizeof(float);
    float *ours = malloc(bytes);
    double *exact = malloc(j->numel * sizeof *exact);
    brg_status status = BRG_ERR_NO_MEMORY;
    double factor = 1, difference = 0, norm = 0;
    if (!ours || !exact) {
        brg_fail(status, "no memory to check a matrix of %s", s->text);
        goto out;
    }
    if (j->plan) {
        float *master = j->matrices[0].master;
        factor = -1 / brg_muon_scale_factor(BRG_SCALE_SPECTRAL, s->rows, s->cols);
        BRG_TRY(bench_rt(session, rt->memset_async(master, 0, bytes, session->stream), "memset"),
                out);
        BRG_TRY(put_update(j), out);
        BRG_TRY(bench_rt(
                    session,
                    rt->memcpy_async(ours, master, bytes, BRG_COPY_DEVICE_TO_HOST, session->stream),
                    "memcpy_async"),
                out);
        BRG_TRY(brg_stream_synchronize(session->ctx, session->stream), out);
    } else {
        memcpy(ours, iterate_host(j, s, &j->workspace), bytes);
    }
    BRG_TRY(bench_ns_exact(session, &j->schedule, s->rows, s->cols, j->input, exact), out);
    for (size_t i = 0; i < j->numel; i++) {
        double d = factor * ours[i] - exact[i];
        difference += d * d;
        norm += exact[i] * exact[i];
    }
    *error = sqrt(difference / norm);
out:
    free(exact);
    free(ours);
    return status;
}

/* The plan's own words on one line. */
static void describe(const job *j, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s",
             j->plan ? j->session.device->kernels->muon_describe(j->plan) : "host fp32");
    text[strcspn(text, "\n")] = '\0';
}

static void report(job *j, const shape *s, double error)
{
    double small = (double)(s->rows < s->cols ? s->rows : s->cols);
    double large = (double)(s->rows < s->cols ? s->cols : s->rows);
    double flops = (double)s->batch * j->schedule.num_steps *
                   (4 * small * small * large + 2 * small * small * small);
    double us = bench_median_of(&j->ours), update = bench_median_of(&j->update);
    char how[160];
    describe(j, how, sizeof how);
    json_t *row = json_pack("{s:I, s:I, s:I, s:s, s:f, s:f}", "rows", (json_int_t)s->rows, "cols",
                            (json_int_t)s->cols, "batch", (json_int_t)s->batch, "how", how, "us",
                            us, "tflops", flops / us * 1e-6);
    json_t *peers = json_array();
    if (!args.json)
        printf("%-18s %10.3f %9.2f", s->text, us * 1e-3, flops / us * 1e-6);
    if (!isnan(update)) {
        json_object_set_new(row, "update_us", json_real(update));
        if (!args.json)
            printf(" %10.3f", update * 1e-3);
    }
    if (args.check) {
        json_object_set_new(row, "error", json_real(error));
        if (!args.json)
            printf(" %9.1e", error);
    }
    for (int i = 0; i < NUM_PEERS * BENCH_MAX_PEERS; i++) {
        const bench_peer *of = &j->peer[i / BENCH_MAX_PEERS];
        const char *name = of->names[i % BENCH_MAX_PEERS];
        double peer = bench_median_of(&j->peers[i / BENCH_MAX_PEERS][i % BENCH_MAX_PEERS]);
        if (isnan(peer) || i % BENCH_MAX_PEERS >= of->count)
            continue;
        json_array_append_new(
            peers, json_pack("{s:s, s:f, s:f}", "name", name, "us", peer, "speedup", peer / us));
        if (!args.json)
            printf("  %s %.3f ms (%.2fx)", name, peer * 1e-3, peer / us);
    }
    if (!args.json)
        printf("  %s\n", how);
    json_object_set_new(row, "peers", peers);
    json_array_append_new(j->results, row);
    fflush(stdout);
}

static brg_status measure_shape(job *j, int item)
{
    enum { WARMUP = 3 };
    const shape *s = &j->shapes[item];
    double error = 0;
    brg_status status;
    j->ours.count = j->update.count = 0;
    for (int i = 0; i < NUM_PEERS * BENCH_MAX_PEERS; i++)
        j->peers[i / BENCH_MAX_PEERS][i % BENCH_MAX_PEERS].count = 0;
    BRG_TRY(make_all(j, s), out);
    for (int64_t i = -WARMUP; i < args.rounds; i++)
        BRG_TRY(one_round(j, s, item, i >= 0), out);
    if (args.check)
        BRG_TRY(check(j, s, &error), out);
    report(j, s, error);
out:
    free_all(j, s);
    return status;
}

static int measure_all(job *j)
{
    const bench_session *s = &j->session;
    j->results = json_array();
    if (!args.json)
        printf("# %s (%s), %s, %d steps, medians of %lld\n%-18s %10s %9s%s%s  %s\n",
               s->device->rt->name, s->device_name, coefficient_names[args.coefficients],
               j->schedule.num_steps, (long long)args.rounds, "# shape", "ms", "TFLOP/s",
               s->device->kernels ? "  update ms" : "", args.check ? "     error" : "",
               "peers, how");
    fflush(stdout);
    for (int p = 0; p < NUM_PEERS; p++)
        bench_peer_ready(&j->peer[p]);
    for (int i = 0; i < j->num_shapes; i++) {
        brg_status status = measure_shape(j, i);
        if (status != BRG_OK)
            return bench_fail(&j->session, status);
    }
    if (!args.json)
        return CLI_OK;
    return bench_print_json(
        &command,
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:I, s:O}", "schema", 1, "device",
                  s->device->rt->name, "device_name", s->device_name, "precision",
                  s->device->kernels ? precision_names[args.precision] : "fp32", "coefficients",
                  coefficient_names[args.coefficients], "steps", j->schedule.num_steps,
                  "measurements", (json_int_t)args.rounds, "results", j->results));
}

static int run(int argc, char **argv)
{
    static job j;
    int first, code = cli_parse(&command, argc, argv, &first);
    if (code >= 0)
        return code;
    if (first < argc)
        return cli_fail(&command, CLI_USAGE, "unexpected argument '%s'", argv[first]);
    if (args.shapes && (code = parse_shapes(&j, args.shapes)) != CLI_OK)
        return code;
    if (brg_ns_schedule_make((brg_ns_coefficients)args.coefficients, (int)args.steps, NULL, 0,
                             &j.schedule) != BRG_OK)
        return cli_fail(&command, CLI_USAGE, "%s", brg_last_error());
    code = bench_open(&j.session, &command, args.device, false, NULL);
    if (code != CLI_OK)
        return code;
    bool host = j.session.device->kernels == NULL;
    if (!args.shapes)
        parse_shapes(&j, host ? "256x256,256x1024,128x128x8" : "4096x4096,4096x14336,2048x2048x8");
    char steps[16];
    snprintf(steps, sizeof steps, "%d", j.schedule.num_steps);
    for (int p = 0; p < NUM_PEERS; p++) {
        const char *script_args[MAX_SHAPES + 4] = {peer_names[1 + p], host ? "cpu" : "cuda", steps};
        bench_peer_options peer = args.peer;
        peer.none |= args.peers != 0 && args.peers != 1 + p;
        for (int i = 0; i < j.num_shapes; i++)
            script_args[3 + i] = j.shapes[i].text;
        bench_peer_start(&j.peer[p], &command, &peer, "bench_newton_schulz.py", script_args);
    }
    code = measure_all(&j);
    for (int p = 0; p < NUM_PEERS; p++)
        bench_peer_stop(&j.peer[p]);
    json_decref(j.results);
    bench_close(&j.session);
    return cli_finish(&command, code);
}

const cli_entry cli_bench_newton_schulz = {&command, run};
