// Causal grouped-query attention that never holds T x T. It keeps the log-sum-exp of each query row and recomputes
// probabilities in backward, tile by tile.
//
//     forward    p = softmax(scale * q·k), out = sum p v, over keys s in [doc_start[t], t] for query t
//     backward   delta = rowsum(dout * out), dp = dout·v, ds = p (dp - delta),
//                dq = scale ds·k, dk = scale dsᵀ·q, dv = pᵀ·dout
//
// Query head h reads key/value head h / (NH / NKV). Tiles, and with them the order of sums, depend on shapes alone. On
// CUDA they also depend on the card, as Hopper has kernels of its own, and on alignment, which shapes decide. Source of
// the formulation: FlashAttention-2 (Dao, 2023).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"

namespace slab {

// The largest HD that the backend's kernels take; the references take any.
inline constexpr int kMaxAttentionHeadSize = kBackend == Backend::cuda ? 256 : 1 << 14;

template <class Number>
struct AttentionForward {
    Number* out;               // [B, T, NH, HD], dense
    Acc<Number>* lse;          // [B, NH, T] log-sum-exp of the scaled scores
    const Number* q;           // [B, T, NH, HD], row (b, t) at stride ld_q
    const Number* k;           // [B, T, NKV, HD], row stride ld_k
    const Number* v;           // [B, T, NKV, HD], row stride ld_v
    const int32_t* doc_start;  // [B, T] or null (one document a row)
    int B, T_len, NH, NKV, HD;
    size_t ld_q, ld_k, ld_v;
    float scale;
};

template <class Number>
struct AttentionBackward {
    Number* dq;                // [B, T, NH, HD], row stride ld_dq, =
    Number* dk;                // [B, T, NKV, HD], row stride ld_dk, =
    Number* dv;                // [B, T, NKV, HD], row stride ld_dv, =
    Acc<Number>* delta;        // [B, NH, T] scratch
    const Number* dout;        // [B, T, NH, HD], dense
    const Number* out;         // [B, T, NH, HD], dense
    const Acc<Number>* lse;    // [B, NH, T]
    const Number* q;           // [B, T, NH, HD], row stride ld_q
    const Number* k;           // [B, T, NKV, HD], row stride ld_k
    const Number* v;           // [B, T, NKV, HD], row stride ld_v
    const int32_t* doc_start;  // [B, T] or null
    int B, T_len, NH, NKV, HD;
    size_t ld_dq, ld_dk, ld_dv, ld_q, ld_k, ld_v;
    float scale;
    float* workspace;  // [attention_backward_workspace_bytes(...) / 4]; null when that is 0, or in references
};

namespace ref {
template <class Number>
void attention_forward(const AttentionForward<Number>& a, ThreadPool& pool);
template <class Number>
void attention_backward(const AttentionBackward<Number>& a, ThreadPool& pool);
}  // namespace ref

// Device memory that attention_backward needs beside its arguments: linear in T, a function of shapes alone. On the CPU
// it holds copies of dq for strips to add to. On CUDA it is 0.
size_t attention_backward_workspace_bytes(int B, int T_len, int NH, int NKV, int HD);

void attention_forward(const AttentionForward<real>& a, Stream& stream);
void attention_backward(const AttentionBackward<real>& a, Stream& stream);

}  // namespace slab
