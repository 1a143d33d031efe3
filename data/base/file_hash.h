// A number that tells one content from another, by chance or by mishap; it keeps nobody from making two of one number.
#pragma once

#include <cstdint>
#include <filesystem>

namespace slab::data {

// Of all bytes of a file and their number, read piece by piece, some GB a second. Throws std::runtime_error naming it.
uint64_t hash_of_file(const std::filesystem::path& file);

}  // namespace slab::data
