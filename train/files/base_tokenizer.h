// The tokenizer that belongs to a base model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "train/spec/model_config.h"

namespace slab::train {

// The path of the tokenizer of --base-model. It is the .gguf file itself, or the directory of the weights if that has a
// tokenizer.json, else "bytes" for a vocabulary of 260. Empty when there is none.
std::filesystem::path base_tokenizer_path(const std::string& base_model, const ModelConfig& config);

// Throws UserError when there is none, or one that data::open_tokenizer refuses. Its vocabulary may differ in size from
// the model's, as either may be padded; an id beyond the model's is refused where it is used.
std::unique_ptr<data::Tokenizer> open_base_tokenizer(const std::string& base_model, const ModelConfig& config);

}  // namespace slab::train
