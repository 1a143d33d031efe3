// A number that tells one content from another, by chance or by mishap; it keeps nobody from making two of one number.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>

namespace slab::data {

// The hash with one word more. For a given word one to one in hash, and for a given hash one to one in the word: a
// single change always shows.
constexpr uint64_t hash_with(uint64_t hash, uint64_t word) {
    return std::rotl((hash ^ word) * 0xff51afd7ed558ccdu, 31);
}

// Of all bytes of a file and their number, read piece by piece, some GB a second. Throws std::runtime_error naming it.
uint64_t hash_of_file(const std::filesystem::path& file);

}  // namespace slab::data
