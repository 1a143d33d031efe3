// LayerNorm, RMSNorm and the per-head norm against their formulas and central differences in double precision.
#include <doctest/doctest.h>

#include <cmath>

#include "kernels/norm.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

struct Shape {
    size_t rows;
    int C;
};
// fewer and more rows than there are tiles of partial sums; rows shorter and longer than the lanes
const Shape kShapes[] = {{1, 1}, {1, 7}, {2, 16}, {37, 20}, {70, 33}, {130, 6}, {64, 15}};
constexpr float kEps = 1e-5f;

struct Inputs {
    std::vector<double> x, w, b, dy, dx_before, dw_before, db_before;
    explicit Inputs(size_t rows, size_t C)
        : x(random_values(rows * C, 1, 2)),
          w(random_values(C, 2)),
          b(random_values(C, 3)),
          dy(random_values(rows * C, 4)),
          dx_before(random_values(rows * C, 5)),
          dw_before(random_values(C, 6)),
          db_before(random_values(C, 7)) {}
};

// The outputs of a forward or backward call, in the order of its struct.
using Results = std::vector<std::vector<double>>;

std::vector<double> joined(const Results& results) {
    std::vector<double> all;
    for (const std::vector<double>& r : results) all.insert(all.end(), r.begin(), r.end());
    return all;
}

// y, mean (LayerNorm only), rstd
template <class T>
Results norm_forward(bool layernorm, const Shape& s, const Inputs& in, ThreadPool& pool) {
    const size_t C = static_cast<size_t>(s.C);
    Guarded<T> y(s.rows, C), mean(1, s.rows), rstd(1, s.rows), x(s.rows, C), w(1, C), b(1, C);
    x.set(in.x);
    w.set(in.w);
    b.set(in.b);
    const NormForward<T> a{.y = y.data(),
                           .mean = layernorm ? mean.data() : nullptr,
                           .rstd = rstd.data(),
                           .x = x.data(),
                           .w = w.data(),
                           .b = layernorm ? b.data() : nullptr,
                           .rows = s.rows,
                           .C = s.C,
                           .eps = kEps};
    if (layernorm) {
        ref::layernorm_forward(a, pool);
    } else {
        ref::rmsnorm_forward(a, pool);
    }
    CHECK(y.surroundings_untouched());
    CHECK(mean.surroundings_untouched());
    CHECK(rstd.surroundings_untouched());
    if (layernorm) return {y.doubles(), mean.doubles(), rstd.doubles()};
    return {y.doubles(), rstd.doubles()};
}

// dx, dw, db as left in memory; with_dw false: null for dw and db, which then are what they were
template <class T>
Results norm_backward(bool layernorm, const Shape& s, const Inputs& in, bool with_dw, ThreadPool& pool) {
    const size_t C = static_cast<size_t>(s.C);
    const Results forward = norm_forward<T>(layernorm, s, in, pool);
    Guarded<T> dx(s.rows, C), dw(1, C), db(1, C), dy(s.rows, C), x(s.rows, C), w(1, C), mean(1, s.rows),
        rstd(1, s.rows);
    dx.set(in.dx_before);
    dw.set(in.dw_before);
    db.set(in.db_before);
    dy.set(in.dy);
    x.set(in.x);
    w.set(in.w);
    if (layernorm) mean.set(forward[1]);
    rstd.set(forward.back());
    const NormBackward<T> a{.dx = dx.data(),
                            .dw = with_dw ? dw.data() : nullptr,
                            .db = with_dw && layernorm ? db.data() : nullptr,
                            .dy = dy.data(),
                            .x = x.data(),
                            .w = w.data(),
                            .mean = layernorm ? mean.data() : nullptr,
                            .rstd = rstd.data(),
                            .rows = s.rows,
                            .C = s.C};
    if (layernorm) {
        ref::layernorm_backward(a, pool);
    } else {
        ref::rmsnorm_backward(a, pool);
    }
    CHECK(dx.surroundings_untouched());
    CHECK(dw.surroundings_untouched());
    CHECK(db.surroundings_untouched());
    return {dx.doubles(), dw.doubles(), db.doubles()};
}

std::vector<double> minus(std::vector<double> a, const std::vector<double>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return a;
}

// y, straight from the formula
std::vector<double> norm_formula(bool layernorm, const Shape& s, const Inputs& in) {
    std::vector<double> y(in.x.size());
    for (size_t row = 0; row < s.rows; ++row) {
        const double* x = &in.x[row * s.C];
        double mean = 0, variance = 0;
        for (int c = 0; layernorm && c < s.C; ++c) mean += x[c] / s.C;
        for (int c = 0; c < s.C; ++c) variance += (x[c] - mean) * (x[c] - mean) / s.C;
        for (int c = 0; c < s.C; ++c) {
            y[row * s.C + c] = (x[c] - mean) / std::sqrt(variance + kEps) * in.w[c] + (layernorm ? in.b[c] : 0);
        }
    }
    return y;
}

struct HeadShape {
    size_t rows;
    int NH, NKV, HD;
    size_t ld, first;
    size_t heads() const { return static_cast<size_t>(NH) + NKV; }
    size_t cols() const { return heads() * HD; }
};
const HeadShape kHeadShapes[] = {
    {1, 1, 1, 6, 0, 0}, {37, 3, 1, 20, 101, 7}, {70, 4, 2, 6, 36, 0}, {130, 2, 2, 33, 140, 4}};

struct HeadInputs {
    std::vector<double> x, w_q, w_k, dy, dw_q_before, dw_k_before;
    explicit HeadInputs(const HeadShape& s)
        : x(random_values(s.rows * s.cols(), 1, 2)),
          w_q(random_values(s.HD, 2)),
          w_k(random_values(s.HD, 3)),
          dy(random_values(s.rows * s.cols(), 4)),
          dw_q_before(random_values(s.HD, 5)),
          dw_k_before(random_values(s.HD, 6)) {}
};

// y, rstd
template <class T>
Results head_forward(const HeadShape& s, const HeadInputs& in, ThreadPool& pool) {
    Guarded<T> y(s.rows, s.cols()), rstd(s.rows, s.heads()), x(s.rows, s.cols(), s.ld, s.first), w_q(1, s.HD),
        w_k(1, s.HD);
    x.set(in.x);
    w_q.set(in.w_q);
    w_k.set(in.w_k);
    ref::head_norm_forward(HeadNormForward<T>{.y = y.data(),
                                              .rstd = rstd.data(),
                                              .x = x.data(),
                                              .w_q = w_q.data(),
                                              .w_k = w_k.data(),
                                              .rows = s.rows,
                                              .NH = s.NH,
                                              .NKV = s.NKV,
                                              .HD = s.HD,
                                              .ld_y = y.ld(),
                                              .ld_x = x.ld(),
                                              .eps = kEps},
                           pool);
    CHECK(y.surroundings_untouched());
    CHECK(rstd.surroundings_untouched());
    return {y.doubles(), rstd.doubles()};
}

// dx, dw_q, dw_k
template <class T>
Results head_backward(const HeadShape& s, const HeadInputs& in, bool in_place, bool with_dw, ThreadPool& pool) {
    const Results forward = head_forward<T>(s, in, pool);
    Guarded<T> dx(s.rows, s.cols(), s.ld, s.first), dy(s.rows, s.cols(), s.ld, s.first), x(s.rows, s.cols()),
        w_q(1, s.HD), w_k(1, s.HD), rstd(s.rows, s.heads()), dw_q(1, s.HD), dw_k(1, s.HD);
    dy.set(in.dy);
    x.set(in.x);
    w_q.set(in.w_q);
    w_k.set(in.w_k);
    rstd.set(forward[1]);
    dw_q.set(in.dw_q_before);
    dw_k.set(in.dw_k_before);
    Guarded<T>& result = in_place ? dy : dx;
    ref::head_norm_backward(HeadNormBackward<T>{.dx = result.data(),
                                                .dw_q = with_dw ? dw_q.data() : nullptr,
                                                .dw_k = with_dw ? dw_k.data() : nullptr,
                                                .dy = dy.data(),
                                                .x = x.data(),
                                                .w_q = w_q.data(),
                                                .w_k = w_k.data(),
                                                .rstd = rstd.data(),
                                                .rows = s.rows,
                                                .NH = s.NH,
                                                .NKV = s.NKV,
                                                .HD = s.HD,
                                                .ld_dx = result.ld(),
                                                .ld_dy = dy.ld(),
                                                .ld_x = x.ld()},
                            pool);
    CHECK(result.surroundings_untouched());
    CHECK(dw_q.surroundings_untouched());
    CHECK(dw_k.surroundings_untouched());
    return {result.doubles(), dw_q.doubles(), dw_k.doubles()};
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("LayerNorm and RMSNorm are their formulas") {
        ThreadPool pool(2);
        for (const bool layernorm : {true, false}) {
            for (const Shape& s : kShapes) {
                const Inputs in(s.rows, s.C);
                const std::vector<double> expected = norm_formula(layernorm, s, in);
                CHECK(norm_error(norm_forward<double>(layernorm, s, in, pool)[0], expected) < 1e-13);
                CHECK(norm_error(norm_forward<float>(layernorm, s, in, pool)[0], expected) < 1e-6);
            }
        }
    }

    TEST_CASE("LayerNorm subtracts the mean before it squares") {
        // E[x²] - E[x]² in float32 would lose everything at this offset
        const Shape s{1, 64};
        Inputs in(s.rows, s.C);
        for (double& v : in.x) v = 4096 + std::round(v * 64) / 64;
        ThreadPool pool(1);
        CHECK(norm_error(norm_forward<float>(true, s, in, pool)[0], norm_formula(true, s, in)) < 1e-4);
    }

    TEST_CASE("LayerNorm's and RMSNorm's gradients: central differences, float, accumulation") {
        ThreadPool pool(1);
        for (const bool layernorm : {true, false}) {
            for (const Shape& s : kShapes) {
                if (s.C == 1) continue;  // y hardly depends on x there: nothing to compare by ratio
                Inputs in(s.rows, s.C);
                const Results got = norm_backward<double>(layernorm, s, in, true, pool);
                const auto loss = [&] { return dot(norm_forward<double>(layernorm, s, in, pool)[0], in.dy); };
                CHECK(gradient_error(in.x, minus(got[0], in.dx_before), loss) < 1e-7);
                CHECK(gradient_error(in.w, minus(got[1], in.dw_before), loss) < 1e-7);
                if (layernorm) CHECK(gradient_error(in.b, minus(got[2], in.db_before), loss) < 1e-7);

                const Results in_float = norm_backward<float>(layernorm, s, in, true, pool);
                for (size_t i = 0; i < got.size(); ++i) CHECK(norm_error(in_float[i], got[i]) < 2e-6);

                const Results frozen = norm_backward<double>(layernorm, s, in, false, pool);
                CHECK(same_bits(frozen[0], got[0]));
                CHECK(same_bits(frozen[1], in.dw_before));
                CHECK(same_bits(frozen[2], in.db_before));
            }
        }
    }

    TEST_CASE("the norm per head is RMSNorm of each head with its own weight") {
        ThreadPool pool(1);
        for (const HeadShape& s : kHeadShapes) {
            HeadInputs in(s);
            const Results y = head_forward<double>(s, in, pool);
            std::vector<double> expected(in.x.size());
            for (size_t at = 0; at < expected.size(); at += s.HD) {
                const bool query = at / s.HD % s.heads() < static_cast<size_t>(s.NH);
                double squares = 0;
                for (int c = 0; c < s.HD; ++c) squares += in.x[at + c] * in.x[at + c];
                for (int c = 0; c < s.HD; ++c) {
                    expected[at + c] =
                        in.x[at + c] / std::sqrt(squares / s.HD + kEps) * (query ? in.w_q[c] : in.w_k[c]);
                }
            }
            CHECK(norm_error(y[0], expected) < 1e-13);
            CHECK(norm_error(head_forward<float>(s, in, pool)[0], expected) < 1e-6);

            const Results got = head_backward<double>(s, in, false, true, pool);
            const auto loss = [&] { return dot(head_forward<double>(s, in, pool)[0], in.dy); };
            CHECK(gradient_error(in.x, got[0], loss) < 1e-7);
            CHECK(gradient_error(in.w_q, minus(got[1], in.dw_q_before), loss) < 1e-7);
            CHECK(gradient_error(in.w_k, minus(got[2], in.dw_k_before), loss) < 1e-7);

            const Results in_float = head_backward<float>(s, in, false, true, pool);
            for (size_t i = 0; i < got.size(); ++i) CHECK(norm_error(in_float[i], got[i]) < 2e-6);
            CHECK(same_bits(joined(head_backward<double>(s, in, true, true, pool)), joined(got)));
            const Results frozen = head_backward<double>(s, in, false, false, pool);
            CHECK(same_bits(frozen[0], got[0]));
            CHECK(same_bits(frozen[1], in.dw_q_before));
        }
    }

    TEST_CASE("norms: bits do not depend on the number of threads") {
        for (const Shape& s : {Shape{300, 300}, Shape{5, 33}}) {
            const Inputs in(s.rows, s.C);
            for (const bool layernorm : {true, false}) {
                CHECK(same_bits_for_all_pools(
                    [&](ThreadPool& pool) { return joined(norm_forward<float>(layernorm, s, in, pool)); }));
                CHECK(same_bits_for_all_pools(
                    [&](ThreadPool& pool) { return joined(norm_backward<float>(layernorm, s, in, true, pool)); }));
            }
        }
        const HeadShape s{300, 6, 2, 20, 0, 0};
        const HeadInputs in(s);
        CHECK(same_bits_for_all_pools([&](ThreadPool& pool) { return joined(head_forward<float>(s, in, pool)); }));
        CHECK(same_bits_for_all_pools(
            [&](ThreadPool& pool) { return joined(head_backward<float>(s, in, true, true, pool)); }));
    }

#if !defined(SLABSTREAM_CUDA)
    TEST_CASE("norms: what a stream computes is what the reference computes") {
        ThreadPool pool(1);
        Device device({.threads = 2});
        Stream stream(device, "compute");
        const Shape s{70, 33};
        const Inputs in(s.rows, s.C);
        const HeadShape hs{70, 4, 2, 6, 36, 0};
        const HeadInputs hin(hs);
        Guarded<float> x(s.rows, s.C), w(1, s.C), b(1, s.C), dy(s.rows, s.C), y(s.rows, s.C), mean(1, s.rows),
            rstd(1, s.rows);
        x.set(in.x);
        w.set(in.w);
        b.set(in.b);
        dy.set(in.dy);
        for (const bool layernorm : {true, false}) {
            Guarded<float> dx(s.rows, s.C), dw(1, s.C), db(1, s.C);
            dx.set(in.dx_before);
            dw.set(in.dw_before);
            db.set(in.db_before);
            const NormForward<real> forward{y.data(), layernorm ? mean.data() : nullptr, rstd.data(), x.data(),
                                            w.data(), layernorm ? b.data() : nullptr,    s.rows,      s.C,
                                            kEps};
            const NormBackward<real> backward{dx.data(), dw.data(), layernorm ? db.data() : nullptr,   dy.data(),
                                              x.data(),  w.data(),  layernorm ? mean.data() : nullptr, rstd.data(),
                                              s.rows,    s.C};
            layernorm ? layernorm_forward(forward, stream) : rmsnorm_forward(forward, stream);
            layernorm ? layernorm_backward(backward, stream) : rmsnorm_backward(backward, stream);
            stream.synchronize();
            CHECK(same_bits(y.doubles(), norm_forward<float>(layernorm, s, in, pool)[0]));
            CHECK(same_bits(joined({dx.doubles(), dw.doubles(), db.doubles()}),
                            joined(norm_backward<float>(layernorm, s, in, true, pool))));
        }
        Guarded<float> hx(hs.rows, hs.cols()), hy(hs.rows, hs.cols()), hdy(hs.rows, hs.cols()), w_q(1, hs.HD),
            w_k(1, hs.HD), dw_q(1, hs.HD), dw_k(1, hs.HD), hrstd(hs.rows, hs.heads());
        hx.set(hin.x);
        hdy.set(hin.dy);
        w_q.set(hin.w_q);
        w_k.set(hin.w_k);
        dw_q.set(hin.dw_q_before);
        dw_k.set(hin.dw_k_before);
        head_norm_forward({hy.data(), hrstd.data(), hx.data(), w_q.data(), w_k.data(), hs.rows, hs.NH, hs.NKV, hs.HD,
                           hy.ld(), hx.ld(), kEps},
                          stream);
        head_norm_backward({hdy.data(), dw_q.data(), dw_k.data(), hdy.data(), hx.data(), w_q.data(), w_k.data(),
                            hrstd.data(), hs.rows, hs.NH, hs.NKV, hs.HD, hdy.ld(), hdy.ld(), hx.ld()},
                           stream);
        stream.synchronize();
        CHECK(same_bits(joined({hy.doubles(), hrstd.doubles()}), joined(head_forward<float>(hs, hin, pool))));
        CHECK(same_bits(joined({hdy.doubles(), dw_q.doubles(), dw_k.doubles()}),
                        joined(head_backward<float>(hs, hin, false, true, pool))));
    }
#endif
}
