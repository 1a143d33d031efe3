// What is said about a model: its size in parameters, its one-line description, and config.json as transformers reads
// it. The written file keeps to transformers 4's spelling, which version 5 reads as well.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/base/json_section.h"
#include "train/spec/model_config.h"

namespace slab::train {
namespace {

using nlohmann::ordered_json;

ordered_json token_or_null(int token) {
    return token < 0 ? ordered_json(nullptr) : ordered_json(token);
}

const char* architecture(Family family) {
    switch (family) {
        case Family::gpt2:
            return "GPT2LMHeadModel";
        case Family::llama:
            return "LlamaForCausalLM";
        case Family::mistral:
            return "MistralForCausalLM";
        case Family::qwen2:
            return "Qwen2ForCausalLM";
        default:
            return "Qwen3ForCausalLM";
    }
}

void put_gpt2(ordered_json& out, const ModelConfig& c) {
    out.update({{"n_layer", c.L},
                {"n_embd", c.C},
                {"n_head", c.NH},
                {"n_inner", c.I},
                {"n_positions", c.max_positions},
                {"layer_norm_epsilon", shortest(c.norm_eps)},
                {"activation_function", "gelu_new"},
                {"attn_pdrop", 0.0},
                {"embd_pdrop", 0.0},
                {"resid_pdrop", 0.0}});
}

void put_rotary_family(ordered_json& out, const ModelConfig& c) {
    out.update({{"num_hidden_layers", c.L},
                {"hidden_size", c.C},
                {"num_attention_heads", c.NH},
                {"num_key_value_heads", c.NKV},
                {"head_dim", c.HD},
                {"intermediate_size", c.I},
                {"max_position_embeddings", c.max_positions},
                {"rms_norm_eps", shortest(c.norm_eps)},
                {"hidden_act", "silu"},
                {"attention_dropout", 0.0},
                {"rope_theta", shortest(c.rope_theta)},
                {"rope_scaling", nullptr}});
    if (const RotaryScaling& s = c.rope_scaling; s.llama3) {
        out["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", shortest(s.factor)},
                               {"low_freq_factor", shortest(s.low_freq_factor)},
                               {"high_freq_factor", shortest(s.high_freq_factor)},
                               {"original_max_position_embeddings", s.original_max_position_embeddings}};
    }
    if (c.family == Family::llama) out["mlp_bias"] = c.mlp_bias;
    if (c.family == Family::llama || c.family == Family::qwen3) out["attention_bias"] = c.qkv_bias;
    if (c.family == Family::llama) return;
    out["sliding_window"] = c.sliding_window ? ordered_json(c.sliding_window) : ordered_json(nullptr);
    if (c.family == Family::mistral) return;
    out["use_sliding_window"] = c.sliding_window != 0;
    if (!c.layer_types.empty()) out["layer_types"] = c.layer_types;
}

}  // namespace

size_t parameter_count(const ModelConfig& c) {
    const size_t C = c.C, I = c.I, q = size_t(c.NH) * c.HD, kv = size_t(c.NKV) * c.HD;
    const size_t norm = c.norm == NormKind::layer_norm ? 2 * C : C;
    size_t layer = 2 * norm + C * (q + 2 * kv) + q * C;
    if (c.qkv_bias) layer += q + 2 * kv;
    if (c.o_bias) layer += C;
    if (c.qk_norm) layer += 2 * size_t(c.HD);
    const size_t up_matrices = c.activation == Activation::swiglu ? 2 : 1;
    layer += (up_matrices + 1) * C * I;
    if (c.mlp_bias) layer += up_matrices * I + C;

    size_t outside = size_t(c.V) * C + norm;
    if (!c.tied_head) outside += size_t(c.V) * C;
    if (c.learned_positions) outside += size_t(c.max_positions) * C;
    return size_t(c.L) * layer + outside;
}

std::string describe(const ModelConfig& c) {
    const auto number = [](int n) { return std::to_string(n); };
    std::string text = std::string(family_name(c.family)) + ", " + number(c.L) + " layers, hidden " + number(c.C) +
                       ", " + number(c.NH) + " heads of " + number(c.HD);
    if (c.NKV != c.NH) text += " (" + number(c.NKV) + " for keys and values)";
    text += ", intermediate " + number(c.I) + ", vocabulary " + number(c.V) + (c.tied_head ? ", tied head" : "");
    const double params = static_cast<double>(parameter_count(c));
    const auto [scale, unit] = params >= 1e9   ? std::pair{1e9, "B"}
                               : params >= 1e6 ? std::pair{1e6, "M"}
                                               : std::pair{1e3, "K"};
    char count[32];
    std::snprintf(count, sizeof count, ", %.1f %s parameters", params / scale, unit);
    return text + count;
}

std::string model_config_json(const ModelConfig& config, std::string_view dtype) {
    ordered_json out = {{"architectures", ordered_json::array({architecture(config.family)})},
                        {"model_type", family_name(config.family)},
                        {"torch_dtype", dtype},
                        {"vocab_size", config.V},
                        {"tie_word_embeddings", config.tied_head},
                        {"bos_token_id", token_or_null(config.bos_token)},
                        {"eos_token_id", token_or_null(config.eos_token)}};
    if (config.family == Family::gpt2) {
        put_gpt2(out, config);
    } else {
        put_rotary_family(out, config);
    }
    return out.dump(2) + "\n";
}

}  // namespace slab::train
