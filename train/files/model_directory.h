// The files beside the weights of a Hugging Face directory: config.json, generation_config.json, the tokenizer.
//
// A model made from a base is of its base's kind. Its config.json is the base's own, key for key, also with keys that
// mean nothing here; only the type of the weights is changed. A GGUF file has no config.json, so one is written for it.
// The trainer and export_gpt use this.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/files/dtype.h"
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
// was read as `config`. Without dtype every tensor has the base's type, and the text is the base's own. A GGUF file
// needs a dtype, as a config cannot name its types. Throws UserError or IoError naming the file.
std::string config_json_for(const std::filesystem::path& base, const ModelConfig& config, std::optional<DType> dtype);

// The base's existing tokenizer files. None for a GGUF file: its tokenizer is inside, and files beside it may belong to
// another model.
std::vector<std::filesystem::path> tokenizer_files_of(const std::filesystem::path& base);
// The base's tokenizer files and generation_config.json, which belong into the directory of a whole model.
std::vector<std::filesystem::path> companions_of(const std::filesystem::path& base);

// Advice for a model made from a GGUF base, whose tokenizer is in no file: what to copy beside the weights.
std::string no_tokenizer_text();

struct CopyReport {
    std::vector<std::string> copied;    // names
    std::vector<std::string> left_out;  // for each file that could not be copied, a sentence for the user that says why
};
// Copies each file into the directory, whole or not at all. A file that cannot be copied is left out, without an
// exception: a run of hours does not lose its result for lack of it.
CopyReport copy_into(const std::filesystem::path& directory, const std::vector<std::filesystem::path>& files);

}  // namespace slab::train
