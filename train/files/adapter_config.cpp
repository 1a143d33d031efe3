// Options that PEFT knows and that are not implemented here are refused when they are active.
#include "train/files/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "data/base/json_section.h"
#include "train/spec/lora.h"

namespace slab::train {

using data::JsonSection;
using data::KeySet;
using data::shortest;
using data::whole_number;
using nlohmann::json;

namespace {

// Keys that do not change the adapter's result. (fan_in_fan_out: the layer's own kind decides, as in PEFT. eva_config:
// how A was initialised.)
const KeySet& harmless_keys() {
    static const KeySet keys = {"auto_mapping",   "base_model_name_or_path", "eva_config",     "fan_in_fan_out",
                                "inference_mode", "layers_pattern",          "megatron_core",  "peft_version",
                                "revision",       "qalora_group_size",       "runtime_config", "task_type"};
    return keys;
}

std::vector<std::string> read_targets(JsonSection& section) {
    const char* const key = "target_modules";
    const json* value = section.find(key);
    if (value && value->is_string()) {
        if (*value == kAllLinear) return {kAllLinear};
        section.refuse(
            key, "a list of module names, or \"all-linear\" (a regular expression is not supported: list the modules)");
    }
    if (!value || !value->is_array() || value->empty())
        section.refuse(key, "a list of module names, or \"all-linear\"");
    std::vector<std::string> targets;
    for (const auto& name : *value) {
        if (!name.is_string()) section.refuse(key, "a list of strings");
        targets.push_back(name.get<std::string>());
    }
    return targets;
}

std::vector<int> read_layers(JsonSection& section, const ModelConfig& config) {
    const char* const key = "layers_to_transform";
    const json* value = section.find(key);
    if (!value) return {};
    const json list = value->is_array() ? *value : json::array({*value});
    std::vector<int> layers;
    for (const auto& layer : list) {
        const auto number = whole_number(layer);
        if (!number || *number < 0 || *number >= config.L)
            section.refuse(key, "layer numbers from 0 to " + std::to_string(config.L - 1));
        layers.push_back(static_cast<int>(*number));
    }
    return layers;
}

// Refuses initialisations that change the base weights: PiSSA, OLoRA, CorDA, LoftQ. Their adapters are wrong on the
// base that is on disk.
void check_start(JsonSection& section) {
    const json* value = section.find("init_lora_weights");
    if (!value || value->is_boolean() || *value == "gaussian" || *value == "orthogonal" || *value == "eva") return;
    section.refuse("init_lora_weights", "true, false, \"gaussian\", \"orthogonal\" or \"eva\": others change the base");
}

}  // namespace

LoraSettings read_adapter_config(const std::filesystem::path& file, const ModelConfig& config) {
    const json j = data::read_json_file(file);
    JsonSection section(file.string(), "", j);
    if (const json* type = section.find("peft_type"); !type || *type != "LORA") section.refuse("peft_type", "\"LORA\"");
    if (const json* bias = section.find("bias"); bias && *bias != "none")
        section.refuse("bias", "\"none\": trained biases are not supported");
    check_start(section);
    LoraSettings lora;
    lora.r = section.integer("r", 1, kMaxLoraRank, 8);
    lora.alpha = section.number("lora_alpha", 1e-6, 1e6, 8.0f);
    lora.dropout = section.number("lora_dropout", 0, 1, 0.0f);
    if (!lora_dropout_makes_sense(lora.dropout)) section.refuse("lora_dropout", "0 <= p < 1");
    lora.rslora = section.boolean("use_rslora", false);
    lora.target_modules = read_targets(section);
    lora.layers_to_transform = read_layers(section, config);
    section.refuse_unread(harmless_keys());
    try {
        check_lora_settings(config, lora);
    } catch (const data::UserError& error) {
        throw data::UserError({.subject = file.string(), .given = error.what()});
    }
    return lora;
}

std::string adapter_config_json(const LoraSettings& lora, const ModelConfig& config, const std::string& base_model) {
    json j;
    j["peft_type"] = "LORA";
    j["task_type"] = "CAUSAL_LM";
    j["base_model_name_or_path"] = base_model;
    j["bias"] = "none";
    j["fan_in_fan_out"] = config.family == Family::gpt2;
    j["inference_mode"] = true;
    j["init_lora_weights"] = true;
    const double alpha = shortest(lora.alpha);
    j["lora_alpha"] = alpha == std::floor(alpha) ? json(static_cast<int64_t>(alpha)) : json(alpha);
    j["lora_dropout"] = shortest(lora.dropout);
    j["modules_to_save"] = nullptr;
    j["r"] = lora.r;
    j["use_rslora"] = lora.rslora;
    if (lora.target_modules == std::vector<std::string>{kAllLinear}) {
        // As in PEFT the resolved names are written, so that loading does not depend on PEFT's notion of linear layers.
        std::set<std::string> names;
        for (const auto& module : linear_modules(config, 0)) names.insert(last_name(module.path));
        j["target_modules"] = names;
    } else {
        j["target_modules"] = lora.target_modules;
    }
    j["layers_to_transform"] = lora.layers_to_transform.empty() ? json() : json(lora.layers_to_transform);
    // A path need not be UTF-8; bytes that are not are replaced.
    return j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace slab::train
