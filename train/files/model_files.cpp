// Finds the files in transformers' order (model.safetensors before an index) and checks the index against the shards.
// Names in an index are foreign text: they must be plain file names, so that no index can point outside of its
// directory.
#include "train/files/model_files.h"

#include <set>

#include "data/base/display.h"
#include "data/base/error.h"
#include "data/base/json_file.h"
#include "train/files/model_directory.h"

namespace slab::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWanted = "model.safetensors, or model.safetensors.index.json with its shards";

// Advice for a directory without a model's weights, by the files that it holds instead.
std::string hint_for(const fs::path& directory) {
    std::vector<std::string> safetensors;
    bool pytorch = false, gguf = false;
    for (const auto& item : fs::directory_iterator(directory)) {
        const std::string name = item.path().filename().string();
        if (std::error_code error; name.ends_with(".safetensors") && item.is_symlink(error) && !fs::exists(item, error))
            return data::quote(name) + dangling_link_text(item);
        pytorch |= name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json"));
        gguf |= name.ends_with(".gguf");
        if (name == kAdapterWeightsFile) {
            return "this is an adapter's directory: give its base model here, and the adapter with --adapter-in";
        }
        if (name.ends_with(".safetensors")) safetensors.push_back(name);
    }
    if (safetensors.size() == 1)
        return "there is " + data::quote(safetensors[0]) + ": give that file instead of the directory";
    if (!safetensors.empty()) return "there are other .safetensors files, but the index that joins them is missing";
    if (pytorch) {
        return "there is a PyTorch pickle: convert it with "
               "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT) in Python's transformers";
    }
    if (gguf) return "there is a GGUF file: give that file instead of the directory";
    return "was the download finished?";
}

bool is_plain_shard_name(const std::string& name) {
    const auto no_text = [](unsigned char c) { return c < 0x20 || c == 0x7f; };  // could give a terminal orders
    return name.ends_with(".safetensors") && name.find_first_of("/\\") == std::string::npos &&
           std::none_of(name.begin(), name.end(), no_text);
}

}  // namespace

std::string dangling_link_text(const fs::path& link) {
    std::error_code ignored;
    return " is a link to " + data::quote(fs::read_symlink(link, ignored).string()) +
           ", which does not exist; the download is damaged, delete the link and fetch the model again";
}

bool has_model_weights(const fs::path& directory_or_file) {
    std::error_code error;
    if (!fs::is_directory(directory_or_file, error)) return directory_or_file.extension() == ".safetensors";
    return fs::exists(directory_or_file / kModelWeightsFile, error) ||
           fs::exists(directory_or_file / kModelIndexFile, error);
}

ModelFiles::ModelFiles(const fs::path& directory_or_file) : given_(directory_or_file) {
    const fs::file_status status = fs::status(given_);
    if (!fs::exists(status)) {
        throw data::UserError({.subject = given_.string(),
                               .given = "does not exist",
                               .wanted = "a Hugging Face model directory or a .safetensors file"});
    }
    directory_ = fs::is_directory(status) ? given_ : given_.parent_path();
    if (!fs::is_directory(status)) {
        files_.emplace_back(given_);
    } else if (fs::exists(given_ / kModelWeightsFile)) {
        files_.emplace_back(given_ / kModelWeightsFile);
    } else if (fs::exists(given_ / kModelIndexFile)) {
        open_shards(given_ / kModelIndexFile);
    } else {
        throw data::UserError(
            {.subject = given_.string(), .given = "has no weights", .wanted = kWanted, .hint = hint_for(given_)});
    }

    for (size_t f = 0; f < files_.size(); ++f) {
        for (const SafetensorsEntry& entry : files_[f].entries()) {
            const auto [at, added] = file_of_name_.emplace(entry.name, f);
            if (!added) {
                throw data::UserError(
                    {.subject = files_[f].path().string(),
                     .given = "tensor " + data::quote(entry.name) + " is also in " + files_[at->second].path().string(),
                     .wanted = "it in one shard only"});
            }
        }
    }
    if (file_of_name_.empty())
        throw data::UserError({.subject = given_.string(), .given = "has no tensors", .wanted = "a model's weights"});
}

void ModelFiles::open_shards(const fs::path& index_path) {
    const std::string where = index_path.string();
    const nlohmann::json index = data::read_json_file(index_path);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
        throw data::UserError(
            {.subject = where, .given = "has no \"weight_map\" object", .wanted = "{\"weight_map\": {tensor: shard}}"});
    }
    const nlohmann::json& weight_map = index["weight_map"];
    std::set<std::string> shards;
    for (const auto& [name, shard] : weight_map.items()) {
        if (!shard.is_string() || !is_plain_shard_name(shard.get_ref<const std::string&>())) {
            throw data::UserError({.subject = where,
                                   .given = "tensor " + data::quote(name) + " is said to be in " + data::shown(shard),
                                   .wanted = "the plain name of a .safetensors file in the same directory"});
        }
        shards.insert(shard.get<std::string>());
    }
    std::map<std::string, size_t> file_of_shard;
    for (const std::string& shard : shards) {
        const fs::path path = index_path.parent_path() / shard;
        if (!fs::exists(path)) {
            throw data::UserError({.subject = path.string(),
                                   .given = "does not exist, but " + where + " names it among its " +
                                            std::to_string(shards.size()) + " shards",
                                   .hint = "was the download finished?"});
        }
        file_of_shard[shard] = files_.size();
        files_.emplace_back(path);
    }
    for (const auto& [name, shard] : weight_map.items()) {
        const SafetensorsFile& file = files_[file_of_shard[shard.get_ref<const std::string&>()]];
        if (!file.find(name)) {
            throw data::UserError({.subject = file.path().string(),
                                   .given = "has no tensor " + data::quote(name) + ", but " + where + " says it has",
                                   .wanted = "index and shards of one download"});
        }
    }
}

std::vector<std::string> ModelFiles::names() const {
    std::vector<std::string> all;
    for (const auto& [name, file] : file_of_name_) all.push_back(name);
    return all;
}

std::string ModelFiles::resolve(std::span<const std::string> spellings) const {
    for (const std::string& name : spellings) {
        if (has(name)) return name;
    }
    return "";
}

const SafetensorsFile& ModelFiles::file_of(std::string_view name) const {
    const auto found = file_of_name_.find(name);
    if (found != file_of_name_.end()) return files_[found->second];
    throw data::UserError(
        {.subject = given_.string(),
         .given = "has no tensor " + data::quote(name) + " among its " + std::to_string(file_of_name_.size()),
         .wanted = "every weight that config.json implies"});
}

}  // namespace slab::train
