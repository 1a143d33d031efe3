// Reads a GGUF file's metadata into a ModelConfig: architectures llama (also of Mistral and SmolLM files), qwen2, qwen3
// and gpt2. Names and meanings are those of ggml's docs/gguf.md and llama.cpp's conversion script.
//
// The tensors tell what metadata leave open: biases, a tied head (no output.weight), the vocabulary's size. Llama 3's
// rotary scaling is stored only as a tensor of factors, from which its parameters are recovered. As with config.json, a
// key that could change a result and is not implemented is refused by name.
#pragma once

#include "data/gguf/gguf.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Throws UserError naming file, key or tensor, value and what is wanted. Every layer of the result has a tensor in the
// file, so structures made from it are no larger than the file suggests.
ModelConfig read_gguf_config(const data::GgufFile& file);

// The tensor of factors that divide the rotary frequencies. read_gguf_config reads it; it is in no table of weights.
inline constexpr const char* kRotaryFactorsTensor = "rope_freqs.weight";

}  // namespace slab::train
