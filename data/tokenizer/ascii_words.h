// Where words of ASCII end, found without PCRE2: most text is ASCII, and a table of character classes is several times
// as fast as a regular expression.
//
// Invariant: an answer is the one that pre_tokenizer.h's pattern gives; where a character beyond ASCII could have a
// say, there is no answer.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/tokenizer/pre_tokenizer.h"

namespace slab::data {

// End of the word that begins at text[at], at < text.size(); 0 when a character beyond ASCII is met before it is known.
size_t ascii_word_end(PreTokenizerKind kind, std::string_view text, size_t at);

}  // namespace slab::data
