// The known name that a mistyped one was meant to be: "unknown flag --lerning-rate; did you mean --learning-rate?".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

// Levenshtein's distance, '_' and '-' taken as equal.
size_t edit_distance(std::string_view a, std::string_view b);

// The known name that other trainers call `given`, or the nearest one; of equals the first. A name is near if at most a
// third of its letters differ, or if it begins with `given`. "" if none is near. Dashes before a name do not count.
std::string nearest_name(std::string_view given, const std::vector<std::string>& known);

// "; did you mean NAME?", or "" if no name is near.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known);

}  // namespace slab::data
