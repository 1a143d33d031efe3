// One decoder block, forward and backward, written out by hand for all families with small branches.
//
// A block sees its weights, its adapters, one micro-batch's activations and a stream; it knows nothing of other layers,
// files or offloading, so the model's loops over layers and micro-batches can be interchanged. A layer never reads its
// neighbour's weights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/lora.h"
#include "kernels/runtime/real.h"
#include "kernels/runtime/runtime.h"
#include "train/model/carver.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

// Shapes as in tensor_table.h; null where the family has no such tensor.
using BlockWeights = std::array<const real*, kRoles>;
// Gradients of a block trained in full, same order; null where frozen. All +=.
using BlockGrads = std::array<float*, kRoles>;

struct BlockAdapters {
    std::array<LoraGroup<real>, kLinears> groups;  // empty modules: no adapter on that linear
    const LoraGroup<real>& operator[](Linear l) const { return groups[static_cast<size_t>(l)]; }
};

// none: every block's activations are kept. block: only block inputs are, backward runs each block's forward again.
enum class Recompute { none, block };

// What one block keeps of a micro-batch between forward and backward. rows = B * T. In backward, buffers whose content
// has been used up hold gradients (gradient_buffers).
struct BlockActivations {
    real* norm1;       // [rows, C]
    float* mean1;      // [rows], LayerNorm
    float* rstd1;      // [rows]
    real* qkv;         // [rows, (NH + 2 NKV) HD]; q and k rotated, unless qk_norm: then before norm and rotation
    real* qk;          // [rows, (NH + NKV) HD] normed and rotated, only with qk_norm
    float* head_rstd;  // [rows, NH + NKV], only with qk_norm
    real* attn;        // [rows, NH HD]
    float* lse;        // [B, NH, T]
    real* x1;          // [rows, C] residual stream after attention; with Recompute::block the caller gives it a buffer
    real* norm2;       // [rows, C]; with Recompute::block the same buffer as norm1, which backward makes again
    float* mean2;      // [rows], LayerNorm
    float* rstd2;      // [rows]
    real* fc;          // [rows, fc_cols]
    real* act;         // [rows, I]
    std::array<real*, kLinears> xa;  // [rows, R of the linear] adapter inputs x · Aᵀ
    real* x_dropped;                 // [rows, max(C, NH HD, I)] scratch, only with adapter dropout
};

// Scratch of backward, shared by all blocks. d_norm and d_qkv are null when a block's own buffers are wide enough.
struct BackwardScratch {
    real* d_norm;                // [rows, max(C, NH HD)]
    real* d_qkv;                 // [rows, (NH + 2 NKV) HD]
    real* dxa;                   // [rows, max R]
    float* delta;                // [B, NH, T]
    float* attention_workspace;  // [attention_backward_workspace_bytes(...) / 4], null when that is 0
};

// Where block_backward puts gradients of activations.
struct GradientBuffers {
    real* d_act;  // [rows, I] over act, whose last reader is the gradient of down's weights
    real* d_fc;   // [rows, fc_cols] over fc
    real*
        d_norm;   // [rows, max(C, NH HD)] gradient of a norm's output, of attention's output; over act again if it fits
    real* d_qkv;  // [rows, (NH + 2 NKV) HD] over fc if it fits
};
GradientBuffers gradient_buffers(const BlockActivations& acts, const BackwardScratch& scratch);

// Sizes that depend on the adapters, largest over the layers.
struct AdapterExtent {
    std::array<size_t, kLinears> R{};
    bool dropout = false;
};

BlockActivations carve_block_activations(Carver& carver, const ModelConfig& config, int B, int T,
                                         const AdapterExtent& adapters, Recompute recompute);
BackwardScratch carve_backward_scratch(Carver& carver, const ModelConfig& config, int B, int T,
                                       const AdapterExtent& adapters);

// Keys and values of one layer for the tokens of one sequence, after rotation; the first `filled` rows are there.
struct KeyValueCache {
    real* k;  // [positions, NKV, HD]
    real* v;  // [positions, NKV, HD]
    int filled;
};

// One micro-batch's shape and constants.
struct BlockContext {
    const ModelConfig& config;
    int B, T;
    const float* rotary_table;  // [positions, HD / 2, 2] device, or null
    const int32_t* doc_start;   // [B, T] device, or null
    LoraDropout dropout;        // key.layer is set by the model for each layer
    Stream& stream;
    // Given when generating (B = 1): the rows follow the cache's, attend to them too, and are appended to them.
    std::optional<KeyValueCache> cache = std::nullopt;
    size_t rows() const { return static_cast<size_t>(B) * T; }
};

// x_out = block(x_in). Keeps in `acts` what backward needs. With x_out null (recomputation) only that is computed.
void block_forward(const BlockContext& ctx, real* x_out /*[rows, C]*/, const real* x_in /*[rows, C]*/,
                   const BlockWeights& w, const BlockAdapters& adapters, const BlockActivations& acts);

// dx: in, the gradient of the block's output; out, that of its input when need_dx (otherwise undefined).
// Adds to the gradients of adapters and of `grads`. Stops as early as nothing below is trained and need_dx is false.
void block_backward(const BlockContext& ctx, real* dx /*[rows, C]*/, const real* x_in /*[rows, C]*/,
                    const BlockWeights& w, const BlockGrads& grads, const BlockAdapters& adapters,
                    const BlockActivations& acts, const BackwardScratch& scratch, bool need_dx);

// The final norm uses these too. LayerNorm when the config says so, else RMSNorm.
struct NormStats {
    float* mean;  // [rows], null for RMSNorm
    float* rstd;  // [rows]
};
void norm_forward(const ModelConfig& config, real* y /*[rows, C]*/, const NormStats& stats, const real* x /*[rows, C]*/,
                  const real* w /*[C]*/, const real* b /*[C], null for RMSNorm*/, size_t rows, Stream& stream);
// dw and db are null where the norm is frozen, db for RMSNorm too.
void norm_backward(const ModelConfig& config, real* dx /*[rows, C] +=*/, float* dw /*[C] +=*/, float* db /*[C] +=*/,
                   const real* dy /*[rows, C]*/, const real* x /*[rows, C]*/, const real* w /*[C]*/,
                   const NormStats& stats, size_t rows, Stream& stream);

}  // namespace slab::train
