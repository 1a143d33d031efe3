// Softmax and cross-entropy on the GPU, a block a row. One pass finds maximum and sum together, one turns the logits
// into their gradient.
//
// Rows of an odd vocabulary start anywhere. So a row is read as single elements up to a 16-byte boundary, then as
// vectors, then as single elements. A target outside the vocabulary gives the loss NaN, as a kernel cannot throw; the
// optimizer then skips the update.
#include <cmath>
#include <type_traits>

#include "kernels/cross_entropy.h"
#include "kernels/cuda_common.cuh"

namespace slab {
namespace {

// Of the elements seen so far: their maximum, and the sum of exp(z - maximum).
struct Softmax {
    float max, sum;
};

__device__ __forceinline__ float finite_base(float max) {
    return max == -INFINITY ? 0.0f : max;  // -inf - -inf would be NaN, where exp(-inf) = 0 is meant
}

__device__ __forceinline__ Softmax merge(Softmax a, Softmax b) {
    const float max = fmaxf(a.max, b.max), base = finite_base(max);
    return {max, a.sum * cuda::exponential(a.max - base) + b.sum * cuda::exponential(b.max - base)};
}

template <int kWidth>
__device__ __forceinline__ Softmax extend(Softmax s, const cuda::Values<kWidth>& z) {
    float max = s.max;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) max = fmaxf(max, z.v[k]);  // passes over NaN, which shows in the sum
    const float base = finite_base(max);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += cuda::exponential(z.v[k] - base);
    return {max, s.sum * cuda::exponential(s.max - base) + sum};
}

// The block's total, with the same bits in every thread.
__device__ Softmax block_merge(Softmax s) {
    __shared__ Softmax partial[cuda::kWarp];
    const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp, warps = blockDim.x / cuda::kWarp;
    const auto warp_merge = [](Softmax v) {
#pragma unroll
        for (int offset = cuda::kWarp / 2; offset > 0; offset /= 2) {
            v = merge(v, {__shfl_down_sync(0xffffffffu, v.max, offset), __shfl_down_sync(0xffffffffu, v.sum, offset)});
        }
        return v;
    };
    s = warp_merge(s);
    if (lane == 0) partial[warp] = s;
    __syncthreads();
    if (warp == 0) {
        s = warp_merge(lane < warps ? partial[lane] : Softmax{-INFINITY, 0.0f});
        if (lane == 0) partial[0] = s;
    }
    __syncthreads();
    return partial[0];
}

// f(c, width) for this thread's elements [c, c + width) of a row.
template <class F>
__device__ __forceinline__ void for_each_in_row(const real* row /*[V]*/, int V, const F& f) {
    const std::integral_constant<int, 1> one;
    const std::integral_constant<int, cuda::kVector> vector;
    const int misalignment = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(real));
    const int head = min(V, (cuda::kVector - misalignment) % cuda::kVector);
    const int vectors = (V - head) / cuda::kVector;
    if (static_cast<int>(threadIdx.x) < head) f(static_cast<int>(threadIdx.x), one);
#pragma unroll 2
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) f(head + i * cuda::kVector, vector);
    const int rest = head + vectors * cuda::kVector + static_cast<int>(threadIdx.x);
    if (rest < V) f(rest, one);
}

template <bool kBackward>
__global__ void __launch_bounds__(1024) cross_entropy_kernel(float* losses /*[rows] =*/, real* logits /*[rows, V]*/,
                                                             const int32_t* targets /*[rows]*/, int V, float dloss) {
    const size_t row = blockIdx.x;
    real* z = logits + row * V;
    const int target = targets[row];
    if (target == kIgnoreTarget) {
        if (threadIdx.x == 0) losses[row] = 0;
        if constexpr (kBackward) {
            for_each_in_row(z, V, [&](int c, auto width) { cuda::store(z + c, cuda::Values<width.value>{}); });
        }
        return;
    }
    const float z_target = target >= 0 && target < V ? cuda::as_float(z[target]) : NAN;  // read before z is overwritten
    Softmax s{-INFINITY, 0.0f};
    for_each_in_row(z, V, [&](int c, auto width) { s = extend(s, cuda::load<width.value>(z + c)); });
    s = block_merge(s);
    if (threadIdx.x == 0) losses[row] = logf(s.sum) - (z_target - s.max);
    if constexpr (kBackward) {
        const float scale = 1 / s.sum;
        for_each_in_row(z, V, [&](int c, auto width) {
            cuda::Values<width.value> d = cuda::load<width.value>(z + c);
#pragma unroll
            for (int k = 0; k < width.value; ++k) {
                const float p = cuda::exponential(d.v[k] - s.max) * scale;
                d.v[k] = (p - (c + k == target ? 1.0f : 0.0f)) * dloss;
            }
            cuda::store(z + c, d);
        });
    }
}

constexpr int kSumThreads = 1024;

// One block: thread t adds the losses t, t + kSumThreads, ..., then the threads are added up as a tree.
__global__ void __launch_bounds__(kSumThreads)
    sum_losses_kernel(double* sum, const float* losses /*[n]*/, size_t n, bool accumulate) {
    __shared__ double partial[kSumThreads];
    double mine = 0;
    for (size_t i = threadIdx.x; i < n; i += kSumThreads) mine += losses[i];
    partial[threadIdx.x] = mine;
    for (int half = kSumThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *sum = (accumulate ? *sum : 0.0) + partial[0];
}

}  // namespace

void cross_entropy(float* losses, real* logits, const int32_t* targets, size_t rows, int V, float dloss, bool backward,
                   Stream& stream) {
    const OpScope scope(stream, "cross_entropy");
    if (rows == 0) return;
    const int threads = V >= 16384 ? 1024 : V >= 2048 ? 256 : 64;
    const auto kernel = backward ? cross_entropy_kernel<true> : cross_entropy_kernel<false>;
    kernel<<<cuda::grid_size(rows), threads, 0, native(stream)>>>(losses, logits, targets, V, dloss);
    CUDA_CHECK(cudaGetLastError());
}

void sum_losses(double* sum, const float* losses, size_t n, bool accumulate, Stream& stream) {
    const OpScope scope(stream, "sum_losses");
    sum_losses_kernel<<<1, kSumThreads, 0, native(stream)>>>(sum, losses, n, accumulate);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
