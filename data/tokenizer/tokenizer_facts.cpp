// One class collects the facts of all files; each step of transformers' order is a function.
#include "data/tokenizer/tokenizer_facts.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"

namespace slab::data {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr std::array kStandardKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};

bool is_standard(const std::string& key) {
    return std::find(kStandardKeys.begin(), kStandardKeys.end(), key) != kStandardKeys.end();
}

// A token as a file describes it, not yet with an id.
struct NamedToken {
    AddedToken token;
    JsonReader from;      // the file
    std::string key;      // that names it: "pad_token"
    bool is_text = true;  // and gives no flags
};

// A token by its text, or by an object with "content" and flags.
AddedToken token_of(const JsonReader& reader, const json& value, const char* key) {
    AddedToken token;
    token.special = true;
    if (value.is_string()) {
        token.text = value.get<std::string>();
        return token;
    }
    if (!value.is_object()) reader.fail_key(key, shown(value), "text");
    token.text = reader.text(value, "content");
    token.special = reader.flag(value, "special", true);
    token.normalized = reader.flag(value, "normalized", !token.special);
    token.lstrip = reader.flag(value, "lstrip", false);
    token.rstrip = reader.flag(value, "rstrip", false);
    if (reader.flag(value, "single_word", false)) reader.refuse("single_word of added token " + quote(token.text));
    return token;
}

bool same_flags(const AddedToken& a, const AddedToken& b) {
    return a.special == b.special && a.normalized == b.normalized && a.lstrip == b.lstrip && a.rstrip == b.rstrip;
}

std::string text_of(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.is_object() ? value.value("content", "") : "";
}

class Facts {
  public:
    Facts(const JsonReader& reader, const json& document, BpeTokenizerParts& parts)
        : reader_(reader), document_(document), parts_(parts), directory_(fs::path(reader.path).parent_path()) {
        read("tokenizer_config.json", config_);
        read("special_tokens_map.json", map_);
        has_decoder_ =
            config_.content.contains("added_tokens_decoder") && !config_.content["added_tokens_decoder"].is_null();
        for (const AddedToken& token : parts_.added) next_id_ = std::max(next_id_, token.id + 1);
        const auto& spellings = parts_.vocabulary.spellings;
        const auto filled = std::count_if(spellings.begin(), spellings.end(), [](const auto& s) { return !s.empty(); });
        next_id_ = std::max(next_id_, static_cast<uint32_t>(filled));
    }

    void collect() {
        refuse_settings();
        name_tokens();
        if (has_decoder_)
            add_decoder();
        else
            add_added_tokens_file();
        for (const NamedToken& named : named_) add_named(named);
        settle(parts_.bos, "bos_token");
        settle(parts_.eos, "eos_token");
        if (!parts_.eos) read_model_end();
        read_post_processor();
    }

  private:
    struct File {
        JsonReader reader;
        json content = json::object();
    };

    void read(const char* name, File& file) {
        std::error_code error;
        const fs::path path = directory_ / name;
        file.reader.path = path.string();
        if (!fs::exists(path, error)) return;
        file.content = read_json_file(path);
        if (!file.content.is_object()) file.reader.fail("found " + shown(file.content), "an object of keys");
    }

    void note(const std::string& text) { parts_.notes.push_back(text); }

    void refuse_settings() const {
        const JsonReader& reader = config_.reader;
        if (reader.flag(config_.content, "add_prefix_space", false))
            reader.fail("\"add_prefix_space\" is true", "false: a space before each text is not implemented");
        if (reader.flag(config_.content, "split_special_tokens", false))
            reader.fail("\"split_special_tokens\" is true", "false: special tokens are never split here");
    }

    // The value that counts, and its file: special_tokens_map.json's unless there is an added_tokens_decoder.
    std::pair<const File*, const json*> value_of(const std::string& key) {
        const auto find = [&](const File& file) {
            const auto found = file.content.find(key);
            return found == file.content.end() || found->is_null() ? nullptr : &*found;
        };
        const json *in_config = find(config_), *in_map = find(map_);
        const bool map_counts = in_map && !has_decoder_;
        if (in_config && in_map && text_of(*in_config) != text_of(*in_map) && is_standard(key))
            note("\"" + key + "\" is " + quote(text_of(*in_config)) + " in tokenizer_config.json and " +
                 quote(text_of(*in_map)) + " in special_tokens_map.json; as in transformers the " +
                 (map_counts ? "second" : "first") + " counts");
        if (map_counts) return {&map_, in_map};
        return {&config_, in_config};
    }

    void name(const File& file, const std::string& key, const json& value) {
        named_.push_back({token_of(file.reader, value, key.c_str()), file.reader, key, value.is_string()});
    }

    // All tokens that keys name, in transformers' order.
    void name_tokens() {
        for (const char* key : kStandardKeys)
            if (const auto [file, value] = value_of(key); value) name(*file, key, *value);
        std::set<std::string> others;  // "image_token" of a model's own
        for (const File* file : {&config_, &map_})
            for (const auto& [key, value] : file->content.items())
                if (key.ends_with("_token") && !is_standard(key) && (value.is_string() || value.contains("__type")))
                    others.insert(key);
        for (const std::string& key : others)
            if (const auto [file, value] = value_of(key); value) name(*file, key, *value);
        for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
            for (const File* file : {&config_, &map_}) {
                const json& list = file->reader.value(file->content, key);
                if (list.is_null() || (file == &map_ && has_decoder_)) continue;
                if (!list.is_array() && !list.is_object()) file->reader.fail_key(key, shown(list), "a list of tokens");
                for (const json& value : list) name(*file, key, value);
            }
    }

    AddedToken* find_added(const std::string& text) {
        for (AddedToken& token : parts_.added)
            if (token.text == text) return &token;
        return nullptr;
    }

    // Gives the token its id and adds it.
    uint32_t add(AddedToken token) {
        const auto known = id_of_spelling(parts_, token.text);
        token.id = known ? *known : next_id_++;
        parts_.added.push_back(token);
        return token.id;
    }

    // A token that a file gives an id. replaces: its flags count, and not those of tokenizer.json.
    void add_with_id(const File& file, uint32_t id, const AddedToken& token, bool replaces) {
        if (token.text.empty()) return;
        uint32_t got = 0;
        if (AddedToken* known = find_added(token.text)) {
            got = known->id;
            if (replaces && !same_flags(*known, token)) {
                note("added token " + quote(token.text) + " has other flags in " +
                     fs::path(file.reader.path).filename().string() +
                     " than in tokenizer.json; as in transformers the former count");
                known->special = token.special;
                known->normalized = token.normalized;
                known->lstrip = token.lstrip;
                known->rstrip = token.rstrip;
            }
        } else {
            got = add(token);
        }
        if (got != id)
            file.reader.fail("the added token " + quote(token.text) + " has the id " + std::to_string(id) +
                                 " there, and transformers gives it " + std::to_string(got),
                             "the id that " + parts_.source + " leads to");
    }

    void add_decoder() {
        const JsonReader& reader = config_.reader;
        const json& decoder = config_.content["added_tokens_decoder"];
        if (!decoder.is_object())
            reader.fail_key("added_tokens_decoder", shown(decoder), "an object of ids and tokens");
        std::map<uint32_t, AddedToken> tokens;
        for (const auto& [text, value] : decoder.items()) {
            const bool number = !text.empty() && text.size() < 10 &&
                                std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
            if (!number || !value.is_object())
                reader.fail("\"added_tokens_decoder\" has " + quote(text) + ": " + shown(value),
                            "an id and an object with \"content\"");
            AddedToken token = token_of(reader, value, "added_tokens_decoder");
            token.special = reader.flag(value, "special", false);
            token.normalized = reader.flag(value, "normalized", !token.special);
            tokens[static_cast<uint32_t>(std::stoul(text))] = token;
        }
        for (const auto& [id, token] : tokens) add_with_id(config_, id, token, true);
        note_unused_file(tokens.size());
    }

    // added_tokens.json beside an added_tokens_decoder is not read by transformers.
    void note_unused_file(size_t) {
        File file;
        read("added_tokens.json", file);
        for (const auto& [text, id] : file.content.items())
            if (!id_of_spelling(parts_, text)) {
                note("added_tokens.json names " + quote(text) +
                     ", which tokenizer.json and added_tokens_decoder do not; as in transformers it is no token");
                return;
            }
    }

    void add_added_tokens_file() {
        File file;
        read("added_tokens.json", file);
        std::map<uint32_t, AddedToken> tokens;
        for (const auto& [text, id] : file.content.items()) {
            AddedToken token;
            token.text = text;
            const auto is_it = [&, &text = text](const NamedToken& named) { return named.token.text == text; };
            token.special = std::any_of(named_.begin(), named_.end(), is_it);
            token.normalized = !token.special;
            tokens[file.reader.id(id, "added token " + quote(text))] = token;
        }
        for (const auto& [id, token] : tokens) add_with_id(file, id, token, false);
    }

    // A token that a key names becomes a special one, unless it is an added one already.
    void add_named(const NamedToken& named) {
        if (named.token.text.empty() || find_added(named.token.text)) return;
        const bool needed = named.key == "bos_token" || named.key == "eos_token";
        if (needed && !id_of_spelling(parts_, named.token.text))
            named.from.fail_key(named.key.c_str(), quote(named.token.text), "a token of " + parts_.source);
        AddedToken token = named.token;
        token.special = true;
        if (named.is_text) token.normalized = false;
        add(token);
    }

    void settle(std::optional<uint32_t>& token, const std::string& key) {
        for (const NamedToken& named : named_)
            if (named.key == key && !token) token = id_of_spelling(parts_, named.token.text);
    }

    // Of a list the first entry counts, which is the end of text in published models. These files describe more than
    // tokens, so a value that is no id of the vocabulary counts as none.
    void read_model_end() {
        for (const char* name : {"config.json", "generation_config.json"}) {
            File file;
            read(name, file);
            if (parts_.eos) return;
            const json value = file.reader.value(file.content, "eos_token_id");
            const json& first = value.is_array() && !value.empty() ? value.front() : value;
            if (!first.is_number_unsigned()) continue;
            const auto id = first.get<uint64_t>();
            const auto same_id = [&](const AddedToken& token) { return token.id == id; };
            const bool is_added = std::any_of(parts_.added.begin(), parts_.added.end(), same_id);
            const auto& spellings = parts_.vocabulary.spellings;
            if (!is_added && (id >= spellings.size() || spellings[id].empty())) continue;
            parts_.eos = static_cast<uint32_t>(id);
            parts_.eos_from = name;
            if (!is_added) parts_.added.push_back({.text = spellings[id], .id = *parts_.eos, .special = true});
        }
    }

    // The one template of the post-processor, or null.
    const json& template_of(const json& processor) const {
        static const json none;
        if (processor.is_null()) return none;
        const std::string& type = reader_.text(processor, "type");
        if (type == "TemplateProcessing") return processor;
        if (type == "ByteLevel") return none;
        if (type != "Sequence") reader_.refuse("post-processor " + quote(type));
        for (const json& step : reader_.list(processor, "processors"))
            if (const json& found = template_of(step); !found.is_null()) return found;
        return none;
    }

    // The id of a special token of the template: what its own table says, which must be the token's.
    uint32_t id_in_template(const json& processor, const std::string& text) const {
        const auto id = id_of_spelling(parts_, text);
        if (!id) reader_.fail("the post-processor adds " + quote(text) + ", which is no token", "");
        const json& table = reader_.value(processor, "special_tokens");
        const json& entry = table.is_object() ? reader_.value(table, text.c_str()) : table;
        const json& ids = entry.is_object() ? reader_.value(entry, "ids") : entry;
        if (!ids.is_null() && ids != json::array({*id}))
            reader_.fail("the post-processor gives " + quote(text) + " the ids " + shown(ids),
                         "its id, " + std::to_string(*id));
        return *id;
    }

    // A text is surrounded by one token at most on each side: the beginning's, and the end's, which ends every text
    // here.
    void read_post_processor() {
        const json& processor = template_of(reader_.value(document_, "post_processor"));
        const json& adds = reader_.value(config_.content, "add_bos_token");
        std::vector<std::string> before, after;
        size_t texts = 0;
        if (!processor.is_null())
            for (const json& piece : reader_.list(processor, "single")) {
                const json& special = reader_.value(piece, "SpecialToken");
                texts += special.is_null();
                if (!special.is_null()) (texts ? after : before).push_back(reader_.text(special, "id"));
            }
        if (!processor.is_null() && (texts != 1 || before.size() > 1 || after.size() > 1))
            reader_.refuse("post-processor " + shown(reader_.value(processor, "single")));
        if (!before.empty()) {
            const uint32_t first = id_in_template(processor, before[0]);
            if (parts_.bos && *parts_.bos != first)
                reader_.fail("the post-processor puts " + quote(before[0]) + " before a text, and bos_token is another",
                             "one token for both");
            parts_.bos = first;
        }
        if (!after.empty() && parts_.eos != std::optional(id_in_template(processor, after[0])))
            reader_.fail("the post-processor puts " + quote(after[0]) + " after a text, and eos_token is another",
                         "one token for both");
        parts_.adds_bos = !before.empty();
        if (adds.is_boolean() && adds.get<bool>() != parts_.adds_bos && (parts_.bos || parts_.adds_bos))
            note(std::string("tokenizer_config.json says add_bos_token ") + (adds.get<bool>() ? "true" : "false") +
                 ", and tokenizer.json puts " + (parts_.adds_bos ? "a token" : "nothing") +
                 " before a text; as in transformers 5 the latter counts");
    }

    const JsonReader& reader_;
    const json& document_;
    BpeTokenizerParts& parts_;
    fs::path directory_;
    File config_, map_;
    bool has_decoder_ = false;
    uint32_t next_id_ = 0;
    std::vector<NamedToken> named_;
};

}  // namespace

std::optional<uint32_t> id_of_spelling(const BpeTokenizerParts& parts, const std::string& text) {
    for (const AddedToken& token : parts.added)
        if (token.text == text) return token.id;
    const auto& spellings = parts.vocabulary.spellings;
    const auto found = std::find(spellings.begin(), spellings.end(), text);
    if (text.empty() || found == spellings.end()) return {};
    return static_cast<uint32_t>(found - spellings.begin());
}

void read_tokenizer_facts(const JsonReader& reader, const json& document, BpeTokenizerParts& parts) {
    Facts(reader, document, parts).collect();
}

}  // namespace slab::data
