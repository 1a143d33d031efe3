// The files are small and read apart from the vocabulary's.
#include "data/tokenizer/chat_files.h"

#include <system_error>

#include "data/base/error.h"
#include "data/base/input_file.h"
#include "data/base/json_file.h"

namespace slab::data {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

[[noreturn]] void fail(const fs::path& path, const json& value) {
    throw UserError({.subject = path.string(),
                     .given = "\"chat_template\" is " + shown(value),
                     .wanted = "a text, or a list of {\"name\": \"...\", \"template\": \"...\"}"});
}

void add_named(ChatFiles& files, const std::string& name, const std::string& text) {
    files.names.push_back(name);
    if (name == "default") files.standard = text;
    if (name == "tool_use") files.tool_use = text;
}

// Takes the templates of a JSON file, unless another file's count.
void read_templates(const fs::path& path, const json& config, ChatFiles& files) {
    if (!files.from.empty() || !config.is_object() || !config.contains("chat_template")) return;
    const json& value = config["chat_template"];
    if (value.is_null() || value == "") return;
    if (value.is_string()) {
        files.standard = value.get<std::string>();
    } else if (value.is_object()) {
        for (const auto& [name, text] : value.items()) {
            if (!text.is_string()) fail(path, value);
            add_named(files, name, text.get<std::string>());
        }
    } else {
        if (!value.is_array()) fail(path, value);
        for (const json& entry : value) {
            if (!entry.is_object() || !entry.value("name", json()).is_string() ||
                !entry.value("template", json()).is_string())
                fail(path, value);
            add_named(files, entry["name"].get<std::string>(), entry["template"].get<std::string>());
        }
    }
    files.from = path.string();
}

void read_special_tokens(const json& config, ChatFiles& files) {
    if (!config.is_object()) return;
    for (const std::string& name : special_token_names()) {
        const auto found = config.find(name);
        if (found == config.end()) continue;
        const json& value = found->is_object() ? found->value("content", json()) : *found;
        if (value.is_string()) files.special_tokens[name] = value.get<std::string>();
    }
}

std::string text_of(const fs::path& path) {
    return InputFile(path).read_all("a chat template", kMaxJsonBytes);
}

}  // namespace

const std::vector<std::string>& special_token_names() {
    static const std::vector<std::string> names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                   "pad_token", "cls_token", "mask_token"};
    return names;
}

ChatFiles read_chat_files(const fs::path& directory) {
    ChatFiles files;
    std::error_code error;
    if (const fs::path jinja = directory / "chat_template.jinja"; fs::exists(jinja, error)) {
        files.standard = text_of(jinja);
        files.from = jinja.string();
        const fs::path more = directory / "additional_chat_templates" / "tool_use.jinja";
        if (fs::exists(more, error)) files.tool_use = text_of(more);
    }
    bool lists_tokens = false;
    if (const fs::path path = directory / "tokenizer_config.json"; fs::exists(path, error)) {
        const json config = read_json_file(path);
        read_templates(path, config, files);
        read_special_tokens(config, files);
        lists_tokens = config.is_object() && config.contains("added_tokens_decoder");
    }
    // Where tokenizer_config.json lists all added tokens, transformers does not read the older file.
    if (const fs::path path = directory / "special_tokens_map.json"; !lists_tokens && fs::exists(path, error))
        read_special_tokens(read_json_file(path), files);
    if (const fs::path path = directory / "chat_template.json"; files.from.empty() && fs::exists(path, error))
        read_templates(path, read_json_file(path), files);
    return files;
}

}  // namespace slab::data
