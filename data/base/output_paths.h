// Where outputs may go: a program replaces no file that it did not make itself, least of all its inputs.
//
// All of it is asked before the first byte is written. Two paths are the same when they lead to one place, whatever
// their spelling. Links are followed as far as they exist.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace slab::data {

// Absolute, without links, "." and "..", as far as the path exists.
std::filesystem::path place_of(const std::filesystem::path& path);

// Both lead to one file, or would if it existed. Hard links are one file too.
bool same_place(const std::filesystem::path& a, const std::filesystem::path& b);

// `path` is `directory` or lies below it.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& directory);

// Throws UserError naming the flag, unless `path` can become a new file: its directory exists and nothing is there, not
// even a dangling link.
void require_new_file(const std::string& flag, const std::filesystem::path& path);
// As above for a directory that appears as a whole: nothing is there, or an empty directory.
void require_new_directory(const std::string& flag, const std::filesystem::path& path);

// An output directory, made with its parents where they are missing. Those made here go again at the end, as far as
// they are still empty: a program that was refused leaves no directory.
class OutputDirectory {
  public:
    // Throws IoError naming the flag when it cannot be made.
    OutputDirectory(const std::string& flag, const std::filesystem::path& path);
    ~OutputDirectory();
    OutputDirectory(const OutputDirectory&) = delete;
    OutputDirectory& operator=(const OutputDirectory&) = delete;

  private:
    std::vector<std::filesystem::path> made_;  // the deepest first
};

}  // namespace slab::data
