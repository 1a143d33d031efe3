// Names, limits and a one-line description.
#include "train/spec/model_config.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "data/base/error.h"
#include "train/spec/tensor_table.h"

namespace slab::train {

const char* family_name(Family family) {
    switch (family) {
        case Family::gpt2:
            return "gpt2";
        case Family::llama:
            return "llama";
        case Family::mistral:
            return "mistral";
        case Family::qwen2:
            return "qwen2";
        case Family::qwen3:
            return "qwen3";
    }
    throw std::logic_error("model family without a name");
}

void check_sequence_len(const ModelConfig& config, int T) {
    if (config.learned_positions && T > config.max_positions) {
        throw data::UserError({.given = "sequence length " + std::to_string(T) + " is given",
                               .wanted = "at most " + std::to_string(config.max_positions) +
                                         ": the model has that many position embeddings"});
    }
    if (config.sliding_window != 0 && T > config.sliding_window) {
        throw data::UserError(
            {.given = "sequence length " + std::to_string(T) + " is given",
             .wanted = "at most " + std::to_string(config.sliding_window) +
                       ": beyond that the model's sliding_window takes effect, which is not implemented"});
    }
}

int most_positions(const ModelConfig& config) {
    return config.sliding_window != 0 ? std::min(config.max_positions, config.sliding_window) : config.max_positions;
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

}  // namespace slab::train
