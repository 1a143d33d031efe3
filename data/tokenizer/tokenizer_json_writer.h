// A GGUF file's tokenizer as the files that transformers reads: tokenizer.json and tokenizer_config.json.
//
// The ids are those of the GGUF file: its vocabulary, merges, added tokens, pre-tokenizer and beginning of a text. The
// chat template is its own.
#pragma once

#include <string>

#include "data/gguf/gguf.h"

namespace slab::data {

// Whether a tokenizer of the file's kind can be written: byte-level BPE. Others need files of the model's own.
bool has_writable_tokenizer(const GgufFile& file);

// Each throws UserError where open_tokenizer_gguf() does.
std::string tokenizer_json_of(const GgufFile& file);
std::string tokenizer_config_json_of(const GgufFile& file);

}  // namespace slab::data
