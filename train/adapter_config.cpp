// LoRA settings, their checks, and PEFT's adapter_config.json. See adapter_config.h.
#include "train/adapter_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "data/json_file.h"

namespace slab::train {

using nlohmann::json;

namespace {

constexpr const char* kAllLinear = "all-linear";

// PEFT's rule for a list of targets: the whole path, or a dotted suffix of it.
bool matches(const std::string& path, const std::string& target) {
    return path == target || path.ends_with("." + target);
}

bool is_adapted(const LoraSettings& lora, const LinearModule& module) {
    const auto& targets = lora.target_modules;
    if (targets.size() == 1 && targets[0] == kAllLinear) return true;
    return std::any_of(targets.begin(), targets.end(),
                       [&](const auto& target) { return matches(module.path, target); });
}

std::string last_name(const std::string& path) {
    return path.substr(path.rfind('.') + 1);
}

std::string known_targets(const ModelConfig& config) {
    std::string known;
    std::set<std::string> seen;
    for (const auto& module : linear_modules(config, 0))
        if (const auto name = last_name(module.path); seen.insert(name).second)
            known += (known.empty() ? "" : ", ") + name;
    return known;
}

// Null, false, 0, "", [] and {}: an option that is there and off.
bool is_neutral(const json& v) {
    return v.is_null() || (v.is_boolean() && !v.get<bool>()) || (v.is_number() && v.get<double>() == 0) ||
           ((v.is_string() || v.is_structured()) && v.empty()) ||
           (v.is_string() && v.get_ref<const std::string&>().empty());
}

// Keys that say nothing about what the adapter computes.
bool is_harmless(const std::string& key) {
    static const std::set<std::string> keys = {
        "auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_core",  "peft_version",  "revision",
        "task_type",    "qalora_group_size",       "runtime_config", "fan_in_fan_out", "layers_pattern"};
    return keys.count(key) != 0;
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& key, const json& got,
                       const std::string& wanted) {
    throw std::runtime_error(file.string() + ": \"" + key + "\" is " + data::shown(got) + "; wanted " + wanted);
}

double number(const std::filesystem::path& file, const json& j, const char* key, double fallback, double low,
              double high) {
    if (!j.contains(key) || j[key].is_null()) return fallback;
    const json& v = j[key];
    if (!v.is_number() || !(v.get<double>() >= low && v.get<double>() <= high))
        fail(file, key, v, "a number from " + json(low).dump() + " to " + json(high).dump());
    return v.get<double>();
}

bool boolean(const std::filesystem::path& file, const json& j, const char* key) {
    if (!j.contains(key) || j[key].is_null()) return false;
    if (!j[key].is_boolean()) fail(file, key, j[key], "true or false");
    return j[key].get<bool>();
}

std::vector<std::string> read_targets(const std::filesystem::path& file, const json& j) {
    const json& v = j.contains("target_modules") ? j["target_modules"] : json();
    if (v.is_string()) {
        if (v.get<std::string>() == kAllLinear) return {kAllLinear};
        fail(file, "target_modules", v,
             "a list of module names, or \"all-linear\" (a regular expression is not supported: list the modules)");
    }
    if (!v.is_array() || v.empty()) fail(file, "target_modules", v, "a list of module names, or \"all-linear\"");
    std::vector<std::string> targets;
    for (const auto& name : v) {
        if (!name.is_string()) fail(file, "target_modules", v, "a list of strings");
        targets.push_back(name.get<std::string>());
    }
    return targets;
}

std::vector<int> read_layers(const std::filesystem::path& file, const json& j, const ModelConfig& config) {
    const json& v = j.contains("layers_to_transform") ? j["layers_to_transform"] : json();
    if (v.is_null() || (v.is_array() && v.empty())) return {};
    const json list = v.is_array() ? v : json::array({v});
    std::vector<int> layers;
    for (const auto& layer : list) {
        if (!layer.is_number_integer() || layer.get<int64_t>() < 0 || layer.get<int64_t>() >= config.L)
            fail(file, "layers_to_transform", v, "layer numbers from 0 to " + std::to_string(config.L - 1));
        layers.push_back(layer.get<int>());
    }
    return layers;
}

// Starts that leave the base weights as they are. PiSSA, OLoRA, CorDA and LoftQ change them, and an adapter trained so
// is wrong on the base as it lies on disk.
void check_start(const std::filesystem::path& file, const json& j) {
    if (!j.contains("init_lora_weights")) return;
    const json& v = j["init_lora_weights"];
    if (v.is_null() || v.is_boolean() || v == "gaussian" || v == "orthogonal" || v == "eva") return;
    fail(file, "init_lora_weights", v, "true, false, \"gaussian\", \"orthogonal\" or \"eva\": others change the base");
}

// The double with the fewest digits that reads back as this float: 0.1, where a cast would write 0.10000000149011612.
double shortest(float value) {
    char digits[32];
    const char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    double result = 0;
    std::from_chars(digits, end, result);
    return result;
}

}  // namespace

float LoraSettings::scale() const {
    return rslora ? alpha / std::sqrt(static_cast<float>(r)) : alpha / static_cast<float>(r);
}

std::vector<LinearModule> adapted_modules(const ModelConfig& config, const LoraSettings& lora, int layer) {
    const auto& only = lora.layers_to_transform;
    if (!only.empty() && std::find(only.begin(), only.end(), layer) == only.end()) return {};
    std::vector<LinearModule> adapted;
    for (auto& module : linear_modules(config, layer))
        if (is_adapted(lora, module)) adapted.push_back(std::move(module));
    return adapted;
}

void check_lora_settings(const ModelConfig& config, const LoraSettings& lora) {
    if (lora.r < 1 || lora.r > 4096)
        throw std::runtime_error("lora rank " + std::to_string(lora.r) + " is out of range; wanted 1 to 4096");
    if (!lora_alpha_makes_sense(lora.alpha))
        throw std::runtime_error("lora alpha " + json(shortest(lora.alpha)).dump() +
                                 " is out of range; wanted 1e-6 to 1e6");
    if (!(lora.dropout >= 0 && lora.dropout < 1))
        throw std::runtime_error("lora dropout " + std::to_string(lora.dropout) +
                                 " is out of range; wanted 0 <= p < 1");
    if (lora.target_modules.empty())
        throw std::runtime_error("no target modules are given (--lora-target-modules); wanted all-linear or some of " +
                                 known_targets(config));
    for (const auto& target : lora.target_modules) {
        if (target == kAllLinear) {
            if (lora.target_modules.size() > 1)
                throw std::runtime_error("--lora-target-modules: all-linear stands alone; leave the other names out");
            continue;
        }
        bool found = false;
        for (int l = 0; l < config.L && !found; ++l)
            for (const auto& module : linear_modules(config, l)) found = found || matches(module.path, target);
        if (!found)
            throw std::runtime_error("target module \"" + target +
                                     "\" (--lora-target-modules) names nothing that can carry an adapter in this " +
                                     family_name(config.family) + " model; it has " + known_targets(config));
    }
    for (int layer : lora.layers_to_transform)
        if (layer < 0 || layer >= config.L)
            throw std::runtime_error("layers_to_transform names layer " + std::to_string(layer) +
                                     "; the model has layers 0 to " + std::to_string(config.L - 1));
    for (int l = 0; l < config.L; ++l)
        if (!adapted_modules(config, lora, l).empty()) return;
    throw std::runtime_error("no module of any layer carries an adapter under these target modules and layers");
}

LoraSettings read_adapter_config(const std::filesystem::path& file, const ModelConfig& config) {
    const json j = data::read_json_file(file);
    if (!j.is_object())
        throw std::runtime_error(file.string() + ": not a JSON object; wanted PEFT's adapter_config.json");
    if (!j.contains("peft_type") || j["peft_type"] != "LORA")
        fail(file, "peft_type", j.value("peft_type", json()), "\"LORA\"");
    static const std::set<std::string> handled = {"peft_type",           "r",          "lora_alpha",
                                                  "lora_dropout",        "use_rslora", "target_modules",
                                                  "layers_to_transform", "bias",       "init_lora_weights"};
    for (const auto& [key, value] : j.items()) {
        if (handled.count(key) || is_harmless(key) || is_neutral(value)) continue;
        throw std::runtime_error(file.string() + ": option \"" + key + "\" = " + data::shown(value) +
                                 " is not supported here and could change the result; make the adapter without it");
    }
    if (j.contains("bias") && !j["bias"].is_null() && j["bias"] != "none")
        fail(file, "bias", j["bias"], "\"none\" (trained biases are not supported)");
    check_start(file, j);
    LoraSettings lora;
    const double r = number(file, j, "r", 8, 1, 4096);
    if (r != std::floor(r)) fail(file, "r", j["r"], "a whole number");
    lora.r = static_cast<int>(r);
    lora.alpha = static_cast<float>(number(file, j, "lora_alpha", 8, 1e-6, 1e6));
    lora.dropout = static_cast<float>(number(file, j, "lora_dropout", 0, 0, 0.999));
    lora.rslora = boolean(file, j, "use_rslora");
    lora.target_modules = read_targets(file, j);
    lora.layers_to_transform = read_layers(file, j, config);
    try {
        check_lora_settings(config, lora);
    } catch (const std::runtime_error& e) {
        throw std::runtime_error(file.string() + ": " + e.what());
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
        // PEFT writes the names it resolved to, so that loading does not depend on what counts as linear there.
        std::set<std::string> names;
        for (const auto& module : linear_modules(config, 0)) names.insert(last_name(module.path));
        j["target_modules"] = names;
    } else {
        j["target_modules"] = lora.target_modules;
    }
    j["layers_to_transform"] = lora.layers_to_transform.empty() ? json() : json(lora.layers_to_transform);
    // A path need not be UTF-8; that is no reason to lose the adapter.
    return j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string peft_key(const std::string& module_path, char which) {
    return "base_model.model." + module_path + ".lora_" + which + ".weight";
}

}  // namespace slab::train
