// The device's matrix products and LoRA against the references in double precision, in either number type.
//
// Each runs twice from the same state: the bits must agree. Shapes include sizes, strides and addresses that forbid
// 16-byte accesses (gpu_compare.h explains the other checks).
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "kernels/lora.h"
#include "kernels/matmul.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

namespace {

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
                    CHECK(norm_error(y.got(), want) < kTolerance);
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
                CHECK(norm_error(dx.got(), want) < kTolerance);
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
            CHECK(norm_error(dw.got(), want) < kSumTolerance);
            CHECK(norm_error(dbias.got(), want_bias) < kFloatTolerance);
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
            CHECK(norm_error(y.got(), want_y) < kTolerance);
            CHECK(norm_error(xa.got(), want_xa) < kTolerance);
            CHECK(norm_error(dx.got(), want_dx) < kTolerance);
            CHECK(norm_error(dA.got(), ref_dA) < kTolerance);
            for (size_t i = 0; i < modules; ++i) CHECK(norm_error(dB[i]->got(), ref_dB[i]) < kTolerance);
        }
    }
}

#endif  // SLABSTREAM_CUDA
