// GELU, SwiGLU and the residual addition on the GPU.
//
// All are bound by memory: 16 bytes a thread and array, one pass. In-place calls are allowed: before it writes an
// element, a thread has read it, and no other thread reads it.
#include <initializer_list>

#include "kernels/activation.h"
#include "kernels/cuda_common.cuh"

namespace slab {
namespace {

using cuda::load;
using cuda::store;
using cuda::Values;

struct Sigmoid {
    float value, slope;
};

// The exponential of -|z| cannot overflow. The slope avoids the cancellation in 1 - value.
__device__ __forceinline__ Sigmoid sigmoid(float z) {
    const float e = cuda::exponential(-fabsf(z)), r = 1 / (1 + e);
    return {z < 0 ? e * r : r, e * r * r};
}

constexpr float kGeluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

// GELU with tanh is x * sigmoid of this.
__device__ __forceinline__ float gelu_argument(float x) {
    return kGeluScale * x * (1 + kGeluCubic * x * x);
}

struct GeluForward {
    real* y;        // [n]
    const real* x;  // [n]
    template <int kWidth>
    __device__ __forceinline__ void run(size_t i) const {
        Values<kWidth> v = load<kWidth>(x + i);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) v.v[k] *= sigmoid(gelu_argument(v.v[k])).value;
        store(y + i, v);
    }
};

struct GeluBackward {
    real* dx;        // [n]
    const real* dy;  // [n]
    const real* x;   // [n]
    template <int kWidth>
    __device__ __forceinline__ void run(size_t i) const {
        const Values<kWidth> v = load<kWidth>(x + i);
        Values<kWidth> d = load<kWidth>(dy + i);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const float in = v.v[k];
            const Sigmoid s = sigmoid(gelu_argument(in));
            d.v[k] *= s.value + in * s.slope * kGeluScale * (1 + 3 * kGeluCubic * in * in);
        }
        store(dx + i, d);
    }
};

constexpr int kSwigluThreads = 128;

// Grid: rows, tiles of the row.
template <int kWidth>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_forward_kernel(real* y /*[rows, I]*/, const real* gate_up /*[rows, 2 I]*/, int I) {
    const int i = (blockIdx.y * kSwigluThreads + threadIdx.x) * kWidth;
    if (i >= I) return;
    const real* gate = gate_up + static_cast<size_t>(blockIdx.x) * 2 * I + i;
    Values<kWidth> g = load<kWidth>(gate);
    const Values<kWidth> u = load<kWidth>(gate + I);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) g.v[k] *= sigmoid(g.v[k]).value * u.v[k];
    store(y + static_cast<size_t>(blockIdx.x) * I + i, g);
}

template <int kWidth>
__global__ void __launch_bounds__(kSwigluThreads)
    swiglu_backward_kernel(real* d_gate_up /*[rows, 2 I]*/, const real* dy /*[rows, I]*/,
                           const real* gate_up /*[rows, 2 I]*/, int I) {
    const int i = (blockIdx.y * kSwigluThreads + threadIdx.x) * kWidth;
    if (i >= I) return;
    const size_t at = static_cast<size_t>(blockIdx.x) * 2 * I + i;
    Values<kWidth> g = load<kWidth>(gate_up + at), u = load<kWidth>(gate_up + at + I);
    const Values<kWidth> d = load<kWidth>(dy + static_cast<size_t>(blockIdx.x) * I + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
        const float gate = g.v[k], up = u.v[k];
        const Sigmoid s = sigmoid(gate);
        g.v[k] = d.v[k] * up * (s.value + gate * s.slope);
        u.v[k] = d.v[k] * gate * s.value;
    }
    store(d_gate_up + at, g);
    store(d_gate_up + at + I, u);
}

dim3 swiglu_grid(size_t rows, int I, int width) {
    return {cuda::grid_size(rows), static_cast<unsigned>(cuda::ceil_div(I, kSwigluThreads * width))};
}

bool swiglu_vectors(int I, std::initializer_list<const void*> pointers) {
    return I % cuda::kVector == 0 && cuda::aligned(pointers, 16);
}

}  // namespace

void gelu_forward(real* y, const real* x, size_t n, Stream& stream) {
    const OpScope scope(stream, "gelu_forward");
    cuda::launch_each<cuda::kVector>(GeluForward{y, x}, n, cuda::aligned({y, x}, 16), native(stream));
}

void gelu_backward(real* dx, const real* dy, const real* x, size_t n, Stream& stream) {
    const OpScope scope(stream, "gelu_backward");
    cuda::launch_each<cuda::kVector>(GeluBackward{dx, dy, x}, n, cuda::aligned({dx, dy, x}, 16), native(stream));
}

void swiglu_forward(real* y, const real* gate_up, size_t rows, int I, Stream& stream) {
    const OpScope scope(stream, "swiglu_forward");
    if (rows == 0 || I == 0) return;
    const auto launch = [&](auto kernel, int width) {
        kernel<<<swiglu_grid(rows, I, width), kSwigluThreads, 0, native(stream)>>>(y, gate_up, I);
        CUDA_CHECK(cudaGetLastError());
    };
    if (swiglu_vectors(I, {y, gate_up}))
        launch(swiglu_forward_kernel<cuda::kVector>, cuda::kVector);
    else
        launch(swiglu_forward_kernel<1>, 1);
}

void swiglu_backward(real* d_gate_up, const real* dy, const real* gate_up, size_t rows, int I, Stream& stream) {
    const OpScope scope(stream, "swiglu_backward");
    if (rows == 0 || I == 0) return;
    const auto launch = [&](auto kernel, int width) {
        kernel<<<swiglu_grid(rows, I, width), kSwigluThreads, 0, native(stream)>>>(d_gate_up, dy, gate_up, I);
        CUDA_CHECK(cudaGetLastError());
    };
    if (swiglu_vectors(I, {d_gate_up, dy, gate_up}))
        launch(swiglu_backward_kernel<cuda::kVector>, cuda::kVector);
    else
        launch(swiglu_backward_kernel<1>, 1);
}

}  // namespace slab
