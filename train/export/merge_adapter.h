// A full Hugging Face model out of base and adapter.
//
// A merged weight is W + scale * B A, computed in float32 and rounded once. A tensor without an adapter keeps its bits
// if it keeps its type. Beside the adapter one tensor of the output is in memory at a time: as it is written, and in
// float32. A GGUF file's tensor is there twice while it is turned into Conv1D's [in, out].
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/thread_pool.h"
#include "train/export/adapter.h"
#include "train/files/model_directory.h"
#include "train/spec/model_config.h"

namespace slab::train {

struct MergeSettings {
    std::string dtype;  // "f32", "bf16", "f16"; "": each tensor as the base has it, bf16 for a GGUF base
    size_t max_shard_bytes = size_t{5} << 30;
    data::StopToken stop = {};                     // asked before each tensor; Interrupted ends the work
    std::filesystem::path adapter_directory = {};  // its generation_config.json counts, if there is one
};
// Counts of the written files and tensors.
struct MergeReport {
    size_t shards = 0, bytes = 0, tensors = 0, merged = 0;
    CopyReport beside;          // the base's files that belong beside the weights
    std::vector<int64_t> ends;  // at which the merged model stops since the adapter's generation_config.json does
};
// Whether the base is a GGUF file or a 4-bit directory: its types cannot be kept, and merged weights are bf16 by
// default.
bool stores_blocks(const std::filesystem::path& base, const ModelConfig& config);

// base: a Hugging Face directory, a .safetensors file with config.json beside it, or a GGUF file. out: a directory that
// does not exist, or is empty. It appears whole or not at all.
MergeReport merge_adapter(const std::filesystem::path& base, const ModelConfig& config, const Adapter& adapter,
                          const std::filesystem::path& out, const MergeSettings& settings, ThreadPool& pool);

}  // namespace slab::train
