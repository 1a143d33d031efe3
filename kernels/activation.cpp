// GELU, SwiGLU and the residual addition on the CPU.
//
// GELU with tanh is x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x³), so one exponential serves every function here.
// Elements are independent, so tiles do not show in the bits. The loops are marked ivdep because in-place calls are
// allowed and usual: an output is either the very element that was just read or memory of its own.
#include "kernels/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/fast_math.h"

namespace slab {
namespace ref {
namespace {

constexpr size_t kTileElems = 16384;

template <class A>
struct Sigmoid {
    A value, slope;
};

// The exponential is of -|z|: it cannot overflow, and the slope does not suffer from 1 - value cancelling.
template <class A>
inline Sigmoid<A> sigmoid(A z) {
    const A e = fast_exp(z < 0 ? z : -z), r = 1 / (1 + e);
    return {z < 0 ? e * r : r, e * r * r};
}

constexpr double kGeluScale = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <class A>
inline A gelu_argument(A x) {  // 2 u
    return static_cast<A>(kGeluScale) * x * (1 + static_cast<A>(kGeluCubic) * x * x);
}

size_t rows_per_tile(int I) {
    return std::max<size_t>(1, kTileElems / static_cast<size_t>(std::max(1, I)));
}

}  // namespace

template <class T>
void gelu_forward(T* y, const T* x, size_t n, ThreadPool& pool) {
    using A = Acc<T>;
    pool.parallel_ranges(n, kTileElems, [=](size_t begin, size_t end) {
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const A v = x[i];
            y[i] = v * sigmoid(gelu_argument(v)).value;
        }
    });
}

template <class T>
void gelu_backward(T* dx, const T* dy, const T* x, size_t n, ThreadPool& pool) {
    using A = Acc<T>;
    pool.parallel_ranges(n, kTileElems, [=](size_t begin, size_t end) {
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const A v = x[i];
            const Sigmoid<A> s = sigmoid(gelu_argument(v));
            const A argument_slope = static_cast<A>(kGeluScale) * (1 + static_cast<A>(3 * kGeluCubic) * v * v);
            dx[i] = dy[i] * (s.value + v * s.slope * argument_slope);
        }
    });
}

template <class T>
void swiglu_forward(T* y, const T* gate_up, size_t rows, int I, ThreadPool& pool) {
    using A = Acc<T>;
    const size_t width = static_cast<size_t>(I);
    pool.parallel_ranges(rows, rows_per_tile(I), [=](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            const T* gate = gate_up + row * 2 * width;
            const T* up = gate + width;
            T* out = y + row * width;
#pragma GCC ivdep
            for (size_t i = 0; i < width; ++i) {
                const A g = gate[i];
                out[i] = g * sigmoid(g).value * up[i];
            }
        }
    });
}

template <class T>
void swiglu_backward(T* d_gate_up, const T* dy, const T* gate_up, size_t rows, int I, ThreadPool& pool) {
    using A = Acc<T>;
    const size_t width = static_cast<size_t>(I);
    pool.parallel_ranges(rows, rows_per_tile(I), [=](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            const T* gate = gate_up + row * 2 * width;
            const T* up = gate + width;
            const T* d_out = dy + row * width;
            T* d_gate = d_gate_up + row * 2 * width;
            T* d_up = d_gate + width;
#pragma GCC ivdep
            for (size_t i = 0; i < width; ++i) {
                const A g = gate[i], u = up[i], d = d_out[i];
                const Sigmoid<A> s = sigmoid(g);
                d_gate[i] = d * u * (s.value + g * s.slope);
                d_up[i] = d * g * s.value;
            }
        }
    });
}

template void gelu_forward(float*, const float*, size_t, ThreadPool&);
template void gelu_forward(double*, const double*, size_t, ThreadPool&);
template void gelu_backward(float*, const float*, const float*, size_t, ThreadPool&);
template void gelu_backward(double*, const double*, const double*, size_t, ThreadPool&);
template void swiglu_forward(float*, const float*, size_t, int, ThreadPool&);
template void swiglu_forward(double*, const double*, size_t, int, ThreadPool&);
template void swiglu_backward(float*, const float*, const float*, size_t, int, ThreadPool&);
template void swiglu_backward(double*, const double*, const double*, size_t, int, ThreadPool&);

}  // namespace ref

#if !defined(SLABSTREAM_CUDA)
void gelu_forward(real* y, const real* x, size_t n, Stream& stream) {
    stream.enqueue("gelu_forward", [=](ThreadPool& pool) { ref::gelu_forward(y, x, n, pool); });
}

void gelu_backward(real* dx, const real* dy, const real* x, size_t n, Stream& stream) {
    stream.enqueue("gelu_backward", [=](ThreadPool& pool) { ref::gelu_backward(dx, dy, x, n, pool); });
}

void swiglu_forward(real* y, const real* gate_up, size_t rows, int I, Stream& stream) {
    stream.enqueue("swiglu_forward", [=](ThreadPool& pool) { ref::swiglu_forward(y, gate_up, rows, I, pool); });
}

void swiglu_backward(real* d_gate_up, const real* dy, const real* gate_up, size_t rows, int I, Stream& stream) {
    stream.enqueue("swiglu_backward",
                   [=](ThreadPool& pool) { ref::swiglu_backward(d_gate_up, dy, gate_up, rows, I, pool); });
}
#endif

}  // namespace slab
