// Attention in float32 throughout (PRECISION=fp32 builds): the same tiling as the bf16 kernels on ordinary arithmetic.
//
// It is exact and plain, not fast: bf16 runs are compared with it. 256 threads as 16 x 16 own a square tile of scores.
// Rows of tiles in shared memory are one float longer than the head, so that columns spread over the banks. There is no
// TF32 and no atomic; each sum has one owner and one order.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_work.cuh"

namespace slab::attn {

// kPer x kPer scores a thread; kRows queries or keys a tile.
template <int kHDP_>
struct PlainTile {
    static constexpr int kHDP = kHDP_, kPer = kHDP <= 128 ? 2 : 1, kRows = 16 * kPer, kThreads = 256;
    static constexpr int kStride = kHDP + 1, kScoreStride = kRows + 1, kColumns = kHDP / 16;
    static constexpr int kTileElems = kRows * kStride, kScoreElems = kRows * kScoreStride;
    static constexpr int kForwardBytes = (3 * kTileElems + kScoreElems) * 4;
    static constexpr int kBackwardBytes = (4 * kTileElems + 2 * kScoreElems) * 4;
    static_assert(kBackwardBytes <= kMaxSharedBytes);
};

template <class Tile>
__device__ void load_plain(float* tile, const float* src, size_t ld, int row0, int T_len, int HD) {
    for (int i = threadIdx.x; i < Tile::kRows * Tile::kHDP; i += Tile::kThreads) {
        const int row = i / Tile::kHDP, column = i % Tile::kHDP;
        const bool inside = row0 + row < T_len && column < HD;
        tile[row * Tile::kStride + column] = inside ? src[static_cast<size_t>(row0 + row) * ld + column] : 0.0f;
    }
}

template <class Tile>
__device__ void store_plain(float* dst, size_t ld, int row0, int T_len, int HD,
                            const float (&acc)[Tile::kPer][Tile::kColumns], const float (&factor)[Tile::kPer]) {
    for (int i = 0; i < Tile::kPer; i++) {
        const int row = row0 + threadIdx.x / 16 + 16 * i;
        if (row >= T_len) continue;
        for (int c = 0; c < Tile::kColumns; c++) {
            const int column = threadIdx.x % 16 + 16 * c;
            if (column < HD) dst[static_cast<size_t>(row) * ld + column] = acc[i][c] * factor[i];
        }
    }
}

// s[i][j] = a row (ty + 16 i) · b row (tx + 16 j)
template <class Tile>
__device__ void dot_rows(float (&s)[Tile::kPer][Tile::kPer], const float* a, const float* b) {
    for (auto& row : s)
        for (float& x : row) x = 0.0f;
    const float* a_row = a + threadIdx.x / 16 * Tile::kStride;
    const float* b_row = b + threadIdx.x % 16 * Tile::kStride;
    for (int c = 0; c < Tile::kHDP; c++)
        for (int i = 0; i < Tile::kPer; i++)
            for (int j = 0; j < Tile::kPer; j++)
                s[i][j] += a_row[16 * i * Tile::kStride + c] * b_row[16 * j * Tile::kStride + c];
}

// acc[i][c] += sum over x of p[ty + 16 i][x] * tile[x][tx + 16 c]
template <class Tile>
__device__ void add_product(float (&acc)[Tile::kPer][Tile::kColumns], const float* p, const float* tile) {
    for (int x = 0; x < Tile::kRows; x++)
        for (int i = 0; i < Tile::kPer; i++) {
            const float left = p[(threadIdx.x / 16 + 16 * i) * Tile::kScoreStride + x];
#pragma unroll
            for (int c = 0; c < Tile::kColumns; c++)
                acc[i][c] += left * tile[x * Tile::kStride + threadIdx.x % 16 + 16 * c];
        }
}

template <class Tile>
__global__ void __launch_bounds__(256) plain_forward_kernel(AttentionForward<float> a, Schedule schedule) {
    extern __shared__ float plain_shared[];
    float* q_tile = plain_shared;               // [kRows, kStride]
    float* k_tile = q_tile + Tile::kTileElems;  // [kRows, kStride]
    float* v_tile = k_tile + Tile::kTileElems;  // [kRows, kStride]
    float* p_tile = v_tile + Tile::kTileElems;  // [kRows queries, kScoreStride]
    constexpr int kPer = Tile::kPer;
    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NH, h = item.head % a.NH, m0 = (schedule.tiles - 1 - item.rank) * Tile::kRows;
    const size_t first_token = static_cast<size_t>(b) * a.T_len;
    const size_t q_column = static_cast<size_t>(h) * a.HD, kv_column = static_cast<size_t>(h / (a.NH / a.NKV)) * a.HD;
    const Documents documents = Documents::of_row(a, b);
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;

    float o[kPer][Tile::kColumns] = {}, maximum[kPer], sum[kPer] = {};
    for (float& m : maximum) m = -INFINITY;
    load_plain<Tile>(q_tile, a.q + first_token * a.ld_q + q_column, a.ld_q, m0, a.T_len, a.HD);
    const int last_row = min(m0 + Tile::kRows, a.T_len) - 1;
    for (int n = last_row / Tile::kRows; n >= documents.of(m0) / Tile::kRows; n--) {
        __syncthreads();
        load_plain<Tile>(k_tile, a.k + first_token * a.ld_k + kv_column, a.ld_k, n * Tile::kRows, a.T_len, a.HD);
        load_plain<Tile>(v_tile, a.v + first_token * a.ld_v + kv_column, a.ld_v, n * Tile::kRows, a.T_len, a.HD);
        __syncthreads();
        float s[kPer][kPer];
        dot_rows<Tile>(s, q_tile, k_tile);
        for (int i = 0; i < kPer; i++) {
            const int row = m0 + ty + 16 * i, first_key = documents.of(row);
            float top = -INFINITY;
            for (int j = 0; j < kPer; j++) {
                const int key = n * Tile::kRows + tx + 16 * j;
                s[i][j] = key > row || key < first_key ? -INFINITY : s[i][j] * a.scale;
                top = fmaxf(top, s[i][j]);
            }
            for (int offset = 8; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
            const float now = fmaxf(maximum[i], top), base = now == -INFINITY ? 0.0f : now;
            const float decay = expf(maximum[i] - base);
            maximum[i] = now;
            sum[i] *= decay;
            for (int j = 0; j < kPer; j++) {
                const float p = expf(s[i][j] - base);
                sum[i] += p;
                p_tile[(ty + 16 * i) * Tile::kScoreStride + tx + 16 * j] = p;
            }
            for (float& x : o[i]) x *= decay;
        }
        __syncthreads();
        add_product<Tile>(o, p_tile, v_tile);
    }
    float inverse[kPer];
    for (int i = 0; i < kPer; i++) {
        for (int offset = 8; offset > 0; offset /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
        inverse[i] = 1.0f / sum[i];
        const int row = m0 + ty + 16 * i;
        if (tx == 0 && row < a.T_len) a.lse[static_cast<size_t>(item.head) * a.T_len + row] = maximum[i] + logf(sum[i]);
    }
    store_plain<Tile>(a.out + first_token * a.NH * a.HD + q_column, static_cast<size_t>(a.NH) * a.HD, m0, a.T_len, a.HD,
                      o, inverse);
}

// The operands of one tile of scores in shared memory, [kRows, kStride] each, and their first tokens.
struct PlainOperands {
    const float *q, *dout, *k, *v;
    int first_query, first_key;
};

// Writes p (unless null) and ds of one tile to shared memory, [kRows, kScoreStride]. Rows are queries, or keys if
// kTransposed. head_row: the head's first query in lse and delta.
template <class Tile, bool kTransposed>
__device__ void plain_scores(float* p_tile, float* ds_tile, const PlainOperands& in, const AttentionBackward<float>& a,
                             size_t head_row, const Documents& documents) {
    float s[Tile::kPer][Tile::kPer], dp[Tile::kPer][Tile::kPer];
    dot_rows<Tile>(s, kTransposed ? in.k : in.q, kTransposed ? in.q : in.k);
    dot_rows<Tile>(dp, kTransposed ? in.v : in.dout, kTransposed ? in.dout : in.v);
    for (int i = 0; i < Tile::kPer; i++) {
        for (int j = 0; j < Tile::kPer; j++) {
            const int y = threadIdx.x / 16 + 16 * i, x = threadIdx.x % 16 + 16 * j;
            const int query = in.first_query + (kTransposed ? x : y), key = in.first_key + (kTransposed ? y : x);
            float p = 0.0f, ds = 0.0f;
            if (query < a.T_len && key <= query && key >= documents.of(query)) {
                p = expf(s[i][j] * a.scale - a.lse[head_row + query]);
                ds = p * (dp[i][j] - a.delta[head_row + query]);
            }
            if (p_tile) p_tile[y * Tile::kScoreStride + x] = p;
            ds_tile[y * Tile::kScoreStride + x] = ds;
        }
    }
}

template <class Tile>
__global__ void __launch_bounds__(256) plain_key_gradient_kernel(AttentionBackward<float> a, Schedule schedule) {
    extern __shared__ float plain_shared[];
    float* k_tile = plain_shared;                  // [kRows, kStride]
    float* v_tile = k_tile + Tile::kTileElems;     // [kRows, kStride]
    float* q_tile = v_tile + Tile::kTileElems;     // [kRows, kStride]
    float* dout_tile = q_tile + Tile::kTileElems;  // [kRows, kStride]
    float* p_tile = dout_tile + Tile::kTileElems;  // [kRows keys, kScoreStride]
    float* ds_tile = p_tile + Tile::kScoreElems;   // [kRows keys, kScoreStride]
    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NKV, kv_head = item.head % a.NKV, n0 = item.rank * Tile::kRows;
    const size_t first_token = static_cast<size_t>(b) * a.T_len, kv_column = static_cast<size_t>(kv_head) * a.HD;
    const Documents documents = Documents::of_row(a, b);

    float dk[Tile::kPer][Tile::kColumns] = {}, dv[Tile::kPer][Tile::kColumns] = {};
    load_plain<Tile>(k_tile, a.k + first_token * a.ld_k + kv_column, a.ld_k, n0, a.T_len, a.HD);
    load_plain<Tile>(v_tile, a.v + first_token * a.ld_v + kv_column, a.ld_v, n0, a.T_len, a.HD);
    const int end = documents.query_tiles_seeing(min(n0 + Tile::kRows, a.T_len) - 1, Tile::kRows);
    for (int h = kv_head * (a.NH / a.NKV); h < (kv_head + 1) * (a.NH / a.NKV); h++) {
        const size_t q_column = static_cast<size_t>(h) * a.HD, out_ld = static_cast<size_t>(a.NH) * a.HD;
        const size_t head_row = (static_cast<size_t>(b) * a.NH + h) * a.T_len;
        for (int m = item.rank; m < end; m++) {
            __syncthreads();
            load_plain<Tile>(q_tile, a.q + first_token * a.ld_q + q_column, a.ld_q, m * Tile::kRows, a.T_len, a.HD);
            load_plain<Tile>(dout_tile, a.dout + first_token * out_ld + q_column, out_ld, m * Tile::kRows, a.T_len,
                             a.HD);
            __syncthreads();
            plain_scores<Tile, true>(p_tile, ds_tile, {q_tile, dout_tile, k_tile, v_tile, m * Tile::kRows, n0}, a,
                                     head_row, documents);
            __syncthreads();
            add_product<Tile>(dv, p_tile, dout_tile);
            add_product<Tile>(dk, ds_tile, q_tile);
        }
    }
    float scale[Tile::kPer], one[Tile::kPer];
    for (float& x : scale) x = a.scale;
    for (float& x : one) x = 1.0f;
    store_plain<Tile>(a.dk + first_token * a.ld_dk + kv_column, a.ld_dk, n0, a.T_len, a.HD, dk, scale);
    store_plain<Tile>(a.dv + first_token * a.ld_dv + kv_column, a.ld_dv, n0, a.T_len, a.HD, dv, one);
}

template <class Tile>
__global__ void __launch_bounds__(256) plain_query_gradient_kernel(AttentionBackward<float> a, Schedule schedule) {
    extern __shared__ float plain_shared[];
    float* q_tile = plain_shared;                  // [kRows, kStride]
    float* dout_tile = q_tile + Tile::kTileElems;  // [kRows, kStride]
    float* k_tile = dout_tile + Tile::kTileElems;  // [kRows, kStride]
    float* v_tile = k_tile + Tile::kTileElems;     // [kRows, kStride]
    float* ds_tile = v_tile + Tile::kTileElems;    // [kRows queries, kScoreStride]
    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NH, h = item.head % a.NH, m0 = (schedule.tiles - 1 - item.rank) * Tile::kRows;
    const size_t first_token = static_cast<size_t>(b) * a.T_len, out_ld = static_cast<size_t>(a.NH) * a.HD;
    const size_t q_column = static_cast<size_t>(h) * a.HD, kv_column = static_cast<size_t>(h / (a.NH / a.NKV)) * a.HD;
    const Documents documents = Documents::of_row(a, b);

    float dq[Tile::kPer][Tile::kColumns] = {};
    load_plain<Tile>(q_tile, a.q + first_token * a.ld_q + q_column, a.ld_q, m0, a.T_len, a.HD);
    load_plain<Tile>(dout_tile, a.dout + first_token * out_ld + q_column, out_ld, m0, a.T_len, a.HD);
    const int last_row = min(m0 + Tile::kRows, a.T_len) - 1;
    for (int n = documents.of(m0) / Tile::kRows; n <= last_row / Tile::kRows; n++) {
        __syncthreads();
        load_plain<Tile>(k_tile, a.k + first_token * a.ld_k + kv_column, a.ld_k, n * Tile::kRows, a.T_len, a.HD);
        load_plain<Tile>(v_tile, a.v + first_token * a.ld_v + kv_column, a.ld_v, n * Tile::kRows, a.T_len, a.HD);
        __syncthreads();
        plain_scores<Tile, false>(nullptr, ds_tile, {q_tile, dout_tile, k_tile, v_tile, m0, n * Tile::kRows}, a,
                                  static_cast<size_t>(item.head) * a.T_len, documents);
        __syncthreads();
        add_product<Tile>(dq, ds_tile, k_tile);
    }
    float scale[Tile::kPer];
    for (float& x : scale) x = a.scale;
    store_plain<Tile>(a.dq + first_token * a.ld_dq + q_column, a.ld_dq, m0, a.T_len, a.HD, dq, scale);
}

}  // namespace slab::attn
