// The checks ride on nlohmann's parser callback; an iterator that notes how far the parser has come gives the byte
// offsets that the callback does not.
#include "data/json_file.h"

#include <iterator>
#include <stdexcept>
#include <unordered_set>
#include <vector>

#include "data/input_file.h"

namespace slab::data {
namespace {

// Input iterator over text that records the furthest byte handed out.
struct NotingIterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    const char* at;
    const char** furthest;

    reference operator*() const { return *at; }
    NotingIterator& operator++() {
        *furthest = ++at;
        return *this;
    }
    bool operator==(const NotingIterator& other) const { return at == other.at; }
    bool operator!=(const NotingIterator& other) const { return at != other.at; }
};

// nlohmann begins its texts with "[json.exception.parse_error.101] ", which tells a user nothing.
std::string without_tag(const std::string& text) {
    const size_t end = text.find("] ");
    return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where, size_t base_offset_bytes) {
    using json = nlohmann::json;
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    if (const size_t at = text.find('\0'); at != std::string_view::npos)
        throw std::runtime_error(
            where + ": byte " + std::to_string(base_offset_bytes + at) +
            " is 0, wanted JSON text in UTF-8, which has no such byte. Hint: a file that was being "
            "written when the machine stopped may hold such bytes; write or fetch it again");
    const char* furthest = begin;
    const auto offset = [&] { return std::to_string(base_offset_bytes + static_cast<size_t>(furthest - begin)); };

    std::vector<std::unordered_set<std::string>> keys_of_open_objects;
    const auto check = [&](int depth, json::parse_event_t event, json& value) {
        if (depth > kMaxJsonDepth) {
            throw std::runtime_error(where + ": JSON nested deeper than " + std::to_string(kMaxJsonDepth) +
                                     " levels at byte " + offset());
        }
        if (event == json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
        if (event == json::parse_event_t::object_end) keys_of_open_objects.pop_back();
        if (event == json::parse_event_t::key) {
            const auto& key = value.get_ref<const std::string&>();
            if (!keys_of_open_objects.back().insert(key).second) {
                throw std::runtime_error(where + ": key " + quote(key) + " is given twice, again just before byte " +
                                         offset());
            }
        }
        return true;
    };
    try {
        return json::parse(NotingIterator{begin, &furthest}, NotingIterator{end, &furthest}, check);
    } catch (const json::exception& error) {
        throw std::runtime_error(where + ": is not valid JSON near byte " + offset() + ": " +
                                 quote(without_tag(error.what())));
    }
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
    const std::string text = InputFile(path).read_all("JSON", kMaxJsonBytes);
    return parse_json(text, path.string());
}

std::string shown(const nlohmann::json& value) {
    constexpr size_t longest = 80;
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    return text;
}

}  // namespace slab::data
