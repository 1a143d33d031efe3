// Reads the values of a tokenizer's JSON files. Every error names the file.
#pragma once

#include <cstdint>
#include <string>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"

namespace slab::data {

// Reads one file's JSON. Errors name the file.
struct JsonReader {
    std::string path;

    [[noreturn]] void fail(const std::string& given, const std::string& wanted, const std::string& hint = "") const {
        throw UserError({.subject = path, .given = given, .wanted = wanted, .hint = hint});
    }
    [[noreturn]] void fail_key(const char* key, const std::string& given, const std::string& wanted) const {
        fail("\"" + std::string(key) + "\" is " + given, wanted);
    }
    [[noreturn]] void refuse(const std::string& what) const {
        fail(what + " is not implemented",
             "byte-level BPE with the pre-tokenizer of GPT-2, Llama 3, Qwen2 or SmolLM, or SentencePiece's BPE",
             "make token files with the model's own tokenizer, in llm.c's format");
    }
    const nlohmann::json& value(const nlohmann::json& object, const char* key) const {
        if (!object.is_object()) fail("found " + shown(object), "an object with the key \"" + std::string(key) + "\"");
        const auto found = object.find(key);
        static const nlohmann::json null_value;
        return found == object.end() ? null_value : *found;
    }
    const std::string& text(const nlohmann::json& object, const char* key) const {
        const nlohmann::json& found = value(object, key);
        if (!found.is_string()) fail_key(key, shown(found), "text");
        return found.get_ref<const std::string&>();
    }
    bool flag(const nlohmann::json& object, const char* key, bool fallback) const {
        const nlohmann::json& found = value(object, key);
        if (found.is_null()) return fallback;
        if (!found.is_boolean()) fail_key(key, shown(found), "true or false");
        return found.get<bool>();
    }
    const nlohmann::json& list(const nlohmann::json& object, const char* key) const {
        const nlohmann::json& found = value(object, key);
        if (!found.is_array()) fail_key(key, shown(found), "a list");
        return found;
    }
    uint32_t id(const nlohmann::json& found, const std::string& whose) const {
        if (!found.is_number_unsigned() || found.get<uint64_t>() > UINT32_MAX - 1)
            fail("the id of " + whose + " is " + shown(found), "a whole number of 0 or more, in 32 bits");
        return found.get<uint32_t>();
    }
};

}  // namespace slab::data
