#include "train/run/idle_flags.h"

#include <algorithm>
#include <utility>

#include "train/run/config_file.h"
#include "train/run/run_setup.h"

namespace slab::train {

namespace {

struct Idle {
    std::string flag, text;  // the text as a message names it
};

// Joins the texts of idle flags that the command line overrides by `decider`; `refused` gets the others.
std::string overridden(const TrainOptions& o, const std::vector<Idle>& idle, const std::string& decider,
                       std::string& refused) {
    std::string text;
    const bool on_command_line = !o.given.at(decider).in_config_file;
    for (const Idle& each : idle) {
        std::string& list = on_command_line && o.given.at(each.flag).in_config_file ? text : refused;
        list += (list.empty() ? "" : ", ") + each.text;
    }
    return text;
}

bool same_modules(const LoraSettings& a, const LoraSettings& b, const ModelConfig& config) {
    for (int l = 0; l < config.L; ++l) {
        const auto in_a = adapted_modules(config, a, l), in_b = adapted_modules(config, b, l);
        if (!std::equal(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                        [](const LinearModule& x, const LinearModule& y) { return x.path == y.path; }))
            return false;
    }
    return true;
}

bool is_default(const Flag& flag, const TrainOptions& o) {
    return flag_text(flag, o) == flag_text(flag, TrainOptions());
}

}  // namespace

bool is_idle(const Flag& flag, const TrainOptions& o) {
    return flag.rules.idle_beside && flag.rules.idle_beside(o);
}

std::vector<std::string> check_idle_flags(const TrainOptions& o) {
    std::vector<std::pair<std::string, std::vector<Idle>>> by_decider;
    for (const Flag& flag : flag_table()) {
        if (!is_given(o, flag.name) || !is_idle(flag, o)) continue;
        const char* const decider = flag.rules.idle_beside(o);
        if (!is_given(o, decider) || (flag.rules.default_may_idle && is_default(flag, o))) continue;
        if (by_decider.empty() || by_decider.back().first != decider) by_decider.emplace_back(decider, 0);
        by_decider.back().second.push_back({flag.name, as_given(o, flag.name)});
    }
    std::vector<std::string> notes;
    for (const auto& [decider, idle] : by_decider) {
        std::string refused;
        const std::string noted = overridden(o, idle, decider, refused);
        const std::string given = "without effect beside " + as_given(o, decider);
        if (!refused.empty()) refuse_flag(refused, given, "the one or the other");
        notes.push_back(noted + ": " + given);
    }
    if (is_given(o, "save-total-limit") && !o.given.at("save-total-limit").in_config_file && o.save_total_limit > 0 &&
        o.save_steps == 0)
        notes.push_back(as_given(o, "save-total-limit") +
                        ": without --save-steps a run saves one checkpoint, at its end or where it is stopped");
    return notes;
}

std::vector<std::string> check_lora_flags(const TrainOptions& o, const LoraSettings& adapter,
                                          const ModelConfig& config) {
    if (!is_given(o, "adapter-in")) return {};
    LoraSettings asked = lora_of_flags(o);
    asked.layers_to_transform = adapter.layers_to_transform;  // no flag has them
    TrainOptions there;
    set_lora_flags(there, adapter);
    std::vector<Idle> idle;
    for (const Flag& flag : flag_table()) {
        if (flag.rules.identity != Identity::adapter || !is_given(o, flag.name)) continue;
        const std::string value = flag_text(flag, there);
        const bool names_modules = flag.name == std::string("lora-target-modules");
        if (names_modules ? same_modules(asked, adapter, config) : flag_text(flag, o) == value) continue;
        idle.push_back({flag.name, as_given(o, flag.name) + " (there: " + value + ")"});
    }
    if (idle.empty()) return {};
    std::string refused;
    const std::string noted = overridden(o, idle, "adapter-in", refused);
    const std::string adapter_in = as_given(o, "adapter-in");
    if (!refused.empty())
        refuse_flag(refused, "contradicts " + adapter_in + ", whose settings hold", "the adapter's own value, or none",
                    "without --adapter-in a new adapter starts");
    return {noted + ": the settings of " + adapter_in + " hold"};
}

std::string lora_config_text(const LoraSettings& adapter) {
    TrainOptions o;
    set_lora_flags(o, adapter);
    std::string text;
    for (const Flag& flag : flag_table())
        if (flag.rules.identity == Identity::adapter)
            text += flag.name + (" = " + config_value(flag_text(flag, o)) + "\n");
    return text;
}

}  // namespace slab::train
