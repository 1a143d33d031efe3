// One function reads each part of the file, in the order in which text passes through the parts. A missing key has the
// default that `tokenizers` gives it.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "data/base/display.h"
#include "data/base/input_file.h"
#include "data/base/json_file.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/chat_files.h"
#include "data/tokenizer/json_reader.h"
#include "data/tokenizer/tokenizer_facts.h"

namespace slab::data {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

using Reader = JsonReader;

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

    read_tokenizer_facts(reader, document, parts);
    parts.chat = read_chat_files(path.parent_path());
    return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace slab::data
