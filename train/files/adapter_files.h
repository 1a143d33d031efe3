// Adapters on disk: PEFT's adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/spec/trained_table.h"

namespace slab::train {

// adapter_model.safetensors of a PEFT directory. Throws std::runtime_error with advice when there is something else.
std::filesystem::path adapter_weights_file(const std::filesystem::path& directory);

// Weights for every tensor of the table from one .safetensors file, in table order. Throws std::runtime_error on
// missing or misshapen tensors, on values that are not finite and, unless others_allowed, on tensors that have no place
// in the table. Works for adapters (PEFT keys), full weights, and with a key_prefix for moments and parity cases, where
// tensors of other prefixes are passed over.
std::vector<float> read_trained(const std::filesystem::path& file, const TrainedTable& table,
                                const std::string& key_prefix = "", bool others_allowed = false);

// The reverse: float32, in the files' orientation, tensor by tensor.
struct NamedWeights {
    std::string key_prefix;                              // "", "exp_avg.", ...
    std::function<void(size_t index, float* dst)> read;  // tensor `index` of the table into dst [rows, cols]
};
void write_trained(const std::filesystem::path& file, const TrainedTable& table, const std::vector<NamedWeights>& sets);

}  // namespace slab::train
