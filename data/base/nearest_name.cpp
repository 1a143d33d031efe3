#include "data/base/nearest_name.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace slab::data {

namespace {

// What other trainers call our flags, where spelling alone would lead astray.
using Alias = std::pair<std::string_view, std::string_view>;
constexpr std::array kAliases = {Alias{"lr", "learning-rate"},
                                 Alias{"batch-size", "micro-batch-size"},
                                 Alias{"per-device-train-batch-size", "micro-batch-size"},
                                 Alias{"epochs", "num-epochs"},
                                 Alias{"num-train-epochs", "num-epochs"},
                                 Alias{"steps", "max-steps"},
                                 Alias{"max-seq-length", "sequence-len"},
                                 Alias{"max-length", "sequence-len"},
                                 Alias{"block-size", "sequence-len"},
                                 Alias{"model", "base-model"},
                                 Alias{"model-name-or-path", "base-model"},
                                 Alias{"dataset", "train-data"},
                                 Alias{"data", "train-data"},
                                 Alias{"output", "output-dir"},
                                 Alias{"lora-rank", "lora-r"},
                                 Alias{"rank", "lora-r"},
                                 Alias{"target-modules", "lora-target-modules"},
                                 Alias{"grad-accum", "gradient-accumulation-steps"},
                                 Alias{"gradient-checkpointing", "recompute"},
                                 Alias{"resume", "resume-from-checkpoint"},
                                 Alias{"warmup", "warmup-steps"},
                                 Alias{"clip", "max-grad-norm"}};

std::string_view without_dashes(std::string_view name) {
    name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
    return name;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
    const auto fold = [](char c) { return c == '_' ? '-' : c; };
    std::vector<size_t> row(b.size() + 1);  // [b.size()+1] distances from a's prefix to every prefix of b
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            const size_t replace = diagonal + (fold(a[i]) == fold(b[j]) ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replace, row[j] + 1, diagonal + 1});
        }
    }
    return row[b.size()];
}

std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
    const std::string_view name = without_dashes(given);
    for (const auto& [alias, meant] : kAliases)
        for (const std::string& each : known)
            if (name == alias && without_dashes(each) == meant) return each;
    std::string nearest;
    size_t least = std::string::npos;
    for (const std::string& each : known) {
        const std::string_view candidate = without_dashes(each);
        const size_t distance = edit_distance(name, candidate);
        const bool near = distance <= std::max<size_t>(1, std::max(name.size(), candidate.size()) / 3);
        const bool begun = name.size() >= 3 && candidate.starts_with(name);
        if ((near || begun) && distance < least) nearest = each, least = distance;
    }
    return nearest;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& known) {
    const std::string name = nearest_name(given, known);
    return name.empty() ? "" : "; did you mean " + name + "?";
}

}  // namespace slab::data
