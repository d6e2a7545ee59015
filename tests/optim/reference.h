/* SPDX-License-Identifier: Apache-2.0 */
/* Float64 references written from the formulas, with plain loops; nothing here calls the library.
 */
#ifndef BRIGADE_TESTS_OPTIM_REFERENCE_H
#define BRIGADE_TESTS_OPTIM_REFERENCE_H

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace ref
{

using Vec = std::vector<double>;
using Tuples = std::vector<std::array<double, 3>>;

struct Matrix {
    int rows = 0, cols = 0;
    Vec v;
    Matrix(int r, int c) : rows(r), cols(c), v((size_t)r * c, 0.0)
    {
    }
    double &at(int r, int c)
    {
        return v[(size_t)r * cols + c];
    }
    double at(int r, int c) const
    {
        return v[(size_t)r * cols + c];
    }
};

inline double frobenius(const Vec &v)
{
    double largest = 0, sum = 0;
    for (double x : v)
        largest = std::max(largest, std::fabs(x));
    if (largest == 0)
        return 0;
    for (double x : v)
        sum += (x / largest) * (x / largest);
    return largest * std::sqrt(sum);
}

inline Matrix product(const Matrix &a, const Matrix &b)
{
    Matrix c(a.rows, b.cols);
    for (int i = 0; i < a.rows; i++)
        for (int k = 0; k < a.cols; k++)
            for (int j = 0; j < b.cols; j++)
                c.at(i, j) += a.at(i, k) * b.at(k, j);
    return c;
}

inline Matrix transposed(const Matrix &a)
{
    Matrix t(a.cols, a.rows);
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.cols; j++)
            t.at(j, i) = a.at(i, j);
    return t;
}

/* X <- aX + (bA + cA^2)X, always with A = XX^T, whichever side is smaller. */
inline Matrix newton_schulz(Matrix x, const Tuples &tuples)
{
    for (const auto &t : tuples) {
        Matrix a = product(x, transposed(x)), aa = product(a, a);
        for (size_t i = 0; i < a.v.size(); i++)
            a.v[i] = t[1] * a.v[i] + t[2] * aa.v[i];
        Matrix bx = product(a, x);
        for (size_t i = 0; i < x.v.size(); i++)
            x.v[i] = t[0] * x.v[i] + bx.v[i];
    }
    return x;
}

/* Published tuples, typed in here a second time. */
inline Tuples quintic()
{
    return {{4.0848, -6.8946, 2.9270},
            {3.9505, -6.3029, 2.6377},
            {3.7418, -5.5913, 2.3037},
            {2.8769, -3.1427, 1.2046},
            {2.8366, -3.0525, 1.2012}};
}
inline Tuples simple()
{
    return Tuples(5, {3.4445, -4.7750, 2.0315});
}

struct AdamW {
    double lr, b1, b2, eps, wd;
    /* 1 - b^t, in more digits than float64 has: with b near 1 nearly all of them cancel. */
    static double correction(double b, int64_t t)
    {
        return (double)(1 - std::pow((long double)b, (long double)t));
    }
    /* One step from the given state; t is 1 in the first. */
    void step(double &p, double &m, double &v, double g, int64_t t) const
    {
        m = b1 * m + (1 - b1) * g;
        v = b2 * v + (1 - b2) * g * g;
        double mh = m / correction(b1, t), vh = v / correction(b2, t);
        p = p * (1 - lr * wd) - lr * mh / (std::sqrt(vh) + eps);
    }
};

enum class Scale { spectral, unit_rms_norm, shape_scaling };

struct Muon {
    double lr, mu, wd, eps, extra;
    bool ema, nesterov;
    Scale scale;
    Tuples tuples;

    double factor(double rows, double cols) const
    {
        switch (scale) {
        case Scale::spectral:
            return std::sqrt(std::max(rows, cols));
        case Scale::unit_rms_norm:
            return std::sqrt(rows / cols);
        default:
            return std::sqrt(std::max(1.0, rows / cols));
        }
    }

    void step(Matrix &p, Matrix &m, const Matrix &g) const
    {
        Matrix x(p.rows, p.cols);
        double w = ema ? 1 - mu : 1;
        for (size_t i = 0; i < x.v.size(); i++) {
            m.v[i] = mu * m.v[i] + w * g.v[i];
            x.v[i] = nesterov ? w * g.v[i] + mu * m.v[i] : m.v[i];
        }
        double norm = std::max(frobenius(x.v), eps);
        for (double &e : x.v)
            e = norm > 0 ? e / norm : 0;
        x = newton_schulz(x, tuples);
        double rate = lr * extra * factor(p.rows, p.cols);
        for (size_t i = 0; i < x.v.size(); i++)
            p.v[i] = p.v[i] * (1 - lr * wd) - rate * x.v[i];
    }
};

/* Distance in units of the last place of float32 values near `exact`. Where `exact` is a difference
 * of terms as large as `terms` and nearly cancels, both sides' float64 has errors of its own that
 * are many such units: there, in units of 2^-48 of `terms`. */
inline double ulps(float got, double exact, double terms = 0)
{
    if (std::isnan(got) || std::isnan(exact))
        return std::isnan(got) && std::isnan(exact) ? 0 : 1e30;
    double size = std::max({std::fabs(exact), std::fabs(terms) * 0x1p-25, 0x1p-126});
    double ulp = std::ldexp(1.0, std::ilogb(size) - 23);
    return std::fabs((double)got - exact) / ulp;
}

inline double relative_error(const float *got, const Vec &exact)
{
    Vec difference(exact.size());
    for (size_t i = 0; i < exact.size(); i++)
        difference[i] = got[i] - exact[i];
    double size = frobenius(exact);
    return size > 0 ? frobenius(difference) / size : frobenius(difference);
}

inline std::vector<float> gaussian(size_t numel, std::mt19937_64 &rng, double size = 1)
{
    std::normal_distribution<double> normal;
    std::vector<float> v(numel);
    for (float &x : v)
        x = (float)(size * normal(rng));
    return v;
}

inline Matrix matrix(const std::vector<float> &v, int rows, int cols)
{
    Matrix m(rows, cols);
    std::copy(v.begin(), v.end(), m.v.begin());
    return m;
}

/* 16-bit types by definition, not by bits: sign * significand * 2^exponent. */
inline double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                      : std::ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}
inline double bfloat_value(uint16_t h)
{
    int exponent = h >> 7 & 255, fraction = h & 127;
    double magnitude = exponent == 255 ? (fraction ? NAN : INFINITY)
                       : exponent      ? std::ldexp(128 + fraction, exponent - 134)
                                       : std::ldexp(fraction, -133);
    return h & 0x8000 ? -magnitude : magnitude;
}

} // namespace ref

#endif
