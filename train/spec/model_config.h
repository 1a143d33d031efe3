// What a model is, as its config.json says: family, sizes, and the few switches in which the families differ.
//
// Both spellings are read, transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype); an
// absent key takes its family's default there. Whatever could change a result and is not implemented here is refused by
// name: a model trained with a slightly different attention looks healthy and is wrong.
// Invariant: every size is positive and bounded, NH divides by NKV, and any product of three sizes fits size_t.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace slab::train {

enum class Family { gpt2, llama, mistral, qwen2, qwen3 };
enum class NormKind { layer_norm, rms_norm };
enum class Activation { gelu_tanh, swiglu };

// Rotary frequencies stretched as Llama 3 does; unused (plain rotary) unless `llama3`.
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
    int sliding_window = 0;  // tokens a layer looks back at most, where any layer is so limited; 0: none is
    std::vector<std::string> layer_types;  // as in config.json ("full_attention", ...); empty where it has none
    int bos_token = -1, eos_token = -1;    // -1 when absent
    std::vector<std::string> notices;      // what the user should know of the reading, a sentence each
};

const char* family_name(Family family);  // config.json's model_type: "gpt2"

// Throws std::runtime_error when rows of T targets would need positions, or a window, that the model has not.
void check_sequence_len(const ModelConfig& config, int T);

// Tokens that one sequence may have: the positions that the model was made for, and no more than its sliding window.
int most_positions(const ModelConfig& config);

// One line: "llama, 4 layers, hidden 64, 4 heads of 16 (2 for keys and values), ..., 218.2 K parameters".
std::string describe(const ModelConfig& config);

}  // namespace slab::train
