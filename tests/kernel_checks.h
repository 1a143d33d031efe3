// Tools of the kernels' tests. There are random inputs, matrices that notice writes beside them, and equal bits for any
// number of threads. Two measures of an error, and gradients by central differences in double precision, compare
// results.
//
// max_error is for single entries that must be right, norm_error for rounding that spreads over all of them. Everything
// is seeded by the caller, so a failure repeats.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/runtime/thread_pool.h"

namespace slab::test {

// n numbers uniform in [low, high).
template <class T = double>
std::vector<T> random_vector(size_t n, unsigned seed, double low = -1, double high = 1) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<T> v(n);
    for (T& x : v) x = static_cast<T>(uniform(engine));
    return v;
}

// Uniform in [-scale, scale), of few enough bits that float holds them: the same numbers in float and double builds.
inline std::vector<double> random_values(size_t n, uint64_t seed, double scale = 1) {
    std::mt19937_64 generator(seed);
    std::vector<double> values(n);
    for (double& v : values) v = scale * (2 * static_cast<double>(generator() >> 40) * 0x1p-24 - 1);
    return values;
}

template <class To, class From>
std::vector<To> converted(const std::vector<From>& v) {
    return std::vector<To>(v.begin(), v.end());
}

// True when both hold the same bits (NaN equals NaN, 0 differs from -0).
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// compute(pool) gives the same bits with 1, 2 and 5 threads.
inline bool same_bits_for_all_pools(const std::function<std::vector<double>(ThreadPool&)>& compute) {
    ThreadPool one(1), two(2), five(5);
    const std::vector<double> expected = compute(one);
    return same_bits(compute(two), expected) && same_bits(compute(five), expected);
}

// A [rows, cols] matrix at column `first` of rows of stride ld, with a band of memory before and after it. The memory
// around it holds a value that no kernel writes. The matrix itself starts as NaN, so elements never written show.
template <class T>
class Guarded {
  public:
    Guarded(size_t rows, size_t cols, size_t ld = 0, size_t first = 0)
        : rows_(rows),
          cols_(cols),
          ld_(ld == 0 ? cols : ld),
          first_(first),
          cells_(2 * kBand + rows * ld_, static_cast<T>(kUntouched)) {
        REQUIRE(first_ + cols_ <= ld_);
        for (size_t i = 0; i < size(); ++i) (*this)[i] = std::numeric_limits<T>::quiet_NaN();
    }
    explicit Guarded(size_t n) : Guarded(1, n) {}
    explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
        std::copy(values.begin(), values.end(), data());
    }

    T* data() { return cells_.data() + kBand + first_; }
    const T* data() const { return cells_.data() + kBand + first_; }
    size_t ld() const { return ld_; }
    size_t size() const { return rows_ * cols_; }
    // Element i of the matrix [rows, cols].
    T& operator[](size_t i) { return data()[i / cols_ * ld_ + i % cols_]; }
    const T& operator[](size_t i) const { return data()[i / cols_ * ld_ + i % cols_]; }

    void set(const std::vector<double>& values /*[rows, cols]*/) {
        for (size_t i = 0; i < values.size(); ++i) (*this)[i] = static_cast<T>(values[i]);
    }
    std::vector<T> values() const {
        std::vector<T> out(size());
        for (size_t i = 0; i < out.size(); ++i) out[i] = (*this)[i];
        return out;
    }
    std::vector<double> doubles() const { return converted<double>(values()); }
    bool surroundings_untouched() const {
        for (size_t i = 0; i < cells_.size(); ++i) {
            const bool inside = i >= kBand && i < kBand + rows_ * ld_ && (i - kBand) % ld_ >= first_ &&
                                (i - kBand) % ld_ < first_ + cols_;
            if (!inside && cells_[i] != static_cast<T>(kUntouched)) return false;
        }
        return true;
    }

  private:
    static constexpr size_t kBand = 64;
    static constexpr double kUntouched = -12345.5;
    size_t rows_, cols_, ld_, first_;
    std::vector<T> cells_;
};

// max |got - want| / max |want|, or max |got - want| where want is zero. Infinity if a number is not finite or lengths
// differ.
template <class A, class B>
double max_error(const std::vector<A>& got, const std::vector<B>& want) {
    double error = 0, scale = 0;
    if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < got.size(); ++i) {
        const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
        if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
        error = std::max(error, difference);
        scale = std::max(scale, std::abs(static_cast<double>(want[i])));
    }
    return scale > 0 ? error / scale : error;
}

// |got - want| / |want| by Euclidean norm, or |got - want| where want is zero. Infinity if a number is not finite or
// lengths differ.
template <class A, class B>
double norm_error(const std::vector<A>& got, const std::vector<B>& want) {
    if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
    double squares = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
        squares += difference * difference;
        norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    const double error = std::sqrt(norm > 0 ? squares / norm : squares);
    return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// The sum of a * b. As a loss, its gradient with respect to a is b.
template <class Values>
double dot(const Values& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < b.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

// The derivative of loss() with respect to x, by the five-point central difference, whose error goes with the fourth
// power of the step. loss reads x itself, so x is changed and restored.
inline double central_difference(double& x, const std::function<double()>& loss) {
    constexpr double kStep = 1e-3;
    const double kept = x;
    const auto at = [&](double offset) {
        x = kept + offset;
        return loss();
    };
    const double derivative = (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
    x = kept;
    return derivative;
}

// Compares a gradient with central differences at up to max_elems elements of x, spread over all of it. Returns the
// norm_error over those.
inline double gradient_error(std::vector<double>& x, const std::vector<double>& gradient,
                             const std::function<double()>& loss, size_t max_elems = 50) {
    std::vector<double> numeric, analytic;
    const size_t stride = std::max<size_t>(1, x.size() / max_elems);
    for (size_t i = 0; i < x.size(); i += stride) {
        numeric.push_back(central_difference(x[i], loss));
        analytic.push_back(gradient[i]);
    }
    return norm_error(analytic, numeric);
}

// Fails the test when any entry of the gradient is off by more than `tolerance` of the largest one.
inline void check_gradient(const std::string& what, std::vector<double>& x, const std::vector<double>& analytic,
                           const std::function<double()>& loss, double tolerance = 1e-7) {
    REQUIRE(x.size() == analytic.size());
    std::vector<double> numeric(x.size());
    for (size_t i = 0; i < x.size(); ++i) numeric[i] = central_difference(x[i], loss);
    double scale = 0, error = 0;
    size_t worst = 0;
    for (size_t i = 0; i < numeric.size(); ++i) {
        scale = std::max(scale, std::abs(numeric[i]));
        const double difference = std::abs(numeric[i] - analytic[i]);
        if (!std::isnan(error) && !(difference <= error)) {  // NaN stays the worst
            error = difference;
            worst = i;
        }
    }
    CAPTURE(what);
    CAPTURE(worst);
    CAPTURE(analytic[worst]);
    CAPTURE(numeric[worst]);
    CHECK(scale > 0);  // a loss that does not depend on x would pass with any zeros
    CHECK(error <= tolerance * scale);
}

}  // namespace slab::test
