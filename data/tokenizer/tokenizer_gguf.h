// The tokenizer that a GGUF file carries in its metadata, under tokenizer.ggml.* (format: github.com/ggml-org/ggml,
// docs/gguf.md; the names of pre-tokenizers are those that llama.cpp's converter writes).
//
// Read is tokenizer.ggml.model "gpt2", that is byte-level BPE, with the pre-tokenizers of GPT-2, Llama 3, Qwen2 and
// SmolLM; others are refused by name. Ids are those of the Hugging Face tokenizer that the file was made from; what
// such a file does not say (whether white space goes with a special token) is taken as no.
#pragma once

#include <memory>

#include "data/gguf/gguf.h"
#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// Nothing of `file` is kept. Throws std::runtime_error naming file and key.
std::unique_ptr<Tokenizer> open_tokenizer_gguf(const GgufFile& file);

}  // namespace slab::data
