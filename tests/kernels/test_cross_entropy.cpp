// Softmax and cross-entropy: values, gradients, masked rows, extreme logits; and the exp it is built on.
#include <doctest/doctest.h>

#include "kernels/cross_entropy.h"
#include "kernels/fast_math.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
struct Outcome {
    std::vector<T> losses, logits;
};

template <class T>
Outcome<T> run(const std::vector<T>& logits, const std::vector<int32_t>& targets, int V, T dloss, bool backward,
               ThreadPool& pool) {
    Guarded<T> losses(targets.size()), z(logits);
    ref::cross_entropy<T>(losses.data(), z.data(), targets.data(), targets.size(), V, dloss, backward, pool);
    CHECK(losses.surroundings_untouched());
    CHECK(z.surroundings_untouched());
    return {losses.values(), z.values()};
}

// Random targets, every third row masked.
std::vector<int32_t> some_targets(size_t rows, int V) {
    std::vector<int32_t> targets(rows);
    for (size_t i = 0; i < rows; ++i)
        targets[i] = i % 3 == 1 ? kIgnoreTarget : static_cast<int32_t>((i * 7 + V - 1) % V);
    return targets;
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("fast_exp: within one ulp, and the special values") {
        float worst = 0;
        for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {  // all exponents, both signs
            const float x = std::bit_cast<float>(static_cast<uint32_t>(bits)), got = fast_exp(x);
            if (std::isnan(x)) {
                REQUIRE(std::isnan(got));
                continue;
            }
            const double want = std::exp(static_cast<double>(x));
            const float rounded = static_cast<float>(want);
            if (std::isinf(rounded)) {
                REQUIRE(got == kInfinity);
                continue;
            }
            const double ulp = static_cast<double>(std::nextafter(rounded, kInfinity)) - rounded;
            worst = std::max(worst, static_cast<float>(std::abs(got - want) / ulp));
        }
        CHECK(worst <= 1.0f);
        CHECK(fast_exp(0.0f) == 1.0f);
        CHECK(fast_exp(-0.0f) == 1.0f);
        CHECK(fast_exp(-kInfinity) == 0.0f);
        CHECK(fast_exp(-1e30f) == 0.0f);
        CHECK(fast_exp(kInfinity) == kInfinity);
        CHECK(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
        CHECK(fast_exp(1.5) == std::exp(1.5));
    }

    TEST_CASE("cross_entropy: losses, and logits untouched without backward") {
        ThreadPool pool(2);
        for (int V : {1, 2, 31, 260, 2500}) {
            const size_t rows = 13;
            const std::vector<int32_t> targets = some_targets(rows, V);
            const std::vector<double> logits = random_vector(rows * V, 1, -5, 5);
            std::vector<double> want;
            for (size_t i = 0; i < rows; ++i) {
                double sum = 0;
                const double z_target = targets[i] == kIgnoreTarget ? 0 : logits[i * V + targets[i]];
                for (int v = 0; v < V; ++v) sum += std::exp(logits[i * V + v] - z_target);
                want.push_back(targets[i] == kIgnoreTarget ? 0 : std::log(sum));
            }
            const Outcome<double> got = run(logits, targets, V, 1.0, false, pool);
            CAPTURE(V);
            CHECK(max_error(got.losses, want) < 1e-12);
            CHECK(same_bits(got.logits, logits));
            CHECK(same_bits(run(logits, targets, V, 1.0, true, pool).losses, got.losses));
            const Outcome<float> got_float = run(converted<float>(logits), targets, V, 1.0f, false, pool);
            CHECK(max_error(got_float.losses, want) < 1e-6);
            CHECK(same_bits(run(converted<float>(logits), targets, V, 1.0f, true, pool).losses, got_float.losses));
        }
    }

    TEST_CASE("cross_entropy: gradient against central differences, masked rows exactly zero") {
        ThreadPool pool(2);
        for (int V : {2, 7, 37}) {
            const size_t rows = 7;
            const double dloss = 0.125;
            const std::vector<int32_t> targets = some_targets(rows, V);
            std::vector<double> logits = random_vector(rows * V, 2, -3, 3);
            const auto loss = [&] {
                double sum = 0;
                for (double l : run(logits, targets, V, dloss, false, pool).losses) sum += l * dloss;
                return sum;
            };
            const Outcome<double> got = run(logits, targets, V, dloss, true, pool);
            check_gradient("dlogits", logits, got.logits, loss, 1e-8);
            for (size_t i = 0; i < rows; ++i) {
                if (targets[i] != kIgnoreTarget) continue;
                CHECK(got.losses[i] == 0);
                for (int v = 0; v < V; ++v) REQUIRE(got.logits[i * V + v] == 0);
            }
        }
    }

    TEST_CASE("cross_entropy: float gradients agree with double") {
        ThreadPool pool(2);
        for (int V : {260, 3001}) {
            const size_t rows = 9;
            const std::vector<int32_t> targets = some_targets(rows, V);
            const std::vector<float> logits = random_vector<float>(rows * V, 3, -8, 8);
            CHECK(max_error(run(logits, targets, V, 0.5f, true, pool).logits,
                            run(converted<double>(logits), targets, V, 0.5, true, pool).logits) < 1e-6);
        }
    }

    TEST_CASE("cross_entropy: huge logits stay finite, NaN and infinity show in the loss, masked rows hide them") {
        ThreadPool pool(1);
        const int V = 40;
        std::vector<float> logits = random_vector<float>(V, 4);
        logits[7] = 3e38f;
        logits[20] = -3e38f;
        const Outcome<float> huge = run(logits, {7}, V, 1.0f, true, pool);
        CHECK(huge.losses[0] == 0);
        CHECK(std::all_of(huge.logits.begin(), huge.logits.end(), [](float v) { return v == 0; }));
        logits[20] = -kInfinity;  // a token that can never come
        CHECK(std::isfinite(run(logits, {7}, V, 1.0f, true, pool).losses[0]));
        for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
            for (size_t at : {0, 33, V - 1}) {
                std::vector<float> z = random_vector<float>(V, 5);
                z[at] = bad;
                CHECK_FALSE(std::isfinite(run(z, {3}, V, 1.0f, false, pool).losses[0]));
                const Outcome<float> masked = run(z, {kIgnoreTarget}, V, 1.0f, true, pool);
                CHECK(masked.losses[0] == 0);
                CHECK(std::all_of(masked.logits.begin(), masked.logits.end(), [](float v) { return v == 0; }));
            }
        }
    }

    TEST_CASE("cross_entropy refuses a target outside the vocabulary") {
        ThreadPool pool(2);
        std::vector<float> logits(20), losses(2);
        for (int32_t bad : {-1, 10, -101}) {
            const std::vector<int32_t> targets = {3, bad};
            CHECK_THROWS_WITH_AS(
                ref::cross_entropy<float>(losses.data(), logits.data(), targets.data(), 2, 10, 1.0f, false, pool),
                doctest::Contains("in row 1 is outside the vocabulary of 10"), std::out_of_range);
        }
    }

    TEST_CASE("cross_entropy and sum_losses: the same bits for any pool, and on a stream") {
        ThreadPool one(1), two(2), five(5);
        const int V = 1500;
        const size_t rows = 41;
        const std::vector<int32_t> targets = some_targets(rows, V);
        const std::vector<float> logits = random_vector<float>(rows * V, 6, -4, 4);
        const Outcome<float> want = run(logits, targets, V, 0.1f, true, one);
        for (ThreadPool* pool : {&two, &five}) {
            const Outcome<float> got = run(logits, targets, V, 0.1f, true, *pool);
            CHECK(same_bits(got.losses, want.losses));
            CHECK(same_bits(got.logits, want.logits));
        }

        double expected = 0;
        for (float l : want.losses) expected += l;
        double sum = -1;
        ref::sum_losses(&sum, want.losses.data(), rows, false, two);
        CHECK(sum == expected);
        for (float l : want.losses) expected += l;
        ref::sum_losses(&sum, want.losses.data(), rows, true, two);
        CHECK(sum == expected);
        ref::sum_losses(&sum, want.losses.data(), 0, false, two);
        CHECK(sum == 0);

#if !defined(SLABSTREAM_CUDA)
        Device device;
        Stream stream(device, "compute");
        std::vector<float> losses(rows), z = logits;
        double streamed = 1.5;
        cross_entropy(losses.data(), z.data(), targets.data(), rows, V, 0.1f, true, stream);
        sum_losses(&streamed, losses.data(), rows, true, stream);
        stream.synchronize();
        CHECK(same_bits(losses, want.losses));
        CHECK(same_bits(z, want.logits));
        double reference = 1.5;
        ref::sum_losses(&reference, want.losses.data(), rows, true, one);
        CHECK(streamed == reference);
#endif
    }
}
