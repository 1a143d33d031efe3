// Attention over a key/value cache on the GPU. It is plain: a generated token's time goes into reading weights.
//
// A block owns one query of one head. Its warps take the keys s = warp, warp + kWarps, ..., each with its own running
// maximum, sum and output (online softmax). A warp's lanes share the head's elements. At the end the warps' results are
// joined in ascending order. So the order of every sum depends on shapes alone.
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_cached.h"
#include "kernels/cuda_common.cuh"

namespace slab {
namespace {

using cuda::as_float;

constexpr int kWarps = 8;
constexpr int kKeysAtOnce = 4;    // a warp's, so that their loads overlap
constexpr int kMaxHeads = 65535;  // a grid's second dimension

// Elements of a head: lane, lane + 32, ...; those from HD on are zero.
template <int kPerLane>
__device__ __forceinline__ void load_head(float (&x)[kPerLane], const real* p, int HD) {
    const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
        const int c = j * cuda::kWarp + lane;
        x[j] = c < HD ? as_float(p[c]) : 0.0f;
    }
}

// Grid: Tq, NH
template <int kPerLane>
__global__ void __launch_bounds__(kWarps* cuda::kWarp) attention_cached_kernel(AttentionCached<real> a) {
    const int i = blockIdx.x, h = blockIdx.y, warp = threadIdx.x / cuda::kWarp, lane = threadIdx.x % cuda::kWarp;
    const int keys = a.n - a.Tq + i + 1;
    const size_t ld_kv = static_cast<size_t>(a.NKV) * a.HD, kv_at = static_cast<size_t>(h / (a.NH / a.NKV)) * a.HD;
    float q[kPerLane], out[kPerLane] = {}, maximum = -INFINITY, sum = 0;
    load_head(q, a.q + i * a.ld_q + static_cast<size_t>(h) * a.HD, a.HD);

    for (int first = warp * kKeysAtOnce; first < keys; first += kWarps * kKeysAtOnce) {
        float score[kKeysAtOnce], x[kPerLane];
#pragma unroll
        for (int s = 0; s < kKeysAtOnce; ++s) {
            score[s] = 0;
            if (first + s >= keys) continue;  // the same for all lanes
            load_head(x, a.k_cache + (first + s) * ld_kv + kv_at, a.HD);
#pragma unroll
            for (int j = 0; j < kPerLane; ++j) score[s] += q[j] * x[j];
        }
        cuda::warp_sum(score);
        float now = maximum;
#pragma unroll
        for (int s = 0; s < kKeysAtOnce; ++s) {
            score[s] = first + s < keys ? score[s] * a.scale : -INFINITY;
            now = fmaxf(now, score[s]);
        }
        const float rescale = cuda::exponential(maximum - now);  // the first time: exp(-inf) = 0
        maximum = now;
        sum *= rescale;
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) out[j] *= rescale;
#pragma unroll
        for (int s = 0; s < kKeysAtOnce; ++s) {
            if (first + s >= keys) continue;
            const float p = cuda::exponential(score[s] - maximum);
            sum += p;
            load_head(x, a.v_cache + (first + s) * ld_kv + kv_at, a.HD);
#pragma unroll
            for (int j = 0; j < kPerLane; ++j) out[j] += p * x[j];
        }
    }

    __shared__ float maxima[kWarps], sums[kWarps], outs[kWarps][kPerLane * cuda::kWarp];
    if (lane == 0) maxima[warp] = maximum, sums[warp] = sum;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) outs[warp][j * cuda::kWarp + lane] = out[j];
    __syncthreads();
    float largest = maxima[0], total = 0;  // warp 0 always has a key
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, maxima[w]);
    for (int w = 0; w < kWarps; ++w) total += sums[w] * cuda::exponential(maxima[w] - largest);
    real* const to = a.out + (static_cast<size_t>(i) * a.NH + h) * a.HD;
    for (int c = threadIdx.x; c < a.HD; c += kWarps * cuda::kWarp) {
        float x = 0;
        for (int w = 0; w < kWarps; ++w) x += outs[w][c] * cuda::exponential(maxima[w] - largest);
        cuda::store(to + c, cuda::Values<1>{x / total});
    }
}

__global__ void __launch_bounds__(256) cache_append_kernel(CacheAppend<real> a) {
    const size_t cols = a.cols, row = blockIdx.x, to = (a.first + row) * cols;
    for (size_t c = threadIdx.x; c < cols; c += blockDim.x) {
        a.k_cache[to + c] = a.k[row * a.ld_k + c];
        a.v_cache[to + c] = a.v[row * a.ld_v + c];
    }
}

}  // namespace

void cache_append(const CacheAppend<real>& a, Stream& stream) {
    const OpScope scope(stream, "cache_append");
    if (a.rows == 0 || a.cols == 0) return;
    cache_append_kernel<<<cuda::grid_size(a.rows), 256, 0, native(stream)>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

void attention_cached(const AttentionCached<real>& a, Stream& stream) {
    const OpScope scope(stream, "attention_cached");
    if (a.Tq < 1 || a.n < a.Tq || a.NKV < 1 || a.NH % a.NKV != 0 || a.NH > kMaxHeads || a.HD < 1 ||
        a.HD > kMaxAttentionHeadSize)
        throw std::logic_error("attention_cached: Tq " + std::to_string(a.Tq) + ", n " + std::to_string(a.n) + ", NH " +
                               std::to_string(a.NH) + ", NKV " + std::to_string(a.NKV) + ", HD " +
                               std::to_string(a.HD) + "; wanted: 1 <= Tq <= n, NH at most " +
                               std::to_string(kMaxHeads) + " and a multiple of NKV, HD at most " +
                               std::to_string(kMaxAttentionHeadSize));
    const dim3 grid(static_cast<unsigned>(a.Tq), static_cast<unsigned>(a.NH));
    const auto kernel = a.HD <= 32    ? attention_cached_kernel<1>
                        : a.HD <= 64  ? attention_cached_kernel<2>
                        : a.HD <= 128 ? attention_cached_kernel<4>
                                      : attention_cached_kernel<8>;
    kernel<<<grid, kWarps * cuda::kWarp, 0, native(stream)>>>(a);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab
