// Writes a ModelConfig as the config.json that transformers 4 and 5 load.
#pragma once

#include <string>
#include <string_view>

#include "train/spec/model_config.h"

namespace slab::train {

// The file's text. dtype: the type of the weights beside it, such as "float32".
std::string model_config_json(const ModelConfig& config, std::string_view dtype);

}  // namespace slab::train
