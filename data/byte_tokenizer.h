// The byte-level tokenizer: ids 0 to 255 are the bytes themselves, 256 ends a text and separates documents, 257 to 259
// are unused, so that the vocabulary is a round 260. It knows no characters: UTF-8 passes through byte by byte, and
// decode(encode(text)) == text for every string of bytes whatever.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

struct ByteTokenizer {
    static constexpr uint32_t vocabulary_size = 260;
    static constexpr uint32_t end_of_text = 256;

    static std::vector<uint32_t> encode(std::string_view text);   // adds no end_of_text
    static std::string decode(std::span<const uint32_t> tokens);  // ids of 256 and above give nothing
};

}  // namespace slab::data
