// What lies beside the weights of a Hugging Face directory: config.json, generation_config.json, the tokenizer.
//
// A model made from a base is a model of its base's kind: its config.json is the base's own, key for key, with keys
// that mean nothing to us; only the type of the weights is that of the weights beside it. A base without a config.json,
// a GGUF file, gives one of ours. Used by the trainer and by export_gpt.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/files/safetensors.h"
#include "train/spec/model_config.h"

namespace slab::train {

// The names that tools look for.
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";
inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kModelWeightsFile[] = "model.safetensors";
inline constexpr char kModelIndexFile[] = "model.safetensors.index.json";
inline constexpr char kModelConfigFile[] = "config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";

// The text of config.json for weights of `dtype` made from `base` (a directory, a file in one, or a GGUF file), which
// was read as `config`. Without dtype every tensor has the base's type and the text is the base's own; a GGUF file's
// types no config could name, it needs one. Throws std::runtime_error naming the file.
std::string config_json_for(const std::filesystem::path& base, const ModelConfig& config, std::optional<DType> dtype);

// The base's tokenizer files, those that are there. None of a GGUF file: it has its own inside, and what lies beside it
// may belong to another.
std::vector<std::filesystem::path> tokenizer_files_of(const std::filesystem::path& base);
// These and generation_config.json: what belongs into the directory of a whole model.
std::vector<std::filesystem::path> companions_of(const std::filesystem::path& base);

// Of a model made from a GGUF base, whose tokenizer lies in no file: what to copy beside the weights, for the user.
std::string no_tokenizer_text();

struct CopyReport {
    std::vector<std::string> copied;    // names
    std::vector<std::string> left_out;  // of each file that could not be copied: a sentence for the user, why
};
// Each appears whole or not at all in the directory. One that cannot be copied is left out and never thrown for: a run
// that took hours does not lose its result for want of it.
CopyReport copy_into(const std::filesystem::path& directory, const std::vector<std::filesystem::path>& files);

}  // namespace slab::train
