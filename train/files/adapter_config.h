// PEFT's adapter_config.json, read and written.
#pragma once

#include <filesystem>
#include <string>

#include "train/spec/lora.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Reads the adapter_config.json of a PEFT directory. Throws UserError, also for active options that are not
// implemented.
LoraSettings read_adapter_config(const std::filesystem::path& file, const ModelConfig& config);
// The text of an adapter_config.json that PEFT loads unchanged. base_model: its base_model_name_or_path.
std::string adapter_config_json(const LoraSettings& lora, const ModelConfig& config, const std::string& base_model);

}  // namespace slab::train
