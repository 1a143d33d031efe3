// Attention over a key/value cache against the plain formula in double, and against attention over the whole sequence.
// Queries that come a few at a time must give the same results as all at once.
#include <doctest/doctest.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "tests/cached_attention.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

using Shape = CachedShape;

const Shape kShapes[] = {{1, 1, 1, 1, 6, 0},   {1, 127, 3, 1, 20, 1}, {1, 128, 4, 2, 8, 0},  {1, 129, 2, 2, 6, 5},
                         {7, 7, 6, 2, 5, 2},   {5, 300, 3, 3, 20, 0}, {33, 40, 4, 1, 6, 3},  {32, 160, 2, 1, 20, 0},
                         {65, 65, 2, 2, 7, 1}, {64, 257, 6, 3, 8, 0}, {130, 400, 1, 1, 6, 4}};

struct Inputs {
    std::vector<double> q, k, v;  // q [Tq, NH HD], k and v [n, NKV HD]
    explicit Inputs(const Shape& s, double score_scale = 2)
        : q(random_values(static_cast<size_t>(s.Tq) * s.q_cols(), 1, score_scale)),
          k(random_values(static_cast<size_t>(s.n) * s.kv_cols(), 2, score_scale)),
          v(random_values(static_cast<size_t>(s.n) * s.kv_cols(), 3)) {}
};

std::vector<double> formula(const Shape& s, const Inputs& in) {
    std::vector<double> out(in.q.size());
    for (int i = 0; i < s.Tq; ++i)
        for (int h = 0; h < s.NH; ++h) {
            const double* q = &in.q[i * s.q_cols() + h * s.HD];
            const size_t kv_at = static_cast<size_t>(h / (s.NH / s.NKV)) * s.HD;
            std::vector<double> p(s.n - s.Tq + i + 1);
            double largest = -INFINITY, sum = 0;
            for (size_t key = 0; key < p.size(); ++key) {
                for (int c = 0; c < s.HD; ++c) p[key] += s.scale() * q[c] * in.k[key * s.kv_cols() + kv_at + c];
                largest = std::max(largest, p[key]);
            }
            for (double& x : p) sum += x = std::exp(x - largest);
            for (size_t key = 0; key < p.size(); ++key)
                for (int c = 0; c < s.HD; ++c)
                    out[i * s.q_cols() + h * s.HD + c] += p[key] / sum * in.v[key * s.kv_cols() + kv_at + c];
        }
    return out;
}

template <class T>
std::vector<double> cached(const Shape& s, const Inputs& in, ThreadPool& pool) {
    Guarded<T> q(s.Tq, s.q_cols(), s.q_cols() + s.padding, s.padding / 2), out(s.Tq, s.q_cols());
    Guarded<T> k(s.n, s.kv_cols()), v(s.n, s.kv_cols());
    q.set(in.q), k.set(in.k), v.set(in.v);
    ref::attention_cached(cached_arguments<T>(s, out.data(), q.data(), q.ld(), k.data(), v.data()), pool);
    CHECK(out.surroundings_untouched());
    return out.doubles();
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("cached attention is its formula") {
        ThreadPool pool(2);
        for (const Shape& s : kShapes) {
            CAPTURE(s.Tq);
            CAPTURE(s.n);
            const Inputs in(s);
            CHECK(norm_error(cached<double>(s, in, pool), formula(s, in)) < 1e-13);
            CHECK(norm_error(cached<float>(s, in, pool), formula(s, in)) < 3e-6);
        }
        const Shape steep{9, 200, 2, 1, 20, 0};
        const Inputs in(steep, 14);  // scores beyond 80
        CHECK(norm_error(cached<double>(steep, in, pool), formula(steep, in)) < 1e-11);
        CHECK(norm_error(cached<float>(steep, in, pool), formula(steep, in)) < 3e-4);
    }

    TEST_CASE("cached attention: rows appended and attended to in pieces give what the whole sequence gives") {
        ThreadPool pool(2);
        const int T_len = 150, NH = 6, NKV = 2, HD = 10;
        const size_t QC = NH * HD, KC = NKV * HD, ld = QC + 2 * KC + 3;
        Guarded<double> qkv(T_len, QC + 2 * KC, ld), whole(T_len, QC), pieces(T_len, QC), lse(NH, T_len);
        Guarded<double> k_cache(T_len, KC), v_cache(T_len, KC);
        qkv.set(random_values(T_len * (QC + 2 * KC), 1));
        const double *q = qkv.data(), *k = q + QC, *v = k + KC;
        ref::attention_forward(AttentionForward<double>{.out = whole.data(),
                                                        .lse = lse.data(),
                                                        .q = q,
                                                        .k = k,
                                                        .v = v,
                                                        .doc_start = nullptr,
                                                        .B = 1,
                                                        .T_len = T_len,
                                                        .NH = NH,
                                                        .NKV = NKV,
                                                        .HD = HD,
                                                        .ld_q = ld,
                                                        .ld_k = ld,
                                                        .ld_v = ld,
                                                        .scale = Shape{1, 1, NH, NKV, HD, 0}.scale()},
                               pool);
        int first = 0;
        for (const int rows : {40, 1, 1, 33, 60, 15}) {
            const Shape s{rows, first + rows, NH, NKV, HD, 0};
            const size_t at = static_cast<size_t>(first);
            ref::cache_append(append_arguments<double>(s, k_cache.data(), v_cache.data(), k, v, ld, at, rows), pool);
            ref::attention_cached(
                cached_arguments<double>(s, pieces.data() + at * QC, q + at * ld, ld, k_cache.data(), v_cache.data()),
                pool);
            first += rows;
        }
        REQUIRE(first == T_len);
        CHECK(norm_error(pieces.doubles(), whole.doubles()) < 1e-13);
        CHECK(k_cache.surroundings_untouched());
        CHECK(v_cache.surroundings_untouched());
    }

    TEST_CASE("cached attention: bits do not depend on the number of threads") {
        for (const Shape& s : {Shape{1, 300, 8, 2, 16, 0}, Shape{70, 200, 3, 1, 20, 1}}) {
            const Inputs in(s);
            CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return cached<float>(s, in, pool); }));
        }
    }
}
