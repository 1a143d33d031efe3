// PEFT's adapter_config.json, both ways.
#pragma once

#include <filesystem>
#include <string>

#include "train/spec/lora.h"
#include "train/spec/model_config.h"

namespace slab::train {

// adapter_config.json of a PEFT directory. Options that are not implemented are refused by name when they are active.
LoraSettings read_adapter_config(const std::filesystem::path& file, const ModelConfig& config);
// What PEFT loads unchanged. base_model: shown to PEFT as base_model_name_or_path. Returns the file's text.
std::string adapter_config_json(const LoraSettings& lora, const ModelConfig& config, const std::string& base_model);

}  // namespace slab::train
