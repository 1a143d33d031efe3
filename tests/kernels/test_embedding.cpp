// Token and position embeddings: lookup, the scatter of gradients with repeated tokens, and document boundaries.
#include <doctest/doctest.h>

#include "kernels/embedding.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

// Two rows of seven tokens; token 3 comes often, 0 and V - 1 occur, 5 never does. The second row has three documents.
constexpr int kB = 2, kT = 7, kC = 131, kV = 11, kPositions = 9;  // C crosses the tiles of backward
constexpr size_t kRows = kB * kT;
const std::vector<int32_t> kTokens = {3, 3, 0, 10, 3, 1, 2, 3, 4, 10, 3, 6, 7, 3};
const std::vector<int32_t> kDocStart = {0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 3, 3, 3};

template <class T>
std::vector<T> embedded(const std::vector<T>& wte, const std::vector<T>* wpe, const int32_t* doc_start,
                        ThreadPool& pool) {
    Guarded<T> x(kRows * kC);
    ref::embedding_forward(EmbeddingForward<T>{x.data(), kTokens.data(), doc_start, wte.data(),
                                               wpe ? wpe->data() : nullptr, kRows, kT, kC},
                           pool);
    CHECK(x.surroundings_untouched());
    return x.values();
}

template <class T>
struct Gradients {
    std::vector<T> dwte, dwpe;
};

// Adds to the given starting values.
template <class T>
Gradients<T> backward(const Gradients<T>& start, const std::vector<T>& dx, const int32_t* doc_start, ThreadPool& pool) {
    Guarded<T> dwte(start.dwte), dwpe(start.dwpe);
    ref::embedding_backward(
        EmbeddingBackward<T>{dwte.data(), dwpe.data(), dx.data(), kTokens.data(), doc_start, kRows, kT, kC, kV}, pool);
    CHECK(dwte.surroundings_untouched());
    CHECK(dwpe.surroundings_untouched());
    return {dwte.values(), dwpe.values()};
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("embedding_forward: tokens, positions, documents") {
        ThreadPool pool(2);
        const std::vector<double> wte = random_vector(kV * kC, 1), wpe = random_vector(kPositions * kC, 2);
        const int32_t* const starts[] = {nullptr, kDocStart.data()};
        for (const int32_t* doc_start : starts) {
            const std::vector<double> plain = embedded<double>(wte, nullptr, doc_start, pool);
            const std::vector<double> x = embedded(wte, &wpe, doc_start, pool);
            for (size_t row = 0; row < kRows; ++row) {
                const size_t position = row % kT - (doc_start ? doc_start[row] : 0);
                for (size_t c = 0; c < kC; ++c) {
                    const double token = wte[kTokens[row] * kC + c];
                    REQUIRE(plain[row * kC + c] == token);
                    REQUIRE(x[row * kC + c] == token + wpe[position * kC + c]);
                }
            }
        }
    }

    TEST_CASE("embedding gradients against central differences") {
        ThreadPool pool(2);
        std::vector<double> wte = random_vector(kV * kC, 3), wpe = random_vector(kPositions * kC, 4);
        const std::vector<double> dx = random_vector(kRows * kC, 5);
        const auto loss = [&] {
            std::vector<double> x = embedded(wte, &wpe, kDocStart.data(), pool);
            return dot(x, dx);
        };
        const Gradients<double> zero{std::vector<double>(wte.size()), std::vector<double>(wpe.size())};
        const Gradients<double> got = backward(zero, dx, kDocStart.data(), pool);
        check_gradient("dwte", wte, got.dwte, loss, 1e-9);
        check_gradient("dwpe", wpe, got.dwpe, loss, 1e-9);
    }

    TEST_CASE("embedding_backward adds, takes null outputs, has the same bits for any pool") {
        ThreadPool one(1), two(2), five(5);
        const Gradients<float> start{random_vector<float>(kV * kC, 6), random_vector<float>(kPositions * kC, 7)};
        const std::vector<float> dx = random_vector<float>(kRows * kC, 8);
        Gradients<double> want{converted<double>(start.dwte), converted<double>(start.dwpe)};
        for (size_t row = 0; row < kRows; ++row) {
            for (size_t c = 0; c < kC; ++c) {
                want.dwte[kTokens[row] * kC + c] += dx[row * kC + c];
                want.dwpe[(row % kT - kDocStart[row]) * kC + c] += dx[row * kC + c];
            }
        }
        const Gradients<float> got = backward(start, dx, kDocStart.data(), one);
        CHECK(max_error(got.dwte, want.dwte) < 1e-6);
        CHECK(max_error(got.dwpe, want.dwpe) < 1e-6);
        CHECK(same_bits(std::vector<float>(got.dwte.begin() + 5 * kC, got.dwte.begin() + 6 * kC),
                        std::vector<float>(start.dwte.begin() + 5 * kC, start.dwte.begin() + 6 * kC)));
        for (ThreadPool* pool : {&two, &five}) {
            const Gradients<float> other = backward(start, dx, kDocStart.data(), *pool);
            CHECK(same_bits(other.dwte, got.dwte));
            CHECK(same_bits(other.dwpe, got.dwpe));
        }

        EmbeddingBackward<float> args{nullptr, nullptr, dx.data(), kTokens.data(), nullptr, kRows, kT, kC, kV};
        ref::embedding_backward(args, two);  // nothing to write: only must not crash
        std::vector<float> only_wte = start.dwte;
        args.dwte = only_wte.data();
        args.doc_start = kDocStart.data();
        ref::embedding_backward(args, two);
        CHECK(same_bits(only_wte, got.dwte));
    }

    TEST_CASE("embedding_backward refuses a token outside the vocabulary") {
        ThreadPool pool(1);
        std::vector<float> dwte(kV * kC), dx(kC);
        for (int32_t token : {-1, kV}) {
            const EmbeddingBackward<float> args{dwte.data(), nullptr, dx.data(), &token, nullptr, 1, 1, kC, kV};
            CHECK_THROWS_WITH_AS(ref::embedding_backward(args, pool), doctest::Contains("vocabulary of 11"),
                                 std::out_of_range);
        }
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("embedding on a stream gives the bits of the reference") {
        Device device;
        Stream stream(device, "compute");
        ThreadPool pool(1);
        const std::vector<float> wte = random_vector<float>(kV * kC, 9),
                                 wpe = random_vector<float>(kPositions * kC, 10);
        const std::vector<float> dx = random_vector<float>(kRows * kC, 11);
        std::vector<float> x(kRows * kC), dwte = wte, dwpe = wpe;
        embedding_forward({x.data(), kTokens.data(), kDocStart.data(), wte.data(), wpe.data(), kRows, kT, kC}, stream);
        embedding_backward({dwte.data(), dwpe.data(), dx.data(), kTokens.data(), kDocStart.data(), kRows, kT, kC, kV},
                           stream);
        stream.synchronize();
        CHECK(same_bits(x, embedded(wte, &wpe, kDocStart.data(), pool)));
        const Gradients<float> want = backward(Gradients<float>{wte, wpe}, dx, kDocStart.data(), pool);
        CHECK(same_bits(dwte, want.dwte));
        CHECK(same_bits(dwpe, want.dwpe));
    }
#endif
}
