// One function reads each part of the file, in the order in which text passes through the parts. A missing key has the
// default that `tokenizers` gives it.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/chat_files.h"

namespace slab::data {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

const json null_value;

// Reads one file's JSON. Errors name the file.
struct Reader {
    std::string path;

    [[noreturn]] void fail(const std::string& given, const std::string& wanted, const std::string& hint = "") const {
        throw UserError({.subject = path, .given = given, .wanted = wanted, .hint = hint});
    }
    [[noreturn]] void fail_key(const char* key, const std::string& given, const std::string& wanted) const {
        fail("\"" + std::string(key) + "\" is " + given, wanted);
    }
    [[noreturn]] void refuse(const std::string& what) const {
        fail(what + " is not implemented", "byte-level BPE with the pre-tokenizer of GPT-2, Llama 3, Qwen2 or SmolLM",
             "make token files with the model's own tokenizer, in llm.c's format");
    }
    const json& value(const json& object, const char* key) const {
        if (!object.is_object()) fail("found " + shown(object), "an object with the key \"" + std::string(key) + "\"");
        const auto found = object.find(key);
        return found == object.end() ? null_value : *found;
    }
    const std::string& text(const json& object, const char* key) const {
        const json& found = value(object, key);
        if (!found.is_string()) fail_key(key, shown(found), "text");
        return found.get_ref<const std::string&>();
    }
    bool flag(const json& object, const char* key, bool fallback) const {
        const json& found = value(object, key);
        if (found.is_null()) return fallback;
        if (!found.is_boolean()) fail_key(key, shown(found), "true or false");
        return found.get<bool>();
    }
    const json& list(const json& object, const char* key) const {
        const json& found = value(object, key);
        if (!found.is_array()) fail_key(key, shown(found), "a list");
        return found;
    }
    uint32_t id(const json& found, const std::string& whose) const {
        if (!found.is_number_unsigned() || found.get<uint64_t>() > UINT32_MAX - 1)
            fail("the id of " + whose + " is " + shown(found), "a whole number of 0 or more, in 32 bits");
        return found.get<uint32_t>();
    }
};

// Ids may have gaps, but a list by id must not be far longer than the file.
void check_largest_id(const Reader& reader, uint64_t largest, size_t tokens) {
    if (largest >= 4 * tokens + 1024)
        reader.fail(
            "has a token with the id " + std::to_string(largest) + " but only " + std::to_string(tokens) + " tokens",
            "ids nearly without gaps");
}

// The merges are views into `model`, which must outlive them.
void read_model(const Reader& reader, const json& model, BpeVocabulary& out) {
    const json& type = reader.value(model, "type");
    if (type != "BPE" && !(type.is_null() && model.contains("merges"))) reader.refuse("model of type " + shown(type));
    if (const json& dropout = reader.value(model, "dropout"); !dropout.is_null() && dropout != 0)
        reader.refuse("dropout of merges (" + shown(dropout) + ")");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (const json& affix = reader.value(model, key); !affix.is_null() && affix != "")
            reader.refuse(std::string(key) + " (" + shown(affix) + ")");
    if (reader.flag(model, "byte_fallback", false)) reader.refuse("byte_fallback, as in SentencePiece vocabularies,");
    out.ignore_merges = reader.flag(model, "ignore_merges", false);
    out.fuse_unknown = reader.flag(model, "fuse_unk", false);

    const json& vocabulary = reader.value(model, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty())
        reader.fail_key("vocab", shown(vocabulary), "an object of tokens and ids");
    uint32_t largest = 0;
    for (const auto& [spelling, id] : vocabulary.items())
        largest = std::max(largest, reader.id(id, "token " + quote(spelling)));
    check_largest_id(reader, largest, vocabulary.size());
    out.spellings.resize(size_t{largest} + 1);
    for (const auto& [spelling, id] : vocabulary.items()) {
        std::string& place = out.spellings[id.get<uint32_t>()];
        if (!place.empty())
            reader.fail("the tokens " + quote(place) + " and " + quote(spelling) + " have the same id " + shown(id),
                        "one id for each");
        place = spelling;
    }

    const json& merges = reader.list(model, "merges");
    out.merges.reserve(merges.size());
    for (const json& merge : merges) {
        // Either "a b" or ["a", "b"], which allows a space in a part.
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            out.merges.emplace_back(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
            continue;
        }
        const auto halves = merge.is_string() ? split_merge(merge.get_ref<const std::string&>()) : std::nullopt;
        if (!halves)
            reader.fail("merge " + std::to_string(out.merges.size()) + " is " + shown(merge),
                        "\"a b\" or [\"a\", \"b\"]");
        out.merges.push_back(*halves);
    }

    if (const json& unknown = reader.value(model, "unk_token"); !unknown.is_null()) {
        const json& id = reader.value(vocabulary, reader.text(model, "unk_token").c_str());
        if (!id.is_null()) out.unknown = id.get<uint32_t>();
    }
}

bool read_normalizer(const Reader& reader, const json& normalizer) {
    if (normalizer.is_null()) return false;
    const std::string& type = reader.text(normalizer, "type");
    if (type == "NFC") return true;
    if (type != "Sequence") reader.refuse("normalizer " + quote(type));
    bool nfc = false;
    for (const json& step : reader.list(normalizer, "normalizers")) nfc |= read_normalizer(reader, step);
    return nfc;
}

void flatten(const Reader& reader, const json& step, std::vector<const json*>& steps) {
    if (reader.text(step, "type") != "Sequence") {
        steps.push_back(&step);
        return;
    }
    for (const json& inner : reader.list(step, "pretokenizers")) flatten(reader, inner, steps);
}

PreTokenizerKind read_pre_tokenizer(const Reader& reader, const json& pre_tokenizer) {
    if (pre_tokenizer.is_null()) reader.refuse("a BPE without pre-tokenizer");
    std::vector<const json*> steps;
    flatten(reader, pre_tokenizer, steps);
    if (steps.empty() || reader.text(*steps.back(), "type") != "ByteLevel" || steps.size() > 2)
        reader.refuse("pre-tokenizer " + shown(pre_tokenizer));
    if (reader.flag(*steps.back(), "add_prefix_space", true)) reader.refuse("add_prefix_space");
    const bool gpt2 = reader.flag(*steps.back(), "use_regex", true);
    if (steps.size() == 1 && gpt2) return PreTokenizerKind::gpt2;
    if (steps.size() == 1) reader.refuse("ByteLevel without a regular expression");

    const json& first = *steps.front();
    const std::string& type = reader.text(first, "type");
    if (type == "Digits" && gpt2 && reader.flag(first, "individual_digits", false)) return PreTokenizerKind::smollm;
    if (type == "Split" && !gpt2 && reader.value(first, "behavior") == "Isolated" &&
        !reader.flag(first, "invert", false)) {
        const json& pattern = reader.value(reader.value(first, "pattern"), "Regex");
        const auto kind = pattern.is_string() ? kind_of_pattern(pattern.get_ref<const std::string&>()) : std::nullopt;
        if (kind) return *kind;
    }
    reader.refuse("pre-tokenizer " + first.dump(-1, ' ', true));
}

std::vector<AddedToken> read_added(const Reader& reader, const json& document, const BpeVocabulary& vocabulary) {
    std::vector<AddedToken> tokens;
    const json& list = reader.value(document, "added_tokens");
    if (list.is_null()) return tokens;
    if (!list.is_array()) reader.fail_key("added_tokens", shown(list), "a list");
    for (const json& entry : list) {
        AddedToken token;
        token.text = reader.text(entry, "content");
        token.id = reader.id(reader.value(entry, "id"), "added token " + quote(token.text));
        check_largest_id(reader, token.id, vocabulary.spellings.size() + list.size());
        token.special = reader.flag(entry, "special", false);
        token.normalized = reader.flag(entry, "normalized", !token.special);
        token.lstrip = reader.flag(entry, "lstrip", false);
        token.rstrip = reader.flag(entry, "rstrip", false);
        if (reader.flag(entry, "single_word", false)) reader.refuse("single_word of added token " + quote(token.text));
        if (token.id < vocabulary.spellings.size() && !vocabulary.spellings[token.id].empty() &&
            vocabulary.spellings[token.id] != token.text)
            reader.fail("the added token " + quote(token.text) + " and the token " +
                            quote(vocabulary.spellings[token.id]) + " have the same id " + std::to_string(token.id),
                        "one id for each");
        tokens.push_back(std::move(token));
    }
    return tokens;
}

// Refuses a decoder that does not decode as ByteLevel does.
void check_decoder(const Reader& reader, const json& decoder) {
    if (decoder.is_null()) return;
    const std::string& type = reader.text(decoder, "type");
    if (type == "ByteLevel") return;
    if (type != "Sequence") reader.refuse("decoder " + quote(type));
    for (const json& step : reader.list(decoder, "decoders")) check_decoder(reader, step);
}

// The special token, if any, that the post-processor puts before a text.
std::optional<std::string> first_of_template(const Reader& reader, const json& processor) {
    if (processor.is_null()) return {};
    const std::string& type = reader.text(processor, "type");
    if (type == "Sequence") {
        for (const json& step : reader.list(processor, "processors"))
            if (auto first = first_of_template(reader, step)) return first;
    }
    if (type != "TemplateProcessing") return {};
    const json& single = reader.list(processor, "single");
    if (single.empty()) return {};
    const json& special = reader.value(single.front(), "SpecialToken");
    if (special.is_null()) return {};
    return reader.text(special, "id");
}

std::optional<uint32_t> id_of_text(const BpeTokenizerParts& parts, const std::string& text) {
    for (const AddedToken& token : parts.added)
        if (token.text == text) return token.id;
    const auto& spellings = parts.vocabulary.spellings;
    const auto found = std::find(spellings.begin(), spellings.end(), text);
    if (text.empty() || found == spellings.end()) return {};
    return static_cast<uint32_t>(found - spellings.begin());
}

// The id of a token that a config file names, as text or as an object with "content". Nothing for null.
std::optional<uint32_t> named_token(const Reader& reader, const json& config, const char* key,
                                    BpeTokenizerParts& parts) {
    const json& value = reader.value(config, key);
    if (value.is_null()) return {};
    const std::string& text = value.is_object() ? reader.text(value, "content") : reader.text(config, key);
    const auto id = id_of_text(parts, text);
    if (!id) reader.fail_key(key, quote(text), "a token of " + parts.source);
    const auto same_id = [&](const AddedToken& token) { return token.id == *id; };
    if (std::none_of(parts.added.begin(), parts.added.end(), same_id))  // as in transformers it becomes a special token
        parts.added.push_back({.text = text, .id = *id, .special = true});
    return id;
}

// Reads the files beside tokenizer.json.
void read_neighbours(const fs::path& directory, BpeTokenizerParts& parts, std::optional<bool>& add_bos) {
    std::error_code error;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
        const fs::path path = directory / name;
        if (!fs::exists(path, error)) continue;
        const Reader reader{path.string()};
        const json config = read_json_file(path);
        if (!parts.bos) parts.bos = named_token(reader, config, "bos_token", parts);
        if (!parts.eos) parts.eos = named_token(reader, config, "eos_token", parts);
        if (reader.value(config, "add_bos_token").is_boolean()) add_bos = reader.flag(config, "add_bos_token", false);
    }
}

// Takes the end of text from the model's files where the tokenizer's own name none, as stock GPT-2's do. Of a list the
// first entry counts, which is the end of text in published models. These files describe more than tokens, so a value
// that is no id of the vocabulary counts as none.
void read_model_end(const fs::path& directory, BpeTokenizerParts& parts) {
    std::error_code error;
    for (const char* name : {"config.json", "generation_config.json"}) {
        const fs::path path = directory / name;
        if (parts.eos || !fs::exists(path, error)) continue;
        const json config = read_json_file(path);
        const json value = Reader{path.string()}.value(config, "eos_token_id");
        const json& first = value.is_array() && !value.empty() ? value.front() : value;
        if (!first.is_number_unsigned()) continue;
        const auto id = first.get<uint64_t>();
        const auto same_id = [&](const AddedToken& token) { return token.id == id; };
        const bool is_added = std::any_of(parts.added.begin(), parts.added.end(), same_id);
        const auto& spellings = parts.vocabulary.spellings;
        if (!is_added && (id >= spellings.size() || spellings[id].empty())) continue;
        parts.eos = static_cast<uint32_t>(id);
        parts.eos_from = name;
        if (!is_added)  // as above: a named token is a special one
            parts.added.push_back({.text = spellings[id], .id = *parts.eos, .special = true});
    }
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const fs::path& path) {
    const Reader reader{path.string()};
    const json document = read_json_file(path);
    BpeTokenizerParts parts;
    parts.source = path.string();
    read_model(reader, reader.value(document, "model"), parts.vocabulary);
    parts.nfc = read_normalizer(reader, reader.value(document, "normalizer"));
    parts.pre_tokenizer = read_pre_tokenizer(reader, reader.value(document, "pre_tokenizer"));
    parts.added = read_added(reader, document, parts.vocabulary);
    check_decoder(reader, reader.value(document, "decoder"));

    std::optional<bool> add_bos;
    read_neighbours(path.parent_path(), parts, add_bos);
    parts.chat = read_chat_files(path.parent_path());
    if (!parts.eos) read_model_end(path.parent_path(), parts);
    if (const auto first = first_of_template(reader, reader.value(document, "post_processor"))) {
        const auto id = id_of_text(parts, *first);
        if (!id) reader.fail("the post-processor puts " + quote(*first) + " first, which is no token", "");
        if (!parts.bos) parts.bos = id;
        parts.adds_bos = parts.bos == id;
    } else {
        parts.adds_bos = parts.bos && add_bos.value_or(false);
    }
    return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace slab::data
