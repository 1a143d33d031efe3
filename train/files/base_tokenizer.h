// The tokenizer that belongs to a base model.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Where the tokenizer of --base-model is: the .gguf file itself, a directory with a tokenizer.json (base_model's own,
// or the one its file of weights lies in), or "bytes" for a vocabulary of 260 without either. Empty when there is none.
std::filesystem::path base_tokenizer_path(const std::string& base_model, const ModelConfig& config);

// Throws std::runtime_error saying what is missing, or what data::open_tokenizer refuses. A vocabulary of another size
// than the model's is fine (either may be filled up); an id beyond the model's is found where it is used.
std::unique_ptr<data::Tokenizer> open_base_tokenizer(const std::string& base_model, const ModelConfig& config);

}  // namespace slab::train
