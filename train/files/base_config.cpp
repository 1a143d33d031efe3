// --base-model may name a directory, a file of weights in it, config.json itself, or a GGUF file.
#include "train/files/base_config.h"

#include <string>
#include <system_error>

#include "data/base/error.h"
#include "data/gguf/gguf.h"
#include "train/files/gguf_config.h"
#include "train/files/model_config_reader.h"
#include "train/files/model_directory.h"
#include "train/files/model_files.h"
#include "train/files/redundant_tensors.h"

namespace slab::train {

namespace fs = std::filesystem;

namespace {

// Advice for a directory without config.json.
std::string hint_without_config(const fs::path& config) {
    std::error_code error;
    if (fs::is_symlink(config, error)) return "it" + dangling_link_text(config);
    for (const auto& item : fs::directory_iterator(config.parent_path(), error))
        if (item.path().extension() == ".gguf")
            return "there is a GGUF file, which is a model by itself: --base-model " + item.path().string();
    return "";
}

}  // namespace

fs::path config_path(const fs::path& given) {
    const std::string subject = "--base-model " + given.string();
    const std::string wanted = "a Hugging Face directory (config.json, *.safetensors)";
    std::error_code error;
    const fs::file_status status = fs::status(given, error);
    if (!fs::exists(status))
        throw data::UserError(
            {.subject = subject, .given = error ? error.message() : "no such file or directory", .wanted = wanted});
    const fs::path config = fs::is_directory(status)               ? given / kModelConfigFile
                            : given.filename() == kModelConfigFile ? given
                                                                   : given.parent_path() / kModelConfigFile;
    if (!fs::exists(config, error) && error)
        throw data::IoError({.subject = subject,
                             .given = config.string() + " cannot be looked at: " + error.message(),
                             .wanted = "a Hugging Face directory that may be read"});
    if (!fs::exists(config, error))
        throw data::UserError({.subject = subject,
                               .given = "there is no " + config.string(),
                               .wanted = wanted,
                               .hint = hint_without_config(config)});
    return config;
}

ModelConfig read_base_config(const fs::path& base_model, BaseFiles files) {
    if (data::is_gguf_file(base_model)) return read_gguf_config(data::GgufFile(base_model));
    ModelConfig config = read_model_config(config_path(base_model));
    if (files == BaseFiles::config_and_weights) settle_redundant_tensors(base_model, config);
    return config;
}

}  // namespace slab::train
