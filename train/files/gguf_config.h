// A GGUF file's metadata as a ModelConfig: architectures llama (which Mistral and SmolLM files have too), qwen2, qwen3
// and gpt2. Names and meanings are those of ggml's docs/gguf.md and llama.cpp's conversion script.
//
// What metadata leaves open is read off the tensors: biases, a tied head (no output.weight), the vocabulary's size.
// Llama 3's rotary scaling is there only as a tensor of factors, from which its parameters are found again. As with
// config.json, whatever could change a result and is not implemented is refused by name.
#pragma once

#include "data/gguf/gguf.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Throws std::runtime_error naming file, key or tensor, value and what is wanted. Every layer that the result speaks of
// has a tensor in the file, so what is made from it is of the file's order of size.
ModelConfig read_gguf_config(const data::GgufFile& file);

// rope_freqs.weight, by which frequencies are divided; read by read_gguf_config, part of no table.
inline constexpr const char* kRotaryFactorsTensor = "rope_freqs.weight";

}  // namespace slab::train
