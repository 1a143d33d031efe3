// GELU, SwiGLU and the residual addition on the CPU.
//
// GELU with tanh is x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x³), so one exponential serves every function here.
// Elements are independent, so tiles do not change the bits. In-place calls are allowed and usual. The loops are marked
// ivdep, as an output is either the element just read or memory of its own.
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

// The exponential of -|z| cannot overflow. The slope avoids the cancellation in 1 - value.
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

template <class Number>
void gelu_forward(Number* y, const Number* x, size_t n, ThreadPool& pool) {
    using A = Acc<Number>;
    pool.parallel_ranges(n, kTileElems, [=](size_t begin, size_t end) {
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const A v = x[i];
            y[i] = v * sigmoid(gelu_argument(v)).value;
        }
    });
}

template <class Number>
void gelu_backward(Number* dx, const Number* dy, const Number* x, size_t n, ThreadPool& pool) {
    using A = Acc<Number>;
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

template <class Number>
void swiglu_forward(Number* y, const Number* gate_up, size_t rows, int I, ThreadPool& pool) {
    using A = Acc<Number>;
    const size_t width = static_cast<size_t>(I);
    pool.parallel_ranges(rows, rows_per_tile(I), [=](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            const Number* gate = gate_up + row * 2 * width;
            const Number* up = gate + width;
            Number* out = y + row * width;
#pragma GCC ivdep
            for (size_t i = 0; i < width; ++i) {
                const A g = gate[i];
                out[i] = g * sigmoid(g).value * up[i];
            }
        }
    });
}

template <class Number>
void swiglu_backward(Number* d_gate_up, const Number* dy, const Number* gate_up, size_t rows, int I, ThreadPool& pool) {
    using A = Acc<Number>;
    const size_t width = static_cast<size_t>(I);
    pool.parallel_ranges(rows, rows_per_tile(I), [=](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row) {
            const Number* gate = gate_up + row * 2 * width;
            const Number* up = gate + width;
            const Number* d_out = dy + row * width;
            Number* d_gate = d_gate_up + row * 2 * width;
            Number* d_up = d_gate + width;
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
