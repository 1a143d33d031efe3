// Finds the base model's tokenizer.
#include "train/files/base_tokenizer.h"

#include "data/base/error.h"
#include "data/gguf/gguf.h"
#include "data/tokenizer/byte_tokenizer.h"

namespace slab::train {

namespace fs = std::filesystem;

fs::path base_tokenizer_path(const std::string& base_model, const ModelConfig& config) {
    const fs::path given(base_model);
    if (data::is_gguf_file(given)) return given;
    const fs::path directory = fs::is_directory(given) ? given : given.parent_path();
    std::error_code error;
    if (fs::exists(directory / "tokenizer.json", error)) return directory.empty() ? "." : directory;
    if (config.V == static_cast<int>(data::ByteTokenizer::kVocabularySize)) return "bytes";
    return {};
}

std::unique_ptr<data::Tokenizer> open_base_tokenizer(const std::string& base_model, const ModelConfig& config) {
    const fs::path path = base_tokenizer_path(base_model, config);
    if (path.empty())
        throw data::UserError({.subject = "--base-model " + base_model,
                               .given = "there is no tokenizer.json beside the weights, and its vocabulary of " +
                                        std::to_string(config.V) + " is not the byte tokenizer's " +
                                        std::to_string(data::ByteTokenizer::kVocabularySize),
                               .hint = "copy the model's tokenizer.json there, or give token files"});
    return data::open_tokenizer(path);
}

}  // namespace slab::train
