// Finds special tokens ("<|im_end|>") and other added tokens in a text, before BPE sees it.
//
// Meaning (Hugging Face's `tokenizers`): the search goes from left to right. Where several tokens begin at one place,
// the longest counts. A token with lstrip or rstrip takes the white space on that side. Parts can overlap then: a token
// may begin in the white space that another took.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace slab::data {

struct AddedToken {
    std::string text;
    uint32_t id = 0;
    bool special = false;     // left out when decoding, and plain text with SpecialTokens::as_text
    bool normalized = false;  // searched for in the text's normal form, not in the text as it is
    bool lstrip = false, rstrip = false;
};

// A part of a text: plain, or one token.
struct TextPart {
    static constexpr uint32_t kNoToken = UINT32_MAX;
    std::string_view text;
    uint32_t token = kNoToken;
};

class AddedTokenFinder {
  public:
    // A search costs up to the text's length times the longest token's, so a hostile file must not choose the latter.
    static constexpr size_t kLongestBytes = 512;

    // Of equal texts the last counts. Throws UserError for a token longer than kLongestBytes.
    explicit AddedTokenFinder(std::vector<AddedToken> tokens);
    bool empty() const { return tokens_.empty(); }

    // Appends the parts of `text` to `parts`, none of them empty. With `special_as_text` special tokens are not
    // searched for; others are.
    void split(std::string_view text, bool special_as_text, std::vector<TextPart>& parts) const {
        const TextRange whole{0, text.size()};
        split(text, {&whole, special_as_text ? size_t{1} : 0}, parts);
    }
    // The same for special tokens that begin or end within ranges of the text, which ascend.
    void split(std::string_view text, std::span<const TextRange> plain, std::vector<TextPart>& parts) const;

  private:
    const AddedToken* longest_at(std::string_view text) const;

    std::vector<AddedToken> tokens_;  // sorted by text, so tokens with a common beginning are neighbours
    // tokens_ [first_with_byte_[b], first_with_byte_[b + 1]) begin with byte b.
    std::array<uint32_t, 257> first_with_byte_{};
    std::array<bool, 256> begins_token_{};
    int only_first_byte_ = -1;  // the first byte of all tokens if they share one, as most do: memchr finds it
};

}  // namespace slab::data
