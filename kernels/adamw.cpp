// AdamW and the gradient norm on the CPU.
//
// The norm is summed in double over fixed tiles of 64 Ki elements, in fixed lanes within a tile. The tiles are added in
// order. So the bits of norm and clip factor do not depend on the number of threads.
#include "kernels/adamw.h"

#include <algorithm>
#include <cmath>

namespace slab {
namespace {

constexpr size_t kNormTileElems = size_t{64} << 10;

template <class G>
double sum_of_squares(const G* g /*[n]*/, size_t n) {
    constexpr size_t kLanes = 8;
    double lane[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (size_t l = 0; l < kLanes; ++l) {
            const double v = g[i + l];
            lane[l] += v * v;
        }
    }
    for (; i < n; ++i) lane[0] += static_cast<double>(g[i]) * g[i];
    double sum = 0;
    for (double v : lane) sum += v;
    return sum;
}

// A = Acc<Number>; all arrays [n]. They do not overlap, and saying so lets the loop vectorise without checks.
template <class A>
void update_range(A* __restrict master, A* __restrict exp_avg, A* __restrict exp_avg_sq, const A* __restrict grad,
                  size_t n, const AdamWSettings settings, const OptimizerControl control) {
    const A beta1 = settings.beta1, beta2 = settings.beta2, epsilon = settings.epsilon;
    const A rate = settings.learning_rate, keep = 1 - rate * static_cast<A>(settings.weight_decay);
    const A clip = control.clip, correction1 = control.bias_correction1, correction2 = control.bias_correction2;
    for (size_t i = 0; i < n; ++i) {
        const A g = grad[i] * clip;
        const A m = beta1 * exp_avg[i] + (1 - beta1) * g;
        const A v = beta2 * exp_avg_sq[i] + (1 - beta2) * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        master[i] = master[i] * keep - rate * (m / correction1) / (std::sqrt(v / correction2) + epsilon);
    }
}

}  // namespace

size_t gradient_norm_scratch_bytes(size_t n) {
    return (n + kNormTileElems - 1) / kNormTileElems * sizeof(double);
}

namespace ref {

template <class G>
void gradient_norm(const GradientNorm<G>& a, ThreadPool& pool) {
    pool.parallel_ranges(a.n, kNormTileElems, [&](size_t begin, size_t end) {
        a.scratch[begin / kNormTileElems] = sum_of_squares(a.grad + begin, end - begin);
    });
    double sum = 0;
    for (size_t tile = 0; tile < gradient_norm_scratch_bytes(a.n) / sizeof(double); ++tile) sum += a.scratch[tile];
    const float norm = static_cast<float>(std::sqrt(sum));
    OptimizerControl& control = *a.control;
    control.grad_norm = norm;
    control.skip = !std::isfinite(norm) || (a.loss_sum && !std::isfinite(*a.loss_sum));
    if (control.skip) {
        control.clip = 0;
        return;
    }
    control.clip = a.max_norm > 0 ? std::min(1.0f, a.max_norm / (norm + 1e-6f)) : 1.0f;
    control.applied += 1;
    control.bias_correction1 = static_cast<float>(1 - std::pow(static_cast<double>(a.beta1), control.applied));
    control.bias_correction2 = static_cast<float>(1 - std::pow(static_cast<double>(a.beta2), control.applied));
}

template <class Number>
void adamw_update(const AdamWUpdate<Number>& a, ThreadPool& pool) {
    constexpr size_t kTileElems = size_t{16} << 10;
    if (a.control->skip) return;
    pool.parallel_ranges(a.n, kTileElems, [&](size_t begin, size_t end) {
        Acc<Number>* master = a.master ? a.master : a.param;
        update_range(master + begin, a.exp_avg + begin, a.exp_avg_sq + begin, a.grad + begin, end - begin, a.settings,
                     *a.control);
        if (a.master) std::copy(a.master + begin, a.master + end, a.param + begin);
    });
}

template void gradient_norm(const GradientNorm<float>&, ThreadPool&);
template void gradient_norm(const GradientNorm<double>&, ThreadPool&);
template void adamw_update(const AdamWUpdate<float>&, ThreadPool&);
template void adamw_update(const AdamWUpdate<double>&, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void gradient_norm(const GradientNorm<float>& a, Stream& stream) {
    stream.enqueue("gradient_norm", [a](ThreadPool& pool) { ref::gradient_norm(a, pool); });
}

void adamw_update(const AdamWUpdate<real>& a, Stream& stream) {
    stream.enqueue("adamw_update", [a](ThreadPool& pool) { ref::adamw_update(a, pool); });
}
#endif

}  // namespace slab
