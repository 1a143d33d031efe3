// Rotary position embedding on the GPU, in place; the table comes from rotary.cpp.
//
// A block owns a row. Its cosines and sines are read once from memory, and by all heads from the cache. A thread
// rotates pairs of elements that no other thread touches.
#include "kernels/cuda_common.cuh"
#include "kernels/rotary.h"

namespace slab {
namespace {

using cuda::Values;

template <int kWidth>
__global__ void __launch_bounds__(256) rotary_kernel(Rotary<real> a) {
    const size_t row = blockIdx.x;
    const int half = a.HD / 2;
    const int position = static_cast<int>(row % a.T_len) + a.first_position - (a.doc_start ? a.doc_start[row] : 0);
    const float* angles = a.table + static_cast<size_t>(position) * half * 2;  // [half, 2]: cos, sin
    const int per_head = half / kWidth;
    for (int item = threadIdx.x; item < a.heads * per_head; item += blockDim.x) {
        const int head = item / per_head, i = (item - head * per_head) * kWidth;
        real* first = a.x + row * a.ld_x + static_cast<size_t>(head) * 2 * half + i;
        Values<kWidth> x1 = cuda::load<kWidth>(first), x2 = cuda::load<kWidth>(first + half);
        float turn[2 * kWidth];
        if constexpr (kWidth == 1) {
            turn[0] = angles[2 * i], turn[1] = angles[2 * i + 1];
        } else {
#pragma unroll
            for (int k = 0; k < 2 * kWidth; k += 4) {
                const Values<4> four = cuda::load<4>(angles + 2 * i + k);
#pragma unroll
                for (int j = 0; j < 4; ++j) turn[k + j] = four.v[j];
            }
        }
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const float cosine = turn[2 * k], sine = a.backward ? -turn[2 * k + 1] : turn[2 * k + 1];
            const float v1 = x1.v[k], v2 = x2.v[k];
            x1.v[k] = v1 * cosine - v2 * sine;
            x2.v[k] = v2 * cosine + v1 * sine;
        }
        cuda::store(first, x1);
        cuda::store(first + half, x2);
    }
}

}  // namespace

void rotary(const Rotary<real>& a, Stream& stream) {
    const OpScope scope(stream, "rotary");
    if (a.rows == 0 || a.heads == 0 || a.HD < 2) return;
    const bool vectors =
        a.HD % (2 * cuda::kVector) == 0 && a.ld_x % cuda::kVector == 0 && cuda::aligned({a.x, a.table}, 16);
    const auto kernel = vectors ? rotary_kernel<cuda::kVector> : rotary_kernel<1>;
    kernel<<<cuda::grid_size(a.rows), 256, 0, native(stream)>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
