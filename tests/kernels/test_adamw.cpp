// AdamW and the gradient norm against a scalar double implementation, clipping, and steps that must be skipped.
#include <doctest/doctest.h>

#include "kernels/adamw.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernel_checks.h"

using namespace slab;
using namespace slab::test;

namespace {

constexpr AdamWSettings kSettings{
    .learning_rate = 3e-3f, .beta1 = 0.9f, .beta2 = 0.995f, .epsilon = 1e-6f, .weight_decay = 0.2f};

template <class G>
void norm_into(OptimizerControl& control, const std::vector<G>& grad, float max_norm, const double* loss_sum,
               ThreadPool& pool) {
    const size_t scratch_elems = gradient_norm_scratch_bytes(grad.size()) / sizeof(double);
    Guarded<double> scratch(scratch_elems);
    ref::gradient_norm<G>(
        {&control, scratch.data(), grad.data(), grad.size(), max_norm, loss_sum, kSettings.beta1, kSettings.beta2},
        pool);
    CHECK(scratch.surroundings_untouched());
}

double plain_norm(const std::vector<double>& grad) {
    double sum = 0;
    for (double g : grad) sum += g * g;
    return std::sqrt(sum);
}

// One parameter vector under AdamW as torch.optim.AdamW and clip_grad_norm_ state it, in double.
struct PlainAdamW {
    std::vector<double> param, m, v;
    int steps = 0;

    void step(const std::vector<double>& grad, double max_norm) {
        const double norm = plain_norm(grad);
        const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
        const double beta1 = kSettings.beta1, beta2 = kSettings.beta2;
        ++steps;
        for (size_t i = 0; i < param.size(); ++i) {
            const double g = grad[i] * clip;
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            const double m_hat = m[i] / (1 - std::pow(beta1, steps)), v_hat = v[i] / (1 - std::pow(beta2, steps));
            param[i] -= static_cast<double>(kSettings.learning_rate) * kSettings.weight_decay * param[i];
            param[i] -= kSettings.learning_rate * m_hat / (std::sqrt(v_hat) + kSettings.epsilon);
        }
    }
};

template <class T>
struct Trained {
    std::vector<T> param, exp_avg, exp_avg_sq;
};

// `steps` steps with the gradients of seeds 1, 2, ...; the master is the parameter itself or a copy of its own.
template <class T>
Trained<T> train(size_t n, int steps, float max_norm, bool own_master, ThreadPool& pool) {
    Guarded<T> param(random_vector<T>(n, 1000)), master(param.values()), m(std::vector<T>(n, 0)),
        v(std::vector<T>(n, 0));
    OptimizerControl control{};
    for (int step = 1; step <= steps; ++step) {
        const std::vector<T> grad = random_vector<T>(n, step, -2, 2);
        norm_into(control, grad, max_norm, nullptr, pool);
        ref::adamw_update(AdamWUpdate<T>{param.data(), own_master ? master.data() : nullptr, grad.data(), m.data(),
                                         v.data(), n, kSettings, &control},
                          pool);
    }
    for (const Guarded<T>* out : {&param, &master, &m, &v}) CHECK(out->surroundings_untouched());
    if (own_master) CHECK(same_bits(param.values(), master.values()));
    return {param.values(), m.values(), v.values()};
}

}  // namespace

TEST_SUITE("cpu") {
    TEST_CASE("adamw: five steps as the scalar double implementation, with weight decay and clipping") {
        ThreadPool pool(2);
        const size_t n = 40001;  // crosses the tiles and ends in an odd remainder
        for (float max_norm : {0.0f, 1.0f, 1e6f}) {
            PlainAdamW plain{random_vector(n, 1000), std::vector<double>(n), std::vector<double>(n)};
            for (int step = 1; step <= 5; ++step) plain.step(random_vector(n, step, -2, 2), max_norm);
            for (bool own_master : {false, true}) {
                const Trained<double> got = train<double>(n, 5, max_norm, own_master, pool);
                // clip and bias corrections are float32, so this is as close as it gets
                CHECK(max_error(got.param, plain.param) < 1e-6);
                CHECK(max_error(got.exp_avg, plain.m) < 1e-6);
                CHECK(max_error(got.exp_avg_sq, plain.v) < 1e-6);
                const Trained<float> got_float = train<float>(n, 5, max_norm, own_master, pool);
                CHECK(max_error(got_float.param, plain.param) < 1e-5);
                CHECK(max_error(got_float.exp_avg, plain.m) < 1e-5);
                CHECK(max_error(got_float.exp_avg_sq, plain.v) < 1e-5);
            }
        }
    }

    TEST_CASE("gradient_norm: norm, clip factor, bias corrections") {
        ThreadPool pool(2);
        for (size_t n : {size_t{1}, size_t{7}, size_t{65536}, size_t{65537}, size_t{200003}}) {
            const std::vector<double> grad = random_vector(n, 3);
            const double norm = plain_norm(grad);
            for (double max_norm : {0.5 * norm, 2 * norm, 0.0, -1.0}) {
                OptimizerControl control{
                    .grad_norm = 0, .clip = 0, .skip = 1, .applied = 6, .bias_correction1 = 0, .bias_correction2 = 0};
                norm_into(control, grad, static_cast<float>(max_norm), nullptr, pool);
                CHECK(control.grad_norm == doctest::Approx(norm).epsilon(1e-6));
                CHECK(control.clip ==
                      doctest::Approx(max_norm == 0.5 * norm ? 0.5 * norm / (norm + 1e-6) : 1).epsilon(1e-6));
                CHECK(control.skip == 0);
                CHECK(control.applied == 7);
                CHECK(control.bias_correction1 == static_cast<float>(1 - std::pow(double{kSettings.beta1}, 7)));
                CHECK(control.bias_correction2 == static_cast<float>(1 - std::pow(double{kSettings.beta2}, 7)));
            }
        }
        OptimizerControl control{};
        norm_into(control, std::vector<float>{}, 1.0f, nullptr, pool);
        CHECK(control.grad_norm == 0);
        CHECK(control.clip == 1);
        CHECK(gradient_norm_scratch_bytes(65537) >= 2 * sizeof(double));
    }

    TEST_CASE("gradient_norm: squares beyond float's range") {
        ThreadPool pool(1);
        OptimizerControl control{};
        norm_into(control, std::vector<float>{3e30f, 4e30f}, 1.0f, nullptr, pool);
        CHECK(control.grad_norm == doctest::Approx(5e30));
        CHECK(control.skip == 0);
    }

    TEST_CASE("a norm or loss that is not finite skips the step and changes nothing") {
        ThreadPool pool(2);
        const size_t n = 100;
        const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
        const auto check = [&](std::vector<float> grad, const double* loss_sum) {
            OptimizerControl control{.grad_norm = 1,
                                     .clip = 1,
                                     .skip = 0,
                                     .applied = 3,
                                     .bias_correction1 = 0.25f,
                                     .bias_correction2 = 0.5f};
            norm_into(control, grad, 1.0f, loss_sum, pool);
            CHECK(control.skip == 1);
            CHECK(control.applied == 3);
            CHECK(control.clip == 0);
            const std::vector<float> start = random_vector<float>(n, 7);
            std::vector<float> param = start, m = start, v = start;
            ref::adamw_update(
                AdamWUpdate<float>{param.data(), nullptr, grad.data(), m.data(), v.data(), n, kSettings, &control},
                pool);
            CHECK(same_bits(param, start));
            CHECK(same_bits(m, start));
            CHECK(same_bits(v, start));
        };
        for (float bad : {nan, infinity, -infinity}) {
            std::vector<float> grad = random_vector<float>(n, 8);
            grad[n - 1] = bad;
            check(grad, nullptr);
            const double loss_sum = bad;
            check(random_vector<float>(n, 8), &loss_sum);
        }
        OptimizerControl control{};
        const double good = 12.5;
        norm_into(control, random_vector<float>(n, 8), 1.0f, &good, pool);
        CHECK(control.skip == 0);
        CHECK(control.applied == 1);
    }

    TEST_CASE("adamw: padding of zeros stays zero") {
        ThreadPool pool(1);
        const size_t n = 64;
        std::vector<float> grad = random_vector<float>(n, 9), param = random_vector<float>(n, 10), m(n), v(n);
        for (size_t i = 40; i < n; ++i) grad[i] = param[i] = 0;
        OptimizerControl control{};
        for (int step = 0; step < 3; ++step) {
            norm_into(control, grad, 1.0f, nullptr, pool);
            ref::adamw_update(
                AdamWUpdate<float>{param.data(), nullptr, grad.data(), m.data(), v.data(), n, kSettings, &control},
                pool);
        }
        for (size_t i = 0; i < n; ++i) {
            CAPTURE(i);
            CHECK((param[i] == 0 && m[i] == 0 && v[i] == 0) == (i >= 40));
        }
    }

    TEST_CASE("adamw: the same bits for any pool, and on a stream") {
        ThreadPool one(1), two(2), five(5);
        const size_t n = 300007;
        const Trained<float> want = train<float>(n, 2, 1.0f, false, one);
        for (ThreadPool* pool : {&two, &five}) {
            const Trained<float> got = train<float>(n, 2, 1.0f, false, *pool);
            CHECK(same_bits(got.param, want.param));
            CHECK(same_bits(got.exp_avg, want.exp_avg));
            CHECK(same_bits(got.exp_avg_sq, want.exp_avg_sq));
        }

#if !defined(SLABSTREAM_CUDA)
        Device device;
        Stream stream(device, "compute");
        std::vector<float> param = random_vector<float>(n, 1000), m(n), v(n);
        std::vector<double> scratch(gradient_norm_scratch_bytes(n) / sizeof(double));
        const std::vector<std::vector<float>> grads = {random_vector<float>(n, 1, -2, 2),
                                                       random_vector<float>(n, 2, -2, 2)};
        OptimizerControl control{};
        for (const std::vector<float>& grad : grads) {
            gradient_norm({&control, scratch.data(), grad.data(), n, 1.0f, nullptr, kSettings.beta1, kSettings.beta2},
                          stream);
            adamw_update({param.data(), nullptr, grad.data(), m.data(), v.data(), n, kSettings, &control}, stream);
        }
        stream.synchronize();
        CHECK(same_bits(param, want.param));
        CHECK(same_bits(m, want.exp_avg));
        CHECK(same_bits(v, want.exp_avg_sq));
#endif
    }
}
