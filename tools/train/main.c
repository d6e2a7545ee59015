/* SPDX-License-Identifier: Apache-2.0 */
/* brigade-train: a small GPT trained over ranks with Brigade. See options.c for what it can be told
 * and trainer.c for what a trainer of your own would do. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "tools/train/blas.h"
#include "tools/train/trainer.h"

static volatile sig_atomic_t stop_signal;

/* The step under way is finished on all ranks; a second signal ends the process at once. */
static void on_stop(int number)
{
    stop_signal = number;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* JSON has no NaN and no infinity. */
static void print_number(FILE *file, double value)
{
    if (isfinite(value))
        fprintf(file, "%.9g", value);
    else
        fputs("null", file);
}

static int write_step(const trainer *t, FILE *json, int64_t step, double loss, double grad_norm)
{
    if (!json)
        return 0;
    fprintf(json, "{\"step\":%lld,\"loss\":", (long long)step);
    print_number(json, loss);
    fputs(",\"grad_norm\":", json);
    print_number(json, grad_norm);
    fputs("}\n", json);
    if (fflush(json) == 0)
        return 0;
    fprintf(stderr, "brigade-train: rank %d: cannot write %s: %s\n", t->rank, t->options.json,
            strerror(errno));
    return 1;
}

static void print_start(const trainer *t)
{
    int64_t elements = 0;
    for (int i = 0; i < t->m->num_params; i++)
        elements += brg_param_numel(&t->m->params[i]);
    const int buffers = brg_layout_num_buffers(t->layout);
    const int buckets = brg_layout_num_buckets(t->layout);
    printf("%d rank%s, %lld parameters in %d buffer%s and %d bucket%s, ", t->ranks,
           t->ranks > 1 ? "s" : "", (long long)elements, buffers, buffers > 1 ? "s" : "", buckets,
           buckets > 1 ? "s" : "");
    printf("%zu characters (%d different)\n", t->data.count, t->data.vocab);
}

static int evaluate(trainer *t, int64_t steps_done, bool talk)
{
    double loss;
    brg_status status = trainer_evaluate(t, &loss);
    if (status != BRG_OK)
        return trainer_fail(t, status);
    if (talk)
        printf("step %lld: held-out loss %.4f nats/char (%.3f bits)\n", (long long)steps_done, loss,
               loss / 0.6931471805599453);
    return 0;
}

/* Returns the exit code. */
static int train(trainer *t, FILE *json)
{
    const train_options *o = &t->options;
    const bool talk = t->rank == 0 && !o->quiet;
    const double tokens_per_step = (double)o->global_batch * (double)o->seq_len;
    double since = now_s();
    int64_t step = 0, logged = 0;
    bool stopped = false;
    if (talk)
        print_start(t);
    while (step < o->steps && !stopped) {
        train_report report;
        double grad_norm;
        brg_status status = trainer_step(t, step, &stop_signal, &report, &grad_norm);
        if (status != BRG_OK)
            return trainer_fail(t, status);
        if (write_step(t, json, step, report.loss, grad_norm)) {
            brg_context_abort(t->ctx);
            return 1;
        }
        step++;
        stopped = report.stop > 0.0;
        if (talk && (step % o->log_every == 0 || step == 1 || step == o->steps)) {
            double now = now_s();
            printf("step %*lld/%lld  loss %.4f  grad norm %.3f  %.0f tok/s\n", 5, (long long)step,
                   (long long)o->steps, report.loss, grad_norm,
                   tokens_per_step * (double)(step - logged) / (now - since));
            since = now;
            logged = step;
        }
        if (o->eval_every && step % o->eval_every == 0 && step < o->steps && !stopped) {
            int code = evaluate(t, step, talk);
            if (code)
                return code;
        }
    }
    if (!stopped)
        return evaluate(t, step, talk);
    if (talk)
        printf("stopped by a signal after step %lld of %lld\n", (long long)step,
               (long long)o->steps);
    return 128 + (stop_signal ? (int)stop_signal : SIGTERM);
}

/* Opens the file on rank 0. All ranks learn whether that went well; *code is the exit code if not.
 */
static FILE *open_json(trainer *t, int *code)
{
    int32_t refused = CLI_OK;
    FILE *json = NULL;
    *code = CLI_OK;
    if (!t->options.json)
        return NULL;
    if (t->rank == 0) {
        json = fopen(t->options.json, "we");
        if (!json)
            refused = cli_fail(&train_command, CLI_INPUT, "cannot write %s: %s", t->options.json,
                               strerror(errno));
    }
    brg_status status = brg_broadcast(t->ctx, &refused, 1, BRG_INT32, 0, t->stream);
    if (status == BRG_OK)
        status = brg_stream_synchronize(t->ctx, t->stream);
    *code = status == BRG_OK ? refused : trainer_fail(t, status);
    return json;
}

int main(int argc, char **argv)
{
    train_options options;
    trainer t;
    blas_select_kernels(argv);
    setvbuf(stdout, NULL, _IOLBF, 0); /* progress is seen when it happens, through pipes too */
    int code = options_parse(argc, argv, &options);
    if (code >= 0)
        return cli_finish(&train_command, code);
    code = trainer_open(&t, &options);
    if (code < 0) {
        FILE *json = open_json(&t, &code);
        catch_signals();
        if (code == 0)
            code = train(&t, json);
        if (json && fclose(json) && code == 0)
            code = cli_fail(&train_command, CLI_INPUT, "cannot write %s: %s", options.json,
                            strerror(errno));
    }
    trainer_close(&t);
    return cli_finish(&train_command, code);
}
