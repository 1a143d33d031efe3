// What the files around tokenizer.json say about tokens: which are added, which begin and end a text.
//
// Five files may say it: tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, and the
// model's config.json and generation_config.json. They are read in the order of transformers 5 (5.24, the class of
// PreTrainedTokenizerFast):
//   1. tokenizer.json's added tokens and what its post-processor puts around a text; add_bos_token does not count;
//   2. tokenizer_config.json: added_tokens_decoder, tokens named by "..._token" keys, additional_special_tokens and
//      extra_special_tokens;
//   3. only without added_tokens_decoder: special_tokens_map.json, which then overrides tokenizer_config.json, and
//      added_tokens.json;
//   4. for the end of text alone, where none of them names it: eos_token_id of config.json, generation_config.json.
// A token that tokenizer.json lacks gets the next free id, in the order of the ids that the files give.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/json_reader.h"

namespace slab::data {

// Adds tokens to parts.added and sets bos, eos, eos_from, adds_bos and notes. parts has tokenizer.json's vocabulary and
// added tokens. reader and document: tokenizer.json. Contradictions that transformers settles become parts.notes.
// Throws UserError where the ids would differ from those that a file gives, and for settings that are not implemented.
void read_tokenizer_facts(const JsonReader& reader, const nlohmann::json& document, BpeTokenizerParts& parts);

// The id of an added token or one of the vocabulary.
std::optional<uint32_t> id_of_spelling(const BpeTokenizerParts& parts, const std::string& text);

}  // namespace slab::data
