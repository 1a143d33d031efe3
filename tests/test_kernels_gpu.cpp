// The device's kernels, attention apart, against the references in double precision, in either number type.
//
// Each runs twice from the same state: the bits must agree. Shapes include sizes, strides and addresses that forbid
// 16-byte accesses (gpu_compare.h says what else is watched).
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/lora.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "tests/gpu_compare.h"

using namespace slab;
using test::DeviceMatrix;
using test::relative_error;
using test::run_twice;

namespace {

using Doubles = std::vector<double>;
using Reals = DeviceMatrix<real>;
using Floats = DeviceMatrix<float>;

constexpr double kTolerance = kRealIsFloat32 ? 1e-5 : 1e-2;     // outputs stored as real; bf16 keeps 8 bits
constexpr double kSumTolerance = kRealIsFloat32 ? 1e-5 : 1e-4;  // float32 outputs of sums on tensor cores
constexpr double kFloatTolerance = 1e-5;                        // float32 outputs of float32 arithmetic
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Gpu {
    Device device;
    Stream stream{device, "compute", matmul_workspace_bytes()};
    ThreadPool& pool() { return device.pool(); }
};

// Tokens' documents: a new one every `every` tokens or so; 0: none.
std::vector<int32_t> documents(size_t rows, int T_len, int every) {
    std::vector<int32_t> start(rows);
    for (size_t row = 0; row < rows; ++row) {
        const int t = static_cast<int>(row % T_len);
        start[row] = t == 0 ? 0 : (t + static_cast<int>(row) / T_len) % every == 0 ? t : start[row - 1];
    }
    return start;
}

struct ProductShape {
    size_t rows;
    int N, K;
    size_t extra_x = 0, extra_y = 0;    // between rows
    size_t offset_x = 0, offset_y = 0;  // elements behind an aligned address
    float alpha = 1;
};
const ProductShape kProducts[] = {
    {1, 1, 1},
    {3, 5, 7},
    {1, 64, 96, 0, 0, 0, 0, 0.5f},
    {64, 64, 64},
    {129, 257, 131, 3, 1, 1, 3, 2},
    {257, 48, 512},
    {300, 1000, 16, 8, 24, 8, 16, 2},
    {300, 1000, 3, 5, 1, 3, 1, -1.5f},
    {100, 333, 128, 8, 0, 16},
    {2050, 16, 200, 40, 32, 8, 16},
    {200, 3000, 1500},
};

}  // namespace

TEST_SUITE("gpu") {
    TEST_CASE("matmul_forward on the device") {
        Gpu gpu;
        for (const ProductShape& s : kProducts) {
            for (const bool with_bias : {false, true}) {
                for (const int add_mode : {0, 1, 2}) {  // none, another matrix, y itself
                    CAPTURE(s.rows);
                    CAPTURE(s.N);
                    CAPTURE(s.K);
                    CAPTURE(s.offset_x);
                    CAPTURE(with_bias);
                    CAPTURE(add_mode);
                    const size_t N = s.N, K = s.K;
                    Reals x(gpu.stream, s.rows, K, s.extra_x, s.offset_x), w(gpu.stream, N, K);
                    Reals bias(gpu.stream, 1, N, 0, s.offset_y), add(gpu.stream, s.rows, N, s.extra_y, s.offset_y);
                    Reals y(gpu.stream, s.rows, N, s.extra_y, s.offset_y);
                    x.fill(1), w.fill(2), bias.fill(3, 2), add.fill(4, 3);
                    if (add_mode == 2) y.fill(5, 3);
                    const real* added = add_mode == 0 ? nullptr : add_mode == 1 ? add.data() : y.data();
                    run_twice({&y}, [&] {
                        matmul_forward({y.data(), x.data(), w.data(), with_bias ? bias.data() : nullptr, added, s.rows,
                                        s.N, s.K, y.ld(), x.ld(), s.alpha},
                                       gpu.stream);
                    });
                    const Doubles gx = x.given(), gw = w.given(), gb = bias.given(), ga = add.given();
                    Doubles want = y.given();
                    ref::matmul_forward<double>({want.data(), gx.data(), gw.data(), with_bias ? gb.data() : nullptr,
                                                 add_mode == 0   ? nullptr
                                                 : add_mode == 1 ? ga.data()
                                                                 : want.data(),
                                                 s.rows, s.N, s.K, N, K, s.alpha},
                                                gpu.pool());
                    CHECK(relative_error(y.got(), want) < kTolerance);
                }
            }
        }
    }

    TEST_CASE("matmul_backward_input on the device") {
        Gpu gpu;
        for (const ProductShape& s : kProducts) {
            for (const bool accumulate : {false, true}) {
                CAPTURE(s.rows);
                CAPTURE(s.N);
                CAPTURE(s.K);
                CAPTURE(s.offset_x);
                CAPTURE(accumulate);
                const size_t N = s.N, K = s.K;
                Reals dx(gpu.stream, s.rows, K, s.extra_x, s.offset_x), w(gpu.stream, N, K);
                Reals dy(gpu.stream, s.rows, N, s.extra_y, s.offset_y);
                w.fill(1), dy.fill(2);
                if (accumulate) dx.fill(3, 4);
                run_twice({&dx}, [&] {
                    matmul_backward_input(
                        {dx.data(), dy.data(), w.data(), s.rows, s.N, s.K, dx.ld(), dy.ld(), s.alpha, accumulate},
                        gpu.stream);
                });
                const Doubles gw = w.given(), gy = dy.given();
                Doubles want = dx.given();
                ref::matmul_backward_input<double>(
                    {want.data(), gy.data(), gw.data(), s.rows, s.N, s.K, K, N, s.alpha, accumulate}, gpu.pool());
                CHECK(relative_error(dx.got(), want) < kTolerance);
            }
        }
    }

    TEST_CASE("matmul_backward_weight and bias_backward on the device") {
        Gpu gpu;
        for (const ProductShape& s : kProducts) {
            CAPTURE(s.rows);
            CAPTURE(s.N);
            CAPTURE(s.K);
            CAPTURE(s.offset_x);
            const size_t N = s.N, K = s.K;
            Reals x(gpu.stream, s.rows, K, s.extra_x, s.offset_x), dy(gpu.stream, s.rows, N, s.extra_y, s.offset_y);
            Floats dw(gpu.stream, N, K), dbias(gpu.stream, 1, N);
            x.fill(1), dy.fill(2), dw.fill(3, 2), dbias.fill(4, 2);
            run_twice({&dw, &dbias}, [&] {
                matmul_backward_weight({dw.data(), dy.data(), x.data(), s.rows, s.N, s.K, dy.ld(), x.ld(), s.alpha},
                                       gpu.stream);
                bias_backward(dbias.data(), dy.data(), s.rows, s.N, dy.ld(), gpu.stream);
            });
            const Doubles gx = x.given(), gy = dy.given();
            Doubles want = dw.given(), want_bias = dbias.given();
            ref::matmul_backward_weight<double>({want.data(), gy.data(), gx.data(), s.rows, s.N, s.K, N, K, s.alpha},
                                                gpu.pool());
            ref::bias_backward<double>(want_bias.data(), gy.data(), s.rows, s.N, N, gpu.pool());
            CHECK(relative_error(dw.got(), want) < kSumTolerance);
            CHECK(relative_error(dbias.got(), want_bias) < kFloatTolerance);
        }
    }

    TEST_CASE("a stream without workspace is refused matrix products by name") {
        Device device;
        Stream stream(device, "copies");
        Reals m(stream, 1, 1);
        CHECK_THROWS_WITH_AS(matmul_forward({m.data(), m.data(), m.data(), nullptr, nullptr, 1, 1, 1, 1, 1}, stream),
                             doctest::Contains("stream 'copies' has 0 bytes of workspace"), std::logic_error);
    }

    TEST_CASE("LoRA on the device, joined modules of odd ranks") {
        Gpu gpu;
        struct Case {
            int K;
            std::vector<int> ranks, outputs;
            float p;
        };
        for (const Case& c : {Case{96, {16, 8, 8}, {64, 32, 32}, 0}, Case{96, {16, 8, 8}, {64, 32, 32}, 0.25f},
                              Case{50, {3, 5}, {31, 44}, 0}, Case{50, {3, 5}, {31, 44}, 0.1f}}) {
            CAPTURE(c.K);
            CAPTURE(c.p);
            constexpr int kT = 37;
            const size_t rows = 2 * kT, K = c.K, modules = c.ranks.size();
            int R = 0, N = 0;
            for (size_t i = 0; i < modules; ++i) R += c.ranks[i], N += c.outputs[i];
            Reals x(gpu.stream, rows, K), y(gpu.stream, rows, N), dy(gpu.stream, rows, N), A(gpu.stream, R, K);
            Reals xa(gpu.stream, rows, R), dxa(gpu.stream, rows, R), dx(gpu.stream, rows, K), tmp(gpu.stream, rows, K);
            Floats dA(gpu.stream, R, K);
            x.fill(1), y.fill(2), dy.fill(3), A.fill(4, 0.3), dx.fill(5), dA.fill(6);
            std::vector<std::unique_ptr<Reals>> B;
            std::vector<std::unique_ptr<Floats>> dB;
            std::vector<Doubles> ref_B, ref_dB;
            LoraGroup<real> group{A.data(), dA.data(), R, c.K, {}};
            Doubles ref_A = A.given(), ref_dA = dA.given();
            LoraGroup<double> ref_group{ref_A.data(), ref_dA.data(), R, c.K, {}};
            for (size_t i = 0, row = 0, col = 0; i < modules; ++i) {
                B.push_back(std::make_unique<Reals>(gpu.stream, c.outputs[i], c.ranks[i]));
                dB.push_back(std::make_unique<Floats>(gpu.stream, c.outputs[i], c.ranks[i]));
                B[i]->fill(10 + i), dB[i]->fill(20 + i);
                ref_B.push_back(B[i]->given()), ref_dB.push_back(dB[i]->given());
                const int first_row = static_cast<int>(row), first_col = static_cast<int>(col);
                const int site = static_cast<int>(i);
                group.modules.push_back(
                    {B[i]->data(), dB[i]->data(), c.ranks[i], c.outputs[i], first_row, first_col, 1.5f + site, site});
                row += c.ranks[i], col += c.outputs[i];
            }
            for (size_t i = 0; i < modules; ++i) {
                const LoraModule<real>& m = group.modules[i];
                ref_group.modules.push_back(
                    {ref_B[i].data(), ref_dB[i].data(), m.r, m.N, m.first_row, m.first_col, m.scale, m.site});
            }
            const LoraDropout dropout{c.p, kT, {.seed = 5, .layer = 3}};
            real* scratch = c.p > 0 ? tmp.data() : nullptr;
            run_twice({&y, &xa, &dx, &dA, dB[0].get(), dB[1].get(), modules > 2 ? dB[2].get() : nullptr}, [&] {
                lora_forward({y.data(), xa.data(), x.data(), scratch, rows, y.ld()}, group, dropout, gpu.stream);
                lora_backward({dx.data(), dxa.data(), dy.data(), xa.data(), x.data(), scratch, rows, dy.ld()}, group,
                              dropout, gpu.stream);
            });
            const Doubles gx = x.given(), gdy = dy.given();
            Doubles want_y = y.given(), want_xa(rows * R), want_dxa(rows * R), want_dx = dx.given(), want_tmp(rows * K);
            ref::lora_forward<double>({want_y.data(), want_xa.data(), gx.data(), want_tmp.data(), rows, y.ld()},
                                      ref_group, dropout, gpu.pool());
            ref::lora_backward<double>({want_dx.data(), want_dxa.data(), gdy.data(), want_xa.data(), gx.data(),
                                        want_tmp.data(), rows, dy.ld()},
                                       ref_group, dropout, gpu.pool());
            CHECK(relative_error(y.got(), want_y) < kTolerance);
            CHECK(relative_error(xa.got(), want_xa) < kTolerance);
            CHECK(relative_error(dx.got(), want_dx) < kTolerance);
            CHECK(relative_error(dA.got(), ref_dA) < kTolerance);
            for (size_t i = 0; i < modules; ++i) CHECK(relative_error(dB[i]->got(), ref_dB[i]) < kTolerance);
        }
    }

    TEST_CASE("LayerNorm and RMSNorm on the device") {
        Gpu gpu;
        struct Case {
            size_t rows;
            int C;
            size_t offset = 0;
            bool gradients = true;
        };
        for (const Case& s :
             {Case{1, 1}, Case{3, 7}, Case{33, 8}, Case{5, 129}, Case{70, 768}, Case{301, 1000}, Case{9, 1024, 1},
              Case{6, 2056}, Case{40, 4096}, Case{7, 5000, 0, false}, Case{5, 8192}, Case{4, 16400}, Case{1000, 64}}) {
            for (const bool centred : {false, true}) {
                CAPTURE(s.rows);
                CAPTURE(s.C);
                CAPTURE(s.offset);
                CAPTURE(centred);
                const size_t C = s.C;
                Reals x(gpu.stream, s.rows, C, 0, s.offset), w(gpu.stream, 1, C, 0, s.offset), b(gpu.stream, 1, C);
                Reals y(gpu.stream, s.rows, C, 0, s.offset), dy(gpu.stream, s.rows, C, 0, s.offset);
                Reals dx(gpu.stream, s.rows, C, 0, s.offset);
                Floats mean(gpu.stream, 1, s.rows), rstd(gpu.stream, 1, s.rows), dw(gpu.stream, 1, C);
                Floats db(gpu.stream, 1, C);
                Doubles off_centre = test::random_values(s.rows * C, 1, 2);
                for (double& v : off_centre) v += 0.7;
                x.set(off_centre), w.fill(2), b.fill(3), dy.fill(4), dx.fill(5), dw.fill(6), db.fill(7);
                const bool with_bias = centred && s.C != 768;
                const NormForward<real> forward{y.data(), centred ? mean.data() : nullptr, rstd.data(), x.data(),
                                                w.data(), with_bias ? b.data() : nullptr,  s.rows,      s.C,
                                                1e-5f};
                const NormBackward<real> backward{dx.data(),
                                                  s.gradients ? dw.data() : nullptr,
                                                  s.gradients && centred ? db.data() : nullptr,
                                                  dy.data(),
                                                  x.data(),
                                                  w.data(),
                                                  forward.mean,
                                                  rstd.data(),
                                                  s.rows,
                                                  s.C};
                run_twice({&y, centred ? &mean : nullptr, &rstd, &dx, &dw, &db}, [&] {
                    centred ? layernorm_forward(forward, gpu.stream) : rmsnorm_forward(forward, gpu.stream);
                    centred ? layernorm_backward(backward, gpu.stream) : rmsnorm_backward(backward, gpu.stream);
                });
                const Doubles gx = x.given(), gw = w.given(), gb = b.given(), gdy = dy.given();
                Doubles want_y(s.rows * C), want_mean(s.rows), want_rstd(s.rows);
                Doubles want_dx = dx.given(), want_dw = dw.given(), want_db = db.given();
                const NormForward<double> ref_forward{
                    want_y.data(), centred ? want_mean.data() : nullptr, want_rstd.data(), gx.data(),
                    gw.data(),     with_bias ? gb.data() : nullptr,      s.rows,           s.C,
                    1e-5f};
                const NormBackward<double> ref_backward{want_dx.data(),
                                                        s.gradients ? want_dw.data() : nullptr,
                                                        s.gradients && centred ? want_db.data() : nullptr,
                                                        gdy.data(),
                                                        gx.data(),
                                                        gw.data(),
                                                        ref_forward.mean,
                                                        want_rstd.data(),
                                                        s.rows,
                                                        s.C};
                centred ? ref::layernorm_forward(ref_forward, gpu.pool())
                        : ref::rmsnorm_forward(ref_forward, gpu.pool());
                centred ? ref::layernorm_backward(ref_backward, gpu.pool())
                        : ref::rmsnorm_backward(ref_backward, gpu.pool());
                if (centred) CHECK(relative_error(mean.got(), want_mean) < kFloatTolerance);
                CHECK(relative_error(rstd.got(), want_rstd) < kFloatTolerance);
                CHECK(relative_error(y.got(), want_y) < kTolerance);
                // A row of one element is constant after the norm: its gradient is nothing but rounding.
                if (s.C > 1) CHECK(relative_error(dx.got(), want_dx) < kTolerance);
                CHECK(relative_error(dw.got(), want_dw) < kFloatTolerance);
                CHECK(relative_error(db.got(), want_db) < kFloatTolerance);
            }
        }
    }

    TEST_CASE("RMSNorm per head on the device, in place and apart") {
        Gpu gpu;
        struct Case {
            size_t rows;
            int NH, NKV, HD;
            size_t extra_x = 0, extra_y = 0, offset = 0;
        };
        for (const Case& s : {Case{5, 4, 2, 128, 256}, Case{300, 6, 2, 64, 0, 8}, Case{7, 3, 1, 6, 1, 2},
                              Case{33, 2, 2, 100, 4}, Case{9, 2, 1, 256, 0, 0, 1}, Case{2, 1, 1, 1}}) {
            for (const bool in_place : {false, true}) {
                CAPTURE(s.rows);
                CAPTURE(s.HD);
                CAPTURE(in_place);
                const size_t heads = s.NH + s.NKV, width = heads * s.HD, HD = s.HD;
                Reals x(gpu.stream, s.rows, width, s.extra_x, s.offset), y(gpu.stream, s.rows, width, s.extra_y);
                Reals dy(gpu.stream, s.rows, width, s.extra_y), dx(gpu.stream, s.rows, width, s.extra_x, s.offset);
                Reals w_q(gpu.stream, 1, HD), w_k(gpu.stream, 1, HD);
                Floats rstd(gpu.stream, s.rows, heads), dw_q(gpu.stream, 1, HD), dw_k(gpu.stream, 1, HD);
                x.fill(1, 2), dy.fill(2), w_q.fill(3), w_k.fill(4), dw_q.fill(5), dw_k.fill(6);
                Reals& out = in_place ? dy : dx;
                run_twice({&y, &rstd, &out, &dw_q, &dw_k}, [&] {
                    head_norm_forward({y.data(), rstd.data(), x.data(), w_q.data(), w_k.data(), s.rows, s.NH, s.NKV,
                                       s.HD, y.ld(), x.ld(), 1e-6f},
                                      gpu.stream);
                    head_norm_backward({out.data(), dw_q.data(), dw_k.data(), dy.data(), x.data(), w_q.data(),
                                        w_k.data(), rstd.data(), s.rows, s.NH, s.NKV, s.HD, out.ld(), dy.ld(), x.ld()},
                                       gpu.stream);
                });
                const Doubles gx = x.given(), gdy = dy.given(), gq = w_q.given(), gk = w_k.given();
                Doubles want_y(s.rows * width), want_rstd(s.rows * heads), want_dx(s.rows * width);
                Doubles want_q = dw_q.given(), want_k = dw_k.given();
                ref::head_norm_forward<double>({want_y.data(), want_rstd.data(), gx.data(), gq.data(), gk.data(),
                                                s.rows, s.NH, s.NKV, s.HD, width, width, 1e-6f},
                                               gpu.pool());
                ref::head_norm_backward<double>(
                    {want_dx.data(), want_q.data(), want_k.data(), gdy.data(), gx.data(), gq.data(), gk.data(),
                     want_rstd.data(), s.rows, s.NH, s.NKV, s.HD, width, width, width},
                    gpu.pool());
                CHECK(relative_error(y.got(), want_y) < kTolerance);
                CHECK(relative_error(rstd.got(), want_rstd) < kFloatTolerance);
                CHECK(relative_error(dw_q.got(), want_q) < kFloatTolerance);
                CHECK(relative_error(dw_k.got(), want_k) < kFloatTolerance);
                // A head of one element has no gradient but rounding.
                if (s.HD > 1) CHECK(relative_error(out.got(), want_dx) < kTolerance);
            }
        }
    }

    TEST_CASE("rotary on the device, with documents") {
        Gpu gpu;
        struct Case {
            int T_len, heads, HD;
            size_t extra = 0, offset = 0;
            int every = 0;
        };
        for (const Case& s : {Case{40, 3, 128, 128}, Case{33, 6, 64, 0, 0, 7}, Case{9, 2, 6, 1, 1, 4}, Case{5, 1, 2},
                              Case{50, 5, 80, 3, 0, 11}, Case{21, 2, 16, 8, 8, 1}, Case{70, 9, 128, 0, 4, 20}}) {
            for (const bool backward : {false, true}) {
                CAPTURE(s.T_len);
                CAPTURE(s.HD);
                CAPTURE(backward);
                const size_t rows = 2 * static_cast<size_t>(s.T_len), width = static_cast<size_t>(s.heads) * s.HD;
                Reals x(gpu.stream, rows, width, s.extra, s.offset);
                x.fill(1, 2);
                const std::vector<float> table = rotary_table(s.T_len, s.HD, 10000, {});
                const DeviceBuffer device_table = test::to_device(gpu.stream, table);
                const std::vector<int32_t> starts = documents(rows, s.T_len, std::max(1, s.every));
                const DeviceBuffer device_starts = test::to_device(gpu.stream, starts);
                const int32_t* used = s.every > 0 ? device_starts.as<int32_t>() : nullptr;
                run_twice({&x}, [&] {
                    rotary({x.data(), device_table.as<float>(), used, rows, s.T_len, s.heads, s.HD, x.ld(), backward},
                           gpu.stream);
                });
                Doubles want = x.given();
                ref::rotary<double>({want.data(), table.data(), used ? starts.data() : nullptr, rows, s.T_len, s.heads,
                                     s.HD, width, backward},
                                    gpu.pool());
                CHECK(relative_error(x.got(), want) < kTolerance);
            }
        }
    }

    TEST_CASE("GELU and SwiGLU on the device, in place and apart") {
        Gpu gpu;
        struct Case {
            size_t rows;
            int I;
            size_t offset = 0;
        };
        for (const Case& s : {Case{1, 1}, Case{3, 7}, Case{5, 128}, Case{17, 1000}, Case{9, 257}, Case{3, 1024, 1},
                              Case{70, 5504}, Case{300, 344}}) {
            for (const bool in_place : {false, true}) {
                CAPTURE(s.rows);
                CAPTURE(s.I);
                CAPTURE(in_place);
                const size_t I = s.I, n = s.rows * I;
                Reals x(gpu.stream, s.rows, I, 0, s.offset), y(gpu.stream, s.rows, I, 0, s.offset);
                Reals dy(gpu.stream, s.rows, I, 0, s.offset), gate_up(gpu.stream, s.rows, 2 * I, 0, s.offset);
                Reals d_gate_up(gpu.stream, s.rows, 2 * I, 0, s.offset);
                x.fill(1, 4), dy.fill(2), gate_up.fill(3, 6);
                const Doubles gx = x.given(), gdy = dy.given(), ggu = gate_up.given();
                Doubles want(n), want2(2 * n);

                Reals& gelu = in_place ? x : y;
                run_twice({&gelu}, [&] { gelu_forward(gelu.data(), x.data(), n, gpu.stream); });
                ref::gelu_forward(want.data(), gx.data(), n, gpu.pool());
                CHECK(relative_error(gelu.got(), want) < kTolerance);
                x.upload();

                Reals& d_gelu = in_place ? dy : y;
                run_twice({&d_gelu}, [&] { gelu_backward(d_gelu.data(), dy.data(), x.data(), n, gpu.stream); });
                ref::gelu_backward(want.data(), gdy.data(), gx.data(), n, gpu.pool());
                CHECK(relative_error(d_gelu.got(), want) < kTolerance);
                run_twice({&x}, [&] {  // the other way in place, as the block does it
                    dy.upload();
                    gelu_backward(x.data(), dy.data(), x.data(), n, gpu.stream);
                });
                CHECK(relative_error(x.got(), want) < kTolerance);
                x.upload();

                run_twice({&y}, [&] { swiglu_forward(y.data(), gate_up.data(), s.rows, s.I, gpu.stream); });
                ref::swiglu_forward(want.data(), ggu.data(), s.rows, s.I, gpu.pool());
                CHECK(relative_error(y.got(), want) < kTolerance);

                Reals& d = in_place ? gate_up : d_gate_up;
                run_twice({&d}, [&] { swiglu_backward(d.data(), dy.data(), gate_up.data(), s.rows, s.I, gpu.stream); });
                ref::swiglu_backward(want2.data(), gdy.data(), ggu.data(), s.rows, s.I, gpu.pool());
                CHECK(relative_error(d.got(), want2) < kTolerance);
            }
        }
    }

    TEST_CASE("the device's GELU and SwiGLU stay finite at the ends of the range") {
        Gpu gpu;
        const Doubles ends{-3e38, -1e4, -200, -90, -88, 0, 88, 90, 200, 1e4};
        Reals x(gpu.stream, 1, ends.size()), ones(gpu.stream, 1, ends.size()), y(gpu.stream, 1, ends.size());
        x.set(ends), ones.set(Doubles(ends.size(), 1.0));
        gelu_forward(y.data(), x.data(), ends.size(), gpu.stream);
        y.download();
        for (size_t i = 0; i < ends.size(); ++i) CHECK(y.got()[i] == doctest::Approx(std::max(0.0, x.given()[i])));
        Reals gate_up(gpu.stream, ends.size(), 2), d(gpu.stream, ends.size(), 2);
        Doubles pairs;
        for (const double v : ends) pairs.insert(pairs.end(), {v, 1.0});
        gate_up.set(pairs);
        swiglu_backward(d.data(), ones.data(), gate_up.data(), ends.size(), 1, gpu.stream);
        d.download();
        for (const double v : d.got()) CHECK(std::isfinite(v));
    }

    TEST_CASE("embeddings on the device: repeated tokens, positions within documents") {
        Gpu gpu;
        struct Case {
            int T_len, C, V;
            size_t offset = 0;
            int every = 0;
            bool positions = true;
        };
        for (const Case& s : {Case{50, 64, 11}, Case{33, 7, 3, 0, 5}, Case{100, 768, 1000, 0, 30}, Case{40, 130, 5, 1},
                              Case{300, 132, 2, 0, 0, false}, Case{1, 1, 1}}) {
            CAPTURE(s.T_len);
            CAPTURE(s.C);
            CAPTURE(s.V);
            const size_t rows = 3 * static_cast<size_t>(s.T_len), C = s.C;
            Reals x(gpu.stream, rows, C, 0, s.offset), wte(gpu.stream, s.V, C, 0, s.offset);
            Reals wpe(gpu.stream, s.T_len, C), dx(gpu.stream, rows, C, 0, s.offset);
            Floats dwte(gpu.stream, s.V, C, 0, s.offset), dwpe(gpu.stream, s.T_len, C);
            wte.fill(1), wpe.fill(2), dx.fill(3), dwte.fill(4), dwpe.fill(5);
            std::vector<int32_t> tokens(rows);
            for (size_t i = 0; i < rows; ++i) tokens[i] = static_cast<int32_t>(i * i * 7 % s.V);
            const std::vector<int32_t> starts = documents(rows, s.T_len, std::max(1, s.every));
            const DeviceBuffer device_tokens = test::to_device(gpu.stream, tokens);
            const DeviceBuffer device_starts = test::to_device(gpu.stream, starts);
            const int32_t* used = s.every > 0 ? device_starts.as<int32_t>() : nullptr;
            run_twice({&x, &dwte, &dwpe}, [&] {
                embedding_forward({x.data(), device_tokens.as<int32_t>(), used, wte.data(),
                                   s.positions ? wpe.data() : nullptr, rows, s.T_len, s.C},
                                  gpu.stream);
                embedding_backward({dwte.data(), s.positions ? dwpe.data() : nullptr, dx.data(),
                                    device_tokens.as<int32_t>(), used, rows, s.T_len, s.C, s.V},
                                   gpu.stream);
            });
            const Doubles gwte = wte.given(), gwpe = wpe.given(), gdx = dx.given();
            Doubles want(rows * C), want_dwte = dwte.given(), want_dwpe = dwpe.given();
            const int32_t* ref_used = used ? starts.data() : nullptr;
            ref::embedding_forward<double>({want.data(), tokens.data(), ref_used, gwte.data(),
                                            s.positions ? gwpe.data() : nullptr, rows, s.T_len, s.C},
                                           gpu.pool());
            ref::embedding_backward<double>({want_dwte.data(), s.positions ? want_dwpe.data() : nullptr, gdx.data(),
                                             tokens.data(), ref_used, rows, s.T_len, s.C, s.V},
                                            gpu.pool());
            CHECK(relative_error(x.got(), want) < kTolerance);
            CHECK(relative_error(dwte.got(), want_dwte) < kFloatTolerance);
            CHECK(relative_error(dwpe.got(), want_dwpe) < kFloatTolerance);
        }
    }

    TEST_CASE("the device's dropout mask is the reference's") {
        Gpu gpu;
        struct Case {
            int T_len, C;
            float p;
            size_t offset = 0;
        };
        for (const Case& s : {Case{7, 64, 0.1f}, Case{5, 4100, 0.5f}, Case{3, 33, 0.9f}, Case{4, 128, 0.25f, 1},
                              Case{2, 3, 0.5f}, Case{3, 8, 0}}) {
            for (const bool accumulate : {false, true}) {
                CAPTURE(s.C);
                CAPTURE(s.p);
                CAPTURE(accumulate);
                const size_t rows = 2 * static_cast<size_t>(s.T_len), C = s.C;
                Reals x(gpu.stream, rows, C, 0, s.offset), y(gpu.stream, rows, C, 0, s.offset);
                x.fill(1);
                if (accumulate) y.fill(2);
                const DropoutKey key{0x123456789abcdefull, (uint64_t{1} << 33) - 1, 17, 5};
                run_twice({&y}, [&] {
                    dropout({y.data(), x.data(), rows, s.T_len, s.C, s.p, accumulate, key}, gpu.stream);
                });
                const Doubles gx = x.given(), got = y.got();
                std::vector<float> in(gx.begin(), gx.end()), want(rows * C);
                ref::dropout<float>({want.data(), in.data(), rows, s.T_len, s.C, s.p, false, key}, gpu.pool());
                if (accumulate) {
                    const Doubles before = y.given();
                    Doubles sum(rows * C);
                    for (size_t i = 0; i < sum.size(); ++i) sum[i] = before[i] + want[i];
                    CHECK(relative_error(got, sum) < kTolerance);
                } else {
                    size_t different = 0;
                    for (size_t i = 0; i < want.size(); ++i) different += got[i] != to_float(to_real(want[i]));
                    CHECK(different == 0);
                }
                // In place, and where x is not finite: what is dropped is 0.
                if (accumulate) continue;
                x.set(Doubles(rows * C, kInfinity));
                dropout({x.data(), x.data(), rows, s.T_len, s.C, s.p, false, key}, gpu.stream);
                x.download();
                const Doubles infinite = x.got();
                size_t wrong = 0;
                for (size_t i = 0; i < want.size(); ++i) wrong += infinite[i] != (want[i] == 0 ? 0 : kInfinity);
                CHECK(wrong == 0);
            }
        }
    }

    TEST_CASE("cross-entropy on the device, odd vocabularies and masked rows") {
        Gpu gpu;
        struct Case {
            size_t rows;
            int V;
            double scale;
            size_t offset = 0;
        };
        for (const Case& s : {Case{3, 1, 1}, Case{5, 2, 3}, Case{9, 7, 3}, Case{40, 129, 10, 1}, Case{17, 1000, 100},
                              Case{6, 5003, 5}, Case{5, 32000, 20}, Case{4, 50257, 8}, Case{2, 151936, 8}}) {
            for (const bool backward : {false, true}) {
                CAPTURE(s.rows);
                CAPTURE(s.V);
                CAPTURE(backward);
                const size_t V = s.V;
                constexpr float kScale = 0.25f;  // of the loss
                Reals z(gpu.stream, s.rows, V, 0, s.offset);
                Floats losses(gpu.stream, 1, s.rows);
                Doubles logits = test::random_values(s.rows * V, 1, s.scale);
                if (V > 100) logits[3] = -kInfinity;  // an entry that is ruled out
                z.set(logits);
                std::vector<int32_t> targets(s.rows);
                for (size_t i = 0; i < s.rows; ++i)
                    targets[i] = i % 4 == 2 ? kIgnoreTarget : static_cast<int32_t>((i * 7919 + V - 1) % V);
                const DeviceBuffer device_targets = test::to_device(gpu.stream, targets);
                run_twice({&losses, &z}, [&] {
                    cross_entropy(losses.data(), z.data(), device_targets.as<int32_t>(), s.rows, s.V, kScale, backward,
                                  gpu.stream);
                });
                Doubles want = z.given(), want_losses(s.rows);
                ref::cross_entropy<double>(want_losses.data(), want.data(), targets.data(), s.rows, s.V, kScale,
                                           backward, gpu.pool());
                Doubles got = z.got();
                for (Doubles* values : {&got, &want}) std::replace(values->begin(), values->end(), -kInfinity, 0.0);
                CHECK(relative_error(losses.got(), want_losses) < kFloatTolerance);
                CHECK(relative_error(got, want) < (backward ? kTolerance : 1e-12));
            }
        }
    }

    TEST_CASE("a target outside the vocabulary, and a NaN among the logits, show in the device's loss") {
        Gpu gpu;
        Reals z(gpu.stream, 4, 300);
        Floats losses(gpu.stream, 1, 4);
        Doubles logits = test::random_values(4 * 300, 1);
        logits[3 * 300 + 17] = kNaN;
        z.set(logits);
        const DeviceBuffer targets = test::to_device(gpu.stream, std::vector<int32_t>{299, 300, -1, 5});
        cross_entropy(losses.data(), z.data(), targets.as<int32_t>(), 4, 300, 1, true, gpu.stream);
        losses.download(), z.download();
        const Doubles got = losses.got();
        CHECK(std::isfinite(got[0]));
        for (const size_t row : {1, 2, 3}) CHECK(std::isnan(got[row]));
        CHECK(losses.surroundings_untouched());
        CHECK(z.surroundings_untouched());
    }

    TEST_CASE("sum_losses on the device") {
        Gpu gpu;
        for (const size_t n : {1, 5, 1000, 4097, 100003}) {
            CAPTURE(n);
            Floats losses(gpu.stream, 1, n);
            losses.fill(1, 3);
            const DeviceBuffer sum = test::to_device(gpu.stream, std::vector<double>{kNaN});
            Doubles sums;
            for (const bool accumulate : {false, true, false}) {
                sum_losses(sum.as<double>(), losses.data(), n, accumulate, gpu.stream);
                sums.push_back(test::from_device(gpu.stream, sum.as<double>()));
            }
            double want = 0;
            const Doubles given = losses.given();
            ref::sum_losses(&want, given.data(), n, false, gpu.pool());
            CHECK(sums[0] == doctest::Approx(want).epsilon(1e-12));
            CHECK(sums[1] == 2 * sums[0]);
            CHECK(sums[2] == sums[0]);
        }
    }

    TEST_CASE("gradient norm, AdamW and the refusal of bad steps on the device") {
        Gpu gpu;
        struct Case {
            size_t n, offset = 0;
            float max_norm = 1;
        };
        for (const Case& s : {Case{1}, Case{5, 1}, Case{1000, 0, 0}, Case{65536}, Case{65537, 2, 1e9f}, Case{400003}}) {
            CAPTURE(s.n);
            CAPTURE(s.offset);
            Floats master(gpu.stream, 1, s.n, 0, s.offset), grad(gpu.stream, 1, s.n, 0, s.offset);
            Floats m(gpu.stream, 1, s.n, 0, s.offset), v(gpu.stream, 1, s.n, 0, s.offset);
            Reals param(gpu.stream, 1, s.n, 0, s.offset);
            master.fill(1), grad.fill(2, 0.1), m.fill(3, 0.01), v.fill(4, 0.01);
            Doubles squares = v.given();
            for (double& e : squares) e = std::abs(e) + 1e-6;
            v.set(squares);
            const DeviceBuffer scratch =
                test::to_device(gpu.stream, Doubles(gradient_norm_scratch_bytes(s.n) / sizeof(double), kNaN));
            const OptimizerControl before{0, 0, 0, 4, 0, 0};
            const DeviceBuffer control = test::to_device(gpu.stream, std::vector<OptimizerControl>{before});
            const AdamWSettings settings{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
            real* const device_param = param.data();
            run_twice({&master, &m, &v, &param}, [&] {
                copy_async(control.data(), &before, sizeof before, CopyKind::host_to_device, gpu.stream);
                gradient_norm(control.as<OptimizerControl>(), scratch.as<double>(), grad.data(), s.n, s.max_norm,
                              nullptr, 0.9f, 0.95f, gpu.stream);
                adamw_update({device_param, master.data(), grad.data(), m.data(), v.data(), s.n, settings,
                              control.as<OptimizerControl>()},
                             gpu.stream);
            });
            const OptimizerControl got = test::from_device(gpu.stream, control.as<OptimizerControl>());
            OptimizerControl want = before;
            Doubles ref_scratch(gradient_norm_scratch_bytes(s.n) / sizeof(double));
            Doubles p = master.given(), g = grad.given(), ref_m = m.given(), ref_v = v.given();
            ref::gradient_norm(&want, ref_scratch.data(), g.data(), s.n, s.max_norm, nullptr, 0.9f, 0.95f, gpu.pool());
            ref::adamw_update<double>({p.data(), nullptr, g.data(), ref_m.data(), ref_v.data(), s.n, settings, &want},
                                      gpu.pool());
            CHECK(got.grad_norm == doctest::Approx(want.grad_norm).epsilon(1e-6));
            CHECK(got.clip == doctest::Approx(want.clip).epsilon(1e-6));
            CHECK(got.skip == 0);
            CHECK(got.applied == 5);
            CHECK(got.bias_correction1 == doctest::Approx(want.bias_correction1).epsilon(1e-6));
            CHECK(got.bias_correction2 == doctest::Approx(want.bias_correction2).epsilon(1e-6));
            CHECK(relative_error(master.got(), p) < kFloatTolerance);
            CHECK(relative_error(m.got(), ref_m) < kFloatTolerance);
            CHECK(relative_error(v.got(), ref_v) < kFloatTolerance);
            const Doubles stored = param.got(), masters = master.got();
            size_t different = 0;
            for (size_t i = 0; i < s.n; ++i)
                different += stored[i] != to_float(to_real(static_cast<float>(masters[i])));
            CHECK(different == 0);
        }
    }

    TEST_CASE("a gradient or loss that is not finite changes nothing on the device but the control") {
        Gpu gpu;
        constexpr size_t kN = 70000;
        for (const int fault : {0, 1, 2, 3}) {  // none, NaN gradient, infinite gradient, NaN loss
            CAPTURE(fault);
            Floats master(gpu.stream, 1, kN), grad(gpu.stream, 1, kN), m(gpu.stream, 1, kN), v(gpu.stream, 1, kN);
            Reals param(gpu.stream, 1, kN);
            Doubles g = test::random_values(kN, 1);
            if (fault == 1) g[69999] = kNaN;
            if (fault == 2) g[3] = kInfinity;
            master.fill(2), grad.set(g), m.fill(3), v.set(Doubles(kN, 0.5)), param.fill(4);
            const DeviceBuffer scratch =
                test::to_device(gpu.stream, Doubles(gradient_norm_scratch_bytes(kN) / 8, kNaN));
            const DeviceBuffer loss = test::to_device(gpu.stream, Doubles{fault == 3 ? kNaN : 2.0});
            const DeviceBuffer control =
                test::to_device(gpu.stream, std::vector<OptimizerControl>{{0, 0.5f, 0, 7, 0.25f, 0.125f}});
            gradient_norm(control.as<OptimizerControl>(), scratch.as<double>(), grad.data(), kN, 1, loss.as<double>(),
                          0.9f, 0.95f, gpu.stream);
            adamw_update({param.data(),
                          master.data(),
                          grad.data(),
                          m.data(),
                          v.data(),
                          kN,
                          {1e-2f, 0.9f, 0.95f, 1e-8f, 0},
                          control.as<OptimizerControl>()},
                         gpu.stream);
            const OptimizerControl after = test::from_device(gpu.stream, control.as<OptimizerControl>());
            CHECK(after.skip == (fault != 0));
            CHECK(after.applied == (fault == 0 ? 8 : 7));
            master.download(), m.download(), v.download(), param.download();
            const bool unchanged = master.got() == master.given() && m.got() == m.given() && v.got() == v.given() &&
                                   param.got() == param.given();
            CHECK(unchanged == (fault != 0));
        }
    }
}
#endif
