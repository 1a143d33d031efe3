// The device's norms, rotary, activations, embeddings and dropout against the references in double precision, in either
// number type. Products, losses and attention have files of their own.
//
// Each runs twice from the same state: the bits must agree. Shapes include sizes, strides and addresses that forbid
// 16-byte accesses (gpu_compare.h explains the other checks).
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/activation.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

namespace {

// Tokens' documents: a new one every `every` tokens or so; 0: none.
std::vector<int32_t> documents(size_t rows, int T_len, int every) {
    std::vector<int32_t> start(rows);
    for (size_t row = 0; row < rows; ++row) {
        const int t = static_cast<int>(row % T_len);
        start[row] = t == 0 ? 0 : (t + static_cast<int>(row) / T_len) % every == 0 ? t : start[row - 1];
    }
    return start;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_SUITE("gpu") {
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
                if (centred) CHECK(norm_error(mean.got(), want_mean) < kFloatTolerance);
                CHECK(norm_error(rstd.got(), want_rstd) < kFloatTolerance);
                CHECK(norm_error(y.got(), want_y) < kTolerance);
                // A row of one element is constant after the norm: its gradient is nothing but rounding.
                if (s.C > 1) CHECK(norm_error(dx.got(), want_dx) < kTolerance);
                CHECK(norm_error(dw.got(), want_dw) < kFloatTolerance);
                CHECK(norm_error(db.got(), want_db) < kFloatTolerance);
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
                CHECK(norm_error(y.got(), want_y) < kTolerance);
                CHECK(norm_error(rstd.got(), want_rstd) < kFloatTolerance);
                CHECK(norm_error(dw_q.got(), want_q) < kFloatTolerance);
                CHECK(norm_error(dw_k.got(), want_k) < kFloatTolerance);
                // A head of one element has no gradient but rounding.
                if (s.HD > 1) CHECK(norm_error(out.got(), want_dx) < kTolerance);
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
                CHECK(norm_error(x.got(), want) < kTolerance);
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
                CHECK(norm_error(gelu.got(), want) < kTolerance);
                x.upload();

                Reals& d_gelu = in_place ? dy : y;
                run_twice({&d_gelu}, [&] { gelu_backward(d_gelu.data(), dy.data(), x.data(), n, gpu.stream); });
                ref::gelu_backward(want.data(), gdy.data(), gx.data(), n, gpu.pool());
                CHECK(norm_error(d_gelu.got(), want) < kTolerance);
                run_twice({&x}, [&] {  // the other way in place, as the block does it
                    dy.upload();
                    gelu_backward(x.data(), dy.data(), x.data(), n, gpu.stream);
                });
                CHECK(norm_error(x.got(), want) < kTolerance);
                x.upload();

                run_twice({&y}, [&] { swiglu_forward(y.data(), gate_up.data(), s.rows, s.I, gpu.stream); });
                ref::swiglu_forward(want.data(), ggu.data(), s.rows, s.I, gpu.pool());
                CHECK(norm_error(y.got(), want) < kTolerance);

                Reals& d = in_place ? gate_up : d_gate_up;
                run_twice({&d}, [&] { swiglu_backward(d.data(), dy.data(), gate_up.data(), s.rows, s.I, gpu.stream); });
                ref::swiglu_backward(want2.data(), gdy.data(), ggu.data(), s.rows, s.I, gpu.pool());
                CHECK(norm_error(d.got(), want2) < kTolerance);
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
            CHECK(norm_error(x.got(), want) < kTolerance);
            CHECK(norm_error(dwte.got(), want_dwte) < kFloatTolerance);
            CHECK(norm_error(dwpe.got(), want_dwpe) < kFloatTolerance);
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
                    CHECK(norm_error(got, sum) < kTolerance);
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
}

#endif  // SLABSTREAM_CUDA
