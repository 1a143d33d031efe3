// Reads config.json, as transformers 4 and 5 write it, into a ModelConfig.
//
// An absent key has its family's default in transformers. A key that could change a result and is not implemented is
// refused by name: a model trained with a slightly different attention looks healthy and is wrong.
#pragma once

#include <filesystem>

#include "train/spec/model_config.h"

namespace slab::train {

// Throws UserError naming file, key, value and what is wanted; IoError when the file cannot be read.
ModelConfig read_model_config(const std::filesystem::path& config_json);

}  // namespace slab::train
