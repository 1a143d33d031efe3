// Softmax and cross-entropy on the CPU, row by row. The exponentials exp(z - max) replace the logits and are then
// scaled into the gradient, so a row is read from memory about once.
//
// Sums run over fixed blocks in a fixed number of lanes, which the compiler vectorises. The blocks are added in double.
// So the order depends on V alone, and the loss has the same bits with and without backward.
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/fast_math.h"

namespace slab {
namespace {

constexpr int kLanes = 16;
constexpr int kBlock = 1024;  // elements a lane sum runs over before it goes into the double total

// Ignores NaN, which shows in the sum of exponentials.
template <class Number>
Number max_of(const Number* z /*[n]*/, int n) {
    constexpr int kWidth = 32 / sizeof(Number);
    typedef Number Vector
        __attribute__((vector_size(32), aligned(sizeof(Number)), may_alias));  // a plain loop stays scalar
    Vector lanes = Vector{} - std::numeric_limits<Number>::infinity();
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) {
        const Vector v = *reinterpret_cast<const Vector*>(z + i);
        lanes = v > lanes ? v : lanes;
    }
    Number max = -std::numeric_limits<Number>::infinity();
    for (int l = 0; l < kWidth; ++l) max = lanes[l] > max ? lanes[l] : max;
    for (; i < n; ++i) max = z[i] > max ? z[i] : max;
    return max;
}

// e[i] = exp(z[i] - max); returns their sum. e may be z.
template <class Number>
Number exp_block(Number* e, const Number* z, int n, Number max) {
    for (int i = 0; i < n; ++i) e[i] = fast_exp<Number>(z[i] - max);
    Number lane[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) lane[l] += e[i + l];
    }
    for (; i < n; ++i) lane[0] += e[i];
    Number sum = 0;
    for (int l = 0; l < kLanes; ++l) sum += lane[l];
    return sum;
}

template <class Number>
Acc<Number> cross_entropy_row(Number* z /*[V]*/, int32_t target, int V, Acc<Number> dloss, bool backward) {
    const Number max = max_of(z, V), z_target = z[target];
    double sum = 0;
    Number scratch[kBlock];
    for (int v0 = 0; v0 < V; v0 += kBlock) {
        const int n = std::min(kBlock, V - v0);
        sum += exp_block(backward ? z + v0 : scratch, z + v0, n, max);
    }
    if (backward) {
        const Number scale = static_cast<Number>(dloss / sum);
        for (int v = 0; v < V; ++v) z[v] *= scale;
        z[target] -= static_cast<Number>(dloss);
    }
    return static_cast<Acc<Number>>(std::log(sum) - (static_cast<double>(z_target) - static_cast<double>(max)));
}

}  // namespace

namespace ref {

template <class Number>
void cross_entropy(Acc<Number>* losses, Number* logits, const int32_t* targets, size_t rows, int V, Acc<Number> dloss,
                   bool backward, ThreadPool& pool) {
    constexpr size_t kTileElems = 16384;
    const size_t tile_rows = std::max<size_t>(1, kTileElems / static_cast<size_t>(std::max(V, 1)));
    pool.parallel_ranges(rows, tile_rows, [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            Number* z = logits + row * V;
            const int32_t target = targets[row];
            if (target == kIgnoreTarget) {
                losses[row] = 0;
                if (backward) std::fill_n(z, V, Number(0));
            } else if (target < 0 || target >= V) {
                throw std::out_of_range("target " + std::to_string(target) + " in row " + std::to_string(row) +
                                        " is outside the vocabulary of " + std::to_string(V) + " and is not " +
                                        std::to_string(kIgnoreTarget) + " (masked)");
            } else {
                losses[row] = cross_entropy_row(z, target, V, dloss, backward);
            }
        }
    });
}

template <class Number>
void sum_losses(double* sum, const Number* losses, size_t n, bool accumulate, ThreadPool&) {
    double total = 0;  // finished before it is added, as a gradient is
    for (size_t i = 0; i < n; ++i) total += losses[i];
    *sum = (accumulate ? *sum : 0.0) + total;
}

template void cross_entropy<float>(float*, float*, const int32_t*, size_t, int, float, bool, ThreadPool&);
template void cross_entropy<double>(double*, double*, const int32_t*, size_t, int, double, bool, ThreadPool&);
template void sum_losses(double*, const float*, size_t, bool, ThreadPool&);
template void sum_losses(double*, const double*, size_t, bool, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void cross_entropy(float* losses, real* logits, const int32_t* targets, size_t rows, int V, float dloss, bool backward,
                   Stream& stream) {
    stream.enqueue("cross_entropy", [=](ThreadPool& pool) {
        ref::cross_entropy<real>(losses, logits, targets, rows, V, dloss, backward, pool);
    });
}

void sum_losses(double* sum, const float* losses, size_t n, bool accumulate, Stream& stream) {
    stream.enqueue("sum_losses", [=](ThreadPool& pool) { ref::sum_losses(sum, losses, n, accumulate, pool); });
}
#endif

}  // namespace slab
