// Sums keep their order whichever way a linear layer is composed: the same kernels on the same shapes every time.
#include "train/model/block_parts.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cached.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace slab::train {

void norm_forward(const BlockContext& ctx, real* y, const NormStats& stats, const real* x, const NormWeights& w) {
    const NormForward<real> a{.y = y,
                              .mean = stats.mean,
                              .rstd = stats.rstd,
                              .x = x,
                              .w = w.w,
                              .b = w.b,
                              .rows = ctx.rows(),
                              .C = ctx.config.C,
                              .eps = ctx.config.norm_eps};
    ctx.config.norm == NormKind::layer_norm ? layernorm_forward(a, ctx.stream) : rmsnorm_forward(a, ctx.stream);
}

void norm_backward(const BlockContext& ctx, real* dx, const real* dy, const real* x, const NormStats& stats,
                   const NormWeights& w) {
    const NormBackward<real> a{.dx = dx,
                               .dw = w.dw,
                               .db = w.db,
                               .dy = dy,
                               .x = x,
                               .w = w.w,
                               .mean = stats.mean,
                               .rstd = stats.rstd,
                               .rows = ctx.rows(),
                               .C = ctx.config.C};
    ctx.config.norm == NormKind::layer_norm ? layernorm_backward(a, ctx.stream) : rmsnorm_backward(a, ctx.stream);
}

namespace {

LoraForward<real> lora_forward_args(const BlockContext& ctx, real* y, const real* x, const LinearWeights& w,
                                    const LoraActivations& lora) {
    return {.y = y,
            .xa = lora.xa,
            .x = x,
            .x_dropped = lora.x_dropped,
            .rows = ctx.rows(),
            .ld_y = static_cast<size_t>(w.N)};
}

bool adapters_cover_all_outputs(const LinearWeights& w) {
    if (!w.adapted()) return false;
    int outputs = 0;
    for (const LoraModule<real>& m : w.lora->modules) outputs += m.N;
    return outputs == w.N;
}

LoraBackward<real> lora_backward_args(const BlockContext& ctx, const real* dy, const LinearWeights& w,
                                      const LoraActivations& lora) {
    return {.dx = nullptr,
            .dxa = ctx.scratch.dxa,
            .dy = dy,
            .xa = lora.xa,
            .x = nullptr,
            .x_dropped = lora.x_dropped,
            .rows = ctx.rows(),
            .ld_dy = static_cast<size_t>(w.N),
            .accumulate = false};
}

}  // namespace

// Adapters that fill all of y come first. The large product then adds to them on its way out, and y is read once less
// than if they were added to it.
void linear_forward(const BlockContext& ctx, real* y, const real* x, const LinearWeights& w,
                    const LoraActivations& lora, const real* add) {
    LoraForward<real> adapters = lora_forward_args(ctx, y, x, w, lora);
    const bool adapters_first = adapters_cover_all_outputs(w);
    if (adapters_first) {
        adapters.accumulate = false;
        adapters.add = add;
        lora_forward(adapters, *w.lora, ctx.dropout, ctx.stream);
        add = y;
    }
    matmul_forward(MatmulForward<real>{.y = y,
                                       .x = x,
                                       .w = w.w,
                                       .bias = w.bias,
                                       .add = add,
                                       .rows = ctx.rows(),
                                       .N = w.N,
                                       .K = w.K,
                                       .ld_y = static_cast<size_t>(w.N),
                                       .ld_x = static_cast<size_t>(w.K)},
                   ctx.stream);
    if (w.adapted() && !adapters_first) lora_forward(adapters, *w.lora, ctx.dropout, ctx.stream);
}

void linear_recompute_lora(const BlockContext& ctx, const real* x, const LinearWeights& w,
                           const LoraActivations& lora) {
    if (!w.adapted()) return;
    LoraForward<real> args = lora_forward_args(ctx, nullptr, x, w, lora);
    args.xa_only = true;
    lora_forward(args, *w.lora, ctx.dropout, ctx.stream);
}

void linear_backward_weight(const BlockContext& ctx, const real* dy, const real* x, const LinearWeights& w,
                            const LoraActivations& lora) {
    const size_t rows = ctx.rows(), N = static_cast<size_t>(w.N), K = static_cast<size_t>(w.K);
    if (ctx.trained_in_full) {
        matmul_backward_weight(
            MatmulBackwardWeight<real>{
                .dw = w.dw, .dy = dy, .x = x, .rows = rows, .N = w.N, .K = w.K, .ld_dy = N, .ld_x = K},
            ctx.stream);
        if (w.bias) bias_backward(w.dbias, dy, rows, w.N, N, ctx.stream);
    }
    if (!w.adapted()) return;
    LoraBackward<real> args = lora_backward_args(ctx, dy, w, lora);
    args.x = x;
    lora_backward(args, *w.lora, ctx.dropout, ctx.stream);
}

void linear_backward_input(const BlockContext& ctx, real* dx, const real* dy, const LinearWeights& w,
                           const LoraActivations& lora) {
    if (w.adapted()) {
        LoraBackward<real> args = lora_backward_args(ctx, dy, w, lora);
        args.dx = dx;
        lora_backward_input(args, *w.lora, ctx.dropout, ctx.stream);
    }
    matmul_backward_input(MatmulBackwardInput<real>{.dx = dx,
                                                    .dy = dy,
                                                    .w = w.w,
                                                    .rows = ctx.rows(),
                                                    .N = w.N,
                                                    .K = w.K,
                                                    .ld_dx = static_cast<size_t>(w.K),
                                                    .ld_dy = static_cast<size_t>(w.N),
                                                    .accumulate = w.adapted()},
                          ctx.stream);
}

Heads attention_heads(const ModelConfig& c, const BlockActivations& a) {
    const size_t Q = query_cols(c), K = key_cols(c), ld = shape_of(c, Linear::qkv).N;
    real* const qk = c.qk_norm ? a.qk : a.qkv;
    return {.q = qk, .k = qk + Q, .v = a.qkv + Q + K, .ld_qk = c.qk_norm ? Q + K : ld, .ld_v = ld};
}

void qk_norm_forward(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts,
                     const HeadNormWeights& w) {
    const ModelConfig& c = ctx.config;
    head_norm_forward(HeadNormForward<real>{.y = heads.q,
                                            .rstd = acts.head_rstd,
                                            .x = acts.qkv,
                                            .w_q = w.w_q,
                                            .w_k = w.w_k,
                                            .rows = ctx.rows(),
                                            .NH = c.NH,
                                            .NKV = c.NKV,
                                            .HD = c.HD,
                                            .ld_y = heads.ld_qk,
                                            .ld_x = shape_of(c, Linear::qkv).N,
                                            .eps = c.norm_eps},
                      ctx.stream);
}

void qk_norm_backward(const BlockContext& ctx, real* d_qkv, const BlockActivations& acts, const HeadNormWeights& w) {
    const ModelConfig& c = ctx.config;
    const size_t ld = shape_of(c, Linear::qkv).N;
    head_norm_backward(HeadNormBackward<real>{.dx = d_qkv,
                                              .dw_q = w.dw_q,
                                              .dw_k = w.dw_k,
                                              .dy = d_qkv,
                                              .x = acts.qkv,
                                              .w_q = w.w_q,
                                              .w_k = w.w_k,
                                              .rstd = acts.head_rstd,
                                              .rows = ctx.rows(),
                                              .NH = c.NH,
                                              .NKV = c.NKV,
                                              .HD = c.HD,
                                              .ld_dx = ld,
                                              .ld_dy = ld,
                                              .ld_x = ld},
                       ctx.stream);
}

namespace {

void rotate(const BlockContext& ctx, real* x, size_t ld, bool backward) {
    if (!ctx.config.rotary) return;
    rotary(Rotary<real>{.x = x,
                        .table = ctx.rotary_table,
                        .doc_start = ctx.doc_start,
                        .rows = ctx.rows(),
                        .T_len = ctx.T,
                        .heads = ctx.config.NH + ctx.config.NKV,
                        .HD = ctx.config.HD,
                        .ld_x = ld,
                        .backward = backward,
                        .first_position = ctx.cache ? ctx.cache->filled : 0},
           ctx.stream);
}

float attention_scale(const ModelConfig& c) {
    return 1.0f / std::sqrt(static_cast<float>(c.HD));
}

void attend_with_cache(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts) {
    const ModelConfig& c = ctx.config;
    cache_append(CacheAppend<real>{.k_cache = ctx.cache->k,
                                   .v_cache = ctx.cache->v,
                                   .k = heads.k,
                                   .v = heads.v,
                                   .rows = ctx.rows(),
                                   .first = static_cast<size_t>(ctx.cache->filled),
                                   .cols = c.NKV * c.HD,
                                   .ld_k = heads.ld_qk,
                                   .ld_v = heads.ld_v},
                 ctx.stream);
    attention_cached(AttentionCached<real>{.out = acts.attn,
                                           .q = heads.q,
                                           .k_cache = ctx.cache->k,
                                           .v_cache = ctx.cache->v,
                                           .Tq = ctx.T,
                                           .n = ctx.cache->filled + ctx.T,
                                           .NH = c.NH,
                                           .NKV = c.NKV,
                                           .HD = c.HD,
                                           .ld_q = heads.ld_qk,
                                           .scale = attention_scale(c)},
                     ctx.stream);
}

}  // namespace

void rotate_forward(const BlockContext& ctx, const Heads& heads) {
    rotate(ctx, heads.q, heads.ld_qk, false);
}

void rotate_backward(const BlockContext& ctx, real* d_qkv) {
    rotate(ctx, d_qkv, shape_of(ctx.config, Linear::qkv).N, true);
}

void attend(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts) {
    if (ctx.cache) return attend_with_cache(ctx, heads, acts);
    const ModelConfig& c = ctx.config;
    attention_forward(AttentionForward<real>{.out = acts.attn,
                                             .lse = acts.lse,
                                             .q = heads.q,
                                             .k = heads.k,
                                             .v = heads.v,
                                             .doc_start = ctx.doc_start,
                                             .B = ctx.B,
                                             .T_len = ctx.T,
                                             .NH = c.NH,
                                             .NKV = c.NKV,
                                             .HD = c.HD,
                                             .ld_q = heads.ld_qk,
                                             .ld_k = heads.ld_qk,
                                             .ld_v = heads.ld_v,
                                             .scale = attention_scale(c)},
                      ctx.stream);
}

void attend_backward(const BlockContext& ctx, real* d_qkv, const real* d_attn, const Heads& heads,
                     const BlockActivations& acts) {
    const ModelConfig& c = ctx.config;
    const size_t Q = query_cols(c), K = key_cols(c), ld = shape_of(c, Linear::qkv).N;
    attention_backward(AttentionBackward<real>{.dq = d_qkv,
                                               .dk = d_qkv + Q,
                                               .dv = d_qkv + Q + K,
                                               .delta = ctx.scratch.delta,
                                               .dout = d_attn,
                                               .out = acts.attn,
                                               .lse = acts.lse,
                                               .q = heads.q,
                                               .k = heads.k,
                                               .v = heads.v,
                                               .doc_start = ctx.doc_start,
                                               .B = ctx.B,
                                               .T_len = ctx.T,
                                               .NH = c.NH,
                                               .NKV = c.NKV,
                                               .HD = c.HD,
                                               .ld_dq = ld,
                                               .ld_dk = ld,
                                               .ld_dv = ld,
                                               .ld_q = heads.ld_qk,
                                               .ld_k = heads.ld_qk,
                                               .ld_v = heads.ld_v,
                                               .scale = attention_scale(c),
                                               .workspace = ctx.scratch.attention_workspace},
                       ctx.stream);
}

void activation_forward(const BlockContext& ctx, real* act, const real* fc) {
    const size_t rows = ctx.rows(), I = ctx.config.I;
    if (ctx.config.activation == Activation::swiglu)
        swiglu_forward(act, fc, rows, ctx.config.I, ctx.stream);
    else
        gelu_forward(act, fc, rows * I, ctx.stream);
}

void activation_backward(const BlockContext& ctx, real* d_fc, const real* d_act, const real* fc) {
    const size_t rows = ctx.rows(), I = ctx.config.I;
    if (ctx.config.activation == Activation::swiglu)
        swiglu_backward(d_fc, d_act, fc, rows, ctx.config.I, ctx.stream);
    else
        gelu_backward(d_fc, d_act, fc, rows * I, ctx.stream);
}

}  // namespace slab::train
