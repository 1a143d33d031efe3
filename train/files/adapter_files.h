// Adapters on disk: PEFT's adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/spec/trained_table.h"

namespace slab::train {

// The path of adapter_model.safetensors in a PEFT directory. Throws UserError with a hint when it is missing.
std::filesystem::path adapter_weights_file(const std::filesystem::path& directory);

// Weights for every tensor of the table from one .safetensors file, in the table's order. Throws UserError for missing
// or misshapen tensors, for values that are not finite and, unless others_allowed, for tensors that have no place in
// the table. It reads adapters (PEFT keys) and full weights. A key_prefix selects moments and parity cases: tensors
// with other prefixes are skipped.
std::vector<float> read_trained(const std::filesystem::path& file, const TrainedTable& table,
                                const std::string& key_prefix = "", bool others_allowed = false);

// Writes the table's tensors: float32, in the files' orientation, one after the other.
struct NamedWeights {
    std::string key_prefix;                              // "", "exp_avg.", ...
    std::function<void(size_t index, float* dst)> read;  // tensor `index` of the table into dst [rows, cols]
};
void write_trained(const std::filesystem::path& file, const TrainedTable& table, const std::vector<NamedWeights>& sets);

}  // namespace slab::train
