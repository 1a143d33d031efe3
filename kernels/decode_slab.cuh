// The decoding kernel: one launch for up to 24 tensors in any formats.
//
// A block decodes one tile of one tensor. The tile's encoded bytes go through shared memory: whole tiles are multiples
// of 16 bytes in every format, though blocks of 18, 34 or 210 bytes are only 2-aligned. Then a thread decodes eight
// neighbouring values at a time: their quanta become the bytes of two registers, and 16-byte stores write them as bf16.
// A byte becomes a float as the low bits of 2^23, which is a permutation and an addition, not a conversion.
// Invariant: the bits of ref::decode_blocks. All sums and products are named by intrinsics, so that nothing is fused.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "kernels/cuda_common.cuh"
#include "kernels/decode_slab.h"

namespace slab::decode {

// The pieces as the kernel takes them: piece i has the tiles from first_tile[i] on. Behind the last one that is
// UINT32_MAX.
struct Table {
    const std::byte* src[kMostDecodePieces];
    real* dst[kMostDecodePieces];
    size_t elems[kMostDecodePieces];
    uint32_t first_tile[kMostDecodePieces];
    BlockFormat format[kMostDecodePieces];
};

// kTileElems: a multiple of 8 blocks of any format, and of what kThreads threads decode at a time.
template <int kElems, int kBlockThreads, int kBlocksPerSm>
struct Tile {
    static constexpr int kTileElems = kElems, kThreads = kBlockThreads, kMinBlocks = kBlocksPerSm;
    static constexpr int kMostBytes = kElems / 32 * 34;  // Q8_0's
    static_assert(kElems % (8 * 256) == 0 && kElems % (8 * kThreads) == 0);
};

using DefaultTile = Tile<8192, 256, 8>;

template <BlockFormat format>
inline constexpr int kValues = static_cast<int>(kBlockInfo[static_cast<int>(format)].values);
template <BlockFormat format>
inline constexpr int kBytes = static_cast<int>(kBlockInfo[static_cast<int>(format)].bytes);

// ---- Reading shared memory. Offsets are from the tile's first byte, which is 16-byte aligned. ----

struct Pair {
    uint32_t low, high;  // eight bytes, the first in the lowest bits
};

__device__ __forceinline__ uint32_t word_at(const char* tile, int at) {  // 4-aligned
    return *reinterpret_cast<const uint32_t*>(tile + at);
}
__device__ __forceinline__ Pair pair_at(const char* tile, int at) {  // 8-aligned
    const uint2 both = *reinterpret_cast<const uint2*>(tile + at);
    return {both.x, both.y};
}
__device__ __forceinline__ uint32_t loose_word_at(const char* tile, int at) {  // 2-aligned
    const uint32_t shift = (at & 2) * 8;
    return __funnelshift_r(word_at(tile, at & ~3), word_at(tile, (at & ~3) + 4), shift);
}
__device__ __forceinline__ Pair loose_pair_at(const char* tile, int at) {  // 2-aligned
    const uint32_t shift = (at & 2) * 8;
    const int whole = at & ~3;
    const uint32_t middle = word_at(tile, whole + 4);
    return {__funnelshift_r(word_at(tile, whole), middle, shift),
            __funnelshift_r(middle, word_at(tile, whole + 8), shift)};
}
__device__ __forceinline__ float half_of(uint32_t bits) {  // its lower 16
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float half_at(const char* tile, int at) {  // 2-aligned
    return half_of(*reinterpret_cast<const uint16_t*>(tile + at));
}

// ---- Quanta. Eight neighbouring values are scale (byte - bias) + offset. ----

struct Quanta {
    Pair bytes;
    float scale, offset;
};

// Byte k of the word, less the bias; exact.
__device__ __forceinline__ float number_of(uint32_t word, int k, float bias) {
    return __fadd_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | static_cast<uint32_t>(k))),
                     -(8388608.0f + bias));
}

// Four bits of each byte: the lower ones, or with shift 4 the upper ones.
__device__ __forceinline__ Pair nibbles(Pair bytes, int shift) {
    return {bytes.low >> shift & 0x0f0f0f0fu, bytes.high >> shift & 0x0f0f0f0fu};
}

// Bits 0 to 3 to bit 4 of bytes 0 to 3: copies that lie 7 bits apart.
__device__ __forceinline__ uint32_t spread(uint32_t bits) {
    return bits * 0x02040810u & 0x10101010u;
}
// Bits 8 part to 8 part + 7 become the fifth bits of eight quanta.
__device__ __forceinline__ Pair with_fifth_bits(Pair lower, uint32_t bits, int part) {
    const uint32_t mine = bits >> (8 * part);
    return {lower.low | spread(mine & 15u), lower.high | spread(mine >> 4 & 15u)};
}

// Scale and minimum of a group of Q4_K and Q5_K; header: d and dmin, then the 12 bytes of scales.
struct GroupScale {
    float scale, minimum;
};
__device__ __forceinline__ GroupScale group_scale(uint4 header, int group) {
    const int shift = 8 * (group & 3);
    const uint32_t first = header.y >> shift, second = header.z >> shift, third = header.w >> shift;
    const uint32_t scale = group < 4 ? first & 63u : (third & 15u) | (first >> 6 & 3u) << 4;
    const uint32_t minimum = group < 4 ? second & 63u : (third >> 4 & 15u) | (second >> 6 & 3u) << 4;
    return {__fmul_rn(half_of(header.x), static_cast<float>(scale)),
            __fmul_rn(half_of(header.x >> 16), static_cast<float>(minimum))};
}

// The part-th eight values of the block at `at`.
template <BlockFormat format>
__device__ __forceinline__ Quanta quanta_of(const char* tile, int at, int part) {
    if constexpr (format == BlockFormat::q8_0) {
        const Pair bytes = loose_pair_at(tile, at + 2 + 8 * part);
        return {{bytes.low ^ 0x80808080u, bytes.high ^ 0x80808080u}, half_at(tile, at), 0};
    } else if constexpr (format == BlockFormat::q4_0) {
        return {nibbles(loose_pair_at(tile, at + 2 + 8 * (part & 1)), part / 2 * 4), half_at(tile, at), 0};
    } else if constexpr (format == BlockFormat::q4_1) {
        const uint32_t scales = word_at(tile, at);
        const int first = at + 4 + 8 * (part & 1);
        const Pair bytes = {word_at(tile, first), word_at(tile, first + 4)};
        return {nibbles(bytes, part / 2 * 4), half_of(scales), half_of(scales >> 16)};
    } else if constexpr (format == BlockFormat::q5_0) {
        const Pair lower = nibbles(loose_pair_at(tile, at + 6 + 8 * (part & 1)), part / 2 * 4);
        return {with_fifth_bits(lower, loose_word_at(tile, at + 2), part), half_at(tile, at), 0};
    } else if constexpr (format == BlockFormat::q5_1) {
        const Pair head = pair_at(tile, at);
        const Pair lower = nibbles(pair_at(tile, at + 8 + 8 * (part & 1)), part / 2 * 4);
        return {with_fifth_bits(lower, head.high, part), half_of(head.low), half_of(head.low >> 16)};
    } else if constexpr (format == BlockFormat::q4_k || format == BlockFormat::q5_k) {
        const int group = part / 4, column = 8 * (part & 3);
        const GroupScale s = group_scale(*reinterpret_cast<const uint4*>(tile + at), group);
        const int first = at + (format == BlockFormat::q4_k ? 16 : 48) + group / 2 * 32 + column;
        Pair bytes = nibbles(pair_at(tile, first), group % 2 * 4);
        if constexpr (format == BlockFormat::q5_k) {
            const Pair fifths = pair_at(tile, at + 16 + column);
            bytes.low |= (fifths.low >> group & 0x01010101u) << 4;
            bytes.high |= (fifths.high >> group & 0x01010101u) << 4;
        }
        return {bytes, s.scale, -s.minimum};
    } else {
        static_assert(format == BlockFormat::q6_k);
        const int half = part / 16, quarter = part / 4 % 4, column = 8 * (part & 3);
        Pair bytes = nibbles(loose_pair_at(tile, at + half * 64 + quarter % 2 * 32 + column), quarter / 2 * 4);
        const Pair upper = loose_pair_at(tile, at + 128 + half * 32 + column);
        bytes.low |= (upper.low >> (2 * quarter) & 0x03030303u) << 4;
        bytes.high |= (upper.high >> (2 * quarter) & 0x03030303u) << 4;
        const auto scale = static_cast<int8_t>(tile[at + 192 + half * 8 + quarter * 2 + (part & 3) / 2]);
        return {bytes, __fmul_rn(half_at(tile, at + 208), static_cast<float>(scale)), 0};
    }
}

constexpr float bias_of(BlockFormat format) {
    return format == BlockFormat::q8_0   ? 128.0f
           : format == BlockFormat::q4_0 ? 8.0f
           : format == BlockFormat::q5_0 ? 16.0f
           : format == BlockFormat::q6_k ? 32.0f
                                         : 0.0f;
}
constexpr bool has_offset(BlockFormat format) {
    return format == BlockFormat::q4_1 || format == BlockFormat::q5_1 || format == BlockFormat::q4_k ||
           format == BlockFormat::q5_k;
}

__constant__ const float nf4_code_values[16] = {kNf4Values[0],  kNf4Values[1],  kNf4Values[2],  kNf4Values[3],
                                                kNf4Values[4],  kNf4Values[5],  kNf4Values[6],  kNf4Values[7],
                                                kNf4Values[8],  kNf4Values[9],  kNf4Values[10], kNf4Values[11],
                                                kNf4Values[12], kNf4Values[13], kNf4Values[14], kNf4Values[15]};

// The eight values from the value-th of the tile on. All lanes of a warp call this; code_value: lane l has NF4's code
// value l % 16.
template <BlockFormat format>
__device__ __forceinline__ cuda::Values<8> eight_values(const char* tile, int value, float code_value) {
    const int at = value / kValues<format> * kBytes<format>, part = value % kValues<format> / 8;
    cuda::Values<8> x;
    if constexpr (format == BlockFormat::nf4) {
        const float absmax = __uint_as_float(word_at(tile, at));
        const uint32_t codes = word_at(tile, at + 4 + 4 * part);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);  // the first of two values is in the upper half
            x.v[i] = __fmul_rn(__shfl_sync(0xffffffffu, code_value, static_cast<int>(codes >> shift & 15u)), absmax);
        }
    } else {
        const Quanta q = quanta_of<format>(tile, at, part);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float number = number_of(i < 4 ? q.bytes.low : q.bytes.high, i % 4, bias_of(format));
            x.v[i] = __fmul_rn(q.scale, number);
            if constexpr (has_offset(format)) x.v[i] = __fadd_rn(x.v[i], q.offset);
        }
    }
    return x;
}

// Bytes [0, bytes) of src to shared memory; the last chunk reads no further than that.
template <int kThreads>
__device__ __forceinline__ void fetch(char* tile, const std::byte* src, int bytes) {
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * kThreads) {
        const int count = min(16, bytes - at);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                         static_cast<uint32_t>(__cvta_generic_to_shared(tile + at))),
                     "l"(src + at), "r"(count));
    }
    asm volatile("cp.async.commit_group;\n" ::);
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    __syncthreads();
}

template <class T, BlockFormat format>
__device__ __forceinline__ void decode_tile(char* tile, const std::byte* src, real* dst, int elems) {
    fetch<T::kThreads>(tile, src, elems / kValues<format> * kBytes<format>);
    const float code_value = format == BlockFormat::nf4 ? nf4_code_values[threadIdx.x % 16] : 0.0f;
#pragma unroll
    for (int step = 0; step < T::kTileElems / (8 * T::kThreads); ++step) {
        const int value = 8 * (step * T::kThreads + static_cast<int>(threadIdx.x));
        if (8 * (step * T::kThreads + static_cast<int>(threadIdx.x / 32 * 32)) >= elems) break;  // of all lanes at once
        const cuda::Values<8> x = eight_values<format>(tile, value, code_value);
        if (value < elems) cuda::store(dst + value, x);
    }
}

// Plain numbers: 16 bytes at a time where the addresses allow that, one by one elsewhere.
template <class T>
__device__ __forceinline__ void copy_tile(const std::byte* src, real* dst, int elems) {
    const real* from = reinterpret_cast<const real*>(src);
    int done = 0;
    if ((reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst)) % 16 == 0) {
        done = elems / cuda::kVector * cuda::kVector;
#pragma unroll 4
        for (int i = cuda::kVector * threadIdx.x; i < done; i += cuda::kVector * T::kThreads)
            *reinterpret_cast<uint4*>(dst + i) = *reinterpret_cast<const uint4*>(from + i);
    }
    for (int i = done + threadIdx.x; i < elems; i += T::kThreads) dst[i] = from[i];
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kMinBlocks) decode_kernel(const __grid_constant__ Table table) {
    __shared__ __align__(16) char tile[T::kMostBytes + 16];  // loose reads go up to 8 bytes beyond
    int piece = 0;
#pragma unroll
    for (int i = 1; i < static_cast<int>(kMostDecodePieces); ++i)  // comparisons with constants: no load, no branch
        piece += blockIdx.x >= table.first_tile[i] ? 1 : 0;
    const size_t first = static_cast<size_t>(blockIdx.x - table.first_tile[piece]) * T::kTileElems;
    const size_t left = table.elems[piece] - first;
    const int elems = left < T::kTileElems ? static_cast<int>(left) : T::kTileElems;
    real* dst = table.dst[piece] + first;
    const std::byte* src = table.src[piece];
    const auto run = [&]<BlockFormat format>() {
        decode_tile<T, format>(tile, src + first / kValues<format> * kBytes<format>, dst, elems);
    };
    switch (table.format[piece]) {
        case BlockFormat::plain:
            return copy_tile<T>(src + first * sizeof(real), dst, elems);
        case BlockFormat::q8_0:
            return run.template operator()<BlockFormat::q8_0>();
        case BlockFormat::q4_0:
            return run.template operator()<BlockFormat::q4_0>();
        case BlockFormat::q4_1:
            return run.template operator()<BlockFormat::q4_1>();
        case BlockFormat::q5_0:
            return run.template operator()<BlockFormat::q5_0>();
        case BlockFormat::q5_1:
            return run.template operator()<BlockFormat::q5_1>();
        case BlockFormat::q4_k:
            return run.template operator()<BlockFormat::q4_k>();
        case BlockFormat::q5_k:
            return run.template operator()<BlockFormat::q5_k>();
        case BlockFormat::q6_k:
            return run.template operator()<BlockFormat::q6_k>();
        case BlockFormat::nf4:
            return run.template operator()<BlockFormat::nf4>();
    }
}

template <class T>
cudaError_t launch(std::span<const DecodePiece> pieces, cudaStream_t stream) {
    Table table{};
    std::fill(std::begin(table.first_tile), std::end(table.first_tile), UINT32_MAX);
    size_t tiles = 0;
    int i = 0;
    for (const DecodePiece& piece : pieces) {
        if (piece.elems == 0) continue;
        table.src[i] = piece.src, table.dst[i] = piece.dst, table.elems[i] = piece.elems;
        table.format[i] = piece.format;
        table.first_tile[i++] = static_cast<uint32_t>(tiles);
        tiles += cuda::ceil_div(piece.elems, T::kTileElems);
    }
    if (tiles == 0) return cudaSuccess;
    decode_kernel<T><<<cuda::grid_size(tiles), T::kThreads, 0, stream>>>(table);
    return cudaGetLastError();
}

}  // namespace slab::decode
