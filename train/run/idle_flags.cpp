// The table of flags that another makes idle. See idle_flags.h.
#include "train/run/idle_flags.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "data/base/display.h"
#include "train/run/config_file.h"
#include "train/run/run_setup.h"
#include "train/spec/lora.h"

namespace slab::train {

namespace {

// The flag that decides in another's place, or "".
std::string full_training(const TrainOptions& o) {
    if (o.adapter != "none") return "";
    return o.freeze_layers >= 0 ? "freeze-layers" : "adapter";
}
std::string max_steps(const TrainOptions& o) {
    return o.max_steps > 0 ? "max-steps" : "";
}
std::string warmup_steps(const TrainOptions& o) {
    return o.warmup_steps >= 0 ? "warmup-steps" : "";
}
std::string likeliest_token(const TrainOptions& o) {
    return o.sample_temperature == 0 ? "sample-temperature" : "";
}
bool always(const TrainOptions&) {
    return true;
}

struct IdleFlag {
    const char* flag;
    std::string (*decided_by)(const TrainOptions&);
    bool (*asks)(const TrainOptions&) = always;  // false: its value asks for nothing, and is no mistake anywhere
};

constexpr IdleFlag kTable[] = {
    {"lora-r", full_training},
    {"lora-alpha", full_training},
    {"lora-dropout", full_training},
    {"lora-target-modules", full_training},
    {"use-rslora", full_training, [](const TrainOptions& o) { return o.use_rslora; }},
    {"num-epochs", max_steps},
    {"warmup-ratio", warmup_steps},
    {"top-k", likeliest_token, [](const TrainOptions& o) { return o.top_k != 0; }},
    {"top-p", likeliest_token, [](const TrainOptions& o) { return o.top_p != 1; }},
};

std::string shown(const TrainOptions& o, const std::string& flag) {
    const GivenFlag& given = o.given.at(flag);
    return "--" + flag + (given.value == "true" ? "" : " " + data::printable_text(given.value)) +
           (given.in_config_file ? " (config file)" : "");
}

// Those of `flags`, shown, that the command line puts aside in favour of `decider`; `refused` gets the others.
std::string put_aside(const TrainOptions& o, const std::vector<std::pair<std::string, std::string>>& flags,
                      const std::string& decider, std::string& refused) {
    std::string aside;
    const bool on_command_line = !o.given.at(decider).in_config_file;
    for (const auto& [flag, text] : flags) {
        std::string& list = on_command_line && o.given.at(flag).in_config_file ? aside : refused;
        list += (list.empty() ? "" : ", ") + text;
    }
    return aside;
}

std::string sorted_targets(const LoraSettings& lora) {
    std::vector<std::string> names = lora.target_modules;
    std::sort(names.begin(), names.end());
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
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

}  // namespace

bool is_idle(const std::string& flag, const TrainOptions& o) {
    return std::any_of(std::begin(kTable), std::end(kTable),
                       [&](const IdleFlag& row) { return row.flag == flag && !row.decided_by(o).empty(); });
}

std::vector<std::string> check_idle_flags(const TrainOptions& o) {
    std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> by_decider;
    for (const IdleFlag& row : kTable) {
        const std::string decider = row.decided_by(o);
        if (decider.empty() || !o.given.count(row.flag) || !o.given.count(decider) || !row.asks(o)) continue;
        if (by_decider.empty() || by_decider.back().first != decider) by_decider.emplace_back(decider, 0);
        by_decider.back().second.emplace_back(row.flag, shown(o, row.flag));
    }
    std::vector<std::string> notes;
    for (const auto& [decider, flags] : by_decider) {
        std::string refused;
        const std::string aside = put_aside(o, flags, decider, refused);
        if (!refused.empty())
            throw std::runtime_error(refused + ": without effect beside " + shown(o, decider) +
                                     "; leave out the one or the other");
        notes.push_back(aside + ": without effect beside " + shown(o, decider));
    }
    if (const auto limit = o.given.find("save-total-limit");
        limit != o.given.end() && !limit->second.in_config_file && o.save_total_limit > 0 && o.save_steps == 0)
        notes.push_back(shown(o, limit->first) +
                        ": without --save-steps a run saves one checkpoint, at its end or where it is stopped");
    return notes;
}

std::vector<std::string> check_lora_flags(const TrainOptions& o, const LoraSettings& adapter,
                                          const ModelConfig& config) {
    if (o.adapter_in.empty() || !o.given.count("adapter-in")) return {};
    LoraSettings asked = lora_of_flags(o);
    asked.layers_to_transform = adapter.layers_to_transform;  // no flag says them
    std::vector<std::pair<std::string, std::string>> flags;
    const auto compare = [&](const char* flag, bool same, const std::string& there) {
        if (!same && o.given.count(flag)) flags.emplace_back(flag, shown(o, flag) + " (there: " + there + ")");
    };
    compare("lora-r", asked.r == adapter.r, std::to_string(adapter.r));
    compare("lora-alpha", asked.alpha == adapter.alpha, data::number_text(adapter.alpha));
    compare("lora-dropout", asked.dropout == adapter.dropout, data::number_text(adapter.dropout));
    compare("lora-target-modules", same_modules(asked, adapter, config), sorted_targets(adapter));
    compare("use-rslora", asked.rslora == adapter.rslora, adapter.rslora ? "true" : "false");
    if (flags.empty()) return {};
    std::string refused;
    const std::string aside = put_aside(o, flags, "adapter-in", refused);
    if (!refused.empty())
        throw std::runtime_error(refused + ": contradicts " + shown(o, "adapter-in") +
                                 ", whose settings hold; leave it out, or start a new adapter without --adapter-in");
    return {aside + ": the settings of " + shown(o, "adapter-in") + " hold"};
}

std::string lora_config_text(const LoraSettings& lora) {
    return "lora-r = " + std::to_string(lora.r) + "\nlora-alpha = " + config_value(data::number_text(lora.alpha)) +
           "\nlora-dropout = " + config_value(data::number_text(lora.dropout)) +
           "\nlora-target-modules = " + config_value(sorted_targets(lora)) +
           "\nuse-rslora = " + (lora.rslora ? "true" : "false") + "\n";
}

}  // namespace slab::train
