// config.json as transformers 4 and 5 write it, read into a ModelConfig.
//
// An absent key takes its family's default there. Whatever could change a result and is not implemented here is refused
// by name: a model trained with a slightly different attention looks healthy and is wrong.
#pragma once

#include <filesystem>

#include "train/spec/model_config.h"

namespace slab::train {

// Throws std::runtime_error naming file, key, value and what is wanted.
ModelConfig read_model_config(const std::filesystem::path& config_json);

}  // namespace slab::train
