// The random generator against the known answers of its authors' library (Random123, kat_vectors). Dropout's mask must
// be a pure function of an element's identity.
#include <doctest/doctest.h>

#include "kernels/dropout.h"
#include "kernels/philox.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

std::vector<uint32_t> draw(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    const PhiloxOut out = philox(key, c0, c1, c2, c3);
    return std::vector<uint32_t>(out.v, out.v + 4);
}

template <class T>
std::vector<T> dropped(const std::vector<T>& x, int B, int T_len, int C, float p, const DropoutKey& key,
                       ThreadPool& pool) {
    Guarded<T> y(x.size());
    ref::dropout(Dropout<T>{.y = y.data(),
                            .x = x.data(),
                            .rows = static_cast<size_t>(B) * T_len,
                            .T_len = T_len,
                            .C = C,
                            .p = p,
                            .key = key},
                 pool);
    CHECK(y.surroundings_untouched());
    return y.values();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("philox4x32-10: known answers") {
        CHECK(draw(0, 0, 0, 0, 0) == std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
        CHECK(draw(~uint64_t{0}, ~0u, ~0u, ~0u, ~0u) ==
              std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
        CHECK(draw(0x299f31d0a4093822, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344) ==
              std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
    }

    TEST_CASE("uniform01 covers [0, 1)") {
        CHECK(uniform01(0) == 0.0f);
        CHECK(uniform01(0xffffffff) == 1.0f - 0x1p-24f);
        CHECK(uniform01(0x80000000) == 0.5f);
    }

    TEST_CASE("dropout: an element is kept, scaled, where its own draw says so") {
        const int B = 2, T_len = 5, C = 37;  // C is no multiple of 4, nor of the kernel's inner width
        const float p = 0.3f;
        const DropoutKey key{.seed = 0x123456789abcdef0, .first_sample = 0x500000007, .layer = 11, .site = 6};
        const std::vector<double> x = random_vector(static_cast<size_t>(B) * T_len * C, 1);
        ThreadPool pool(2);
        const std::vector<double> y = dropped(x, B, T_len, C, p, key, pool);
        for (int b = 0; b < B; ++b) {
            for (int t = 0; t < T_len; ++t) {
                for (int c = 0; c < C; ++c) {
                    const uint64_t sample = key.first_sample + b;
                    const PhiloxOut out =
                        philox(key.seed ^ ((sample >> 32) << 32), c / 4, t, static_cast<uint32_t>(sample), 11 * 32 + 6);
                    const size_t i = (static_cast<size_t>(b) * T_len + t) * C + c;
                    const double want = uniform01(out.v[c % 4]) >= p ? x[i] * (1 / (1 - static_cast<double>(p))) : 0;
                    REQUIRE(y[i] == want);
                }
            }
        }
    }

    TEST_CASE("dropout: the share kept") {
        const int B = 3, T_len = 100, C = 333;
        ThreadPool pool(2);
        const std::vector<float> ones(static_cast<size_t>(B) * T_len * C, 1.0f);
        for (float p : {0.0f, 0.05f, 0.5f, 0.9f}) {
            const std::vector<float> y = dropped(ones, B, T_len, C, p, {.seed = 42}, pool);
            const double n = static_cast<double>(y.size());
            const double kept = n - static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
            CAPTURE(p);
            // five standard deviations of a binomial
            CHECK(std::abs(kept / n - (1 - p)) <= 5 * std::sqrt(p * (1 - p) / n));
            CHECK(std::all_of(y.begin(), y.end(), [&](float v) { return v == 0 || v == 1 / (1 - p); }));
        }
    }

    TEST_CASE("dropout: sample, layer, site, token and seed all matter") {
        const int T_len = 2, C = 64;
        const std::vector<float> ones(T_len * C, 1.0f);
        ThreadPool pool(1);
        const DropoutKey key{.seed = 9, .first_sample = 4, .layer = 2, .site = 3};
        const std::vector<float> base = dropped(ones, 1, T_len, C, 0.5f, key, pool);
        std::vector<DropoutKey> others(6, key);
        others[0].seed = 10;
        others[1].seed = 9 + (uint64_t{1} << 32);
        others[2].first_sample = 5;
        others[3].first_sample = 4 + (uint64_t{1} << 32);
        others[4].layer = 3;
        others[5].site = 4;
        for (const DropoutKey& other : others) CHECK(dropped(ones, 1, T_len, C, 0.5f, other, pool) != base);
        CHECK(std::vector<float>(base.begin(), base.begin() + C) != std::vector<float>(base.begin() + C, base.end()));
    }

    TEST_CASE("dropout: a sample's mask does not depend on the micro-batch it stands in") {
        const int B = 4, T_len = 9, C = 50;
        const size_t row_elems = static_cast<size_t>(T_len) * C;
        const std::vector<float> x = random_vector<float>(B * row_elems, 2);
        ThreadPool pool(2);
        DropoutKey key{.seed = 5, .first_sample = 0xfffffffe};  // crosses into the high bits of the sample index
        const std::vector<float> whole = dropped(x, B, T_len, C, 0.4f, key, pool);
        for (int b = 0; b < B; ++b) {
            const std::vector<float> row(x.begin() + b * row_elems, x.begin() + (b + 1) * row_elems);
            CHECK(same_bits(dropped(row, 1, T_len, C, 0.4f, key, pool),
                            std::vector<float>(whole.begin() + b * row_elems, whole.begin() + (b + 1) * row_elems)));
            ++key.first_sample;
        }
    }

    TEST_CASE("dropout: accumulate, in place, infinite inputs, any number of threads, streams") {
        const int B = 2, T_len = 20, C = 45;
        const size_t n = static_cast<size_t>(B) * T_len * C;
        ThreadPool one(1), two(2), five(5);
        const DropoutKey key{.seed = 77, .first_sample = 3, .layer = 1, .site = 2};
        std::vector<float> x = random_vector<float>(n, 3);
        const std::vector<float> y = dropped(x, B, T_len, C, 0.25f, key, one);
        CHECK(same_bits(dropped(x, B, T_len, C, 0.25f, key, two), y));
        CHECK(same_bits(dropped(x, B, T_len, C, 0.25f, key, five), y));

        const std::vector<float> start = random_vector<float>(n, 4);
        std::vector<float> sum = start, want = start, in_place = x;
        Dropout<float> args{.y = sum.data(),
                            .x = x.data(),
                            .rows = n / C,
                            .T_len = T_len,
                            .C = C,
                            .p = 0.25f,
                            .accumulate = true,
                            .key = key};
        ref::dropout(args, two);
        for (size_t i = 0; i < n; ++i) want[i] += y[i];
        CHECK(max_error(sum, want) < 1e-6);
        for (size_t i = 0; i < n; ++i) {
            if (y[i] == 0) REQUIRE(sum[i] == start[i]);
        }

        args = {
            .y = in_place.data(), .x = in_place.data(), .rows = n / C, .T_len = T_len, .C = C, .p = 0.25f, .key = key};
        ref::dropout(args, two);
        CHECK(same_bits(in_place, y));

        const std::vector<float> infinite(n, std::numeric_limits<float>::infinity());
        const std::vector<float> masked = dropped(infinite, B, T_len, C, 0.25f, key, two);
        CHECK(std::none_of(masked.begin(), masked.end(), [](float v) { return std::isnan(v); }));
        sum = start;
        args.y = sum.data();
        args.x = infinite.data();
        args.accumulate = true;
        ref::dropout(args, two);
        for (size_t i = 0; i < n; ++i) REQUIRE(sum[i] == (y[i] == 0 ? start[i] : infinite[i]));

#if !defined(SLABSTREAM_CUDA)
        Device device;
        Stream stream(device, "compute");
        std::vector<float> streamed(n);
        dropout({.y = streamed.data(), .x = x.data(), .rows = n / C, .T_len = T_len, .C = C, .p = 0.25f, .key = key},
                stream);
        stream.synchronize();
        CHECK(same_bits(streamed, y));
#endif
    }

    TEST_CASE("dropout: float agrees with double") {
        const std::vector<float> x = random_vector<float>(3 * 7 * 21, 5);
        ThreadPool pool(2);
        CHECK(max_error(dropped(x, 3, 7, 21, 0.1f, {.seed = 1}, pool),
                        dropped(converted<double>(x), 3, 7, 21, 0.1f, {.seed = 1}, pool)) < 1e-6);
    }
}
