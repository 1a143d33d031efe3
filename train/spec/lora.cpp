// Targets are matched as PEFT matches a list of them.
#include "train/spec/lora.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "data/base/display.h"
#include "data/base/error.h"

namespace slab::train {

namespace {

// A target is the whole path, or a dotted suffix of it.
bool matches(const std::string& path, const std::string& target) {
    return path == target || path.ends_with("." + target);
}

bool is_adapted(const LoraSettings& lora, const LinearModule& module) {
    const auto& targets = lora.target_modules;
    if (targets.size() == 1 && targets[0] == kAllLinear) return true;
    return std::any_of(targets.begin(), targets.end(),
                       [&](const auto& target) { return matches(module.path, target); });
}

std::string known_targets(const ModelConfig& config) {
    std::string known;
    std::set<std::string> seen;
    for (const auto& module : linear_modules(config, 0))
        if (const auto name = last_name(module.path); seen.insert(name).second)
            known += (known.empty() ? "" : ", ") + name;
    return known;
}

}  // namespace

std::string last_name(const std::string& path) {
    return path.substr(path.rfind('.') + 1);
}

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
    if (lora.r < 1 || lora.r > kMaxLoraRank)
        throw data::UserError({.given = "lora rank " + std::to_string(lora.r) + " is out of range",
                               .wanted = "1 to " + std::to_string(kMaxLoraRank)});
    if (!lora_alpha_makes_sense(lora.alpha))
        throw data::UserError(
            {.given = "lora alpha " + data::number_text(lora.alpha) + " is out of range", .wanted = "1e-6 to 1e6"});
    if (!lora_dropout_makes_sense(lora.dropout))
        throw data::UserError(
            {.given = "lora dropout " + data::number_text(lora.dropout) + " is out of range", .wanted = "0 <= p < 1"});
    if (lora.target_modules.empty())
        throw data::UserError({.given = "no target modules are given (--lora-target-modules)",
                               .wanted = "all-linear or some of " + known_targets(config)});
    for (const auto& target : lora.target_modules) {
        if (target == kAllLinear) {
            if (lora.target_modules.size() > 1)
                throw data::UserError({.subject = "--lora-target-modules",
                                       .given = "all-linear is given with other names",
                                       .wanted = "all-linear alone, or names without it"});
            continue;
        }
        bool found = false;
        for (int l = 0; l < config.L && !found; ++l)
            for (const auto& module : linear_modules(config, l)) found = found || matches(module.path, target);
        if (!found)
            throw data::UserError(
                {.given = "target module \"" + target +
                          "\" (--lora-target-modules) names nothing that can carry an adapter in this " +
                          family_name(config.family) + " model",
                 .wanted = "some of " + known_targets(config)});
    }
    for (int layer : lora.layers_to_transform)
        if (layer < 0 || layer >= config.L)
            throw data::UserError({.given = "layers_to_transform names layer " + std::to_string(layer),
                                   .wanted = "layers 0 to " + std::to_string(config.L - 1)});
    for (int l = 0; l < config.L; ++l)
        if (!adapted_modules(config, lora, l).empty()) return;
    throw data::UserError("no module of any layer carries an adapter under these target modules and layers");
}

std::string peft_key(const std::string& module_path, char which) {
    return "base_model.model." + module_path + ".lora_" + which + ".weight";
}

}  // namespace slab::train
