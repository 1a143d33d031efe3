// The files beside the weights of a Hugging Face directory: config.json, generation_config.json, the tokenizer.
//
// A model made from a base is of its base's kind. Its config.json is the base's own, key for key, also with keys that
// mean nothing here. Two are changed: the type of the weights, and tie_word_embeddings where the base's files
// contradict it (redundant_tensors.h). A GGUF file has no config.json, so one is written for it. The trainer and
// export_gpt use this.
#pragma once

#include <filesystem>
#include <functional>
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
// was read as `config`. Without dtype every tensor has the base's type, and the text is the base's own unless it ties a
// head that the files do not. A GGUF file needs a dtype, as a config cannot name its types. Throws UserError or IoError
// naming the file.
std::string config_json_for(const std::filesystem::path& base, const ModelConfig& config, std::optional<DType> dtype);

// A file that belongs beside a result: a copy of the base's, or made for it.
struct Companion {
    std::string name;
    std::filesystem::path from = {};         // copied, unless `make` is there
    std::function<std::string()> make = {};  // the text; it is long for a tokenizer, so it is made when it is written
};

// The base's tokenizer files. For a GGUF file they are made of the tokenizer inside, where its kind can be written
// (has_writable_tokenizer); files beside it may belong to another model.
std::vector<Companion> tokenizer_files_of(const std::filesystem::path& base);
// The base's tokenizer files and generation_config.json, which belong into the directory of a whole model. A GGUF
// file's generation_config.json is made of its metadata.
std::vector<Companion> companions_of(const std::filesystem::path& base);

// Advice for a model made from a GGUF base whose tokenizer cannot be written, else "".
std::string no_tokenizer_text(const std::filesystem::path& base);

struct CopyReport {
    std::vector<std::string> copied;    // names
    std::vector<std::string> left_out;  // for each file that could not be copied, a sentence for the user that says why
};
// Writes each file into the directory, whole or not at all. A file that cannot be copied is left out, without an
// exception: a run of hours does not lose its result for lack of it.
CopyReport copy_into(const std::filesystem::path& directory, const std::vector<Companion>& files);

}  // namespace slab::train
