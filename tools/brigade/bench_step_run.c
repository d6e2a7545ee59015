/* SPDX-License-Identifier: Apache-2.0 */
/* One step: for each parameter, in forward order, wait for it and multiply the activations with it;
 * backwards, the products for the activations' and the parameter's gradients, which is then said to
 * be ready; reductions, optimizers, gathers. Vectors, and the first embedding, which is a table,
 * cost nothing to compute with. */
#include "tools/brigade/bench_step_run.h"

#include <stdlib.h>

#include "sched/bucket/context.h"
#include "sched/status.h"

/* Collectives that do nothing. */

static int no_reduction(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                        void *stream)
{
    return BRG_NCCL_OK;
}

static int no_gather(const void *send, void *recv, size_t count, int dtype, void *comm,
                     void *stream)
{
    return BRG_NCCL_OK;
}

static int no_broadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                        void *stream)
{
    return BRG_NCCL_OK;
}

static int no_group(void)
{
    return BRG_NCCL_OK;
}

static void make_silent(bench_step_run *run)
{
    run->nccl = run->session->ctx->device.nccl;
    run->silent = *run->nccl;
    run->silent.all_reduce = no_reduction;
    run->silent.reduce_scatter = no_reduction;
    run->silent.all_gather = no_gather;
    run->silent.broadcast = no_broadcast;
    run->silent.group_start = no_group;
    run->silent.group_end = no_group;
}

/* Making */

static int64_t widest(const bench_model *model)
{
    int64_t width = 1;
    for (int p = 0; p < model->count; p++)
        for (int d = 0; d < 2 && model->params[p].num_dims == 2; d++)
            if (model->params[p].shape[d] > width)
                width = model->params[p].shape[d];
    return width;
}

static brg_status make_layers(bench_step_run *run, const bench_step_options *o)
{
    const int64_t tokens = o->tokens;
    const size_t activations = (size_t)(tokens * widest(run->model));
    const size_t bytes = activations * brg_dtype_bytes(o->dtype);
    bool table_seen = false;
    brg_status status = BRG_ERR_NO_MEMORY;
    run->layers = calloc((size_t)run->model->count, sizeof *run->layers);
    if (!run->layers)
        return brg_fail(status, "no memory for %d layers", run->model->count);
    for (int i = 0; i < 2; i++) {
        BRG_TRY(bench_alloc(run->session, bytes, &run->inputs[i]), out);
        BRG_TRY(bench_fill(run->session, run->inputs[i], o->dtype, activations), out);
    }
    BRG_TRY(bench_alloc(run->session, bytes, &run->scratch), out);
    for (int p = 0; p < run->model->count; p++) {
        const brg_param *param = &run->model->params[p];
        bench_step_layer *layer = &run->layers[p];
        bool table = !table_seen && (param->flags & BRG_PARAM_EMBEDDING_OR_OUTPUT);
        table_seen |= table;
        BRG_TRY(bench_fill(run->session, brg_param_data(run->sched, p), o->dtype,
                           (size_t)brg_param_numel(param)),
                out);
        int64_t rows = param->shape[0], cols = param->shape[1];
        layer->computes = param->num_dims == 2 && !table && rows > 0 && cols > 0;
        if (!layer->computes)
            continue;
        bench_gemm_call call = {
            .alpha = 1, .dtype = o->dtype, .c_dtype = o->dtype, .c = run->scratch};
        call.a = run->inputs[0];
        layer->forward = layer->dgrad = layer->wgrad = call;
        layer->forward.m = layer->dgrad.m = layer->wgrad.k = tokens;
        layer->forward.n = layer->dgrad.k = layer->wgrad.m = rows;
        layer->forward.k = layer->dgrad.n = layer->wgrad.n = cols;
        layer->forward.transpose_b = layer->wgrad.transpose_a = true;
        layer->forward.b = layer->dgrad.b = brg_param_data(run->sched, p);
        layer->wgrad.b = run->inputs[1];
        layer->wgrad.c = brg_grad_data(run->sched, p);
        layer->wgrad.c_dtype = o->grad_dtype;
        layer->wgrad.beta = 1; /* adds, as to a main gradient that was zeroed */
        run->gemm_flops += 6.0 * (double)tokens * (double)rows * (double)cols;
    }
out:
    return status;
}

/* Muon for layer-wise groups, AdamW for the others, of those that there are. */
static brg_status make_optimizers(bench_step_run *run, const bench_step_options *o)
{
    bool have[2] = {false, false}; /* layer-wise, other */
    brg_status status = BRG_OK;
    for (int i = 0; i < brg_layout_num_buffers(run->layout); i++)
        have[!brg_layout_get_buffer(run->layout, i)->key.layerwise] = true;
    if (have[0])
        BRG_TRY(brg_muon_create(run->sched, &(brg_muon_options){.extra_scale = 0.2, .lr = 1e-3},
                                &run->children[run->num_children++]),
                out);
    if (have[1])
        BRG_TRY(brg_adamw_create(
                    run->sched,
                    &(brg_adamw_options){.lr = 1e-4, .precision_aware = o->precision_aware},
                    &run->children[run->num_children++]),
                out);
    BRG_TRY(brg_chain_create(run->children, run->num_children,
                             &(brg_chain_options){.max_grad_norm = 1}, &run->chain),
            out);
out:
    return status;
}

brg_status bench_step_open(bench_step_run *run, bench_session *session, const bench_model *model,
                           const bench_step_options *o)
{
    brg_status status;
    run->session = session;
    run->model = model;
    make_silent(run);
    BRG_TRY(brg_layout_compute(model->params, model->count,
                               &(brg_layout_options){.data_parallel_size = session->world,
                                                     .bucket_size = o->bucket_size,
                                                     .grad_dtype = o->grad_dtype},
                               &run->layout),
            out);
    BRG_TRY(brg_scheduler_create(session->ctx, run->layout,
                                 &(brg_scheduler_options){.overlap_grad_reduce = o->overlap,
                                                          .overlap_param_gather = o->overlap},
                                 &run->sched),
            out);
    BRG_TRY(make_layers(run, o), out);
    BRG_TRY(make_optimizers(run, o), out);
    BRG_TRY(bench_gemm_open(session, &run->cublas), out);
    for (int i = 0; i < BENCH_STEP_BLOCK + 2; i++)
        BRG_TRY(bench_rt(session, session->device->rt->event_create(&run->events[i], 0),
                         "event_create"),
                out);
    BRG_TRY(brg_broadcast_params(run->sched, 0, session->stream), out);
    BRG_TRY(brg_stream_synchronize(session->ctx, session->stream), out);
out:
    return status;
}

void bench_step_close(bench_step_run *run)
{
    bench_session *s = run->session;
    if (!s)
        return;
    s->device->rt->stream_synchronize(s->stream);
    bench_gemm_close(run->cublas);
    brg_optimizer_destroy(run->chain);
    for (int i = 0; i < run->num_children; i++)
        brg_optimizer_destroy(run->children[i]);
    brg_scheduler_destroy(run->sched);
    brg_layout_destroy(run->layout);
    for (int i = 0; i < BENCH_STEP_BLOCK + 2; i++)
        if (run->events[i])
            s->device->rt->event_destroy(run->events[i]);
    for (int i = 0; i < 2; i++)
        bench_free(s, run->inputs[i]);
    bench_free(s, run->scratch);
    free(run->layers);
    *run = (bench_step_run){0};
}

/* Stepping */

static brg_status forward(bench_step_run *run)
{
    bench_session *s = run->session;
    brg_status status;
    BRG_TRY(brg_span_begin(s->ctx, BRG_COMPUTE_FORWARD, NULL, s->stream), out);
    for (int p = 0; p < run->model->count; p++) {
        BRG_TRY(brg_param_wait(run->sched, p, s->stream), out);
        if (run->layers[p].computes)
            BRG_TRY(bench_gemm_put(s, run->cublas, &run->layers[p].forward), out);
    }
    BRG_TRY(brg_span_end(s->ctx, s->stream), out);
out:
    return status;
}

static brg_status backward(bench_step_run *run)
{
    bench_session *s = run->session;
    brg_status status;
    BRG_TRY(brg_span_begin(s->ctx, BRG_COMPUTE_BACKWARD, NULL, s->stream), out);
    for (int p = run->model->count - 1; p >= 0; p--) {
        const bench_step_layer *layer = &run->layers[p];
        if (layer->computes) {
            BRG_TRY(bench_gemm_put(s, run->cublas, &layer->dgrad), out);
            BRG_TRY(bench_gemm_put(s, run->cublas, &layer->wgrad), out);
        }
        BRG_TRY(brg_grad_ready(run->sched, p, s->stream), out);
    }
    BRG_TRY(brg_span_end(s->ctx, s->stream), out);
out:
    return status;
}

static brg_status one_step(bench_step_run *run)
{
    brg_stream stream = run->session->stream;
    brg_status status;
    BRG_TRY(brg_zero_grad(run->sched, stream), out);
    BRG_TRY(forward(run), out);
    BRG_TRY(backward(run), out);
    BRG_TRY(brg_finish_grad_sync(run->sched, stream), out);
    BRG_TRY(brg_step(run->chain, stream), out);
out:
    return status;
}

static brg_status put_steps(bench_step_run *run)
{
    bench_session *s = run->session;
    const brg_runtime *rt = s->device->rt;
    brg_status status;
    for (int i = 0; i < BENCH_STEP_BLOCK + 2; i++) {
        BRG_TRY(bench_rt(s, rt->event_record(run->events[i], s->stream), "event_record"), out);
        if (i <= BENCH_STEP_BLOCK)
            BRG_TRY(one_step(run), out);
    }
    BRG_TRY(brg_finish_param_sync(run->sched, s->stream), out);
    BRG_TRY(brg_stream_synchronize(s->ctx, s->stream), out);
    BRG_TRY(bench_rt(s, rt->device_synchronize(), "device_synchronize"), out);
out:
    return status;
}

brg_status bench_step_block(bench_step_run *run, bool communicate, double us[BENCH_STEP_BLOCK])
{
    bench_session *s = run->session;
    brg_status status;
    float ms = 0;
    BRG_TRY(brg_barrier(s->ctx), out);
    /* Between steps, on an idle device, so nobody is looking at the table. What was not called is
     * taken back from the count of collectives, which the library's own must match. */
    uint64_t num_ops = s->ctx->num_ops;
    if (!communicate)
        s->ctx->device.nccl = &run->silent;
    status = put_steps(run);
    s->ctx->device.nccl = run->nccl;
    if (!communicate)
        s->ctx->num_ops = num_ops;
    if (status != BRG_OK)
        return status;
    for (int i = 0; i < BENCH_STEP_BLOCK; i++) {
        BRG_TRY(bench_rt(s,
                         s->device->rt->event_elapsed(&ms, run->events[i + 1], run->events[i + 2]),
                         "event_elapsed"),
                out);
        us[i] = (double)ms * 1e3;
    }
    BRG_TRY(bench_max_over_ranks(s, us, BENCH_STEP_BLOCK), out);
out:
    return status;
}
