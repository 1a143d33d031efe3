// LoRA as PEFT defines it: modules that carry an adapter, rank, scale, dropout.
#pragma once

#include <string>
#include <vector>

#include "train/spec/model_config.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

inline constexpr char kAllLinear[] = "all-linear";

struct LoraSettings {
    int r = 16;
    float alpha = 32;
    float dropout = 0;
    bool rslora = false;  // scale alpha / sqrt(r) instead of alpha / r
    // Names or dotted suffixes. The single entry "all-linear" is every linear layer of a block.
    std::vector<std::string> target_modules;
    std::vector<int> layers_to_transform;  // empty: every layer

    float scale() const;
};

// "q_proj" of "model.layers.3.self_attn.q_proj".
std::string last_name(const std::string& path);

// The modules of this layer that carry an adapter, in the order of linear_modules().
std::vector<LinearModule> adapted_modules(const ModelConfig& config, const LoraSettings& lora, int layer);

inline constexpr int kMaxLoraRank = 4096;
// 1e-6 to 1e6, for the flag and for files. The bounds are floats, as alpha is.
inline bool lora_alpha_makes_sense(float alpha) {
    return alpha >= 1e-6f && alpha <= 1e6f;
}

inline bool lora_dropout_makes_sense(float dropout) {
    return dropout >= 0 && dropout < 1;
}

// Throws UserError when a target names nothing in this model, or a number is out of range.
void check_lora_settings(const ModelConfig& config, const LoraSettings& lora);

// "base_model.model." + path + ".lora_A.weight"
std::string peft_key(const std::string& module_path, char which /* 'A' or 'B' */);

}  // namespace slab::train
