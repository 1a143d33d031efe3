// The spelling is that of transformers 4, which version 5 reads as well.
#include "train/files/model_config_writer.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/base/json_section.h"

namespace slab::train {
namespace {

using data::shortest;
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
        case Family::qwen3:
            return "Qwen3ForCausalLM";
    }
    throw std::logic_error("model family without an architecture");
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
