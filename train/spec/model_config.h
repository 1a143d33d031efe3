// A model as its config.json describes it: family, sizes, and the few switches in which the families differ.
//
// A setting that could change a result and is not implemented is refused by name when the file is read. A model trained
// with a slightly different attention looks healthy and is wrong.
// Invariant: every size is positive and bounded, NH divides by NKV, and any product of three sizes fits size_t.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace slab::train {

enum class Family { gpt2, llama, mistral, qwen2, qwen3 };
enum class NormKind { layer_norm, rms_norm };
enum class Activation { gelu_tanh, swiglu };

// Rotary frequencies stretched as in Llama 3. Unused unless `llama3`.
struct RotaryScaling {
    bool llama3 = false;
    float factor = 1, low_freq_factor = 1, high_freq_factor = 4;
    int original_max_position_embeddings = 0;
};

struct ModelConfig {
    Family family = Family::llama;
    NormKind norm = NormKind::rms_norm;
    Activation activation = Activation::swiglu;
    int L = 0, C = 0, NH = 0, NKV = 0, HD = 0;
    int I = 0;  // intermediate: the MLP's inner size
    int V = 0;
    int max_positions = 0;
    float norm_eps = 1e-6f;
    bool learned_positions = false, rotary = true;
    bool qkv_bias = false, o_bias = false, mlp_bias = false;
    bool qk_norm = false;  // RMSNorm of each head's q and k, before the rotation
    bool tied_head = false;
    float rope_theta = 10000;
    RotaryScaling rope_scaling;
    int sliding_window = 0;                   // most tokens that a limited layer looks back; 0: no layer is limited
    std::vector<std::string> layer_types;     // as in config.json ("full_attention", ...); empty where it has none
    bool stored_in_4bit = false;              // matrices may be bitsandbytes' nf4 (quantization_config)
    int bos_token = -1, eos_token = -1;       // -1 when absent
    std::vector<std::string> notices;         // a sentence each, about keys that were ignored or assumed
    std::vector<std::string> weight_notices;  // about stored tensors that contradict the config
};

const char* family_name(Family family);  // config.json's model_type: "gpt2"

// Throws UserError when rows of T tokens exceed the model's positions or its window.
void check_sequence_len(const ModelConfig& config, int T);

// Most tokens of one sequence: the model's positions, or its sliding window if that is smaller.
int most_positions(const ModelConfig& config);

// One line: "llama, 4 layers, hidden 64, 4 heads of 16 (2 for keys and values), ..., 218.2 K parameters".
std::string describe(const ModelConfig& config);

}  // namespace slab::train
