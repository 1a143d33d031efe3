// A directory that a program writes into. If the program has made it and leaves it empty, it is removed at the end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace slab::data {

class OutputDirectory {
  public:
    // Makes the directory and those above it, as far as they are missing. Throws IoError that names `flag` if it
    // cannot.
    OutputDirectory(const std::string& flag, const std::filesystem::path& directory);
    ~OutputDirectory();
    OutputDirectory(const OutputDirectory&) = delete;
    OutputDirectory& operator=(const OutputDirectory&) = delete;

  private:
    std::vector<std::filesystem::path> made_;  // the deepest first
};

}  // namespace slab::data
