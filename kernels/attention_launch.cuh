// Picks tile sizes for a head size and launches the attention kernels on a CUDA stream.
//
// Tile sizes depend on the head size alone (DESIGN.md, Determinism). Head sizes in between are padded with zeros in
// shared memory to the next of 32, 64, 96, 128, 256.
#pragma once

#include <initializer_list>

#include "kernels/attention_backward.cuh"
#include "kernels/attention_fp32.cuh"

namespace slab::attn {

inline constexpr int kMaxHeadSize = 256;
inline constexpr size_t kGroupBytes = size_t{16} << 20;  // what a group of heads reads again and again: stays in L2

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
    // Above 48 KB a kernel must be allowed its shared memory, on each device; the call costs about a microsecond.
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    const unsigned blocks = static_cast<unsigned>(schedule.tiles) * static_cast<unsigned>(schedule.heads);
    kernel<<<blocks, threads, shared_bytes, stream>>>(a, schedule);
    return cudaGetLastError();
}

template <class T>
size_t head_bytes(int T_len, int HD) {
    return 2 * sizeof(T) * static_cast<size_t>(T_len) * static_cast<size_t>(HD);
}

template <class Tile>
cudaError_t launch_forward(const AttentionForward<bf16>& a, cudaStream_t stream) {
    const bool vectors =
        vectors_possible({static_cast<size_t>(a.HD), a.ld_q, a.ld_k, a.ld_v}, {a.out, a.q, a.k, a.v}, 2);
    const Schedule schedule = schedule_for(a, a.B * a.NH, Tile::kBM, head_bytes<bf16>(a.T_len, a.HD), vectors);
    return launch(forward_kernel<Tile>, a, schedule, Tile::kThreads, Tile::kSharedBytes, stream);
}

inline bool backward_vectors(const AttentionBackward<bf16>& a) {
    return vectors_possible({static_cast<size_t>(a.HD), a.ld_q, a.ld_k, a.ld_v, a.ld_dq, a.ld_dk, a.ld_dv},
                            {a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v}, 2);
}

template <class Tile>
cudaError_t launch_key_gradient(const AttentionBackward<bf16>& a, cudaStream_t stream) {
    const size_t bytes = head_bytes<bf16>(a.T_len, a.HD) * static_cast<size_t>(a.NH / a.NKV);
    const Schedule schedule = schedule_for(a, a.B * a.NKV, Tile::kBN, bytes, backward_vectors(a));
    return launch(key_gradient_kernel<Tile>, a, schedule, Tile::kThreads, Tile::kSharedBytes, stream);
}

template <class Tile>
cudaError_t launch_query_gradient(const AttentionBackward<bf16>& a, cudaStream_t stream) {
    const size_t bytes = head_bytes<bf16>(a.T_len, a.HD);
    const Schedule schedule = schedule_for(a, a.B * a.NH, Tile::kBM, bytes, backward_vectors(a));
    return launch(query_gradient_kernel<Tile>, a, schedule, Tile::kThreads, Tile::kSharedBytes, stream);
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

template <class T>
cudaError_t launch_delta(const AttentionBackward<T>& a, cudaStream_t stream) {
    const size_t rows = static_cast<size_t>(a.B) * a.T_len * a.NH;
    const bool vectors = vectors_possible({static_cast<size_t>(a.HD)}, {a.dout, a.out}, sizeof(T));
    delta_kernel<T><<<static_cast<unsigned>((rows + 15) / 16), 256, 0, stream>>>(a.delta, a.dout, a.out, a.B, a.T_len,
                                                                                 a.NH, a.HD, vectors);
    return cudaGetLastError();
}

// Templates, so that a build compiles the kernels of its own number type only.
template <class T>
cudaError_t forward(const AttentionForward<T>& a, cudaStream_t stream) {
    if constexpr (sizeof(T) == 4) {
        if (a.HD <= 64) return launch_plain_forward<PlainTile<64>>(a, stream);
        if (a.HD <= 128) return launch_plain_forward<PlainTile<128>>(a, stream);
        return launch_plain_forward<PlainTile<256>>(a, stream);
    } else {
        if (a.HD <= 32) return launch_forward<ForwardTile<32, 128, 64, 4>>(a, stream);
        if (a.HD <= 64) return launch_forward<ForwardTile<64, 128, 64, 4>>(a, stream);
        if (a.HD <= 96) return launch_forward<ForwardTile<96, 128, 64, 4>>(a, stream);
        if (a.HD <= 128) return launch_forward<ForwardTile<128, 128, 64, 4>>(a, stream);
        return launch_forward<ForwardTile<256, 64, 64, 4>>(a, stream);
    }
}

template <class T>
cudaError_t backward(const AttentionBackward<T>& a, cudaStream_t stream) {
    cudaError_t error = launch_delta(a, stream);
    const auto then = [&](cudaError_t (*next)(const AttentionBackward<T>&, cudaStream_t)) {
        if (error == cudaSuccess) error = next(a, stream);
    };
    if constexpr (sizeof(T) == 4) {
        if (a.HD <= 64)
            then(launch_plain_backward<PlainTile<64>>);
        else if (a.HD <= 128)
            then(launch_plain_backward<PlainTile<128>>);
        else
            then(launch_plain_backward<PlainTile<256>>);
    } else if (a.HD <= 32) {
        then(launch_key_gradient<KeyTile<32, 64, 64, 2, Gradients::dk_and_dv>>);
        then(launch_query_gradient<QueryTile<32, 128, 64, 2, 4>>);
    } else if (a.HD <= 64) {
        then(launch_key_gradient<KeyTile<64, 64, 64, 2, Gradients::dk_and_dv>>);
        then(launch_query_gradient<QueryTile<64, 128, 64, 2, 4>>);
    } else if (a.HD <= 96) {
        then(launch_key_gradient<KeyTile<96, 64, 64, 2, Gradients::dk_and_dv>>);
        then(launch_query_gradient<QueryTile<96, 128, 32, 2, 4>>);
    } else if (a.HD <= 128) {
        then(launch_key_gradient<KeyTile<128, 64, 64, 2, Gradients::dk_and_dv>>);
        then(launch_query_gradient<QueryTile<128, 128, 32, 2, 4>>);
    } else {
        then(launch_key_gradient<KeyTile<256, 32, 64, 1, Gradients::dk>>);
        then(launch_key_gradient<KeyTile<256, 32, 64, 1, Gradients::dv>>);
        then(launch_query_gradient<QueryTile<256, 64, 32, 1, 4>>);
    }
    return error;
}

}  // namespace slab::attn
