// Backward attention on tensor cores, bf16 in and out, float32 inside; compute capability 8.0 and later.
//
// Probabilities are computed again from q, k and the log-sum-exp. There are two kernels, so that every sum has one
// owner and one order, without atomics or a workspace. Key kernel: a block owns a tile of keys, visits all query heads
// of the group and all query tiles, and keeps dk and dv in registers. It works on transposed scores (keys x queries),
// so p^T and ds^T leave one product as the left operand of the next. Query kernel: a block owns a tile of queries and
// keeps dq. The price is computing scores and dp twice: 7 products in place of 5. Heads beyond 128 take 8, as the key
// kernel runs twice, for dv and for dk.
#pragma once

#include "kernels/attention/attention_forward.cuh"
#include "kernels/cuda_common.cuh"

namespace slab::attn {

// delta[b, h, t] of [B, NH, T] = sum over HD of dout * out, both [B, T, NH, HD]. 16 lanes a row.
template <class Number>
__global__ void __launch_bounds__(256)
    delta_kernel(float* delta, const Number* dout, const Number* out, int B, int T_len, int NH, int HD, bool vectors) {
    const size_t row = static_cast<size_t>(blockIdx.x) * 16 + threadIdx.x / 16;  // of [B, T, NH]
    const bool inside = row < static_cast<size_t>(B) * T_len * NH;
    constexpr int kVector = 16 / sizeof(Number);
    float sum = 0.0f;
    if (inside && vectors) {
        for (int c = threadIdx.x % 16 * kVector; c < HD; c += 16 * kVector) {
            alignas(16) Number left[kVector], right[kVector];
            *reinterpret_cast<uint4*>(left) = *reinterpret_cast<const uint4*>(dout + row * HD + c);
            *reinterpret_cast<uint4*>(right) = *reinterpret_cast<const uint4*>(out + row * HD + c);
#pragma unroll
            for (int e = 0; e < kVector; e++) sum += cuda::as_float(left[e]) * cuda::as_float(right[e]);
        }
    } else if (inside) {
        for (int c = threadIdx.x % 16; c < HD; c += 16)
            sum += cuda::as_float(dout[row * HD + c]) * cuda::as_float(out[row * HD + c]);
    }
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const size_t h = row % NH, bt = row / NH;
    if (inside && threadIdx.x % 16 == 0) delta[(bt / T_len * NH + h) * T_len + bt % T_len] = sum;
}

enum class Gradients { dk_and_dv, dk, dv };  // of one pass of the key kernel: at HD 256 registers hold one of them

// kBN keys a block (16 a warp), kBM queries a step, kStages buffers for the queries.
template <int kHDP_, int kBM_, int kBN_, int kStages_, Gradients kGradients>
struct KeyTile {
    static constexpr int kHDP = kHDP_, kBM = kBM_, kBN = kBN_, kStages = kStages_, kThreads = kBN * 2;
    static constexpr bool kDk = kGradients != Gradients::dv, kDv = kGradients != Gradients::dk;
    static constexpr int kStageBytes = kBM * (2 * kHDP * 2 + 2 * 4);
    static constexpr int kSharedBytes = 2 * kBN * kHDP * 2 + kStages * kStageBytes;
    static_assert(kSharedBytes <= kMaxSharedBytes);
};

// The queries of one step of the key kernel: q and dout [kBM, kHDP], lse and delta [kBM].
template <class Tile>
struct QueryStage {
    bf16* q;
    bf16* dout;
    float* lse;
    float* delta;
    __device__ QueryStage(unsigned char* shared, int stage) {
        unsigned char* at = shared + 2 * Tile::kBN * Tile::kHDP * 2 + stage * Tile::kStageBytes;
        q = reinterpret_cast<bf16*>(at);
        dout = q + Tile::kBM * Tile::kHDP;
        lse = reinterpret_cast<float*>(dout + Tile::kBM * Tile::kHDP);
        delta = lse + Tile::kBM;
    }
    // Queries past T arrive as zeros: p is then finite and dout zero, so they add nothing to dk and dv.
    __device__ __forceinline__ void load(const AttentionBackward<bf16>& a, int b, int h, int m0, bool vectors) const {
        const size_t first_token = static_cast<size_t>(b) * a.T_len;
        const size_t head_row = (static_cast<size_t>(b) * a.NH + h) * a.T_len;
        load_tile<Tile::kHDP, Tile::kBM, Tile::kThreads>(q, a.q + first_token * a.ld_q + static_cast<size_t>(h) * a.HD,
                                                         a.ld_q, m0, a.T_len, a.HD, vectors);
        load_tile<Tile::kHDP, Tile::kBM, Tile::kThreads>(dout,
                                                         a.dout + (first_token * a.NH + h) * static_cast<size_t>(a.HD),
                                                         static_cast<size_t>(a.NH) * a.HD, m0, a.T_len, a.HD, vectors);
        for (int i = threadIdx.x; i < Tile::kBM; i += Tile::kThreads) {
            const bool inside = m0 + i < a.T_len;
            const size_t at = inside ? head_row + m0 + i : head_row;
            copy_4_async(lse + i, a.lse + at, inside);
            copy_4_async(delta + i, a.delta + at, inside);
        }
    }
};

// s^T becomes p^T. key0: this warp's first key; query0: the step's first query. lse [kColTiles * 8] lies in shared
// memory; times lse_factor it is in units of log2.
template <int kColTiles>
__device__ __forceinline__ void transposed_probabilities(float (&s)[1][kColTiles][4], const float* lse,
                                                         float lse_factor, int key0, int query0, bool masked,
                                                         float scale_log2, const Documents& documents) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kColTiles; n++) {
        const int column = n * 8 + lane % 4 * 2;
        const float2 pair = *reinterpret_cast<const float2*>(lse + column);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float row_lse = e % 2 ? pair.y : pair.x;
            s[0][n][e] = exp2_fast(s[0][n][e] * scale_log2 - row_lse * lse_factor);
        }
    }
    if (!masked) return;
#pragma unroll
    for (int n = 0; n < kColTiles; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = query0 + n * 8 + lane % 4 * 2 + e % 2, key = key0 + lane / 4 + e / 2 * 8;
            if (key > query || key < documents.of(query)) s[0][n][e] = 0.0f;
        }
    }
}

// dp^T becomes ds^T (without the factor scale, which dk gets at the end). delta [kColTiles * 8] in shared memory.
template <int kColTiles>
__device__ __forceinline__ void scores_gradient(float (&dp)[1][kColTiles][4], const float (&p)[1][kColTiles][4],
                                                const float* delta) {
#pragma unroll
    for (int n = 0; n < kColTiles; n++) {
        const float2 pair = *reinterpret_cast<const float2*>(delta + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) dp[0][n][e] = p[0][n][e] * (dp[0][n][e] - (e % 2 ? pair.y : pair.x));
    }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) key_gradient_kernel(AttentionBackward<bf16> a, Schedule schedule) {
    constexpr int kHDP = Tile::kHDP, kBM = Tile::kBM, kBN = Tile::kBN;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16* k_tile = reinterpret_cast<bf16*>(shared);  // [kBN, kHDP]
    bf16* v_tile = k_tile + kBN * kHDP;              // [kBN, kHDP]

    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NKV, kv_head = item.head % a.NKV, heads_of_group = a.NH / a.NKV;
    const int n0 = item.rank * kBN;
    const size_t first_token = static_cast<size_t>(b) * a.T_len, kv_column = static_cast<size_t>(kv_head) * a.HD;
    const Documents documents = Documents::of_row(a, b);
    const float scale_log2 = a.scale * kLog2E;
    const int warp_row = threadIdx.x / 32 * 16;

    const int last_key = n0 + kBN - 1 < a.T_len ? n0 + kBN - 1 : a.T_len - 1;
    const int first_tile = n0 / kBM, tiles = documents.query_tiles_seeing(last_key, kBM) - first_tile;
    const int steps = tiles * heads_of_group;
    const auto load_queries = [&](int step) {
        QueryStage<Tile>(shared, step % Tile::kStages)
            .load(a, b, kv_head * heads_of_group + step / tiles, (first_tile + step % tiles) * kBM, schedule.vectors);
    };

    float dk[1][kHDP / 8][4] = {}, dv[1][kHDP / 8][4] = {};
    load_tile<kHDP, kBN, Tile::kThreads>(k_tile, a.k + first_token * a.ld_k + kv_column, a.ld_k, n0, a.T_len, a.HD,
                                         schedule.vectors);
    load_tile<kHDP, kBN, Tile::kThreads>(v_tile, a.v + first_token * a.ld_v + kv_column, a.ld_v, n0, a.T_len, a.HD,
                                         schedule.vectors);
    load_queries(0);
    const Blocks<kHDP> k_blocks = blocks_by_row<kHDP>(k_tile, warp_row);
    const Blocks<kHDP> v_blocks = blocks_by_row<kHDP>(v_tile, warp_row);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        wait_for_copies();
        __syncthreads();  // this step's queries have landed, and no warp reads the previous step's any more
        if (Tile::kStages == 2 && step + 1 < steps) load_queries(step + 1);
        const QueryStage<Tile> stage(shared, step % Tile::kStages);
        const int m0 = (first_tile + step % tiles) * kBM;
        if (n0 + warp_row < m0 + kBM) {  // some query sees some key of this warp
            float p[1][kBM / 8][4] = {};
            multiply_transposed(p, k_blocks, blocks_by_column<kHDP>(stage.q, 0));
            const bool masked = n0 + warp_row + 15 > m0 || n0 + warp_row < documents.of(m0 + kBM - 1);
            transposed_probabilities(p, stage.lse, kLog2E, n0 + warp_row, m0, masked, scale_log2, documents);
            if constexpr (Tile::kDv) multiply_registers(dv, p, blocks_by_row<kHDP>(stage.dout, 0));
            if constexpr (Tile::kDk) {
                float dp[1][kBM / 8][4] = {};
                multiply_transposed(dp, v_blocks, blocks_by_column<kHDP>(stage.dout, 0));
                scores_gradient(dp, p, stage.delta);
                multiply_registers(dk, dp, blocks_by_row<kHDP>(stage.q, 0));
            }
        }
        if (Tile::kStages == 1 && step + 1 < steps) {
            __syncthreads();
            load_queries(step + 1);
        }
    }

    const float scale[1][2] = {{a.scale, a.scale}}, one[1][2] = {{1.0f, 1.0f}};
    if constexpr (Tile::kDk)
        store_rows<TileShape<kHDP>>(
            {a.dk + first_token * a.ld_dk + kv_column, a.ld_dk, n0 + warp_row, a.T_len, a.HD, schedule.vectors}, k_tile,
            warp_row, dk, scale);
    if constexpr (Tile::kDv)
        store_rows<TileShape<kHDP>>(
            {a.dv + first_token * a.ld_dv + kv_column, a.ld_dv, n0 + warp_row, a.T_len, a.HD, schedule.vectors}, v_tile,
            warp_row, dv, one);
}

// kBM queries a block, kBN keys a step, kStages buffers for the keys.
template <int kHDP_, int kBM_, int kBN_, int kStages_, int kWarps_>
struct QueryTile {
    static constexpr int kHDP = kHDP_, kBM = kBM_, kBN = kBN_, kStages = kStages_, kThreads = kWarps_ * 32;
    static constexpr int kRowTiles = kBM / (16 * kWarps_);
    static constexpr int kSharedBytes = 2 * (kBM + kStages * kBN) * kHDP * 2;
    static_assert(kRowTiles * 16 * kWarps_ == kBM && kSharedBytes <= kMaxSharedBytes);
};

// lse in units of log2 and delta of the rows of a warp's accumulators. Rows past T get those of another row.
template <int kRowTiles>
__device__ __forceinline__ void load_row_statistics(const AttentionBackward<bf16>& a, int head, int row0,
                                                    float (&lse_log2)[kRowTiles][2], float (&delta)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row0 + m * 16 + half * 8 + threadIdx.x % 32 / 4;
            const size_t at = static_cast<size_t>(head) * a.T_len + (row < a.T_len ? row : a.T_len - 1);
            lse_log2[m][half] = a.lse[at] * kLog2E;
            delta[m][half] = a.delta[at];
        }
    }
}

// s becomes p.
template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void probabilities_from(float (&s)[kRowTiles][kColTiles][4],
                                                   const float (&lse_log2)[kRowTiles][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < kColTiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = exp2_fast(s[m][n][e] * scale_log2 - lse_log2[m][e / 2]);
}

// dp becomes ds (without the factor scale, which dq gets at the end).
template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void row_scores_gradient(float (&dp)[kRowTiles][kColTiles][4],
                                                    const float (&p)[kRowTiles][kColTiles][4],
                                                    const float (&delta)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < kColTiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - delta[m][e / 2]);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    query_gradient_kernel(AttentionBackward<bf16> a, Schedule schedule) {
    constexpr int kHDP = Tile::kHDP, kBM = Tile::kBM, kBN = Tile::kBN, kRowTiles = Tile::kRowTiles;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16* q_tile = reinterpret_cast<bf16*>(shared);  // [kBM, kHDP]
    bf16* dout_tile = q_tile + kBM * kHDP;           // [kBM, kHDP]
    bf16* key_tiles = dout_tile + kBM * kHDP;        // [kStages, k and v, kBN, kHDP]

    const Schedule::Item item = schedule.item(blockIdx.x);
    const int b = item.head / a.NH, h = item.head % a.NH, kv_head = h / (a.NH / a.NKV);
    const int m0 = (schedule.tiles - 1 - item.rank) * kBM;
    const size_t first_token = static_cast<size_t>(b) * a.T_len;
    const Documents documents = Documents::of_row(a, b);
    const size_t q_column = static_cast<size_t>(h) * a.HD, kv_column = static_cast<size_t>(kv_head) * a.HD;
    const float scale_log2 = a.scale * kLog2E;
    const int warp_row = threadIdx.x / 32 * 16 * kRowTiles;
    const auto load_keys = [&](int n) {
        bf16* tile = key_tiles + n % Tile::kStages * 2 * kBN * kHDP;
        load_tile<kHDP, kBN, Tile::kThreads>(tile, a.k + first_token * a.ld_k + kv_column, a.ld_k, n * kBN, a.T_len,
                                             a.HD, schedule.vectors);
        load_tile<kHDP, kBN, Tile::kThreads>(tile + kBN * kHDP, a.v + first_token * a.ld_v + kv_column, a.ld_v, n * kBN,
                                             a.T_len, a.HD, schedule.vectors);
    };

    const int last_row = m0 + kBM - 1 < a.T_len ? m0 + kBM - 1 : a.T_len - 1;
    const int last_document = documents.of(last_row);
    const int n_first = documents.of(m0) / kBN, n_last = last_row / kBN;
    load_tile<kHDP, kBM, Tile::kThreads>(q_tile, a.q + first_token * a.ld_q + q_column, a.ld_q, m0, a.T_len, a.HD,
                                         schedule.vectors);
    load_tile<kHDP, kBM, Tile::kThreads>(dout_tile, a.dout + first_token * a.NH * a.HD + q_column,
                                         static_cast<size_t>(a.NH) * a.HD, m0, a.T_len, a.HD, schedule.vectors);
    load_keys(n_first);

    float lse_log2[kRowTiles][2], delta[kRowTiles][2];
    load_row_statistics(a, item.head, m0 + warp_row, lse_log2, delta);
    const Blocks<kHDP> q_blocks = blocks_by_row<kHDP>(q_tile, warp_row);
    const Blocks<kHDP> dout_blocks = blocks_by_row<kHDP>(dout_tile, warp_row);
    float dq[kRowTiles][kHDP / 8][4] = {};
#pragma unroll 1
    for (int n = n_first; n <= n_last; n++) {
        wait_for_copies();
        __syncthreads();  // this step's keys have landed, and no warp reads the previous step's any more
        if (Tile::kStages == 2 && n < n_last) load_keys(n + 1);
        const bf16* k_tile = key_tiles + n % Tile::kStages * 2 * kBN * kHDP;
        const bf16* v_tile = k_tile + kBN * kHDP;
        if (n * kBN < m0 + warp_row + 16 * kRowTiles) {
            float p[kRowTiles][kBN / 8][4] = {}, dp[kRowTiles][kBN / 8][4] = {};
            multiply_transposed(p, q_blocks, blocks_by_column<kHDP>(k_tile, 0));
            if ((n + 1) * kBN - 1 > m0 + warp_row || n * kBN < last_document)
                mask_scores(p, m0 + warp_row, n * kBN, documents);
            multiply_transposed(dp, dout_blocks, blocks_by_column<kHDP>(v_tile, 0));
            probabilities_from(p, lse_log2, scale_log2);
            row_scores_gradient(dp, p, delta);
            multiply_registers(dq, dp, blocks_by_row<kHDP>(k_tile, 0));
        }
        if (Tile::kStages == 1 && n < n_last) {
            __syncthreads();
            load_keys(n + 1);
        }
    }

    float scale[kRowTiles][2];
    for (auto& row : scale) row[0] = row[1] = a.scale;
    store_rows<TileShape<kHDP>>(
        {a.dq + first_token * a.ld_dq + q_column, a.ld_dq, m0 + warp_row, a.T_len, a.HD, schedule.vectors}, q_tile,
        warp_row, dq, scale);
}

}  // namespace slab::attn
