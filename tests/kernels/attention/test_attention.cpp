// Tiled attention against the plain formula that holds T x T, in double precision; gradients against central
// differences; shapes that cross the borders of 64-query and 128-key tiles.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "kernels/attention/attention.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

enum class Documents { one, single_tokens, at_tile_borders, growing };

struct Shape {
    int B, T_len, NH, NKV, HD;
    Documents documents;
    size_t padding;  // columns beside each matrix; differs from matrix to matrix, so that their strides do

    size_t rows() const { return static_cast<size_t>(B) * T_len; }
    size_t q_cols() const { return static_cast<size_t>(NH) * HD; }
    size_t kv_cols() const { return static_cast<size_t>(NKV) * HD; }
    float scale() const { return 1 / std::sqrt(static_cast<float>(HD)); }
};

const Shape kShapes[] = {
    {1, 1, 1, 1, 6, Documents::one, 0},
    {2, 2, 3, 1, 20, Documents::one, 3},
    {3, 37, 2, 2, 6, Documents::growing, 0},
    {1, 70, 3, 3, 20, Documents::single_tokens, 1},
    {2, 64, 2, 1, 8, Documents::one, 0},
    {1, 65, 4, 2, 6, Documents::growing, 2},
    {1, 128, 1, 1, 20, Documents::one, 0},
    {2, 130, 6, 2, 6, Documents::at_tile_borders, 5},
    {1, 257, 3, 1, 20, Documents::at_tile_borders, 0},
    {1, 300, 2, 2, 6, Documents::growing, 1},
    {1, 400, 1, 1, 20, Documents::one, 0},
};

// [B, T], empty for one document a row
std::vector<int32_t> doc_start_of(const Shape& s) {
    std::vector<int32_t> doc_start;
    if (s.documents == Documents::one) return doc_start;
    for (int b = 0; b < s.B; ++b) {
        int start = 0, length = 1;
        for (int t = 0; t < s.T_len; ++t) {
            const bool next = s.documents == Documents::single_tokens     ? true
                              : s.documents == Documents::at_tile_borders ? t % 64 == 0 && (t + b) % 3 != 0
                                                                          : t == start + length;
            if (next && t > 0) {
                start = t;
                length += 3 + b;
            }
            doc_start.push_back(start);
        }
    }
    return doc_start;
}

struct Inputs {
    std::vector<double> q, k, v, dout;  // [rows, heads * HD], dense
    std::vector<int32_t> doc_start;
    explicit Inputs(const Shape& s, double score_scale = 2)
        : q(random_values(s.rows() * s.q_cols(), 1, score_scale)),
          k(random_values(s.rows() * s.kv_cols(), 2, score_scale)),
          v(random_values(s.rows() * s.kv_cols(), 3)),
          dout(random_values(s.rows() * s.q_cols(), 4)),
          doc_start(doc_start_of(s)) {}
};

struct Results {
    std::vector<double> out, lse, dq, dk, dv;
    std::vector<double> joined() const {
        std::vector<double> all;
        for (const auto* part : {&out, &lse, &dq, &dk, &dv}) all.insert(all.end(), part->begin(), part->end());
        return all;
    }
};

// Arguments and memory of one call each way, strided and guarded.
template <class T>
struct Call {
    Guarded<T> q, k, v, dq, dk, dv, out, dout, lse, delta;
    AttentionForward<T> forward;
    AttentionBackward<T> backward;

    Call(const Shape& s, const Inputs& in)
        : q(s.rows(), s.q_cols(), s.q_cols() + s.padding, s.padding / 2),
          k(s.rows(), s.kv_cols(), s.kv_cols() + 2 * s.padding, s.padding),
          v(s.rows(), s.kv_cols(), s.kv_cols() + 3 * s.padding, 0),
          dq(s.rows(), s.q_cols(), s.q_cols() + 4 * s.padding, s.padding),
          dk(s.rows(), s.kv_cols(), s.kv_cols() + 5 * s.padding, 2 * s.padding),
          dv(s.rows(), s.kv_cols(), s.kv_cols() + 6 * s.padding, s.padding),
          out(s.rows(), s.q_cols()),
          dout(s.rows(), s.q_cols()),
          lse(s.B * s.NH, s.T_len),
          delta(s.B * s.NH, s.T_len) {
        q.set(in.q);
        k.set(in.k);
        v.set(in.v);
        dout.set(in.dout);
        const int32_t* doc_start = in.doc_start.empty() ? nullptr : in.doc_start.data();
        forward = {.out = out.data(),
                   .lse = lse.data(),
                   .q = q.data(),
                   .k = k.data(),
                   .v = v.data(),
                   .doc_start = doc_start,
                   .B = s.B,
                   .T_len = s.T_len,
                   .NH = s.NH,
                   .NKV = s.NKV,
                   .HD = s.HD,
                   .ld_q = q.ld(),
                   .ld_k = k.ld(),
                   .ld_v = v.ld(),
                   .scale = s.scale()};
        backward = {.dq = dq.data(),
                    .dk = dk.data(),
                    .dv = dv.data(),
                    .delta = delta.data(),
                    .dout = dout.data(),
                    .out = out.data(),
                    .lse = lse.data(),
                    .q = q.data(),
                    .k = k.data(),
                    .v = v.data(),
                    .doc_start = doc_start,
                    .B = s.B,
                    .T_len = s.T_len,
                    .NH = s.NH,
                    .NKV = s.NKV,
                    .HD = s.HD,
                    .ld_dq = dq.ld(),
                    .ld_dk = dk.ld(),
                    .ld_dv = dv.ld(),
                    .ld_q = q.ld(),
                    .ld_k = k.ld(),
                    .ld_v = v.ld(),
                    .scale = s.scale(),
                    .workspace = nullptr};
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    Results results() const {
        for (const Guarded<T>* m : {&q, &k, &v, &dq, &dk, &dv, &out, &dout, &lse, &delta}) {
            CHECK(m->surroundings_untouched());
        }
        return {out.doubles(), lse.doubles(), dq.doubles(), dk.doubles(), dv.doubles()};
    }
};

template <class T>
Results tiled(const Shape& s, const Inputs& in, ThreadPool& pool) {
    Call<T> call(s, in);
    ref::attention_forward(call.forward, pool);
    ref::attention_backward(call.backward, pool);
    return call.results();
}

// One query row of one head, from the formula: p[s] for the keys it sees, its output and log-sum-exp.
std::vector<double> query_row(const Shape& s, const Inputs& in, int b, int h, int t, double* out, double* lse) {
    const int kv = h / (s.NH / s.NKV), first = in.doc_start.empty() ? 0 : in.doc_start[b * s.T_len + t];
    const double* q = &in.q[(static_cast<size_t>(b) * s.T_len + t) * s.q_cols() + h * s.HD];
    std::vector<double> p(s.T_len, 0.0);
    double largest = -1e300, sum = 0;
    for (int key = first; key <= t; ++key) {
        const double* k = &in.k[(static_cast<size_t>(b) * s.T_len + key) * s.kv_cols() + kv * s.HD];
        double score = 0;
        for (int c = 0; c < s.HD; ++c) score += q[c] * k[c];
        p[key] = score * s.scale();
        largest = std::max(largest, p[key]);
    }
    for (int key = first; key <= t; ++key) sum += p[key] = std::exp(p[key] - largest);
    std::fill(out, out + s.HD, 0.0);
    for (int key = first; key <= t; ++key) {
        p[key] /= sum;
        const double* v = &in.v[(static_cast<size_t>(b) * s.T_len + key) * s.kv_cols() + kv * s.HD];
        for (int c = 0; c < s.HD; ++c) out[c] += p[key] * v[c];
    }
    *lse = largest + std::log(sum);
    return p;
}

Results formula(const Shape& s, const Inputs& in) {
    Results r{std::vector<double>(in.q.size()), std::vector<double>(static_cast<size_t>(s.B) * s.NH * s.T_len),
              std::vector<double>(in.q.size()), std::vector<double>(in.k.size()), std::vector<double>(in.v.size())};
    for (int b = 0; b < s.B; ++b) {
        for (int h = 0; h < s.NH; ++h) {
            for (int t = 0; t < s.T_len; ++t) {
                const size_t at = (static_cast<size_t>(b) * s.T_len + t) * s.q_cols() + h * s.HD;
                const std::vector<double> p =
                    query_row(s, in, b, h, t, &r.out[at], &r.lse[(static_cast<size_t>(b) * s.NH + h) * s.T_len + t]);
                double delta = 0;
                for (int c = 0; c < s.HD; ++c) delta += in.dout[at + c] * r.out[at + c];
                for (int key = 0; key <= t; ++key) {
                    const size_t kv_at =
                        (static_cast<size_t>(b) * s.T_len + key) * s.kv_cols() + h / (s.NH / s.NKV) * s.HD;
                    double dp = 0;
                    for (int c = 0; c < s.HD; ++c) dp += in.dout[at + c] * in.v[kv_at + c];
                    const double ds = s.scale() * p[key] * (dp - delta);
                    for (int c = 0; c < s.HD; ++c) {
                        r.dv[kv_at + c] += p[key] * in.dout[at + c];
                        r.dk[kv_at + c] += ds * in.q[at + c];
                        r.dq[at + c] += ds * in.k[kv_at + c];
                    }
                }
            }
        }
    }
    return r;
}

void check_close(const Results& got, const Results& expected, double tolerance) {
    CHECK(norm_error(got.out, expected.out) < tolerance);
    CHECK(norm_error(got.lse, expected.lse) < tolerance);
    CHECK(norm_error(got.dq, expected.dq) < tolerance);
    CHECK(norm_error(got.dk, expected.dk) < tolerance);
    CHECK(norm_error(got.dv, expected.dv) < tolerance);
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("attention is its formula, forward and backward") {
        ThreadPool pool(2);
        for (const Shape& s : kShapes) {
            CAPTURE(s.T_len);
            const Inputs in(s);
            const Results expected = formula(s, in);
            check_close(tiled<double>(s, in, pool), expected, 1e-12);
            check_close(tiled<float>(s, in, pool), expected, 3e-6);
        }
    }

    TEST_CASE("attention's gradients: central differences") {
        ThreadPool pool(1);
        for (const Shape& s : kShapes) {
            if (s.T_len > 130) continue;
            CAPTURE(s.T_len);
            Inputs in(s);
            const Results got = tiled<double>(s, in, pool);
            const auto loss = [&] {
                Call<double> call(s, in);
                ref::attention_forward(call.forward, pool);
                return dot(call.out.doubles(), in.dout);
            };
            const size_t elems = s.T_len > 100 ? 6 : 16;
            // with one key a row, p is 1 whatever q and k are
            const bool one_key = s.T_len == 1 || s.documents == Documents::single_tokens;
            if (one_key) {
                for (const double d : got.dq) CHECK(std::abs(d) < 1e-14);
                for (const double d : got.dk) CHECK(std::abs(d) < 1e-14);
            } else {
                CHECK(gradient_error(in.q, got.dq, loss, elems) < 1e-6);
                CHECK(gradient_error(in.k, got.dk, loss, elems) < 1e-6);
            }
            CHECK(gradient_error(in.v, got.dv, loss, elems) < 1e-6);
        }
    }

    TEST_CASE("attention with scores of 80 and beyond stays finite and right") {
        ThreadPool pool(2);
        for (const Documents documents : {Documents::one, Documents::growing}) {
            const Shape s{1, 200, 2, 1, 20, documents, 0};
            const Inputs in(s, 14);
            const Results expected = formula(s, in);
            double highest = 0;
            for (const double l : expected.lse) highest = std::max(highest, std::abs(l));
            REQUIRE(highest > 80);
            check_close(tiled<double>(s, in, pool), expected, 1e-11);
            check_close(tiled<float>(s, in, pool), expected, 3e-4);
        }
    }

    TEST_CASE("attention: bits do not depend on the number of threads") {
        const Shape few_heads{1, 400, 2, 1, 20, Documents::growing, 0};  // several strips of keys
        const Shape many_heads{4, 150, 8, 4, 6, Documents::one, 1};      // one strip
        for (const Shape& s : {few_heads, many_heads}) {
            const Inputs in(s);
            CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return tiled<float>(s, in, pool).joined(); }));
        }
    }

    TEST_CASE("attention: memory is linear in T") {
        const Shape s{1, 4096, 1, 1, 8, Documents::one, 0};  // T x T floats would be 64 MiB
        const Inputs in(s);
        // The peak since it was last reset, so that what earlier cases took does not hide what this one takes.
        const auto peak_bytes = [] {
            std::ifstream status("/proc/self/status");
            size_t kibibytes = 0;
            for (std::string word; status >> word;)
                if (word == "VmHWM:") status >> kibibytes;
            return kibibytes * 1024;
        };
        ThreadPool pool(2);
        const auto reset_peak = [] {
            return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush);
        };
        if (!reset_peak()) return;  // a system that does not tell
        const size_t before_bytes = peak_bytes();
        std::vector<std::byte> touched(size_t{64} << 20, std::byte{1});
        REQUIRE(peak_bytes() >= before_bytes + (size_t{60} << 20));  // it does see what is taken
        touched = {};
        reset_peak();
        const size_t reset_bytes = peak_bytes();
        const Results got = tiled<float>(s, in, pool);
        CHECK(peak_bytes() - reset_bytes < size_t{32} << 20);
        for (const int t : {0, 2049, 4095}) {
            std::vector<double> out(s.HD);
            double lse = 0;
            query_row(s, in, 0, 0, t, out.data(), &lse);
            const auto row = got.out.begin() + static_cast<size_t>(t) * s.HD;
            CHECK(norm_error(std::vector<double>(row, row + s.HD), out) < 1e-5);
            CHECK(std::abs(got.lse[t] - lse) < 1e-5);
        }
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("attention: what a stream computes is what the reference computes") {
        const Shape s{2, 130, 6, 2, 6, Documents::at_tile_borders, 5};
        const Inputs in(s);
        // Dirty memory of exactly the planned size: copies of dq must be cleared, and stay inside.
        const size_t workspace_bytes = attention_backward_workspace_bytes(s.B, s.T_len, s.NH, s.NKV, s.HD);
        REQUIRE(workspace_bytes != 0);
        Guarded<float> workspace(1, workspace_bytes / sizeof(float));
        workspace.set(std::vector<double>(workspace_bytes / sizeof(float), NAN));
        Device device({.threads = 2});
        Stream stream(device, "compute");
        Call<float> call(s, in);
        call.backward.workspace = workspace.data();
        attention_forward(call.forward, stream);
        attention_backward(call.backward, stream);
        stream.synchronize();
        ThreadPool pool(1);
        CHECK(same_bits(call.results().joined(), tiled<float>(s, in, pool).joined()));
        CHECK(workspace.surroundings_untouched());
    }
#endif
}
