// The byte-level tokenizer. Ids 0 to 255 are the bytes themselves; 256 ends a text and separates documents; 257 to 259
// are unused and make the vocabulary a round 260. It knows no characters: UTF-8 passes byte by byte, and
// decode(encode(text)) == text for every string of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace slab::data {

// The separator is spelled "<|endoftext|>".
class ByteTokenizer final : public Tokenizer {
  public:
    static constexpr uint32_t kVocabularySize = 260, kEndOfText = 256;

    std::vector<uint32_t> encode(std::string_view text, SpecialTokens special) const override;
    std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const override;

    size_t vocabulary_size() const override { return kVocabularySize; }
    std::optional<uint32_t> id_of(std::string_view special_token) const override;
    std::optional<uint32_t> bos() const override { return {}; }
    std::optional<uint32_t> eos() const override { return kEndOfText; }
    bool adds_bos() const override { return false; }
    const ChatFiles& chat() const override { return chat_; }
    std::string description() const override;

  private:
    ChatFiles chat_;
};

}  // namespace slab::data
