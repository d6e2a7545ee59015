/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the training: what a trainer does with Brigade's public API.
 *
 *   setup.c    context, layout, scheduler, optimizers
 *   trainer.c  a step: forward and backward put on a stream layer by layer, with Brigade told in
 * between
 */
#ifndef BRIGADE_TOOLS_TRAIN_TRAINER_H
#define BRIGADE_TOOLS_TRAIN_TRAINER_H

#include <signal.h>

#include "brigade/brigade.h"
#include "tools/train/data.h"
#include "tools/train/model.h"
#include "tools/train/options.h"

struct trainer;

/* A piece of the model's work as brg_stream_launch() takes it. It lives as long as the trainer. */
typedef struct train_job {
    struct trainer *trainer;
    int pass; /* of the step: 0 .. grad_accumulation - 1 */
    int layer;
    void (*run)(void *job);
    brg_span_kind kind;
    char name[32]; /* in the trace */
} train_job;

/* What the ranks tell each other at the end of a step. */
typedef struct train_report {
    double loss; /* mean over the tokens of the rank, then over the ranks */
    double stop; /* above 0 where a rank was asked to stop */
} train_report;

typedef struct trainer {
    train_options options;
    text_data data;
    model *m;
    brg_context *ctx;
    int rank, ranks;
    brg_layout *layout;
    brg_scheduler *sched;
    brg_optimizer *children[TRAIN_MAX_CHILDREN], *chain;
    double peak_lr[TRAIN_MAX_CHILDREN];
    int num_children;
    brg_stream stream;

    int micro_batch;      /* samples a pass */
    model_batch *batches; /* [grad_accumulation] */
    uint8_t *tokens;
    double *losses;   /* [grad_accumulation]: sums over the tokens of a pass */
    float grad_scale; /* 1 / tokens of this rank in a step */
    train_job *jobs;  /* [grad_accumulation][jobs_per_pass] */
    int jobs_per_pass;
    train_job report_job, eval_job;
    train_report report;
    size_t eval_windows;
    double eval[2]; /* sum of losses, windows */
} trainer;

/* Sets up everything. Collective. On failure returns an exit code after printing why (bad options:
 * on rank 0 only); trainer_close() frees what there is. Returns -1 on success. */
int trainer_open(trainer *t, const train_options *options);
void trainer_close(trainer *t);

/* One optimizer step (0-based); *report is the global loss and whether any rank's *stop was set. */
brg_status trainer_step(trainer *t, int64_t step, const volatile sig_atomic_t *stop,
                        train_report *report, double *grad_norm);

/* Mean loss over the held-out text. Collective. */
brg_status trainer_evaluate(trainer *t, double *loss);

/* Prints what failed, tells the other ranks, returns exit code 1. */
int trainer_fail(trainer *t, brg_status status);

/* Prepares the jobs; called by trainer_open(). */
bool trainer_make_jobs(trainer *t);

#endif
