// What the tests of the kernels share: random inputs, buffers that notice writes beyond their ends, and the comparison
// of an analytic gradient with central differences in double precision.
//
// Everything is seeded by the caller, so a failure repeats.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace slab::test {

// Of its own name: kernel_checks.h has a Guarded too, and the linker would take one for both.
inline namespace gradient {

// n numbers uniform in [low, high).
template <class T = double>
std::vector<T> random_vector(size_t n, unsigned seed, double low = -1, double high = 1) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<T> v(n);
    for (T& x : v) x = static_cast<T>(uniform(engine));
    return v;
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

// An output of n elements between two guard zones. Starts as NaN, so that elements never written show as well.
template <class T>
class Guarded {
  public:
    explicit Guarded(size_t n) : all_(n + 2 * kGuard, kSentinel) {
        std::fill_n(data(), n, std::numeric_limits<T>::quiet_NaN());
    }
    explicit Guarded(const std::vector<T>& v) : all_(v.size() + 2 * kGuard, kSentinel) {
        std::copy(v.begin(), v.end(), data());
    }
    T* data() { return all_.data() + kGuard; }
    T& operator[](size_t i) { return data()[i]; }
    size_t size() const { return all_.size() - 2 * kGuard; }
    std::vector<T> values() const { return std::vector<T>(all_.begin() + kGuard, all_.end() - kGuard); }
    bool intact() const {
        return std::all_of(all_.begin(), all_.begin() + kGuard, [](T x) { return x == kSentinel; }) &&
               std::all_of(all_.end() - kGuard, all_.end(), [](T x) { return x == kSentinel; });
    }

  private:
    static constexpr size_t kGuard = 64;
    static constexpr T kSentinel = static_cast<T>(-12345);
    std::vector<T> all_;
};

// sum of out * weights: turns a tensor into the scalar whose gradient with respect to `out` is `weights`.
template <class V>
double weighted_sum(V& out, const std::vector<double>& weights) {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += static_cast<double>(out[i]) * weights[i];
    return sum;
}

// max |got - want| / max |want|; NaN anywhere gives infinity.
template <class A, class B>
double relative_error(const std::vector<A>& got, const std::vector<B>& want) {
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

// The gradient of loss() with respect to x, by the five-point central difference (error h^4). loss reads x itself, so
// x is changed and restored. x must not be resized by loss.
inline std::vector<double> numeric_gradient(std::vector<double>& x, const std::function<double()>& loss,
                                            double h = 1e-3) {
    std::vector<double> gradient(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        const double saved = x[i];
        const auto at = [&](double offset) {
            x[i] = saved + offset;
            return loss();
        };
        gradient[i] = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
        x[i] = saved;
    }
    return gradient;
}

// Fails the test when the analytic gradient is off by more than `tolerance` of the largest entry.
inline void check_gradient(const std::string& what, std::vector<double>& x, const std::vector<double>& analytic,
                           const std::function<double()>& loss, double tolerance = 1e-7) {
    const std::vector<double> numeric = numeric_gradient(x, loss);
    REQUIRE(numeric.size() == analytic.size());
    double scale = 0, error = 0;
    size_t worst = 0;
    for (size_t i = 0; i < numeric.size(); ++i) {
        scale = std::max(scale, std::abs(numeric[i]));
        const double difference = std::abs(numeric[i] - analytic[i]);
        if (!std::isnan(error) && !(difference <= error)) {  // NaN is the worst there is
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

}  // namespace gradient
}  // namespace slab::test
