// GELU and SwiGLU against their formulas and derivatives in double precision.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "kernels/activation.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

// Around the tile size of activation.cpp, and too short for a vector.
const size_t kSizes[] = {0, 1, 7, 37, 16384, 16385, 40001};

double gelu(double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double swish(double x) {
    return x / (1 + std::exp(-x));
}

template <class T>
std::vector<double> gelu_of(const std::vector<double>& x, ThreadPool& pool) {
    Guarded<T> in(1, x.size()), out(1, x.size());
    in.set(x);
    ref::gelu_forward(out.data(), in.data(), x.size(), pool);
    CHECK(out.surroundings_untouched());
    return out.doubles();
}

template <class T>
std::vector<double> gelu_gradient(const std::vector<double>& dy, const std::vector<double>& x, ThreadPool& pool) {
    Guarded<T> in(1, x.size()), d_out(1, x.size()), d_in(1, x.size());
    in.set(x);
    d_out.set(dy);
    ref::gelu_backward(d_in.data(), d_out.data(), in.data(), x.size(), pool);
    CHECK(d_in.surroundings_untouched());
    return d_in.doubles();
}

template <class T>
std::vector<double> swiglu_of(const std::vector<double>& gate_up, size_t rows, int I, ThreadPool& pool) {
    Guarded<T> in(rows, 2 * I), out(rows, I);
    in.set(gate_up);
    ref::swiglu_forward(out.data(), in.data(), rows, I, pool);
    CHECK(out.surroundings_untouched());
    return out.doubles();
}

template <class T>
std::vector<double> swiglu_gradient(const std::vector<double>& dy, const std::vector<double>& gate_up, size_t rows,
                                    int I, ThreadPool& pool) {
    Guarded<T> in(rows, 2 * I), d_out(rows, I), d_in(rows, 2 * I);
    in.set(gate_up);
    d_out.set(dy);
    ref::swiglu_backward(d_in.data(), d_out.data(), in.data(), rows, I, pool);
    CHECK(d_in.surroundings_untouched());
    return d_in.doubles();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("GELU is its formula, in float to 1e-6") {
        ThreadPool pool(2);
        for (const size_t n : kSizes) {
            const std::vector<double> x = random_values(n, n + 1, 6);
            std::vector<double> expected(n);
            for (size_t i = 0; i < n; ++i) expected[i] = gelu(x[i]);
            CHECK(norm_error(gelu_of<double>(x, pool), expected) < 1e-14);
            CHECK(norm_error(gelu_of<float>(x, pool), expected) < 3e-7);
        }
        const std::vector<double> large = {-1e30, -1e4, -90, 0, 90, 1e4, 1e30};
        const std::vector<double> ends = gelu_of<float>(large, pool);
        for (size_t i = 0; i < large.size(); ++i) CHECK(ends[i] == static_cast<float>(std::max(0.0, large[i])));
    }

    TEST_CASE("GELU's gradient: central differences, float, in place") {
        ThreadPool pool(2);
        for (const size_t n : kSizes) {
            std::vector<double> x = random_values(n, n + 2, 6);
            const std::vector<double> dy = random_values(n, n + 3);
            const std::vector<double> exact = gelu_gradient<double>(dy, x, pool);
            if (n > 0 && n <= 37) {
                CHECK(gradient_error(x, exact, [&] { return dot(gelu_of<double>(x, pool), dy); }) < 1e-8);
            }
            CHECK(norm_error(gelu_gradient<float>(dy, x, pool), exact) < 3e-7);
            for (const bool over_dy : {true, false}) {
                Guarded<double> in(1, n), d_out(1, n);
                in.set(x);
                d_out.set(dy);
                Guarded<double>& d_in = over_dy ? d_out : in;
                ref::gelu_backward(d_in.data(), d_out.data(), in.data(), n, pool);
                CHECK(same_bits(d_in.doubles(), exact));
            }
        }
        const std::vector<double> slopes = gelu_gradient<float>({1, 1, 1, 1}, {-1e4, -60, 60, 1e4}, pool);
        CHECK(slopes == std::vector<double>{0, 0, 1, 1});
    }

    TEST_CASE("SwiGLU is its formula, with its gradient") {
        ThreadPool pool(2);
        const struct {
            size_t rows;
            int I;
        } shapes[] = {{1, 1}, {3, 5}, {37, 20}, {2, 16385}, {130, 300}};
        for (const auto& [rows, I] : shapes) {
            std::vector<double> gate_up = random_values(rows * 2 * I, rows + I, 8);
            const std::vector<double> dy = random_values(rows * I, rows + I + 1);
            std::vector<double> expected(rows * I);
            for (size_t i = 0; i < expected.size(); ++i) {
                const double* row = &gate_up[i / I * 2 * I];
                expected[i] = swish(row[i % I]) * row[I + i % I];
            }
            CHECK(norm_error(swiglu_of<double>(gate_up, rows, I, pool), expected) < 1e-14);
            CHECK(norm_error(swiglu_of<float>(gate_up, rows, I, pool), expected) < 3e-7);

            const std::vector<double> exact = swiglu_gradient<double>(dy, gate_up, rows, I, pool);
            CHECK(norm_error(swiglu_gradient<float>(dy, gate_up, rows, I, pool), exact) < 3e-7);
            if (rows * I <= 1000) {
                const auto loss = [&] { return dot(swiglu_of<double>(gate_up, rows, I, pool), dy); };
                CHECK(gradient_error(gate_up, exact, loss) < 1e-8);
            }
            Guarded<double> in_place(rows, 2 * I), d_out(rows, I);
            in_place.set(gate_up);
            d_out.set(dy);
            ref::swiglu_backward(in_place.data(), d_out.data(), in_place.data(), rows, I, pool);
            CHECK(same_bits(in_place.doubles(), exact));
        }
        const std::vector<double> ends = swiglu_of<float>({-1e4, 1e4, 2, 3}, 1, 2, pool);
        CHECK(ends == std::vector<double>{0, 3e4});
    }

    TEST_CASE("activations: bits do not depend on the number of threads") {
        const size_t n = 40000;
        const std::vector<double> x = random_values(2 * n, 6, 6), dy = random_values(n, 7);
        const std::vector<double> half(x.begin(), x.begin() + n);
        CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return gelu_of<float>(half, pool); }));
        CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return gelu_gradient<float>(dy, half, pool); }));
        CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return swiglu_of<float>(x, 100, 400, pool); }));
        CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return swiglu_gradient<float>(dy, x, 100, 400, pool); }));
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("activations: what a stream computes is what the reference computes") {
        const size_t rows = 37, n = 37 * 20;
        const std::vector<double> x = random_values(2 * n, 8, 6), dy = random_values(n, 9);
        Guarded<float> in(rows, 40), d_out(rows, 20), y(rows, 20), d_in(rows, 40), gelu_y(rows, 20), gelu_d(rows, 20);
        in.set(x);
        d_out.set(dy);
        Device device({.threads = 2});
        Stream stream(device, "compute");
        swiglu_forward(y.data(), in.data(), rows, 20, stream);
        swiglu_backward(d_in.data(), d_out.data(), in.data(), rows, 20, stream);
        gelu_forward(gelu_y.data(), in.data(), n, stream);
        gelu_backward(gelu_d.data(), d_out.data(), in.data(), n, stream);
        stream.synchronize();
        const std::vector<double> half(x.begin(), x.begin() + n);
        ThreadPool pool(1);
        CHECK(same_bits(y.doubles(), swiglu_of<float>(x, rows, 20, pool)));
        CHECK(same_bits(d_in.doubles(), swiglu_gradient<float>(dy, x, rows, 20, pool)));
        CHECK(same_bits(gelu_y.doubles(), gelu_of<float>(half, pool)));
        CHECK(same_bits(gelu_d.doubles(), gelu_gradient<float>(dy, half, pool)));
    }
#endif
}
