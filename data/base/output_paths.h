// Where outputs may go: a program replaces no file that it did not make itself, least of all its inputs.
//
// All of it is asked before the first byte is written. Two paths are the same when they lead to one place, whatever
// their spelling. Links are followed as far as they exist.
#pragma once

#include <filesystem>
#include <string>

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

}  // namespace slab::data
