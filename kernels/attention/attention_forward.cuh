// Forward attention on tensor cores, bf16 in and out, float32 inside; compute capability 8.0 and later.
//
// One block works on kBM queries of one head and walks their keys from the diagonal to the left, tile by tile. It keeps
// each row's running maximum and sum (FlashAttention-2, Dao 2023). A warp owns 16 kRowTiles query rows from the first
// product to the store, so probabilities never leave its registers. The copy of V overlaps with QK^T, the copy of the
// next K with the softmax and PV.
#pragma once

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_work.cuh"

namespace slab::attn {

template <int kHDP_, int kBM_, int kBN_, int kWarps_>
struct ForwardTile {
    static constexpr int kHDP = kHDP_, kBM = kBM_, kBN = kBN_, kWarps = kWarps_, kThreads = kWarps * 32;
    static constexpr int kRowTiles = kBM / (16 * kWarps);
    static constexpr int kSharedBytes = (kBM + 2 * kBN) * kHDP * 2;
    static_assert(kRowTiles * 16 * kWarps == kBM && kBN % 16 == 0);
    static_assert(kSharedBytes <= kMaxSharedBytes);
};

// s of keys that a query may not see becomes -inf. row0: this warp's first row; key0: the tile's first key.
template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void mask_scores(float (&s)[kRowTiles][kColTiles][4], int row0, int key0,
                                            const Documents& documents) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row0 + m * 16 + half * 8 + lane / 4;
            const int first_key = documents.of(row);
#pragma unroll
            for (int n = 0; n < kColTiles; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = key0 + n * 8 + lane % 4 * 2 + e;
                    if (key > row || key < first_key) s[m][n][half * 2 + e] = -INFINITY;
                }
            }
        }
    }
}

// s becomes probabilities relative to the row's new maximum. decay: the factor by which earlier tiles' sums shrink.
// maximum: in units of log2. sum: this lane's share of the row.
template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void probabilities_of(float (&s)[kRowTiles][kColTiles][4], float (&maximum)[kRowTiles][2],
                                                 float (&sum)[kRowTiles][2], float (&decay)[kRowTiles][2],
                                                 float scale_log2) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < kColTiles; n++) top = fmaxf(top, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float now = fmaxf(maximum[m][half], top * scale_log2);
            const float base = now == -INFINITY ? 0.0f : now;  // a row that has seen no key yet
            decay[m][half] = exp2_fast(maximum[m][half] - base);
            maximum[m][half] = now;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < kColTiles; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& p = s[m][n][half * 2 + e];
                    p = exp2_fast(p * scale_log2 - base);
                    added += p;
                }
            }
            sum[m][half] = sum[m][half] * decay[m][half] + added;
        }
    }
}

template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void scale_rows(float (&o)[kRowTiles][kColTiles][4], const float (&factor)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < kColTiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[m][n][e] *= factor[m][e / 2];
}

// Writes the log-sum-exp of a warp's rows. inverse: the factors that their outputs still need.
template <int kRowTiles>
__device__ __forceinline__ void finish_rows(const AttentionForward<bf16>& a, int head, int row0,
                                            const float (&maximum)[kRowTiles][2], const float (&sum)[kRowTiles][2],
                                            float (&inverse)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            inverse[m][half] = 1.0f / total;
            const int row = row0 + m * 16 + half * 8 + threadIdx.x % 32 / 4;
            if (threadIdx.x % 4 == 0 && row < a.T_len)
                a.lse[static_cast<size_t>(head) * a.T_len + row] = maximum[m][half] * kLn2 + logf(total);
        }
    }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) forward_kernel(AttentionForward<bf16> a, Schedule schedule) {
    constexpr int kHDP = Tile::kHDP, kBM = Tile::kBM, kBN = Tile::kBN, kRowTiles = Tile::kRowTiles;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16* q_tile = reinterpret_cast<bf16*>(shared);  // [kBM, kHDP]
    bf16* k_tile = q_tile + kBM * kHDP;              // [kBN, kHDP]
    bf16* v_tile = k_tile + kBN * kHDP;              // [kBN, kHDP]

    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NH, h = item.head % a.NH, kv_head = h / (a.NH / a.NKV);
    const int m0 = (schedule.tiles - 1 - item.rank) * kBM;
    const size_t first_token = static_cast<size_t>(b) * a.T_len;
    const Documents documents = Documents::of_row(a, b);
    const bf16* q = a.q + first_token * a.ld_q + static_cast<size_t>(h) * a.HD;
    const bf16* k = a.k + first_token * a.ld_k + static_cast<size_t>(kv_head) * a.HD;
    const bf16* v = a.v + first_token * a.ld_v + static_cast<size_t>(kv_head) * a.HD;

    const int warp_row = threadIdx.x / 32 * 16 * kRowTiles;  // within the tile
    const int last_row = m0 + kBM - 1 < a.T_len ? m0 + kBM - 1 : a.T_len - 1;
    const int last_document = documents.of(last_row);
    const float scale_log2 = a.scale * kLog2E;
    const auto load_keys = [&](bf16* tile, const bf16* src, size_t ld, int n) {
        load_tile<kHDP, kBN, Tile::kThreads>(tile, src, ld, n * kBN, a.T_len, a.HD, schedule.vectors);
    };
    const Blocks<kHDP> q_blocks = blocks_by_row<kHDP>(q_tile, warp_row);
    const Blocks<kHDP> k_blocks = blocks_by_column<kHDP>(k_tile, 0);
    const Blocks<kHDP> v_blocks = blocks_by_row<kHDP>(v_tile, 0);

    float o[kRowTiles][kHDP / 8][4] = {};
    float maximum[kRowTiles][2], sum[kRowTiles][2] = {};
    for (auto& row : maximum) row[0] = row[1] = -INFINITY;

    const int n_first = documents.of(m0) / kBN, n_last = last_row / kBN;
    load_tile<kHDP, kBM, Tile::kThreads>(q_tile, q, a.ld_q, m0, a.T_len, a.HD, schedule.vectors);
    load_keys(k_tile, k, a.ld_k, n_last);
    wait_for_copies();
    __syncthreads();
#pragma unroll 1
    for (int n = n_last; n >= n_first; n--) {
        const bool visible = n * kBN < m0 + warp_row + 16 * kRowTiles;  // to any row of this warp
        load_keys(v_tile, v, a.ld_v, n);
        float s[kRowTiles][kBN / 8][4] = {};
        if (visible) multiply_transposed(s, q_blocks, k_blocks);
        wait_for_copies();
        __syncthreads();  // V has landed, and no warp reads K any more
        if (n > n_first) load_keys(k_tile, k, a.ld_k, n - 1);
        if (visible) {
            if ((n + 1) * kBN - 1 > m0 + warp_row || n * kBN < last_document)
                mask_scores(s, m0 + warp_row, n * kBN, documents);
            float decay[kRowTiles][2];
            probabilities_of(s, maximum, sum, decay, scale_log2);
            scale_rows(o, decay);
            multiply_registers(o, s, v_blocks);
        }
        wait_for_copies();
        __syncthreads();  // the next K has landed, and no warp reads V any more
    }

    float inverse[kRowTiles][2];
    finish_rows(a, item.head, m0 + warp_row, maximum, sum, inverse);
    bf16* out = a.out + (first_token * a.NH + h) * static_cast<size_t>(a.HD);
    store_rows<TileShape<kHDP>>({out, static_cast<size_t>(a.NH) * a.HD, m0 + warp_row, a.T_len, a.HD, schedule.vectors},
                                q_tile, warp_row, o, inverse);
}

}  // namespace slab::attn
