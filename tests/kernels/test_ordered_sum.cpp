// Sums in a fixed order: the same as adding one after the other, and the same as accumulating in place.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "kernels/ordered_sum.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

TEST_SUITE("cpu") {
    TEST_CASE("add_in_order adds terms one after the other, onto what is there or not") {
        const size_t n = 40001, stride = 40064;
        const int count = 5;
        const std::vector<float> terms = random_vector<float>(stride * count, 1, -1, 1);
        const std::vector<float> before = random_vector<float>(n, 2, -1, 1);
        for (const bool accumulate : {false, true}) {
            std::vector<float> want(n);
            for (size_t i = 0; i < n; ++i) {
                want[i] = accumulate ? before[i] + terms[i] : terms[i];
                for (int t = 1; t < count; ++t) want[i] += terms[static_cast<size_t>(t) * stride + i];
            }
            for (const int threads : {1, 3}) {
                ThreadPool pool(threads);
                std::vector<float> sum = before;
                ref::add_in_order<float>({sum.data(), terms.data(), stride, count, n, accumulate}, pool);
                CHECK(same_bits(sum, want));
            }
        }
        ThreadPool pool(1);
        std::vector<float> sum = before;
        ref::add_in_order<float>({sum.data(), terms.data(), stride, 0, n, true}, pool);
        CHECK(same_bits(sum, before));
    }

    TEST_CASE("gradients of weights that are accumulated in place have the bits of sums in order") {
        struct Shape {
            size_t rows;
            int N, K;
            float alpha;
        };
        // Beyond 256 rows a gemm adds its sum in several parts; a scale may be no power of two.
        for (const Shape s : {Shape{300, 48, 40, 1.0f}, Shape{1030, 16, 96, 2.0f}, Shape{700, 33, 31, 0.7f},
                              Shape{17, 8, 200, 1.3f}, Shape{2048, 128, 64, 0.35f}}) {
            CAPTURE(s.rows);
            CAPTURE(s.alpha);
            constexpr int kMicroBatches = 3;
            const size_t N = static_cast<size_t>(s.N), K = static_cast<size_t>(s.K), elems = N * K;
            ThreadPool pool(2);
            std::vector<float> in_place(elems, 0.0f), parts(elems * kMicroBatches, 0.0f), sum(elems);
            for (int m = 0; m < kMicroBatches; ++m) {
                const unsigned seed = static_cast<unsigned>(10 * m + 1);
                const std::vector<float> dy = random_vector<float>(s.rows * N, seed, -1, 1),
                                         x = random_vector<float>(s.rows * K, seed + 1, -1, 1);
                for (float* dw : {in_place.data(), parts.data() + static_cast<size_t>(m) * elems})
                    ref::matmul_backward_weight<float>({.dw = dw,
                                                        .dy = dy.data(),
                                                        .x = x.data(),
                                                        .rows = s.rows,
                                                        .N = s.N,
                                                        .K = s.K,
                                                        .ld_dy = N,
                                                        .ld_x = K,
                                                        .alpha = s.alpha},
                                                       pool);
            }
            ref::add_in_order<float>({sum.data(), parts.data(), elems, kMicroBatches, elems, false}, pool);
            CHECK(same_bits(in_place, sum));
        }
    }

    TEST_CASE("losses that are summed over micro-batches have the bits of a sum of sums") {
        ThreadPool pool(1);
        double in_place = 0, parts[3] = {}, sum = 0;
        for (int m = 0; m < 3; ++m) {
            const std::vector<float> losses = random_vector<float>(1001, static_cast<unsigned>(m + 1), 0, 9);
            ref::sum_losses(&in_place, losses.data(), losses.size(), m > 0, pool);
            ref::sum_losses(&parts[m], losses.data(), losses.size(), false, pool);
        }
        ref::add_in_order<double>({&sum, parts, 1, 3, 1, false}, pool);
        CHECK(std::memcmp(&in_place, &sum, sizeof sum) == 0);
    }

    TEST_CASE("a digest changes with any bit and any place, and not with the threads") {
        std::vector<float> numbers = random_vector<float>(200001, 3, -1, 1);
        numbers[7] = 0.0f;
        const auto digest = [&](int threads) {
            ThreadPool pool(threads);
            uint64_t value = 0;
            ref::digest_numbers(&value, numbers.data(), numbers.size(), pool);
            return value;
        };
        const uint64_t first = digest(1);
        CHECK(digest(3) == first);
        numbers[7] = -0.0f;
        CHECK(digest(1) != first);
        numbers[7] = 0.0f;
        std::swap(numbers[100], numbers[200000]);
        CHECK(digest(1) != first);
        std::swap(numbers[100], numbers[200000]);
        CHECK(digest(2) == first);
    }
}
