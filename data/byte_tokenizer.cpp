// Bytes to ids and back. The one thing to keep right: a char may be signed, an id never is.
#include "data/byte_tokenizer.h"

namespace slab::data {

std::vector<uint32_t> ByteTokenizer::encode(std::string_view text) {
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
}

std::string ByteTokenizer::decode(std::span<const uint32_t> tokens) {
    std::string text;
    text.reserve(tokens.size());
    for (const uint32_t id : tokens)
        if (id < 256) text.push_back(static_cast<char>(id));
    return text;
}

}  // namespace slab::data
