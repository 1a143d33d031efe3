// The base's config.json is edited in its own order of keys; other files are copied as they are.
#include "train/files/model_directory.h"

#include <nlohmann/json.hpp>

#include "data/base/atomic_file.h"
#include "data/base/input_file.h"
#include "data/base/json_file.h"
#include "data/gguf/gguf.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json_writer.h"
#include "train/files/base_config.h"
#include "train/files/generation_config.h"
#include "train/files/model_config_writer.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

// The name of the type in transformers.
const char* config_dtype(DType dtype) {
    return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

constexpr char kTokenizerFile[] = "tokenizer.json", kTokenizerConfigFile[] = "tokenizer_config.json";
constexpr char kTiedKey[] = "tie_word_embeddings";

}  // namespace

std::string config_json_for(const fs::path& base, const ModelConfig& config, std::optional<DType> dtype) {
    if (data::is_gguf_file(base)) return model_config_json(config, config_dtype(dtype.value()));
    const fs::path path = config_path(base);
    const std::string text = data::InputFile(path).read_all("JSON", data::kMaxJsonBytes);
    data::parse_json(text, path.string());  // throws unless it is valid
    auto json = nlohmann::ordered_json::parse(text);
    const bool ties = json.value(kTiedKey, config.family == Family::gpt2);
    if (!dtype && ties == config.tied_head) return text;
    if (ties != config.tied_head) json[kTiedKey] = config.tied_head;
    if (!dtype) return json.dump(2) + "\n";
    json.erase("quantization_config");  // the weights are plain numbers now
    bool named = false;
    for (const char* key : {"dtype", "torch_dtype"})  // transformers 5's spelling, and 4's
        if (json.contains(key)) {
            json[key] = config_dtype(*dtype);
            named = true;
        }
    if (!named) json["torch_dtype"] = config_dtype(*dtype);  // both versions read it
    return json.dump(2) + "\n";
}

std::vector<Companion> tokenizer_files_of(const fs::path& base) {
    std::vector<Companion> files;
    if (!data::is_gguf_file(base)) {
        for (const fs::path& file : data::tokenizer_files(config_path(base).parent_path()))
            files.push_back({.name = file.filename().string(), .from = file});
        return files;
    }
    if (!data::has_writable_tokenizer(data::GgufFile(base))) return files;
    files.push_back({.name = kTokenizerFile, .make = [base] { return data::tokenizer_json_of(data::GgufFile(base)); }});
    files.push_back({.name = kTokenizerConfigFile,
                     .make = [base] { return data::tokenizer_config_json_of(data::GgufFile(base)); }});
    return files;
}

std::vector<Companion> companions_of(const fs::path& base) {
    std::vector<Companion> files = tokenizer_files_of(base);
    if (data::is_gguf_file(base)) {
        files.push_back({.name = kGenerationConfigFile, .make = [base] { return generation_config_of(base); }});
        return files;
    }
    std::error_code ignored;
    const fs::path generation = config_path(base).parent_path() / kGenerationConfigFile;
    if (fs::is_regular_file(generation, ignored)) files.push_back({.name = kGenerationConfigFile, .from = generation});
    return files;
}

std::string no_tokenizer_text(const fs::path& base) {
    if (!data::is_gguf_file(base) || data::has_writable_tokenizer(data::GgufFile(base))) return "";
    return "no tokenizer is beside the weights, since the GGUF base's is of a kind that is not written; copy "
           "tokenizer.json and tokenizer_config.json there from the model that the GGUF file was made of";
}

CopyReport copy_into(const fs::path& directory, const std::vector<Companion>& files) {
    CopyReport report;
    for (const Companion& file : files) {
        try {
            if (file.make)
                data::write_file_atomically(directory / file.name, file.make());
            else
                data::copy_file_atomically(file.from, directory / file.name);
            report.copied.push_back(file.name);
        } catch (const std::exception& error) {  // of any kind: see the header
            report.left_out.push_back(file.name + " is not copied beside the weights: " + error.what());
        }
    }
    return report;
}

}  // namespace slab::train
