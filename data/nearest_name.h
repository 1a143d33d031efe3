// The known name nearest to a mistyped one, for errors of the kind "unknown flag --lerning-rate; did you mean
// --learning-rate?". Nearest by Levenshtein's edit distance, '_' and '-' taken as equal; of equals the first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
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

// Empty when nothing is known.
inline std::string nearest_name(std::string_view given, const std::vector<std::string>& known) {
    const auto nearer = [&](const std::string& a, const std::string& b) {
        return edit_distance(given, a) < edit_distance(given, b);
    };
    const auto best = std::min_element(known.begin(), known.end(), nearer);
    return best == known.end() ? std::string() : *best;
}

}  // namespace slab::data
