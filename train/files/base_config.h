// Where a base model's config is, and what it says.
#pragma once

#include <filesystem>

#include "train/spec/model_config.h"

namespace slab::train {

// Where config.json is: --base-model may also name a file of weights in its directory.
std::filesystem::path config_path(const std::filesystem::path& base_model);

// The config of --base-model: from a GGUF file's metadata, else from config.json.
ModelConfig read_base_config(const std::filesystem::path& base_model);

}  // namespace slab::train
