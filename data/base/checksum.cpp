// A file is summed as the words that it holds in memory's order; the last one is filled up with zeros.
#include "data/base/checksum.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/base/input_file.h"

namespace slab::data {

uint64_t file_checksum(const std::filesystem::path& file) {
    const InputFile in(file);
    constexpr size_t piece_bytes = size_t{1} << 20;
    std::vector<std::byte> piece(std::min(in.size_bytes() + sizeof(uint64_t), piece_bytes));
    uint64_t sum = in.size_bytes() + 0x9e3779b97f4a7c15u;
    for (size_t at = 0; at < in.size_bytes(); at += piece_bytes) {
        const size_t bytes = std::min(piece_bytes, in.size_bytes() - at);
        const size_t words = (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
        in.read(at, piece.data(), bytes, "content");
        std::fill(piece.data() + bytes, piece.data() + words * sizeof(uint64_t), std::byte{0});
        for (size_t i = 0; i < words; ++i) {
            uint64_t word = 0;
            std::memcpy(&word, piece.data() + i * sizeof word, sizeof word);
            sum = checksum_step(sum, word);
        }
    }
    return sum;
}

}  // namespace slab::data
