// tokenizer.json, the file of Hugging Face's `tokenizers`, with what stands beside it in tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja, and the end of text of config.json where those name none (format:
// huggingface.co/docs/tokenizers; what is read of it here was checked against `tokenizers` 0.23).
//
// Read is byte-level BPE as GPT-2, Llama 3, Qwen2 and SmolLM have it. Whatever else would change an id is refused by
// name: another kind of model, normalizer or pre-tokenizer, byte_fallback, dropout, single_word.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Throws std::runtime_error naming the file and what in it is wrong or not implemented.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::filesystem::path& path);

}  // namespace slab::data
