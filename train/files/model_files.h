// The files of a model's weights: one .safetensors file, or a Hugging Face directory with model.safetensors or with
// shards and their index. All headers are read and checked at once, so that a missing shard or a tensor in two places
// is found before anything is allocated. The weights stay on disk until they are read one by one.
//
// The tensor table (train/spec) decides which tensors a model must have, and their spellings.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/files/safetensors.h"

namespace slab::train {

// For a dangling link in a model's directory: " is a link to ..., which does not exist", with advice.
std::string dangling_link_text(const std::filesystem::path& link);

// Whether there is a file of weights, be it whole or not: the file given, or one in the directory given.
bool has_model_weights(const std::filesystem::path& directory_or_file);

class ModelFiles {
  public:
    // Throws UserError saying what was found, what is wanted and how to get there.
    explicit ModelFiles(const std::filesystem::path& directory_or_file);

    // The directory given, or that of the file given. config.json is looked for there.
    const std::filesystem::path& directory() const { return directory_; }
    const std::vector<SafetensorsFile>& files() const { return files_; }  // in the order of their names
    std::vector<std::string> names() const;                               // sorted

    bool has(std::string_view name) const { return file_of_name_.find(name) != file_of_name_.end(); }
    // The first of the spellings that is a tensor's name here, or "".
    std::string resolve(std::span<const std::string> spellings) const;
    const SafetensorsFile& file_of(std::string_view name) const;  // throws when absent, like the two below
    const SafetensorsEntry& info(std::string_view name) const { return file_of(name).at(name); }
    template <class T>
    ReadReport read_as(std::string_view name, T* dst, ReadRange range = {}) const {
        return file_of(name).read_as(name, dst, range);
    }

  private:
    void open_shards(const std::filesystem::path& index_path);

    std::filesystem::path given_;
    std::filesystem::path directory_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, size_t, std::less<>> file_of_name_;
};

}  // namespace slab::train
