// SPDX-License-Identifier: Apache-2.0
// Plans of equal matrices, and float64 references that use BLAS, for the tests of Muon on a GPU.
#ifndef BRIGADE_TESTS_OPTIM_GPU_MUON_H
#define BRIGADE_TESTS_OPTIM_GPU_MUON_H

#include <cblas.h>

#include <random>

#include "sched/optim/kernels.h"
#include "tests/optim/gpu.h"
#include "tests/optim/reference.h"

namespace gpu
{

using Tuples = ref::Tuples;

inline Tuples tuples_of(brg_ns_coefficients set)
{
    brg_ns_schedule schedule;
    EXPECT_EQ(brg_ns_schedule_make(set, 0, nullptr, 0, &schedule), BRG_OK);
    Tuples tuples;
    for (int i = 0; i < schedule.num_steps; i++)
        tuples.push_back({schedule.tuples[i][0], schedule.tuples[i][1], schedule.tuples[i][2]});
    return tuples;
}

// As ref::newton_schulz, with BLAS and on the smaller side.
inline ref::Vec polynomial(const std::vector<float> &g, int rows, int cols, const Tuples &tuples,
                           double eps = 1e-15)
{
    ref::Vec x(g.begin(), g.end());
    double norm = ref::frobenius(x);
    for (double &e : x)
        e = norm > 0 ? e / std::max(norm, eps) : 0;
    const bool tall = rows > cols;
    const int n = std::min(rows, cols);
    ref::Vec a((size_t)n * n), b(a.size()), y(x.size());
    for (const auto &t : tuples) {
        cblas_dgemm(CblasRowMajor, tall ? CblasTrans : CblasNoTrans,
                    tall ? CblasNoTrans : CblasTrans, n, n, std::max(rows, cols), 1, x.data(), cols,
                    x.data(), cols, 0, a.data(), n);
        b = a;
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, t[2], a.data(), n, a.data(),
                    n, t[1], b.data(), n);
        y = x;
        if (tall)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, n, 1, x.data(), cols,
                        b.data(), n, t[0], y.data(), cols);
        else
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, cols, n, 1, b.data(), n,
                        x.data(), cols, t[0], y.data(), cols);
        std::swap(x, y);
    }
    return x;
}

struct Options {
    Tuples tuples = ref::quintic();
    int precision = BRG_NS_FP16, algorithm = BRG_NS_AUTO;
    int grad_dtype = BRG_FLOAT32, param_dtype = BRG_FLOAT32;
    double momentum = 0, lr = 1, wd = 0, eps = 1e-15, extra = 1;
    int nesterov = 0, accumulate = 1, scale = BRG_SCALE_SHAPE_SCALING, apply = 1;
    float grad_scale = 1;
    std::vector<int> restarts;
    bool own_restarts = false;
    const char *cache = nullptr;
    int64_t num_pieces = 1, gap_rows = 0; // rows of poison after every piece
};

// Equal matrices with one plan. Arrays of a matrix hold its pieces, with the gaps between them.
class Muon
{
  public:
    Muon(const brg_kernels *kernels, int rows, int cols, int count, const Options &o)
        : kernels_(kernels), o_(o), rows_(rows), cols_(cols), count_(count)
    {
        stride_ = (rows / o.num_pieces + o.gap_rows) * cols;
        size_t each = (size_t)(stride_ * o.num_pieces);
        for (int i = 0; i < count; i++) {
            std::vector<float> zeros(each);
            master_.push_back(memory_.add_values(zeros, 0, true));
            momentum_.push_back(memory_.add_values(zeros, 0, true));
            param_.push_back(o.param_dtype == BRG_FLOAT32 ? master_.back()
                                                          : memory_.add(each * 2, 0, true));
            grad_.push_back(memory_.add(each * 4));
        }
        state_ = memory_.add(sizeof(brg_step_state));
        hyper_ = memory_.add(sizeof(brg_hyper_state));
        memory_.allocate();
        brg_step_state state = {};
        state.grad_scale = o.grad_scale;
        state.apply = o.apply;
        brg_hyper_state hyper = {};
        hyper.lr = o.lr;
        hyper.lr_f = (float)o.lr;
        hyper.decay = (float)(1 - o.lr * o.wd);
        std::memcpy(memory_.image(state_), &state, sizeof state);
        std::memcpy(memory_.image(hyper_), &hyper, sizeof hyper);
        create();
    }
    ~Muon()
    {
        kernels_->muon_destroy(plan_);
    }

    size_t place(int row, int col) const
    {
        int piece_rows = rows_ / (int)o_.num_pieces;
        return (size_t)(row / piece_rows * stride_ + (int64_t)(row % piece_rows) * cols_ + col);
    }
    template <typename F> void each(F f) const
    {
        for (int row = 0; row < rows_; row++)
            for (int col = 0; col < cols_; col++)
                f(place(row, col), (size_t)row * cols_ + col);
    }
    // Returns what the gradient is after rounding to its type.
    std::vector<float> set_grad(int i, const std::vector<float> &g)
    {
        std::vector<float> rounded(g.size());
        each([&](size_t at, size_t from) {
            set_value(memory_.image(grad_[i]), o_.grad_dtype, at, g[from]);
            rounded[from] = (float)get_value(memory_.image(grad_[i]), o_.grad_dtype, at);
        });
        return rounded;
    }
    void set_master(int i, const std::vector<float> &p)
    {
        each([&](size_t at, size_t from) {
            set_value(memory_.image(master_[i]), BRG_FLOAT32, at, p[from]);
        });
    }
    void upload()
    {
        memory_.upload();
    }
    void update(cudaStream_t stream)
    {
        CUDA_CHECK(kernels_->muon_update(plan_, memory_.device<brg_step_state>(state_),
                                         memory_.device<brg_hyper_state>(hyper_), stream));
    }
    void run(cudaStream_t stream)
    {
        upload();
        update(stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        memory_.download();
        memory_.check_others();
    }
    void download()
    {
        memory_.download();
    }
    std::vector<float> read(size_t array, int dtype) const
    {
        std::vector<float> v((size_t)rows_ * cols_);
        each([&](size_t at, size_t to) {
            v[to] = (float)get_value(memory_.result(array), dtype, at);
        });
        return v;
    }
    std::vector<float> master(int i = 0) const
    {
        return read(master_[i], BRG_FLOAT32);
    }
    std::vector<float> momentum(int i = 0) const
    {
        return read(momentum_[i], BRG_FLOAT32);
    }
    std::vector<float> param(int i = 0) const
    {
        return read(param_[i], o_.param_dtype);
    }
    // With the options' defaults the parameter is -shape_scale * NS(gradient).
    std::vector<float> orthogonal(int i = 0) const
    {
        std::vector<float> v = master(i);
        float factor = (float)-brg_muon_scale_factor((brg_muon_scale)o_.scale, rows_, cols_);
        for (float &x : v)
            x /= factor;
        return v;
    }
    std::string description() const
    {
        return kernels_->muon_describe(plan_);
    }
    const arena &memory() const
    {
        return memory_;
    }

  private:
    void create()
    {
        std::vector<brg_muon_matrix> matrices;
        for (int i = 0; i < count_; i++)
            matrices.push_back({memory_.device<>(param_[i]), memory_.device<>(grad_[i]),
                                memory_.device<float>(master_[i]),
                                memory_.device<float>(momentum_[i]), rows_, cols_, o_.num_pieces,
                                stride_, o_.param_dtype, o_.grad_dtype});
        std::vector<double> flat;
        for (const auto &t : o_.tuples)
            flat.insert(flat.end(), t.begin(), t.end());
        brg_muon_config config = {};
        config.num_steps = (int)o_.tuples.size();
        config.tuples = (const double(*)[3])flat.data();
        config.precision = o_.precision;
        config.algorithm = o_.algorithm;
        config.restarts = o_.restarts.data();
        config.num_restarts = o_.own_restarts ? (int)o_.restarts.size() : -1;
        config.nesterov = o_.nesterov;
        config.accumulate = o_.accumulate;
        config.scale = o_.scale;
        config.momentum = o_.momentum;
        config.eps = o_.eps;
        config.extra_scale = o_.extra;
        config.cache_file = o_.cache;
        char message[256] = "";
        int error = kernels_->muon_create(matrices.data(), count_, &config, &plan_, message,
                                          sizeof message);
        if (error)
            throw std::runtime_error(std::string("muon_create: ") + message);
    }

    const brg_kernels *kernels_;
    Options o_;
    int rows_, cols_, count_;
    int64_t stride_;
    arena memory_;
    std::vector<size_t> param_, grad_, master_, momentum_;
    size_t state_ = 0, hyper_ = 0;
    brg_muon_plan *plan_ = nullptr;
};

// side x length with orthonormal factors and the given singular values, by Gram-Schmidt.
inline std::vector<float> with_spectrum(int rows, int cols, const ref::Vec &values,
                                        std::mt19937_64 &rng)
{
    auto orthonormal = [&](int count, int length) {
        std::normal_distribution<double> normal;
        ref::Vec q((size_t)count * length);
        for (double &x : q)
            x = normal(rng);
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < count; i++) {
                double *v = &q[(size_t)i * length];
                for (int j = 0; j < i; j++) {
                    const double *u = &q[(size_t)j * length];
                    cblas_daxpy(length, -cblas_ddot(length, u, 1, v, 1), u, 1, v, 1);
                }
                cblas_dscal(length, 1 / cblas_dnrm2(length, v, 1), v, 1);
            }
        return q;
    };
    const int n = std::min(rows, cols);
    ref::Vec u = orthonormal(n, rows), v = orthonormal(n, cols), x((size_t)rows * cols);
    for (int i = 0; i < n; i++)
        cblas_dscal(rows, values[i], &u[(size_t)i * rows], 1);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, rows, cols, n, 1, u.data(), rows, v.data(),
                cols, 0, x.data(), cols);
    return std::vector<float>(x.begin(), x.end());
}

inline ref::Vec logarithmic(int n, double decades)
{
    ref::Vec v(n);
    for (int i = 0; i < n; i++)
        v[i] = std::pow(10, -decades * i / (n - 1));
    return v;
}

} // namespace gpu

#endif
