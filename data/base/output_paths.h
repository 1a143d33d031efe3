// Where outputs may go: what a program writes replaces no file that it did not make itself, its inputs above all.
//
// All of it is asked before the first byte is written. Paths are compared by where they lead, not by how they are
// spelled: links are followed as far as they exist.
#pragma once

#include <filesystem>
#include <string>

namespace slab::data {

// Absolute, without links, "." and "..", as far as the path exists.
std::filesystem::path place_of(const std::filesystem::path& path);

// Both lead to one file, or would; hard links are one file too.
bool same_place(const std::filesystem::path& a, const std::filesystem::path& b);

// `path` is `directory` or lies below it.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& directory);

// Throws std::runtime_error, naming the flag, unless `path` can become a new file: nothing is there, not even a link
// that leads nowhere, and its directory exists.
void require_new_file(const std::string& flag, const std::filesystem::path& path);
// The same for a directory that shall appear as a whole: nothing is there, or an empty directory.
void require_new_directory(const std::string& flag, const std::filesystem::path& path);

}  // namespace slab::data
