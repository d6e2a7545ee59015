/* SPDX-License-Identifier: Apache-2.0 */
/* Muon's plan. Matrices of equal padded shape, tall or wide, are orthogonalised in batches that
 * share one workspace, one batch after another. Vectors and small matrices go without products, in
 * float64.
 *
 * A matrix' result does not depend on how many others its rank has, nor on how they are batched: a
 * shape's choice is made on a batch of the shape's own (cuda_ns_tune.cu), its cuBLASLt algorithms
 * are used for every batch, and none of them splits sums. So ranks and runs that make the same
 * choices get the same bits: those that share a cache file or a process. Others choose alike unless
 * two candidates are as far apart as the tuner's threshold. */
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <new>

#include "sched/optim/cuda_muon.h"

namespace
{

constexpr size_t CUBLAS_WORKSPACE = 32u << 20;
/* Float16 rounds the few singular values of a small matrix by as much as those of a large one, but
 * their errors do not average out (1e-2 for a vector and cubic5), and it costs next to nothing to
 * be exact. */
constexpr int64_t SMALL_SIDE = 128;
/* Below this ratio the Gram form saves nothing and is less accurate. */
constexpr double GRAM_RATIO = 1.25;
/* A batch should fill the multiprocessors several times over with the 128 x 128 tiles of a
 * symmetric product; more is of no use. */
constexpr int64_t WANTED_TILES = 2112;
constexpr size_t DEFAULT_WORKSPACE = (size_t)4 << 30; /* but a quarter of free memory at most */
/* Slope at 1 of a first step (cans) that needs a restart right after it. */
constexpr double STEEP = 20;

struct batch {
    brg_muon_way way;
    int first_item, count;
    brg_ns_program program; /* BRG_MUON_BATCHED */
};

struct shape_group {
    brg_muon_way way;         /* unless batched, all shapes are in one group */
    brg_ns_shape shape;       /* batch: of the largest */
    std::vector<int> members; /* matrices */
    std::vector<int> sizes;   /* of batches */
    bool gram_allowed;
    brg_ns_choice choice;
    bool cached;
};

} // namespace

struct brg_muon_plan {
    brg_ns_device device;
    brg_ns_polynomial polynomial;
    brg_ns_schedule schedule; /* the same */
    brg_muon_momentum momentum;
    double eps;
    int count;
    brg_muon_item *items; /* in the order of batches */
    double *partials;
    char *memory; /* of the batch in work */
    std::vector<batch> batches;
    std::string description;
};

namespace
{

int fail(int error, char *message, size_t bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (message && bytes)
        vsnprintf(message, bytes, format, args);
    va_end(args);
    return error;
}

double shape_scale(int scale, double rows, double cols)
{
    switch (scale) {
    case BRG_SCALE_SPECTRAL:
        return sqrt(std::max(rows, cols));
    case BRG_SCALE_UNIT_RMS_NORM:
        return sqrt(rows / cols);
    default:
        return sqrt(std::max(1.0, rows / cols));
    }
}

int64_t padded(int64_t n)
{
    return (n + 7) / 8 * 8;
}

/* Restarts that keep Q's condition, and with it the rounding of R, in bounds: simulated in float16
 * on Gaussian, logarithmic and spiked spectra, one before the fourth step was at least as accurate
 * as one before the third for every fifth-degree set of five steps, and as the standard form. Cubic
 * polynomials need none. Longer ones restart every three steps. */
std::vector<int> default_restarts(const brg_ns_polynomial &polynomial)
{
    std::vector<int> restarts;
    const int steps = polynomial.num_steps();
    bool cubic = true;
    for (int i = 0; i < steps; i++)
        cubic = cubic && polynomial.tuples[3 * i + 2] == 0;
    if (cubic && steps <= 5)
        return restarts;
    const double *first = polynomial.tuples.data();
    if (steps > 1 && fabs(first[0] + 3 * first[1] + 5 * first[2]) > STEEP)
        restarts.push_back(1);
    for (int i = 3; i < steps && (i == 3 || i + 1 < steps); i += 3)
        restarts.push_back(i);
    return restarts;
}

int check_config(const brg_muon_config *config, char *message, size_t bytes)
{
    if (config->num_steps < 1 || config->num_steps > BRG_NS_MAX_STEPS || !config->tuples)
        return fail(cudaErrorInvalidValue, message, bytes, "Newton-Schulz with %d steps",
                    config->num_steps);
    if (config->precision < BRG_NS_FP16 || config->precision > BRG_NS_FP32)
        return fail(cudaErrorInvalidValue, message, bytes, "unknown Newton-Schulz precision %d",
                    config->precision);
    if (config->algorithm < BRG_NS_AUTO || config->algorithm > BRG_NS_GRAM)
        return fail(cudaErrorInvalidValue, message, bytes, "unknown Newton-Schulz algorithm %d",
                    config->algorithm);
    if (config->algorithm == BRG_NS_GRAM && config->precision == BRG_NS_BF16)
        return fail(cudaErrorInvalidValue, message, bytes,
                    "the Gram form of Newton-Schulz is too inaccurate in bfloat16");
    for (int i = 0; i < config->num_restarts; i++)
        if (config->restarts[i] < 1 || config->restarts[i] >= config->num_steps)
            return fail(cudaErrorInvalidValue, message, bytes,
                        "Newton-Schulz restart before step %d of %d", config->restarts[i],
                        config->num_steps);
    return 0;
}

void read_config(const brg_muon_config *config, brg_muon_plan *plan)
{
    plan->schedule.num_steps = config->num_steps;
    for (int i = 0; i < config->num_steps; i++) {
        plan->polynomial.tuples.insert(plan->polynomial.tuples.end(), config->tuples[i],
                                       config->tuples[i] + 3);
        std::copy_n(config->tuples[i], 3, plan->schedule.tuples[i]);
    }
    if (config->num_restarts < 0)
        plan->polynomial.restarts = default_restarts(plan->polynomial);
    else
        plan->polynomial.restarts.assign(config->restarts, config->restarts + config->num_restarts);
    const double mu = config->momentum, weight = config->accumulate ? 1.0 : 1.0 - mu;
    plan->momentum = {mu, weight, config->nesterov ? mu : 1.0, config->nesterov ? weight : 0.0};
    plan->eps = config->eps;
}

int open_device(brg_ns_device *device)
{
    int ordinal = 0;
    cudaDeviceProp properties;
    int error = cudaGetDevice(&ordinal);
    if (!error)
        error = cudaGetDeviceProperties(&properties, ordinal);
    if (error)
        return error;
    device->name = properties.name;
    device->cublas_version = std::to_string(cublasLtGetVersion());
    device->workspace_bytes = CUBLAS_WORKSPACE;
    if (cublasLtCreate(&device->lt))
        return cudaErrorInitializationError;
    return cudaMalloc(&device->workspace, device->workspace_bytes);
}

/* Splits the group's matrices into batches as equal as possible. */
void cut_batches(shape_group *group, size_t limit)
{
    const int64_t tiles = (group->shape.side + 127) / 128, count = (int64_t)group->members.size();
    if (group->way != BRG_MUON_BATCHED) {
        group->sizes.push_back((int)count);
        return;
    }
    group->shape.batch = 1;
    int64_t most = std::min<int64_t>(WANTED_TILES / (tiles * (tiles + 1) / 2), BRG_NS_MAX_BATCH);
    most = std::min<int64_t>(
        most, (int64_t)(limit / brg_ns_memory_bytes(&group->shape, group->gram_allowed)));
    most = std::max<int64_t>(most, 1);
    const int64_t batches = (count + most - 1) / most;
    for (int64_t i = 0; i < batches; i++)
        group->sizes.push_back((int)(count / batches + (i < count % batches)));
    group->shape.batch = group->sizes[0];
}

/* Bfloat16 is asked for as what others do, with its errors. */
brg_muon_way way_of(const brg_muon_matrix &matrix, int precision)
{
    if (precision == BRG_NS_BF16)
        return BRG_MUON_BATCHED;
    if (matrix.rows == 1 || matrix.cols == 1)
        return BRG_MUON_VECTOR;
    return matrix.rows * matrix.cols <= BRG_NS_SMALL_ELEMS ? BRG_MUON_SMALL : BRG_MUON_BATCHED;
}

std::vector<shape_group> group_matrices(const brg_muon_matrix *matrices, int count,
                                        const brg_muon_config *config)
{
    std::vector<shape_group> groups;
    for (int i = 0; i < count; i++) {
        const brg_muon_way way = way_of(matrices[i], config->precision);
        int64_t side = padded(std::min(matrices[i].rows, matrices[i].cols));
        int64_t length = padded(std::max(matrices[i].rows, matrices[i].cols));
        auto same = [&](const shape_group &g) {
            return g.way == way &&
                   (way != BRG_MUON_BATCHED || (g.shape.side == side && g.shape.length == length));
        };
        auto group = std::find_if(groups.begin(), groups.end(), same);
        if (group == groups.end()) {
            int precision = config->precision;
            if (precision == BRG_NS_FP16 && side < SMALL_SIDE)
                precision = BRG_NS_FP32;
            bool gram = config->algorithm == BRG_NS_GRAM ||
                        (config->algorithm == BRG_NS_AUTO && precision != BRG_NS_BF16 &&
                         side >= SMALL_SIDE && (double)length >= GRAM_RATIO * (double)side);
            if (way != BRG_MUON_BATCHED)
                precision = BRG_NS_FP32;
            groups.push_back({way, {side, length, 1, precision}, {}, {}, gram, {}, false});
            group = groups.end() - 1;
        }
        group->members.push_back(i);
    }
    return groups;
}

bool aligned(const void *pointer, int dtype)
{
    return (uintptr_t)pointer % (dtype == BRG_FLOAT32 ? 16 : 8) == 0;
}

brg_muon_item make_item(const brg_muon_matrix *m, const brg_muon_config *config, int precision)
{
    brg_muon_item item = {m->param, m->grad, m->master, m->momentum};
    item.rows = (int)m->rows;
    item.cols = (int)m->cols;
    item.piece_rows = (int)(m->num_pieces > 1 ? m->rows / m->num_pieces : m->rows);
    item.piece_stride = m->num_pieces > 1 ? m->piece_stride : 0;
    item.param_dtype = m->param_dtype;
    item.grad_dtype = m->grad_dtype;
    item.vectors = item.cols % 4 == 0 && item.piece_stride % 4 == 0 &&
                   aligned(m->param, m->param_dtype) && aligned(m->grad, m->grad_dtype) &&
                   aligned(m->master, BRG_FLOAT32) && aligned(m->momentum, BRG_FLOAT32);
    item.rate = config->extra_scale * shape_scale(config->scale, (double)m->rows, (double)m->cols) /
                brg_ns_scale(precision);
    return item;
}

void describe(brg_muon_plan *plan, const shape_group &group)
{
    const brg_ns_choice &choice = group.choice;
    static const char *precisions[] = {"fp16", "bf16", "fp32"};
    auto method = [](brg_ns_method m) {
        return m == BRG_NS_WHOLE    ? std::string("whole")
               : m == BRG_NS_KERNEL ? std::string("kernel")
                                    : std::to_string((int)m) + " blocks";
    };
    std::string &text = plan->description;
    text += std::to_string(group.shape.side) + "x" + std::to_string(group.shape.length) + ": " +
            std::to_string(group.members.size()) + " in batches of " +
            std::to_string(group.shape.batch) + ", " + precisions[group.shape.precision] + ", " +
            (choice.gram ? "gram" : "standard");
    if (choice.gram)
        for (int restart : plan->polynomial.restarts)
            text += ", restart " + std::to_string(restart);
    text += "; XX^T " + method(choice.method[BRG_NS_GRAM_OF]) + ", squares " +
            method(choice.method[BRG_NS_SQUARE]) + "; " +
            (group.cached ? "from the cache" : "tuned") + "\n";
}

/* The batches of a group, in the order of its items. */
int plan_group(brg_muon_plan *plan, const shape_group &group)
{
    int error = 0;
    int first =
        plan->batches.empty() ? 0 : plan->batches.back().first_item + plan->batches.back().count;
    if (group.way != BRG_MUON_BATCHED) {
        plan->batches.push_back({group.way, first, group.sizes[0], {}});
        plan->description += (group.way == BRG_MUON_VECTOR ? "vectors: " : "small matrices: ") +
                             std::to_string(group.sizes[0]) + ", fp64\n";
        return 0;
    }
    for (size_t i = 0; i < group.sizes.size() && !error; i++) {
        brg_ns_shape shape = group.shape;
        shape.batch = group.sizes[i];
        plan->batches.push_back({BRG_MUON_BATCHED, first, shape.batch, {}});
        first += shape.batch;
        error = brg_ns_program_make(&plan->device, &shape, &plan->polynomial, &group.choice,
                                    plan->memory, &plan->batches.back().program);
    }
    if (!error)
        describe(plan, group);
    return error;
}

int allocate(brg_muon_plan *plan, const std::vector<brg_muon_item> &items, size_t memory_bytes)
{
    const size_t item_bytes = std::max<size_t>(items.size(), 1) * sizeof(brg_muon_item);
    int error = cudaMalloc((void **)&plan->items, item_bytes);
    if (!error)
        error = cudaMalloc((void **)&plan->partials,
                           std::max<size_t>(items.size(), 1) * BRG_MUON_PARTIALS * sizeof(double));
    if (!error)
        error = cudaMalloc((void **)&plan->memory, std::max<size_t>(memory_bytes, 1));
    if (!error)
        error = cudaMemset(plan->memory, 0, memory_bytes);
    if (!error)
        error = cudaMemset(plan->partials, 0, items.size() * BRG_MUON_PARTIALS * sizeof(double));
    if (!error)
        error = cudaMemcpy(plan->items, items.data(), items.size() * sizeof(brg_muon_item),
                           cudaMemcpyHostToDevice);
    return error ? error : cudaDeviceSynchronize(); /* updates may run on any stream */
}

int build(brg_muon_plan *plan, const brg_muon_matrix *matrices, int count,
          const brg_muon_config *config, char *message, size_t bytes)
{
    int error = check_config(config, message, bytes);
    if (error)
        return error;
    read_config(config, plan);
    plan->count = count;
    error = open_device(&plan->device);
    if (error)
        return fail(error, message, bytes, "cuBLASLt does not start: %s",
                    cudaGetErrorString((cudaError_t)error));
    size_t limit = config->workspace_bytes, free_bytes = 0, total_bytes = 0, needed = 0;
    if (!limit) {
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
        limit = std::min(DEFAULT_WORKSPACE, free_bytes / 4);
    }
    std::vector<shape_group> groups = group_matrices(matrices, count, config);
    std::vector<brg_muon_item> items;
    auto fail_group = [&](const shape_group &group) {
        return fail(error, message, bytes, "Newton-Schulz of %lld x %lld: %s",
                    (long long)group.shape.side, (long long)group.shape.length,
                    cudaGetErrorString((cudaError_t)error));
    };
    /* Before the plan's own memory is allocated: tuning takes some for a while. */
    for (shape_group &group : groups) {
        if (!error && group.way == BRG_MUON_BATCHED)
            error =
                brg_ns_choose(&plan->device, &group.shape, &plan->polynomial, config->algorithm,
                              group.gram_allowed, config->cache_file, &group.choice, &group.cached);
        if (error)
            return fail_group(group);
        cut_batches(&group, limit);
        if (group.way == BRG_MUON_BATCHED)
            needed = std::max(needed, brg_ns_memory_bytes(&group.shape, group.gram_allowed));
        for (int member : group.members)
            items.push_back(make_item(&matrices[member], config, group.shape.precision));
    }
    if (!error)
        error = allocate(plan, items, needed);
    if (error)
        return fail(error, message, bytes, "Muon's workspace of %zu bytes: %s", needed,
                    cudaGetErrorString((cudaError_t)error));
    for (const shape_group &group : groups) {
        error = plan_group(plan, group);
        if (error)
            return fail_group(group);
    }
    return 0;
}

} // namespace

int brg_cuda_muon_create(const brg_muon_matrix *matrices, int count, const brg_muon_config *config,
                         brg_muon_plan **plan, char *message, size_t message_bytes)
{
    brg_muon_plan *made = nullptr;
    int error;
    *plan = nullptr;
    try {
        made = new brg_muon_plan();
        error = build(made, matrices, count, config, message, message_bytes);
    } catch (const std::bad_alloc &) {
        error = fail(cudaErrorMemoryAllocation, message, message_bytes, "no memory for %d matrices",
                     count);
    }
    if (error)
        brg_cuda_muon_destroy(made);
    else
        *plan = made;
    return error;
}

int brg_cuda_muon_update(brg_muon_plan *plan, const brg_step_state *state,
                         const brg_hyper_state *hyper, void *stream)
{
    int error = brg_muon_momentum_run(plan->items, plan->count, state, &plan->momentum,
                                      plan->partials, stream);
    for (size_t i = 0; i < plan->batches.size() && !error; i++) {
        const batch &b = plan->batches[i];
        const brg_ns_program *program = &b.program;
        const brg_muon_item *items = plan->items + b.first_item;
        const double *partials = plan->partials + (size_t)b.first_item * BRG_MUON_PARTIALS;
        if (b.way != BRG_MUON_BATCHED) {
            error = brg_muon_exact_run(b.way, items, b.count, state, hyper, &plan->momentum,
                                       partials, plan->eps, &plan->schedule, stream);
            continue;
        }
        error = brg_muon_normalize_run(
            items, &program->shape, state, &plan->momentum, partials, plan->eps,
            brg_ns_buffer_at(&program->shape, plan->memory, BRG_NS_X), stream);
        if (!error)
            error = brg_ns_program_run(&plan->device, program, (cudaStream_t)stream);
        if (!error)
            error = brg_muon_apply_run(
                items, &program->shape, state, hyper,
                brg_ns_buffer_at(&program->shape, plan->memory, program->result), stream);
    }
    return error;
}

int brg_cuda_muon_ns_run(brg_muon_plan *plan, void *stream)
{
    int error = 0;
    for (size_t i = 0; i < plan->batches.size() && !error; i++)
        if (plan->batches[i].way == BRG_MUON_BATCHED)
            error =
                brg_ns_program_run(&plan->device, &plan->batches[i].program, (cudaStream_t)stream);
    return error;
}

void brg_cuda_muon_destroy(brg_muon_plan *plan)
{
    if (!plan)
        return;
    for (batch &b : plan->batches)
        brg_ns_program_free(&b.program);
    cudaFree(plan->memory);
    cudaFree(plan->partials);
    cudaFree(plan->items);
    cudaFree(plan->device.workspace);
    if (plan->device.lt)
        cublasLtDestroy(plan->device.lt);
    delete plan;
}

const char *brg_cuda_muon_describe(const brg_muon_plan *plan)
{
    return plan->description.c_str();
}
