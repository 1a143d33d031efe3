// Unicode's normal form C: letters with their accents composed where Unicode has one character for both
// (Unicode Standard Annex 15). Qwen2's vocabulary asks for it.
#pragma once

#include <string>
#include <string_view>

namespace slab::data {

// True when `text` is in normal form C. Else false, and `normal_form` is the text's. Bytes that are no valid UTF-8 stay
// and separate what is before from what is after.
bool to_nfc(std::string_view text, std::string& normal_form);

}  // namespace slab::data
