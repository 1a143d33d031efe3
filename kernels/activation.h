// The MLP's nonlinearities.
//
// GELU with tanh: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))).   SwiGLU: y = gate * sigmoid(gate) * up.
#pragma once

#include <cstddef>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

namespace ref {
template <class T>
void gelu_forward(T* y /*[n]*/, const T* x /*[n]*/, size_t n, ThreadPool& pool);
// dx = dy * gelu'(x); dx may be dy or x
template <class T>
void gelu_backward(T* dx /*[n]*/, const T* dy /*[n]*/, const T* x /*[n]*/, size_t n, ThreadPool& pool);
template <class T>
void swiglu_forward(T* y /*[rows, I]*/, const T* gate_up /*[rows, 2 I]: gate, then up*/, size_t rows, int I,
                    ThreadPool& pool);
// d_gate_up may be gate_up itself
template <class T>
void swiglu_backward(T* d_gate_up /*[rows, 2 I]*/, const T* dy /*[rows, I]*/, const T* gate_up /*[rows, 2 I]*/,
                     size_t rows, int I, ThreadPool& pool);
}  // namespace ref

void gelu_forward(real* y, const real* x, size_t n, Stream& stream);
void gelu_backward(real* dx, const real* dy, const real* x, size_t n, Stream& stream);
void swiglu_forward(real* y, const real* gate_up, size_t rows, int I, Stream& stream);
void swiglu_backward(real* d_gate_up, const real* dy, const real* gate_up, size_t rows, int I, Stream& stream);

}  // namespace slab
