// What the CUDA kernels share: vector loads and stores of either number type, sums over a block, launches.
//
// Arithmetic is float32; only storage is `real`. A kernel that can use 16-byte accesses has a twin of width 1 for sizes
// and addresses that forbid them. Shapes and the alignment of addresses decide which twin runs, the number of threads
// and the order of every sum. Shapes decide alignment too, since buffers start at multiples of 256 bytes. There are no
// float atomics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime_cuda.h"

namespace slab::cuda {

inline constexpr int kVector = 16 / sizeof(real);  // elements of a 16-byte access
inline constexpr int kWarp = 32;

// kWidth neighbouring elements, in registers.
template <int kWidth>
struct Values {
    float v[kWidth];
};

__device__ __forceinline__ float as_float(float x) {
    return x;
}
__device__ __forceinline__ float as_float(bf16 x) {
    return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

// The two elements of a 32-bit word; the first lies at the lower address.
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) | static_cast<uint32_t>(__bfloat16_as_ushort(pair.y))
                                                                     << 16;
}

// p: kWidth elements, aligned to their size (at most 16 bytes)
template <int kWidth>
__device__ __forceinline__ Values<kWidth> load(const float* p) {
    Values<kWidth> x;
    if constexpr (kWidth % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWidth; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(p + i);
            x.v[i] = four.x, x.v[i + 1] = four.y, x.v[i + 2] = four.z, x.v[i + 3] = four.w;
        }
    } else {
        static_assert(kWidth == 1);
        x.v[0] = *p;
    }
    return x;
}
template <int kWidth>
__device__ __forceinline__ Values<kWidth> load(const bf16* p) {
    Values<kWidth> x;
    if constexpr (kWidth == 1) {
        x.v[0] = as_float(*p);
    } else {
        uint32_t words[kWidth / 2];
        if constexpr (kWidth == 8) {
            const uint4 four = *reinterpret_cast<const uint4*>(p);
            words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
        } else {
            static_assert(kWidth == 4);
            const uint2 two = *reinterpret_cast<const uint2*>(p);
            words[0] = two.x, words[1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < kWidth; i += 2) {
            x.v[i] = __uint_as_float(words[i / 2] << 16);
            x.v[i + 1] = __uint_as_float(words[i / 2] & 0xffff0000u);
        }
    }
    return x;
}

template <int kWidth>
__device__ __forceinline__ void store(float* p, const Values<kWidth>& x) {
    if constexpr (kWidth % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kWidth; i += 4)
            *reinterpret_cast<float4*>(p + i) = make_float4(x.v[i], x.v[i + 1], x.v[i + 2], x.v[i + 3]);
    } else {
        static_assert(kWidth == 1);
        *p = x.v[0];
    }
}
// Rounds to nearest even.
template <int kWidth>
__device__ __forceinline__ void store(bf16* p, const Values<kWidth>& x) {
    if constexpr (kWidth == 8) {
        *reinterpret_cast<uint4*>(p) = make_uint4(pack_pair(x.v[0], x.v[1]), pack_pair(x.v[2], x.v[3]),
                                                  pack_pair(x.v[4], x.v[5]), pack_pair(x.v[6], x.v[7]));
    } else if constexpr (kWidth == 4) {
        *reinterpret_cast<uint2*>(p) = make_uint2(pack_pair(x.v[0], x.v[1]), pack_pair(x.v[2], x.v[3]));
    } else {
        static_assert(kWidth == 1);
        p->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x.v[0]));
    }
}

// e^x. The fast one's error is within 2^-20 for the arguments used here, far below bf16's rounding.
__device__ __forceinline__ float exponential(float x) {
    if constexpr (kRealIsFloat32) return expf(x);
    return __expf(x);
}

// Each v[i] becomes its sum over the warp's lanes, with the same bits in all of them.
template <int N>
__device__ __forceinline__ void warp_sum(float (&v)[N]) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], offset);
    }
}

// The same over the block; all its threads call this, and their number is a multiple of 32.
template <int N>
__device__ __forceinline__ void block_sum(float (&v)[N]) {
    __shared__ float partial[kWarp][N];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    warp_sum(v);
    __syncthreads();  // threads may still read an earlier call's sums
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) partial[warp][i] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = lane < warps ? partial[lane][i] : 0.0f;
    warp_sum(v);
}

// ---- Launches ----

// Null counts as aligned.
inline bool aligned(std::initializer_list<const void*> pointers, size_t bytes) {
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % bytes != 0) return false;
    return true;
}

inline size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

inline unsigned grid_size(size_t blocks) {
    if (blocks > INT_MAX)
        throw std::logic_error("a CUDA launch of " + std::to_string(blocks) + " blocks; wanted: below 2^31");
    return static_cast<unsigned>(blocks);
}

// op.run<width>(i) for the elements [i, i + width) of [0, n); the last few one by one.
template <int kWidth, class Op>
__global__ void __launch_bounds__(256) each_kernel(Op op, size_t n) {
    size_t i = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
    if (i + kWidth <= n) return op.template run<kWidth>(i);
    for (; i < n; ++i) op.template run<1>(i);
}

// vectors: whether every array that op touches allows accesses of kWidth elements at multiples of kWidth.
template <int kWidth, class Op>
void launch_each(const Op& op, size_t n, bool vectors, cudaStream_t stream) {
    constexpr size_t kThreads = 256;
    if (n == 0) return;
    if (vectors)
        each_kernel<kWidth><<<grid_size(ceil_div(n, kThreads * kWidth)), kThreads, 0, stream>>>(op, n);
    else
        each_kernel<1><<<grid_size(ceil_div(n, kThreads)), kThreads, 0, stream>>>(op, n);
    CUDA_CHECK(cudaGetLastError());
}

// out[c] += the sum over rows of term(row, c). A block owns kSumColumns columns and all rows. Lane l takes every
// kSumLanes-th row from row l on. The lanes are added up as a tree, so the order depends on `rows` alone.
inline constexpr int kSumColumns = 8, kSumLanes = 128;

template <class Term>
__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    column_sums_kernel(float* out /*[columns] +=*/, int columns, size_t rows, Term term) {
    __shared__ float partial[kSumLanes][kSumColumns];
    const int column = threadIdx.x % kSumColumns, lane = threadIdx.x / kSumColumns;
    const int c = blockIdx.x * kSumColumns + column;
    float sum = 0;
    if (c < columns) {
#pragma unroll 4
        for (size_t row = lane; row < rows; row += kSumLanes) sum += term(row, c);
    }
    partial[lane][column] = sum;
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) partial[lane][column] += partial[lane + half][column];
    }
    if (lane == 0 && c < columns) out[c] += partial[0][column];
}

template <class Term>
void add_column_sums(float* out, int columns, size_t rows, const Term& term, cudaStream_t stream) {
    if (columns == 0 || rows == 0) return;
    const size_t blocks = ceil_div(static_cast<size_t>(columns), kSumColumns);
    column_sums_kernel<<<grid_size(blocks), kSumColumns * kSumLanes, 0, stream>>>(out, columns, rows, term);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace slab::cuda
