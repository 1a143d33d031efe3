// One object of a foreign JSON file, read key by key. An overlooked key could make a wrong result, so refuse_unread()
// at the end refuses every key that nobody asked for. Keys whose value says "nothing", and those that the caller knows
// to be harmless, pass. Errors are UserError naming file, key, value and what is wanted.
//
// "Nothing" (false, 0, empty) is what most keys mean when they are absent. For a key with another default call
// require_default(). null counts as absent, as in transformers and PEFT; has() tells the two apart.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

using KeySet = std::set<std::string, std::less<>>;

// A whole number that fits 64 signed bits, or nothing.
std::optional<int64_t> whole_number(const nlohmann::json& value);

// The double with the fewest digits that reads back as this float, for files written: 0.1, where a cast would give
// 0.10000000149011612.
double shortest(float value);

class JsonSection {
  public:
    // `object` must outlive the section. Throws when it is no object. In errors `prefix` ("rope_scaling.") stands
    // before the keys.
    JsonSection(std::string where, std::string prefix, const nlohmann::json& object);

    bool has(std::string_view key) const { return object_.contains(key); }
    // The key's value, or nullptr. This and all functions below count the key as read.
    const nlohmann::json* find(std::string_view key);

    // Without a fallback the key is required. Bounds are inclusive. A float is the double of the file, rounded.
    int integer(std::string_view key, int min, int max, std::optional<int> fallback = {});
    float number(std::string_view key, double min, double max, std::optional<float> fallback = {});
    bool boolean(std::string_view key, bool fallback);
    std::string text(std::string_view key, std::string_view wanted, std::optional<std::string> fallback = {});
    // For a key with a single implemented value: it is absent, or exactly that.
    void require(std::string_view key, const nlohmann::json& only);
    // As require(), for a key that null switches off, as false does: null is refused too.
    void require_default(std::string_view key, const nlohmann::json& only);
    // Refuses null for keys where it is neither the default nor a value.
    void refuse_null(std::initializer_list<std::string_view> keys) const;

    [[noreturn]] void refuse(std::string_view key, const std::string& wanted) const;
    // Returns the keys that passed because they say nothing, null apart, as "key" value; harmless ones are not among
    // them. They are unknown here: whether absence means the same is a guess, to be told.
    std::vector<std::string> refuse_unread(const KeySet& harmless) const;

  private:
    std::string where_, prefix_;
    const nlohmann::json& object_;
    KeySet read_;
};

}  // namespace slab::data
