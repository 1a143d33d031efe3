// Backward attention with Hopper's own instructions (sm_90a), for head sizes 64 and 128.
//
// The two kernels of attention_backward.cuh, built like attention_hopper.cuh. A block has a producer warp and two
// multiplying warpgroups that own 64 keys (or 64 queries) each. The scores' p and ds stay in registers from one product
// to the next. While one warpgroup takes exponentials, the other keeps the tensor cores busy.
#pragma once

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_hopper.cuh"

namespace slab::attn::hopper {

struct BackwardArguments {
    CUtensorMap q, k, v, dout;
    AttentionBackward<bf16> a;
    Schedule schedule;
};

// A block owns kBN keys and takes kBM queries a step.
template <int kHD_, int kStages_>
struct KeyTile {
    static constexpr int kHD = kHD_, kBM = 64, kBN = 128, kStages = kStages_;
    using Keys = SwizzledTile<kHD, kBN>;
    using Queries = SwizzledTile<kHD, kBM>;
    static constexpr int kStageElems = 2 * Queries::kBytes / static_cast<int>(sizeof(bf16));  // q and dout
    struct Barriers {
        uint64_t keys_full, full[kStages], empty[kStages];
    };
    static constexpr int kStatsBytes = kStages * kBM * 8;  // lse in units of log2, delta
    static constexpr int kSharedBytes =
        1024 + 2 * Keys::kBytes + kStages * 2 * Queries::kBytes + kStatsBytes + sizeof(Barriers);
    static_assert(kSharedBytes <= hopper::kMaxSharedBytes);
};

// The queries that a block of the key kernel visits: all heads of the group, from the diagonal down.
struct QueryWalk {
    int first_head, first_tile, tiles, steps;
    __device__ int head(int step) const { return first_head + step / tiles; }
    __device__ int tile(int step) const { return first_tile + step % tiles; }
};

template <class Tile>
struct KeyShared {
    bf16 *k, *v;   // Tile::Keys
    bf16* stages;  // [kStages] of q and dout, Tile::Queries each
    float* stats;  // [kStages, 2, kBM]: lse in units of log2, delta
    typename Tile::Barriers* barriers;
    __device__ explicit KeyShared(unsigned char* shared) {
        k = reinterpret_cast<bf16*>(align_1024(shared));
        v = k + Tile::Keys::kBytes / 2;
        stages = v + Tile::Keys::kBytes / 2;
        stats = reinterpret_cast<float*>(stages + Tile::kStages * Tile::kStageElems);
        barriers = reinterpret_cast<typename Tile::Barriers*>(stats + Tile::kStatsBytes / 4);
    }
    __device__ bf16* q(int stage) const { return stages + stage * Tile::kStageElems; }
    __device__ bf16* dout(int stage) const { return q(stage) + Tile::kStageElems / 2; }
    __device__ float* lse_log2(int stage) const { return stats + stage * Tile::kBM * 2; }
    __device__ float* delta(int stage) const { return lse_log2(stage) + Tile::kBM; }
};

// Run by the whole producer warp: its first lane starts the copies, all lanes bring lse and delta. Queries past T get
// zeros, which add nothing, as in the generic kernel.
template <class Tile>
__device__ void produce_queries(const BackwardArguments& p, const KeyShared<Tile>& shared, int b, int kv_head, int n0,
                                const QueryWalk& walk) {
    const AttentionBackward<bf16>& a = p.a;
    const int lane = threadIdx.x;
    auto* barriers = shared.barriers;
    if (lane == 0) {
        barrier_expect(&barriers->keys_full, 2 * Tile::Keys::kBytes);
        Tile::Keys::copy(shared.k, &p.k, &barriers->keys_full, kv_head, n0, b);
        Tile::Keys::copy(shared.v, &p.v, &barriers->keys_full, kv_head, n0, b);
        barrier_arrive(&barriers->keys_full);
    }
    for (int step = 0; step < walk.steps; step++) {
        const int stage = step % Tile::kStages, h = walk.head(step), m0 = walk.tile(step) * Tile::kBM;
        uint64_t* full = barriers->full + stage;
        barrier_wait(barriers->empty + stage, (step / Tile::kStages + 1) % 2);
        if (lane == 0) {
            barrier_expect(full, 2 * Tile::Queries::kBytes);
            Tile::Queries::copy(shared.q(stage), &p.q, full, h, m0, b);
            Tile::Queries::copy(shared.dout(stage), &p.dout, full, h, m0, b);
        }
        const size_t head_row = (static_cast<size_t>(b) * a.NH + h) * a.T_len;
        for (int i = lane; i < Tile::kBM; i += 32) {
            const bool inside = m0 + i < a.T_len;
            shared.lse_log2(stage)[i] = inside ? a.lse[head_row + m0 + i] * kLog2E : 0.0f;
            shared.delta(stage)[i] = inside ? a.delta[head_row + m0 + i] : 0.0f;
        }
        barrier_arrive(full);
    }
}

template <class Tile>
__device__ __forceinline__ void consume_queries(const BackwardArguments& p, const KeyShared<Tile>& shared, int b,
                                                int kv_head, int n0, const QueryWalk& walk,
                                                const Documents& documents) {
    constexpr int kHD = Tile::kHD, kBM = Tile::kBM;
    using Queries = typename Tile::Queries;
    const AttentionBackward<bf16>& a = p.a;
    const int group_row = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
    const int warp_row = group_row + threadIdx.x % 128 / 32 * 16;
    const float scale_log2 = a.scale * kLog2E;

    float dk[1][kHD / 8][4] = {}, dv[1][kHD / 8][4] = {};
    barrier_wait(&shared.barriers->keys_full, 0);
#pragma unroll 1
    for (int step = 0; step < walk.steps; step++) {
        const int stage = step % Tile::kStages, m0 = walk.tile(step) * kBM;
        const bf16 *q_tile = shared.q(stage), *dout_tile = shared.dout(stage);
        barrier_wait(shared.barriers->full + stage, step / Tile::kStages % 2);
        if (n0 + group_row < m0 + kBM) {  // some query sees some key of this warpgroup
            float s[1][kBM / 8][4], dp[1][kBM / 8][4];
            uint32_t packed_p[kBM / 16][4], packed_ds[kBM / 16][4];
            start_scores<typename Tile::Keys, Queries>(s, shared.k, group_row, q_tile);
            start_scores<typename Tile::Keys, Queries>(dp, shared.v, group_row, dout_tile);
            products_wait<1>();
            settle(s[0]);
            const bool masked = n0 + warp_row + 15 > m0 || n0 + warp_row < documents.of(m0 + kBM - 1);
            transposed_probabilities(s, shared.lse_log2(stage), 1.0f, n0 + warp_row, m0, masked, scale_log2, documents);
            pack(packed_p, s);
            start_product<Queries>(dv, packed_p, dout_tile);
            products_wait<1>();
            settle(dp[0]);
            scores_gradient(dp, s, shared.delta(stage));
            pack(packed_ds, dp);
            start_product<Queries>(dk, packed_ds, q_tile);
            products_wait<0>();
            settle(dv[0]);
            settle(dk[0]);
        }
        // Every lane arrives, unlike in release(). The stage also holds lse and delta, which the producer writes with
        // plain stores. racecheck follows a read to such a write through barriers alone.
        barrier_arrive(shared.barriers->empty + stage);
    }

    const float scale[1][2] = {{a.scale, a.scale}}, one[1][2] = {{1.0f, 1.0f}};
    const size_t first_token = static_cast<size_t>(b) * a.T_len, column = static_cast<size_t>(kv_head) * kHD;
    warpgroup_barrier(1 + group_row / 64);  // the whole warpgroup has read its keys; the gradients take their place
    store_rows<typename Tile::Keys>({a.dk + first_token * a.ld_dk + column, a.ld_dk, n0 + warp_row, a.T_len, kHD, true},
                                    shared.k, warp_row, dk, scale);
    store_rows<typename Tile::Keys>({a.dv + first_token * a.ld_dv + column, a.ld_dv, n0 + warp_row, a.T_len, kHD, true},
                                    shared.v, warp_row, dv, one);
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) key_gradient_kernel(const __grid_constant__ BackwardArguments p) {
#if SLAB_HOPPER_BODY
    extern __shared__ __align__(128) unsigned char shared[];
    const KeyShared<Tile> parts(shared);
    if (threadIdx.x == 0) {
        barrier_init(&parts.barriers->keys_full, 1);
        for (int i = 0; i < Tile::kStages; i++) {
            barrier_init(parts.barriers->full + i, 32);
            barrier_init(parts.barriers->empty + i, 256);
        }
        barriers_ready();
    }
    __syncthreads();

    const AttentionBackward<bf16>& a = p.a;
    const Schedule::Item item = p.schedule.item(blockIdx.x);
    const int b = item.head / a.NKV, kv_head = item.head % a.NKV, group = a.NH / a.NKV, n0 = item.rank * Tile::kBN;
    const Documents documents = Documents::of_row(a, b);
    const int last_key = n0 + Tile::kBN - 1 < a.T_len ? n0 + Tile::kBN - 1 : a.T_len - 1, first_tile = n0 / Tile::kBM;
    const int tiles = documents.query_tiles_seeing(last_key, Tile::kBM) - first_tile;
    const QueryWalk walk{kv_head * group, first_tile, tiles, tiles * group};
    if (threadIdx.x < 128) {
        give_registers<kCopyRegisters>();
        if (threadIdx.x < 32) produce_queries<Tile>(p, parts, b, kv_head, n0, walk);
    } else {
        take_registers<kMultiplyRegisters>();
        consume_queries<Tile>(p, parts, b, kv_head, n0, walk, documents);
    }
#endif
}

// A block owns kBM queries and takes kBN keys a step.
template <int kHD_, int kStages_>
struct QueryTile {
    static constexpr int kHD = kHD_, kBM = 128, kBN = 64, kStages = kStages_;
    using Queries = SwizzledTile<kHD, kBM>;
    using Keys = SwizzledTile<kHD, kBN>;
    static constexpr int kStageElems = 2 * Keys::kBytes / static_cast<int>(sizeof(bf16));  // k and v
    struct Barriers {
        uint64_t queries_full, full[kStages], empty[kStages];
    };
    static constexpr int kSharedBytes = 1024 + 2 * Queries::kBytes + kStages * 2 * Keys::kBytes + sizeof(Barriers);
    static_assert(kSharedBytes <= hopper::kMaxSharedBytes);
};

template <class Tile>
struct QueryShared {
    bf16 *q, *dout;  // Tile::Queries
    bf16* stages;    // [kStages] of k and v, Tile::Keys each
    typename Tile::Barriers* barriers;
    __device__ explicit QueryShared(unsigned char* shared) {
        q = reinterpret_cast<bf16*>(align_1024(shared));
        dout = q + Tile::Queries::kBytes / 2;
        stages = dout + Tile::Queries::kBytes / 2;
        barriers = reinterpret_cast<typename Tile::Barriers*>(stages + Tile::kStages * Tile::kStageElems);
    }
    __device__ bf16* k(int stage) const { return stages + stage * Tile::kStageElems; }
    __device__ bf16* v(int stage) const { return k(stage) + Tile::kStageElems / 2; }
};

template <class Tile>
__device__ void produce_keys(const BackwardArguments& p, const QueryShared<Tile>& shared, const QueryWork& work) {
    const auto [b, h, m0, n_first, n_last] = work;
    auto* barriers = shared.barriers;
    const int kv_head = h / (p.a.NH / p.a.NKV);
    barrier_expect(&barriers->queries_full, 2 * Tile::Queries::kBytes);
    Tile::Queries::copy(shared.q, &p.q, &barriers->queries_full, h, m0, b);
    Tile::Queries::copy(shared.dout, &p.dout, &barriers->queries_full, h, m0, b);
    barrier_arrive(&barriers->queries_full);
    for (int i = 0; i <= n_last - n_first; i++) {
        const int stage = i % Tile::kStages;
        uint64_t* full = barriers->full + stage;
        barrier_wait(barriers->empty + stage, (i / Tile::kStages + 1) % 2);
        barrier_expect(full, 2 * Tile::Keys::kBytes);
        Tile::Keys::copy(shared.k(stage), &p.k, full, kv_head, (n_first + i) * Tile::kBN, b);
        Tile::Keys::copy(shared.v(stage), &p.v, full, kv_head, (n_first + i) * Tile::kBN, b);
        barrier_arrive(full);
    }
}

template <class Tile>
__device__ __forceinline__ void consume_keys(const BackwardArguments& p, const QueryShared<Tile>& shared,
                                             const QueryWork& work, const Documents& documents) {
    constexpr int kHD = Tile::kHD, kBN = Tile::kBN;
    using Keys = typename Tile::Keys;
    const AttentionBackward<bf16>& a = p.a;
    const auto [b, h, m0, n_first, n_last] = work;
    const int group_row = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
    const int warp_row = group_row + threadIdx.x % 128 / 32 * 16;
    const int last_document = documents.of(m0 + Tile::kBM - 1);
    const float scale_log2 = a.scale * kLog2E;

    float dq[1][kHD / 8][4] = {}, lse_log2[1][2], delta[1][2];
    load_row_statistics(a, b * a.NH + h, m0 + warp_row, lse_log2, delta);
    barrier_wait(&shared.barriers->queries_full, 0);
#pragma unroll 1
    for (int i = 0; i <= n_last - n_first; i++) {
        const int stage = i % Tile::kStages, key0 = (n_first + i) * kBN;
        const bf16 *k_tile = shared.k(stage), *v_tile = shared.v(stage);
        barrier_wait(shared.barriers->full + stage, i / Tile::kStages % 2);
        if (key0 < m0 + group_row + 64) {  // some query of this warpgroup sees some key
            float s[1][kBN / 8][4], dp[1][kBN / 8][4];
            uint32_t packed_ds[kBN / 16][4];
            start_scores<typename Tile::Queries, Keys>(s, shared.q, group_row, k_tile);
            start_scores<typename Tile::Queries, Keys>(dp, shared.dout, group_row, v_tile);
            products_wait<1>();
            settle(s[0]);
            if (key0 + kBN - 1 > m0 + warp_row || key0 < last_document) mask_scores(s, m0 + warp_row, key0, documents);
            probabilities_from(s, lse_log2, scale_log2);
            products_wait<0>();
            settle(dp[0]);
            row_scores_gradient(dp, s, delta);
            pack(packed_ds, dp);
            start_product<Keys>(dq, packed_ds, k_tile);
            products_wait<0>();
            settle(dq[0]);
        }
        release(shared.barriers->empty + stage);
    }

    const float scale[1][2] = {{a.scale, a.scale}};
    const size_t first_token = static_cast<size_t>(b) * a.T_len;
    warpgroup_barrier(1 + group_row / 64);  // the whole warpgroup has read its queries; the gradient takes their place
    store_rows<typename Tile::Queries>(
        {a.dq + first_token * a.ld_dq + static_cast<size_t>(h) * kHD, a.ld_dq, m0 + warp_row, a.T_len, kHD, true},
        shared.q, warp_row, dq, scale);
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) query_gradient_kernel(const __grid_constant__ BackwardArguments p) {
#if SLAB_HOPPER_BODY
    extern __shared__ __align__(128) unsigned char shared[];
    const QueryShared<Tile> parts(shared);
    if (threadIdx.x == 0) {
        barrier_init(&parts.barriers->queries_full, 1);
        for (int i = 0; i < Tile::kStages; i++) {
            barrier_init(parts.barriers->full + i, 1);
            barrier_init(parts.barriers->empty + i, 8);
        }
        barriers_ready();
    }
    __syncthreads();

    const AttentionBackward<bf16>& a = p.a;
    const Schedule::Item item = p.schedule.item(blockIdx.x);
    const Documents documents = Documents::of_row(a, item.head / a.NH);
    const QueryWork work = QueryWork::of<Tile>(a, p.schedule, documents, item);
    if (threadIdx.x < 128) {
        give_registers<kCopyRegisters>();
        if (threadIdx.x == 0) produce_keys<Tile>(p, parts, work);
    } else {
        take_registers<kMultiplyRegisters>();
        consume_keys<Tile>(p, parts, work, documents);
    }
#endif
}

}  // namespace slab::attn::hopper
