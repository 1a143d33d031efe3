// Keys are recorded as they are read. Those left under the architecture's prefix are refused unless neutral.
#include "train/files/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>

#include "data/base/display.h"
#include "data/base/error.h"
#include "train/files/dtype.h"
#include "train/files/model_config_keys.h"
#include "train/spec/model_limits.h"

namespace slab::train {
namespace {

using data::GgufFile;
using data::GgufTensor;

// The metadata under one architecture's prefix.
class Section {
  public:
    Section(const GgufFile& file, std::string arch) : file_(file), prefix_(std::move(arch) + ".") {}

    [[noreturn]] void refuse(const std::string& key, const std::string& given, const std::string& wanted) const {
        throw data::UserError(
            {.subject = file_.path().string(), .given = data::quote(prefix_ + key) + " is " + given, .wanted = wanted});
    }
    bool has(const char* key) const { return file_.has(prefix_ + key); }
    int integer(const char* key, int max, std::optional<int> fallback = {}) {
        const std::string full = note(key);
        const int64_t value = file_.integer(full, fallback);
        if (value < 1 || value > max) refuse(key, std::to_string(value), "a number from 1 to " + std::to_string(max));
        return static_cast<int>(value);
    }
    float number(const char* key, double min, double max, std::optional<double> fallback = {}) {
        const double value = file_.number(note(key), fallback);
        if (!(value >= min && value <= max))
            refuse(key, data::number_text(value),
                   "a number from " + data::number_text(min) + " to " + data::number_text(max));
        return static_cast<float>(value);
    }
    std::string text(const char* key, std::string_view fallback) { return file_.text(note(key), fallback); }
    // The value must be this or absent.
    void require(const char* key, int wanted, const char* why) {
        const int64_t value = file_.integer(note(key), wanted);
        if (value != wanted) refuse(key, std::to_string(value), std::to_string(wanted) + why);
    }
    // The value must be true or absent, which means true.
    void require_true(const char* key, const char* why) {
        if (!file_.boolean(note(key), true)) refuse(key, "false", std::string("true") + why);
    }
    // Returns the keys that passed because they say nothing, quoted.
    std::vector<std::string> refuse_unread(const std::set<std::string_view>& harmless) const {
        std::vector<std::string> unknown;
        for (const auto& [key, value] : file_.metadata()) {
            if (!key.starts_with(prefix_) || read_.count(key)) continue;
            const std::string name = key.substr(prefix_.size());
            if (harmless.count(name)) continue;
            if (!is_neutral(value))
                throw data::UserError(
                    {.subject = file_.path().string(),
                     .given = data::quote(key) + " could change the model's results and is not implemented",
                     .wanted = "it absent"});
            unknown.push_back(data::quote(name));
        }
        return unknown;
    }

  private:
    std::string note(const char* key) {
        std::string full = prefix_ + key;
        read_.insert(full);
        return full;
    }
    static bool is_neutral(const data::GgufValue& value) {
        if (const auto* yes = std::get_if<bool>(&value)) return !*yes;
        if (const auto* whole = std::get_if<int64_t>(&value)) return *whole == 0;
        if (const auto* real = std::get_if<double>(&value)) return *real == 0;
        if (const auto* text = std::get_if<std::string>(&value)) return text->empty();
        return std::visit(
            [](const auto& list) {
                if constexpr (requires { list.empty(); }) return list.empty();
                return false;
            },
            value);
    }

    const GgufFile& file_;
    std::string prefix_;
    std::set<std::string, std::less<>> read_;
};

const GgufTensor& tensor(const GgufFile& file, std::string_view name) {
    if (const GgufTensor* found = file.find(name)) return *found;
    throw data::UserError({.subject = file.path().string(),
                           .given = "tensor " + data::quote(name) + " is missing",
                           .wanted = "a whole model"});
}

bool in_first_layer(const GgufFile& file, const char* name) {
    return file.find(std::string("blk.0.") + name) != nullptr;
}

Family family_of(const GgufFile& file) {
    if (const std::string kind = file.text("general.type", "model"); kind != "model")
        throw data::UserError({.subject = file.path().string(),
                               .given = "\"general.type\" is " + data::quote(kind),
                               .wanted = "\"model\"",
                               .hint = "give the base model here"});
    if (const int64_t parts = file.integer("split.count", 1); parts > 1)
        throw data::UserError({.subject = file.path().string(),
                               .given = "is one of " + std::to_string(parts) + " parts of a model",
                               .wanted = "one file",
                               .hint = "llama.cpp's llama-gguf-split --merge joins them"});
    const std::string& arch = file.text("general.architecture");
    for (const Family family : {Family::llama, Family::qwen2, Family::qwen3, Family::gpt2})
        if (arch == family_name(family)) return family;
    throw data::UserError({.subject = file.path().string(),
                           .given = "\"general.architecture\" is " + data::quote(arch),
                           .wanted = "\"llama\", \"qwen2\", \"qwen3\" or \"gpt2\""});
}

// Number of rows of a table with C columns: of the vocabulary or the positions.
int table_rows(const GgufFile& file, const char* name, int C, int max) {
    const GgufTensor& t = tensor(file, name);
    if (t.shape.size() != 2 || t.shape[1] != static_cast<size_t>(C) || t.shape[0] > static_cast<size_t>(max)) {
        throw data::UserError(
            {.subject = file.path().string(),
             .given = "tensor " + data::quote(name) + " has shape " + shape_text(t.shape),
             .wanted = "at most " + std::to_string(max) + " rows of embedding_length " + std::to_string(C)});
    }
    return static_cast<int>(t.shape[0]);
}

int token(const GgufFile& file, const char* key, int V) {
    const int64_t value = file.integer(key, -1);
    return value >= 0 && value < V ? static_cast<int>(value) : -1;
}

// Recovers Llama 3's scaling from the factors f that divide the frequencies. f is 1 for short waves and `factor` for
// long ones. In between 1 / f = (1 - s) / factor + s, where s rises from 0 to 1 with the frequency. All published
// models have low_freq_factor 1 and high_freq_factor 4, so one value in between gives original_max_position_embeddings.
// The result is accepted only if it reproduces all factors.
RotaryScaling llama3_scaling(const GgufFile& file, const ModelConfig& config) {
    const GgufTensor& t = tensor(file, kRotaryFactorsTensor);
    const std::string name = "tensor " + data::quote(kRotaryFactorsTensor);
    const size_t half = static_cast<size_t>(config.HD) / 2;
    if (t.shape != std::vector<size_t>{half} || t.type != data::GgmlType::f32)
        throw data::UserError(
            {.subject = file.path().string(),
             .given = name + " holds " + std::to_string(t.elems) + " values as " + data::info_of(t.type).name,
             .wanted = std::to_string(half) + " as F32: half a head's size"});
    std::vector<float> factors(half);
    file.read(t, 0, factors.data(), t.bytes);
    RotaryScaling s;
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) return s;
    s.llama3 = true;
    s.low_freq_factor = 1;
    s.high_freq_factor = 4;
    s.factor = factors.back();
    s.original_max_position_embeddings = 8192;
    const double span = s.high_freq_factor - s.low_freq_factor;
    const auto wavelength = [&](size_t i) {
        return 2 * std::numbers::pi * std::pow(config.rope_theta, 2.0 * static_cast<double>(i) / config.HD);
    };
    for (size_t i = 0; i < half; ++i) {
        if (!(factors[i] > 1 && factors[i] < s.factor)) continue;
        const double smooth = (1 / static_cast<double>(factors[i]) - 1 / s.factor) / (1 - 1 / s.factor);
        const double original = std::round(wavelength(i) * (smooth * span + s.low_freq_factor));
        if (original >= 1 && original <= kMaxPositions) s.original_max_position_embeddings = static_cast<int>(original);
        break;
    }
    const auto factor_again = [&](size_t i) {
        const double waves = s.original_max_position_embeddings / wavelength(i);
        const double smooth = std::clamp((waves - s.low_freq_factor) / span, 0.0, 1.0);
        return 1 / ((1 - smooth) / s.factor + smooth);
    };
    for (size_t i = 0; i < half; ++i)
        if (!(s.factor > 1 && s.factor <= 1e6 && std::abs(factors[i] / factor_again(i) - 1) < 1e-4))
            throw data::UserError({.subject = file.path().string(),
                                   .given = name + ": value " + std::to_string(i) + ", " +
                                            data::number_text(factors[i]) + ", does not fit Llama 3's rotary scaling",
                                   .wanted = data::number_text(static_cast<float>(factor_again(i))) +
                                             ": other scalings are not implemented"});
    return s;
}

void read_rotary(const GgufFile& file, Section& section, ModelConfig& config) {
    if (const std::string type = section.text("rope.scaling.type", "none"); type != "none" && type != "linear")
        section.refuse("rope.scaling.type", data::quote(type),
                       "\"none\": other kinds of rotary scaling are not implemented");
    for (const char* key : {"rope.scaling.factor", "rope.scale_linear"})
        if (const float factor = section.number(key, 0, 1e6, 1); factor != 0 && factor != 1)
            section.refuse(key, data::number_text(factor), "1: linear rotary scaling is not implemented");
    section.require("rope.dimension_count", config.HD, ", all of a head: partial rotation is not implemented");
    config.rope_theta = section.number("rope.freq_base", 1, 1e12, 10000);
    if (file.find(kRotaryFactorsTensor)) config.rope_scaling = llama3_scaling(file, config);
}

void read_rotary_family(const GgufFile& file, Section& section, ModelConfig& config) {
    const int heads = config.NH;
    config.NKV = section.integer("attention.head_count_kv", kMaxHeads, heads);
    if (heads % config.NKV != 0)
        section.refuse("attention.head_count_kv", std::to_string(config.NKV),
                       "a divisor of attention.head_count = " + std::to_string(heads));
    if (!section.has("attention.key_length") && config.C % heads != 0)
        section.refuse("embedding_length", std::to_string(config.C),
                       "a multiple of attention.head_count = " + std::to_string(heads) +
                           ", or an attention.key_length of its own");
    config.HD = section.integer("attention.key_length", kMaxHeadSize, std::max(1, config.C / heads));
    section.require("attention.value_length", config.HD, ", as attention.key_length");
    if (config.HD % 2 != 0 || config.HD > kMaxHidden / heads)
        section.refuse("attention.key_length", std::to_string(config.HD),
                       "an even head size, of at most " + std::to_string(kMaxHidden) + " in all heads together");
    config.norm_eps = section.number("attention.layer_norm_rms_epsilon", 1e-12, 1);
    config.qkv_bias = config.family == Family::qwen2 || in_first_layer(file, "attn_q.bias");
    config.o_bias = config.family != Family::qwen2 && in_first_layer(file, "attn_output.bias");
    config.mlp_bias = config.family == Family::llama && in_first_layer(file, "ffn_down.bias");
    config.qk_norm = config.family == Family::qwen3;
    if (config.family != Family::qwen2 && config.qkv_bias != config.o_bias)
        throw data::UserError({.subject = file.path().string(),
                               .given = config.qkv_bias ? "has attn_q.bias and no attn_output.bias"
                                                        : "has attn_output.bias and no attn_q.bias",
                               .wanted = "both or none for this architecture"});
    read_rotary(file, section, config);
    if (config.family == Family::llama) return;
    config.layer_types.assign(static_cast<size_t>(config.L), "full_attention");
}

void read_gpt2(const GgufFile& file, Section& section, ModelConfig& config) {
    config.norm = NormKind::layer_norm;
    config.activation = Activation::gelu_tanh;
    config.learned_positions = config.qkv_bias = config.o_bias = config.mlp_bias = true;
    config.rotary = false;
    config.NKV = config.NH;
    section.require("attention.head_count_kv", config.NH, ", as attention.head_count");
    if (config.C % config.NH != 0)
        section.refuse("embedding_length", std::to_string(config.C),
                       "a multiple of attention.head_count = " + std::to_string(config.NH));
    config.HD = config.C / config.NH;
    config.norm_eps = section.number("attention.layer_norm_epsilon", 1e-12, 1);
    if (table_rows(file, "position_embd.weight", config.C, kMaxPositions) != config.max_positions)
        section.refuse("context_length", std::to_string(config.max_positions),
                       "the number of rows of position_embd.weight");
}

// Keys that change nothing here: the tensors tell the same, or they are notes on the file's origin.
const std::set<std::string_view>& harmless_keys() {
    static const std::set<std::string_view> keys = {"vocab_size", "tensor_data_layout",
                                                    "rope.scaling.original_context_length", "rope.scaling.finetuned"};
    return keys;
}

// Keys that llama.cpp writes for other architectures and that mean when they say nothing what their absence means.
const data::KeySet& keys_that_may_be_off() {
    static const data::KeySet keys = {"attention.clamp_kqv",
                                      "attention.max_alibi_bias",
                                      "attention.scale",
                                      "attention.sliding_window",
                                      "attn_logit_softcapping",
                                      "embedding_scale",
                                      "expert_used_count",
                                      "final_logit_softcapping",
                                      "leading_dense_block_count",
                                      "logit_scale",
                                      "pooling_type",
                                      "residual_scale"};
    return keys;
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file) {
    ModelConfig config;
    config.family = family_of(file);
    Section section(file, file.text("general.architecture"));
    section.require_true("attention.causal", ": attention to later tokens is not implemented");
    section.require("expert_count", 0, ": mixtures of experts are not implemented");
    config.L = section.integer("block_count", kMaxLayers);
    tensor(file, "blk." + std::to_string(config.L - 1) + ".attn_norm.weight");
    if (static_cast<size_t>(config.L) > file.tensors().size())
        section.refuse("block_count", std::to_string(config.L), "no more layers than the file has tensors");
    config.C = section.integer("embedding_length", kMaxHidden);
    config.NH = section.integer("attention.head_count", kMaxHeads);
    config.I = section.integer("feed_forward_length", kMaxIntermediate);
    config.max_positions = section.integer("context_length", kMaxPositions);
    if (config.family == Family::gpt2) {
        read_gpt2(file, section, config);
    } else {
        read_rotary_family(file, section, config);
    }
    config.V = table_rows(file, "token_embd.weight", config.C, kMaxVocabulary);
    config.tied_head = !file.find("output.weight");
    config.bos_token = token(file, "tokenizer.ggml.bos_token_id", config.V);
    config.eos_token = token(file, "tokenizer.ggml.eos_token_id", config.V);
    note_unknown_keys(section.refuse_unread(harmless_keys()), file.path().filename().string(), keys_that_may_be_off(),
                      config);
    return config;
}

}  // namespace slab::train
