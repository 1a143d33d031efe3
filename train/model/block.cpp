// The decoder block: two flat lists of calls, forward and backward. See block.h.
#include "train/model/block.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cached.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "train/model/carver.h"

namespace slab::train {

namespace {

// The q and k heads as attention reads them: from the fused buffer, or from their own after the per-head norm.
struct Heads {
    real* q;
    real* k;
    const real* v;
    size_t ld_qk, ld_v;
};

Heads attention_heads(const ModelConfig& c, const BlockActivations& a) {
    const size_t QC = attn_cols(c), KC = static_cast<size_t>(c.NKV) * c.HD, ld = qkv_cols(c);
    real* const qk = c.qk_norm ? a.qk : a.qkv;
    return {qk, qk + QC, a.qkv + QC + KC, c.qk_norm ? QC + KC : ld, ld};
}

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

// Of the rows themselves, or with a cache of those before too.
void attend(const BlockContext& ctx, const Heads& heads, const BlockActivations& acts) {
    const ModelConfig& c = ctx.config;
    if (!ctx.cache) {
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
        return;
    }
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

// y = add + the adapters of this linear (add may be y); with y null only their x · Aᵀ, which backward needs.
void adapter_forward(const BlockContext& ctx, Linear which, real* y, const real* x, const real* add, size_t N,
                     const BlockAdapters& adapters, const BlockActivations& acts) {
    const LoraGroup<real>& group = adapters[which];
    if (group.modules.empty()) return;
    lora_forward(LoraForward<real>{.y = y,
                                   .xa = acts.xa[static_cast<size_t>(which)],
                                   .x = x,
                                   .x_dropped = acts.x_dropped,
                                   .rows = ctx.rows(),
                                   .ld_y = N,
                                   .accumulate = add == y,
                                   .add = add},
                 group, ctx.dropout, ctx.stream);
}

// Whether every output of a linear is some module's.
bool covers_all(const LoraGroup<real>& group, size_t N) {
    size_t cols = 0;
    for (const LoraModule<real>& m : group.modules) cols += m.N;
    return cols == N;
}

// y = x · wᵀ + bias + add + the adapters of this linear. They come first where they fill all of y: the large product
// then adds to them on its way, and y is read once less than if they were added to it.
void linear_forward(const BlockContext& ctx, Linear which, real* y, const real* x, const real* w, const real* bias,
                    const real* add, size_t N, size_t K, const BlockAdapters& adapters, const BlockActivations& acts) {
    const bool adapters_first = covers_all(adapters[which], N);
    if (adapters_first) {
        adapter_forward(ctx, which, y, x, add, N, adapters, acts);
        add = y;
    }
    matmul_forward(MatmulForward<real>{.y = y,
                                       .x = x,
                                       .w = w,
                                       .bias = bias,
                                       .add = add,
                                       .rows = ctx.rows(),
                                       .N = static_cast<int>(N),
                                       .K = static_cast<int>(K),
                                       .ld_y = N,
                                       .ld_x = K},
                   ctx.stream);
    if (!adapters_first) adapter_forward(ctx, which, y, x, y, N, adapters, acts);
}

// Gradients of the weight, the bias and the adapters are +=; then dx = dy · w plus the adapters' share (skipped when dx
// is null). x is not read any more by then: dx may lie over it.
void linear_backward(const BlockContext& ctx, Linear which, real* dx, const real* dy, const real* x, const real* w,
                     float* dw, float* dbias, size_t N, size_t K, const BlockAdapters& adapters,
                     const BlockActivations& acts, const BackwardScratch& scratch) {
    const size_t rows = ctx.rows();
    const int n = static_cast<int>(N), k = static_cast<int>(K);
    const LoraGroup<real>& group = adapters[which];
    LoraBackward<real> lora{.dx = nullptr,
                            .dxa = scratch.dxa,
                            .dy = dy,
                            .xa = acts.xa[static_cast<size_t>(which)],
                            .x = x,
                            .x_dropped = acts.x_dropped,
                            .rows = rows,
                            .ld_dy = N,
                            .accumulate = false};
    if (dw)
        matmul_backward_weight(
            MatmulBackwardWeight<real>{.dw = dw, .dy = dy, .x = x, .rows = rows, .N = n, .K = k, .ld_dy = N, .ld_x = K},
            ctx.stream);
    if (dbias) bias_backward(dbias, dy, rows, n, N, ctx.stream);
    const bool adapted = !group.modules.empty();
    if (adapted) lora_backward(lora, group, ctx.dropout, ctx.stream);
    if (!dx) return;
    lora.dx = dx;
    if (adapted) lora_backward_input(lora, group, ctx.dropout, ctx.stream);
    matmul_backward_input(
        MatmulBackwardInput<real>{
            .dx = dx, .dy = dy, .w = w, .rows = rows, .N = n, .K = k, .ld_dx = K, .ld_dy = N, .accumulate = adapted},
        ctx.stream);
}

}  // namespace

BlockActivations carve_block_activations(Carver& carver, const ModelConfig& c, int B, int T,
                                         const AdapterExtent& adapters, Recompute recompute) {
    const size_t rows = static_cast<size_t>(B) * T, C = c.C, I = c.I, heads = static_cast<size_t>(c.NH) + c.NKV;
    const bool layer_norm = c.norm == NormKind::layer_norm;
    BlockActivations a{};
    a.norm1 = carver.take<real>(rows * C);
    if (layer_norm) a.mean1 = carver.take<float>(rows);
    a.rstd1 = carver.take<float>(rows);
    a.qkv = carver.take<real>(rows * qkv_cols(c));
    if (c.qk_norm) {
        a.qk = carver.take<real>(rows * heads * c.HD);
        a.head_rstd = carver.take<float>(rows * heads);
    }
    a.attn = carver.take<real>(rows * attn_cols(c));
    a.lse = carver.take<float>(rows * c.NH);
    if (recompute == Recompute::none) a.x1 = carver.take<real>(rows * C);
    a.norm2 = recompute == Recompute::block ? a.norm1 : carver.take<real>(rows * C);
    if (layer_norm) a.mean2 = carver.take<float>(rows);
    a.rstd2 = carver.take<float>(rows);
    a.fc = carver.take<real>(rows * fc_cols(c));
    a.act = carver.take<real>(rows * I);
    for (int l = 0; l < kLinears; ++l)
        if (adapters.R[l] != 0) a.xa[l] = carver.take<real>(rows * adapters.R[l]);
    if (adapters.dropout) a.x_dropped = carver.take<real>(rows * std::max({C, attn_cols(c), I}));
    return a;
}

BackwardScratch carve_backward_scratch(Carver& carver, const ModelConfig& c, int B, int T,
                                       const AdapterExtent& adapters) {
    const size_t rows = static_cast<size_t>(B) * T;
    BackwardScratch s{};
    const size_t norm_cols = std::max<size_t>(c.C, attn_cols(c));
    if (norm_cols > static_cast<size_t>(c.I)) s.d_norm = carver.take<real>(rows * norm_cols);
    if (qkv_cols(c) > fc_cols(c)) s.d_qkv = carver.take<real>(rows * qkv_cols(c));
    s.dxa = carver.take<real>(rows * *std::max_element(adapters.R.begin(), adapters.R.end()));
    s.delta = carver.take<float>(rows * c.NH);
    return s;
}

GradientBuffers gradient_buffers(const BlockActivations& acts, const BackwardScratch& scratch) {
    return {.d_act = acts.act,
            .d_fc = acts.fc,
            .d_norm = scratch.d_norm ? scratch.d_norm : acts.act,
            .d_qkv = scratch.d_qkv ? scratch.d_qkv : acts.fc};
}

void norm_forward(const ModelConfig& c, real* y, const NormStats& stats, const real* x, const real* w, const real* b,
                  size_t rows, Stream& stream) {
    const NormForward<real> a{.y = y,
                              .mean = stats.mean,
                              .rstd = stats.rstd,
                              .x = x,
                              .w = w,
                              .b = b,
                              .rows = rows,
                              .C = c.C,
                              .eps = c.norm_eps};
    c.norm == NormKind::layer_norm ? layernorm_forward(a, stream) : rmsnorm_forward(a, stream);
}

void norm_backward(const ModelConfig& c, real* dx, float* dw, float* db, const real* dy, const real* x, const real* w,
                   const NormStats& stats, size_t rows, Stream& stream) {
    const NormBackward<real> a{.dx = dx,
                               .dw = dw,
                               .db = db,
                               .dy = dy,
                               .x = x,
                               .w = w,
                               .mean = stats.mean,
                               .rstd = stats.rstd,
                               .rows = rows,
                               .C = c.C};
    c.norm == NormKind::layer_norm ? layernorm_backward(a, stream) : rmsnorm_backward(a, stream);
}

void block_forward(const BlockContext& ctx, real* x_out, const real* x_in, const BlockWeights& w,
                   const BlockAdapters& adapters, const BlockActivations& acts) {
    const ModelConfig& c = ctx.config;
    const size_t rows = ctx.rows(), C = c.C, I = c.I, QC = attn_cols(c);
    const auto weight = [&](Role role) { return w[index_of(role)]; };
    Stream& stream = ctx.stream;

    // attention: x1 = x_in + o(attention(rope(qkv(norm1(x_in)))))
    norm_forward(c, acts.norm1, {acts.mean1, acts.rstd1}, x_in, weight(Role::norm1_weight), weight(Role::norm1_bias),
                 rows, stream);
    linear_forward(ctx, Linear::qkv, acts.qkv, acts.norm1, weight(Role::qkv_weight), weight(Role::qkv_bias), nullptr,
                   qkv_cols(c), C, adapters, acts);
    const Heads heads = attention_heads(c, acts);
    if (c.qk_norm)
        head_norm_forward(HeadNormForward<real>{.y = acts.qk,
                                                .rstd = acts.head_rstd,
                                                .x = acts.qkv,
                                                .w_q = weight(Role::q_norm),
                                                .w_k = weight(Role::k_norm),
                                                .rows = rows,
                                                .NH = c.NH,
                                                .NKV = c.NKV,
                                                .HD = c.HD,
                                                .ld_y = heads.ld_qk,
                                                .ld_x = qkv_cols(c),
                                                .eps = c.norm_eps},
                          stream);
    rotate(ctx, heads.q, heads.ld_qk, false);
    attend(ctx, heads, acts);
    linear_forward(ctx, Linear::o, acts.x1, acts.attn, weight(Role::o_weight), weight(Role::o_bias), x_in, C, QC,
                   adapters, acts);

    // MLP: x_out = x1 + down(activation(fc(norm2(x1))))
    norm_forward(c, acts.norm2, {acts.mean2, acts.rstd2}, acts.x1, weight(Role::norm2_weight), weight(Role::norm2_bias),
                 rows, stream);
    linear_forward(ctx, Linear::fc, acts.fc, acts.norm2, weight(Role::fc_weight), weight(Role::fc_bias), nullptr,
                   fc_cols(c), C, adapters, acts);
    if (c.activation == Activation::swiglu)
        swiglu_forward(acts.act, acts.fc, rows, c.I, stream);
    else
        gelu_forward(acts.act, acts.fc, rows * I, stream);
    if (x_out)
        linear_forward(ctx, Linear::down, x_out, acts.act, weight(Role::down_weight), weight(Role::down_bias), acts.x1,
                       C, I, adapters, acts);
    else
        adapter_forward(ctx, Linear::down, nullptr, acts.act, nullptr, C, adapters, acts);
}

void block_backward(const BlockContext& ctx, real* dx, const real* x_in, const BlockWeights& w, const BlockGrads& grads,
                    const BlockAdapters& adapters, const BlockActivations& acts, const BackwardScratch& scratch,
                    bool need_dx) {
    const ModelConfig& c = ctx.config;
    const size_t rows = ctx.rows(), C = c.C, I = c.I, QC = attn_cols(c), QKVC = qkv_cols(c);
    const auto weight = [&](Role role) { return w[index_of(role)]; };
    const GradientBuffers buffers = gradient_buffers(acts, scratch);
    const auto grad = [&](Role role) { return grads[index_of(role)]; };
    Stream& stream = ctx.stream;

    // What lies below each point and is trained decides how far down the gradient has to go.
    const bool trained_in_full = grad(Role::norm1_weight) != nullptr;
    const bool below_qkv = need_dx || trained_in_full;
    const bool below_o = below_qkv || !adapters[Linear::qkv].modules.empty();
    const bool below_fc = below_o || !adapters[Linear::o].modules.empty();
    const bool below_down = below_fc || !adapters[Linear::fc].modules.empty();

    // x_out = x1 + down(activation(fc(norm2(x1)))): dx is the gradient of x_out and, through the residual, of x1
    linear_backward(ctx, Linear::down, below_down ? buffers.d_act : nullptr, dx, acts.act, weight(Role::down_weight),
                    grad(Role::down_weight), grad(Role::down_bias), C, I, adapters, acts, scratch);
    if (!below_down) return;
    real* const d_fc = buffers.d_fc;
    if (c.activation == Activation::swiglu)
        swiglu_backward(d_fc, buffers.d_act, acts.fc, rows, c.I, stream);
    else
        gelu_backward(d_fc, buffers.d_act, acts.fc, rows * I, stream);
    linear_backward(ctx, Linear::fc, below_fc ? buffers.d_norm : nullptr, d_fc, acts.norm2, weight(Role::fc_weight),
                    grad(Role::fc_weight), grad(Role::fc_bias), fc_cols(c), C, adapters, acts, scratch);
    if (!below_fc) return;
    norm_backward(c, dx, grad(Role::norm2_weight), grad(Role::norm2_bias), buffers.d_norm, acts.x1,
                  weight(Role::norm2_weight), {acts.mean2, acts.rstd2}, rows, stream);

    // x1 = x_in + o(attention(rope(qkv(norm1(x_in)))))
    real* const d_attn = buffers.d_norm;
    linear_backward(ctx, Linear::o, below_o ? d_attn : nullptr, dx, acts.attn, weight(Role::o_weight),
                    grad(Role::o_weight), grad(Role::o_bias), C, QC, adapters, acts, scratch);
    if (!below_o) return;
    const Heads heads = attention_heads(c, acts);
    attention_backward(AttentionBackward<real>{.dq = buffers.d_qkv,
                                               .dk = buffers.d_qkv + QC,
                                               .dv = buffers.d_qkv + QC + static_cast<size_t>(c.NKV) * c.HD,
                                               .delta = scratch.delta,
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
                                               .ld_dq = QKVC,
                                               .ld_dk = QKVC,
                                               .ld_dv = QKVC,
                                               .ld_q = heads.ld_qk,
                                               .ld_k = heads.ld_qk,
                                               .ld_v = heads.ld_v,
                                               .scale = attention_scale(c),
                                               .workspace = scratch.attention_workspace},
                       stream);
    rotate(ctx, buffers.d_qkv, QKVC, true);
    if (c.qk_norm)
        head_norm_backward(HeadNormBackward<real>{.dx = buffers.d_qkv,
                                                  .dw_q = grad(Role::q_norm),
                                                  .dw_k = grad(Role::k_norm),
                                                  .dy = buffers.d_qkv,
                                                  .x = acts.qkv,
                                                  .w_q = weight(Role::q_norm),
                                                  .w_k = weight(Role::k_norm),
                                                  .rstd = acts.head_rstd,
                                                  .rows = rows,
                                                  .NH = c.NH,
                                                  .NKV = c.NKV,
                                                  .HD = c.HD,
                                                  .ld_dx = QKVC,
                                                  .ld_dy = QKVC,
                                                  .ld_x = QKVC},
                           stream);
    if (acts.norm2 == acts.norm1)  // norm2 took its place
        norm_forward(c, acts.norm1, {acts.mean1, acts.rstd1}, x_in, weight(Role::norm1_weight),
                     weight(Role::norm1_bias), rows, stream);
    linear_backward(ctx, Linear::qkv, below_qkv ? buffers.d_norm : nullptr, buffers.d_qkv, acts.norm1,
                    weight(Role::qkv_weight), grad(Role::qkv_weight), grad(Role::qkv_bias), QKVC, C, adapters, acts,
                    scratch);
    if (!below_qkv) return;
    norm_backward(c, dx, grad(Role::norm1_weight), grad(Role::norm1_bias), buffers.d_norm, x_in,
                  weight(Role::norm1_weight), {acts.mean1, acts.rstd1}, rows, stream);
}

}  // namespace slab::train
