// SPDX-License-Identifier: Apache-2.0
#include "tests/optim/host_kernel_table.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

extern "C" {
#include "sched/half.h"
#include "sched/optim/convert.h"
#include "sched/optim/kernels.h"
#include "sched/optim/remainder.h"
}

struct brg_muon_plan {
    std::vector<brg_muon_matrix> matrices;
    brg_muon_config config;
    brg_ns_schedule schedule;
    brg_ns_workspace workspace;
};

namespace
{

using Range = brg_update_range;

/* Runs f on the stream. */
int launch(void *stream, std::function<void()> f)
{
    auto *job = new std::function<void()>(std::move(f));
    return brg_host_runtime()->launch_host_func(
        stream,
        [](void *arg) {
            auto *held = (std::function<void()> *)arg;
            (*held)();
            delete held;
        },
        job);
}

float load(const void *values, int dtype, int64_t i)
{
    float buffer;
    return *brg_load_f32(&buffer, values, (brg_dtype)dtype, (size_t)i, 1);
}

void store(void *values, int dtype, int64_t i, float value)
{
    brg_store_f32(values, (brg_dtype)dtype, (size_t)i, &value, 1);
}

int sum_squares(const void *values, int dtype, int64_t numel, double *partials, void *stream)
{
    host_kernel_counts().sum_squares++;
    return launch(stream, [=] {
        for (int i = 0; i < BRG_NORM_PARTIALS; i++)
            partials[i] = 0;
        for (int64_t i = 0; i < numel; i++) {
            double value = load(values, dtype, i);
            partials[i % BRG_NORM_PARTIALS] += value * value;
        }
    });
}

int sum_partials(const double *const *partials, int count, double *sum, void *stream)
{
    host_kernel_counts().sum_partials++;
    return launch(stream, [=] {
        double total = 0;
        for (int run = 0; run < count; run++)
            for (int i = 0; i < BRG_NORM_PARTIALS; i++)
                total += partials[run][i];
        *sum = total;
    });
}

void prepare(const brg_prepare_args &args)
{
    brg_step_state *state = args.state;
    state->norm = std::sqrt(state->sum_squares) * args.grad_factor;
    double clip = 1;
    if (args.max_grad_norm > 0 && args.max_grad_norm / (state->norm + 1e-6) < 1)
        clip = args.max_grad_norm / (state->norm + 1e-6);
    state->grad_scale = (float)(clip * args.grad_factor);
    state->apply = std::isfinite(state->norm) || args.apply_non_finite;
    state->skipped += !state->apply;
    state->steps++;
    for (int i = 0; i < args.num_children; i++) {
        const auto &child = args.children[i];
        brg_hyper_state *hyper = child.hyper;
        if (state->apply) {
            hyper->steps++;
            hyper->lr = child.lr_memory ? *child.lr_memory : child.lr;
            hyper->lr_f = (float)hyper->lr;
            hyper->decay = (float)(1 - hyper->lr * child.weight_decay);
            hyper->bias1 = (float)(hyper->lr / (1 - std::pow(child.beta1, (double)hyper->steps)));
            hyper->bias2_root = (float)std::sqrt(1 - std::pow(child.beta2, (double)hyper->steps));
        }
        if (args.host_steps)
            args.host_steps[i] = hyper->steps;
    }
    if (args.host_state)
        *args.host_state = *state;
}

int prepare_step(const brg_prepare_args *args, void *stream)
{
    host_kernel_counts().prepare_step++;
    return launch(stream, [held = *args] { prepare(held); });
}

float load_master(const Range &range, int64_t i)
{
    if (!range.low)
        return range.master[i];
    return brg_float_of_bits(brg_remainder_join(((uint16_t *)range.param)[i], range.low[i]));
}

void store_master(const Range &range, int param_dtype, int64_t i, float value)
{
    if (range.low) {
        brg_remainder_split(brg_bits_of_float(value), &((uint16_t *)range.param)[i], &range.low[i]);
        return;
    }
    range.master[i] = value;
    if (range.param != range.master)
        store(range.param, param_dtype, i, value);
}

void adamw_range(const brg_adamw_args &args, const Range &range)
{
    const brg_hyper_state &h = *args.hyper;
    int state_dtype = args.precision_aware ? BRG_BFLOAT16 : BRG_FLOAT32;
    for (int64_t i = 0; i < range.numel; i++) {
        double g = (double)args.state->grad_scale * load(range.grad, args.grad_dtype, i);
        double m = (double)args.beta1 * load(range.state0, state_dtype, i) +
                   (double)args.one_minus_beta1 * g;
        double v = (double)args.beta2 * load(range.state1, state_dtype, i) +
                   (double)args.one_minus_beta2 * g * g;
        store(range.state0, state_dtype, i, (float)m);
        store(range.state1, state_dtype, i, (float)v);
        double p = load_master(range, i) * (double)h.decay -
                   h.bias1 * m / (std::sqrt(v) / h.bias2_root + args.eps);
        store_master(range, args.param_dtype, i, (float)p);
    }
}

int adamw(const brg_adamw_args *args, void *stream)
{
    host_kernel_counts().adamw++;
    std::vector<Range> ranges(args->ranges, args->ranges + args->num_ranges);
    return launch(stream, [held = *args, ranges] {
        for (const Range &range : ranges)
            if (held.state->apply)
                adamw_range(held, range);
    });
}

void sgd_range(const brg_sgd_args &args, const Range &range)
{
    float *momentum = (float *)range.state0;
    for (int64_t i = 0; i < range.numel; i++) {
        double p = load_master(range, i);
        double b = (double)args.state->grad_scale * load(range.grad, args.grad_dtype, i) +
                   args.weight_decay * p;
        if (momentum) {
            b += (double)args.momentum * momentum[i];
            momentum[i] = (float)b;
        }
        store_master(range, args.param_dtype, i, (float)(p - args.hyper->lr * b));
    }
}

int sgd(const brg_sgd_args *args, void *stream)
{
    host_kernel_counts().sgd++;
    std::vector<Range> ranges(args->ranges, args->ranges + args->num_ranges);
    return launch(stream, [held = *args, ranges] {
        for (const Range &range : ranges)
            if (held.state->apply)
                sgd_range(held, range);
    });
}

int convert(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t numel, void *stream)
{
    host_kernel_counts().convert++;
    return launch(stream, [=] {
        for (int64_t i = 0; i < numel; i++)
            store(dst, dst_dtype, i, load(src, src_dtype, i));
    });
}

int check_values(const void *values, int dtype, int64_t numel, int64_t *first, double *squares,
                 double *, void *stream)
{
    return launch(stream, [=] {
        *first = -1;
        *squares = 0;
        for (int64_t i = numel - 1; i >= 0; i--) {
            double value = load(values, dtype, i);
            *squares += value * value;
            if (!std::isfinite(value))
                *first = i;
        }
    });
}

int stamp(uint64_t *slots, uint64_t *counter, uint32_t ring, uint32_t stride, uint32_t index,
          int advance, void *stream)
{
    return launch(stream, [=] {
        slots[(*counter % ring) * stride + index] =
            (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
        *counter += advance != 0;
    });
}

int store_double(double *dst, double value, void *stream)
{
    host_kernel_counts().store_double++;
    return launch(stream, [=] { *dst = value; });
}

int muon_create(const brg_muon_matrix *matrices, int count, const brg_muon_config *config,
                brg_muon_plan **plan, char *message, size_t message_bytes)
{
    host_kernel_counts().muon_create++;
    if (host_kernel_counts().failing_creates.fetch_sub(1) > 0) {
        snprintf(message, message_bytes, "no room for a plan");
        return BRG_RT_NO_MEMORY;
    }
    host_kernel_counts().failing_creates++;
    auto *made = new brg_muon_plan{{matrices, matrices + count}, *config, {}, {}};
    int64_t elems = 1, side = 1;
    for (const brg_muon_matrix &m : made->matrices) {
        elems = std::max(elems, m.rows * m.cols);
        side = std::max(side, std::min(m.rows, m.cols));
    }
    if (brg_ns_schedule_make(BRG_NS_CUSTOM, config->num_steps, config->tuples, config->num_steps,
                             &made->schedule) != BRG_OK ||
        brg_ns_workspace_create(elems, side, made->schedule.steep, &made->workspace) != BRG_OK) {
        snprintf(message, message_bytes, "%s", brg_last_error());
        delete made;
        return BRG_RT_INVALID_VALUE;
    }
    *plan = made;
    return BRG_RT_OK;
}

/* Puts the pieces together, updates the whole, and takes it apart again. */
void muon_matrix(brg_muon_plan *plan, const brg_muon_matrix &m, const brg_step_state &state,
                 const brg_hyper_state &h)
{
    const brg_muon_config &c = plan->config;
    const int64_t numel = m.rows * m.cols, piece = numel / m.num_pieces;
    auto at = [&](int64_t i) { return i / piece * m.piece_stride + i % piece; };
    std::vector<float> p((size_t)numel), g(p), momentum(p);
    for (int64_t i = 0; i < numel; i++) {
        p[(size_t)i] = m.master[at(i)];
        g[(size_t)i] = load(m.grad, m.grad_dtype, at(i));
        momentum[(size_t)i] = m.momentum[at(i)];
    }
    brg_muon_hyper hyper = {};
    hyper.lr = h.lr;
    hyper.momentum = c.momentum;
    hyper.weight_decay = h.lr > 0 ? (1.0 - h.decay) / h.lr : 0;
    hyper.eps = c.eps;
    hyper.extra_scale = c.extra_scale;
    hyper.style = c.accumulate ? BRG_MOMENTUM_ACCUMULATE : BRG_MOMENTUM_EMA;
    hyper.scale = (brg_muon_scale)c.scale;
    hyper.nesterov = c.nesterov;
    brg_update_target target = {p.data(),    p.data(), g.data(), BRG_FLOAT32,
                                BRG_FLOAT32, p.size(), nullptr};
    brg_muon_host(&target, momentum.data(), m.rows, m.cols, nullptr, state.grad_scale, &hyper,
                  &plan->schedule, &plan->workspace);
    for (int64_t i = 0; i < numel; i++) {
        m.master[at(i)] = p[(size_t)i];
        m.momentum[at(i)] = momentum[(size_t)i];
        if (m.param != m.master)
            store(m.param, m.param_dtype, at(i), p[(size_t)i]);
    }
}

int muon_update(brg_muon_plan *plan, const brg_step_state *state, const brg_hyper_state *hyper,
                void *stream)
{
    host_kernel_counts().muon_update++;
    return launch(stream, [=] {
        for (const brg_muon_matrix &m : plan->matrices)
            if (state->apply)
                muon_matrix(plan, m, *state, *hyper);
    });
}

int muon_ns_run(brg_muon_plan *plan, void *stream)
{
    return launch(stream, [=] {
        for (const brg_muon_matrix &m : plan->matrices)
            brg_ns_orthogonalize_host(
                &plan->workspace, m.rows, m.cols,
                brg_sum_of_squares_host(plan->workspace.x, BRG_FLOAT32, (size_t)(m.rows * m.cols)),
                plan->config.eps, &plan->schedule);
    });
}

void muon_destroy(brg_muon_plan *plan)
{
    if (!plan)
        return;
    host_kernel_counts().muon_destroy++;
    brg_ns_workspace_destroy(&plan->workspace);
    delete plan;
}

const char *muon_describe(const brg_muon_plan *)
{
    return "float64 on the host\n";
}

const char *error_string(int error)
{
    return brg_host_runtime()->error_string(error);
}

const brg_kernels kernels = {BRG_KERNELS_ABI, sum_squares,   sum_partials, prepare_step,
                             adamw,           sgd,           convert,      check_values,
                             stamp,           store_double,  muon_create,  muon_update,
                             muon_destroy,    muon_describe, muon_ns_run,  error_string};

} // namespace

HostKernelCounts &host_kernel_counts()
{
    static HostKernelCounts counts;
    return counts;
}

const brg_device *host_kernel_device()
{
    static const brg_device device = {brg_host_runtime(), brg_host_nccl(), &kernels};
    return &device;
}
