// JSON from files that nobody vouches for.
//
// nlohmann/json accepts a key given twice and keeps the last value, nests as deep as the text does, and takes a byte of
// 0 for the end, whatever follows. All are refused here: a header with two answers has none, no format read here is
// deep, and what follows was meant too. What comes back is bounded by the text: kMaxJsonBytes of it at most.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace slab::data {

inline constexpr size_t kMaxJsonBytes = size_t{64} << 20;
inline constexpr int kMaxJsonDepth = 32;

// Parses all of `text`. Errors are std::runtime_error beginning with `where` (a path) and naming the byte:
// base_offset_bytes is where the text begins in that file.
nlohmann::json parse_json(std::string_view text, const std::string& where, size_t base_offset_bytes = 0);

// The file's one JSON value.
nlohmann::json read_json_file(const std::filesystem::path& path);

// A value as error messages show it: JSON, cut when long.
std::string shown(const nlohmann::json& value);

}  // namespace slab::data
