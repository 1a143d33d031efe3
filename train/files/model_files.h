// Where a model's weights are: one .safetensors file, or a Hugging Face directory holding model.safetensors or shards
// with an index. All headers are read and checked at once, so that a missing shard or a tensor in two places is found
// before anything is allocated; the weights stay on disk until they are read one by one.
//
// Which tensors a model must have, and under which spelling, is the business of the trainer's tensor table.
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

// Of a link in a model's directory that leads nowhere: " is a link to ..., which does not exist", with advice.
std::string dangling_link_text(const std::filesystem::path& link);

class ModelFiles {
  public:
    // Throws std::runtime_error saying what was found, what is wanted and how to get there.
    explicit ModelFiles(const std::filesystem::path& directory_or_file);

    // Where config.json is looked for: the directory given, or the one the file given lies in.
    const std::filesystem::path& directory() const { return directory_; }
    const std::vector<SafetensorsFile>& files() const { return files_; }  // in the order of their names
    std::vector<std::string> names() const;                               // sorted

    bool has(std::string_view name) const { return file_of_name_.find(name) != file_of_name_.end(); }
    // The first of the spellings that a tensor here has, or "" when none has.
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
