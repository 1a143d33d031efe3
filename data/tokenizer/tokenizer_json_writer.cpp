// The pieces of tokenizer.json in the order in which text passes through them.
#include "data/tokenizer/tokenizer_json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_gguf.h"

namespace slab::data {
namespace {

using nlohmann::ordered_json;

ordered_json byte_level(bool with_regex) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", with_regex}};
}

ordered_json sequence(const char* of, const ordered_json& first, const ordered_json& second) {
    return {{"type", "Sequence"}, {of, ordered_json::array({first, second})}};
}

ordered_json pre_tokenizer_json(PreTokenizerKind kind) {
    if (kind == PreTokenizerKind::gpt2) return byte_level(true);
    if (kind == PreTokenizerKind::smollm)
        return sequence("pretokenizers", {{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
    ordered_json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
    split["pattern"]["Regex"] = pattern_in_json(kind);
    return sequence("pretokenizers", split, byte_level(false));
}

ordered_json added_token_json(const AddedToken& token) {
    return {{"id", token.id},          {"content", token.text},  {"single_word", false},
            {"lstrip", token.lstrip},  {"rstrip", token.rstrip}, {"normalized", token.normalized},
            {"special", token.special}};
}

// Puts the beginning's token before a text.
ordered_json post_processor_json(const BpeTokenizerParts& parts) {
    if (!parts.adds_bos) return nullptr;
    const std::string& bos = parts.vocabulary.spellings.at(*parts.bos);
    const auto special = [&](int type) { return ordered_json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
    const auto text = [](const char* id, int type) {
        return ordered_json{{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    ordered_json single = {{"type", "TemplateProcessing"}};
    single["single"] = ordered_json::array({special(0), text("A", 0)});
    single["pair"] = ordered_json::array({special(0), text("A", 0), special(1), text("B", 1)});
    single["special_tokens"][bos] = {
        {"id", bos}, {"ids", ordered_json::array({*parts.bos})}, {"tokens", ordered_json::array({bos})}};
    return sequence("processors", byte_level(true), single);
}

// The text of the token that a key of the file names, or nothing.
std::optional<std::string> named(const GgufFile& file, const char* key) {
    const auto* tokens = file.texts("tokenizer.ggml.tokens");
    if (!file.has(key) || tokens == nullptr) return {};
    const int64_t id = file.integer(key);
    if (id < 0 || static_cast<size_t>(id) >= tokens->size()) return {};
    return (*tokens)[static_cast<size_t>(id)];
}

// A token that is named becomes a special one, so an ordinary one must not be.
bool is_added(const BpeTokenizerParts& parts, const std::string& text) {
    return std::any_of(parts.added.begin(), parts.added.end(),
                       [&](const AddedToken& token) { return token.text == text; });
}

std::string dump(const ordered_json& json) {
    return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

bool has_writable_tokenizer(const GgufFile& file) {
    return file.text("tokenizer.ggml.model", "none") == "gpt2" && file.has("tokenizer.ggml.merges");
}

std::string tokenizer_json_of(const GgufFile& file) {
    const BpeTokenizerParts parts = read_gguf_parts(file);
    ordered_json out = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    out["added_tokens"] = ordered_json::array();
    for (const AddedToken& token : parts.added) out["added_tokens"].push_back(added_token_json(token));
    out["normalizer"] = parts.nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
    out["pre_tokenizer"] = pre_tokenizer_json(parts.pre_tokenizer);
    out["post_processor"] = post_processor_json(parts);
    out["decoder"] = byte_level(true);
    ordered_json& model = out["model"];
    model = {{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr},
             {"fuse_unk", false},
             {"byte_fallback", false},
             {"ignore_merges", parts.vocabulary.ignore_merges}};
    ordered_json vocabulary = ordered_json::object();
    auto& entries = vocabulary.get_ref<ordered_json::object_t&>();
    const auto& spellings = parts.vocabulary.spellings;
    entries.reserve(spellings.size());
    for (size_t id = 0; id < spellings.size(); ++id)
        if (!spellings[id].empty()) entries.emplace_back(spellings[id], id);
    model["vocab"] = std::move(vocabulary);
    model["merges"] = ordered_json::array();
    for (const auto& [left, right] : parts.vocabulary.merges)
        model["merges"].push_back(ordered_json::array({std::string(left), std::string(right)}));
    return dump(out);
}

std::string tokenizer_config_json_of(const GgufFile& file) {
    const BpeTokenizerParts parts = read_gguf_parts(file);
    ordered_json out = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [key, id] : {std::pair{"bos_token", "tokenizer.ggml.bos_token_id"},
                                  {"eos_token", "tokenizer.ggml.eos_token_id"},
                                  {"pad_token", "tokenizer.ggml.padding_token_id"},
                                  {"unk_token", "tokenizer.ggml.unknown_token_id"}})
        if (const auto text = named(file, id); text && is_added(parts, *text)) out[key] = *text;
    if (const std::string arch = file.text("general.architecture", ""); file.has(arch + ".context_length"))
        out["model_max_length"] = file.integer(arch + ".context_length");
    if (const std::string jinja = file.text("tokenizer.chat_template", ""); !jinja.empty())
        out["chat_template"] = jinja;
    return dump(out);
}

}  // namespace slab::data
