// An adapter as a GGUF LoRA, which llama.cpp loads.
#pragma once

#include <filesystem>

#include "data/base/stop_token.h"
#include "train/export/adapter.h"
#include "train/spec/model_config.h"

namespace slab::train {

// Writes tensors "<llama.cpp's name>.lora_a" [r, in] and ".lora_b" [out, r] in float32, with an alpha from which
// llama.cpp computes our scale. stop is asked before each tensor; Interrupted ends the work and leaves no file.
void write_gguf_adapter(const std::filesystem::path& file, const ModelConfig& config, const Adapter& adapter,
                        data::StopToken stop = {});

}  // namespace slab::train
