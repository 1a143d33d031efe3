// Dropout on the GPU: the mask of dropout.cpp, bit for bit.
//
// A thread draws once and owns the four channels of that draw, whether or not the row allows vector accesses.
#include <cassert>

#include "kernels/cuda_common.cuh"
#include "kernels/dropout.h"
#include "kernels/philox.h"

namespace slab {
namespace {

constexpr int kChannelsPerDraw = 4, kThreads = 256;

// Grid: rows, tiles of channels. kVectors: C and the addresses allow accesses of four elements.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads) dropout_kernel(Dropout<real> a, float scale) {
    constexpr int kWidth = kVectors ? kChannelsPerDraw : 1;
    const unsigned draw = blockIdx.y * kThreads + threadIdx.x;
    const int first = static_cast<int>(draw) * kChannelsPerDraw;
    if (first >= a.C) return;
    const size_t row = blockIdx.x;
    const uint64_t sample = a.key.first_sample + row / a.T_len;
    const uint64_t key = a.key.seed ^ (sample >> 32 << 32);
    const uint32_t where = static_cast<uint32_t>(a.key.layer) * 32u + a.key.site;
    const PhiloxOut out = philox(key, draw, static_cast<uint32_t>(row % a.T_len), static_cast<uint32_t>(sample), where);
    const size_t at = row * a.C + first;
#pragma unroll
    for (int c = 0; c < kChannelsPerDraw; c += kWidth) {
        if (first + c >= a.C) return;
        const cuda::Values<kWidth> x = cuda::load<kWidth>(a.x + at + c);
        cuda::Values<kWidth> y{};
        if (a.accumulate) y = cuda::load<kWidth>(a.y + at + c);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {  // a dropped element is 0 even where x is not finite: a select, no product
            y.v[k] += uniform01(out.v[c + k]) >= a.p ? x.v[k] * scale : 0.0f;
        }
        cuda::store(a.y + at + c, y);
    }
}

}  // namespace

void dropout(const Dropout<real>& a, Stream& stream) {
    const OpScope scope(stream, "dropout");
    assert(a.p >= 0 && a.p < 1 && a.T_len > 0 && a.key.site >= 0 && a.key.site < 32);
    if (a.rows == 0 || a.C == 0) return;
    const bool vectors = a.C % kChannelsPerDraw == 0 && cuda::aligned({a.x, a.y}, kChannelsPerDraw * sizeof(real));
    const unsigned tiles = static_cast<unsigned>(cuda::ceil_div(a.C, kChannelsPerDraw * kThreads));
    const auto kernel = vectors ? dropout_kernel<true> : dropout_kernel<false>;
    kernel<<<dim3(cuda::grid_size(a.rows), tiles), kThreads, 0, native(stream)>>>(a, 1 / (1 - a.p));
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
