// The one table of a model's weights: what each tensor is, its shape, its Hugging Face keys, how it starts and whether
// it decays.
//
// Slab offsets, load order, trained tensors and checkpoints derive from it. Tensors that are always used together are
// one tensor here: q, k and v lie one below the other in `qkv`, gate and up in `fc`. Each is one matrix product.
// Invariant: shape_of() alone says how large a linear layer is; the table and the modules ask it.
#pragma once

#include <string>
#include <vector>

#include "train/spec/model_config.h"

namespace slab::train {

// The four linear layers of a block: y [rows, N] = x [rows, K] · wᵀ, w [N, K].
enum class Linear { qkv, o, fc, down };
inline constexpr int kLinears = 4;
struct LinearShape {
    size_t N;  // outputs
    size_t K;  // inputs
};
LinearShape shape_of(const ModelConfig& config, Linear linear);

// Widths of the query heads side by side (NH * HD), and of the key heads or the value heads (NKV * HD).
inline size_t query_cols(const ModelConfig& c) {
    return static_cast<size_t>(c.NH) * c.HD;
}
inline size_t key_cols(const ModelConfig& c) {
    return static_cast<size_t>(c.NKV) * c.HD;
}

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
struct LinearRoles {
    Role weight, bias;
};
LinearRoles roles_of(Linear linear);

// How a tensor of a model trained from scratch starts: GPT-2's initialisation.
enum class Init {
    normal,           // normal(0, 0.02)
    residual_normal,  // normal(0, 0.02 / sqrt(2 L)): the linear layers that end a residual branch
    one,
    zero,
};

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
    Init init;
    std::vector<TensorPart> parts;
    size_t elems() const { return rows * cols; }
};

// Shape in Hugging Face files.
std::vector<size_t> stored_shape(size_t rows, size_t cols, bool matrix, bool transposed);
inline std::vector<size_t> stored_shape(const TensorSpec& spec, const TensorPart& part) {
    return stored_shape(part.rows, spec.cols, spec.matrix, spec.transposed);
}

std::vector<TensorSpec> layer_tensors(const ModelConfig& config, int layer);
// Embeddings, final norm and, unless tied, the head.
std::vector<TensorSpec> outer_tensors(const ModelConfig& config);
// The whole model: the outer tensors, then the layers' in their order.
std::vector<TensorSpec> all_tensors(const ModelConfig& config);
// Elements of all tensors; a tied head counts once.
size_t parameter_count(const ModelConfig& config);

// A module that PEFT can name in target_modules: some outputs of a linear layer, or all of them.
struct LinearModule {
    std::string path;  // "model.layers.3.self_attn.q_proj", without ".weight"
    Linear linear;
    size_t in, out;    // features
    size_t first_col;  // of its outputs in a row of the linear layer's output
    int site;          // dropout site, unique in the layer, below kDropoutSites (philox.h)
};
// In the order of Linear; the modules of one linear layer follow each other and cover its outputs.
std::vector<LinearModule> linear_modules(const ModelConfig& config, int layer);

// Keys that real files carry and that hold nothing to load: attention masks, rotary buffers, a tied head's copy.
bool is_ignorable_key(const ModelConfig& config, const std::string& key);
// The spellings under which a key is found in files: as is, and without the leading "transformer." or "model.".
std::vector<std::string> key_spellings(const std::string& key);

}  // namespace slab::train
