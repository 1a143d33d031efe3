// Token files as tests write and read them: the whole at once, and one token at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <vector>

#include "data/token_file.h"
#include "data/token_writer.h"

namespace slab::test {

// An empty `mask` writes no mask; otherwise one byte a token.
inline void write_token_file(const std::filesystem::path& path, std::span<const uint32_t> tokens,
                             std::span<const uint8_t> mask = {}) {
    if (!mask.empty() && mask.size() != tokens.size()) throw std::logic_error("a mask needs one byte a token");
    const uint32_t largest = tokens.empty() ? 0 : *std::max_element(tokens.begin(), tokens.end());
    data::TokenFileWriter writer(path, largest, !mask.empty());
    for (size_t i = 0; i < tokens.size(); ++i) writer.append(tokens[i], mask.empty() ? data::kMaskTarget : mask[i]);
    writer.commit();
}

inline uint32_t token_at(const data::TokenFile& file, size_t i) {
    uint32_t token = 0;
    uint8_t bits = 0;
    file.read(i, 1, &token, &bits);
    return token;
}
inline uint8_t mask_at(const data::TokenFile& file, size_t i) {
    uint32_t token = 0;
    uint8_t bits = 0;
    file.read(i, 1, &token, &bits);
    return bits;
}
inline bool is_target(const data::TokenFile& file, size_t i) {
    return (mask_at(file, i) & data::kMaskTarget) != 0;
}
inline bool starts_document(const data::TokenFile& file, size_t i) {
    return (mask_at(file, i) & data::kMaskDocumentStart) != 0;
}
inline size_t document_count(const data::TokenFile& file) {
    size_t count = 0;
    for (size_t i = 0; i < file.size(); ++i) count += starts_document(file, i);
    return count;
}

}  // namespace slab::test
