// The byte-level tokenizer: ids 0 to 255 are the bytes themselves, 256 ends a text and separates documents, 257 to 259
// are unused, so that the vocabulary is a round 260. It knows no characters: UTF-8 passes through byte by byte, and
// decode(encode(text)) == text for every string of bytes whatever.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace slab::data {

struct ByteTokenizer {
    static constexpr uint32_t vocabulary_size = 260;
    static constexpr uint32_t end_of_text = 256;

    static std::vector<uint32_t> encode(std::string_view text);   // adds no end_of_text
    static std::string decode(std::span<const uint32_t> tokens);  // ids of 256 and above give nothing
};

// The same behind the interface that all tokenizers share. The separator is spelled "<|endoftext|>".
class BytesAsTokens final : public Tokenizer {
  public:
    std::vector<uint32_t> encode(std::string_view text, SpecialTokens special) const override;
    std::string decode(std::span<const uint32_t> tokens, bool show_special = false) const override;

    size_t vocabulary_size() const override { return ByteTokenizer::vocabulary_size; }
    std::optional<uint32_t> id_of(std::string_view special_token) const override;
    std::optional<uint32_t> bos() const override { return {}; }
    std::optional<uint32_t> eos() const override { return ByteTokenizer::end_of_text; }
    bool adds_bos() const override { return false; }
    bool is_special(uint32_t token) const override { return token == ByteTokenizer::end_of_text; }
    const std::string& chat_template() const override { return chat_template_; }
    std::string description() const override;

  private:
    std::string chat_template_;
};

}  // namespace slab::data
