// One step of a 64-bit hash over words. Its values are in files (a mask's header, checkpoints), so the constants stay.
#pragma once

#include <bit>
#include <cstdint>

namespace slab::data {

// For a given word one to one in hash, and for a given hash one to one in the word: a single change always shows.
inline uint64_t hash_with(uint64_t hash, uint64_t word) {
    return std::rotl((hash ^ word) * 0xff51afd7ed558ccdu, 31);
}

}  // namespace slab::data
