// The order of the pieces is part of a run's bits: kernels are chosen by alignment. Every piece starts at 256 bytes.
#include "train/model/block_buffers.h"

#include <algorithm>

namespace slab::train {

BlockActivations carve_block_activations(Carver& carver, const ModelConfig& c, int B, int T,
                                         const AdapterExtent& adapters, Recompute recompute) {
    const size_t rows = static_cast<size_t>(B) * T, C = c.C, I = c.I, heads = static_cast<size_t>(c.NH) + c.NKV;
    const bool layer_norm = c.norm == NormKind::layer_norm;
    const auto stats = [&] {
        NormStats s{};
        if (layer_norm) s.mean = carver.take<float>(rows);
        s.rstd = carver.take<float>(rows);
        return s;
    };
    BlockActivations a{};
    a.norm1 = carver.take<real>(rows * C);
    a.stats1 = stats();
    a.qkv = carver.take<real>(rows * shape_of(c, Linear::qkv).N);
    if (c.qk_norm) {
        a.qk = carver.take<real>(rows * heads * c.HD);
        a.head_rstd = carver.take<float>(rows * heads);
    }
    a.attn = carver.take<real>(rows * query_cols(c));
    a.lse = carver.take<float>(rows * c.NH);
    if (recompute == Recompute::none) a.x1 = carver.take<real>(rows * C);
    a.norm2 = recompute == Recompute::block ? a.norm1 : carver.take<real>(rows * C);
    a.stats2 = stats();
    a.fc = carver.take<real>(rows * shape_of(c, Linear::fc).N);
    a.act = carver.take<real>(rows * I);
    const std::array<LoraActivations*, kLinears> loras = {&a.qkv_lora, &a.o_lora, &a.fc_lora, &a.down_lora};
    for (size_t l = 0; l < kLinears; ++l)
        if (adapters.r[l] != 0) loras[l]->xa = carver.take<real>(rows * adapters.r[l]);
    if (!adapters.dropout) return a;
    real* const x_dropped = carver.take<real>(rows * std::max({C, query_cols(c), I}));
    for (LoraActivations* lora : loras) lora->x_dropped = x_dropped;
    return a;
}

BackwardScratch carve_backward_scratch(Carver& carver, const ModelConfig& c, int B, int T,
                                       const AdapterExtent& adapters) {
    const size_t rows = static_cast<size_t>(B) * T, qkv_cols = shape_of(c, Linear::qkv).N;
    const size_t norm_cols = std::max<size_t>(c.C, query_cols(c));
    BackwardScratch s{};
    if (norm_cols > static_cast<size_t>(c.I)) s.norm = carver.take<real>(rows * norm_cols);
    if (qkv_cols > shape_of(c, Linear::fc).N) s.qkv = carver.take<real>(rows * qkv_cols);
    s.dxa = carver.take<real>(rows * *std::max_element(adapters.r.begin(), adapters.r.end()));
    s.delta = carver.take<float>(rows * c.NH);
    return s;
}

GradientBuffers gradient_buffers(const BlockActivations& acts, const BackwardScratch& scratch) {
    real* const norm = scratch.norm ? scratch.norm : acts.act;
    return {.act = acts.act, .fc = acts.fc, .norm = norm, .attn = norm, .qkv = scratch.qkv ? scratch.qkv : acts.fc};
}

}  // namespace slab::train
