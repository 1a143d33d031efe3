// The MLP's nonlinearities.
//
// GELU with tanh: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))).   SwiGLU: y = gate * sigmoid(gate) * up.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

namespace ref {
template <class Number>
void gelu_forward(Number* y /*[n]*/, const Number* x /*[n]*/, size_t n, ThreadPool& pool);
// dx = dy * gelu'(x); dx may be dy or x
template <class Number>
void gelu_backward(Number* dx /*[n]*/, const Number* dy /*[n]*/, const Number* x /*[n]*/, size_t n, ThreadPool& pool);
template <class Number>
void swiglu_forward(Number* y /*[rows, I]*/, const Number* gate_up /*[rows, 2 I]: gate, then up*/, size_t rows, int I,
                    ThreadPool& pool);
// d_gate_up may be gate_up itself
template <class Number>
void swiglu_backward(Number* d_gate_up /*[rows, 2 I]*/, const Number* dy /*[rows, I]*/,
                     const Number* gate_up /*[rows, 2 I]*/, size_t rows, int I, ThreadPool& pool);
}  // namespace ref

void gelu_forward(real* y, const real* x, size_t n, Stream& stream);
void gelu_backward(real* dx, const real* dy, const real* x, size_t n, Stream& stream);
void swiglu_forward(real* y, const real* gate_up, size_t rows, int I, Stream& stream);
void swiglu_backward(real* d_gate_up, const real* dy, const real* gate_up, size_t rows, int I, Stream& stream);

}  // namespace slab
