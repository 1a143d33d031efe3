// Adapters against a plain triple loop and central differences. There are one or three modules side by side, with and
// without dropout, null dx and strides. Pools and streams must give the same bits.
#include <doctest/doctest.h>

#include "kernels/lora.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

struct ModuleShape {
    int N, r;
    float scale;
};

// Everything that a group of adapters over one input reads and writes. y has columns that belong to no module.
template <class T>
struct Problem {
    int B, T_len, K;
    std::vector<ModuleShape> shapes;
    int r = 0, ld_y = 0;
    std::vector<T> A, x, y, dy, dx, dA;
    std::vector<std::vector<T>> Bs, dBs;
    LoraDropout dropout;

    size_t rows() const { return static_cast<size_t>(B) * T_len; }
    size_t first_col(size_t module) const {
        size_t col = 2;  // two columns before the first module, one between modules, one after the last
        for (size_t i = 0; i < module; ++i) col += shapes[i].N + 1;
        return col;
    }
    int first_row(size_t module) const {
        int row = 0;
        for (size_t i = 0; i < module; ++i) row += shapes[i].r;
        return row;
    }
};

template <class T>
Problem<T> problem(int B, int T_len, int K, const std::vector<ModuleShape>& shapes, float p, unsigned seed) {
    Problem<T> q;
    q.B = B;
    q.T_len = T_len;
    q.K = K;
    q.shapes = shapes;
    q.r = q.first_row(shapes.size());
    q.ld_y = static_cast<int>(q.first_col(shapes.size()));
    q.A = random_vector<T>(static_cast<size_t>(q.r) * K, seed);
    q.x = random_vector<T>(q.rows() * K, seed + 1);
    q.y = random_vector<T>(q.rows() * q.ld_y, seed + 2);
    q.dy = random_vector<T>(q.rows() * q.ld_y, seed + 3);
    q.dx = random_vector<T>(q.rows() * K, seed + 4);
    q.dA = random_vector<T>(q.A.size(), seed + 5);
    for (const ModuleShape& s : shapes) {
        q.Bs.push_back(random_vector<T>(static_cast<size_t>(s.N) * s.r, ++seed + 10));
        q.dBs.push_back(random_vector<T>(static_cast<size_t>(s.N) * s.r, seed + 50));
    }
    q.dropout = {.p = p, .T_len = T_len, .key = {.seed = 99, .first_sample = 12, .layer = 3}};
    return q;
}

template <class T>
LoraGroup<T> group(Problem<T>& q) {
    LoraGroup<T> g{.A = q.A.data(), .dA = q.dA.data(), .r = q.r, .K = q.K, .modules = {}};
    for (size_t i = 0; i < q.shapes.size(); ++i) {
        g.modules.push_back({.B = q.Bs[i].data(),
                             .dB = q.dBs[i].data(),
                             .r = q.shapes[i].r,
                             .N = q.shapes[i].N,
                             .first_row = q.first_row(i),
                             .first_col = static_cast<int>(q.first_col(i)),
                             .scale = q.shapes[i].scale,
                             .site = static_cast<int>(5 + i)});
    }
    return g;
}

// What the module's A reads: x, or x under the module's own mask.
template <class T>
std::vector<T> module_input(const Problem<T>& q, size_t module) {
    std::vector<T> out = q.x;
    if (q.dropout.p == 0) return out;
    ThreadPool pool(1);
    DropoutKey key = q.dropout.key;
    key.site = static_cast<int>(5 + module);
    ref::dropout(Dropout<T>{.y = out.data(),
                            .x = q.x.data(),
                            .rows = q.rows(),
                            .T_len = q.T_len,
                            .C = q.K,
                            .p = q.dropout.p,
                            .key = key},
                 pool);
    return out;
}

// y += the adapters, by the formula.
std::vector<double> plain_forward(const Problem<double>& q) {
    std::vector<double> y = q.y;
    for (size_t m = 0; m < q.shapes.size(); ++m) {
        const std::vector<double> x = module_input(q, m);
        const ModuleShape& s = q.shapes[m];
        for (size_t row = 0; row < q.rows(); ++row) {
            for (int j = 0; j < s.r; ++j) {
                double xa = 0;
                for (int k = 0; k < q.K; ++k) xa += x[row * q.K + k] * q.A[(q.first_row(m) + j) * q.K + k];
                for (int n = 0; n < s.N; ++n) {
                    y[row * q.ld_y + q.first_col(m) + n] += s.scale * xa * q.Bs[m][n * s.r + j];
                }
            }
        }
    }
    return y;
}

template <class T>
struct Results {
    std::vector<T> y, xa, dx, dA;
    std::vector<std::vector<T>> dBs;
};

// forward(LoraForward, group, dropout), then backward(LoraBackward, ...), then finish(); outputs start as in q.
template <class T, class Forward, class Backward, class Finish>
Results<T> run(Problem<T> q, bool with_dx, Forward forward, Backward backward, Finish finish) {
    Guarded<T> y(q.y), xa(q.rows() * q.r), dxa(q.rows() * q.r), dx(q.dx), dA(q.dA);
    Guarded<T> x_dropped(q.dropout.p > 0 ? q.x.size() : 0);
    LoraGroup<T> g = group(q);
    g.dA = dA.data();
    T* scratch = q.dropout.p > 0 ? x_dropped.data() : nullptr;
    forward(LoraForward<T>{y.data(), xa.data(), q.x.data(), scratch, q.rows(), static_cast<size_t>(q.ld_y)}, g,
            q.dropout);
    backward(LoraBackward<T>{with_dx ? dx.data() : nullptr, dxa.data(), q.dy.data(), xa.data(), q.x.data(), scratch,
                             q.rows(), static_cast<size_t>(q.ld_y)},
             g, q.dropout);
    finish();
    for (const Guarded<T>* out : {&y, &xa, &dxa, &dx, &dA, &x_dropped}) CHECK(out->surroundings_untouched());
    return {y.values(), xa.values(), dx.values(), dA.values(), q.dBs};
}

template <class T>
Results<T> run_on_pool(const Problem<T>& q, ThreadPool& pool, bool with_dx = true) {
    return run(
        q, with_dx, [&](const auto& a, const auto& g, const auto& d) { ref::lora_forward(a, g, d, pool); },
        [&](const auto& a, const auto& g, const auto& d) { ref::lora_backward(a, g, d, pool); }, [] {});
}

template <class T>
bool same(const Results<T>& a, const Results<T>& b) {
    for (size_t i = 0; i < a.dBs.size(); ++i) {
        if (!same_bits(a.dBs[i], b.dBs[i])) return false;
    }
    return same_bits(a.y, b.y) && same_bits(a.xa, b.xa) && same_bits(a.dx, b.dx) && same_bits(a.dA, b.dA);
}

template <class T>
std::vector<T> minus(std::vector<T> a, const std::vector<T>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return a;
}

const std::vector<std::vector<ModuleShape>> kGroups = {
    {{1, 1, 1.0f}}, {{7, 3, 2.0f}}, {{6, 2, 0.5f}, {3, 5, 1.5f}, {4, 1, 2.0f}}};

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("lora_forward adds the formula and leaves other columns alone") {
        ThreadPool pool(2);
        for (const auto& shapes : kGroups) {
            for (float p : {0.0f, 0.4f}) {
                const Problem<double> q = problem<double>(2, 5, 11, shapes, p, 100);
                CHECK(max_error(run_on_pool(q, pool).y, plain_forward(q)) < 1e-13);
                const std::vector<double> y = run_on_pool(q, pool).y;
                for (size_t row = 0; row < q.rows(); ++row) {
                    for (size_t m = 0; m <= shapes.size(); ++m) {
                        const size_t gap = row * q.ld_y + q.first_col(m) - 1;  // the column before each module
                        REQUIRE(y[gap] == q.y[gap]);
                    }
                }
            }
        }
    }

    TEST_CASE("lora gradients against central differences, with and without dropout") {
        ThreadPool pool(2);
        for (const auto& shapes : kGroups) {
            for (float p : {0.0f, 0.4f}) {
                Problem<double> q = problem<double>(2, 3, 9, shapes, p, 200);
                const auto loss = [&] {
                    const std::vector<double> y = plain_forward(q);
                    return dot(y, q.dy);
                };
                const Results<double> got = run_on_pool(q, pool);  // adds to q's starting gradients
                check_gradient("dx", q.x, minus(got.dx, q.dx), loss, 1e-9);
                check_gradient("dA", q.A, minus(got.dA, q.dA), loss, 1e-9);
                for (size_t m = 0; m < shapes.size(); ++m) {
                    check_gradient("dB", q.Bs[m], minus(got.dBs[m], q.dBs[m]), loss, 1e-9);
                }
            }
        }
    }

    TEST_CASE("lora_backward without dx gives the same other gradients") {
        ThreadPool pool(2);
        for (float p : {0.0f, 0.4f}) {
            const Problem<double> q = problem<double>(1, 6, 8, kGroups[2], p, 300);
            Results<double> with = run_on_pool(q, pool);
            const Results<double> without = run_on_pool(q, pool, false);
            CHECK(same_bits(without.dx, q.dx));
            with.dx = without.dx;
            CHECK(same(with, without));
        }
    }

    TEST_CASE("lora that overwrites gives what adding to the same numbers gives, and leaves other columns alone") {
        ThreadPool pool(2);
        for (const auto& shapes : kGroups) {
            for (float p : {0.0f, 0.4f}) {
                Problem<double> q = problem<double>(2, 5, 11, shapes, p, 700);
                std::fill(q.dx.begin(), q.dx.end(), 0.0);
                const Results<double> added = run_on_pool(q, pool);
                const auto overwriting = [&](const double* add) {
                    Problem<double> from = q;  // what is overwritten must not show
                    std::fill(from.y.begin(), from.y.end(), std::numeric_limits<double>::quiet_NaN());
                    std::fill(from.dx.begin(), from.dx.end(), std::numeric_limits<double>::quiet_NaN());
                    return run(
                        from, true,
                        [&](auto a, const auto& g, const auto& d) {
                            a.accumulate = false;
                            a.add = add;
                            ref::lora_forward(a, g, d, pool);
                        },
                        [&](auto a, const auto& g, const auto& d) {
                            a.accumulate = false;
                            ref::lora_backward(a, g, d, pool);
                        },
                        [] {});
                };
                const Results<double> with = overwriting(q.y.data()), without = overwriting(nullptr);
                CHECK(same_bits(with.dx, added.dx));
                for (size_t row = 0; row < q.rows(); ++row) {
                    for (size_t m = 0; m < shapes.size(); ++m) {
                        const size_t first = row * q.ld_y + q.first_col(m);
                        REQUIRE(std::isnan(with.y[first - 1]));  // the column before the module
                        for (size_t i = first; i < first + shapes[m].N; ++i) {
                            REQUIRE(with.y[i] == added.y[i]);
                            REQUIRE(std::abs(without.y[i] + q.y[i] - added.y[i]) < 1e-13);
                        }
                    }
                }
            }
        }
    }

    TEST_CASE("lora: an empty group does nothing") {
        ThreadPool pool(2);
        const Problem<double> q = problem<double>(1, 3, 4, {}, 0, 400);
        const Results<double> got = run_on_pool(q, pool);
        CHECK(same_bits(got.y, q.y));
        CHECK(same_bits(got.dx, q.dx));
    }

    TEST_CASE("lora: each module draws its own mask") {
        // Two modules with equal weights: only the dropout site tells them apart.
        ThreadPool pool(1);
        Problem<double> q = problem<double>(1, 8, 16, {{3, 2, 1.0f}, {3, 2, 1.0f}}, 0.5f, 500);
        std::copy_n(q.A.begin(), 2 * q.K, q.A.begin() + 2 * q.K);
        const std::vector<double> xa = run_on_pool(q, pool).xa;
        size_t equal = 0;
        for (size_t row = 0; row < q.rows(); ++row) equal += xa[row * 4] == xa[row * 4 + 2];
        CHECK(equal == 0);
    }

    TEST_CASE("lora: float agrees with double; the same bits for any pool, and on a stream") {
        ThreadPool one(1), two(2), five(5);
        for (float p : {0.0f, 0.1f}) {
            const Problem<float> q = problem<float>(2, 150, 70, {{65, 4, 2.0f}, {33, 8, 1.0f}}, p, 600);
            const Results<float> want = run_on_pool(q, one);
            CHECK(same(run_on_pool(q, two), want));
            CHECK(same(run_on_pool(q, five), want));

            Problem<double> d = problem<double>(2, 150, 70, q.shapes, p, 600);
            d.A = converted<double>(q.A);
            d.x = converted<double>(q.x);
            d.y = converted<double>(q.y);
            d.dy = converted<double>(q.dy);
            d.dx = converted<double>(q.dx);
            d.dA = converted<double>(q.dA);
            for (size_t m = 0; m < 2; ++m) {
                d.Bs[m] = converted<double>(q.Bs[m]);
                d.dBs[m] = converted<double>(q.dBs[m]);
            }
            const Results<double> exact = run_on_pool(d, two);
            CHECK(max_error(want.y, exact.y) < 1e-5);
            CHECK(max_error(want.dx, exact.dx) < 1e-5);
            CHECK(max_error(want.dA, exact.dA) < 1e-5);
            for (size_t m = 0; m < 2; ++m) CHECK(max_error(want.dBs[m], exact.dBs[m]) < 1e-5);

#if !defined(SLABSTREAM_CUDA)
            Device device;
            Stream stream(device, "compute");
            CHECK(same(
                run(
                    q, true, [&](const auto& a, const auto& g, const auto& drop) { lora_forward(a, g, drop, stream); },
                    [&](const auto& a, const auto& g, const auto& drop) { lora_backward(a, g, drop, stream); },
                    [&] { stream.synchronize(); }),
                want));
#endif
        }
    }
}
