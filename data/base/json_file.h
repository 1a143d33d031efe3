// JSON from untrusted files.
//
// nlohmann/json keeps the last value of a key given twice, nests as deep as the text does, and takes a byte of 0 for
// the end. All three are refused here: a header with two answers has none, no format read here is deep, and the text
// after a 0 was meant too. The result is bounded by the text, which has kMaxJsonBytes at most.
#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace slab::data {

inline constexpr size_t kMaxJsonBytes = size_t{64} << 20;
inline constexpr int kMaxJsonDepth = 32;

// A text's place in its file, so that errors name a place that an editor can find.
struct JsonPlace {
    size_t line = 1;                          // of the text's first byte
    bool is_line = false;                     // the text is one line of a file with many records
    std::optional<size_t> offset_bytes = {};  // of the text in a binary file: errors then give bytes, not lines
};

// Parses all of `text`, from the file at `path`. Errors are UserError of one form, whatever is wrong:
// "PATH, line 3: is not valid JSON at column 17: found "}"; wanted a value. Hint: ...", columns in characters from 1.
nlohmann::json parse_json(std::string_view text, const std::string& path, const JsonPlace& place = {});
// The same with objects' keys in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path, const JsonPlace& place = {});

// The file's one JSON value.
nlohmann::json read_json_file(const std::filesystem::path& path);

// A value as error messages show it: JSON, cut when long.
std::string shown(const nlohmann::json& value);
std::string shown_ordered(const nlohmann::ordered_json& value);
template <std::same_as<nlohmann::ordered_json> Json>  // nothing else converts to it by accident
std::string shown(const Json& value) {
    return shown_ordered(value);
}

}  // namespace slab::data
