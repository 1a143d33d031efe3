// Finds and reads a base model's config.
#pragma once

#include <filesystem>

#include "train/spec/model_config.h"

namespace slab::train {

// The path of config.json. --base-model may also name a file of weights in its directory. Throws UserError naming the
// flag.
std::filesystem::path config_path(const std::filesystem::path& base_model);

enum class BaseFiles { config_only, config_and_weights };

// The config of --base-model: from a GGUF file's metadata, else from config.json. Where the weights are there, tensors
// that repeat what the config says are compared with it (redundant_tensors.h); config_only is for random weights.
ModelConfig read_base_config(const std::filesystem::path& base_model, BaseFiles files = BaseFiles::config_and_weights);

}  // namespace slab::train
