// Tokens that text is searched for before BPE sees it: special tokens ("<|im_end|>") and other added ones.
//
// Meaning (Hugging Face's `tokenizers`): from left to right, at the first place where a token begins, the longest one
// that does; white space beside it goes with it where the token says so (lstrip, rstrip). Parts may overlap then: of
// two tokens one may begin in the white space that the other took.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace slab::data {

struct AddedToken {
    std::string text;
    uint32_t id = 0;
    bool special = false;     // left out when decoding, and plain text where SpecialTokens::as_text is asked for
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
    // Searching costs up to a text's length times the longest token's, which a hostile file must not choose.
    static constexpr size_t kLongestBytes = 512;

    explicit AddedTokenFinder(std::vector<AddedToken> tokens);  // of equal texts the last counts; throws on longer ones
    bool empty() const { return tokens_.empty(); }

    // Appends the parts of `text` to `parts`, none of them empty. With `special_as_text` special tokens are not
    // searched for; others are.
    void split(std::string_view text, bool special_as_text, std::vector<TextPart>& parts) const;

  private:
    const AddedToken* longest_at(std::string_view text) const;

    std::vector<AddedToken> tokens_;  // sorted by text, so that those with a common beginning are neighbours
    std::array<uint32_t, 257>
        first_with_byte_{};  // tokens_ [first_with_byte_[b], first_with_byte_[b + 1]) begin with b
    std::array<bool, 256> begins_token_{};
    int only_first_byte_ = -1;  // when all begin with the same one, as mostly: memchr finds it
};

}  // namespace slab::data
