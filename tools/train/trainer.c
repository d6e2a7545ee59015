/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != BRG_OK)                                                                      \
            goto out;                                                                              \
    } while (0)

/* Jobs of one pass, in the order in which they run. */
static int job_embed_forward(void)
{
    return 0;
}

static int job_block_forward(int layer)
{
    return 1 + layer;
}

static int job_head(const trainer *t)
{
    return 1 + (int)t->options.layers;
}

static int job_block_backward(const trainer *t, int layer)
{
    return 2 * (int)t->options.layers + 1 - layer;
}

static int job_embed_backward(const trainer *t)
{
    return 2 * (int)t->options.layers + 2;
}

static void run_embed_forward(void *arg)
{
    train_job *job = arg;
    model_embed_forward(job->trainer->m, &job->trainer->batches[job->pass]);
}

static void run_block_forward(void *arg)
{
    train_job *job = arg;
    model_block_forward(job->trainer->m, &job->trainer->batches[job->pass], job->layer);
}

static void run_head(void *arg)
{
    train_job *job = arg;
    trainer *t = job->trainer;
    t->losses[job->pass] = model_head_pass(t->m, &t->batches[job->pass], t->grad_scale);
}

static void run_block_backward(void *arg)
{
    train_job *job = arg;
    model_block_backward(job->trainer->m, &job->trainer->batches[job->pass], job->layer);
}

static void run_embed_backward(void *arg)
{
    train_job *job = arg;
    model_embed_backward(job->trainer->m, &job->trainer->batches[job->pass]);
}

static void run_report(void *arg)
{
    trainer *t = ((train_job *)arg)->trainer;
    double sum = 0.0;
    for (int64_t pass = 0; pass < t->options.grad_accumulation; pass++)
        sum += t->losses[pass];
    const int64_t tokens = t->options.grad_accumulation * t->micro_batch * t->options.seq_len;
    t->report.loss = sum / (double)tokens;
}

/* This rank's share of the held-out windows. */
static void run_eval(void *arg)
{
    trainer *t = ((train_job *)arg)->trainer;
    const size_t windows = t->eval_windows, sample = (size_t)t->options.seq_len + 1;
    const size_t begin = windows * (size_t)t->rank / (size_t)t->ranks;
    const size_t end = windows * (size_t)(t->rank + 1) / (size_t)t->ranks;
    t->eval[0] = 0.0;
    t->eval[1] = (double)(end - begin);
    for (size_t at = begin; at < end;) {
        int count = 0;
        for (; at < end && count < t->micro_batch; at++, count++)
            memcpy(t->tokens + (size_t)count * sample, data_held_out(&t->data, at, windows),
                   sample);
        t->eval[0] += model_loss(t->m, &(model_batch){count, t->tokens});
    }
}

static void make_pass(trainer *t, int pass)
{
    train_job *jobs = t->jobs + pass * t->jobs_per_pass;
    const size_t sample = (size_t)t->options.seq_len + 1;
    t->batches[pass] =
        (model_batch){t->micro_batch, t->tokens + (size_t)pass * (size_t)t->micro_batch * sample};
    jobs[job_embed_forward()] =
        (train_job){t, pass, 0, run_embed_forward, BRG_COMPUTE_FORWARD, "embed forward"};
    jobs[job_head(t)] = (train_job){t, pass, 0, run_head, BRG_COMPUTE_BACKWARD, "head"};
    jobs[job_embed_backward(t)] =
        (train_job){t, pass, 0, run_embed_backward, BRG_COMPUTE_BACKWARD, "embed backward"};
    for (int layer = 0; layer < t->options.layers; layer++) {
        train_job *forward = &jobs[job_block_forward(layer)];
        train_job *backward = &jobs[job_block_backward(t, layer)];
        *forward = (train_job){t, pass, layer, run_block_forward, BRG_COMPUTE_FORWARD, ""};
        *backward = (train_job){t, pass, layer, run_block_backward, BRG_COMPUTE_BACKWARD, ""};
        snprintf(forward->name, sizeof forward->name, "block %d forward", layer);
        snprintf(backward->name, sizeof backward->name, "block %d backward", layer);
    }
}

bool trainer_make_jobs(trainer *t)
{
    const size_t passes = (size_t)t->options.grad_accumulation;
    const size_t sample = (size_t)t->options.seq_len + 1;
    t->jobs_per_pass = 2 * (int)t->options.layers + 3;
    t->batches = calloc(passes, sizeof *t->batches);
    t->tokens = calloc(passes * (size_t)t->micro_batch, sample);
    t->losses = calloc(passes, sizeof *t->losses);
    t->jobs = calloc(passes * (size_t)t->jobs_per_pass, sizeof *t->jobs);
    if (!t->batches || !t->tokens || !t->losses || !t->jobs)
        return false;
    for (size_t pass = 0; pass < passes; pass++)
        make_pass(t, (int)pass);
    t->report_job = (train_job){t, 0, 0, run_report, BRG_COMPUTE_OTHER, "report"};
    t->eval_job = (train_job){t, 0, 0, run_eval, BRG_COMPUTE_OTHER, "evaluate"};
    t->grad_scale = (float)(1.0 / (double)(passes * (size_t)t->micro_batch * (sample - 1)));
    return true;
}

static brg_status put(trainer *t, train_job *job)
{
    brg_status status;
    TRY(brg_span_begin(t->ctx, job->kind, job->name, t->stream));
    TRY(brg_stream_launch(t->ctx, t->stream, job->run, job));
    TRY(brg_span_end(t->ctx, t->stream));
out:
    return status;
}

/* Before a layer reads parameters [first, first + count). */
static brg_status wait_params(trainer *t, int first, int count)
{
    brg_status status = BRG_OK;
    for (int i = first; i < first + count && status == BRG_OK; i++)
        status = brg_param_wait(t->sched, i, t->stream);
    return status;
}

/* After a layer has written the gradients of parameters [first, first + count). */
static brg_status grads_ready(trainer *t, int first, int count)
{
    brg_status status = BRG_OK;
    for (int i = first + count - 1; i >= first && status == BRG_OK; i--)
        status = brg_grad_ready(t->sched, i, t->stream);
    return status;
}

/* Forward and backward of one pass. A tied head makes the token embedding ready twice. */
static brg_status forward_backward(trainer *t, int pass)
{
    train_job *jobs = t->jobs + pass * t->jobs_per_pass;
    const int layers = (int)t->options.layers;
    const int norm = model_final_norm(t->m), head = model_head(t->m);
    brg_status status;
    TRY(wait_params(t, MODEL_TOKEN_EMBEDDING, MODEL_FIRST_BLOCK));
    TRY(put(t, &jobs[job_embed_forward()]));
    for (int layer = 0; layer < layers; layer++) {
        TRY(wait_params(t, model_block_param(layer, LN1_GAIN), MODEL_BLOCK_PARAMS));
        TRY(put(t, &jobs[job_block_forward(layer)]));
    }
    TRY(wait_params(t, norm, 2));
    TRY(wait_params(t, head, 1));
    TRY(put(t, &jobs[job_head(t)]));
    TRY(grads_ready(t, head, 1));
    TRY(grads_ready(t, norm, 2));
    for (int layer = layers - 1; layer >= 0; layer--) {
        TRY(put(t, &jobs[job_block_backward(t, layer)]));
        TRY(grads_ready(t, model_block_param(layer, LN1_GAIN), MODEL_BLOCK_PARAMS));
    }
    TRY(put(t, &jobs[job_embed_backward(t)]));
    TRY(grads_ready(t, MODEL_TOKEN_EMBEDDING, MODEL_FIRST_BLOCK));
out:
    return status;
}

/* Linear warm-up, then a cosine down to a tenth. */
static double lr_factor(const train_options *o, int64_t step)
{
    if (step < o->warmup)
        return (double)(step + 1) / (double)o->warmup;
    double done = (double)(step - o->warmup) / (double)(o->steps - o->warmup);
    return 0.55 + 0.45 * cos(3.141592653589793 * done);
}

brg_status trainer_step(trainer *t, int64_t step, const volatile sig_atomic_t *stop,
                        train_report *report, double *grad_norm)
{
    const int passes = (int)t->options.grad_accumulation;
    const int64_t each = (int64_t)passes * t->micro_batch;
    brg_status status;
    data_fill_batch(&t->data, (uint64_t)t->options.seed, (uint64_t)step, t->rank * each, (int)each,
                    t->tokens);
    for (int i = 0; i < t->num_children; i++)
        TRY(brg_optimizer_set_lr(t->children[i], t->peak_lr[i] * lr_factor(&t->options, step)));

    TRY(brg_zero_grad(t->sched, t->stream));
    for (int pass = 0; pass < passes; pass++) {
        if (pass == 0 && passes > 1)
            TRY(brg_no_sync_begin(t->sched));
        if (pass > 0 && pass == passes - 1)
            TRY(brg_no_sync_end(t->sched));
        TRY(forward_backward(t, pass));
    }
    TRY(brg_finish_grad_sync(t->sched, t->stream));

    /* A signal may reach the ranks at different steps; asking one another keeps them together. */
    t->report.stop = *stop ? 1.0 : 0.0;
    TRY(put(t, &t->report_job));
    TRY(brg_all_reduce(t->ctx, &t->report, &t->report, sizeof t->report / sizeof(double),
                       BRG_FLOAT64, BRG_AVG, t->stream));
    TRY(brg_step(t->chain, t->stream));
    TRY(brg_stream_synchronize(t->ctx, t->stream));
    TRY(brg_grad_norm(t->chain, grad_norm));
    *report = t->report;
out:
    return status;
}

brg_status trainer_evaluate(trainer *t, double *loss)
{
    brg_status status;
    TRY(brg_finish_param_sync(t->sched, t->stream));
    TRY(put(t, &t->eval_job));
    TRY(brg_all_reduce(t->ctx, t->eval, t->eval, 2, BRG_FLOAT64, BRG_SUM, t->stream));
    TRY(brg_stream_synchronize(t->ctx, t->stream));
    *loss = t->eval[0] / (t->eval[1] * (double)t->options.seq_len);
out:
    return status;
}
