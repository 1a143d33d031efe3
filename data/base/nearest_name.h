// The known name nearest to a mistyped one, for errors of the kind "unknown flag --lerning-rate; did you mean
// --learning-rate?". Nearest by Levenshtein's edit distance, '_' and '-' taken as equal; of equals the first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slab::data {

inline size_t edit_distance(std::string_view a, std::string_view b) {
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

// What other trainers call our flags, where spelling alone would lead astray.
inline std::string known_alias(std::string_view given) {
    using Alias = std::pair<std::string_view, const char*>;
    constexpr std::array aliases = {Alias{"--lr", "--learning-rate"},
                                    Alias{"--batch-size", "--micro-batch-size"},
                                    Alias{"--per-device-train-batch-size", "--micro-batch-size"},
                                    Alias{"--epochs", "--num-epochs"},
                                    Alias{"--num-train-epochs", "--num-epochs"},
                                    Alias{"--steps", "--max-steps"},
                                    Alias{"--max-seq-length", "--sequence-len"},
                                    Alias{"--max-length", "--sequence-len"},
                                    Alias{"--block-size", "--sequence-len"},
                                    Alias{"--model", "--base-model"},
                                    Alias{"--model-name-or-path", "--base-model"},
                                    Alias{"--dataset", "--train-data"},
                                    Alias{"--data", "--train-data"},
                                    Alias{"--output", "--output-dir"},
                                    Alias{"--lora-rank", "--lora-r"},
                                    Alias{"--rank", "--lora-r"},
                                    Alias{"--target-modules", "--lora-target-modules"},
                                    Alias{"--grad-accum", "--gradient-accumulation-steps"},
                                    Alias{"--gradient-checkpointing", "--recompute"},
                                    Alias{"--resume", "--resume-from-checkpoint"},
                                    Alias{"--warmup", "--warmup-steps"},
                                    Alias{"--clip", "--max-grad-norm"}};
    const auto found = std::find_if(aliases.begin(), aliases.end(), [&](const Alias& a) { return a.first == given; });
    return found == aliases.end() ? std::string() : found->second;
}

// Empty when nothing is known.
inline std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
    const auto nearer = [&](const std::string& a, const std::string& b) {
        return edit_distance(given, a) < edit_distance(given, b);
    };
    if (const std::string alias = known_alias(given); std::find(known.begin(), known.end(), alias) != known.end())
        return alias;
    const auto best = std::min_element(known.begin(), known.end(), nearer);
    return best == known.end() ? std::string() : *best;
}

}  // namespace slab::data
