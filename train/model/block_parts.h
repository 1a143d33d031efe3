// The operations that a block is made of, each beside its backward, and the context they share.
//
// They only enqueue kernels: each is one formula. Outputs come first, then inputs, then weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/lora.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"
#include "train/model/block_buffers.h"
#include "train/model/block_weights.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Keys and values of one layer for the tokens of one sequence, after rotation. The first `filled` rows are there.
struct KeyValueCache {
    real* k;  // [positions, NKV, HD]
    real* v;  // [positions, NKV, HD]
    int filled;
};

// One micro-batch's shape and constants. What differs between layers is set by the model for each.
struct BlockContext {
    const ModelConfig& config;
    int B, T;
    Recompute recompute;
    const float* rotary_table;  // [positions, HD / 2, 2] device, or null
    const int32_t* doc_start;   // [B, T] device, or null
    LoraDropout dropout;        // key.layer: of each layer
    BackwardScratch scratch;
    Stream& stream;
    bool trained_in_full = false;  // of each layer: its own weights have gradients
    // Of each layer when generating (B = 1): the rows follow the cache's, attend to them too, and are appended to them.
    std::optional<KeyValueCache> cache = std::nullopt;
    size_t rows() const { return static_cast<size_t>(B) * T; }
};

// y = norm(x): LayerNorm or RMSNorm, as the config says.
void norm_forward(const BlockContext& ctx, real* y /*[rows, C]*/, const NormStats& stats, const real* x /*[rows, C]*/,
                  const NormWeights& w);
// dx += the gradient through the norm; weights +=.
void norm_backward(const BlockContext& ctx, real* dx /*[rows, C] +=*/, const real* dy /*[rows, C]*/,
                   const real* x /*[rows, C]*/, const NormStats& stats, const NormWeights& w);

// y = x · wᵀ + bias + adapters(x) + add. Keeps lora.xa for backward.
void linear_forward(const BlockContext& ctx, real* y /*[rows, N]*/, const real* x /*[rows, K]*/, const LinearWeights& w,
                    const LoraActivations& lora, const real* add = nullptr /*[rows, N]*/);
// lora.xa alone, as linear_forward leaves it: what backward needs of a layer whose output is not needed again.
void linear_recompute_lora(const BlockContext& ctx, const real* x /*[rows, K]*/, const LinearWeights& w,
                           const LoraActivations& lora);
// Gradients of weight, bias and adapters, all +=. The last to read x.
void linear_backward_weight(const BlockContext& ctx, const real* dy /*[rows, N]*/, const real* x /*[rows, K]*/,
                            const LinearWeights& w, const LoraActivations& lora);
// dx = dy · w + the adapters' share, after linear_backward_weight of the same layer. dx may lie over x.
void linear_backward_input(const BlockContext& ctx, real* dx /*[rows, K] =*/, const real* dy /*[rows, N]*/,
                           const LinearWeights& w, const LoraActivations& lora);

// The query and key heads as attention reads them: in the fused buffer, or with qk_norm in their own.
struct Heads {
    real* q;        // [rows, NH, HD], row stride ld_qk
    real* k;        // [rows, NKV, HD], row stride ld_qk
    const real* v;  // [rows, NKV, HD], row stride ld_v
    size_t ld_qk, ld_v;
};
Heads attention_heads(const ModelConfig& config, const BlockActivations& acts);

// heads.q, heads.k = each head of acts.qkv through its RMSNorm.
void qk_norm_forward(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts,
                     const HeadNormWeights& w);
// d_qkv, its query and key columns: from the gradient after the norm to that before it; weights +=.
void qk_norm_backward(const BlockContext& ctx, real* d_qkv /*[rows, (NH + 2 NKV) HD]*/, const BlockActivations& acts,
                      const HeadNormWeights& w);

// Rotates query and key heads by their positions, in place. Nothing without rotary positions.
void rotate_forward(const BlockContext& ctx, const Heads& heads);
void rotate_backward(const BlockContext& ctx, real* d_qkv /*[rows, (NH + 2 NKV) HD]*/);

// acts.attn, acts.lse = attention of the rows to themselves, and to the cache's where there is one.
void attend(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts);
void attend_backward(const BlockContext& ctx, real* d_qkv /*[rows, (NH + 2 NKV) HD] =*/,
                     const real* d_attn /*[rows, NH HD]*/, const Heads& heads, const BlockActivations& acts);

// act = silu(gate) * up of fc = [gate, up], or gelu(fc).
void activation_forward(const BlockContext& ctx, real* act /*[rows, I]*/, const real* fc);
void activation_backward(const BlockContext& ctx, real* d_fc /*may be fc*/, const real* d_act /*[rows, I]*/,
                         const real* fc);

}  // namespace slab::train
