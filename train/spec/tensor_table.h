// The one table of a model's weights: what each tensor is, its shape, the Hugging Face keys it is made of, whether it
// decays.
//
// Slab offsets, load order, trained tensors, weight decay and checkpoints are all derived from it. Tensors that are
// always used together are one tensor here: q, k and v lie one below the other in `qkv`, gate and up in `fc`, so each
// is one matrix product.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "train/spec/model_config.h"

namespace slab::train {

enum class Role {
    // of a decoder layer
    norm1_weight,
    norm1_bias,
    qkv_weight,
    qkv_bias,
    q_norm,
    k_norm,
    o_weight,
    o_bias,
    norm2_weight,
    norm2_bias,
    fc_weight,
    fc_bias,
    down_weight,
    down_bias,
    // outside the layers
    token_embedding,
    position_embedding,
    final_norm_weight,
    final_norm_bias,
    head,
};
inline constexpr int kRoles = static_cast<int>(Role::head) + 1;
inline constexpr int index_of(Role role) {
    return static_cast<int>(role);
}

// One Hugging Face tensor inside a fused one: rows of it, in order.
struct TensorPart {
    std::string key;  // as transformers writes it, e.g. "model.layers.3.self_attn.q_proj.weight"
    size_t rows;
};

struct TensorSpec {
    Role role;
    std::string name;   // ours, for layouts and messages: "qkv.weight"
    size_t rows, cols;  // a vector of n is [n, 1]
    bool matrix;        // two-dimensional on disk
    bool decay;         // weight decay applies when trained in full: matrices, not biases or norms
    bool transposed;    // GPT-2's Conv1D: stored [cols, rows] on disk
    std::vector<TensorPart> parts;
    size_t elems() const { return rows * cols; }
};

// Its shape in Hugging Face files.
std::vector<size_t> stored_shape(size_t rows, size_t cols, bool matrix, bool transposed);
inline std::vector<size_t> stored_shape(const TensorSpec& spec, const TensorPart& part) {
    return stored_shape(part.rows, spec.cols, spec.matrix, spec.transposed);
}
// src [rows, cols] to dst [cols, rows].
void transpose(const float* src, size_t rows, size_t cols, float* dst);

std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int layer);
// Embeddings, final norm and, unless tied, the head.
std::vector<TensorSpec> outer_tensors(const ModelConfig& config);
// All of the model: the outer ones, then the layers' in their order.
std::vector<TensorSpec> all_tensors(const ModelConfig& config);
// Elements of all tensors; a tied head counts once.
size_t parameter_count(const ModelConfig& config);

// Width of a row of fused q, k, v: (NH + 2 NKV) * HD.
inline size_t qkv_cols(const ModelConfig& c) {
    return (static_cast<size_t>(c.NH) + 2 * static_cast<size_t>(c.NKV)) * c.HD;
}
// Width of a row of attention output: NH * HD.
inline size_t attn_cols(const ModelConfig& c) {
    return static_cast<size_t>(c.NH) * c.HD;
}
// Width of the MLP's first product: gate and up side by side for SwiGLU.
inline size_t fc_cols(const ModelConfig& c) {
    return static_cast<size_t>(c.I) * (c.activation == Activation::swiglu ? 2 : 1);
}

// The four linear layers of a block that adapters attach to.
enum class Linear { qkv, o, fc, down };
inline constexpr int kLinears = 4;

// A module that PEFT can name in target_modules: where its outputs lie in the fused linear.
struct LinearModule {
    std::string path;  // "model.layers.3.self_attn.q_proj", without ".weight"
    Linear linear;
    size_t in, out;    // features
    size_t first_col;  // of its outputs in a row of the linear's output
    int site;          // dropout site, unique in the layer, below kDropoutSites (philox.h)
};
std::vector<LinearModule> linear_modules(const ModelConfig& config, int layer);

// Keys that real files carry and that hold nothing to load (attention masks, rotary buffers, a tied head's copy).
bool is_ignorable_key(const ModelConfig& config, const std::string& key);
// The spellings under which a key is found in files: as is, and without the leading "transformer." or "model.".
std::vector<std::string> key_spellings(const std::string& key);

}  // namespace slab::train
