// An adapter to export: a PEFT directory, in memory.
#pragma once

#include <filesystem>
#include <vector>

#include "train/spec/lora.h"
#include "train/spec/model_config.h"

namespace slab::train {

// One adapted module: its weight is W + scale * B A.
struct AdapterModule {
    LinearModule module;
    const float* A;  // [r, in]
    const float* B;  // [out, r]
};

// Every tensor is checked against the base's config. Not copyable, as modules point into packed.
struct Adapter {
    LoraSettings lora;
    std::vector<AdapterModule> modules;
    std::vector<float> packed;

    // Throws UserError naming file and key or tensor.
    Adapter(const std::filesystem::path& directory, const ModelConfig& config);
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;
};

}  // namespace slab::train
