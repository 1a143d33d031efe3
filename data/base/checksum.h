// 64-bit checksums. They detect accidental changes; they are no defence against forgery.
//
// Their values are stored in files (a mask's header, checkpoints) and in logs, so the constants never change.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace slab::data {

// One step of the fast checksum, over a word: for tokens and whole files. For a given word it is one to one in `sum`,
// and for a given sum one to one in the word, so a single changed word always shows.
inline uint64_t checksum_step(uint64_t sum, uint64_t word) {
    return std::rotl((sum ^ word) * 0xff51afd7ed558ccdu, 31);
}

// The fast checksum of a file's size and bytes, at some GB a second. Throws IoError naming the file.
uint64_t file_checksum(const std::filesystem::path& file);

// FNV-1a (Fowler, Noll, Vo; RFC 9923), byte by byte: for names, samples of tensors, and streams of small pieces.
class Fnv1a {
  public:
    void add(const void* bytes /*[count]*/, size_t count) {
        for (size_t i = 0; i < count; ++i) value_ = (value_ ^ static_cast<const unsigned char*>(bytes)[i]) * kPrime;
    }
    uint64_t value() const { return value_; }

  private:
    static constexpr uint64_t kPrime = 0x100000001b3;
    uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace slab::data
