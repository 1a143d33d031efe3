// The device's cross-entropy, gradient norm and AdamW against the references in double precision, in either number
// type.
//
// Each runs twice from the same state: the bits must agree. Shapes include sizes, strides and addresses that forbid
// 16-byte accesses (gpu_compare.h explains the other checks).
#if defined(SLABSTREAM_CUDA)
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "tests/gpu_compare.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_SUITE("gpu") {
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
                CHECK(norm_error(losses.got(), want_losses) < kFloatTolerance);
                CHECK(norm_error(got, want) < (backward ? kTolerance : 1e-12));
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
                gradient_norm({control.as<OptimizerControl>(), scratch.as<double>(), grad.data(), s.n, s.max_norm,
                               nullptr, 0.9f, 0.95f},
                              gpu.stream);
                adamw_update({device_param, master.data(), grad.data(), m.data(), v.data(), s.n, settings,
                              control.as<OptimizerControl>()},
                             gpu.stream);
            });
            const OptimizerControl got = test::from_device(gpu.stream, control.as<OptimizerControl>());
            OptimizerControl want = before;
            Doubles ref_scratch(gradient_norm_scratch_bytes(s.n) / sizeof(double));
            Doubles p = master.given(), g = grad.given(), ref_m = m.given(), ref_v = v.given();
            ref::gradient_norm<double>({&want, ref_scratch.data(), g.data(), s.n, s.max_norm, nullptr, 0.9f, 0.95f},
                                       gpu.pool());
            ref::adamw_update<double>({p.data(), nullptr, g.data(), ref_m.data(), ref_v.data(), s.n, settings, &want},
                                      gpu.pool());
            CHECK(got.grad_norm == doctest::Approx(want.grad_norm).epsilon(1e-6));
            CHECK(got.clip == doctest::Approx(want.clip).epsilon(1e-6));
            CHECK(got.skip == 0);
            CHECK(got.applied == 5);
            CHECK(got.bias_correction1 == doctest::Approx(want.bias_correction1).epsilon(1e-6));
            CHECK(got.bias_correction2 == doctest::Approx(want.bias_correction2).epsilon(1e-6));
            CHECK(norm_error(master.got(), p) < kFloatTolerance);
            CHECK(norm_error(m.got(), ref_m) < kFloatTolerance);
            CHECK(norm_error(v.got(), ref_v) < kFloatTolerance);
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
            gradient_norm({control.as<OptimizerControl>(), scratch.as<double>(), grad.data(), kN, 1, loss.as<double>(),
                           0.9f, 0.95f},
                          gpu.stream);
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

#endif  // SLABSTREAM_CUDA
