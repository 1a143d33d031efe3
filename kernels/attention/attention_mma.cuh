// Tensor-core building blocks of the bf16 attention kernels: swizzled tiles in shared memory, and products of them.
//
// A tile is [rows, kHDP] bf16 in shared memory. kHDP is the head size, padded with zeros to a size that suits the
// matrix instructions. The 16-byte chunks of a row are permuted by the row's number: the eight rows of one ldmatrix
// then lie in different banks. Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16". Invariant: outside [0,
// T) x [0, HD) a tile holds zeros, never garbage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention_ptx.cuh"
#include "kernels/runtime/real.h"

namespace slab::attn {

inline constexpr int kMaxSharedBytes = 99 * 1024;  // allowed on every card from 8.0 on; the limit is 8.6's
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// How the 16-byte chunks of a tile's row are permuted.
template <int kHDP_>
struct TileShape {
    static_assert(kHDP_ % 32 == 0);
    static constexpr int kHDP = kHDP_, kChunks = kHDP / 8;
    static constexpr int kGroup = kHDP % 64 == 0 ? 8 : 4;  // chunks permuted among themselves

    static __device__ __forceinline__ int permutation(int row) { return kGroup == 8 ? row & 7 : (row >> 1) & 3; }
    static __device__ __forceinline__ int offset_elems(int row, int chunk) {
        const int group = chunk / kGroup, within = chunk % kGroup;
        return row * kHDP + (group * kGroup + (within ^ permutation(row))) * 8;
    }
};

// This lane's addresses for ldmatrix of the 16 x 16 blocks of a tile, counted from the warp's first row.
template <int kHDP>
struct Blocks {
    using Shape = TileShape<kHDP>;
    uint32_t row_address;
    uint32_t column_bytes;

    // row: this lane's row, its block's first row included; half: which 8 of a block's 16 columns it addresses.
    __device__ __forceinline__ Blocks(const bf16* tile, int row, int half)
        : row_address(shared_address(tile) + static_cast<uint32_t>(row * kHDP * 2)),
          column_bytes(static_cast<uint32_t>((half ^ Shape::permutation(row)) * 16)) {}

    __device__ __forceinline__ uint32_t at(int row_block, int column_block) const {
        constexpr int kPerGroup = Shape::kGroup / 2;
        return row_address + row_block * 16 * kHDP * 2 + column_block / kPerGroup * Shape::kGroup * 16 +
               (column_bytes ^ (column_block % kPerGroup * 32));
    }
};

// The left operand of a product, and (through ldmatrix_transposed) the right one that is summed over its rows.
template <int kHDP>
__device__ __forceinline__ Blocks<kHDP> blocks_by_row(const bf16* tile, int first_row) {
    const int lane = threadIdx.x % 32;
    return Blocks<kHDP>(tile, first_row + lane % 16, lane / 16);
}

// The right operand of a product that is summed over columns.
template <int kHDP>
__device__ __forceinline__ Blocks<kHDP> blocks_by_column(const bf16* tile, int first_row) {
    const int lane = threadIdx.x % 32;
    return Blocks<kHDP>(tile, first_row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// acc[16 kRowTiles, 8 kColTiles] += a[16 kRowTiles, kHDP] b[8 kColTiles, kHDP]^T
template <int kHDP, int kRowTiles, int kColTiles>
__device__ __forceinline__ void multiply_transposed(float (&acc)[kRowTiles][kColTiles][4], const Blocks<kHDP>& a,
                                                    const Blocks<kHDP>& b) {
#pragma unroll
    for (int k = 0; k < kHDP / 16; k++) {
        uint32_t left[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; m++) ldmatrix(left[m], a.at(m, k));
#pragma unroll
        for (int n = 0; n < kColTiles / 2; n++) {
            uint32_t right[4];
            ldmatrix(right, b.at(n, k));
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) {
                mma(acc[m][2 * n], left[m], right[0], right[1]);
                mma(acc[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// Two neighbouring 16 x 8 blocks of an accumulator as the 16 x 16 left operand of a product.
__device__ __forceinline__ void pack_left_operand(uint32_t (&packed)[4], const float (&first)[4],
                                                  const float (&second)[4]) {
    packed[0] = pack_bf16(first[0], first[1]);
    packed[1] = pack_bf16(first[2], first[3]);
    packed[2] = pack_bf16(second[0], second[1]);
    packed[3] = pack_bf16(second[2], second[3]);
}

// acc[16 kRowTiles, kHDP] += p[16 kRowTiles, 8 kColTiles] b[8 kColTiles, kHDP], p rounded to bf16. An accumulator of
// one product has the layout of the next one's left operand, so p does not pass through shared memory.
template <int kHDP, int kRowTiles, int kColTiles>
__device__ __forceinline__ void multiply_registers(float (&acc)[kRowTiles][kHDP / 8][4],
                                                   const float (&p)[kRowTiles][kColTiles][4], const Blocks<kHDP>& b) {
#pragma unroll
    for (int k = 0; k < kColTiles / 2; k++) {
        uint32_t left[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; m++) {
            pack_left_operand(left[m], p[m][2 * k], p[m][2 * k + 1]);
        }
#pragma unroll
        for (int n = 0; n < kHDP / 16; n++) {
            uint32_t right[4];
            ldmatrix_transposed(right, b.at(k, n));
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) {
                mma(acc[m][2 * n], left[m], right[0], right[1]);
                mma(acc[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// Rows [row0, row0 + kRows) of one head of a [T, heads, HD] matrix (src: its row 0, rows ld apart) into a tile.
// vectors: HD, ld and src allow 16-byte loads. Complete after wait_for_copies and __syncthreads.
template <int kHDP, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* src, size_t ld, int row0, int T_len, int HD,
                                          bool vectors) {
    using Shape = TileShape<kHDP>;
    constexpr int kCount = kRows * Shape::kChunks;
    static_assert(kCount % kThreads == 0);
    if (vectors) {
#pragma unroll
        for (int i = 0; i < kCount / kThreads; i++) {
            const int index = threadIdx.x + i * kThreads;
            const int row = index / Shape::kChunks, chunk = index % Shape::kChunks;
            const bool inside = row0 + row < T_len && chunk * 8 < HD;
            copy_16_async(tile + Shape::offset_elems(row, chunk),
                          inside ? src + static_cast<size_t>(row0 + row) * ld + chunk * 8 : src, inside);
        }
        return;
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < kRows * kHDP; index += kThreads) {
        const int row = index / kHDP, column = index % kHDP;
        const bool inside = row0 + row < T_len && column < HD;
        tile[Shape::offset_elems(row, column / 8) + column % 8] =
            inside ? src[static_cast<size_t>(row0 + row) * ld + column] : bf16{0};
    }
}

// A warp's rows in global memory, to be written.
struct RowsOut {
    bf16* dst;  // [T_len, ld], HD columns of it
    size_t ld;
    int first_row, T_len, HD;
    bool vectors;  // 16-byte stores are possible
};

// Writes a warp's accumulator rows, each times its factor, to global memory. They pass through the warp's own rows of a
// tile, from tile_row on, which no other warp may be reading. factor[m][half] belongs to row 16 m + 8 half + lane / 4.
template <class Shape, int kRowTiles>
__device__ __forceinline__ void store_rows(const RowsOut& out, bf16* tile /*[rows, kHDP] in shared memory*/,
                                           int tile_row, const float (&acc)[kRowTiles][Shape::kHDP / 8][4],
                                           const float (&factor)[kRowTiles][2]) {
    constexpr int kHDP = Shape::kHDP;
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int n = 0; n < kHDP / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = tile_row + m * 16 + half * 8 + lane / 4;
                *reinterpret_cast<uint32_t*>(tile + Shape::offset_elems(row, n) + lane % 4 * 2) =
                    pack_bf16(acc[m][n][half * 2] * factor[m][half], acc[m][n][half * 2 + 1] * factor[m][half]);
            }
        }
    }
    __syncwarp();
    constexpr int kRows = kRowTiles * 16;
    if (out.vectors) {
#pragma unroll 4
        for (int index = lane; index < kRows * Shape::kChunks; index += 32) {
            const int row = index / Shape::kChunks, chunk = index % Shape::kChunks;
            if (out.first_row + row < out.T_len && chunk * 8 < out.HD)
                *reinterpret_cast<uint4*>(out.dst + static_cast<size_t>(out.first_row + row) * out.ld + chunk * 8) =
                    *reinterpret_cast<const uint4*>(tile + Shape::offset_elems(tile_row + row, chunk));
        }
        return;
    }
#pragma unroll 1
    for (int index = lane; index < kRows * kHDP; index += 32) {
        const int row = index / kHDP, column = index % kHDP;
        if (out.first_row + row < out.T_len && column < out.HD)
            out.dst[static_cast<size_t>(out.first_row + row) * out.ld + column] =
                tile[Shape::offset_elems(tile_row + row, column / 8) + column % 8];
    }
}

}  // namespace slab::attn
