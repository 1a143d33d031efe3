// build/export_gpt: an adapter made into what other tools load: a full Hugging Face model, or a GGUF LoRA for
// llama.cpp.
//
// Works on files alone: no device is opened. In memory, beside the adapter, is one tensor of the output at a time: as
// it is written, and in float32 (twice while a GGUF file's is turned into Conv1D's [in, out]). A merged weight is
// W + scale * B A, computed in float32 and rounded once; a tensor without an adapter keeps its bits where its type is
// kept.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/stop_token.h"
#include "kernels/runtime/thread_pool.h"
#include "train/files/adapter_config.h"
#include "train/files/model_directory.h"
#include "train/spec/lora.h"
#include "train/spec/model_config.h"

namespace slab::train {

// One adapted module: its weight is W + scale * B A.
struct AdapterModule {
    LinearModule module;
    const float* A;  // [r, in]
    const float* B;  // [out, r]
};

// A PEFT directory in memory, every tensor checked against the base's config. Not to be copied: modules point into
// packed.
struct Adapter {
    LoraSettings lora;
    std::vector<AdapterModule> modules;
    std::vector<float> packed;

    // Throws std::runtime_error naming file and key or tensor.
    Adapter(const std::filesystem::path& directory, const ModelConfig& config);
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;
};

struct MergeSettings {
    std::string dtype;  // "f32", "bf16", "f16"; "": each tensor as the base has it, bf16 for a GGUF base
    size_t max_shard_bytes = size_t{5} << 30;
    data::StopToken stop = {};  // asked before each tensor; Interrupted ends the work
};
// What was written.
struct MergeReport {
    size_t shards = 0, bytes = 0, tensors = 0, merged = 0;
    CopyReport beside;  // the base's files that belong beside the weights
};
// base: a Hugging Face directory, a .safetensors file with config.json beside it, or a GGUF file. out: a directory that
// does not exist, or is empty; it appears whole or not at all.
MergeReport merge_adapter(const std::filesystem::path& base, const ModelConfig& config, const Adapter& adapter,
                          const std::filesystem::path& out, const MergeSettings& settings, ThreadPool& pool);

// Tensors "<llama.cpp's name>.lora_a" [r, in] and ".lora_b" [out, r] in float32, with an alpha from which llama.cpp
// computes our scale. stop as in MergeSettings.
void write_gguf_adapter(const std::filesystem::path& file, const ModelConfig& config, const Adapter& adapter,
                        data::StopToken stop = {});

// The program but for main(). Returns its exit code. stop is asked before each tensor that is written: then what was
// being written is removed, and data::kExitInterrupted returned.
int run_export(int argc, const char* const* argv, std::ostream& out, std::ostream& err, data::StopToken stop = {});

}  // namespace slab::train
