// What a model's files say about conversations: chat templates in Jinja's language, and the tokens that they name.
//
// As in transformers, chat_template.jinja counts before "chat_template" of tokenizer_config.json. The latter is a text,
// a list of {"name", "template"}, or an object of names. chat_template.json, of older multi-modal models, counts last.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace slab::data {

struct ChatFiles {
    std::string from = {};                // the file with the templates, for errors; "" without a template
    std::string standard = {};            // the template; "" for none
    std::string tool_use = {};            // the one for conversations with tools; "": the standard one
    std::vector<std::string> names = {};  // of all templates, where they have names
    std::map<std::string, std::string> special_tokens = {};  // "bos_token" -> "<s>", as templates name them
};

// Throws UserError naming a file whose keys have another form.
ChatFiles read_chat_files(const std::filesystem::path& directory);

// The names by which templates know special tokens: "bos_token", "eos_token", ...
const std::vector<std::string>& special_token_names();

}  // namespace slab::data
