// LayerNorm, RMSNorm and RMSNorm per head on the GPU.
//
// A block owns a row, a warp owns a head. It keeps the row in registers if that fits, so that memory is read once. A
// row that does not fit, or whose address forbids vectors, is read again from the cache. Weights' gradients, which only
// full training wants, are column sums in a fixed order (cuda_common.cuh).
#include <initializer_list>

#include "kernels/cuda_common.cuh"
#include "kernels/norm.h"

namespace slab {
namespace {

using cuda::load;
using cuda::Values;

constexpr int kMaxThreads = 256;

// This thread's elements of a row [C], kWidth at a time. They are held in registers if kHeld vectors are enough for the
// whole row. kHeld 0: they are read anew at each visit.
template <int kWidth, int kHeld>
class RowPart {
  public:
    __device__ __forceinline__ RowPart(const real* row, int C) : row_(row), C_(C) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            if (column(i) < C_) held_[i] = load<kWidth>(row_ + column(i));
    }
    // f(first column, values)
    template <class F>
    __device__ __forceinline__ void for_each(const F& f) const {
        if constexpr (kHeld > 0) {
#pragma unroll
            for (int i = 0; i < kHeld; ++i)
                if (column(i) < C_) f(column(i), held_[i]);
        } else {
            for (int i = 0; column(i) < C_; ++i) f(column(i), load<kWidth>(row_ + column(i)));
        }
    }
    // f(first column, values, the other row's values there)
    template <class F>
    __device__ __forceinline__ void for_each_with(const RowPart& other, const F& f) const {
        if constexpr (kHeld > 0) {
#pragma unroll
            for (int i = 0; i < kHeld; ++i)
                if (column(i) < C_) f(column(i), held_[i], other.held_[i]);
        } else {
            for (int i = 0; column(i) < C_; ++i)
                f(column(i), load<kWidth>(row_ + column(i)), load<kWidth>(other.row_ + column(i)));
        }
    }

  private:
    __device__ __forceinline__ int column(int i) const {
        return (threadIdx.x + i * blockDim.x) * kWidth;
    }

    const real* row_;
    int C_;
    Values<kWidth> held_[kHeld > 0 ? kHeld : 1];
};

// kCentred: LayerNorm, which subtracts the mean and may add a bias; else RMSNorm.
template <bool kCentred, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMaxThreads) norm_forward_kernel(NormForward<real> a) {
    const size_t row = blockIdx.x;
    const RowPart<kWidth, kHeld> x(a.x + row * a.C, a.C);
    float mean = 0;
    if constexpr (kCentred) {
        float sum[1] = {};
        x.for_each([&](int, const Values<kWidth>& v) {
#pragma unroll
            for (int k = 0; k < kWidth; ++k) sum[0] += v.v[k];
        });
        cuda::block_sum(sum);
        mean = sum[0] / a.C;
    }
    float squares[1] = {};
    x.for_each([&](int, const Values<kWidth>& v) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) squares[0] += (v.v[k] - mean) * (v.v[k] - mean);
    });
    cuda::block_sum(squares);
    const float rstd = 1 / sqrtf(squares[0] / a.C + a.eps);
    real* y = a.y + row * a.C;
    x.for_each([&](int c, const Values<kWidth>& v) {
        const Values<kWidth> w = load<kWidth>(a.w + c);
        Values<kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) out.v[k] = (v.v[k] - mean) * rstd * w.v[k];
        if constexpr (kCentred) {
            if (a.b) {
                const Values<kWidth> b = load<kWidth>(a.b + c);
#pragma unroll
                for (int k = 0; k < kWidth; ++k) out.v[k] += b.v[k];
            }
        }
        cuda::store(y + c, out);
    });
    if (threadIdx.x == 0) {
        if constexpr (kCentred) a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

// With n = (x - mean) rstd and g = dy w:  dx += rstd (g - mean(g) - n mean(g n)), RMSNorm without mean(g).
template <bool kCentred, int kWidth, int kHeld>
__global__ void __launch_bounds__(kMaxThreads) norm_backward_kernel(NormBackward<real> a) {
    const size_t row = blockIdx.x;
    const RowPart<kWidth, kHeld> x(a.x + row * a.C, a.C), dy(a.dy + row * a.C, a.C);
    const float mean = kCentred ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float sums[2] = {};  // of g n and of g
    x.for_each_with(dy, [&](int c, const Values<kWidth>& v, const Values<kWidth>& d) {
        const Values<kWidth> w = load<kWidth>(a.w + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const float g = d.v[k] * w.v[k];
            sums[0] += g * ((v.v[k] - mean) * rstd);
            if constexpr (kCentred) sums[1] += g;
        }
    });
    cuda::block_sum(sums);
    const float mean_gn = sums[0] / a.C, mean_g = sums[1] / a.C;
    real* dx = a.dx + row * a.C;
    x.for_each_with(dy, [&](int c, const Values<kWidth>& v, const Values<kWidth>& d) {
        const Values<kWidth> w = load<kWidth>(a.w + c);
        Values<kWidth> out = load<kWidth>(dx + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            out.v[k] += rstd * (d.v[k] * w.v[k] - mean_g - (v.v[k] - mean) * rstd * mean_gn);
        }
        cuda::store(dx + c, out);
    });
}

struct WeightGradientTerm {
    const real* dy;     // [rows, C]
    const real* x;      // [rows, C]
    const float* mean;  // [rows] or null
    const float* rstd;  // [rows]
    int C;
    __device__ float operator()(size_t row, int c) const {
        const float centred = cuda::as_float(x[row * C + c]) - (mean ? mean[row] : 0.0f);
        return cuda::as_float(dy[row * C + c]) * (centred * rstd[row]);
    }
};
struct BiasGradientTerm {
    const real* dy;  // [rows, C]
    int C;
    __device__ float operator()(size_t row, int c) const { return cuda::as_float(dy[row * C + c]); }
};

// How a row is read: as 16-byte vectors if shape and addresses allow them, held in registers if they are few.
struct RowPlan {
    int width, held, threads;
};
RowPlan plan_row(int C, bool vectors) {
    const int width = vectors && C % cuda::kVector == 0 ? cuda::kVector : 1;
    const int accesses = C / width;
    const int threads =
        accesses >= kMaxThreads ? kMaxThreads : (accesses + cuda::kWarp - 1) / cuda::kWarp * cuda::kWarp;
    const int per_thread = (accesses + threads - 1) / threads;
    if (width == 1) return {1, 0, threads};
    return {width, per_thread == 1 ? 1 : per_thread == 2 ? 2 : per_thread <= 4 ? 4 : 0, threads};
}

template <class Args>
void launch_rows(void (*kernel)(Args), const Args& a, int threads, cudaStream_t stream) {
    kernel<<<cuda::grid_size(a.rows), threads, 0, stream>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

template <bool kCentred>
void norm_forward(const NormForward<real>& a, cudaStream_t stream) {
    if (a.rows == 0 || a.C == 0) return;
    const RowPlan plan = plan_row(a.C, cuda::aligned({a.y, a.x, a.w, a.b}, 16));
    constexpr int kV = cuda::kVector;
    const auto kernel = plan.width == 1  ? norm_forward_kernel<kCentred, 1, 0>
                        : plan.held == 1 ? norm_forward_kernel<kCentred, kV, 1>
                        : plan.held == 2 ? norm_forward_kernel<kCentred, kV, 2>
                        : plan.held == 4 ? norm_forward_kernel<kCentred, kV, 4>
                                         : norm_forward_kernel<kCentred, kV, 0>;
    launch_rows(kernel, a, plan.threads, stream);
}

template <bool kCentred>
void norm_backward(const NormBackward<real>& a, cudaStream_t stream) {
    if (a.rows == 0 || a.C == 0) return;
    const RowPlan plan = plan_row(a.C, cuda::aligned({a.dx, a.dy, a.x, a.w}, 16));
    constexpr int kV = cuda::kVector;
    const auto kernel = plan.width == 1  ? norm_backward_kernel<kCentred, 1, 0>
                        : plan.held == 1 ? norm_backward_kernel<kCentred, kV, 1>
                        : plan.held == 2 ? norm_backward_kernel<kCentred, kV, 2>
                        : plan.held == 4 ? norm_backward_kernel<kCentred, kV, 4>
                                         : norm_backward_kernel<kCentred, kV, 0>;
    launch_rows(kernel, a, plan.threads, stream);
    const float* mean = kCentred ? a.mean : nullptr;
    if (a.dw) cuda::add_column_sums(a.dw, a.C, a.rows, WeightGradientTerm{a.dy, a.x, mean, a.rstd, a.C}, stream);
    if (a.db) cuda::add_column_sums(a.db, a.C, a.rows, BiasGradientTerm{a.dy, a.C}, stream);
}

// ---- RMSNorm per head: a warp a head ----

constexpr int kHeadVector = 4, kHeadsPerBlock = 4;

// Which head of which row this warp has; row == rows: none.
struct HeadIndex {
    size_t row;
    int head;
};
__device__ __forceinline__ HeadIndex head_index(size_t rows, int heads) {
    const size_t i = static_cast<size_t>(blockIdx.x) * kHeadsPerBlock + threadIdx.x / cuda::kWarp;
    if (i >= rows * heads) return {rows, 0};
    return {i / heads, static_cast<int>(i % heads)};
}

template <int kWidth>
__global__ void __launch_bounds__(kHeadsPerBlock* cuda::kWarp) head_norm_forward_kernel(HeadNormForward<real> a) {
    const int heads = a.NH + a.NKV, first = threadIdx.x % cuda::kWarp * kWidth;
    const HeadIndex at = head_index(a.rows, heads);
    if (at.row == a.rows) return;
    const real* x = a.x + at.row * a.ld_x + static_cast<size_t>(at.head) * a.HD;
    real* y = a.y + at.row * a.ld_y + static_cast<size_t>(at.head) * a.HD;
    const real* w = at.head < a.NH ? a.w_q : a.w_k;
    float squares[1] = {};
    for (int c = first; c < a.HD; c += cuda::kWarp * kWidth) {
        const Values<kWidth> v = load<kWidth>(x + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) squares[0] += v.v[k] * v.v[k];
    }
    cuda::warp_sum(squares);
    const float rstd = 1 / sqrtf(squares[0] / a.HD + a.eps);
    for (int c = first; c < a.HD; c += cuda::kWarp * kWidth) {
        Values<kWidth> v = load<kWidth>(x + c);
        const Values<kWidth> weight = load<kWidth>(w + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) v.v[k] *= rstd * weight.v[k];
        cuda::store(y + c, v);
    }
    if (first == 0) a.rstd[at.row * heads + at.head] = rstd;
}

// dx may be dy: a lane overwrites only what it alone reads.
template <int kWidth>
__global__ void __launch_bounds__(kHeadsPerBlock* cuda::kWarp) head_norm_backward_kernel(HeadNormBackward<real> a) {
    const int heads = a.NH + a.NKV, first = threadIdx.x % cuda::kWarp * kWidth;
    const HeadIndex at = head_index(a.rows, heads);
    if (at.row == a.rows) return;
    const size_t column = static_cast<size_t>(at.head) * a.HD;
    const real* x = a.x + at.row * a.ld_x + column;
    const real* dy = a.dy + at.row * a.ld_dy + column;
    real* dx = a.dx + at.row * a.ld_dx + column;
    const real* w = at.head < a.NH ? a.w_q : a.w_k;
    const float rstd = a.rstd[at.row * heads + at.head];
    float sum_gn[1] = {};
    for (int c = first; c < a.HD; c += cuda::kWarp * kWidth) {
        const Values<kWidth> v = load<kWidth>(x + c), d = load<kWidth>(dy + c), weight = load<kWidth>(w + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sum_gn[0] += d.v[k] * weight.v[k] * (v.v[k] * rstd);
    }
    cuda::warp_sum(sum_gn);
    const float mean_gn = sum_gn[0] / a.HD;
    for (int c = first; c < a.HD; c += cuda::kWarp * kWidth) {
        const Values<kWidth> v = load<kWidth>(x + c), weight = load<kWidth>(w + c);
        Values<kWidth> d = load<kWidth>(dy + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) d.v[k] = rstd * (d.v[k] * weight.v[k] - v.v[k] * rstd * mean_gn);
        cuda::store(dx + c, d);
    }
}

// One row's share of dw_q or dw_k: the sum over the heads [first_head, first_head + heads).
struct HeadWeightTerm {
    HeadNormBackward<real> a;
    int first_head, heads;
    __device__ float operator()(size_t row, int c) const {
        float sum = 0;
        for (int h = first_head; h < first_head + heads; ++h) {
            const size_t column = static_cast<size_t>(h) * a.HD + c;
            const float rstd = a.rstd[row * (a.NH + a.NKV) + h];
            sum += cuda::as_float(a.dy[row * a.ld_dy + column]) * (cuda::as_float(a.x[row * a.ld_x + column]) * rstd);
        }
        return sum;
    }
};

bool head_vectors(int HD, std::initializer_list<size_t> strides, std::initializer_list<const void*> pointers) {
    for (const size_t s : strides)
        if (s % kHeadVector != 0) return false;
    return HD % kHeadVector == 0 && cuda::aligned(pointers, kHeadVector * sizeof(real));
}

template <class Args>
void launch_heads(void (*kernel)(Args), const Args& a, cudaStream_t stream) {
    const size_t blocks = cuda::ceil_div(a.rows * (static_cast<size_t>(a.NH) + a.NKV), kHeadsPerBlock);
    if (blocks == 0 || a.HD == 0) return;
    kernel<<<cuda::grid_size(blocks), kHeadsPerBlock * cuda::kWarp, 0, stream>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void layernorm_forward(const NormForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "layernorm_forward");
    norm_forward<true>(a, native(stream));
}

void layernorm_backward(const NormBackward<real>& a, Stream& stream) {
    const OpScope scope(stream, "layernorm_backward");
    norm_backward<true>(a, native(stream));
}

void rmsnorm_forward(const NormForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "rmsnorm_forward");
    norm_forward<false>(a, native(stream));
}

void rmsnorm_backward(const NormBackward<real>& a, Stream& stream) {
    const OpScope scope(stream, "rmsnorm_backward");
    norm_backward<false>(a, native(stream));
}

void head_norm_forward(const HeadNormForward<real>& a, Stream& stream) {
    const OpScope scope(stream, "head_norm_forward");
    const bool vectors = head_vectors(a.HD, {a.ld_y, a.ld_x}, {a.y, a.x, a.w_q, a.w_k});
    launch_heads(vectors ? head_norm_forward_kernel<kHeadVector> : head_norm_forward_kernel<1>, a, native(stream));
}

void head_norm_backward(const HeadNormBackward<real>& a, Stream& stream) {
    const OpScope scope(stream, "head_norm_backward");
    // The weights' gradients first: dx may overwrite dy.
    if (a.dw_q) cuda::add_column_sums(a.dw_q, a.HD, a.rows, HeadWeightTerm{a, 0, a.NH}, native(stream));
    if (a.dw_k) cuda::add_column_sums(a.dw_k, a.HD, a.rows, HeadWeightTerm{a, a.NH, a.NKV}, native(stream));
    const bool vectors = head_vectors(a.HD, {a.ld_dx, a.ld_dy, a.ld_x}, {a.dx, a.dy, a.x, a.w_q, a.w_k});
    launch_heads(vectors ? head_norm_backward_kernel<kHeadVector> : head_norm_backward_kernel<1>, a, native(stream));
}

}  // namespace slab
