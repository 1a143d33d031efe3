// Tensors of a model's files that transformers does not load, since the config says the same: a tied head's copy,
// rotary frequencies, causal masks.
//
// They are compared with what the config says before they are left out. transformers 5 does not tie a head that differs
// from the embeddings; version 4 does. Frequencies and masks of the files are used by neither.
#pragma once

#include <filesystem>

#include "train/spec/model_config.h"

namespace slab::train {

// Compares those of a directory or .safetensors file with `config`. A head of its own unties config.tied_head. Every
// difference becomes one of config.weight_notices. A GGUF file has none of them, and files without weights are left to
// those who read them. Throws UserError or IoError when a tensor cannot be read.
void settle_redundant_tensors(const std::filesystem::path& base, ModelConfig& config);

}  // namespace slab::train
