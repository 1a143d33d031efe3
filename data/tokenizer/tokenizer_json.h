// tokenizer.json, the file of Hugging Face's `tokenizers` (format: huggingface.co/docs/tokenizers; checked against
// version 0.23). Beside it tokenizer_config.json, special_tokens_map.json and chat_template.jinja are read. Where those
// name no end of text, config.json's counts.
//
// It reads byte-level BPE as in GPT-2, Llama 3, Qwen2 and SmolLM. Anything else that would change an id is refused by
// name: another kind of model, normalizer or pre-tokenizer, byte_fallback, dropout, single_word.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Throws UserError naming the file and the part that is wrong or not implemented.
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::filesystem::path& path);

}  // namespace slab::data
