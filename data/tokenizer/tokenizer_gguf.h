// The tokenizer in a GGUF file's metadata, under tokenizer.ggml.* (format: github.com/ggml-org/ggml, docs/gguf.md).
// llama.cpp's converter writes the names of the pre-tokenizers.
//
// It reads tokenizer.ggml.model "gpt2", which is byte-level BPE, with the pre-tokenizers of GPT-2, Llama 3, Qwen2 and
// SmolLM. Others are refused by name. Ids are those of the Hugging Face tokenizer that the file was made from. The
// format does not say whether a special token takes the white space beside it; here it does not.
#pragma once

#include <memory>

#include "data/gguf/gguf.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// What the file says. The merges are views into `file`. Throws UserError naming file and key.
BpeTokenizerParts read_gguf_parts(const GgufFile& file);
// Keeps no reference to `file`. Throws as above.
std::unique_ptr<Tokenizer> open_tokenizer_gguf(const GgufFile& file);

}  // namespace slab::data
