// Types, bounds and bookkeeping in one place, so that a parser is a list of keys.
#include "data/base/json_section.h"

#include <charconv>
#include <utility>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"

namespace slab::data {
namespace {

using nlohmann::json;

// Values by which a file says that it does not use the key.
bool is_neutral(const json& value) {
    return value.is_null() || value == false || (value.is_number() && value == 0) || value == "" ||
           ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

std::optional<int64_t> whole_number(const json& value) {
    if (!value.is_number_integer()) return {};
    if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return {};
    return value.get<int64_t>();
}

double shortest(float value) {
    char digits[32];
    const char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    double result = 0;
    std::from_chars(digits, end, result);
    return result;
}

JsonSection::JsonSection(std::string where, std::string prefix, const json& object)
    : where_(std::move(where)), prefix_(std::move(prefix)), object_(object) {
    if (object_.is_object()) return;
    const std::string name = prefix_.empty() ? "the file" : "key " + quote(prefix_.substr(0, prefix_.size() - 1));
    throw UserError({.subject = where_, .given = name + " is " + shown(object_), .wanted = "an object {...}"});
}

const json* JsonSection::find(std::string_view key) {
    read_.emplace(key);
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
}

int JsonSection::integer(std::string_view key, int min, int max, std::optional<int> fallback) {
    const json* value = find(key);
    if (!value && fallback) return *fallback;
    const std::optional<int64_t> whole = value ? whole_number(*value) : std::nullopt;
    if (!whole || *whole < min || *whole > max) {
        refuse(key, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    }
    return static_cast<int>(*whole);
}

float JsonSection::number(std::string_view key, double min, double max, std::optional<float> fallback) {
    const json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
        refuse(key, "a number from " + shown(min) + " to " + shown(max));
    }
    return static_cast<float>(value->get<double>());
}

bool JsonSection::boolean(std::string_view key, bool fallback) {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
}

std::string JsonSection::text(std::string_view key, std::string_view wanted, std::optional<std::string> fallback) {
    const json* value = find(key);
    if (!value && fallback) return *fallback;
    if (!value || !value->is_string()) refuse(key, std::string(wanted));
    return value->get<std::string>();
}

void JsonSection::require(std::string_view key, const json& only) {
    const json* value = find(key);
    if (value && *value != only) refuse(key, shown(only) + ", the only value that is implemented");
}

void JsonSection::require_default(std::string_view key, const json& only) {
    if (has(key) && !find(key)) refuse(key, shown(only) + ", the only value that is implemented");
    require(key, only);
}

void JsonSection::refuse_null(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys)
        if (const auto at = object_.find(key); at != object_.end() && at->is_null())
            refuse(key, "a value, or the key absent: null is neither");
}

void JsonSection::refuse(std::string_view key, const std::string& wanted) const {
    const auto at = object_.find(key);
    const std::string given = at == object_.end() ? " is absent" : " is " + shown(*at);
    throw UserError({.subject = where_, .given = "key " + quote(prefix_ + std::string(key)) + given, .wanted = wanted});
}

std::vector<std::string> JsonSection::refuse_unread(const KeySet& harmless) const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : object_.items()) {
        if (read_.contains(key) || harmless.contains(key) || value.is_null()) continue;
        if (!is_neutral(value))
            refuse(key,
                   "it absent or neutral (null, false, 0, empty): it is not implemented here and could change the "
                   "result");
        unknown.push_back(quote(prefix_ + key) + " " + shown(value));
    }
    return unknown;
}

}  // namespace slab::data
