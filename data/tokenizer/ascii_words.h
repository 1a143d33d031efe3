// Finds the ends of ASCII words without PCRE2. Most text is ASCII, and a table of character classes is several times as
// fast as a regular expression.
//
// Invariant: an answer equals that of pre_tokenizer.h's pattern. There is no answer where a character beyond ASCII
// could matter.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/tokenizer/pre_tokenizer.h"

namespace slab::data {

// End of the word that begins at text[at], at < text.size(). 0 when a character beyond ASCII comes before it is known.
size_t ascii_word_end(PreTokenizerKind kind, std::string_view text, size_t at);

}  // namespace slab::data
