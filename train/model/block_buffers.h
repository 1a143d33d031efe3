// What a block keeps of a micro-batch between forward and backward, and the scratch of backward: pointers and sizes.
//
// rows = B * T. Sizes in the plan and pointers at run time come from the same lines (Carver).
#pragma once

#include <array>
#include <cstddef>

#include "kernels/runtime/real.h"
#include "train/model/carver.h"
#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

// none: the activations of every block are kept. block: only the blocks' inputs are kept, and backward runs each
// block's forward again.
enum class Recompute { none, block };

// Statistics of a norm's input.
struct NormStats {
    float* mean;  // [rows], null for RMSNorm
    float* rstd;  // [rows]
};

// Of the adapters of one linear layer. r: the sum of their ranks. K: the layer's inputs.
struct LoraActivations {
    real* xa;         // [rows, r] = drop(x) · Aᵀ, null without adapters
    real* x_dropped;  // [rows, K] scratch that a block's linear layers share, null without dropout
};

// In backward, a buffer whose content has been used up holds a gradient (GradientBuffers).
struct BlockActivations {
    real* norm1;  // [rows, C]
    NormStats stats1;
    real* qkv;  // [rows, (NH + 2 NKV) HD]; q and k rotated, but with qk_norm as they are before norm and rotation
    real* qk;   // [rows, (NH + NKV) HD] q and k after norm and rotation, only with qk_norm
    float* head_rstd;  // [rows, NH + NKV], only with qk_norm
    real* attn;        // [rows, NH HD]
    float* lse;        // [B, NH, T] log-sum-exp of the scores
    real* x1;          // [rows, C] residual stream after attention; with Recompute::block the model gives it a buffer
    real* norm2;       // [rows, C]; with Recompute::block in norm1's buffer, and backward computes norm1 again
    NormStats stats2;
    real* fc;   // [rows, 2 I] gate and up with SwiGLU, else [rows, I]
    real* act;  // [rows, I]
    LoraActivations qkv_lora, o_lora, fc_lora, down_lora;
};

// Scratch of backward, shared by all blocks. norm and qkv are null when a block's own buffers are wide enough.
struct BackwardScratch {
    real* norm;                  // [rows, max(C, NH HD)]
    real* qkv;                   // [rows, (NH + 2 NKV) HD]
    real* dxa;                   // [rows, largest r of a linear layer]
    float* delta;                // [B, NH, T]
    float* attention_workspace;  // [attention_backward_workspace_bytes(...) / 4], null when that is 0
};

// Where block_backward puts the gradients of activations.
struct GradientBuffers {
    real* act;   // [rows, I] over act; the last to read act is the gradient of down's weights
    real* fc;    // [rows, 2 I] or [rows, I], over fc
    real* norm;  // [rows, C] of norm1's and norm2's output; over act if it fits
    real* attn;  // [rows, NH HD] in norm's buffer: never needed at once
    real* qkv;   // [rows, (NH + 2 NKV) HD] over fc if it fits
};
GradientBuffers gradient_buffers(const BlockActivations& acts, const BackwardScratch& scratch);

// What the adapters need, the largest over the layers.
struct AdapterExtent {
    std::array<size_t, kLinears> r{};  // of each linear layer, the sum of its adapters' ranks
    bool dropout = false;
};

BlockActivations carve_block_activations(Carver& carver, const ModelConfig& config, int B, int T,
                                         const AdapterExtent& adapters, Recompute recompute);
BackwardScratch carve_backward_scratch(Carver& carver, const ModelConfig& config, int B, int T,
                                       const AdapterExtent& adapters);

}  // namespace slab::train
