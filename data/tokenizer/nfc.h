// Unicode's normal form C: letters with their accents composed where Unicode has one character for both
// (Unicode Standard Annex 15). Qwen2's vocabulary asks for it.
#pragma once

#include <string>
#include <string_view>

namespace slab::data {

// True when `text` is in normal form C. Else false, with the text's normal form in `normal_form`. Bytes that are not
// valid UTF-8 stay, and the texts on their two sides do not combine.
bool to_nfc(std::string_view text, std::string& normal_form);

}  // namespace slab::data
