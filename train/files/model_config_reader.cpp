// Keys are read one by one, and those left over are refused unless harmless. Defaults and meanings are those of
// transformers' configuration classes (4.57 and 5.24).
#include "train/files/model_config_reader.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/json_file.h"
#include "data/base/json_section.h"
#include "train/files/model_config_keys.h"
#include "train/spec/model_limits.h"

namespace slab::train {
namespace {

using data::JsonSection;
using data::whole_number;
using nlohmann::json;

// Whether the file's own model is a causal language model, as far as its class says: "LlamaForCausalLM".
bool is_causal_architecture(const json& name) {
    if (!name.is_string()) return true;
    const std::string& text = name.get_ref<const std::string&>();
    return text.ends_with("ForCausalLM") || text.ends_with("Model") || text.find("For") == std::string::npos;
}

// What transformers' modelling code asks of every config.
void check_common_keys(JsonSection& section, ModelConfig& config) {
    section.require_default("is_causal", true);  // false and null look at later tokens
    section.refuse_null({"vocab_size", "hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias",
                         "use_sliding_window", "max_window_layers", "max_position_embeddings", "hidden_size",
                         "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
                         "layer_norm_epsilon", "activation_function", "n_positions", "n_embd", "n_layer", "n_head"});
    if (const json* names = section.find("architectures"); names && names->is_array())
        for (const json& name : *names)
            if (!is_causal_architecture(name))
                config.notices.push_back("config.json names " + data::shown(name) +
                                         "; its weights are read as those of a causal language model");
}

Family read_family(JsonSection& section) {
    constexpr const char* wanted = "\"gpt2\", \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";
    const std::string name = section.text("model_type", wanted);
    for (const Family family : {Family::gpt2, Family::llama, Family::mistral, Family::qwen2, Family::qwen3}) {
        if (name == family_name(family)) return family;
    }
    section.refuse("model_type", wanted);
}

void note_dropouts(JsonSection& section, ModelConfig& config, std::initializer_list<const char*> keys,
                   double fallback) {
    std::string listed;
    for (const char* key : keys) {
        if (section.number(key, 0, 1, static_cast<float>(fallback)) == 0) continue;
        const json* given = section.find(key);
        listed += (listed.empty() ? "" : ", ") + std::string(key) + " " +
                  (given ? data::shown(*given) : "absent, which means " + data::shown(fallback));
    }
    if (listed.empty()) return;
    config.notices.push_back("the base model's own dropout (" + listed + " in config.json) is trained as 0");
}

// Reads one of the two token keys. Of a list the first entry counts; nothing is trained by it, as records end in the
// tokenizer's token. An absent key means the family's token. null, an empty list and a negative number mean none.
int read_token(JsonSection& section, ModelConfig& config, const char* key, int fallback) {
    const std::string wanted = "a token number below 2^31, a list of them, or null";
    if (!section.has(key)) return fallback < config.V ? fallback : -1;
    const json* value = section.find(key);
    if (!value || (value->is_array() && value->empty())) return -1;
    const json all = value->is_array() ? *value : json::array({*value});
    for (const json& token : all) {
        const auto whole = whole_number(token);
        if (!whole || *whole > INT32_MAX || *whole < INT32_MIN) section.refuse(key, wanted);
    }
    const int token = all[0].get<int>();
    if (token < config.V) return std::max(token, -1);
    config.notices.push_back(std::string(key) + " " + std::to_string(token) + " in config.json is outside of the " +
                             "vocabulary of " + std::to_string(config.V) + " and taken as absent");
    return -1;
}

// GPT-2's keys have their own name and the common one. If both are given, they must agree.
int read_gpt2_size(JsonSection& section, const char* own, const char* common, int max, int fallback) {
    const json* by_own = section.find(own);
    const json* by_common = section.find(common);
    if (by_own && by_common && *by_own != *by_common) section.refuse(common, "what " + data::quote(own) + " says");
    return section.integer(by_common && !by_own ? common : own, 1, max, fallback);
}

void read_gpt2(JsonSection& section, ModelConfig& config) {
    config.norm = NormKind::layer_norm;
    config.activation = Activation::gelu_tanh;
    config.learned_positions = config.qkv_bias = config.o_bias = config.mlp_bias = true;
    config.rotary = false;
    config.L = read_gpt2_size(section, "n_layer", "num_hidden_layers", kMaxLayers, 12);
    config.C = read_gpt2_size(section, "n_embd", "hidden_size", kMaxHidden, 768);
    config.NH = config.NKV = read_gpt2_size(section, "n_head", "num_attention_heads", kMaxHeads, 12);
    config.max_positions = read_gpt2_size(section, "n_positions", "max_position_embeddings", kMaxPositions, 1024);
    if (config.C % config.NH != 0) section.refuse("n_embd", "a multiple of n_head = " + std::to_string(config.NH));
    config.HD = config.C / config.NH;
    config.I = section.integer("n_inner", 1, kMaxIntermediate, 4 * config.C);
    config.V = section.integer("vocab_size", 1, kMaxVocabulary, 50257);
    config.norm_eps = section.number("layer_norm_epsilon", 1e-12, 1, 1e-5f);
    config.tied_head = section.boolean("tie_word_embeddings", true);
    section.require_default("scale_attn_weights", true);
    section.require("scale_attn_by_inverse_layer_idx", false);
    section.require("add_cross_attention", false);

    constexpr const char* wanted = "\"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu_fast\" (all GELU by tanh)";
    const std::string activation = section.text("activation_function", wanted, "gelu_new");
    if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast") {
        section.refuse("activation_function", wanted);
    }
    note_dropouts(section, config, {"attn_pdrop", "embd_pdrop", "resid_pdrop"}, 0.1);
    config.bos_token = read_token(section, config, "bos_token_id", 50256);
    config.eos_token = read_token(section, config, "eos_token_id", 50256);
}

// transformers 4 has rope_theta at the top and the rest in rope_scaling. Version 5 has all of it in rope_parameters and
// accepts the old keys. The versions disagree on which of two values counts, so values given twice must agree.
void read_rotary(const std::string& where, JsonSection& top, ModelConfig& config) {
    constexpr double min_theta = 1, max_theta = 1e12;
    const json* scaling = top.find("rope_scaling");
    const json* parameters = top.find("rope_parameters");
    if (scaling && parameters && *scaling != *parameters) top.refuse("rope_scaling", "what \"rope_parameters\" says");
    const json nothing = json::object();
    JsonSection rope(where, scaling ? "rope_scaling." : "rope_parameters.",
                     scaling      ? *scaling
                     : parameters ? *parameters
                                  : nothing);

    top.require("partial_rotary_factor", 1);
    rope.require("partial_rotary_factor", 1);
    config.rope_theta = top.number("rope_theta", min_theta, max_theta, 10000.0f);
    const float inner_theta = rope.number("rope_theta", min_theta, max_theta, config.rope_theta);
    if (top.find("rope_theta") && inner_theta != config.rope_theta) {
        rope.refuse("rope_theta", "what \"rope_theta\" says, " + data::shown(*top.find("rope_theta")));
    }
    config.rope_theta = inner_theta;

    constexpr const char* wanted = "\"default\" or \"llama3\": other kinds of rotary scaling are not implemented";
    const std::string old_type = rope.text("type", wanted, "default");
    const std::string type = rope.text("rope_type", wanted, old_type);
    if (rope.find("type") && type != old_type) rope.refuse("type", "what \"rope_type\" says");
    const int top_original = top.integer("original_max_position_embeddings", 1, kMaxPositions, 0);
    if (type == "llama3") {
        RotaryScaling& s = config.rope_scaling;
        s.llama3 = true;
        s.factor = rope.number("factor", 1, 1e6);
        s.low_freq_factor = rope.number("low_freq_factor", 1e-6, 1e6);
        s.high_freq_factor = rope.number("high_freq_factor", 1e-6, 1e6);
        if (s.high_freq_factor <= s.low_freq_factor) rope.refuse("high_freq_factor", "more than low_freq_factor");
        const int otherwise = top_original ? top_original : config.max_positions;
        s.original_max_position_embeddings =
            rope.integer("original_max_position_embeddings", 1, kMaxPositions, otherwise);
        if (top_original && s.original_max_position_embeddings != top_original) {
            rope.refuse("original_max_position_embeddings", "what the key of that name outside says");
        }
    } else if (type == "default") {
        rope.require("factor", 1);
        rope.find("original_max_position_embeddings");  // plain rotary positions do not use it
    } else {
        rope.refuse(rope.find("rope_type") ? "rope_type" : "type", wanted);
    }
    rope.refuse_unread({});
}

// Reads which layers attend over a window only. Windows are not implemented: check_sequence_len refuses rows that are
// longer than one.
void read_windows(JsonSection& section, ModelConfig& config) {
    constexpr const char* wanted = "a list of \"full_attention\" and \"sliding_attention\", one for each layer";
    bool any_sliding = false;
    if (const json* types = section.find("layer_types")) {
        if (!types->is_array() || types->size() != static_cast<size_t>(config.L)) section.refuse("layer_types", wanted);
        for (const json& type : *types) {
            if (type != "full_attention" && type != "sliding_attention") section.refuse("layer_types", wanted);
            any_sliding |= type == "sliding_attention";
            config.layer_types.push_back(type.get<std::string>());
        }
    }
    if (config.family == Family::llama) {
        if (any_sliding) section.refuse("layer_types", "\"full_attention\" only: llama has no window");
        return;
    }
    const int window = section.has("sliding_window") ? section.integer("sliding_window", 0, INT32_MAX, 0) : 4096;
    if (config.family == Family::mistral) {  // transformers applies it to every layer, whatever layer_types says
        if (section.find("sliding_window") && window == 0)
            section.refuse("sliding_window", "null or a positive number");
        config.sliding_window = window;
        return;
    }
    const bool in_use = section.boolean("use_sliding_window", false);
    const int first_sliding = section.integer("max_window_layers", 0, INT32_MAX, 28);
    if (any_sliding && (!in_use || window == 0)) {
        section.refuse("layer_types", "\"full_attention\" only, or use_sliding_window true and a sliding_window");
    }
    for (int l = static_cast<int>(config.layer_types.size()); l < config.L; ++l) {
        const bool slides = in_use && window > 0 && l >= first_sliding;
        any_sliding |= slides;
        config.layer_types.push_back(slides ? "sliding_attention" : "full_attention");
    }
    config.sliding_window = any_sliding ? window : 0;
}

struct RotaryDefaults {
    int I, NKV, HD, V, max_positions, bos, eos;  // 0: NKV as NH, HD as C / NH
};

RotaryDefaults defaults_of(Family family) {
    switch (family) {
        case Family::mistral:
            return {14336, 8, 0, 32000, 131072, 1, 2};
        case Family::qwen2:
            return {22016, 32, 0, 151936, 32768, -1, -1};
        case Family::qwen3:
            return {22016, 32, 128, 151936, 32768, -1, -1};
        case Family::llama:
            return {11008, 0, 0, 32000, 2048, 1, 2};
        case Family::gpt2:
            break;
    }
    throw std::logic_error("model family without rotary defaults");
}

void read_rotary_family(const std::string& where, JsonSection& section, ModelConfig& config) {
    const RotaryDefaults usual = defaults_of(config.family);
    config.L = section.integer("num_hidden_layers", 1, kMaxLayers, 32);
    config.C = section.integer("hidden_size", 1, kMaxHidden, 4096);
    config.NH = section.integer("num_attention_heads", 1, kMaxHeads, 32);
    const bool as_many = section.has("num_key_value_heads") || usual.NKV == 0;  // null means as many as NH, too
    config.NKV = section.integer("num_key_value_heads", 1, kMaxHeads, as_many ? config.NH : usual.NKV);
    if (config.NH % config.NKV != 0) {
        section.refuse(
            "num_key_value_heads",
            "a divisor of num_attention_heads = " + std::to_string(config.NH) +
                (section.has("num_key_value_heads") ? ""
                                                    : " (absent, it means " + std::to_string(config.NKV) + " here)"));
    }
    if (!section.find("head_dim") && usual.HD == 0 && config.C % config.NH != 0) {
        section.refuse("hidden_size", "a multiple of num_attention_heads = " + std::to_string(config.NH) +
                                          ", or a head_dim of its own");
    }
    if (usual.HD) section.refuse_null({"head_dim"});
    config.HD = section.integer("head_dim", 1, kMaxHeadSize, usual.HD ? usual.HD : config.C / config.NH);
    if (config.HD % 2 != 0) {
        section.refuse("head_dim",
                       "an even head size, as rotary positions turn pairs; it comes to " + std::to_string(config.HD));
    }
    if (config.HD > kMaxHidden / config.NH) {
        section.refuse("head_dim", "num_attention_heads x head_dim of at most " + std::to_string(kMaxHidden));
    }
    config.I = section.integer("intermediate_size", 1, kMaxIntermediate, usual.I);
    config.V = section.integer("vocab_size", 1, kMaxVocabulary, usual.V);
    config.max_positions = section.integer("max_position_embeddings", 1, kMaxPositions, usual.max_positions);
    config.norm_eps = section.number("rms_norm_eps", 1e-12, 1, 1e-6f);
    config.tied_head = section.boolean("tie_word_embeddings", false);
    config.qk_norm = config.family == Family::qwen3;
    if (config.family == Family::llama) config.mlp_bias = section.boolean("mlp_bias", false);
    if (config.family == Family::llama || config.family == Family::qwen3) {
        config.qkv_bias = config.o_bias = section.boolean("attention_bias", false);
    }
    if (config.family == Family::qwen2) config.qkv_bias = true;

    constexpr const char* wanted = "\"silu\"";
    const std::string activation = section.text("hidden_act", wanted, "silu");
    if (activation != "silu" && activation != "swish") section.refuse("hidden_act", wanted);
    read_rotary(where, section, config);
    read_windows(section, config);
    note_dropouts(section, config, {"attention_dropout"}, 0);
    config.bos_token = read_token(section, config, "bos_token_id", usual.bos);
    config.eos_token = read_token(section, config, "eos_token_id", usual.eos);
}

// Of quantised directories those of bitsandbytes in nf4 are read. What concerns its own computing means nothing here.
void read_quantization(const std::string& where, JsonSection& top, ModelConfig& config) {
    const json* quantization = top.find("quantization_config");
    if (!quantization) return;
    constexpr const char* wanted = "an unquantized model (F32, F16 or BF16 weights), or bitsandbytes' 4-bit nf4";
    if (!quantization->is_object() || quantization->value("quant_method", json()) != "bitsandbytes")
        top.refuse("quantization_config", wanted);
    JsonSection section(where, "quantization_config.", *quantization);
    if (!section.boolean("load_in_4bit", false)) section.refuse("load_in_4bit", "true: 8-bit weights are not read");
    if (section.text("bnb_4bit_quant_type", "\"nf4\"", "fp4") != "nf4")
        section.refuse("bnb_4bit_quant_type", "\"nf4\": fp4, the default, is not implemented");
    if (section.text("bnb_4bit_quant_storage", "\"uint8\"", "uint8") != "uint8")
        section.refuse("bnb_4bit_quant_storage", "\"uint8\"");
    config.stored_in_4bit = true;
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& config_json) {
    const std::string where = config_json.string();
    const json file = data::read_json_file(config_json);
    JsonSection section(where, "", file);
    ModelConfig config;
    config.family = read_family(section);
    check_common_keys(section, config);
    if (config.family == Family::gpt2) {
        read_gpt2(section, config);
    } else {
        read_rotary_family(where, section, config);
    }
    read_quantization(where, section, config);
    note_unknown_keys(section.refuse_unread(harmless_config_keys()), "config.json", config_keys_that_may_be_off(),
                      config);
    return config;
}

}  // namespace slab::train
