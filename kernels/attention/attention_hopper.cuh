// Forward attention with Hopper's own instructions (sm_90a), for head sizes 64 and 128.
//
// A producer warp copies tiles by the bulk tensor engine; two warpgroups of 64 query rows each multiply with wgmma. A
// warpgroup starts the scores of the next key tile before it takes the softmax of this one. So the tensor cores do not
// wait for exponentials. Results are a function of shapes alone, as in the generic kernels, but tiles and hence bits
// differ from theirs. Built without sm_90a the kernels are empty and never launched (kThreads).
#pragma once

#include <cmath>

#include "kernels/attention/attention_forward.cuh"
#include "kernels/attention/attention_hopper_ptx.cuh"

namespace slab::attn::hopper {

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLAB_HOPPER_BODY 0
inline constexpr int kThreads = 32;  // tells the host that the kernel is empty
#else
#define SLAB_HOPPER_BODY 1
inline constexpr int kThreads = 384;  // a producer and two multiplying warpgroups
#endif
inline constexpr int kBlockThreads = 384;
inline constexpr int kMaxSharedBytes = 227 * 1024;
// A block has 64 Ki registers, 128 threads that copy and 256 that multiply. With eight registers fewer, the products of
// the key kernel for HD 128 no longer fit side by side, and the compiler runs them one by one.
inline constexpr int kCopyRegisters = 24, kMultiplyRegisters = 240;
static_assert(128 * kCopyRegisters + 256 * kMultiplyRegisters <= 64 * 1024);

// A tile of kRows tokens in the layout of the tensor engine's 128-byte swizzle and of wgmma. It consists of panels of
// 64 columns, each [kRows, 64], whose 16-byte chunks are permuted by row. Starts at a multiple of 1024 bytes.
template <int kHD_, int kRows_>
struct SwizzledTile {
    static constexpr int kHDP = kHD_, kRows = kRows_, kChunks = kHDP / 8, kBytes = kRows * kHDP * 2;
    static constexpr int kPanelBytes = kRows * 128;
    static_assert(kHDP % 64 == 0 && kRows % 8 == 0);

    static __device__ __forceinline__ int offset_elems(int row, int chunk) {
        return chunk / 8 * kRows * 64 + row * 64 + (chunk % 8 ^ (row & 7)) * 8;
    }
    // Matrix descriptors: of an operand summed over columns, and of a right operand summed over rows.
    static __device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading_bytes) {
        return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(leading_bytes >> 4) << 16 |
               static_cast<uint64_t>(1024 >> 4) << 32 | uint64_t{1} << 62;
    }
    static __device__ __forceinline__ uint64_t by_column(const bf16* tile, int first_row) {
        return descriptor(shared_address(tile) + first_row * 128, 16);
    }
    static __device__ __forceinline__ uint64_t by_row(const bf16* tile) {
        return descriptor(shared_address(tile), kPanelBytes);
    }
    // Added to a descriptor: for columns from 16 k on, and for rows from 16 k on.
    static __device__ __forceinline__ uint64_t column_step(int k) { return (k / 4 * kPanelBytes + k % 4 * 32) >> 4; }
    static __device__ __forceinline__ uint64_t row_step(int k) { return (k * 16 * 128) >> 4; }

    static __device__ __forceinline__ void copy(bf16* tile, const CUtensorMap* map, uint64_t* barrier, int head,
                                                int token, int b) {
        for (int panel = 0; panel < kHDP / 64; panel++)
            copy_box(tile + panel * kRows * 64, map, barrier, panel * 64, head, token, b);
    }
};

// acc[64, kColumns] = a rows [first_row, +64) times b^T, summed over the head; one batch.
template <class A, class B>
__device__ __forceinline__ void start_scores(float (&acc)[1][B::kRows / 8][4], const bf16* a, int first_row,
                                             const bf16* b) {
    const uint64_t left = A::by_column(a, first_row), right = B::by_column(b, 0);
    products_begin();
#pragma unroll
    for (int k = 0; k < A::kHDP / 16; k++)
        multiply_shared<B::kRows>(acc[0], left + A::column_step(k), right + B::column_step(k), k > 0);
    products_commit();
}

// acc[64, HD] += p[64, B::kRows] b; one batch.
template <class B>
__device__ __forceinline__ void start_product(float (&acc)[1][B::kHDP / 8][4], const uint32_t (&p)[B::kRows / 16][4],
                                              const bf16* b) {
    const uint64_t right = B::by_row(b);
    products_begin();
#pragma unroll
    for (int k = 0; k < B::kRows / 16; k++) multiply_registers<B::kHDP>(acc[0], p[k], right + B::row_step(k), true);
    products_commit();
}

template <int kTiles>
__device__ __forceinline__ void pack(uint32_t (&packed)[kTiles / 2][4], const float (&p)[1][kTiles][4]) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; k++) pack_left_operand(packed[k], p[0][2 * k], p[0][2 * k + 1]);
}

__device__ __forceinline__ unsigned char* align_1024(unsigned char* shared) {
    return shared + (1024 - (shared_address(shared) & 1023)) % 1024;
}

// One lane of each warp reports that its warp has read a stage.
__device__ __forceinline__ void release(uint64_t* empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

struct ForwardArguments {
    CUtensorMap q, k, v;
    AttentionForward<bf16> a;
    Schedule schedule;
};

template <int kHD_>
struct ForwardTile {
    static constexpr int kHD = kHD_, kBM = 128, kBN = 128, kStages = 2;
    using Q = SwizzledTile<kHD, kBM>;
    using K = SwizzledTile<kHD, kBN>;
    struct Barriers {
        uint64_t q_full, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
    };
    static constexpr int kSharedBytes = 1024 + Q::kBytes + 2 * kStages * K::kBytes + sizeof(Barriers);
    static_assert(kSharedBytes <= hopper::kMaxSharedBytes);
};

// The work of a block that owns queries: row b of the batch, head h, queries from m0 on, key tiles n_first to n_last.
struct QueryWork {
    int b, h, m0, n_first, n_last;
    template <class Tile, class Args>
    static __device__ QueryWork of(const Args& a, const Schedule& schedule, const Documents& documents,
                                   const Schedule::Item& item) {
        const int m0 = (schedule.tiles - 1 - item.rank) * Tile::kBM;
        const int last_row = m0 + Tile::kBM - 1 < a.T_len ? m0 + Tile::kBM - 1 : a.T_len - 1;
        return {item.head / a.NH, item.head % a.NH, m0, documents.of(m0) / Tile::kBN, last_row / Tile::kBN};
    }
};

template <class Tile>
struct ForwardShared {
    bf16 *q, *k, *v;  // Tile::Q; [kStages] of Tile::K each
    typename Tile::Barriers* barriers;
    __device__ explicit ForwardShared(unsigned char* shared) {
        q = reinterpret_cast<bf16*>(align_1024(shared));
        k = q + Tile::Q::kBytes / 2;
        v = k + Tile::kStages * Tile::K::kBytes / 2;
        barriers = reinterpret_cast<typename Tile::Barriers*>(v + Tile::kStages * Tile::K::kBytes / 2);
    }
};

template <class Tile>
__device__ void produce_forward(const ForwardArguments& p, const ForwardShared<Tile>& shared, const QueryWork& work) {
    auto* barriers = shared.barriers;
    const auto [b, h, m0, n_first, n_last] = work;
    const int kv_head = h / (p.a.NH / p.a.NKV);
    const auto fill = [&](bf16* tiles, const CUtensorMap* map, uint64_t* full, uint64_t* empty, int i) {
        const int stage = i % Tile::kStages;
        barrier_wait(empty + stage, (i / Tile::kStages + 1) % 2);
        barrier_expect(full + stage, Tile::K::kBytes);
        Tile::K::copy(tiles + stage * (Tile::K::kBytes / 2), map, full + stage, kv_head, (n_last - i) * Tile::kBN, b);
        barrier_arrive(full + stage);
    };
    barrier_expect(&barriers->q_full, Tile::Q::kBytes);
    Tile::Q::copy(shared.q, &p.q, &barriers->q_full, h, m0, b);
    barrier_arrive(&barriers->q_full);
    for (int i = 0; i <= n_last - n_first; i++) {
        fill(shared.k, &p.k, barriers->k_full, barriers->k_empty, i);
        fill(shared.v, &p.v, barriers->v_full, barriers->v_empty, i);
    }
}

template <class Tile>
__device__ __forceinline__ void consume_forward(const ForwardArguments& p, const ForwardShared<Tile>& shared,
                                                const QueryWork& work, const Documents& documents) {
    constexpr int kHD = Tile::kHD, kBN = Tile::kBN, kStages = Tile::kStages;
    using K = typename Tile::K;
    const auto [b, h, m0, n_first, n_last] = work;
    auto* barriers = shared.barriers;
    const AttentionForward<bf16>& a = p.a;
    const int group_row = (static_cast<int>(threadIdx.x) / 128 - 1) * 64;
    const int warp_row = group_row + threadIdx.x % 128 / 32 * 16;
    const int last_document = documents.of(m0 + Tile::kBM - 1);
    const float scale_log2 = a.scale * kLog2E;

    float o[1][kHD / 8][4] = {}, s[1][kBN / 8][4];
    uint32_t probabilities[kBN / 16][4];
    float maximum[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {}, decay[1][2];
    const auto scores = [&](int i) {
        barrier_wait(barriers->k_full + i % kStages, i / kStages % 2);
        start_scores<typename Tile::Q, K>(s, shared.q, group_row, shared.k + i % kStages * (K::kBytes / 2));
    };
    const auto product = [&](int i) {
        barrier_wait(barriers->v_full + i % kStages, i / kStages % 2);
        start_product<K>(o, probabilities, shared.v + i % kStages * (K::kBytes / 2));
    };
    const auto softmax = [&](int i) {
        const int key0 = (n_last - i) * kBN;
        if (key0 + kBN - 1 > m0 + warp_row || key0 < last_document) mask_scores(s, m0 + warp_row, key0, documents);
        probabilities_of(s, maximum, sum, decay, scale_log2);
    };

    barrier_wait(&barriers->q_full, 0);
    scores(0);
    products_wait<0>();
    settle(s[0]);
    release(barriers->k_empty);
    softmax(0);
    pack(probabilities, s);
    const int count = n_last - n_first + 1;
#pragma unroll 1
    for (int i = 1; i < count; i++) {
        scores(i);
        product(i - 1);
        products_wait<1>();
        settle(s[0]);
        release(barriers->k_empty + i % kStages);
        softmax(i);
        products_wait<0>();
        settle(o[0]);
        release(barriers->v_empty + (i - 1) % kStages);
        scale_rows(o, decay);
        pack(probabilities, s);
    }
    product(count - 1);
    products_wait<0>();
    settle(o[0]);

    float inverse[1][2];
    finish_rows(a, b * a.NH + h, m0 + warp_row, maximum, sum, inverse);
    warpgroup_barrier(1 + group_row / 64);  // the whole warpgroup has read its queries; the output takes their place
    bf16* out = a.out + (static_cast<size_t>(b) * a.T_len * a.NH + h) * static_cast<size_t>(kHD);
    store_rows<typename Tile::Q>({out, static_cast<size_t>(a.NH) * kHD, m0 + warp_row, a.T_len, kHD, true}, shared.q,
                                 warp_row, o, inverse);
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const __grid_constant__ ForwardArguments p) {
#if SLAB_HOPPER_BODY
    extern __shared__ __align__(128) unsigned char shared[];
    const ForwardShared<Tile> parts(shared);
    if (threadIdx.x == 0) {
        barrier_init(&parts.barriers->q_full, 1);
        for (int i = 0; i < Tile::kStages; i++) {
            barrier_init(parts.barriers->k_full + i, 1);
            barrier_init(parts.barriers->v_full + i, 1);
            barrier_init(parts.barriers->k_empty + i, 8);
            barrier_init(parts.barriers->v_empty + i, 8);
        }
        barriers_ready();
    }
    __syncthreads();

    const AttentionForward<bf16>& a = p.a;
    const Schedule::Item item = p.schedule.item(blockIdx.x);
    const Documents documents = Documents::of_row(a, item.head / a.NH);
    const QueryWork work = QueryWork::of<Tile>(a, p.schedule, documents, item);
    if (threadIdx.x < 128) {
        give_registers<kCopyRegisters>();
        if (threadIdx.x == 0) produce_forward<Tile>(p, parts, work);
    } else {
        take_registers<kMultiplyRegisters>();
        consume_forward<Tile>(p, parts, work, documents);
    }
#endif
}

}  // namespace slab::attn::hopper
