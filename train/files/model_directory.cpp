// The base's config.json is edited in its own order of keys; other files are copied as they are.
#include "train/files/model_directory.h"

#include <nlohmann/json.hpp>

#include "data/base/atomic_file.h"
#include "data/base/input_file.h"
#include "data/base/json_file.h"
#include "data/gguf/gguf.h"
#include "data/tokenizer/tokenizer.h"
#include "train/files/base_config.h"
#include "train/files/model_config_writer.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

// The name of the type in transformers.
const char* config_dtype(DType dtype) {
    return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

}  // namespace

std::string config_json_for(const fs::path& base, const ModelConfig& config, std::optional<DType> dtype) {
    if (data::is_gguf_file(base)) return model_config_json(config, config_dtype(dtype.value()));
    const fs::path path = config_path(base);
    const std::string text = data::InputFile(path).read_all("JSON", data::kMaxJsonBytes);
    data::parse_json(text, path.string());  // throws unless it is valid
    if (!dtype) return text;
    auto json = nlohmann::ordered_json::parse(text);
    bool named = false;
    for (const char* key : {"dtype", "torch_dtype"})  // transformers 5's spelling, and 4's
        if (json.contains(key)) {
            json[key] = config_dtype(*dtype);
            named = true;
        }
    if (!named) json["torch_dtype"] = config_dtype(*dtype);  // both versions read it
    return json.dump(2) + "\n";
}

std::vector<fs::path> tokenizer_files_of(const fs::path& base) {
    if (data::is_gguf_file(base)) return {};
    return data::tokenizer_files(config_path(base).parent_path());
}

std::vector<fs::path> companions_of(const fs::path& base) {
    std::vector<fs::path> files = tokenizer_files_of(base);
    if (data::is_gguf_file(base)) return files;
    std::error_code ignored;
    const fs::path generation = config_path(base).parent_path() / kGenerationConfigFile;
    if (fs::is_regular_file(generation, ignored)) files.push_back(generation);
    return files;
}

std::string no_tokenizer_text() {
    return "no tokenizer is beside the weights, since a GGUF base has none in files; copy tokenizer.json, "
           "tokenizer_config.json and generation_config.json there from the model that the GGUF file was made of";
}

CopyReport copy_into(const fs::path& directory, const std::vector<fs::path>& files) {
    CopyReport report;
    for (const fs::path& file : files) {
        const std::string name = file.filename().string();
        try {
            data::copy_file_atomically(file, directory / name);
            report.copied.push_back(name);
        } catch (const std::exception& error) {  // of any kind: see the header
            report.left_out.push_back(name + " is not copied beside the weights: " + error.what());
        }
    }
    return report;
}

}  // namespace slab::train
