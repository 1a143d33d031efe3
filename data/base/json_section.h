// One object of a foreign JSON file, taken out key by key, where a key that is overlooked would be a wrong result:
// refuse_unread() at the end refuses every key that nobody asked for, unless its value says "nothing" or the caller
// knows it to be harmless. Errors are std::runtime_error naming file, key, value and what is wanted.
//
// null counts as absent, as in transformers and PEFT; has() tells the two apart.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace slab::data {

using KeySet = std::set<std::string, std::less<>>;

// A whole number that fits 64 signed bits, or nothing.
std::optional<int64_t> whole_number(const nlohmann::json& value);

// The double with the fewest digits that reads back as this float, for files written: 0.1, where a cast would give
// 0.10000000149011612.
double shortest(float value);

class JsonSection {
  public:
    // `object` must outlive the section. prefix leads the keys in errors: "rope_scaling.". Throws when it is no object.
    JsonSection(std::string where, std::string prefix, const nlohmann::json& object);

    bool has(std::string_view key) const { return object_.contains(key); }
    // What the key holds, or nullptr. Here and in all that follow the key is accounted for.
    const nlohmann::json* find(std::string_view key);

    // With no fallback the key is required. Bounds are inclusive; a float comes back rounded from the double read.
    int integer(std::string_view key, int min, int max, std::optional<int> fallback = {});
    float number(std::string_view key, double min, double max, std::optional<float> fallback = {});
    bool boolean(std::string_view key, bool fallback);
    std::string text(std::string_view key, std::string_view wanted, std::optional<std::string> fallback = {});
    // For a key of which one value only is implemented: absent, or exactly that.
    void require(std::string_view key, const nlohmann::json& only);

    [[noreturn]] void refuse(std::string_view key, const std::string& wanted) const;
    void refuse_unread(const KeySet& harmless) const;

  private:
    std::string where_, prefix_;
    const nlohmann::json& object_;
    KeySet read_;
};

}  // namespace slab::data
