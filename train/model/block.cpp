// The decoder block: two lists of calls that mirror each other. The operations are in block_parts.h.
#include "train/model/block.h"

namespace slab::train {

void block_forward(const BlockContext& ctx, ForwardRun run, real* x_out, const real* x_in, const BlockWeights& w,
                   const BlockActivations& acts) {
    // x1 = x_in + o(attention(rope(qkv(norm1(x_in)))))
    norm_forward(ctx, acts.norm1, acts.stats1, x_in, w.norm1);
    linear_forward(ctx, acts.qkv, acts.norm1, w.qkv, acts.qkv_lora);
    const Heads heads = attention_heads(ctx.config, acts);
    if (ctx.config.qk_norm) qk_norm_forward(ctx, heads, acts, w.qk_norm);
    rotate_forward(ctx, heads);
    attend(ctx, heads, acts);
    linear_forward(ctx, acts.x1, acts.attn, w.o, acts.o_lora, x_in);

    // x_out = x1 + down(activation(fc(norm2(x1))))
    norm_forward(ctx, acts.norm2, acts.stats2, acts.x1, w.norm2);
    linear_forward(ctx, acts.fc, acts.norm2, w.fc, acts.fc_lora);
    activation_forward(ctx, acts.act, acts.fc);
    if (run == ForwardRun::first)
        linear_forward(ctx, x_out, acts.act, w.down, acts.down_lora, acts.x1);
    else
        linear_recompute_lora(ctx, acts.act, w.down, acts.down_lora);
}

void block_backward(const BlockContext& ctx, real* dx, const real* x_in, const BlockWeights& w,
                    const BlockActivations& acts, bool need_dx) {
    const GradientBuffers d = gradient_buffers(acts, ctx.scratch);
    // The gradient goes down as long as something further down needs it.
    const bool below_qkv = need_dx || ctx.trained_in_full;
    const bool below_o = below_qkv || w.qkv.adapted();
    const bool below_fc = below_o || w.o.adapted();
    const bool below_down = below_fc || w.fc.adapted();

    // x_out = x1 + down(activation(fc(norm2(x1)))): dx is the gradient of x_out and, through the residual, of x1
    linear_backward_weight(ctx, dx, acts.act, w.down, acts.down_lora);
    if (!below_down) return;
    linear_backward_input(ctx, d.act, dx, w.down, acts.down_lora);
    activation_backward(ctx, d.fc, d.act, acts.fc);
    linear_backward_weight(ctx, d.fc, acts.norm2, w.fc, acts.fc_lora);
    if (!below_fc) return;
    linear_backward_input(ctx, d.norm, d.fc, w.fc, acts.fc_lora);
    norm_backward(ctx, dx, d.norm, acts.x1, acts.stats2, w.norm2);

    // x1 = x_in + o(attention(rope(qkv(norm1(x_in))))): dx is the gradient of x1 and, through the residual, of x_in
    linear_backward_weight(ctx, dx, acts.attn, w.o, acts.o_lora);
    if (!below_o) return;
    linear_backward_input(ctx, d.attn, dx, w.o, acts.o_lora);
    attend_backward(ctx, d.qkv, d.attn, attention_heads(ctx.config, acts), acts);
    rotate_backward(ctx, d.qkv);
    if (ctx.config.qk_norm) qk_norm_backward(ctx, d.qkv, acts, w.qk_norm);
    // norm2 has taken norm1's buffer
    if (ctx.recompute == Recompute::block) norm_forward(ctx, acts.norm1, acts.stats1, x_in, w.norm1);
    linear_backward_weight(ctx, d.qkv, acts.norm1, w.qkv, acts.qkv_lora);
    if (!below_qkv) return;
    linear_backward_input(ctx, d.norm, d.qkv, w.qkv, acts.qkv_lora);
    norm_backward(ctx, dx, d.norm, x_in, acts.stats1, w.norm1);
}

}  // namespace slab::train
