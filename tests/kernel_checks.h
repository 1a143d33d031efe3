// What tests of row-wise kernels share: matrices that notice writes beside them, bit-equality over thread counts, and
// central differences.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/thread_pool.h"

namespace slab::test {

// Of its own name: gradient_check.h has a Guarded too, and the linker would take one for both.
inline namespace kernel {

// Uniform in [-scale, scale); the same numbers in float and double builds of a test.
inline std::vector<double> random_values(size_t n, uint64_t seed, double scale = 1) {
    std::mt19937_64 generator(seed);
    std::vector<double> values(n);
    for (double& v : values) v = scale * (2 * static_cast<double>(generator() >> 40) * 0x1p-24 - 1);
    return values;
}

// A [rows, cols] matrix at column `first` of rows of stride ld, with a band of memory before and behind it. Everything
// that is not the matrix holds a value that no kernel writes; the matrix itself starts as NaN.
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
        set(std::vector<double>(rows * cols, std::numeric_limits<double>::quiet_NaN()));
    }

    T* data() { return cells_.data() + kBand + first_; }
    const T* data() const { return cells_.data() + kBand + first_; }
    size_t ld() const { return ld_; }

    void set(const std::vector<double>& values /*[rows, cols]*/) {
        for (size_t i = 0; i < values.size(); ++i) data()[i / cols_ * ld_ + i % cols_] = static_cast<T>(values[i]);
    }
    std::vector<double> values() const {
        std::vector<double> out(rows_ * cols_);
        for (size_t i = 0; i < out.size(); ++i) out[i] = data()[i / cols_ * ld_ + i % cols_];
        return out;
    }
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

// |a - b| / |b| by Euclidean norm (|a| where b is zero); NaN anywhere, or lengths that differ, give infinity.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// compute(pool) gives the same bits with 1, 2 and 5 threads.
inline bool same_bits_for_all_pools(const std::function<std::vector<double>(ThreadPool&)>& compute) {
    ThreadPool one(1), two(2), five(5);
    const std::vector<double> expected = compute(one);
    return same_bits(compute(two), expected) && same_bits(compute(five), expected);
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Compares a gradient with central differences of loss() at up to max_elems elements of x, spread over all of it.
// Returns the relative error by norm over those.
inline double gradient_error(std::vector<double>& x, const std::vector<double>& gradient,
                             const std::function<double()>& loss, size_t max_elems = 50) {
    constexpr double kStep = 1e-5;
    std::vector<double> numeric, analytic;
    const size_t stride = std::max<size_t>(1, x.size() / max_elems);
    for (size_t i = 0; i < x.size(); i += stride) {
        const double kept = x[i];
        x[i] = kept + kStep;
        const double above = loss();
        x[i] = kept - kStep;
        const double below = loss();
        x[i] = kept;
        numeric.push_back((above - below) / (2 * kStep));
        analytic.push_back(gradient[i]);
    }
    return relative_error(analytic, numeric);
}

}  // namespace kernel
}  // namespace slab::test
