// Matrix products: values and gradients, every flag, strides, writes out of bounds, and equal bits for any pool.
#include <doctest/doctest.h>

#include "kernels/matmul.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

// rows x N x K, with strides beyond the widths. The last ones cross tile borders and the blocks of the own gemm.
struct Shape {
    size_t rows;
    int N, K;
    size_t ld_y, ld_x;
};
constexpr Shape kSmall[] = {{1, 1, 1, 1, 1}, {1, 5, 3, 5, 3}, {3, 1, 7, 4, 9}, {7, 5, 3, 5, 3}, {5, 9, 11, 13, 12}};
constexpr Shape kLarge[] = {
    {70, 33, 300, 40, 310}, {300, 530, 17, 530, 17}, {259, 70, 513, 71, 513}, {1, 600, 270, 600, 270}};

template <class T>
struct Inputs {
    std::vector<T> x, w, bias, add, dy;
};

// dy and add have y's stride. Columns between the width and the stride hold numbers that must not matter.
template <class T>
Inputs<T> inputs(const Shape& s, unsigned seed) {
    return {random_vector<T>(s.rows * s.ld_x, seed), random_vector<T>(static_cast<size_t>(s.N) * s.K, seed + 1),
            random_vector<T>(s.N, seed + 2), random_vector<T>(s.rows * s.ld_y, seed + 3),
            random_vector<T>(s.rows * s.ld_y, seed + 4)};
}

// The columns [0, width) of a strided matrix.
template <class T>
std::vector<T> dense(const std::vector<T>& m, size_t rows, size_t width, size_t ld) {
    std::vector<T> out;
    for (size_t i = 0; i < rows; ++i) out.insert(out.end(), m.begin() + i * ld, m.begin() + i * ld + width);
    return out;
}

// True when everything beside the columns [0, width) is bit for bit what it was.
template <class T>
bool padding_kept(const std::vector<T>& before, const std::vector<T>& after, size_t rows, size_t width, size_t ld) {
    for (size_t i = 0; i < rows; ++i) {
        if (std::memcmp(&before[i * ld] + width, &after[i * ld] + width, (ld - width) * sizeof(T)) != 0) return false;
    }
    return true;
}

template <class T>
struct Results {
    std::vector<T> y, dx, dw, dbias;
};

// Everything once, through pool or stream (both have the same overloads, in ref and outside it).
template <class T, class Forward, class BackwardInput, class BackwardWeight, class Bias>
Results<T> run_all(const Shape& s, Inputs<T>& in, Forward forward, BackwardInput backward_input,
                   BackwardWeight backward_weight, Bias bias_backward) {
    Results<T> out{in.add, std::vector<T>(in.x.size()), in.w, in.bias};
    forward(MatmulForward<T>{out.y.data(), in.x.data(), in.w.data(), in.bias.data(), out.y.data(), s.rows, s.N, s.K,
                             s.ld_y, s.ld_x, 0.5f});
    backward_input(
        MatmulBackwardInput<T>{out.dx.data(), in.dy.data(), in.w.data(), s.rows, s.N, s.K, s.ld_x, s.ld_y, 0.5f});
    backward_weight(
        MatmulBackwardWeight<T>{out.dw.data(), in.dy.data(), in.x.data(), s.rows, s.N, s.K, s.ld_y, s.ld_x, 0.5f});
    bias_backward(out.dbias.data(), in.dy.data(), s.rows, s.N, s.ld_y);
    return out;
}

template <class T>
Results<T> run_on_pool(const Shape& s, Inputs<T>& in, ThreadPool& pool) {
    return run_all(
        s, in, [&](const auto& a) { ref::matmul_forward(a, pool); },
        [&](const auto& a) { ref::matmul_backward_input(a, pool); },
        [&](const auto& a) { ref::matmul_backward_weight(a, pool); },
        [&](T* dbias, const T* dy, size_t rows, int N, size_t ld) {
            ref::bias_backward<T>(dbias, dy, rows, N, ld, pool);
        });
}

template <class T>
bool same(const Results<T>& a, const Results<T>& b) {
    return same_bits(a.y, b.y) && same_bits(a.dx, b.dx) && same_bits(a.dw, b.dw) && same_bits(a.dbias, b.dbias);
}

template <class T>
void check_gemm(bool trans_a, bool trans_b, int M, int N, int K, T alpha, T beta, double tolerance) {
    const size_t lda = (trans_a ? M : K) + 2, ldb = (trans_b ? K : N) + 3, ldc = N + 1;
    const auto A = random_vector<T>((trans_a ? K : M) * lda, 1), B = random_vector<T>((trans_b ? N : K) * ldb, 2);
    // beta 0 must not read C: it is NaN then.
    std::vector<T> start = random_vector<T>(M * ldc, 3);
    if (beta == 0) std::fill(start.begin(), start.end(), std::numeric_limits<T>::quiet_NaN());
    Guarded<T> C(start);
    ref::gemm(trans_a, trans_b, M, N, K, alpha, A.data(), lda, B.data(), ldb, beta, C.data(), ldc);
    std::vector<double> want;
    for (int m = 0; m < M; ++m) {
        for (int n = 0; n < N; ++n) {
            double sum = 0;
            for (int k = 0; k < K; ++k) {
                sum += static_cast<double>(trans_a ? A[k * lda + m] : A[m * lda + k]) *
                       (trans_b ? B[n * ldb + k] : B[k * ldb + n]);
            }
            want.push_back(alpha * sum + (beta == 0 ? 0 : beta * start[m * ldc + n]));
        }
    }
    CAPTURE(trans_a);
    CAPTURE(trans_b);
    CAPTURE(M);
    CAPTURE(N);
    CAPTURE(K);
    CHECK(max_error(dense(C.values(), M, N, ldc), want) < tolerance);
    CHECK(padding_kept(start, C.values(), M, N, ldc));
    CHECK(C.surroundings_untouched());
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("gemm: all transpositions, odd sizes, strides, alpha and beta") {
        const int sizes[][3] = {{1, 1, 1},     {5, 7, 3},     {6, 16, 8}, {13, 17, 300},
                                {100, 530, 2}, {97, 33, 257}, {4, 5, 0}};
        for (const auto& [M, N, K] : sizes) {
            for (int flags = 0; flags < 4; ++flags) {
                for (double beta : {0.0, 1.0, -0.5}) {
                    check_gemm<double>(flags & 1, flags & 2, M, N, K, 0.75, beta, 1e-13);
                    check_gemm<float>(flags & 1, flags & 2, M, N, K, 0.75f, static_cast<float>(beta), 1e-5);
                }
            }
        }
    }

    TEST_CASE("matmul_forward: bias, add and its aliasing, alpha, strides") {
        ThreadPool pool(2);
        const auto check = [&](const Shape& s, bool bias, int add /*0 none, 1 another buffer, 2 y itself*/) {
            const Inputs<double> in = inputs<double>(s, 10);
            std::vector<double> start = in.add;
            if (add != 2) std::fill(start.begin(), start.end(), std::numeric_limits<double>::quiet_NaN());
            Guarded<double> y(start);
            ref::matmul_forward(
                MatmulForward<double>{y.data(), in.x.data(), in.w.data(), bias ? in.bias.data() : nullptr,
                                      add == 0 ? nullptr : (add == 1 ? in.add.data() : y.data()), s.rows, s.N, s.K,
                                      s.ld_y, s.ld_x, -1.5f},
                pool);
            std::vector<double> want;
            for (size_t i = 0; i < s.rows; ++i) {
                for (int n = 0; n < s.N; ++n) {
                    double sum = 0;
                    for (int k = 0; k < s.K; ++k) sum += in.x[i * s.ld_x + k] * in.w[static_cast<size_t>(n) * s.K + k];
                    want.push_back(-1.5 * sum + (bias ? in.bias[n] : 0) + (add ? in.add[i * s.ld_y + n] : 0));
                }
            }
            CAPTURE(s.rows);
            CAPTURE(s.N);
            CAPTURE(s.K);
            CAPTURE(bias);
            CAPTURE(add);
            CHECK(max_error(dense(y.values(), s.rows, s.N, s.ld_y), want) < 1e-12);
            CHECK(padding_kept(start, y.values(), s.rows, s.N, s.ld_y));
            CHECK(y.surroundings_untouched());
        };
        for (int flags = 0; flags < 6; ++flags) {
            for (const Shape& s : kSmall) check(s, flags % 2, flags / 2);
            for (const Shape& s : kLarge) check(s, flags % 2, flags / 2);
        }
    }

    TEST_CASE("matmul gradients against central differences") {
        ThreadPool pool(2);
        for (const Shape& s : kSmall) {
            Inputs<double> in = inputs<double>(s, 20);
            std::vector<double> y(s.rows * s.ld_y);
            const auto loss = [&] {
                ref::matmul_forward(MatmulForward<double>{y.data(), in.x.data(), in.w.data(), in.bias.data(), nullptr,
                                                          s.rows, s.N, s.K, s.ld_y, s.ld_x, 0.5f},
                                    pool);
                double sum = 0;
                for (size_t i = 0; i < s.rows; ++i) {
                    for (int n = 0; n < s.N; ++n) sum += y[i * s.ld_y + n] * in.dy[i * s.ld_y + n];
                }
                return sum;
            };
            Guarded<double> dx(std::vector<double>(in.x.size(), 0));
            Guarded<double> dw(std::vector<double>(in.w.size(), 0)), dbias(std::vector<double>(in.bias.size(), 0));
            ref::matmul_backward_input(MatmulBackwardInput<double>{dx.data(), in.dy.data(), in.w.data(), s.rows, s.N,
                                                                   s.K, s.ld_x, s.ld_y, 0.5f},
                                       pool);
            ref::matmul_backward_weight(MatmulBackwardWeight<double>{dw.data(), in.dy.data(), in.x.data(), s.rows, s.N,
                                                                     s.K, s.ld_y, s.ld_x, 0.5f},
                                        pool);
            ref::bias_backward<double>(dbias.data(), in.dy.data(), s.rows, s.N, s.ld_y, pool);
            check_gradient("dx", in.x, dx.values(), loss, 1e-9);
            check_gradient("dw", in.w, dw.values(), loss, 1e-9);
            check_gradient("dbias", in.bias, dbias.values(), loss, 1e-9);
            CHECK(dx.surroundings_untouched());
            CHECK(dw.surroundings_untouched());
            CHECK(dbias.surroundings_untouched());
        }
    }

    TEST_CASE("matmul gradients: = overwrites, += adds, padding stays") {
        ThreadPool pool(2);
        for (const Shape& s : kLarge) {
            const Inputs<double> in = inputs<double>(s, 30);
            const std::vector<double> start = random_vector(in.x.size(), 31), w_start = random_vector(in.w.size(), 32);
            const auto backward_input = [&](std::vector<double> dx_start, bool accumulate) {
                Guarded<double> dx(dx_start);
                ref::matmul_backward_input(MatmulBackwardInput<double>{dx.data(), in.dy.data(), in.w.data(), s.rows,
                                                                       s.N, s.K, s.ld_x, s.ld_y, 2, accumulate},
                                           pool);
                CHECK(padding_kept(dx_start, dx.values(), s.rows, s.K, s.ld_x));
                CHECK(dx.surroundings_untouched());
                return dense(dx.values(), s.rows, s.K, s.ld_x);
            };
            const auto backward_weight = [&](const std::vector<double>& dw_start) {
                Guarded<double> dw(dw_start);
                ref::matmul_backward_weight(MatmulBackwardWeight<double>{dw.data(), in.dy.data(), in.x.data(), s.rows,
                                                                         s.N, s.K, s.ld_y, s.ld_x, 2},
                                            pool);
                CHECK(dw.surroundings_untouched());
                return dw.values();
            };
            std::vector<double> dx_want, dw_want = w_start, dbias_want = in.bias;
            for (size_t i = 0; i < s.rows; ++i) {
                for (int k = 0; k < s.K; ++k) {
                    double sum = 0;
                    for (int n = 0; n < s.N; ++n) {
                        const size_t at = static_cast<size_t>(n) * s.K + k;
                        sum += in.dy[i * s.ld_y + n] * in.w[at];
                        dw_want[at] += 2 * in.dy[i * s.ld_y + n] * in.x[i * s.ld_x + k];
                    }
                    dx_want.push_back(2 * sum);
                }
                for (int n = 0; n < s.N; ++n) dbias_want[n] += in.dy[i * s.ld_y + n];
            }
            const std::vector<double> nan(in.x.size(), std::numeric_limits<double>::quiet_NaN());
            CHECK(max_error(backward_input(nan, false), dx_want) < 1e-12);
            const std::vector<double> start_dense = dense(start, s.rows, s.K, s.ld_x);
            for (size_t i = 0; i < dx_want.size(); ++i) dx_want[i] += start_dense[i];
            CHECK(max_error(backward_input(start, true), dx_want) < 1e-12);
            CHECK(max_error(backward_weight(w_start), dw_want) < 1e-12);
            Guarded<double> dbias(in.bias);
            ref::bias_backward<double>(dbias.data(), in.dy.data(), s.rows, s.N, s.ld_y, pool);
            CHECK(max_error(dbias.values(), dbias_want) < 1e-12);
            CHECK(dbias.surroundings_untouched());
        }
    }

    TEST_CASE("matmul: float agrees with double") {
        ThreadPool pool(2);
        for (const Shape& s : kLarge) {
            Inputs<float> in = inputs<float>(s, 40);
            Inputs<double> in_double{converted<double>(in.x), converted<double>(in.w), converted<double>(in.bias),
                                     converted<double>(in.add), converted<double>(in.dy)};
            const Results<float> got = run_on_pool(s, in, pool);
            const Results<double> want = run_on_pool(s, in_double, pool);
            CHECK(max_error(got.y, want.y) < 1e-5);
            CHECK(max_error(got.dx, want.dx) < 1e-5);
            CHECK(max_error(got.dw, want.dw) < 1e-5);
            CHECK(max_error(got.dbias, want.dbias) < 1e-5);
        }
    }

    TEST_CASE("matmul: the same bits for every number of threads") {
        ThreadPool one(1), two(2), five(5);
        for (const Shape& s : kLarge) {
            Inputs<float> in = inputs<float>(s, 50);
            Inputs<double> in_double = inputs<double>(s, 50);
            const Results<float> want = run_on_pool(s, in, one);
            const Results<double> want_double = run_on_pool(s, in_double, one);
            for (ThreadPool* pool : {&two, &five}) {
                CHECK(same(run_on_pool(s, in, *pool), want));
                CHECK(same(run_on_pool(s, in_double, *pool), want_double));
            }
        }
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("matmul on a stream gives the bits of the reference") {
        Device device;
        Stream stream(device, "compute", matmul_workspace_bytes());
        ThreadPool pool(1);
        for (const Shape& s : kLarge) {
            Inputs<float> in = inputs<float>(s, 60);
            const Results<float> got = run_all(
                s, in, [&](const auto& a) { matmul_forward(a, stream); },
                [&](const auto& a) { matmul_backward_input(a, stream); },
                [&](const auto& a) { matmul_backward_weight(a, stream); },
                [&](float* dbias, const float* dy, size_t rows, int N, size_t ld) {
                    bias_backward(dbias, dy, rows, N, ld, stream);
                    stream.synchronize();  // before the results, which live in run_all's frame, are moved out
                });
            CHECK(same(got, run_on_pool(s, in, pool)));
        }
    }
#endif
}
