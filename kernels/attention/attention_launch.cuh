// Picks tile sizes for a head size and launches the attention kernels on a CUDA stream.
//
// Tile sizes depend on the head size, the card, and whether addresses and strides allow copies of 16 bytes; never on
// timing. A head size is padded with zeros in shared memory to the next of 32, 64, 96, 128, 256.
// SLABSTREAM_GENERIC_KERNELS=1 in the environment keeps to the kernels that every card has, for tests.
#pragma once

#include <initializer_list>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_fp32.cuh"
#include "kernels/attention/attention_hopper_launch.cuh"
#include "kernels/attention/generic_kernels.h"

namespace slab::attn {

inline constexpr size_t kGroupBytes = size_t{16} << 20;  // keys and values of a group of heads: they stay in L2

inline bool vectors_possible(std::initializer_list<size_t> strides, std::initializer_list<const void*> pointers,
                             size_t element_bytes) {
    for (const size_t s : strides)
        if (s * element_bytes % 16 != 0) return false;
    for (const void* p : pointers)
        if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
    return true;
}

// bytes_per_head: what the blocks of one head read in common.
template <class Args>
Schedule schedule_for(const Args& a, int heads, int tile_rows, size_t bytes_per_head, bool vectors) {
    const size_t group = kGroupBytes / bytes_per_head + 1;
    return {(a.T_len + tile_rows - 1) / tile_rows, heads,
            group < static_cast<size_t>(heads) ? static_cast<int>(group) : heads, vectors};
}

// One block per tile of every head.
template <class Args>
cudaError_t launch(void (*kernel)(Args, Schedule), const Args& a, const Schedule& schedule, int threads,
                   int shared_bytes, cudaStream_t stream) {
    // Above 48 KB a kernel's shared memory must be allowed on each device; the call costs about a microsecond.
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    const unsigned blocks = static_cast<unsigned>(schedule.tiles) * static_cast<unsigned>(schedule.heads);
    kernel<<<blocks, threads, shared_bytes, stream>>>(a, schedule);
    return cudaGetLastError();
}

template <class Number>
size_t head_bytes(int T_len, int HD) {
    return 2 * sizeof(Number) * static_cast<size_t>(T_len) * static_cast<size_t>(HD);
}

inline bool forward_vectors(const AttentionForward<bf16>& a) {
    return vectors_possible({static_cast<size_t>(a.HD), a.ld_q, a.ld_k, a.ld_v}, {a.out, a.q, a.k, a.v}, 2);
}
inline bool backward_vectors(const AttentionBackward<bf16>& a) {
    return vectors_possible({static_cast<size_t>(a.HD), a.ld_q, a.ld_k, a.ld_v, a.ld_dq, a.ld_dk, a.ld_dv},
                            {a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v}, 2);
}

// For kernels that own query tiles, and for those that own key tiles.
template <class Args>
Schedule query_schedule(const Args& a, int tile_rows, bool vectors) {
    return schedule_for(a, a.B * a.NH, tile_rows, head_bytes<bf16>(a.T_len, a.HD), vectors);
}
template <class Args>
Schedule key_schedule(const Args& a, int tile_rows, bool vectors) {
    return schedule_for(a, a.B * a.NKV, tile_rows, head_bytes<bf16>(a.T_len, a.HD) * (a.NH / a.NKV), vectors);
}

template <class Tile>
cudaError_t launch_forward(const AttentionForward<bf16>& a, cudaStream_t stream) {
    return launch(forward_kernel<Tile>, a, query_schedule(a, Tile::kBM, forward_vectors(a)), Tile::kThreads,
                  Tile::kSharedBytes, stream);
}

template <class Tile>
cudaError_t launch_key_gradient(const AttentionBackward<bf16>& a, cudaStream_t stream) {
    return launch(key_gradient_kernel<Tile>, a, key_schedule(a, Tile::kBN, backward_vectors(a)), Tile::kThreads,
                  Tile::kSharedBytes, stream);
}

template <class Tile>
cudaError_t launch_query_gradient(const AttentionBackward<bf16>& a, cudaStream_t stream) {
    return launch(query_gradient_kernel<Tile>, a, query_schedule(a, Tile::kBM, backward_vectors(a)), Tile::kThreads,
                  Tile::kSharedBytes, stream);
}

template <class Tile>
cudaError_t launch_plain_forward(const AttentionForward<float>& a, cudaStream_t stream) {
    const Schedule schedule = schedule_for(a, a.B * a.NH, Tile::kRows, head_bytes<float>(a.T_len, a.HD), false);
    return launch(plain_forward_kernel<Tile>, a, schedule, Tile::kThreads, Tile::kForwardBytes, stream);
}

template <class Tile>
cudaError_t launch_plain_backward(const AttentionBackward<float>& a, cudaStream_t stream) {
    const size_t bytes = head_bytes<float>(a.T_len, a.HD);
    const cudaError_t error = launch(plain_key_gradient_kernel<Tile>, a,
                                     schedule_for(a, a.B * a.NKV, Tile::kRows, bytes * (a.NH / a.NKV), false),
                                     Tile::kThreads, Tile::kBackwardBytes, stream);
    if (error != cudaSuccess) return error;
    return launch(plain_query_gradient_kernel<Tile>, a, schedule_for(a, a.B * a.NH, Tile::kRows, bytes, false),
                  Tile::kThreads, Tile::kBackwardBytes, stream);
}

template <class Number>
cudaError_t launch_delta(const AttentionBackward<Number>& a, cudaStream_t stream) {
    const size_t rows = static_cast<size_t>(a.B) * a.T_len * a.NH;
    const bool vectors = vectors_possible({static_cast<size_t>(a.HD)}, {a.dout, a.out}, sizeof(Number));
    delta_kernel<Number><<<static_cast<unsigned>((rows + 15) / 16), 256, 0, stream>>>(a.delta, a.dout, a.out, a.B,
                                                                                      a.T_len, a.NH, a.HD, vectors);
    return cudaGetLastError();
}

// The tiles for head sizes up to kHDP: the generic ones, and Hopper's for a head of exactly that size.
template <class Forward, class Key, class Query>
struct Kernels {
    using ForwardTile = Forward;
    using KeyTile = Key;
    using QueryTile = Query;
    static constexpr bool kHopper = false;
};
template <class Forward, class Key, class Query, class HopperForward, class HopperKey, class HopperQuery>
struct HopperKernels : Kernels<Forward, Key, Query> {
    using HopperForwardTile = HopperForward;
    using HopperKeyTile = HopperKey;
    using HopperQueryTile = HopperQuery;
    static constexpr bool kHopper = true;
};

template <class Set>
cudaError_t forward_with(const AttentionForward<bf16>& a, cudaStream_t stream) {
    if constexpr (Set::kHopper) {
        using Tile = typename Set::HopperForwardTile;
        if (a.HD == Tile::kHD && forward_vectors(a) && !generic_kernels_forced()) {
            bool built = false;
            const cudaError_t error = hopper::look_for(hopper::forward_kernel<Tile>, &built);
            if (error != cudaSuccess) return error;
            if (built) return hopper::launch_forward<Tile>(a, query_schedule(a, Tile::kBM, true), stream);
        }
    }
    return launch_forward<typename Set::ForwardTile>(a, stream);
}

template <class Set>
cudaError_t backward_with(const AttentionBackward<bf16>& a, cudaStream_t stream) {
    if constexpr (Set::kHopper) {
        using Key = typename Set::HopperKeyTile;
        using Query = typename Set::HopperQueryTile;
        if (a.HD == Key::kHD && backward_vectors(a) && !generic_kernels_forced()) {
            bool built = false;
            cudaError_t error = hopper::look_for(hopper::key_gradient_kernel<Key>, &built);
            if (error == cudaSuccess && built)
                error = hopper::launch_backward<Key>(hopper::key_gradient_kernel<Key>, a,
                                                     key_schedule(a, Key::kBN, true), stream);
            if (error != cudaSuccess) return error;
            if (built)
                return hopper::launch_backward<Query>(hopper::query_gradient_kernel<Query>, a,
                                                      query_schedule(a, Query::kBM, true), stream);
        }
    }
    const cudaError_t error = launch_key_gradient<typename Set::KeyTile>(a, stream);
    return error == cudaSuccess ? launch_query_gradient<typename Set::QueryTile>(a, stream) : error;
}

using Kernels32 =
    Kernels<ForwardTile<32, 128, 64, 4>, KeyTile<32, 64, 64, 2, Gradients::dk_and_dv>, QueryTile<32, 128, 64, 2, 4>>;
using Kernels64 = HopperKernels<ForwardTile<64, 128, 64, 4>, KeyTile<64, 64, 64, 2, Gradients::dk_and_dv>,
                                QueryTile<64, 128, 64, 2, 4>, hopper::ForwardTile<64>, hopper::KeyTile<64, 4>,
                                hopper::QueryTile<64, 4>>;
using Kernels96 =
    Kernels<ForwardTile<96, 128, 64, 4>, KeyTile<96, 64, 64, 2, Gradients::dk_and_dv>, QueryTile<96, 128, 32, 2, 4>>;
using Kernels128 = HopperKernels<ForwardTile<128, 128, 64, 4>, KeyTile<128, 64, 64, 2, Gradients::dk_and_dv>,
                                 QueryTile<128, 128, 32, 2, 4>, hopper::ForwardTile<128>, hopper::KeyTile<128, 3>,
                                 hopper::QueryTile<128, 3>>;
// dk and dv in turn: the registers hold one of them.
using Kernels256 =
    Kernels<ForwardTile<256, 64, 64, 4>, KeyTile<256, 32, 64, 1, Gradients::dk>, QueryTile<256, 64, 32, 1, 4>>;

// Templates, so that a build compiles the kernels of its own number type only.
template <class Number>
cudaError_t forward(const AttentionForward<Number>& a, cudaStream_t stream) {
    if constexpr (sizeof(Number) == 4) {
        if (a.HD <= 64) return launch_plain_forward<PlainTile<64>>(a, stream);
        if (a.HD <= 128) return launch_plain_forward<PlainTile<128>>(a, stream);
        return launch_plain_forward<PlainTile<256>>(a, stream);
    } else {
        if (a.HD <= 32) return forward_with<Kernels32>(a, stream);
        if (a.HD <= 64) return forward_with<Kernels64>(a, stream);
        if (a.HD <= 96) return forward_with<Kernels96>(a, stream);
        if (a.HD <= 128) return forward_with<Kernels128>(a, stream);
        return forward_with<Kernels256>(a, stream);
    }
}

template <class Number>
cudaError_t backward(const AttentionBackward<Number>& a, cudaStream_t stream) {
    const cudaError_t error = launch_delta(a, stream);
    if (error != cudaSuccess) return error;
    if constexpr (sizeof(Number) == 4) {
        if (a.HD <= 64) return launch_plain_backward<PlainTile<64>>(a, stream);
        if (a.HD <= 128) return launch_plain_backward<PlainTile<128>>(a, stream);
        return launch_plain_backward<PlainTile<256>>(a, stream);
    } else {
        if (a.HD <= 32) return backward_with<Kernels32>(a, stream);
        if (a.HD <= 64) return backward_with<Kernels64>(a, stream);
        if (a.HD <= 96) return backward_with<Kernels96>(a, stream);
        if (a.HD <= 128) return backward_with<Kernels128>(a, stream);
        const cudaError_t first = launch_key_gradient<KeyTile<256, 32, 64, 1, Gradients::dv>>(a, stream);
        return first == cudaSuccess ? backward_with<Kernels256>(a, stream) : first;
    }
}

}  // namespace slab::attn
